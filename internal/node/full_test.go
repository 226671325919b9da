package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weir-stream/weir/internal/node"
)

// TestDiskFull: the disk under the input log is full, at another byte of the write each time it is tried. The
// agent stays up and says so; nothing is acknowledged and nothing comes out that is not on disk; when there
// is room again everything goes on, without a restart. Twice, the second time over a restart of the agent.
func TestDiskFull(t *testing.T) {
	var full atomic.Bool
	var tries atomic.Int64
	room := func(bytes int) int {
		if !full.Load() {
			return bytes
		}
		return int(tries.Add(1)-1) % bytes
	}
	dir := t.TempDir()
	begin := func() *agent {
		return startWith(t, node.Options{Data: dir, Name: "a", NATSListen: "127.0.0.1:0", MQTTListen: "127.0.0.1:0", LogRoom: room})
	}
	var want []string
	batch := func() (some []string) {
		for range 50 {
			some = append(some, fmt.Sprintf(`{"k":"x","n":%d}`, len(want)+len(some)))
		}
		want = append(want, some...)
		return some
	}
	lines := func() []string {
		out, err := os.ReadFile(filepath.Join(dir, "files", "out.txt"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	comes := func(a *agent, what string, n int) {
		t.Helper()
		a.until(what, func() (bool, string) {
			got := len(lines())
			return got == n, fmt.Sprintf("%d of %d lines", got, n)
		})
	}
	a := begin()
	a.mustApply(strings.NewReplacer("name: clock", "name: full", "key: {json: k}, ", "").Replace(clockJob))
	publish(t, a.at.MQTT, batch()...)
	comes(a, "everything has come out", len(want))

	source := func() (received, logged uint64) {
		j, err := a.client.Job(t.Context(), "full")
		if err != nil {
			t.Fatal(err)
		}
		if len(j.Tasks) != 1 {
			t.Fatalf("tasks are %+v", j.Tasks)
		}
		task := j.Tasks[0]
		if task.Restarts != 0 {
			t.Fatalf("%s was restarted: %s", task.ID, task.Reason)
		}
		return task.Source.Received, task.Source.Logged
	}
	fill := func() {
		t.Helper()
		before, logged := len(lines()), uint64(0)
		a.until("what has come out counts as logged", func() (bool, string) {
			_, logged = source()
			return int(logged) >= before, fmt.Sprintf("%d logged, %d lines", logged, before)
		})
		full.Store(true)
		publish(t, a.at.MQTT, batch()...)
		tried := tries.Load()
		a.until("it says that the disk is full and tries again", func() (bool, string) {
			st, err := a.client.Status(t.Context())
			if err != nil {
				return false, err.Error()
			}
			said := strings.Contains(strings.Join(st.Notices, "\n"), "no space left on device")
			return said && st.Ready && tries.Load() >= tried+4, fmt.Sprint(st.Notices)
		})
		a.until("nothing more than before is logged", func() (bool, string) {
			received, now := source()
			return received > now && now == logged, fmt.Sprintf("%d received, %d logged, %d were", received, now, logged)
		})
		if got := len(lines()); got != before {
			t.Errorf("%d lines came out of what is not on disk", got-before)
		}
	}
	fill()
	full.Store(false)
	comes(a, "everything has come out after there was room", len(want))
	source()

	a.replicated("full") // what the sink has written is noted, so that it is not written again
	fill()
	a.stop()
	full.Store(false)
	a = begin()
	comes(a, "everything has come out after the restart", len(want))
	a.until("the notice is gone", func() (bool, string) {
		st, err := a.client.Status(t.Context())
		return err == nil && len(st.Notices) == 0, fmt.Sprint(st.Notices, err)
	})
	a.stop()
	if got := strings.Join(lines(), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}
