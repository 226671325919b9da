package job

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// Text describes the plan for people: tasks with their chains, channels, placement, promises, warnings.
func (p *Physical) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %s, generation %d\n%s\n", p.Job, p.Generation, p.Checkpoint)
	p.writeTasks(&b)
	p.writeChannels(&b)
	p.writePlacement(&b)
	p.writeLimits(&b)
	p.writeEventTime(&b)
	p.writeConnections(&b)
	b.WriteString("\npromises\n")
	table(&b, func(row func(...string)) {
		for _, promise := range p.Promises {
			row(promise.Of, string(promise.Level), promise.Reason)
		}
	})
	if len(p.Warnings) > 0 {
		b.WriteString("\nwarnings\n")
		for _, w := range p.Warnings {
			fmt.Fprintf(&b, "  %s\n", w)
		}
	}
	return b.String()
}

func (p *Physical) String() string { return p.Text() }

// table writes indented rows with aligned cells.
func table(b *strings.Builder, fill func(row func(...string))) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fill(func(cells ...string) {
		// Nothing can fail: the writer below is a strings.Builder.
		fmt.Fprintf(w, "  %s\n", strings.Join(cells, "\t"))
	})
	w.Flush()
}

func (c Checkpoint) String() string {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	replica := "not replicated"
	if c.Replicate {
		replica = "replicated"
	}
	if c.Mode == None {
		return "no checkpoints but on request (for evaluation: the log grows until it is full)"
	}
	detach := "for ever"
	if c.DetachAfterMS > 0 {
		detach = "for " + ms(c.DetachAfterMS).String()
	}
	return fmt.Sprintf("checkpoint every %s, timeout %s, pause at least %s, %s, %s, waits %s for a gateway that is away",
		ms(c.IntervalMS), ms(c.TimeoutMS), ms(c.MinPauseMS), strings.ReplaceAll(string(c.Mode), "_", " "), replica, detach)
}

func (p *Physical) writeTasks(b *strings.Builder) {
	fmt.Fprintf(b, "\ntasks (%d)\n", len(p.Tasks))
	table(b, func(row func(...string)) {
		for i := range p.Tasks {
			t := &p.Tasks[i]
			row(string(t.ID), "on "+t.Agent, t.Chain())
		}
	})
}

// Chain describes what runs in the task, in the order in which records pass; what branches stands
// in brackets.
func (t *Task) Chain() string {
	if t.Source != nil {
		return t.Source.Name + t.describeTargets(t.Source.Targets, "")
	}
	if len(t.Ops) == 0 {
		panic("job: task " + string(t.ID) + " has neither source nor operator")
	}
	return t.describeOp(0)
}

func (t *Task) describeOp(i int) string {
	op := t.Ops[i]
	var parts []string
	for _, port := range op.Outputs {
		name := ""
		if port.Name != MainOutput {
			name = "." + port.Name
		}
		parts = append(parts, t.branches(port.Targets, name)...)
	}
	return fmt.Sprintf("%s (%s)", op.Name, op.Module) + joinBranches(parts)
}

func (t *Task) describeTargets(targets []Target, output string) string {
	return joinBranches(t.branches(targets, output))
}

func (t *Task) branches(targets []Target, output string) []string {
	var parts []string
	for _, to := range targets {
		key := ""
		switch {
		case !to.KeyBy.IsZero():
			key = " by " + to.KeyBy.String()
		case len(to.Channels) > 1:
			key = " by key"
		}
		s := output + key + " → "
		switch to.Kind {
		case ToOp:
			s += t.describeOp(to.Index)
		case ToSink:
			s += t.Sinks[to.Index].describe()
		case ToStream:
			s += channelRange(to.Channels)
		}
		parts = append(parts, s)
	}
	return parts
}

func joinBranches(parts []string) string {
	switch len(parts) {
	case 0:
		return ""
	case 1:
		return parts[0]
	}
	for i := range parts {
		parts[i] = strings.TrimPrefix(parts[i], " ")
	}
	return " [" + strings.Join(parts, " | ") + "]"
}

func channelRange(c []int) string {
	if len(c) == 1 {
		return fmt.Sprintf("channel %d", c[0])
	}
	return fmt.Sprintf("channels %d–%d", c[0], c[len(c)-1])
}

func (s SinkTask) describe() string {
	kind := "log"
	switch {
	case s.MQTT != nil:
		kind = "mqtt"
	case s.File != nil:
		kind = "file"
	}
	return fmt.Sprintf("%s (%s)", s.Name, kind)
}

func (p *Physical) writeChannels(b *strings.Builder) {
	if len(p.Channels) == 0 {
		b.WriteString("\nchannels: none, no task sends to another\n")
		return
	}
	fmt.Fprintf(b, "\nchannels (%d)\n", len(p.Channels))
	table(b, func(row func(...string)) {
		for _, c := range p.Channels {
			part := "all keys"
			if c.Of > 1 {
				first, last := groups(c.Partition, c.Of)
				part = fmt.Sprintf("key groups %d–%d", first, last)
			}
			cells := []string{fmt.Sprint(c.Index), string(c.From), "→ " + string(c.To), part, string(c.ID)}
			if c.Back {
				cells = append(cells, "back edge")
			}
			row(cells...)
		}
	})
}

// groups are the first and last key group of a partition.
func groups(partition, of int) (first, last int) {
	first = (partition*KeyGroups + of - 1) / of
	return first, ((partition+1)*KeyGroups+of-1)/of - 1
}

func (p *Physical) writePlacement(b *strings.Builder) {
	b.WriteString("\nplacement\n")
	table(b, func(row func(...string)) {
		for _, agent := range p.Agents() {
			var ids []string
			for _, t := range p.On(agent) {
				ids = append(ids, string(t.ID))
			}
			row(agent, strings.Join(ids, ", "))
		}
	})
}

// writeLimits lists the limits that the job sets; the others have their defaults.
func (p *Physical) writeLimits(b *strings.Builder) {
	var rows [][]string
	for _, t := range p.Tasks {
		for _, op := range t.Ops {
			if op.Limits != (Limits{}) {
				rows = append(rows, []string{string(t.ID), op.Name, op.Limits.String()})
			}
		}
	}
	if len(rows) == 0 {
		return
	}
	b.WriteString("\nlimits\n")
	table(b, func(row func(...string)) {
		for _, cells := range rows {
			row(cells...)
		}
	})
}

func (l Limits) String() string {
	var parts []string
	add := func(set int64, format string, args ...any) {
		if set != 0 {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(l.Memory, "memory %s", Size(l.Memory))
	add(l.TimeMS, "time %s per batch", time.Duration(l.TimeMS)*time.Millisecond)
	add(l.Output, "output %s per batch", Size(l.Output))
	add(l.State, "state %s", Size(l.State))
	add(l.LogRate, "log %d lines/s", l.LogRate)
	add(l.Timers, "%d timers", l.Timers)
	return strings.Join(parts, ", ")
}

// writeConnections lists what tasks reach outside, templates filled in.
func (p *Physical) writeConnections(b *strings.Builder) {
	b.WriteString("\nconnections\n")
	table(b, func(row func(...string)) {
		for _, t := range p.Tasks {
			if t.Source != nil && t.Source.MQTT != nil {
				m := t.Source.MQTT
				row(string(t.ID), "in", brokerText(m.Broker), fmt.Sprintf("qos %d", m.QoS), strings.Join(m.Topics, ", ")+m.optionsText())
			}
			if t.Source != nil && t.Source.File != nil {
				row(string(t.ID), "in", "file", "", t.Source.File.Path)
			}
			if t.Source != nil && t.Source.Generator != nil {
				row(string(t.ID), "in", "generator", "", t.Source.Generator.text())
			}
			for _, s := range t.Sinks {
				switch {
				case s.MQTT != nil:
					row(string(s.Channel), "out", brokerText(s.MQTT.Broker), fmt.Sprintf("qos %d", s.MQTT.QoS), s.MQTT.Topic)
				case s.File != nil:
					row(string(s.Channel), "out", "file", "", s.File.Path)
				case s.Log != nil:
					row(string(s.Channel), "out", "log", "", "agent "+t.Agent)
				}
			}
		}
	})
}

// optionsText says what is not as usual.
func (m *MQTTSource) optionsText() string {
	var b strings.Builder
	if m.Retained != "" {
		fmt.Fprintf(&b, "; retained: %s", m.Retained)
	}
	if m.WhenFull != "" {
		fmt.Fprintf(&b, "; when full: %s", m.WhenFull)
	}
	if m.Sequence != "" {
		fmt.Fprintf(&b, "; sequence: %s", m.Sequence)
	}
	if m.KeepAliveMS != 0 {
		fmt.Fprintf(&b, "; keep-alive: %s", time.Duration(m.KeepAliveMS)*time.Millisecond)
	}
	return b.String()
}

func brokerText(broker string) string {
	if broker == "" {
		return "own or hub's broker"
	}
	return broker
}
