package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-stream/weir/dataflow/job"
)

// Labels are those that the agent was started with; they are not kept. An agent that is started again without one goes on
// with the tasks it has, and only the next change of their job finds that it is not among the agents that are selected.

// tellLabels says which labels the agent lacks that it had before, or by which jobs have placed tasks here.
func (a *Agent) tellLabels(before map[string]string) {
	jobs := map[string][]string{} // by label
	for k, v := range before {
		if a.opt.Labels[k] != v {
			jobs[k+"="+v] = nil
		}
	}
	for _, h := range a.hostedSorted() {
		if rec := h.record(); rec.State != jobDeleted {
			for _, label := range lacks(rec.YAML, rec.Plan, a.name, a.opt.Labels) {
				jobs[label] = append(jobs[label], h.name)
			}
		}
	}
	for _, label := range slices.Sorted(maps.Keys(jobs)) {
		text := "started without the label " + label + ", which this agent had: jobs that select by it place nothing here; start the agent with --label " + label + " if they are to"
		if names := jobs[label]; len(names) > 0 {
			text = fmt.Sprintf("started without the label %s, by which tasks were placed here: they go on, but to apply again is refused (job %s); start the agent with --label %s",
				label, strings.Join(names, ", job "), label)
		}
		if a.notices.add(text) {
			a.log.Warn(text)
		}
	}
}

// lacks are the labels, as K=V, by which a job file selects an agent for tasks that it has by a plan, and which are not
// among those given.
func lacks(yaml string, p *job.Physical, agent string, labels map[string]string) (lacks []string) {
	file, err := job.Parse("", []byte(yaml))
	if err != nil {
		return nil
	}
	on := map[string]job.Labels{}
	for _, s := range file.Sources {
		on[s.Name] = s.On
	}
	for _, op := range file.Operators {
		on[op.Name] = op.On
	}
	for _, t := range p.On(agent) {
		var names []string
		if t.Source != nil {
			names = append(names, t.Source.Name)
		}
		for _, op := range t.Ops {
			names = append(names, op.Name)
		}
		for _, name := range names {
			for k, v := range on[name] {
				if labels[k] != v {
					lacks = append(lacks, k+"="+v)
				}
			}
		}
	}
	slices.Sort(lacks)
	return slices.Compact(lacks)
}
