package dataflow

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// inboxOf is an inbox with channels of the sequence, in plan order from index 4 on.
func inboxOf(s sequence, ids ...abs.ChannelID) *inbox {
	var chans []InChannel
	for i, id := range ids {
		chans = append(chans, InChannel{Channel: Channel{ID: id, Index: 4 + i}, Incarnation: s.inc})
	}
	return newInbox(s.gen, chans)
}

func open(abs.ChannelID) bool { return false }

// give delivers frames of the first channel, each [first, last], at stream places that go up.
func give(t checker, in *inbox, s sequence, runs ...[2]abs.Seq) {
	t.Helper()
	for i, r := range runs {
		if err := in.accept(Delivery{Channel: 4, Seq: uint64(i + 1), Frame: s.frame(r[0], r[1])}); err != nil {
			t.Fatalf("items %d–%d: %v", r[0], r[1], err)
		}
	}
}

func takeAll(t checker, in *inbox) []byte {
	t.Helper()
	var got []byte
	for c := in.pick(open); c != nil; c = in.pick(open) {
		_, payload := in.take(c, c.held[0].count)
		got = append(got, payload...)
	}
	mustEqual(t, "bytes held", in.bytes, 0)
	return got
}

func TestInboxTakesExactlyTheNextNumber(t *testing.T) {
	s := newSequence(12, 6)
	cases := []struct {
		name       string
		runs       [][2]abs.Seq
		duplicates uint64
		jumps      uint64
		upto       abs.Seq
	}{
		{"in order", [][2]abs.Seq{{1, 3}, {4, 5}, {6, 6}, {7, 12}}, 0, 0, 12},
		{"repeated whole", [][2]abs.Seq{{1, 3}, {1, 3}, {4, 5}}, 1, 0, 5},
		{"repeated older", [][2]abs.Seq{{1, 2}, {3, 5}, {1, 2}, {1, 1}}, 2, 0, 5},
		{"spanning", [][2]abs.Seq{{1, 3}, {2, 5}}, 0, 0, 5},
		{"spanning more than once", [][2]abs.Seq{{1, 1}, {1, 2}, {1, 4}, {1, 5}}, 0, 0, 5},
		{"repeated mark", [][2]abs.Seq{{1, 5}, {6, 6}, {6, 6}, {7, 8}}, 1, 0, 8},
		{"jump", [][2]abs.Seq{{1, 3}, {7, 9}, {6, 6}}, 0, 2, 3},
		{"jump, then again from there", [][2]abs.Seq{{1, 3}, {7, 9}, {4, 5}, {6, 6}, {7, 9}}, 0, 1, 9},
		{"first missing", [][2]abs.Seq{{2, 3}}, 0, 1, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := inboxOf(s, "a")
			give(t, in, s, c.runs...)
			mustEqual(t, "duplicates", in.duplicates, c.duplicates)
			mustEqual(t, "jumps", in.jumps, c.jumps)
			mustBytes(t, "taken", takeAll(t, in), s.bytes(1, c.upto))
			mustEqual(t, "next", in.chans[0].next, c.upto+1)
			mustEqual(t, "sum", in.chans[0].sum, s.sum(c.upto+1))
		})
	}
}

func TestInboxRefusesWhatIsNotItsOwn(t *testing.T) {
	s := newSequence(3)
	other := s
	other.gen++
	older := s
	older.inc--
	in := inboxOf(s, "a")
	for _, d := range []Delivery{
		{Channel: 4, Frame: other.frame(1, 3)}, {Channel: 4, Frame: older.frame(1, 3)}, {Channel: 9, Frame: s.frame(1, 3)},
	} {
		if err := in.accept(d); err != nil {
			t.Fatal(err)
		}
	}
	mustEqual(t, "stale", in.stale, 3)
	if c := in.pick(open); c != nil {
		t.Fatalf("took from %s", c.ID)
	}
	mustEqual(t, "places", len(in.chans[0].places), 0)
}

// TestInboxNamesADifference wants every way in which a second sending may differ to be found.
func TestInboxNamesADifference(t *testing.T) {
	s := newSequence(6)
	changed := func(n int) sequence {
		o := s
		o.items = slices.Clone(s.items)
		o.items[n-1].bytes = bytes.Clone(o.items[n-1].bytes)
		o.items[n-1].bytes[len(o.items[n-1].bytes)-1] ^= 1
		return o
	}
	cases := []struct {
		name   string
		had    abs.Seq
		other  sequence
		first  abs.Seq
		last   abs.Seq
		number abs.Seq // 0: no difference
	}{
		{"repeat of the last frame", 3, changed(2), 1, 3, 3},
		{"in what is trimmed", 3, changed(2), 1, 5, 3},
		{"before the frame", 3, changed(2), 4, 5, 3},
		{"in what is new", 3, changed(5), 1, 6, 0},
		{"none", 3, s, 2, 6, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := inboxOf(s, "plant.a>b")
			give(t, in, s, [2]abs.Seq{1, c.had})
			err := in.accept(Delivery{Channel: 4, Frame: c.other.frame(c.first, c.last)})
			if c.number == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var diff *DiffError
			if !errors.As(err, &diff) {
				t.Fatalf("got %v, want a DiffError", err)
			}
			mustEqual(t, "channel", diff.Channel, "plant.a>b")
			mustEqual(t, "number", diff.Number, c.number)
		})
	}
}

func TestInboxAsksForAGap(t *testing.T) {
	s := newSequence(20)
	jump := [2]abs.Seq{9, 10}
	cases := []struct {
		name string
		do   func(in *inbox)
		want bool
	}{
		{"live", func(in *inbox) { give(t, in, s, jump) }, true},
		{"live, with frames held: once they are used up", func(in *inbox) {
			give(t, in, s, [2]abs.Seq{1, 3}, jump)
			if in.chans[0].rewind {
				t.Error("asked while there was something to take")
			}
			in.take(in.chans[0], 3)
		}, true},
		{"reading", func(in *inbox) { in.restart(); give(t, in, s, jump) }, false},
		{"reading, read through", func(in *inbox) { in.restart(); give(t, in, s, jump); in.drained() }, true},
		{"reading, read through with frames held", func(in *inbox) {
			in.restart()
			give(t, in, s, [2]abs.Seq{1, 3}, jump)
			in.drained()
			if in.chans[0].rewind {
				t.Error("asked while there was something to take")
			}
			in.take(in.chans[0], 3)
		}, true},
		{"read through, nothing missing", func(in *inbox) {
			in.restart()
			give(t, in, s, [2]abs.Seq{1, 3}, jump, [2]abs.Seq{4, 8})
			in.drained()
			in.take(in.chans[0], 3)
			in.take(in.chans[0], 5)
		}, false},
		{"read through, empty", func(in *inbox) { in.restart(); in.drained() }, true},
		{"ended", func(in *inbox) { in.restart(); in.chans[0].ended = true; in.drained() }, false},
		{"dropped for want of memory", func(in *inbox) { in.chans[0].dropped = true; give(t, in, s, jump) }, false},
		{"dropped, read through", func(in *inbox) { in.restart(); in.chans[0].dropped = true; in.drained() }, false},
		{"refilled", func(in *inbox) { give(t, in, s, jump, [2]abs.Seq{1, 10}) }, false},
		{"set back", func(in *inbox) { give(t, in, s, jump); in.chans[0].seek(1, 0) }, false},
		{"damaged", func(in *inbox) {
			f := s.frame(1, 2)
			f[len(f)-1] ^= 1
			if err := in.accept(Delivery{Channel: 4, Frame: f}); err != nil {
				t.Fatal(err)
			}
		}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := inboxOf(s, "a")
			c.do(in)
			mustEqual(t, "rewind", in.chans[0].grant().Rewind, c.want)
		})
	}
}

// TestInboxAsksWhenNothingComesForLong is about a sender that was restarted while it repeated what a
// stream had lost: it believes the rest to be in the stream.
func TestInboxAsksWhenNothingComesForLong(t *testing.T) {
	s := newSequence(9)
	asksAfter := func(in *inbox) int {
		for n := range 5 * idleGrants {
			if in.chans[0].grant().Rewind {
				return n
			}
		}
		return -1
	}
	in := inboxOf(s, "a")
	mustEqual(t, "asks after", asksAfter(in), idleGrants)
	give(t, in, s, [2]abs.Seq{1, 3})
	mustEqual(t, "with something held", asksAfter(in), -1)
	in.take(in.chans[0], 2)
	mustEqual(t, "with something left", asksAfter(in), -1)
	in.take(in.chans[0], 1)
	mustEqual(t, "from the last that came", asksAfter(in), idleGrants)
	in.restart()
	mustEqual(t, "while reading", asksAfter(in), -1)
	in.reading = false
	in.chans[0].seek(4, s.sum(4))
	in.chans[0].dropped = true
	mustEqual(t, "with frames dropped", asksAfter(in), -1)
	in.chans[0].dropped, in.chans[0].ended = false, true
	mustEqual(t, "at the end", asksAfter(in), -1)
	in.chans[0].ended, in.bytes = false, heldEnough+1
	mustEqual(t, "while the task does not look at what comes", asksAfter(in), -1)
	in.chans[0].want = 1
	mustEqual(t, "while it waits for this channel alone", asksAfter(in) >= 0, true)
}

func TestInboxIgnoresADamagedFrameOfAnUnknownChannel(t *testing.T) {
	in := inboxOf(newSequence(1), "a")
	if err := in.accept(Delivery{Channel: 99, Frame: []byte("nothing")}); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "jumps", in.jumps, 1)
	mustEqual(t, "rewind", in.chans[0].rewind, false)
}

func TestInboxGrantTellsWhatWasConsumed(t *testing.T) {
	s := newSequence(9)
	in := inboxOf(s, "a")
	give(t, in, s, [2]abs.Seq{1, 9})
	in.take(in.chans[0], 4)
	want := Grant{Channel: 4, Incarnation: s.inc, Next: 5, Sum: s.sum(5), Window: grantWindow}
	mustEqual(t, "grant", in.chans[0].grant(), want)
}

func TestInboxPicksInOrderOfArrival(t *testing.T) {
	s := newSequence(4)
	in := inboxOf(s, "a", "b", "c")
	for i, ch := range []int{5, 4, 6, 5} {
		n := abs.Seq(1)
		if i == 3 {
			n = 2
		}
		if err := in.accept(Delivery{Channel: ch, Frame: s.frame(n, n)}); err != nil {
			t.Fatal(err)
		}
	}
	blocked := map[abs.ChannelID]bool{"a": true}
	var got []abs.ChannelID
	for {
		c := in.pick(func(id abs.ChannelID) bool { return blocked[id] })
		if c == nil {
			break
		}
		got = append(got, c.ID)
		in.take(c, 1)
	}
	if want := []abs.ChannelID{"b", "c", "b"}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	mustEqual(t, "left", in.pick(open).ID, "a")
}

// bigSequence has records of nearly 64 KiB, so that few make a budget.
func bigSequence(n int) sequence {
	s := newSequence(n)
	for i := range s.items {
		s.items[i].bytes = numbered(i+1, 60<<10)
	}
	return s
}

// fill makes the inbox hold about as much as its budget, of the channel of index 5.
func fill(t checker, in *inbox, s sequence) {
	t.Helper()
	for n := abs.Seq(1); ; n++ {
		f := s.frame(n, n)
		if in.bytes+len(f) > asideBudget {
			return
		}
		if err := in.accept(Delivery{Channel: 5, Frame: f}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInboxDropsBeyondItsBudgetAndReadsAgain(t *testing.T) {
	s := bigSequence(asideBudget/(60<<10) + 4)
	in := inboxOf(s, "needed", "aside")
	fill(t, in, s)
	full := in.bytes
	if err := in.accept(Delivery{Channel: 4, Frame: s.frame(1, 1)}); err != nil {
		t.Fatal(err)
	}
	c, aside := in.chans[0], in.chans[1]
	if len(c.held) != 1 || in.bytes <= full {
		t.Fatal("the frame that the task needs next was not taken")
	}
	for ch, n := range map[int]abs.Seq{4: 2, 5: aside.tail} {
		if err := in.accept(Delivery{Channel: ch, Frame: s.frame(n, n)}); err != nil {
			t.Fatal(err)
		}
	}
	if !c.dropped || !aside.dropped || len(c.held) != 1 {
		t.Fatal("frames beyond the budget were held")
	}
	mustEqual(t, "starved while it holds something", c.starved(), false)
	in.take(c, 1)
	mustEqual(t, "starved", c.starved(), true)
	mustEqual(t, "starved with frames at hand", aside.starved(), false)
	// Read again: it has what it had, and takes what is needed.
	c.dropped, in.reading = false, true
	give(t, in, s, [2]abs.Seq{1, 1}, [2]abs.Seq{2, 2})
	if got := len(c.held); got != 1 || c.starved() {
		t.Fatalf("%d frames held after reading again", got)
	}
}

// TestInboxReadsAgainWhatCameBeforeItsTurn: a sender that goes back sends first what it had made before, and then what
// comes before that. The stream has all of it then, and nobody need make it again.
func TestInboxReadsAgainWhatCameBeforeItsTurn(t *testing.T) {
	s := newSequence(9)
	in := inboxOf(s, "a")
	c := in.chans[0]
	in.restart()
	in.drained()
	give(t, in, s, [2]abs.Seq{5, 6}, [2]abs.Seq{7, 8}, [2]abs.Seq{1, 2}, [2]abs.Seq{3, 4})
	mustBytes(t, "taken", takeAll(t, in), s.bytes(1, 4))
	if !c.starved() || c.rewind {
		t.Fatalf("starved %v, rewind %v: the stream has what comes next", c.starved(), c.rewind)
	}
	in.restart()
	give(t, in, s, [2]abs.Seq{5, 6}, [2]abs.Seq{7, 8})
	mustBytes(t, "taken", takeAll(t, in), s.bytes(5, 8))
	if in.drained(); c.starved() || !c.rewind {
		t.Fatalf("starved %v, rewind %v: the stream has nothing that comes next", c.starved(), c.rewind)
	}
}

// TestInboxAsksForTheRestOfWhatReplayTakes: the sender has cut otherwise this time, and the stream lost the second part.
func TestInboxAsksForTheRestOfWhatReplayTakes(t *testing.T) {
	s := newSequence(9)
	in := inboxOf(s, "a")
	c := in.chans[0]
	in.restart()
	give(t, in, s, [2]abs.Seq{1, 2})
	in.drained()
	mustEqual(t, "asked while there is something to take", c.rewind, false)
	mustEqual(t, "has three", c.has(3), false)
	in.restart()
	give(t, in, s, [2]abs.Seq{1, 2})
	mustEqual(t, "has three", c.has(3), false)
	in.drained()
	mustEqual(t, "asked", c.rewind, true)
	mustEqual(t, "from", c.grant().Next, 1)
}

// TestInboxHoldsWhatReplayTakesAtOnce is about an entry whose items the sender has cut into more
// frames the second time, while other channels fill the memory.
func TestInboxHoldsWhatReplayTakesAtOnce(t *testing.T) {
	s := bigSequence(asideBudget/(60<<10) + 4)
	in := inboxOf(s, "needed", "aside")
	fill(t, in, s)
	c := in.chans[0]
	give(t, in, s, [2]abs.Seq{1, 1}, [2]abs.Seq{2, 2}, [2]abs.Seq{3, 3})
	if c.has(3) {
		t.Fatal("three frames were held beyond the budget without need")
	}
	mustEqual(t, "starved", c.starved(), true)
	c.dropped = false
	give(t, in, s, [2]abs.Seq{1, 1}, [2]abs.Seq{2, 2}, [2]abs.Seq{3, 3}, [2]abs.Seq{4, 4})
	if !c.has(3) {
		t.Fatal("what replay takes next was dropped again")
	}
	mustEqual(t, "tail", c.tail, 4)
	_, payload := in.take(c, 3)
	mustBytes(t, "taken", payload, s.bytes(1, 3))
	mustEqual(t, "starved again", c.starved(), true)
	c.dropped = false
	give(t, in, s, [2]abs.Seq{4, 4}, [2]abs.Seq{5, 5})
	mustEqual(t, "tail, when one frame is enough again", c.tail, 5)
}

func TestInboxPurgesWhatWasConsumedForGood(t *testing.T) {
	s := newSequence(12)
	in := inboxOf(s, "a")
	// 7–9 came too early at place 3 and again at place 5.
	give(t, in, s, [2]abs.Seq{1, 3}, [2]abs.Seq{4, 6}, [2]abs.Seq{8, 9}, [2]abs.Seq{7, 7}, [2]abs.Seq{8, 9}, [2]abs.Seq{10, 12})
	c := in.chans[0]
	for _, step := range []struct {
		upto abs.Seq
		seq  uint64
	}{{0, 0}, {2, 0}, {3, 1}, {3, 0}, {7, 2}, {8, 0}, {9, 5}, {11, 0}, {12, 6}, {99, 0}} {
		mustEqual(t, "purge", c.purgeable(step.upto), step.seq)
	}
}

func TestInboxRestartForgetsWhatIsHeldNotWhatWasTaken(t *testing.T) {
	s := newSequence(9)
	in := inboxOf(s, "a")
	give(t, in, s, [2]abs.Seq{1, 4}, [2]abs.Seq{5, 9})
	in.take(in.chans[0], 2)
	in.restart()
	c := in.chans[0]
	if c.next != 3 || c.tail != 3 || c.sum != s.sum(3) || len(c.places) != 0 || in.pick(open) != nil || in.bytes != 0 || !in.reading {
		t.Fatalf("after the restart: %+v, %d bytes", c, in.bytes)
	}
	give(t, in, s, [2]abs.Seq{1, 4}, [2]abs.Seq{5, 9})
	in.drained()
	mustBytes(t, "taken", takeAll(t, in), s.bytes(3, 9))
}

// TestInboxProperty gives frames cut anyhow, repeated, out of order and damaged, and takes anyhow;
// what is taken must be the sequence.
func TestInboxProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 30).Draw(t, "size")
		marks := rapid.SliceOfDistinct(rapid.IntRange(1, size), rapid.ID[int]).Draw(t, "marks")
		s := newSequence(size, marks...)
		in := inboxOf(s, "a")
		c := in.chans[0]
		var got []byte
		place := uint64(0)
		deliver := func(first, last abs.Seq, damage bool) {
			f := s.frame(first, last)
			if damage {
				f[rapid.IntRange(0, len(f)-1).Draw(t, "at")] ^= 1
			}
			place++
			if err := in.accept(Delivery{Channel: 4, Seq: place, Frame: f}); err != nil {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"deliver": func(t *rapid.T) {
				first := abs.Seq(rapid.IntRange(1, size).Draw(t, "first"))
				last := abs.Seq(rapid.IntRange(int(first), int(s.run(first, abs.Seq(size)))).Draw(t, "last"))
				deliver(first, last, rapid.IntRange(0, 9).Draw(t, "damage") == 0)
			},
			"deliver next": func(t *rapid.T) {
				if c.tail <= abs.Seq(size) {
					deliver(c.tail, s.run(c.tail, abs.Seq(size)), false)
				}
			},
			"take": func(t *rapid.T) {
				if in.pick(open) == nil {
					return
				}
				limit := c.tail - 1
				last := abs.Seq(rapid.IntRange(int(c.next), int(s.run(c.next, limit))).Draw(t, "upto"))
				kind := s.items[c.next-1].kind
				gotKind, payload := in.take(c, int(last-c.next+1))
				mustEqual(t, "kind", gotKind, kind)
				got = append(got, payload...)
			},
			"drained":    func(t *rapid.T) { in.drained() },
			"read again": func(t *rapid.T) { in.restart() },
			"": func(t *rapid.T) {
				mustBytes(t, "taken", got, s.bytes(1, c.next-1))
				mustEqual(t, "sum", c.sum, s.sum(c.next))
				mustEqual(t, "sum of what is held", c.tailSum, s.sum(c.tail))
				mustEqual(t, "bytes held", in.bytes, len(s.bytes(c.next, c.tail-1)))
				if c.rewind && (c.tail > c.next || in.reading) {
					t.Fatal("asked for numbers that may still come")
				}
			},
		})
	})
}

func TestInboxTakesAMarkAlone(t *testing.T) {
	s := newSequence(3, 2)
	in := inboxOf(s, "a")
	give(t, in, s, [2]abs.Seq{1, 1}, [2]abs.Seq{2, 2}, [2]abs.Seq{3, 3})
	in.take(in.chans[0], 1)
	kind, payload := in.take(in.chans[0], 1)
	mustEqual(t, "kind", kind, frame.Barrier)
	mustBytes(t, "mark", payload, s.bytes(2, 2))
	defer func() {
		if recover() == nil {
			t.Fatal("a run over what is not there did not panic")
		}
	}()
	in.take(in.chans[0], 2)
}
