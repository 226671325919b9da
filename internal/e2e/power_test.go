//go:build mosquitto

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
)

// TestPowerCut kills all agents, and with them the embedded server, at the same moment while readings
// stream in, and deletes everything that the server had on disk: input streams, control plane, object
// store. Twice, since what was rebuilt must be as good as what was there.
func TestPowerCut(t *testing.T) {
	s := newSite(t)
	lasts := 24 * time.Second
	began := time.Now()
	published := s.feed(lasts)
	for n := range 2 {
		before := s.replicatedAfter(0)
		at := time.Duration(n)*12*time.Second + 5*time.Second + time.Duration(s.rand.Int64N(int64(3*time.Second)))
		fleet.Sleep(s.ctx, time.Until(began.Add(at)))
		s.fleet.Kill()
		t.Logf("%6.2f s: killed all after checkpoint %d", time.Since(began).Seconds(), before)
		s.must(os.RemoveAll(filepath.Join(s.hub.Dir, "nats")))
		fleet.Sleep(s.ctx, time.Duration(s.rand.Int64N(int64(2*time.Second))))
		s.check(s.within(startPatience, s.fleet.Start))
		// The control plane is as it was, and goes on: no epoch is used again.
		after := s.replicatedAfter(before)
		t.Logf("%6.2f s: checkpoint %d is replicated", time.Since(began).Seconds(), after)
	}
	published()
	s.settle()
	s.judge()
	s.sameGeneration(1)
	var ops []api.Operator
	s.must(json.Unmarshal([]byte(s.cli("operator", "list", "--json")), &ops))
	if len(ops) != 2 {
		t.Errorf("operators after the power cut: %+v", ops)
	}
}

// replicatedAfter waits until a checkpoint above epoch is replicated and returns the newest one.
func (s *site) replicatedAfter(epoch uint64) uint64 {
	s.t.Helper()
	var newest uint64
	s.until(startPatience, "a replicated checkpoint", func(ctx context.Context) bool {
		j, err := s.hub.Client().Job(ctx, "totals")
		newest = j.LastReplicatedEpoch
		return err == nil && newest > epoch
	})
	return newest
}

// checkpointsGoOn takes one, since none is due while nothing changes.
func (s *site) checkpointsGoOn() {
	s.t.Helper()
	before := s.job().LastReplicatedEpoch
	s.cli("checkpoint", "now", "totals", "--timeout", startPatience.String())
	s.replicatedAfter(before)
}

// sameGeneration waits until the job and all its tasks run, and checks in which generation.
func (s *site) sameGeneration(gen uint32) {
	s.t.Helper()
	var j api.Job
	s.until(startPatience, "the job and its tasks to run", func(context.Context) bool {
		j = s.job()
		running := j.State == api.JobRunning && len(j.Tasks) == 4
		for _, task := range j.Tasks {
			running = running && task.State == api.TaskRunning
		}
		return running
	})
	for _, task := range j.Tasks {
		if task.Generation != gen || j.Generation != gen {
			s.t.Errorf("job in generation %d, task %s in %d; want %d", j.Generation, task.ID, task.Generation, gen)
		}
	}
}
