package dataflow

import (
	"errors"
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// outletOf is an outlet of the sequence's channel whose numbers are all reserved.
func outletOf(s sequence) *outlet {
	o := newOutlet(s.gen, OutChannel{Channel: Channel{ID: "x>y", Index: 4}, To: "y", Incarnation: s.inc}, &framePool{})
	o.reserved, o.reserving = 1<<40, 1<<40
	o.bounds.Join = 1 // a frame for each step
	return o
}

// make adds items from the outlet's next number up to one, as one step of the cause.
func (s sequence) make(o *outlet, upto abs.Seq, cause abs.Position) {
	for n := o.next + abs.Seq(o.buildCount); n <= upto; n++ {
		it := s.items[n-1]
		if it.kind == frame.Data {
			o.add(it.bytes, cause)
			continue
		}
		m, err := frame.DecodeMark(it.bytes)
		if err != nil {
			panic(err)
		}
		o.mark(m, cause)
	}
	o.flush(cause)
}

// steps makes items up to one, one step each.
func (s sequence) steps(o *outlet, upto abs.Seq) {
	for o.next <= upto {
		s.make(o, o.next, abs.Position(o.next))
	}
}

const allSynced = abs.Position(1 << 40)

// sendAll sends what may be sent and returns copies of the frames, and what they were.
func sendAll(o *outlet, synced abs.Position, tick uint64) (frames [][]byte, sent []*outFrame) {
	for f := o.sendable(synced, tick); f != nil; f = o.sendable(synced, tick) {
		o.sending(f, tick)
		frames, sent = append(frames, append([]byte(nil), f.buf...)), append(sent, f)
	}
	return frames, sent
}

func mustGrant(t checker, o *outlet, g Grant, tick uint64) (regenerate bool) {
	t.Helper()
	g.Channel, g.Incarnation = o.Index, o.Incarnation
	regenerate, err := o.grant(g, tick)
	if err == nil {
		err = o.differs()
	}
	if err != nil {
		t.Fatal(err)
	}
	return regenerate
}

// granted lets the outlet send from a number on.
func (s sequence) granted(t checker, o *outlet, next abs.Seq, window int) {
	t.Helper()
	mustGrant(t, o, Grant{Next: next, Sum: s.sum(next), Window: window}, 0)
}

func firsts(t checker, frames [][]byte) []abs.Seq {
	t.Helper()
	var out []abs.Seq
	for _, f := range frames {
		h, _, err := frame.Decode(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, abs.Seq(h.First))
	}
	return out
}

func mustFirsts(t checker, what string, frames [][]byte, want ...abs.Seq) {
	t.Helper()
	got := firsts(t, frames)
	if len(got) != len(want) {
		t.Fatalf("%s: frames from %v, want %v", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: frames from %v, want %v", what, got, want)
		}
	}
}

func TestOutletNumbersItemsAndCutsThem(t *testing.T) {
	s := newSequence(6, 4)
	o := outletOf(s)
	s.make(o, 6, 1)
	s.granted(t, o, 1, grantWindow)
	frames, _ := sendAll(o, 1, 0)
	mustFirsts(t, "frames", frames, 1, 4, 5)
	for i, want := range [][2]abs.Seq{{1, 3}, {4, 4}, {5, 6}} {
		h, payload, err := frame.Decode(frames[i])
		if err != nil {
			t.Fatal(err)
		}
		mustBytes(t, "payload", payload, s.bytes(want[0], want[1]))
		mustEqual(t, "last", abs.Seq(h.Last()), want[1])
		mustEqual(t, "before", h.Before, s.sum(want[0]))
		mustEqual(t, "kind", h.Kind, s.items[want[0]-1].kind)
		mustEqual(t, "generation", h.Generation, uint32(s.gen))
		mustEqual(t, "incarnation", h.Incarnation, s.inc)
		wantEpoch := uint64(1)
		if i == 0 {
			wantEpoch = 0
		}
		mustEqual(t, "epoch", h.Epoch, wantEpoch)
	}
}

func TestOutletCutsBySize(t *testing.T) {
	records := func(size int) []byte { return numbered(1, size-len(numbered(1, 0))) }
	cases := []struct {
		name   string
		sizes  []int
		frames []int // payload sizes
	}{
		{"less than the target", []int{1000, 1000}, []int{2000}},
		{"the target, exactly", []int{frame.TargetSize, 1000}, []int{frame.TargetSize, 1000}},
		{"largest record behind nearly the target", []int{frame.TargetSize - 1, frame.MaxRecord, 500}, []int{frame.TargetSize - 1 + frame.MaxRecord, 500}},
		{"largest records alone", []int{frame.MaxRecord, frame.MaxRecord}, []int{frame.MaxRecord, frame.MaxRecord}},
	}
	for _, c := range cases {
		for _, together := range []bool{false, true} {
			o := outletOf(newSequence(0))
			var all []byte
			for _, size := range c.sizes {
				all = append(all, records(size)...)
				if !together {
					o.add(records(size), 1)
				}
			}
			if together {
				if err := o.addAll(all, len(c.sizes), 1); err != nil {
					t.Fatal(err)
				}
			}
			o.flush(1)
			if len(o.window) != len(c.frames) {
				t.Fatalf("%s: %d frames, want %d", c.name, len(o.window), len(c.frames))
			}
			for i, f := range o.window {
				mustEqual(t, c.name, len(f.buf)-frame.HeaderSize, c.frames[i])
				if _, _, err := frame.Decode(f.buf); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
			}
		}
	}
}

func TestOutletAddsRunsBehindEachOther(t *testing.T) {
	s := newSequence(5)
	o := outletOf(s)
	for _, run := range [][2]abs.Seq{{1, 2}, {3, 3}, {4, 5}} {
		if err := o.addAll(s.bytes(run[0], run[1]), int(run[1]-run[0]+1), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.addAll(nil, 0, 1); err != nil {
		t.Fatal(err)
	}
	o.flush(1)
	o.flush(1)
	mustEqual(t, "frames", len(o.window), 1)
	mustBytes(t, "payload", o.window[0].buf[frame.HeaderSize:], s.bytes(1, 5))
	mustEqual(t, "next", o.next, 6)
	if err := o.addAll([]byte("no record at all, but longer than a record's head"), 1, 1); err != nil {
		t.Fatal(err)
	}
	if err := o.addAll([]byte("short"), 1, 1); !errors.Is(err, frame.ErrCorrupt) {
		t.Fatalf("malformed records: %v", err)
	}
}

// TestOutletOutputRule: nothing leaves before the log is synced past its cause.
func TestOutletOutputRule(t *testing.T) {
	s := newSequence(3)
	o := outletOf(s)
	for n := abs.Seq(1); n <= 3; n++ {
		s.make(o, n, abs.Position(10*n))
	}
	if o.sendable(allSynced, 0) != nil {
		t.Fatal("a frame left before the receiver was heard of")
	}
	s.granted(t, o, 1, grantWindow)
	for _, c := range []struct {
		synced abs.Position
		want   []abs.Seq
	}{{9, nil}, {10, []abs.Seq{1}}, {29, []abs.Seq{2}}, {30, []abs.Seq{3}}} {
		frames, _ := sendAll(o, c.synced, 0)
		mustFirsts(t, "frames", frames, c.want...)
	}
}

// joining is an outlet of which steps make one frame where they may.
func joining(s sequence) *outlet {
	o := outletOf(s)
	o.bounds.Join = frame.TargetSize
	return o
}

func TestOutletJoinsWhatWaits(t *testing.T) {
	s := newSequence(12, 9)
	o := joining(s)
	s.steps(o, 12)
	s.granted(t, o, 1, grantWindow)
	if frames, _ := sendAll(o, 0, 0); len(frames) > 0 {
		t.Fatal("left before the log was synced")
	}
	frames, _ := sendAll(o, 7, 0)
	mustFirsts(t, "once the first step is synced, and not all of those that follow", frames, 1)
	mustEqual(t, "earliest cause that has not left", o.window[1].cause, 2)
	frames, _ = sendAll(o, 11, 0)
	mustFirsts(t, "once they are", frames, 2, 9)
	h, payload, err := frame.Decode(frames[0])
	if err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "last", abs.Seq(h.Last()), 8)
	mustBytes(t, "payload", payload, s.bytes(2, 8))
	mustEqual(t, "before", h.Before, s.sum(2))
	mustEqual(t, "after", h.After, s.sum(9))
	mustEqual(t, "epoch", h.Epoch, 0)
	mustEqual(t, "bytes that wait", o.unsent, len(s.frame(10, 12)))
	frames, _ = sendAll(o, 12, 0)
	mustFirsts(t, "behind the barrier", frames, 10)
	mustEqual(t, "bytes under way", o.under, len(s.frame(1, 1))+len(s.frame(2, 8))+len(s.frame(9, 9))+len(s.frame(10, 12)))
	mustEqual(t, "bytes that wait", o.unsent, 0)
}

func TestOutletJoinsNothingThatMayHaveLeft(t *testing.T) {
	const n = 6
	cases := []struct {
		name string
		do   func(s sequence, o *outlet)
		want []abs.Seq
	}{
		{"to the one that goes next", func(s sequence, o *outlet) { s.steps(o, 1); sendAll(o, allSynced, 0) }, []abs.Seq{2, 3}},
		{"to what was sent and is to be sent again", func(s sequence, o *outlet) {
			s.steps(o, 3)
			_, sent := sendAll(o, allSynced, 0)
			o.done(sent[0], errors.New("full"), 0)
		}, []abs.Seq{1, 2, 4}},
		{"to what was made before a restart", func(_ sequence, o *outlet) { o.free = 4 }, []abs.Seq{1, 2, 3, 4, 5}},
		{"over the end of what is in the spool", func(_ sequence, o *outlet) { o.spool.first, o.spool.last, o.spool.cursor = 20, 3, 4 }, []abs.Seq{1, 2, 4}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newSequence(n)
			o := joining(s)
			s.granted(t, o, 1, grantWindow)
			c.do(s, o)
			s.steps(o, n)
			frames, _ := sendAll(o, allSynced, retryTicks)
			mustFirsts(t, "frames", frames, c.want...)
		})
	}
}

func TestOutletJoinsUpToTheTarget(t *testing.T) {
	s := newSequence(8)
	for i := range s.items {
		s.items[i].bytes = numbered(i+1, frame.TargetSize/3+100)
	}
	o := joining(s)
	s.steps(o, 8)
	s.granted(t, o, 1, 1<<20)
	frames, _ := sendAll(o, allSynced, 0)
	mustFirsts(t, "frames", frames, 1, 2, 4, 6, 8)
}

func TestOutletCreditByBytesAndFrames(t *testing.T) {
	large := newSequence(12)
	for i := range large.items {
		large.items[i].bytes = numbered(i+1, 100<<10)
	}
	small := newSequence(12)
	cases := []struct {
		name   string
		s      sequence
		window int
		sent   int
	}{
		{"no bytes: the least number of frames", small, 0, minFrames},
		{"large frames: the least number of frames", large, 256 << 10, minFrames},
		{"small frames: by bytes", small, 8 * len(small.frame(12, 12)), 8},
		{"enough", small, grantWindow, 12},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := outletOf(c.s)
			c.s.steps(o, 12)
			c.s.granted(t, o, 1, c.window)
			frames, _ := sendAll(o, allSynced, 0)
			mustEqual(t, "frames under way", len(frames), c.sent)
			if c.sent == 12 {
				return
			}
			// What the receiver has consumed makes room for as much.
			c.s.granted(t, o, 3, c.window)
			more, _ := sendAll(o, allSynced, 0)
			mustFirsts(t, "then", more, abs.Seq(c.sent+1), abs.Seq(c.sent+2))
		})
	}
}

func TestOutletMarksNeedNoCredit(t *testing.T) {
	s := newSequence(8, 5, 6, 8)
	o := outletOf(s)
	s.steps(o, 8)
	s.granted(t, o, 1, 0)
	frames, _ := sendAll(o, allSynced, 0)
	mustFirsts(t, "frames", frames, 1, 2, 3, 4, 5, 6) // not 7, a record, and so not 8 either
}

func TestOutletNumbersMadeBeforeNeedNoCredit(t *testing.T) {
	s := newSequence(12)
	o := outletOf(s)
	o.free = 9
	s.steps(o, 12)
	s.granted(t, o, 1, 0)
	frames, _ := sendAll(o, allSynced, 0)
	mustEqual(t, "frames", len(frames), 9)
	// And so it is after a rewind, for all that was ever handed over.
	o = outletOf(s)
	s.steps(o, 12)
	s.granted(t, o, 1, grantWindow)
	sendAll(o, 7, 0)
	o.seek(0, 0, 0)
	s.steps(o, 12)
	s.granted(t, o, 1, 0)
	frames, _ = sendAll(o, allSynced, 0)
	mustEqual(t, "frames after the rewind", len(frames), 7)
}

func TestOutletReservation(t *testing.T) {
	s := newSequence(4)
	o := newOutlet(s.gen, OutChannel{Channel: Channel{ID: "x>y"}, Incarnation: s.inc}, &framePool{})
	o.bounds.Join = 1
	s.steps(o, 4)
	s.granted(t, o, 1, grantWindow)
	if o.sendable(allSynced, 0) != nil {
		t.Fatal("left without a reservation")
	}
	upto, due := o.reserve()
	if !due || upto < o.next {
		t.Fatalf("reservation due %v, up to %d", due, upto)
	}
	o.reserveUpto(2, 50)
	if o.sendable(49, 0) != nil {
		t.Fatal("left before the reservation was on disk")
	}
	frames, _ := sendAll(o, 50, 0)
	mustFirsts(t, "frames", frames, 1, 2)
	o.reserveUpto(upto, 60)
	if _, due := o.reserve(); due {
		t.Fatal("due again at once")
	}
	frames, _ = sendAll(o, 60, 0)
	mustFirsts(t, "frames", frames, 3, 4)
	o.next = upto - reserveAhead/2 + 1
	if _, due := o.reserve(); !due {
		t.Fatal("not due when half is used")
	}
}

func TestOutletGoesBackOnRefusal(t *testing.T) {
	s := newSequence(5)
	o := outletOf(s)
	s.steps(o, 5)
	s.granted(t, o, 1, grantWindow)
	_, sent := sendAll(o, allSynced, 7)
	o.done(sent[0], nil, 7)
	o.done(sent[2], errors.New("full"), 7)
	o.done(sent[3], nil, 7) // behind the one refused: sent again all the same
	mustEqual(t, "acked", o.acked, 1)
	if frames, _ := sendAll(o, allSynced, 7+retryTicks-1); len(frames) > 0 {
		t.Fatal("sent again without a pause")
	}
	frames, again := sendAll(o, allSynced, 7+retryTicks)
	mustFirsts(t, "sent again", frames, 3, 4, 5)
	o.done(sent[1], nil, 9)
	o.done(again[0], nil, 9)
	mustEqual(t, "acked", o.acked, 4) // the first sending of 4 was taken
	o.done(sent[4], errors.New("late"), 9)
	frames, _ = sendAll(o, allSynced, 9+retryTicks)
	mustFirsts(t, "sent a third time", frames, 5)
	for _, f := range again[1:] {
		o.done(f, nil, 12)
	}
	mustEqual(t, "acked", o.acked, 5)
}

func TestOutletAckedByConsumption(t *testing.T) {
	s := newSequence(6)
	o := outletOf(s)
	s.steps(o, 4)
	s.granted(t, o, 1, grantWindow)
	sendAll(o, 2, 0)
	mustEqual(t, "acked", o.acked, 0)
	s.granted(t, o, 4, grantWindow) // two sent and not yet known to be in the stream, one not sent
	mustEqual(t, "acked", o.acked, 3)
	mustEqual(t, "held back", o.heldBack, 1)
	s.granted(t, o, 7, grantWindow)
	s.steps(o, 6) // the receiver is ahead
	mustEqual(t, "acked", o.acked, 6)
	mustEqual(t, "held back", o.heldBack, 4)
	mustEqual(t, "frames left", len(o.window), 0)
}

func TestOutletHoldsBackWhatTheReceiverHas(t *testing.T) {
	s := newSequence(9)
	o := outletOf(s)
	s.granted(t, o, 6, grantWindow)
	s.make(o, 3, 1)
	s.make(o, 8, 2) // spans: sent, and trimmed there
	frames, _ := sendAll(o, allSynced, 0)
	mustFirsts(t, "frames", frames, 4)
	mustEqual(t, "held back", o.heldBack, 3)
	mustEqual(t, "unsent", o.unsent, 0)
}

func TestOutletRewind(t *testing.T) {
	s := newSequence(9)
	fresh := func(t *testing.T) *outlet {
		o := outletOf(s)
		s.steps(o, 9)
		s.granted(t, o, 1, grantWindow)
		sendAll(o, 7, 10)
		s.granted(t, o, 4, grantWindow)
		return o
	}
	cases := []struct {
		name       string
		g          Grant
		tick       uint64
		regenerate bool
		again      []abs.Seq // what is sent then, when the log is synced to 7
	}{
		{"no rewind", Grant{Next: 4}, 100, false, nil},
		{"under way just now", Grant{Next: 4, Rewind: true}, 10 + resendTicks - 1, false, nil},
		{"under way for long", Grant{Next: 4, Rewind: true}, 10 + resendTicks, false, []abs.Seq{4, 5, 6, 7}},
		{"further on", Grant{Next: 6, Rewind: true}, 10 + resendTicks, false, []abs.Seq{6, 7}},
		{"not made yet", Grant{Next: 10, Rewind: true}, 100, false, nil},
		{"beyond what is made", Grant{Next: 15, Rewind: true}, 100, false, nil},
		{"not at hand", Grant{Next: 3, Rewind: true}, 100, true, nil},
		{"not at hand, no rewind", Grant{Next: 3}, 100, false, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := fresh(t)
			c.g.Window, c.g.Sum = grantWindow, s.sum(min(c.g.Next, 10))
			mustEqual(t, "regenerate", mustGrant(t, o, c.g, c.tick), c.regenerate)
			frames, _ := sendAll(o, 7, c.tick)
			mustFirsts(t, "sent again", frames, c.again...)
		})
	}
	t.Run("all consumed", func(t *testing.T) {
		o := fresh(t)
		s.granted(t, o, 10, grantWindow)
		mustEqual(t, "regenerate", mustGrant(t, o, Grant{Next: 8, Sum: s.sum(8), Rewind: true}, 100), true)
	})
	t.Run("another incarnation", func(t *testing.T) {
		o := fresh(t)
		g := Grant{Channel: o.Index, Incarnation: o.Incarnation + 1, Next: 9, Rewind: true}
		if again, err := o.grant(g, 100); again || err != nil {
			t.Fatal("taken")
		}
		mustEqual(t, "have", o.have, 4)
	})
	t.Run("made again", func(t *testing.T) {
		o := fresh(t)
		mustGrant(t, o, Grant{Next: 3, Sum: s.sum(3), Rewind: true, Window: grantWindow}, 100)
		o.seek(1, s.sum(2), 0)
		mustEqual(t, "acked", o.acked, 1)
		s.steps(o, 9)
		mustEqual(t, "held back", o.heldBack, 1)
		frames, _ := sendAll(o, allSynced, 100)
		mustFirsts(t, "frames", frames, 3, 4, 5, 6, 7, 8, 9)
		mustBytes(t, "first", frames[0], s.frame(3, 3))
	})
}

func TestOutletComparesRunningSums(t *testing.T) {
	s := newSequence(6)
	wrong := s.sum(4) ^ 1
	differs := func(t *testing.T, o *outlet, number abs.Seq) {
		t.Helper()
		var diff *DiffError
		if err := o.differs(); !errors.As(err, &diff) {
			t.Fatalf("got %v, want a DiffError", err)
		}
		mustEqual(t, "channel", diff.Channel, "x>y")
		mustEqual(t, "number", diff.Number, number)
		if err := o.differs(); err != nil {
			t.Fatalf("compared twice: %v", err)
		}
	}
	give := func(o *outlet, next abs.Seq, sum frame.Sum) {
		if _, err := o.grant(Grant{Channel: 4, Incarnation: s.inc, Next: next, Sum: sum, Window: grantWindow}, 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("at the current number", func(t *testing.T) {
		o := outletOf(s)
		s.make(o, 3, 1)
		give(o, 4, wrong)
		differs(t, o, 3)
	})
	t.Run("at an edge in the window", func(t *testing.T) {
		o := outletOf(s)
		s.steps(o, 6)
		give(o, 4, wrong)
		differs(t, o, 3)
	})
	t.Run("when it gets there", func(t *testing.T) {
		o := outletOf(s)
		give(o, 4, wrong)
		s.make(o, 2, 1)
		if err := o.differs(); err != nil {
			t.Fatal(err)
		}
		s.make(o, 3, 1)
		differs(t, o, 3)
	})
	t.Run("again when it is made again", func(t *testing.T) {
		o := outletOf(s)
		s.make(o, 3, 1)
		give(o, 4, s.sum(4))
		if err := o.differs(); err != nil {
			t.Fatal(err)
		}
		o.seek(0, 0, 0)
		o.add(numbered(99, 0), 1)
		s.make(o, 3, 1)
		differs(t, o, 3)
		mustEqual(t, "compared", o.compared, 2)
	})
	t.Run("equal", func(t *testing.T) {
		o := outletOf(s)
		s.make(o, 3, 1)
		give(o, 4, s.sum(4))
		if err := o.differs(); err != nil {
			t.Fatal(err)
		}
		mustEqual(t, "compared", o.compared, 1)
	})
}

func TestOutletFull(t *testing.T) {
	s := newSequence(8)
	for i := range s.items {
		s.items[i].bytes = numbered(i+1, 50<<10)
	}
	o := outletOf(s)
	s.steps(o, 5)
	mustEqual(t, "full", o.full(), false)
	s.steps(o, 6)
	mustEqual(t, "full", o.full(), true)
	s.granted(t, o, 1, 0)
	sendAll(o, allSynced, 0)
	mustEqual(t, "full when sent", o.full(), false)
}

// TestOutletBuffers scribbles over every buffer that the outlet has given back, at once: what is
// under way or in the window must stay whole.
func TestOutletBuffers(t *testing.T) {
	s := newSequence(8)
	o := outletOf(s)
	scribble := func() {
		for _, class := range o.pool.free {
			for _, b := range class {
				b = b[:cap(b)]
				for i := range b {
					b[i] = 0xa5
				}
			}
		}
	}
	back := func() int { return len(o.pool.free[0]) } // of frames of a few bytes
	whole := func(what string, f *outFrame) {
		t.Helper()
		scribble()
		mustBytes(t, what, f.buf, s.frame(f.first, f.last))
	}
	s.steps(o, 6)
	s.granted(t, o, 1, grantWindow)
	_, sent := sendAll(o, 4, 10)
	held := sent[0].buf
	s.granted(t, o, 3, grantWindow) // consumed before the stream has confirmed
	mustEqual(t, "given back", back(), 0)
	whole("under way though consumed", sent[0])
	o.done(sent[0], errors.New("late"), 10)
	mustEqual(t, "given back", back(), 1)
	if sent[0].buf != nil || &o.pool.free[0][0][0] != &held[0] {
		t.Fatal("another buffer was given back")
	}
	o.done(sent[1], nil, 10)
	mustEqual(t, "given back", back(), 2)

	mustGrant(t, o, Grant{Next: 3, Sum: s.sum(3), Window: grantWindow, Rewind: true}, 99)
	_, again := sendAll(o, 3, 99) // 3 is under way twice
	o.done(again[0], nil, 99)
	s.granted(t, o, 4, grantWindow)
	whole("the first sending is still under way", sent[2])
	o.done(sent[2], nil, 99)
	mustEqual(t, "given back", back(), 3)

	o.add(s.items[6].bytes, 7) // takes a buffer from the pool, under construction
	o.seek(0, 0, 0)            // 4 is under way; 5, 6 and the one under construction are not
	mustEqual(t, "given back", back(), 5)
	whole("under way over a restore", sent[3])
	s.steps(o, 8)
	for _, f := range o.window {
		whole("made again", f)
	}
	o.done(sent[3], nil, 99)
	for _, f := range o.window {
		whole("made again", f)
	}
}

func TestOutletSeek(t *testing.T) {
	s := newSequence(9, 5)
	o := outletOf(s)
	s.steps(o, 9)
	s.granted(t, o, 1, grantWindow)
	_, sent := sendAll(o, 8, 3)
	o.done(sent[0], errors.New("refused"), 3)
	o.seek(5, s.sum(6), 1)
	mustEqual(t, "acked", o.acked, 5)
	mustEqual(t, "unsent and under way", o.unsent+o.under+o.sent+len(o.window), 0)
	for _, f := range sent[1:] {
		o.done(f, errors.New("of before"), 4) // changes nothing any more
	}
	s.steps(o, 9)
	frames, _ := sendAll(o, allSynced, 99)
	mustFirsts(t, "frames", frames, 6, 7, 8, 9)
	mustBytes(t, "frame", frames[1][frame.HeaderSize:], s.bytes(7, 7))
	h, _, err := frame.Decode(frames[1])
	if err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "epoch", h.Epoch, 1)
}

func TestFramePoolKeepsFewAndNoLargeBuffers(t *testing.T) {
	p := &framePool{}
	p.put(make([]byte, 3*frame.TargetSize))
	mustEqual(t, "kept", p.bytes, 0)
	for range 2 * poolBytes / fullFrame {
		p.put(make([]byte, fullFrame))
	}
	const most = poolBytes / fullFrame
	mustEqual(t, "kept", len(p.free[frameClasses-1]), most)
	mustEqual(t, "kept", p.bytes, most*fullFrame)
	mustEqual(t, "length", len(p.get()), frame.HeaderSize)
	mustEqual(t, "kept", p.bytes, (most-1)*fullFrame)
}

// A frame is kept in a buffer of about its size, and buffers come back to where they were taken from.
func TestFramePoolFits(t *testing.T) {
	for size := 1; size <= fullFrame; size += 97 {
		p := &framePool{}
		b := p.get()[:size]
		for i := range b {
			b[i] = byte(i * 7)
		}
		want := append([]byte(nil), b...)
		got := p.fit(b)
		mustBytes(t, "frame", got, want)
		if c := cap(got); c > max(2*size, smallestFrame) && 3*size < fullFrame/2 {
			t.Fatalf("a frame of %d bytes is kept in %d", size, c)
		}
		class := 0
		if cap(got) == fullFrame {
			mustEqual(t, "buffers", p.bytes, 0)
			class = frameClasses - 1
		} else {
			mustEqual(t, "the one to build in", p.bytes, fullFrame)
			for smallestFrame<<class < cap(got) {
				class++
			}
		}
		p.put(got)
		mustBytes(t, "taken again", p.fit(append(p.get()[:0], want...)), want)
		if len(p.free[class]) > 1 {
			t.Fatalf("%d buffers of one size", len(p.free[class]))
		}
	}
}
