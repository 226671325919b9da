package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/node"
)

// TestModes runs a job in each mode over a restart. Every output is exact in all of them, since the log is; what
// differs is what a restart has to read again.
func TestModes(t *testing.T) {
	for _, mode := range []string{"at_least_once", "synchronous", "none"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFiles(t)
			dir := t.TempDir()
			a := start(t, dir)
			a.mustApply(f.job(true, ", mode: "+mode))
			f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
			f.wants(a, a1, b1)
			taken := uint64(0)
			if mode != "none" {
				a.until("a checkpoint is taken", func() (bool, string) {
					j, err := a.client.Job(t.Context(), "lines")
					taken = j.LastReplicatedEpoch
					return err == nil && taken > 0 && strings.HasPrefix(j.Waits, "nothing has changed"), fmt.Sprint(j.LastReplicatedEpoch, j.Waits, err)
				})
			}
			a.stop()
			a = start(t, dir)
			f.write(t, "{\"k\":\"a\"}\n")
			f.wants(a, a1, b1, a2)
			j, err := a.client.Job(t.Context(), "lines")
			if err != nil || len(j.Tasks) != 1 || j.Tasks[0].Recovery == nil {
				t.Fatalf("after the restart: %+v, %v", j, err)
			}
			r := j.Tasks[0].Recovery
			if mode == "none" && (r.Epoch != 0 || j.LastCompleteEpoch != 0) || mode != "none" && r.Epoch < taken {
				t.Errorf("restored from epoch %d of %d, the newest before was %d", r.Epoch, j.LastCompleteEpoch, taken)
			}
		})
	}
}

// TestSavepointIsKept: it is still there, and can be exported and begun from, when many checkpoints have followed.
func TestSavepointIsKept(t *testing.T) {
	f := newFiles(t)
	dir := t.TempDir()
	a := start(t, dir)
	a.mustApply(f.job(true, ", min_pause: 0s"))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	cp, err := a.client.CheckpointNow(t.Context(), "lines", "before", patience)
	if err != nil || cp.Savepoint != "before" || cp.State != "replicated" {
		t.Fatalf("savepoint %+v, %v", cp, err)
	}
	if again, err := a.client.CheckpointNow(t.Context(), "lines", "before", patience); err != nil || again.Epoch != cp.Epoch {
		t.Fatalf("the same name again: %+v, %v", again, err)
	}
	const later = 8 // more than an agent keeps copies of without a name
	a.until("later checkpoints are taken", func() (bool, string) {
		j, err := a.client.Job(t.Context(), "lines")
		f.write(t, "{\"k\":\"c\"}\n")
		return err == nil && j.LastReplicatedEpoch > cp.Epoch+later, fmt.Sprint(j.LastReplicatedEpoch, err)
	})
	a.stop()
	a = start(t, dir)
	listed := func() {
		t.Helper()
		a.until("the savepoint is listed", func() (bool, string) {
			list, err := a.client.Checkpoints(t.Context(), "lines")
			for _, c := range list {
				if c.Epoch == cp.Epoch && c.Savepoint == "before" {
					return true, ""
				}
			}
			return false, fmt.Sprint(list, err)
		})
	}
	listed()
	var file strings.Builder
	if _, err := a.client.ExportCheckpoint(t.Context(), "lines", cp.Epoch, &file); err != nil {
		t.Fatal(err)
	}
	a.stop()
	if err := os.RemoveAll(filepath.Join(dir, "nats")); err != nil { // the agent's copies bring it back
		t.Fatal(err)
	}
	a = start(t, dir)
	listed()
	a.stop()

	f.out += "-again"
	fresh := t.TempDir()
	if im, err := node.ImportCheckpoint(t.Context(), strings.NewReader(file.String()), fresh); err != nil || im.Tasks != 1 {
		t.Fatalf("imported %+v, %v", im, err)
	}
	a = start(t, fresh)
	a.mustApply(f.job(true, ""))
	a.until("it has gone on from there", func() (bool, string) {
		b, err := os.ReadFile(f.out)
		return err == nil && strings.HasPrefix(string(b), "3 c {\"count\":1}\n4 c {\"count\":2}\n"), fmt.Sprintf("%s, %v", b, err)
	})
}
