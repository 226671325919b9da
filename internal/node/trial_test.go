package node

import (
	"slices"
	"testing"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
)

// TestTrialOfTrials: an upgrade applied while another is on trial answers for what both change, and what the
// unproved versions failed on excuses none of its failures.
func TestTrialOfTrials(t *testing.T) {
	plan := &job.Physical{Tasks: []job.Task{{ID: "t@a", Agent: "a", Ops: []job.Op{{Name: "first"}, {Name: "second"}}}}}
	a := &Agent{}
	one, err := a.trialOf(t.Context(), jobRecord{Name: "j", Plan: plan}, plan, []string{"first"}, api.JobSource{})
	if err != nil || one.Unproved {
		t.Fatal(one, err)
	}
	during := jobRecord{Name: "j", Plan: plan, Upgrade: &upgradeRecord{Number: 1, Trial: one}}
	two, err := a.trialOf(t.Context(), during, plan, []string{"second"}, api.JobSource{})
	if err != nil || !two.Unproved || !slices.Equal(two.Changed, []string{"second", "first"}) {
		t.Fatalf("%+v, %v", two, err)
	}
	if _, err := a.trialOf(t.Context(), during, plan, []string{"second"}, api.JobSource{Trial: &api.Trial{Canary: "1"}}); err == nil {
		t.Error("a canary of something that goes on while another upgrade is on trial")
	}

	tasks := []api.Task{{ID: "t@a", Upgrade: &api.TaskUpgrade{Number: 2, Records: 10, Failed: 5, RecordsBefore: 10, FailedBefore: 5}}}
	for _, c := range []struct {
		trial *trialRecord
		want  uint64
	}{{one, 5}, {two, 0}} {
		rec := jobRecord{Plan: plan, Upgrade: &upgradeRecord{Number: 2, Trial: c.trial}}
		if e := gather(rec, tasks); e.allowed != c.want || e.failed != 5 || e.taken != 1 {
			t.Errorf("unproved %v: %+v, want %d allowed", c.trial.Unproved, e, c.want)
		}
	}
}

// TestShadowOfAgents: only the agents that were chosen run it, and of their operators those that differ.
func TestShadowOfAgents(t *testing.T) {
	rec := jobRecord{Plan: &job.Physical{}, Shadow: &shadowRecord{Number: 3, Ops: []dataflow.OpVersion{{Name: "first", Digest: "d"}}}}
	for _, c := range []struct {
		agents    []string
		agent, op string
		want      bool
	}{
		{nil, "a", "first", true}, {nil, "a", "second", false},
		{[]string{"a"}, "a", "first", true}, {[]string{"a"}, "b", "first", false},
	} {
		rec.Shadow.Agents = c.agents
		if _, got := rec.shadowOf(c.agent, c.op); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if !rec.needs("d") || rec.needs("e") {
		t.Error("needs other modules")
	}
	rec.Shadow = nil
	if _, got := rec.shadowOf("a", "first"); got || rec.needs("d") || rec.showShadow() != nil {
		t.Error("nothing is wanted")
	}
}
