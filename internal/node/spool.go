package node

import (
	"fmt"
	"strings"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/storage"
)

// Streams of the log that are spools are named by their task, generation and channel.
const spoolMark = "|"

func spoolName(task string, gen abs.Generation, channel int) string {
	return fmt.Sprintf("%s%s%d%s%d", task, spoolMark, gen, spoolMark, channel)
}

// spool opens the spool of one of the task's output channels. It makes none unless it is to.
func (r *runner) spool(c dataflow.Channel, create bool) (dataflow.Spool, error) {
	name := spoolName(r.name, r.rec.Generation, c.Index)
	if !create && !hasStream(r.a.entries, name) {
		return nil, nil
	}
	s, err := r.a.entries.Stream(name)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func hasStream(l *storage.Log, name string) bool {
	for _, s := range l.Streams() {
		if s.Name == name {
			return true
		}
	}
	return false
}

// dropSpools removes a task's spools but those of one generation: another one makes again what they hold, from
// the part it begins with.
func dropSpools(l *storage.Log, task string, but abs.Generation) error {
	for _, s := range l.Streams() {
		gen, is := strings.CutPrefix(s.Name, task+spoolMark)
		if !is || strings.HasPrefix(gen, fmt.Sprintf("%d%s", but, spoolMark)) {
			continue
		}
		if err := l.DropStream(s.Name); err != nil {
			return err
		}
	}
	return nil
}

// spools says whether what a channel cannot hand over goes to disk: its receiver is on another agent, and the
// task has an output elsewhere, which would stand still with it.
func spools(p *job.Physical, t *job.Task, channel int) bool {
	to := p.Task(p.Channels[channel].To).Agent
	if to == t.Agent || p.Channels[channel].Back {
		return false
	}
	if len(t.Sinks) > 0 {
		return true
	}
	for _, c := range p.Channels {
		if c.From == t.ID && p.Task(c.To).Agent != to {
			return true
		}
	}
	return false
}
