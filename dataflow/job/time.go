package job

import (
	"fmt"
	"strings"
	"time"
)

// EventTime says how a source makes watermarks: how far the event times of its records have come.
type EventTime struct {
	// MaxDelayMS is by how much records may be out of order and not be late, milliseconds.
	MaxDelayMS int64 `json:"max_delay_ms,omitempty"`
	// IdleMS is after how long without records the source no longer holds event time back, milliseconds; 0: never.
	IdleMS int64 `json:"idle_ms,omitempty"`
	// MaxAheadMS is how far an event time may be ahead of the agent's clock and still move the watermark,
	// milliseconds; 0: as far as it likes.
	MaxAheadMS int64 `json:"max_ahead_ms,omitempty"`
	// Detached says whether the source's agent holds event time back while it is detached from checkpoints.
	Detached Detached `json:"detached,omitempty"`
}

// Detached says what an agent that is detached means for event time.
type Detached string

// What it means. In a plan the first one is left out.
const (
	DetachedWait Detached = "wait" // event time waits for it
	DetachedPass Detached = "pass" // it goes on; what comes later may be late
)

// Defaults of event time.
const (
	defIdle     = time.Minute
	defMaxAhead = time.Minute
)

// arrivalTime is what sources without a rule of their own do in a job with event time.
func arrivalTime() *EventTime {
	return &EventTime{IdleMS: defIdle.Milliseconds(), MaxAheadMS: defMaxAhead.Milliseconds()}
}

// time reads the time of a source: the word arrival, or a mapping.
func (r *reader) time(o *object) (TimeRule, *EventTime) {
	f, ok := o.get("time")
	if !ok {
		return TimeRule{}, nil
	}
	if s, isText := text(f.node); isText && s == "arrival" {
		return TimeRule{}, arrivalTime()
	}
	sub, ok := r.object(f.node, f.at, "time of "+o.what, "json", "unit", "max_delay", "idle", "max_ahead", "detached")
	if !ok {
		return TimeRule{}, nil
	}
	e := &EventTime{
		MaxDelayMS: r.duration(sub, "max_delay", 0, 0), IdleMS: r.duration(sub, "idle", 0, defIdle),
		MaxAheadMS: r.duration(sub, "max_ahead", 0, defMaxAhead),
	}
	if d := r.choice(sub, "detached", string(DetachedWait), string(DetachedPass)); d != string(DetachedWait) {
		e.Detached = Detached(d)
	}
	path, _, there := r.filled(sub, "json")
	if _, hasUnit := sub.get("unit"); hasUnit && !there {
		r.fail(sub.at, "name the field that holds the time", "time of %s has a unit and no json", o.what)
	}
	unit := r.choice(sub, "unit", string(Milliseconds), string(Seconds), string(Microseconds), string(Nanoseconds), string(RFC3339))
	if !there {
		return TimeRule{}, e
	}
	return TimeRule{JSON: path, Unit: TimeUnit(unit)}, e
}

// eventTime is the source's part in the event time of the job: nil if the job has none.
func (g *Graph) eventTime(s Source) *EventTime {
	if s.EventTime != nil {
		return s.EventTime
	}
	for _, other := range g.File.Sources {
		if other.EventTime != nil {
			return arrivalTime()
		}
	}
	return nil
}

func (e EventTime) String() string {
	ms := func(n int64) string { return (time.Duration(n) * time.Millisecond).String() }
	parts := []string{"out of order by up to " + ms(e.MaxDelayMS)}
	if e.IdleMS > 0 {
		parts = append(parts, "idle after "+ms(e.IdleMS))
	} else {
		parts = append(parts, "never idle")
	}
	if e.MaxAheadMS > 0 {
		parts = append(parts, "ahead of the clock by up to "+ms(e.MaxAheadMS))
	} else {
		parts = append(parts, "ahead of the clock as they are")
	}
	if e.Detached == DetachedPass {
		parts = append(parts, "not waited for while detached")
	}
	return strings.Join(parts, ", ")
}

func (r TimeRule) String() string {
	if r.JSON == "" {
		return "arrival"
	}
	return fmt.Sprintf("json %s (%s)", r.JSON, r.Unit)
}

// writeEventTime lists how sources make watermarks.
func (p *Physical) writeEventTime(b *strings.Builder) {
	var rows [][]string
	for _, t := range p.Tasks {
		if t.Source != nil && t.Source.EventTime != nil {
			rows = append(rows, []string{string(t.ID), t.Source.Time.String(), t.Source.EventTime.String()})
		}
	}
	if len(rows) == 0 {
		return
	}
	b.WriteString("\nevent time\n")
	table(b, func(row func(...string)) {
		for _, cells := range rows {
			row(cells...)
		}
	})
}
