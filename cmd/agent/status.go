package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

type statusCmd struct {
	remote
	output
}

// Run implements the command.
func (c statusCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	s, err := cl.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if c.JSON {
		return p.printJSON(s)
	}
	return p.printStatus(s)
}

func (p *program) printStatus(s api.Status) error {
	ready := "ready"
	if !s.Ready {
		ready = "not ready"
	}
	w := p.stdout
	fmt.Fprintf(w, "%s: %s, version %s, start %d at %s\n", plain(s.Agent.Name), ready, plain(s.Agent.Version), s.Agent.Starts, timeText(s.Agent.Started))
	fmt.Fprintf(w, "labels: %s\n", plain(labelText(s.Agent.Labels)))
	fmt.Fprintf(w, "listens: http %s, nats %s, mqtt %s\n", plain(s.Agent.Addresses.HTTP), plain(s.Agent.Addresses.NATS), plain(s.Agent.Addresses.MQTT))
	fmt.Fprintf(w, "store: %s, log %s of %s, snapshots %s, written %s", plain(s.Store.Dir),
		bytesText(s.Store.LogBytes), bytesText(s.Store.LogBudgetBytes), bytesText(s.Store.SnapshotBytes), bytesText(s.Store.WrittenBytes))
	if s.Store.WrittenPerHour > 0 { // 0: too early to say
		fmt.Fprintf(w, ", %s an hour", bytesText(int64(s.Store.WrittenPerHour)))
	}
	fmt.Fprintln(w)
	if s.Store.LogHoursLeft > 0 {
		fmt.Fprintf(w, "if the hub cannot be reached, the log is full in %.1f hours, at %s an hour\n", s.Store.LogHoursLeft, bytesText(int64(s.Store.LogPerHour)))
	}
	for _, n := range s.Notices {
		fmt.Fprintf(w, "notice: %s\n", plain(n))
	}
	if len(s.Links) > 0 {
		fmt.Fprintln(w)
		if err := linkTable(s.Links).print(w); err != nil {
			return err
		}
	}
	if len(s.Tasks) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return taskTable(s.Tasks, true).print(w)
}

func linkTable(links []api.Link) *table {
	t := newTable("LINK", "OF", "ADDRESS", "STATE", "SINCE", "ERROR")
	for _, l := range links {
		state := "up"
		if !l.Up {
			state = "down"
		}
		t.add(l.Kind, l.Name, l.Address, state, timeText(l.Since), l.Error)
	}
	return t
}

// ran is a count of a job or a task that runs. Of another one nobody counts, and 0 would be wrong.
func ran(state string, n uint64) string {
	switch state {
	case api.JobStopped, api.JobFinished, api.TaskUnknown: // a task that is stopped is called as a job is
		return "-"
	}
	return fmt.Sprint(n)
}

func taskTable(tasks []api.Task, withJob bool) *table {
	heading := []string{"TASK", "AGENT", "STATE", "RESTARTS", "EPOCH", "IN", "OUT", "LAG", "DEAD", "RECOVERY", "REASON"}
	if withJob {
		heading = append([]string{"JOB"}, heading...)
	}
	t := newTable(heading...)
	for _, k := range tasks {
		cells := []any{k.ID, k.Agent, k.State, ran(k.State, k.Restarts), ran(k.State, k.Epoch), ran(k.State, k.RecordsIn),
			ran(k.State, k.RecordsOut), ran(k.State, k.Lag), ran(k.State, k.DeadLetters), recoveryText(k.Recovery), k.Reason}
		if withJob {
			cells = append([]any{k.Job}, cells...)
		}
		t.add(cells...)
	}
	return t
}

// eventTimeTable is how far event time has come; nil if there is none.
func eventTimeTable(tasks []api.Task) *table {
	t, some := newTable("EVENT TIME OF", "WATERMARK", "STATE", "AHEAD OF CLOCK"), false
	for _, k := range tasks {
		e := k.EventTime
		if e == nil {
			continue
		}
		some = true
		watermark, state := "", ""
		if e.Watermark != nil {
			watermark = e.Watermark.Format(time.RFC3339Nano)
		}
		switch {
		case e.Ended:
			state = "ended"
		case e.Idle:
			state = "idle"
		}
		t.add(k.ID, watermark, state, e.Ahead)
	}
	if !some {
		return nil
	}
	return t
}

// sinkTable is what sinks have done; nil if there are none.
func sinkTable(tasks []api.Task) *table {
	t, some := newTable("SINK", "TASK", "KIND", "COMMIT", "HANDED", "HELD", "IN FLIGHT", "REPEATED", "REFUSED", "UNCERTAIN", "EARLY"), false
	for _, k := range tasks {
		for _, s := range k.Sinks {
			some = true
			t.add(s.Name, k.ID, s.Kind, s.Commit, s.Handed, s.Held, s.InFlight, s.Repeated, s.Refused, s.Uncertain, s.Early)
		}
	}
	if !some {
		return nil
	}
	return t
}

func recoveryText(r *api.Recovery) string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("%s in %s, %d records", r.Level, msText(r.TookMS), r.ReplayedRecords)
	if !r.Done {
		text = fmt.Sprintf("%s for %s, %d records", r.Level, msText(r.TookMS), r.ReplayedRecords)
	}
	if r.Differing > 0 {
		text += fmt.Sprintf(", %d DIFFER", r.Differing)
	}
	return text
}
