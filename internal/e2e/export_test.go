//go:build mosquitto

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

// TestExportImport stops the job, takes its state in a file, deletes every agent's directory, and goes on
// from the file in empty ones: the counts go on where they were.
func TestExportImport(t *testing.T) {
	s := newSite(t)
	s.feed(4 * time.Second)()
	s.settle()
	s.judge()

	s.cli("job", "stop", "totals")
	var checkpoints []api.Checkpoint
	s.must(json.Unmarshal([]byte(s.cli("checkpoint", "list", "totals", "--json")), &checkpoints))
	final := false
	for _, c := range checkpoints {
		final = final || c.Final && c.State == api.CheckpointReplicated
	}
	if !final {
		t.Errorf("no final checkpoint is replicated: %+v", checkpoints)
	}
	file := filepath.Join(s.dir, "totals.ckpt")
	s.cli("checkpoint", "export", "totals", "-o", file)

	s.terminate()
	for _, a := range s.fleet.Agents() {
		s.must(os.RemoveAll(a.Dir))
		s.command(agentBinary(), "checkpoint", "import", file, "--data", a.Dir)
	}
	s.check(s.within(startPatience, s.fleet.Start))
	if state := s.job().State; state != api.JobStopped {
		t.Errorf("the imported job is %s, want stopped", state)
	}
	s.apply()
	s.sameGeneration(2)
	s.feed(4 * time.Second)()
	s.settle()
	s.judge()

	// And the state that came from the file survives a kill like any other.
	for _, a := range s.fleet.Agents() {
		a.Kill()
		s.check(a.Start())
		s.check(s.within(startPatience, a.WaitReady))
	}
	s.feed(2 * time.Second)()
	s.settle()
	s.judge()
}
