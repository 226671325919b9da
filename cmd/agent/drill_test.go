package main

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

// TestRestartsOfOthers: a task of another agent that went back to serve a receiver, and came forward again, has not
// restarted; one that came back by itself has.
func TestRestartsOfOthers(t *testing.T) {
	for level, want := range map[string][]string{
		"L0": {"t on other"}, "L1": {"t on other"}, "L4": {"t on other"}, "rewind": {}, "forward": {},
	} {
		d := drilling{status: api.Status{Agent: api.Agent{Name: "own"}}, job: api.Job{Tasks: []api.Task{{ID: "t", Agent: "other"}, {ID: "u", Agent: "own"}}}}
		came := &api.Recovery{Level: level, At: time.UnixMilli(1), Done: true}
		v := &verdict{Restarted: []string{}}
		d.compare(v, api.Job{Tasks: []api.Task{{ID: "t", Agent: "other", Recovery: came}, {ID: "u", Agent: "own", Recovery: came}}})
		if !slices.Equal(v.Restarted, want) || len(v.Faults) != len(want) {
			t.Errorf("%s: restarted %q, faults %q", level, v.Restarted, v.Faults)
		}
	}
}

// TestRecordsOfADrill: what an agent has logged whose process has ended counts from nothing, and that of others from
// the checkpoint before.
func TestRecordsOfADrill(t *testing.T) {
	job := func(own, other uint64) api.Job {
		return api.Job{Tasks: []api.Task{{ID: "t", Agent: "own", Logged: own}, {ID: "u", Agent: "other", Logged: other}}}
	}
	for _, test := range []struct {
		ended      bool
		own, other uint64
		want       uint64
	}{
		{false, 100, 50, 0}, {false, 103, 50, 3}, {false, 100, 54, 4},
		{true, 100, 50, 100}, {true, 0, 50, 0}, {true, 7, 51, 8},
	} {
		d := drilling{status: api.Status{Agent: api.Agent{Name: "own"}}, since: job(100, 50), ended: test.ended}
		if got := d.logged(job(test.own, test.other)); got != test.want {
			t.Errorf("%+v: %d records", test, got)
		}
	}
}
