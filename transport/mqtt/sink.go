package mqtt

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/template"
	"github.com/weir-stream/weir/dataflow/window"
)

// SinkConfig says where items are published and as what.
type SinkConfig struct {
	Broker Broker
	// Topic and Payload are templates (see [template]). An empty payload template is {value}.
	Topic, Payload string
	QoS            byte
	Retain         bool
	// MaxItems and MaxBytes bound the items that the sink holds, under way included; 256, or InFlight if that is more,
	// and 1 MiB if zero. One item always fits.
	MaxItems, MaxBytes int
	// InFlight bounds the items published and not confirmed. At QoS 2 it must not be above what the
	// broker allows: mosquitto ends the connection, and some brokers lose messages, beyond it (for
	// mosquitto max_inflight_messages, 20 unless it is configured). If zero, 20 at QoS 2 and MaxItems else.
	InFlight int
}

// SinkDeps are what a sink needs of its agent.
type SinkDeps struct {
	Deps
	// DeadLetter keeps an item that cannot be published, with the reason, and calls kept, from any
	// goroutine, once it is safe; the item then counts as handed over. It must not block. Without
	// it such items are counted and given up.
	DeadLetter func(item dataflow.SinkItem, reason string, kept func())
}

// Bounds of a sink.
const (
	// defaultItems and defaultBytes: enough under way to fill a round trip of 50 ms at 5,000 items
	// per second.
	defaultItems = 256
	defaultBytes = 1 << 20
	// defaultOnce is what every broker known allows of QoS 2 (mosquitto's default).
	defaultOnce = 20
	// maxItems keeps the packet identifiers of what is under way apart: there are 65,535.
	maxItems = 16384
)

// SinkState is what a sink is doing.
type SinkState uint32

// States of a sink.
const (
	SinkStopped    SinkState = iota
	SinkConnecting           // or waiting to try again
	SinkDelivering
)

func (s SinkState) String() string { return [...]string{"stopped", "connecting", "delivering"}[s] }

// SinkStatus is a snapshot of a sink's state and of its counters since it was made.
type SinkStatus struct {
	Link  LinkStatus
	State SinkState

	Taken     uint64 // items taken from the task
	Published uint64 // PUBLISH packets written, repeats included
	// Repeated counts those of items that this sink had published before, on a connection that was lost. What an
	// earlier life of a sink of QoS 2 may have sent is not known so well, and the broker recognises it.
	Repeated   uint64
	Handed     uint64 // items handed over, dead letters included
	DeadLetter uint64 // items that cannot be published
	// Uncertain is, at QoS 2, how many items were under way when the broker had lost the session, so
	// that nobody knows whether it has passed them on: at most so many may have arrived twice, or not.
	Uncertain uint64

	Waiting  int // items taken and not handed over
	UnderWay int // of those, items published or released on the connection there is
}

var _ dataflow.ResumingSink = (*Sink)(nil)

// Sink publishes items in order. It implements [dataflow.Sink]; at QoS 2 it resumes. At QoS 0 and 1
// an item under way when a connection is lost is published again and may arrive twice; none is dropped
// at QoS 1 and 2.
type Sink struct {
	cfg            SinkConfig
	topic, payload template.Template
	link           *link
	deps           SinkDeps
	window         *window.Window

	durable atomic.Uint64 // items up to here are received by the broker, and the log says so
	logged  chan struct{} // capacity 1: durable has grown

	state                                                 atomic.Uint32
	taken, published, repeated, handed, letter, uncertain atomic.Uint64
	underWay                                              atomic.Int64
}

// NewSink checks the configuration and compiles the templates. Nothing is connected before Run.
func NewSink(cfg SinkConfig, deps SinkDeps) (*Sink, error) {
	l, err := newLink(cfg.Broker, cfg.QoS < 2, deps.Deps)
	if err != nil {
		return nil, fmt.Errorf("mqtt sink: %w", err)
	}
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("mqtt sink %s: %w", l.url, err)
	}
	s := &Sink{cfg: cfg, link: l, deps: deps, window: window.New(cfg.MaxItems, cfg.MaxBytes), logged: make(chan struct{}, 1)}
	if s.topic, err = template.Parse(cfg.Topic); err != nil {
		return nil, fmt.Errorf("mqtt sink %s: topic: %w", l.url, err)
	}
	if s.payload, err = template.Parse(cfg.Payload); err != nil {
		return nil, fmt.Errorf("mqtt sink %s: payload: %w", l.url, err)
	}
	return s, nil
}

// complete fills in defaults and reports what is wrong.
func (c *SinkConfig) complete() error {
	if c.MaxItems == 0 {
		c.MaxItems = max(defaultItems, min(c.InFlight, maxItems))
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultBytes
	}
	if c.Payload == "" {
		c.Payload = "{value}"
	}
	if c.InFlight == 0 {
		c.InFlight = c.MaxItems
		if c.QoS == 2 {
			c.InFlight = min(defaultOnce, c.MaxItems)
		}
	}
	switch {
	case c.QoS > 2:
		return fmt.Errorf("QoS %d; give 0, 1 or 2", c.QoS)
	case c.MaxItems < 1 || c.MaxItems > maxItems:
		return fmt.Errorf("at most %d items at once; give 1–%d", c.MaxItems, maxItems)
	case c.InFlight < 1 || c.InFlight > maxItems:
		return fmt.Errorf("at most %d items in flight; give 1–%d", c.InFlight, maxItems)
	case c.MaxBytes < 1:
		return fmt.Errorf("at most %d bytes at once; give at least 1", c.MaxBytes)
	case c.Topic == "":
		return errors.New("no topic; name one, such as alarms/{key}")
	}
	return nil
}

// Offer takes items if the sink runs and has room.
func (s *Sink) Offer(items []dataflow.SinkItem) int {
	n := s.window.Offer(items)
	s.taken.Add(uint64(n))
	return n
}

// Resumes implements [dataflow.ResumingSink].
func (s *Sink) Resumes() bool { return s.cfg.QoS == 2 }

// Logged implements [dataflow.ResumingSink].
func (s *Sink) Logged(received abs.Seq) {
	s.durable.Store(max(s.durable.Load(), uint64(received)))
	signal(s.logged)
}

// Status may be called at any time.
func (s *Sink) Status() SinkStatus {
	return SinkStatus{
		Link: s.link.status(), State: SinkState(s.state.Load()),
		Taken: s.taken.Load(), Published: s.published.Load(), Repeated: s.repeated.Load(),
		Handed: s.handed.Load(), DeadLetter: s.letter.Load(), Uncertain: s.uncertain.Load(),
		Waiting: s.window.Len(), UnderWay: int(s.underWay.Load()),
	}
}

// Forget makes the broker drop the session that it keeps for a sink of QoS 2. The sink must not be
// running.
func (s *Sink) Forget(ctx context.Context) error { return s.link.forget(ctx) }

// Run publishes until ctx ends, and then returns nil once everything that it started has ended. An
// unreachable broker is tried for ever.
func (s *Sink) Run(ctx context.Context, ev dataflow.SinkEvents) error {
	sessions, stopLink := s.link.start(ctx)
	s.window.Open()
	ev.Ready()
	p := &publisher{sink: s, ev: ev, kept: make(chan struct{}, 1)}
	p.run(ctx, sessions)
	s.window.Close()
	p.stop()
	stopLink()
	s.state.Store(uint32(SinkStopped))
	return nil
}
