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
