package node_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/api"
)

// held is the counting job with a sink that hands over with checkpoints, which are taken when asked for.
func (f files) held(follow bool) string {
	return strings.NewReplacer("from: total}", "from: total, commit: checkpoint}", "200ms", "1h").Replace(f.job(follow, ""))
}

// taken waits until the job's first task has taken so many records since the agent started.
func (a *agent) taken(job string, records uint64) {
	a.t.Helper()
	a.until(fmt.Sprintf("%d records are taken", records), func() (bool, string) {
		j, err := a.client.Job(a.t.Context(), job)
		if err != nil || len(j.Tasks) == 0 {
			return false, fmt.Sprint(err)
		}
		return j.Tasks[0].RecordsOut >= records, fmt.Sprintf("%+v", j.Tasks[0])
	})
}

// Nothing is handed over before a checkpoint counts that contains it, also not after a restart.
func TestCommitWithCheckpoints(t *testing.T) {
	f := newFiles(t)
	dir := t.TempDir()
	a := start(t, dir)
	a.mustApply(f.held(true))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	a.taken("lines", 2)
	a.holds("lines", 2)
	f.wantsNothing(t)
	a.replicated("lines")
	f.wants(a, a1, b1)
	f.write(t, "{\"k\":\"a\"}\n")
	a.taken("lines", 3)
	a.stop()
	a = start(t, dir)
	f.write(t, "{\"k\":\"a\"}\n")
	a.taken("lines", 2) // one of them again
	a.holds("lines", 2)
	f.wants(a, a1, b1)
	a.replicated("lines")
	f.wants(a, a1, b1, a2, a3)
	a.stop()
	a = start(t, dir)
	f.wants(a, a1, b1, a2, a3)
}

// holds waits until the job's sink holds so many items.
func (a *agent) holds(job string, items uint64) {
	a.t.Helper()
	a.until(fmt.Sprintf("%d items are held", items), func() (bool, string) {
		j, err := a.client.Job(a.t.Context(), job)
		if err != nil || len(j.Tasks) == 0 || len(j.Tasks[0].Sinks) == 0 {
			return false, fmt.Sprint(err)
		}
		return j.Tasks[0].Sinks[0].Held == items, fmt.Sprintf("%+v", j.Tasks[0].Sinks[0])
	})
}

func (f files) wantsNothing(t *testing.T) {
	t.Helper()
	if b, err := os.ReadFile(f.out); err == nil && len(b) > 0 {
		t.Fatalf("handed over already: %s", b)
	}
}

// The checkpoints that end a job count too.
func TestCommitWithTheLastCheckpoint(t *testing.T) {
	f := newFiles(t)
	a := start(t, t.TempDir())
	a.mustApply(f.held(true))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	a.taken("lines", 2)
	if _, err := a.client.StopJob(t.Context(), "lines", patience); err != nil {
		t.Fatal(err)
	}
	f.wants(a, a1, b1)

	g := newFiles(t)
	g.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n{\"k\":\"a\"}\n")
	a.mustApply(strings.NewReplacer("name: lines", "name: ends", "1h", "200ms").Replace(g.held(false)))
	a.state("ends", api.JobFinished)
	g.wants(a, a1, b1, a2)
}

func TestCommitNeedsCheckpoints(t *testing.T) {
	f := newFiles(t)
	a := start(t, t.TempDir())
	_, err := a.apply(strings.Replace(f.held(true), "interval: 1h", "interval: 1h, mode: none", 1))
	if err == nil || !strings.Contains(err.Error(), "sink out hands over with checkpoints, and mode none takes none") {
		t.Errorf("got %v", err)
	}
}
