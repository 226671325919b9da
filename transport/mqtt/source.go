package mqtt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"
	"github.com/zeebo/xxh3"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/extract"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/dataflow/template"
)

// SourceConfig says what a source receives and how messages become records.
type SourceConfig struct {
	Broker Broker
	// Topics are the filters to subscribe to, at least one. The session persists at the broker: when
	// topics are taken away, [Source.Forget] the session or use another client id, or what they match
	// keeps coming.
	Topics []string
	QoS    byte
	Key    extract.KeyRule
	// ID is a gjson path to a string, a number or a boolean by which repeats are recognised; empty: none.
	ID   string
	Time extract.TimeRule
	// Sequence is a gjson path to a number that grows by one from message to message of a key; empty: none.
	// What is missing is counted.
	Sequence string
	// Retained says what becomes of retained messages, which come with every subscription, that is, after
	// every lost connection again.
	Retained Retained
	// ShedOldest gives up the oldest messages while the log is full, and acknowledges them; else they wait
	// unacknowledged and the broker keeps the rest.
	ShedOldest bool
}

// Retained is what a source does with retained messages.
type Retained uint8

// What becomes of retained messages.
const (
	RetainedTake  Retained = iota
	RetainedSkip           // they are acknowledged, counted and left out
	RetainedFirst          // taken when the source starts for the first time, skipped later
)

// Keys of a source's marks. Those up to maxPacketID are packet identifiers of QoS 2 messages that are logged and
// not released; the value is the hash of topic and payload. Those above are:
const (
	maxPacketID         = 65535
	markSession  uint64 = 1 << 16   // there has been a session; its value is whose
	markRetained uint64 = 1<<16 + 1 // the retained messages of the first start have been taken
	markSequence uint64 = 1 << 63   // and above: the last number of a key
)

// Bounds of a source.
const (
	// batchBytes of waiting messages are logged at once, whatever is under way: a larger batch
	// saves nothing more per message.
	batchBytes = 32 << 10
	// linger is how long messages wait at most for an earlier batch to become durable, so that they
	// share the next sync. Without a batch under way nothing waits.
	linger = 5 * time.Millisecond
	// subackWait bounds the wait for the answer to SUBSCRIBE.
	subackWait = 20 * time.Second
	// retainedWait without a further one, the retained messages of the first start have come. If the agent
	// is killed earlier they are taken again.
	retainedWait = 10 * time.Second
	// maxMarks bounds the marks of one entry of the log.
	maxMarks = 8192
)

// messageOverhead is what a waiting message costs beyond its bytes: structs, string and slice headers.
const messageOverhead = 192

// bounds of what a source holds in memory, in bytes, apart so that tests can make them small.
type sourceBounds struct {
	// queue of messages not yet logged; behind it the broker waits (QoS 1, 2) or the oldest are shed
	// (QoS 0). 4 MiB are seconds of a busy line and bearable on a small device.
	queue int
	// underway: messages logged and not yet durable. A disk that takes 1 MiB without a sync stands still.
	underway int
	// logRetry is the wait between attempts when the log is full.
	logRetry backoff
	// stop bounds the wait for batches to become durable when the source stops. What is not acknowledged
	// by then comes again.
	stop time.Duration
}

var defaultSourceBounds = sourceBounds{4 << 20, 1 << 20, backoff{50 * time.Millisecond, 2 * time.Second}, 2 * time.Second}

// SourceState is what a source is doing.
type SourceState uint32

// States of a source.
const (
	SourceStopped    SourceState = iota
	SourceConnecting             // or waiting to try again
	SourceSubscribing
	SourceReceiving
	SourceLogFull // messages wait unacknowledged, or are shed, until the log has room
)

func (s SourceState) String() string {
	return [...]string{"stopped", "connecting", "subscribing", "receiving", "log full"}[s]
}

// SourceStatus is a snapshot of a source's state and of its counters since it was made.
type SourceStatus struct {
	Link  LinkStatus
	State SourceState
	// Reason is why the log takes nothing, else what the last attempt of an outage met, else what the broker grants less
	// than is asked for.
	Reason string

	Received   uint64 // messages, repeats included
	Repeated   uint64 // recognised by their packet identifier and not taken again
	Logged     uint64 // records durable in the log
	Acked      uint64 // messages acknowledged with PUBACK or PUBREC
	Shed       uint64 // messages given up: of QoS 0 for want of room or at the stop, of any QoS if ShedOldest says so
	Skipped    uint64 // retained messages left out
	DeadLetter uint64 // messages kept as dead letters
	WithoutID  uint64 // records logged without an id though the source names one

	// Renamed messages of QoS 2 have come again, as it seems, under another identifier, and count as new ones.
	Renamed uint64

	SessionsLost uint64 // how often the broker no longer had the session
	Gaps         uint64 // places where numbers of the sequence are missing
	Missing      uint64 // numbers that are
	Untracked    uint64 // messages of keys beyond those whose numbers are followed

	Waiting int64 // bytes of messages that are not logged yet
}

// Plus adds the counters of another source to those of st.
func (st SourceStatus) Plus(of SourceStatus) SourceStatus {
	st.Received += of.Received
	st.Repeated += of.Repeated
	st.Logged += of.Logged
	st.Acked += of.Acked
	st.Shed += of.Shed
	st.Skipped += of.Skipped
	st.DeadLetter += of.DeadLetter
	st.WithoutID += of.WithoutID
	st.Renamed += of.Renamed
	st.SessionsLost += of.SessionsLost
	st.Gaps += of.Gaps
	st.Missing += of.Missing
	st.Untracked += of.Untracked
	return st
}

var _ dataflow.Source = (*Source)(nil)

// Source receives messages and logs them. It implements [dataflow.Source].
type Source struct {
	cfg    SourceConfig
	link   *link
	deps   Deps
	bounds sourceBounds

	state, outer atomic.Uint32 // the state, and that of the connection alone; set by the run's owner
	waiting      atomic.Int64
	reason       atomic.Pointer[string] // why the log takes nothing
	lower        atomic.Pointer[string] // which QoS is granted below the one asked for
	received, repeated, logged, acked,
	shed, dead, withoutID, skipped,
	renamed, sessionsLost, gaps, missing, untracked atomic.Uint64
}

// NewSource checks the configuration. Nothing is connected before Run.
func NewSource(cfg SourceConfig, deps Deps) (*Source, error) {
	l, err := newLink(cfg.Broker, false, deps)
	if err != nil {
		return nil, fmt.Errorf("mqtt source: %w", err)
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("mqtt source %s: %w", l.url, err)
	}
	s := &Source{cfg: cfg, link: l, deps: l.deps, bounds: defaultSourceBounds}
	s.reason.Store(new(string))
	s.lower.Store(new(string))
	return s, nil
}

func (c SourceConfig) check() error {
	if len(c.Topics) == 0 {
		return errors.New("no topics; name at least one")
	}
	for _, t := range c.Topics {
		if err := checkFilter(t); err != nil {
			return err
		}
	}
	if c.QoS > 2 {
		return fmt.Errorf("QoS %d; give 0, 1 or 2", c.QoS)
	}
	if err := c.Key.Check(); err != nil {
		return err
	}
	if c.Retained > RetainedFirst {
		return fmt.Errorf("retained messages: unknown rule %d", c.Retained)
	}
	return c.Time.Check()
}

// atLimit says what happens while the log is full.
func (c SourceConfig) atLimit() string {
	if c.ShedOldest {
		return "the oldest messages are shed and counted until it has room"
	}
	return "messages stay unacknowledged until it has room"
}

// identity stands for whose session the broker keeps. It is never 0.
func (s *Source) identity() uint64 { return max(1, xxh3.HashString(s.cfg.Broker.ClientID)) }

func (s *Source) noteGaps(g gaps) {
	s.gaps.Add(g.gaps)
	s.missing.Add(g.missing)
	s.untracked.Add(g.untracked)
}

// Status may be called at any time.
func (s *Source) Status() SourceStatus {
	link := s.link.status()
	return SourceStatus{
		Link: link, State: SourceState(s.state.Load()), Reason: cmp.Or(*s.reason.Load(), link.LastError, *s.lower.Load()),
		Received: s.received.Load(), Repeated: s.repeated.Load(), Logged: s.logged.Load(), Acked: s.acked.Load(),
		Shed: s.shed.Load(), Skipped: s.skipped.Load(), DeadLetter: s.dead.Load(), WithoutID: s.withoutID.Load(),
		Renamed: s.renamed.Load(), SessionsLost: s.sessionsLost.Load(), Gaps: s.gaps.Load(), Missing: s.missing.Load(), Untracked: s.untracked.Load(),
		Waiting: s.waiting.Load(),
	}
}

// Forget makes the broker drop the session and what waits in it. The source must not be running.
func (s *Source) Forget(ctx context.Context) error { return s.link.forget(ctx) }

// Run receives until ctx ends, and then returns nil once everything that it started has ended. It
// waits briefly for what it has logged to become durable and be acknowledged. An unreachable broker
// is tried for ever, and a log that is full or closed is waited for; an error is another one of the log.
func (s *Source) Run(ctx context.Context, in dataflow.Ingest) error {
	sessions, stopLink := s.link.start(ctx)
	r := newReceiver(s, in)
	err := r.run(ctx, sessions)
	r.stop(err)
	stopLink()
	s.enter(SourceStopped)
	s.state.Store(uint32(SourceStopped))
	if err != nil {
		return fmt.Errorf("mqtt source %s: %w", s.link.url, err)
	}
	return nil
}

// enter notes the state of the connection, which shows unless the log is full.
func (s *Source) enter(st SourceState) {
	s.outer.Store(uint32(st))
	if SourceState(s.state.Load()) != SourceLogFull {
		s.state.Store(uint32(st))
	}
}

func (s *Source) logFull(full bool, reason string) {
	s.reason.Store(&reason)
	if full {
		s.state.Store(uint32(SourceLogFull))
		return
	}
	s.state.Store(s.outer.Load())
}

// message is a received PUBLISH that is not logged yet.
type message struct {
	topic   string
	payload []byte
	lost    int      // bytes of the payload that were too many and thrown away
	arrived int64    // milliseconds since 1970
	receipt *receipt // nil at QoS 0
	refused bool     // the log has had no room for it

	// isMark: it is no message but a mark to be logged in its place.
	isMark bool
	mark   dataflow.Mark
}

func (m message) size() int { return messageOverhead + len(m.topic) + len(m.payload) }

// record makes the message's record and id, or says why it cannot be one.
func (c SourceConfig) record(m message) (rec frame.Record, recID string, err error) {
	rec = frame.Record{Value: m.payload, Time: m.arrived}
	if m.lost > 0 {
		return rec, "", fmt.Errorf("message of %d bytes, a record has at most %d", len(m.payload)+m.lost, frame.MaxRecord)
	}
	byID := c.ID != ""
	if byKey, byTime := c.Key.Kind == extract.KeyJSON, c.Time.Path != ""; (byKey || byTime || byID) && !gjson.ValidBytes(m.payload) {
		switch {
		case byKey:
			return rec, "", fmt.Errorf("the payload is not JSON; the key field %q is needed", c.Key.Path)
		case byTime:
			return rec, "", fmt.Errorf("the payload is not JSON; the time field %q is needed", c.Time.Path)
		}
		byID = false
	}
	key, err := c.Key.Key(m.topic, m.payload)
	if err != nil {
		return rec, "", err
	}
	rec.Key = []byte(key)
	if rec.Time, err = c.Time.Time(m.payload, m.arrived); err != nil {
		return rec, "", err
	}
	if key != m.topic {
		var ok bool
		if rec.Headers, ok = frame.AppendHeader(nil, template.TopicHeader, []byte(m.topic)); !ok {
			return rec, "", fmt.Errorf("topic of %d bytes, at most %d", len(m.topic), maxString)
		}
	}
	if byID {
		recID = extract.ID(c.ID, m.payload)
	}
	return rec, recID, rec.Check()
}

// deadLetter is the record to keep of a message that cannot be one: under its topic, as it came,
// and cut where it is too large, which the reason then says.
func deadLetter(m message, reason string) (frame.Record, string) {
	rec := frame.Record{Time: m.arrived, Key: []byte(m.topic), Value: m.payload}
	if over := rec.Size() - frame.MaxRecord; over > 0 {
		rec.Value = rec.Value[:len(rec.Value)-over]
	}
	if whole := len(m.payload) + m.lost; len(rec.Value) < whole {
		reason += fmt.Sprintf("; kept are the first %d of %d bytes of its payload", len(rec.Value), whole)
	}
	return rec, reason
}
