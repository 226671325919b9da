package node_test

import (
	"crypto/ed25519"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
)

// TestJobThatCannotStartIsApplied: a corrected file takes its place, whatever it changes, and what came for its source is
// there; once the job has begun, a change is one like any other.
func TestJobThatCannotStartIsApplied(t *testing.T) {
	t.Parallel()
	pub, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	f, dir := newFiles(t), t.TempDir()
	up := func() *agent {
		return startWith(t, node.Options{Data: dir, Name: "a", NATSListen: "127.0.0.1:0", TrustedKeys: []ed25519.PublicKey{pub}})
	}
	a := up()
	a.push("1", telling("a")) // and signed by nobody
	f.write(t, "{\"k\":\"a\"}\n")
	wrong := api.JobSource{File: "job.yaml", YAML: f.tells("1", "")}
	for range 2 {
		a.until("it is said that a module that is not trusted has not started", func() (bool, string) {
			_, err := a.client.ApplyJob(t.Context(), wrong, time.Second)
			return err != nil && strings.Contains(err.Error(), "has not yet"), fmt.Sprint(err)
		})
	}
	a.until("the task says why it does not start", func() (bool, string) {
		j, err := a.client.Job(t.Context(), "lines")
		return err == nil && len(j.Tasks) > 0 && strings.Contains(j.Tasks[0].Reason, "not signed"), fmt.Sprintf("%+v, %v", j.Tasks, err)
	})
	if done := a.mustApply(f.job(true, "")); done.Generation != 2 || !done.Created {
		t.Errorf("corrected: %+v", done)
	}
	f.wants(a, `1 a {"count":1}`)
	a.stop()
	a = up()
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, `1 a {"count":1}`, `2 a {"count":2}`)
	if done := a.mustApply(strings.Replace(f.job(true, ""), "interval: 200ms", "interval: 300ms", 1)); done.Created || done.Drained == "" {
		t.Errorf("a change of a job that has begun: %+v", done)
	}
}
