package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
)

// TestDrills: each drill does to the agent what it says, which is seen in its links, its notices, the time of a dead
// letter, and what it keeps; it ends by itself, and nothing is lost, doubled or late.
func TestDrills(t *testing.T) {
	var killed atomic.Int64
	dir := t.TempDir()
	opt := node.Options{Data: dir, Name: "a", NATSListen: "127.0.0.1:0", MQTTListen: "127.0.0.1:0", Kill: func() { killed.Add(1) }}
	a := startWith(t, opt)
	a.mustApply(strings.Replace(clockJob, "name: clock", "name: drilled", 1))
	var want []string
	send := func() {
		t.Helper()
		var some []string
		for range 20 {
			some = append(some, fmt.Sprintf(`{"k":"x","n":%d}`, len(want)+len(some)))
		}
		want = append(want, some...)
		publish(t, a.at.MQTT, some...)
	}
	cut := false // from then on a line may come twice: a file sink promises no more
	comes := func(what string) {
		t.Helper()
		a.until("everything has come out: "+what, func() (bool, string) {
			out, err := os.ReadFile(filepath.Join(dir, "files", "out.txt"))
			got := strings.Split(strings.TrimSpace(string(out)), "\n")
			if cut {
				seen := map[string]bool{}
				got = slices.DeleteFunc(got, func(line string) bool { again := seen[line]; seen[line] = true; return again })
			}
			return slices.Equal(got, want), fmt.Sprintf("%d of %d lines, %v", len(got), len(want), err)
		})
	}
	notice := func() string {
		t.Helper()
		st, err := a.client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(st.Notices, "\n")
	}
	send()
	comes("before")
	a.until("the task says what its source has logged", func() (bool, string) {
		j, err := a.client.Job(t.Context(), "drilled")
		return err == nil && len(j.Tasks) == 1 && j.Tasks[0].Logged == 20, fmt.Sprintf("%+v, %v", j.Tasks, err)
	})
	all, err := a.client.Drills(t.Context())
	if err != nil || len(all) != 5 {
		t.Fatal(all, err)
	}
	if _, err := a.client.Drill(t.Context(), api.DrillOrder{Kind: api.DrillKill}); !api.IsInvalid(err) {
		t.Fatalf("without being sure: %v", err)
	}
	if _, err := a.client.Drill(t.Context(), api.DrillOrder{Kind: "flood", Sure: true}); !api.IsInvalid(err) {
		t.Fatalf("an unknown one: %v", err)
	}
	if _, err := a.client.Drill(t.Context(), api.DrillOrder{Kind: api.DrillDiskFull, Seconds: api.MaxDrillSeconds + 1, Sure: true}); !api.IsInvalid(err) {
		t.Fatalf("for too long: %v", err)
	}
	under := func() bool { return strings.Contains(notice(), "drill") }
	letters := 0
	// seen says whether a drill has had its effect, while it was under way; on a slow machine it may be over before.
	seen := map[string]func() bool{
		api.DrillLinkFlap: func() bool {
			for under() {
				st, err := a.client.Status(t.Context())
				if err == nil && len(st.Links) == 2 && !st.Links[0].Up && !st.Links[1].Up { // to NATS and to the broker
					return true
				}
			}
			return false
		},
		api.DrillDiskFull: func() bool {
			for under() {
				if strings.Contains(notice(), "no space left") {
					return true
				}
			}
			return false
		},
		api.DrillClockBack: func() bool {
			publish(t, a.at.MQTT, fmt.Sprintf(`{"no key":%d}`, letters))
			letters++
			var dead []api.DeadLetter
			a.until("a dead letter", func() (bool, string) {
				var err error
				dead, err = a.letters("drilled", 100)
				return err == nil && len(dead) == letters, fmt.Sprint(dead, err)
			})
			return slices.ContainsFunc(dead, func(l api.DeadLetter) bool { return time.Since(l.At) > 50*time.Minute })
		},
	}
	for _, d := range all {
		if d.Ends {
			continue
		}
		for seconds := 1; ; seconds *= 2 {
			begun, err := a.client.Drill(t.Context(), api.DrillOrder{Kind: d.Kind, Seconds: min(seconds, api.MaxDrillSeconds), Sure: true})
			if err != nil || begun.PID != os.Getpid() || begun.Starts != 1 || begun.Kind != d.Kind {
				t.Fatal(begun, err)
			}
			send()
			had := seen[d.Kind]()
			a.until("it is over", func() (bool, string) { return !under(), notice() })
			comes(d.Kind)
			if had {
				break
			}
			if seconds > api.MaxDrillSeconds {
				t.Fatalf("the drill %s does nothing", d.Kind)
			}
		}
		a.until("a checkpoint after "+d.Kind, func() (bool, string) {
			_, err := a.client.CheckpointNow(t.Context(), "drilled", "", patience)
			return err == nil, fmt.Sprint(err)
		})
	}
	// The power is cut in the middle of a write: nothing is written any more until the agent starts again.
	if _, err := a.client.Drill(t.Context(), api.DrillOrder{Kind: api.DrillPowerCut, Sure: true}); err != nil {
		t.Fatal(err)
	}
	send()
	a.until("the process would have ended", func() (bool, string) { return killed.Load() == 1, "" })
	send()
	a.until("nothing is written any more", func() (bool, string) { return strings.Contains(notice(), "no space left"), notice() })
	a.stop()
	a = startWith(t, opt)
	cut = true
	comes("after the power cut")
	if _, err := a.client.Drill(t.Context(), api.DrillOrder{Kind: api.DrillKill, Sure: true}); err != nil {
		t.Fatal(err)
	}
	a.until("the process would have ended", func() (bool, string) { return killed.Load() == 2, "" })
	if said := notice(); !strings.Contains(said, "the drill kill is under way") {
		t.Errorf("notices: %q", said)
	}
	if _, err := a.client.Drill(t.Context(), api.DrillOrder{Kind: api.DrillDiskFull, Seconds: 1, Sure: true}); err == nil {
		t.Error("a second drill began while one was under way")
	}
	detail, err := a.client.Checkpoint(t.Context(), "drilled", 0)
	if err == nil {
		t.Fatalf("epoch 0 is no checkpoint: %+v", detail)
	}
	cp, err := a.client.CheckpointNow(t.Context(), "drilled", "", patience)
	if err != nil {
		t.Fatal(err)
	}
	if detail, err = a.client.Checkpoint(t.Context(), "drilled", cp.Epoch); err != nil || detail.Epoch != cp.Epoch || len(detail.Kept) != 0 || detail.Channels == nil {
		t.Fatalf("%+v, %v", detail, err)
	}
}
