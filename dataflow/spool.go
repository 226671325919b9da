package dataflow

import (
	"encoding/binary"
	"fmt"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// A task whose receiver is out of reach would stand still once an output is full, and with it its other
// outputs: an alarm on the device itself would wait for the uplink. So what an output to another agent
// cannot hand over goes to a spool, frame by frame, in a log of its own within the agent's.
//
// The path of an output's items is then: window, spool, tail. All that is made is put at the tail, goes from
// there to the spool once its step is over, is loaded into the window as the receiver makes room, and is sent
// from there. So numbers leave in order, memory holds no more than without a spool, and live items queue up
// behind the older ones. When the spool has been loaded to its end, items go to the window again.
//
// A frame is appended after the entry that caused it, to the same agent's log: if it is durable, so is its
// cause, and the output rule holds. What a task makes again after a restart and the spool has is dropped and
// compared. What was sent from the spool stays there until a checkpoint counts that contains it: a receiver
// that has lost it gets it without the task's being restored.
const (
	// spoolTicks is for how long an output must be full before it overflows: a receiver that is merely slow
	// slows its sender down.
	spoolTicks = 5
	// spoolStride is how many bytes of a spool lie between two of the places at which it can be read from or
	// given up to.
	spoolStride = 256 << 10
)

// Spool is a channel's part of the agent's log.
type Spool interface {
	Log
	// Front is up to where entries have been given up.
	Front() abs.Position
}

// spool is what a channel's log holds: the items from first to last, none if last is 0.
type spool struct {
	log   Spool // nil: there is none yet
	first abs.Seq
	last  abs.Seq
	sum   frame.Sum    // after last
	cause abs.Position // nothing unread of it was caused before
	bytes int64

	marks []spoolMark // ascending; the first is of the first item

	cursor abs.Seq  // next item to be loaded; last+1: none
	follow Follower // reads from before cursor; nil: not yet

	pos     abs.Position // of the newest entry
	durable abs.Seq      // the log is synced past the entry of this item
	probe   spoolMark    // so will it be of this one
}

// spoolMark is a place in the spool: the entry after pos begins with item first.
type spoolMark struct {
	pos   abs.Position
	first abs.Seq
	cause abs.Position
	bytes int64 // appended before
}

// spoolEntry: cause (uvarint) | frame.
func spoolEntry(cause abs.Position) []byte { return binary.AppendUvarint(nil, uint64(cause)) }

func decodeSpooled(e Entry) (h frame.Header, payload []byte, cause abs.Position, err error) {
	r := entryReader{b: e.Data}
	cause = abs.Position(r.uvarint())
	if r.err != nil {
		return h, nil, 0, fmt.Errorf("log entry %d: %w", e.Pos, r.err)
	}
	if h, payload, err = frame.Decode(r.b); err != nil {
		return h, nil, 0, fmt.Errorf("log entry %d: %w", e.Pos, err)
	}
	return h, payload, cause, nil
}

// open finds out what the log holds. After a power cut it may have again what was given up, with a hole.
func (s *spool) open(log Spool) error {
	*s = spool{log: log}
	at := log.Front()
	f, err := log.Follow(at)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		e, ok, err := f.Next()
		if err != nil || !ok {
			s.cursor = s.last + 1
			return err
		}
		if e.Kind != EntrySpool {
			continue
		}
		h, payload, cause, err := decodeSpooled(e)
		if err != nil {
			return err
		}
		s.took(h, len(payload), cause, at, e.Pos)
		at = e.Pos
	}
}

// took notes that the entry at pos, which follows the one at before, holds a frame.
func (s *spool) took(h frame.Header, size int, cause, before, pos abs.Position) {
	if abs.Seq(h.First) != s.last+1 || s.last == 0 {
		s.first, s.marks, s.bytes = abs.Seq(h.First), nil, 0
		s.cause = cause
	}
	if n := len(s.marks); n == 0 || s.bytes-s.marks[n-1].bytes >= spoolStride {
		s.marks = append(s.marks, spoolMark{before, abs.Seq(h.First), cause, s.bytes})
	}
	s.last, s.sum, s.pos = abs.Seq(h.Last()), h.After, pos
	s.bytes += int64(size)
}

// holds says whether the spool has an item.
func (s *spool) holds(n abs.Seq) bool { return s.last != 0 && s.first <= n && n <= s.last }

// unread says whether items are to be loaded.
func (s *spool) unread() bool { return s.last != 0 && s.cursor <= s.last }

// mark is the last place that is not behind an item.
func (s *spool) mark(n abs.Seq) spoolMark {
	i := len(s.marks) - 1
	for i > 0 && s.marks[i].first > n {
		i--
	}
	return s.marks[i]
}

// seek makes n the next item to be loaded.
func (s *spool) seek(n abs.Seq) {
	s.stop()
	s.cursor = min(max(n, s.first), s.last+1)
	if s.unread() {
		s.cause = s.mark(s.cursor).cause
	}
}

func (s *spool) stop() {
	if s.follow != nil {
		s.follow.Close()
		s.follow = nil
	}
}

// next reads the frame with the cursor's item.
func (s *spool) next() (h frame.Header, payload []byte, cause, pos abs.Position, err error) {
	if s.follow == nil {
		if s.follow, err = s.log.Follow(s.mark(s.cursor).pos); err != nil {
			return h, nil, 0, 0, err
		}
	}
	for {
		e, ok, err := s.follow.Next()
		if err == nil && !ok {
			err = fmt.Errorf("the spool ends before item %d", s.cursor)
		}
		if err != nil {
			return h, nil, 0, 0, err
		}
		if e.Kind != EntrySpool {
			continue
		}
		h, payload, cause, err = decodeSpooled(e)
		if err != nil || abs.Seq(h.Last()) >= s.cursor {
			return h, payload, cause, e.Pos, err
		}
	}
}

// reached moves durable on as the log is synced.
func (s *spool) reached(synced abs.Position) {
	if s.probe.first > s.durable && synced >= s.probe.pos {
		s.durable = s.probe.first
	}
	if s.probe.first <= s.durable {
		s.probe = spoolMark{pos: s.pos, first: s.last}
		if synced >= s.pos {
			s.durable = s.last
		}
	}
}

// giveUp gives up what a counting checkpoint contains: all up to an item.
func (s *spool) giveUp(upto abs.Seq) error {
	if s.last == 0 {
		return nil
	}
	if s.cursor <= upto {
		s.seek(upto + 1)
	}
	if upto >= s.last {
		return s.clear()
	}
	n := 0
	for n+1 < len(s.marks) && s.marks[n+1].first <= upto+1 {
		n++
	}
	if n == 0 {
		return nil
	}
	s.marks = s.marks[n:]
	s.first = s.marks[0].first
	return s.log.Truncate(s.marks[0].pos)
}

// clear gives up all.
func (s *spool) clear() error {
	s.stop()
	pos := s.pos
	*s = spool{log: s.log}
	return s.log.Truncate(pos)
}

// spooling says whether what is made goes behind what the spool holds.
func (o *outlet) spooling() bool { return len(o.tail) > 0 || o.spool.unread() }

// waiting is how many items are in the spool or on their way there.
func (o *outlet) waiting() (n uint64) {
	if o.spool.unread() {
		n = uint64(o.spool.last - o.spool.cursor + 1)
	}
	for _, f := range o.tail {
		n += uint64(f.last - f.first + 1)
	}
	return n
}

// edge says whether an item must begin a frame: so none spans the ends of what the spool holds.
func (s *spool) edge(n abs.Seq) bool { return s.last != 0 && (n == s.first || n == s.last+1) }

// keep puts a frame where it belongs: into the window, or behind what is in the spool.
func (o *outlet) keep(f *outFrame, after frame.Sum) {
	switch s := &o.spool; {
	case s.holds(f.first):
		o.heldBack += uint64(f.last - f.first + 1)
		if f.last == s.last {
			if o.compared++; after != s.sum && o.diff == nil {
				o.diff = &DiffError{o.ID, f.last, "the spool has something else under these numbers"}
			}
		}
		o.release(f)
	case f.first > s.last && o.spooling():
		o.tail = append(o.tail, f)
		o.tailBytes += len(f.buf)
	case !o.join(f, after):
		o.window = append(o.window, f)
		o.unsent += len(f.buf)
	}
}

// watch counts for how long the output has been full, and lets it overflow.
func (o *outlet) watch() {
	if !o.Spool || o.spooling() || !o.full() {
		o.fullFor = 0
		return
	}
	if o.fullFor++; o.fullFor >= spoolTicks {
		o.overflow()
	}
}

// overflow moves the window behind what the spool holds.
func (o *outlet) overflow() {
	o.fullFor = 0
	o.unsend(0)
	from := o.window[0].first
	o.moved = o.moved || from > o.spool.last+1 || from < o.spool.first
	for _, f := range o.window {
		if o.spool.last != 0 && f.last <= o.spool.last && !o.moved {
			o.release(f)
			continue
		}
		f.parked = true
		o.tail = append(o.tail, f)
		o.tailBytes += len(f.buf)
	}
	o.window, o.unsent = nil, 0
	if !o.moved {
		o.spool.seek(from)
	}
	o.recut()
}

// recut says that what was sent will be sent again in other frames: as each may hold only a part of what the
// receiver takes in one go, credit must not come between them.
func (o *outlet) recut() { o.free = max(o.free, o.highest) }

// reload sends again from a number on, from the spool, if it leads on from there; false if it does not.
func (o *outlet) reload(from abs.Seq) bool {
	if !o.spool.holds(from) || o.moved {
		return false
	}
	if !o.spooling() && o.next > o.spool.last { // what comes behind is in the window
		if len(o.window) == 0 && o.next != o.spool.last+1 || len(o.window) > 0 && o.window[0].first > o.spool.last+1 {
			return false
		}
		if len(o.window) > 0 {
			o.overflow()
		}
	} else {
		o.unsend(0)
		for _, f := range o.window {
			o.release(f)
		}
		o.window, o.unsent = nil, 0
	}
	o.spool.seek(from)
	o.recut()
	return true
}

// seekSpool sets the spool to what a snapshot says was made.
func (o *outlet) seekSpool(sent abs.Seq) {
	o.tail, o.tailBytes, o.fullFor, o.moved, o.diff = nil, 0, 0, false, nil
	if o.spool.last == 0 {
		return
	}
	o.spool.seek(o.have)
	if sent > o.spool.last { // what lies between is with the receiver
		o.spool.seek(o.spool.last + 1)
	}
}

// openSpools finds what earlier lives have left.
func (t *Task) openSpools() error {
	for _, o := range t.outs {
		if !o.Spool {
			continue
		}
		log, err := t.env.Spool(o.Channel, false)
		if err == nil && log != nil {
			err = o.spool.open(log)
		}
		if err != nil {
			return fmt.Errorf("spool of channel %s: %w", o.ID, err)
		}
	}
	return nil
}

// spill appends the tail to the spool: the step that has made it is over. A full log leaves it where it is.
func (t *Task) spill(o *outlet) error {
	if len(o.tail) == 0 {
		return nil
	}
	s := &o.spool
	if s.log == nil {
		log, err := t.env.Spool(o.Channel, true)
		if err != nil {
			return err
		}
		s.log = log
	}
	if o.moved && s.last != 0 {
		if err := s.clear(); err != nil {
			return err
		}
	}
	o.moved = false
	n := 0
	for _, f := range o.tail {
		before := s.pos
		if s.last == 0 {
			before = t.env.Log.Last()
		}
		h, payload, err := frame.Decode(f.buf)
		if err != nil {
			return fmt.Errorf("a frame that a task has made is malformed: %w", err)
		}
		pos, err := s.log.Append(EntrySpool, spoolEntry(f.cause), f.buf)
		if err != nil {
			if ignoreFull(err) != nil {
				return err
			}
			break
		}
		begins := s.last == 0
		s.took(h, len(payload), f.cause, before, pos)
		if begins {
			s.cursor = s.first
		}
		o.tailBytes -= len(f.buf)
		o.release(f)
		n++
	}
	o.tail = o.tail[n:]
	return nil
}

// room says whether another frame may be loaded. A receiver that replays takes a run of items as it has taken it
// before: one frame of then, which the spool may give in other frames now. It takes none of it before it has
// it all, so the window must come to hold as much behind the receiver's number, whatever its bounds.
func (o *outlet) room(tick uint64) bool {
	if len(o.window) < o.bounds.Frames || o.under+o.unsent < o.bounds.Unsent {
		return true
	}
	if tick < o.haveAt+spoolTicks {
		return false
	}
	ahead := 0 // the last record of a frame begins before the target
	for i := len(o.window) - 1; i >= 0 && o.window[i].first >= o.have; i-- {
		ahead += len(o.window[i].buf) - frame.HeaderSize
	}
	return ahead < frame.TargetSize
}

// load takes frames from the spool into the window while there is room for them. Those of small steps become
// one.
func (o *outlet) load(tick uint64) error {
	s := &o.spool
	var open *outFrame // the last one loaded
	var head frame.Header
	for o.granted && s.unread() && o.room(tick) {
		if s.cursor == s.first && o.have < s.first && o.next < s.first {
			return nil // what comes before it is being made again
		}
		h, payload, cause, pos, err := s.next()
		if err != nil {
			s.stop()
			return fmt.Errorf("spool of channel %s: %w", o.ID, err)
		}
		s.cursor, s.cause = abs.Seq(h.Last())+1, cause
		if !s.unread() {
			s.stop()
		}
		if open != nil && h.Kind == frame.Data && head.Kind == frame.Data && h.Watermark == head.Watermark && len(open.buf)+len(payload) <= frame.HeaderSize+frame.TargetSize {
			head.Count, head.After = head.Count+h.Count, h.After
			open.buf = append(open.buf, payload...)
			open.last, open.entry = abs.Seq(h.Last()), pos
			o.unsent += len(payload)
		} else {
			head = h
			open = &outFrame{buf: append(o.pool.get(), payload...), kind: h.Kind, first: abs.Seq(h.First), last: abs.Seq(h.Last()), before: h.Before, cause: cause, entry: pos}
			o.window = append(o.window, open)
			o.unsent += len(open.buf)
		}
		frame.PutHeader(open.buf, head, len(open.buf)-frame.HeaderSize)
	}
	return nil
}

// out says whether all up to a number is handed over: with the receiver, in its stream, or durably in the spool.
func (o *outlet) out(n abs.Seq) bool {
	s := &o.spool
	return o.acked >= n || s.last != 0 && s.first <= o.acked+1 && s.durable >= n
}
