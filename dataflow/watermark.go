package dataflow

import (
	"fmt"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

const (
	// watermarkEvery is how often a source sends a watermark, in milliseconds of its log's clock: each costs a
	// frame on every channel.
	watermarkEvery = 200
	// tickGap is the least time between two ticks in a task's log, milliseconds: a timer that sets itself again for
	// a time that has passed must not fill the log.
	tickGap = 100
)

// EventTime says what a source does about event time. The zero value makes no watermarks.
type EventTime struct {
	// Watermarks: the source makes watermarks, of the event times of its records.
	Watermarks bool
	// MaxDelay is by how much the watermark stays behind the highest event time, milliseconds: records that
	// come out of order by no more are not late.
	MaxDelay int64
	// Idle is after how long without records the source no longer holds event time back, milliseconds; 0: never.
	Idle int64
	// MaxAhead is how far an event time may be ahead of the log's clock, milliseconds, and still move the
	// watermark; 0: as far as it likes. What is further ahead comes of a clock that is wrong.
	MaxAhead int64
}

// sourceTime is what a source knows of event time: a function of its log. It is part of snapshots.
type sourceTime struct {
	High  *int64 `json:"high,omitempty"` // the highest event time that counts, nil before the first
	Sent  *int64 `json:"sent,omitempty"` // the last watermark sent, nil before the first
	At    int64  `json:"at,omitempty"`   // the log's clock when it was sent, milliseconds
	Last  int64  `json:"last,omitempty"` // the log's clock at the last record
	Idle  bool   `json:"idle,omitempty"` // this was sent last
	Ahead uint64 `json:"ahead,omitempty"`
}

// take looks at the event times of an entry's records.
func (s *sourceTime) take(rule EventTime, stamp int64, records []byte) error {
	for len(records) > 0 {
		r, rest, err := frame.Next(records)
		if err != nil {
			return err
		}
		records = rest
		s.Last = stamp
		if rule.MaxAhead > 0 && r.Time > stamp+rule.MaxAhead {
			s.Ahead++
			continue
		}
		if s.High == nil || r.Time > *s.High {
			high := r.Time
			s.High = &high
		}
	}
	return nil
}

// watermark is the one that could be sent; false if there is none or it has been sent.
func (s *sourceTime) watermark(rule EventTime) (int64, bool) {
	if s.High == nil {
		return NoTime, false
	}
	w := *s.High - rule.MaxDelay
	return w, s.Sent == nil || w > *s.Sent
}

// due says what is sent after an entry: a watermark, NoTime for a source that has become idle, or nothing.
// tick: the entry says that nothing has come for long enough.
func (s *sourceTime) due(rule EventTime, stamp int64, tick bool) (mark int64, ok bool) {
	w, news := s.watermark(rule)
	switch {
	case news && (s.Idle || s.Sent == nil || stamp >= s.At+watermarkEvery):
		s.Sent, s.At, s.Idle = &w, stamp, false
		return w, true
	case s.Idle && s.Last == stamp && s.Sent != nil && !tick: // it is back, with nothing newer
		s.At, s.Idle = stamp, false
		return *s.Sent, true
	case tick && !s.Idle && !news && stamp >= s.Last+rule.Idle:
		s.At, s.Idle = stamp, true
		return NoTime, true
	}
	return 0, false
}

// wants is when a tick is needed if nothing else comes, and whether that is to say that the source is idle. since is
// from when on nothing can have been missed.
func (s *sourceTime) wants(rule EventTime, since int64) (at int64, idle, ok bool) {
	if _, news := s.watermark(rule); news {
		return s.At + watermarkEvery, false, true
	}
	if s.Idle || rule.Idle == 0 {
		return 0, false, false
	}
	return max(s.Last, since) + rule.Idle, true, true
}

// tickEntry is a reading of the clock that the task needs.
type tickEntry struct {
	stamp int64
	idle  bool // of a source: nothing has come for as long as its rule says
}

func (e tickEntry) encode() []byte {
	b := orderEntry{stamp: e.stamp}.encode(nil)[:8]
	if e.idle {
		return append(b, 1)
	}
	return append(b, 0)
}

func decodeTick(b []byte) (e tickEntry, err error) {
	r := entryReader{b: b}
	e.stamp = r.i64()
	f := r.bytes(1)
	e.idle = r.err == nil && f[0]&1 == 1
	return e, r.err
}

// inTime is how far a channel's sender says that event time has come.
type inTime struct {
	watermark int64 // [NoTime] before the first
	idle      bool  // it is not to be waited for
}

// passed says whether a channel has nothing to say about event time now.
func (t *Task) passed(c *inChannel) bool {
	return c.time.idle || c.PassDetached && t.aligner.Detached(c.Agent)
}

// lowest is how far event time has come on all forward channels that count: those that have not ended and are not
// idle. If none counts, idle is set, and it is as far as any of them has come. It has come to its end where all of them
// have ended, in the head of a loop too: what still comes round is late.
func (t *Task) lowest() (w int64, idle bool) {
	w, idle = EndOfTime, true
	highest, live := NoTime, false
	for _, c := range t.inbox.chans {
		if c.Back || c.ended {
			continue
		}
		live = true
		highest = max(highest, c.time.watermark)
		if !t.passed(c) {
			w, idle = min(w, c.time.watermark), false
		}
	}
	if idle && live {
		return highest, true
	}
	return w, false
}

// moveTime makes event time what the channels now say, and passes that on. It does so before a snapshot is taken
// at the same entry, which then holds it.
func (t *Task) moveTime(pos abs.Position) error {
	w, idle := t.lowest()
	if w > t.watermark {
		if err := t.advance(pos, Moment{Watermark: w, Stamp: t.stamp}); err != nil {
			return err
		}
	}
	t.tell(pos, t.watermark, idle)
	return t.endStep(pos)
}

// tell sends a watermark, if it is news, and whether the task is idle. Back edges carry none: what is in a loop
// would hold back its own head.
func (t *Task) tell(pos abs.Position, w int64, idle bool) {
	if w == NoTime {
		idle = idle || t.toldIdle // there is no way to say that it waits for the first one again
	}
	var marks []int64
	if w > t.told || t.toldIdle && !idle {
		marks = append(marks, w)
	}
	if idle && !t.toldIdle {
		marks = append(marks, NoTime)
	}
	t.told, t.toldIdle = max(t.told, w), idle
	for _, m := range marks {
		for _, o := range t.outs {
			if !o.Back {
				o.mark(frame.Mark{Kind: frame.Watermark, Value: uint64(m)}, pos)
			}
		}
	}
}

// takeWatermark takes a mark of a channel: a watermark, or NoTime if it is not to be waited for.
func (t *Task) takeWatermark(pos abs.Position, c *inChannel, value int64) error {
	t.stir()
	if c.Back {
		return nil
	}
	if c.time.idle = value == NoTime; !c.time.idle {
		c.time.watermark = max(c.time.watermark, value)
	}
	return t.moveTime(pos)
}

// sourceMoves sends what an entry of the source's log has made of event time.
func (t *Task) sourceMoves(pos abs.Position, tick bool, m Moment) error {
	mark, ok := int64(0), false
	if t.spec.Time.Watermarks {
		mark, ok = t.source.due(t.spec.Time, t.stamp, tick)
	}
	if m.Watermark = t.watermark; ok && mark > t.watermark {
		m.Watermark = mark
	}
	if m.Watermark > t.watermark || m.Tick {
		if err := t.advance(pos, m); err != nil {
			return err
		}
	}
	if ok {
		t.tell(pos, t.watermark, mark == NoTime)
	}
	return t.endStep(pos)
}

// takeTick takes a reading of the clock. One behind the final barrier of a generation is left to the next.
func (t *Task) takeTick(pos abs.Position, e tickEntry) error {
	t.pos = pos
	if t.final || t.ended {
		return nil
	}
	t.stir()
	t.stamp = max(t.stamp, e.stamp)
	return t.sourceMoves(pos, e.idle, Moment{Stamp: t.stamp, Tick: true})
}

// timeCalls is added to the place of a call that time has made due in its entry, so that it is given up like a
// record. No entry has as many records.
const timeCalls = 1 << 30

// advance tells the operators where time stands, in the order of the chain, and passes on what each puts out
// before the next one hears of it.
func (t *Task) advance(pos abs.Position, m Moment) error {
	t.stir()
	if t.callsAt != pos {
		t.callsAt, t.calls = pos, 0
	}
	t.watermark = max(t.watermark, m.Watermark)
	for i, op := range t.chain.ops {
		timed, ok := op.(TimedOperator)
		if !ok {
			continue
		}
		timed.Advance(m)
		for c, due := timed.Next(); due; c, due = timed.Next() {
			index := timeCalls + t.calls
			t.calls++
			if g, is := t.giveUps[pos][index]; is {
				t.tally(0, 1)
				t.setAside(pos, t.letterKey(pos, index, nil), g, c.record())
				continue
			}
			if err := t.chain.call(i, c, m.Stamp, pos); err != nil {
				return &recordError{index: index, record: c.record(), err: fmt.Errorf("%s: %w", c, err)}
			}
		}
	}
	return t.endStep(pos)
}

// DueHeader names the header of a dead letter that is no record but a call that time has made due; its value is
// the kind. The record's key and time are those of the call.
const DueHeader = "weir-due"

// record is what is kept of a call that is given up.
func (c TimeCall) record() []byte {
	headers, _ := frame.AppendHeader(nil, DueHeader, []byte(c.Kind.String()))
	return frame.AppendRecord(nil, frame.Record{Key: c.Key, Time: c.At, Headers: headers})
}

func (c TimeCall) String() string {
	switch c.Kind {
	case CallEventTimer, CallProcessingTimer:
		return fmt.Sprintf("%s %d of key %q", c.Kind, c.At, c.Key)
	case CallWatermark:
		return fmt.Sprintf("%s %d", c.Kind, c.At)
	}
	return c.Kind.String()
}

// nextTick is when the task needs a reading of the clock, and whether that says that its source is idle.
func (t *Task) nextTick() (at int64, idle, ok bool) {
	if t.ended || t.final || t.drained || t.draining || t.endDue {
		return 0, false, false
	}
	if t.spec.Source && t.spec.Time.Watermarks {
		at, idle, ok = t.source.wants(t.spec.Time, t.liveSince)
	}
	for _, op := range t.chain.ops {
		timed, is := op.(TimedOperator)
		if !is {
			continue
		}
		if timer, set := timed.NextTick(); set && (!ok || timer < at) {
			at, idle, ok = timer, false, true
		}
	}
	return at, idle, ok
}

// logTick logs a reading of the clock if the task needs one, and, unless it follows its log, takes it.
func (t *Task) logTick() (bool, error) {
	at, idle, ok := t.nextTick()
	if !ok || t.tickPos > t.pos {
		return false, nil
	}
	now := t.env.Clock()
	if now < at || now < t.tickAt+tickGap && now >= t.tickAt {
		return false, nil
	}
	e := tickEntry{max(t.stamp, now), idle}
	pos, err := t.env.Log.Append(EntryTick, e.encode())
	if err != nil {
		return false, ignoreFull(err)
	}
	t.tickAt, t.tickPos = now, pos
	if t.follow != nil {
		return true, nil
	}
	return true, t.takeTick(pos, e)
}
