package job

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-stream/weir/abs"
)

// Diff tells whether the tasks of a new plan can go on from the state of the old one's, each from
// its own: nil if so. The error joins what must not change. Free to change are checkpoints, what
// connects sources and sinks to the outside, sinks as such, policies for failing records, limits, what
// is added: tasks, operators at the end of a chain, outputs after the known ones; and module and configuration
// of operators that start anew ([Op.Fresh]). removed says of an agent that it was taken out of the fleet: then
// its sources may go.
func Diff(old, next *Physical, removed func(agent string) bool) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if old.Job != next.Job {
		fail("the plan is of job %s, the state of job %s", next.Job, old.Job)
	}
	if old.KeyGroups != next.KeyGroups {
		fail("%d key groups, the state is divided into %d", next.KeyGroups, old.KeyGroups)
	}
	if old.Checkpoint.Mode != next.Checkpoint.Mode {
		fail("checkpoint mode changes from %s to %s", old.Checkpoint.Mode, next.Checkpoint.Mode)
	}
	for i := range old.Tasks {
		was := &old.Tasks[i]
		is := next.Task(was.ID)
		if is == nil && was.Source != nil && removed(was.Agent) {
			continue
		}
		if is == nil {
			fail("task %s on agent %s is gone, and its state with it: parallelism, placement and chains of what runs must stay; agent agents remove takes a gateway out", was.ID, was.Agent)
			continue
		}
		diffTask(was, is, fail)
		diffInputs(old, next, was.ID, removed, fail)
	}
	diffParallelism(old, next, fail)
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("the running state of job %s does not fit the new plan; undo these changes, or stop and delete the job and apply it anew without its state:\n%w",
		old.Job, errors.Join(errs...))
}

// diffParallelism refuses a greater number of tasks of an operator: each owns key groups, and what it
// keeps of them does not move.
func diffParallelism(old, next *Physical, fail func(string, ...any)) {
	was, is := parallel(old), parallel(next)
	for _, op := range sortedKeys(is) {
		if n := was[op]; n > 0 && n < is[op] {
			fail("parallelism of operator %s changes from %d to %d, and the state of its keys stays where it is", op, n, is[op])
		}
	}
}

// parallel counts the tasks of operators that run as a number of them.
func parallel(p *Physical) map[string]int {
	n := map[string]int{}
	for _, t := range p.Tasks {
		if op, _, ok := strings.Cut(string(t.ID), "/"); ok {
			n[op]++
		}
	}
	return n
}

func diffTask(was, is *Task, fail func(string, ...any)) {
	if was.Agent != is.Agent {
		fail("task %s moves from agent %s to %s", was.ID, was.Agent, is.Agent)
	}
	if (was.Source == nil) != (is.Source == nil) {
		fail("task %s: a source cannot become an operator nor an operator a source", was.ID)
	}
	if was.Source != nil && is.Source != nil && was.Source.ID != is.Source.ID {
		fail("task %s: id changes from %q to %q, which the remembered ids do not fit", was.ID, was.Source.ID, is.Source.ID)
	}
	for i := range was.Ops {
		if i >= len(is.Ops) || is.Ops[i].Name != was.Ops[i].Name {
			fail("task %s: operator %s leaves place %d of the chain, by which its state is found", was.ID, was.Ops[i].Name, i)
			continue
		}
		diffOp(was.ID, &was.Ops[i], &is.Ops[i], fail)
	}
}

func diffOp(task abs.TaskID, was, is *Op, fail func(string, ...any)) {
	switch {
	case is.Fresh:
	case was.Digest != is.Digest:
		fail("task %s: operator %s changes its module from %s (%s) to %s (%s), which cannot go on from the variables of the old one; --fresh %s starts it anew with its keyed state", task, was.Name, was.Module, was.Digest, is.Module, is.Digest, is.Name)
	case !maps.Equal(was.Config, is.Config):
		fail("task %s: operator %s changes its config, which a restored one does not read again; --fresh %s starts it anew with its keyed state", task, was.Name, is.Name)
	}
	if !slices.Equal(was.Inputs, is.Inputs) {
		fail("task %s: operator %s changes its inputs from %s to %s", task, was.Name, list(was.Inputs), list(is.Inputs))
	}
	for i, port := range was.Outputs {
		if i >= len(is.Outputs) || is.Outputs[i].Name != port.Name {
			fail("task %s: output %s of operator %s is no longer number %d", task, port.Name, was.Name, i)
		}
	}
}

// diffInputs compares the channels into a task; the numbers of each are part of its state. A channel from
// a task that is new begins at its first number: so a gateway joins. One from an agent that was removed may
// go: so it leaves.
func diffInputs(old, next *Physical, id abs.TaskID, removed func(string) bool, fail func(string, ...any)) {
	was, is := inputsOf(old, id), inputsOf(next, id)
	for _, c := range sortedKeys(was) {
		if _, stays := is[c]; !stays && (next.Task(was[c]) != nil || !removed(old.Task(was[c]).Agent)) {
			fail("task %s: channel %s into it is gone", id, c)
		}
	}
	for _, c := range sortedKeys(is) {
		if _, known := was[c]; !known && old.Task(is[c]) != nil {
			fail("task %s: channel %s into it is new", id, c)
		}
	}
}

// inputsOf are the channels into a task, with their senders.
func inputsOf(p *Physical, id abs.TaskID) map[abs.ChannelID]abs.TaskID {
	from := map[abs.ChannelID]abs.TaskID{}
	for _, c := range p.Channels {
		if c.To == id {
			from[c.ID] = c.From
		}
	}
	return from
}
