package dataflow

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// memorySpool is a spool that lies in the task's own log, which passes over its entries.
type memorySpool struct {
	*memoryLog
	front abs.Position
}

func (s *memorySpool) Front() abs.Position { return s.front }

func (s *memorySpool) Truncate(upto abs.Position) error {
	s.front = max(s.front, upto)
	return nil
}

// spooled is a source with a sink whose channel has a spool. Its records are so large that a few dozen fill
// an output.
type spooled struct {
	*stepper
	made int
}

const spooledKey = 4 << 10

func newSpooled(t *testing.T) *spooled { return newSpooledWith(t, Bounds{}) }

func newSpooledWith(t *testing.T, b Bounds) *spooled {
	spec := sourceSpec(PolicyDeadLetter)
	spec.Edges[0].Channels[0].Spool = true
	d := newDevice(t, spec)
	d.bounds = b
	s := &spooled{stepper: d.open(d.log, &counters{})}
	s.settle()
	s.save() // what the generation begins with
	return s
}

func (s *spooled) again(powerCut bool) {
	s.log.restart(powerCut)
	s.stepper = s.device.open(s.log, &counters{})
}

// work receives n records and lets the task do what it can.
func (s *spooled) work(n int) {
	s.t.Helper()
	for range n {
		s.made++
		s.receive(rec(strings.Repeat("k", spooledKey)+fmt.Sprint(s.made), "x"))
	}
	s.settle()
}

// settle hands over what the sink is offered.
func (s *spooled) settle() {
	s.t.Helper()
	for was := -1; was != len(s.sink.items); {
		was = len(s.sink.items)
		s.stepper.settle()
		s.task.SinkEvents(0).Handed(s.sink.last)
		s.stepper.settle()
	}
}

func (s *spooled) ticks(n int) {
	for range n {
		s.task.Tick()
		s.settle()
	}
}

// sinkHas checks how many items the sink has been offered.
func (s *spooled) sinkHas(what string, n int) {
	s.t.Helper()
	mustEqual(s.t, what, len(s.sink.items), n)
}

func (s *spooled) out() *outlet { return s.task.outs[0] }

// sumAt is the running checksum after a number that a frame ends with.
func (s *spooled) sumAt(n uint64) frame.Sum {
	s.t.Helper()
	for _, b := range s.wire.frames {
		if h, _, err := frame.Decode(b); err == nil && h.Last() == n {
			return h.After
		}
	}
	s.t.Fatalf("no frame ends with number %d", n)
	return 0
}

// take lets the receiver take all in the order of numbers, a few frames at a time, and checks that it gets all.
func (s *spooled) take(from abs.Seq) {
	s.t.Helper()
	next := from
	for range 1000 {
		sum, got := frame.Sum(0), false
		for _, b := range s.wire.frames {
			h, _, err := frame.Decode(b)
			s.must(err)
			if h.First <= uint64(next) && uint64(next) <= h.Last() {
				next, sum, got = abs.Seq(h.Last())+1, h.After, true
			}
		}
		if !got {
			break
		}
		s.must(s.task.TakeGrant(s.t.Context(), Grant{Incarnation: 1, Next: next, Sum: sum, Window: grantWindow}))
		s.settle()
	}
	mustEqual(s.t, "the receiver's next number", int(next), s.made+1)
	items := s.wire.items(s.t)
	for i := from; i < next; i++ {
		if want := fmt.Sprintf("%s%d=1", strings.Repeat("k", spooledKey), i); items[uint64(i)] != want {
			s.t.Fatalf("number %d is %.20q, not %.20q", i, items[uint64(i)], want)
		}
	}
}

func TestSpoolLetsOtherOutputsGoOn(t *testing.T) {
	s := newSpooled(t)
	s.work(200)
	stalled := len(s.sink.got())
	if stalled >= 200 {
		t.Fatal("the output is never full")
	}
	s.ticks(spoolTicks)
	s.sinkHas("offered once it has overflowed", 200)
	for range 5 {
		s.work(200)
		s.sinkHas("offered", s.made)
		o := s.out()
		if n := o.under + o.unsent + o.tailBytes; n > grantWindow+unsentLimit+2*frame.TargetSize {
			t.Fatalf("%d bytes are in memory", n)
		}
	}
	s.ticks(1)
	if st := s.task.Status(); st.State != "running" {
		t.Errorf("the task is %s", st.State)
	}
	s.take(1)
	if s.out().spooling() {
		t.Error("all has been loaded, and it spools")
	}
	frames := s.log.kinds(EntrySpool)
	s.work(3)
	s.take(abs.Seq(s.made - 2))
	mustEqual(t, "entries of the spool after that", s.log.kinds(EntrySpool), frames)
}

func TestSpoolServesAReceiverThatHasLostItAgain(t *testing.T) {
	s := newSpooled(t)
	s.work(200)
	s.ticks(spoolTicks)
	s.sinkHas("offered", 200)
	s.take(1)
	s.wire.frames = nil
	for range 2 * lackTicks {
		s.must(s.task.TakeGrant(t.Context(), Grant{Incarnation: 1, Next: 1, Window: grantWindow, Rewind: true}))
		s.ticks(1)
	}
	s.take(1)
	mustEqual(t, "times that the task was restored for what its spool has", len(s.notes.recovery), 0)
}

func TestSpoolAfterARestart(t *testing.T) {
	for _, powerCut := range []bool{false, true} {
		s := newSpooled(t)
		s.work(200)
		s.ticks(spoolTicks)
		s.work(300)
		s.sinkHas("offered", 500)
		frames := s.log.kinds(EntrySpool)
		s.again(powerCut)
		s.settle()
		s.work(10)
		s.ticks(1)
		s.sinkHas("offered after the restart", 10) // the others had been handed over
		mustEqual(t, "what was there is not spooled again", s.log.kinds(EntrySpool), frames+10)
		s.take(1)
	}
}

func TestSpoolIsComparedWithWhatIsMadeAgain(t *testing.T) {
	s := newSpooled(t)
	s.work(200)
	s.ticks(spoolTicks)
	s.log.sync(1 << 40)
	s.log.restart(false)
	i := len(s.log.entries) - 1
	for s.log.entries[i].Kind != EntrySpool {
		i--
	}
	h, payload, cause, err := decodeSpooled(s.log.entries[i])
	s.must(err)
	payload = slices.Clone(payload)
	payload[len(payload)-1]++
	h.After = h.Before.Add(payload)
	s.log.entries[i].Data = append(spoolEntry(cause), frame.Append(nil, h, payload)...)
	s.stepper = s.device.open(s.log, &counters{})
	for err == nil {
		var stepped bool
		if stepped, err = s.task.Step(t.Context()); !stepped && err == nil {
			t.Fatal("no difference is found")
		}
	}
	if !strings.Contains(err.Error(), "the spool has something else") {
		t.Error(err)
	}
}

// TestSpoolWithoutRoom: a log that takes no more stops the task, and it goes on when there is room.
func TestSpoolWithoutRoom(t *testing.T) {
	s := newSpooled(t)
	s.work(150)
	s.log.full = true
	s.ticks(2 * spoolTicks)
	stalled := len(s.sink.got())
	s.sinkHas("offered without room", stalled)
	if st := s.task.Status(); st.State != "stalled" {
		t.Errorf("the task is %s", st.State)
	}
	s.log.full = false
	s.work(100)
	s.sinkHas("offered when there is room", 250)
	s.take(1)
}

// TestSpoolIsGivenUp: what a counting checkpoint contains goes, in strides, and at last all.
func TestSpoolIsGivenUp(t *testing.T) {
	s := newSpooled(t)
	s.work(200)
	s.ticks(spoolTicks)
	s.work(300)
	log := s.out().spool.log.(*memorySpool)
	id := s.spec.Edges[0].Channels[0].ID
	s.task.Truncated(0, map[abs.ChannelID]abs.Seq{id: 250})
	s.settle()
	half := log.front
	if sp := &s.out().spool; half == 0 || sp.first > 251 || sp.first < 150 || sp.cursor != 251 {
		t.Errorf("given up to %d, holds %d to %d, reads %d", half, sp.first, sp.last, sp.cursor)
	}
	s.task.Truncated(0, map[abs.ChannelID]abs.Seq{id: 500})
	s.settle()
	if sp := &s.out().spool; log.front <= half || sp.last != 0 || s.out().spooling() {
		t.Errorf("given up to %d, holds %d to %d", log.front, sp.first, sp.last)
	}
}

// TestSnapshotAlone: without checkpoints a task takes snapshots of its own, and a restart replays from there.
func TestSnapshotAlone(t *testing.T) {
	s := newSpooledWith(t, Bounds{Alone: 100 << 10, AloneTicks: 3})
	s.work(10)
	s.ticks(3)
	mustEqual(t, "snapshots after little", len(s.saves), 0)
	s.work(40)
	s.ticks(2)
	s.save()
	p := s.store.parts[len(s.store.parts)-1]
	if !p.Local || p.Pos == 0 {
		t.Fatalf("the snapshot is %+v", p)
	}
	s.work(7)
	s.again(false)
	s.settle()
	s.ticks(1)
	behind := 0
	for _, e := range s.log.entries {
		if e.Kind == EntryIngest && e.Pos > p.Pos {
			behind++
		}
	}
	if r := s.task.Status().Recovery; r == nil || r.Replayed != uint64(behind) || behind >= 50 || r.Version != p.Version {
		t.Errorf("restored by %+v, with %d entries behind the snapshot", r, behind)
	}
	mustEqual(t, "items offered after the restart", len(s.sink.items), 0)
	s.work(1)
	s.sinkHas("offered then", 1)
}

// TestRewindGoesForward: a receiver has lost what it had before the link went down. The task makes that again
// and does not replay what its spool has.
func TestRewindGoesForward(t *testing.T) {
	s := newSpooledWith(t, Bounds{Alone: 100 << 10, AloneTicks: 3})
	s.work(20)
	s.take(1)
	s.work(200)
	s.ticks(spoolTicks)
	s.work(100)
	s.ticks(3)
	for len(s.saves) > 0 {
		s.save()
	}
	for range 2 * lackTicks {
		s.must(s.task.TakeGrant(t.Context(), Grant{Incarnation: 1, Next: 1, Window: grantWindow, Rewind: true}))
		s.task.Tick()
	}
	for range 30 {
		s.step()
	}
	s.must(s.task.TakeGrant(t.Context(), Grant{Incarnation: 1, Next: 21, Sum: s.sumAt(20), Window: grantWindow}))
	s.settle()
	var levels []string
	for _, r := range s.notes.recovery {
		levels = append(levels, r.Level)
	}
	mustEqual(t, "recoveries", fmt.Sprint(levels), "[rewind forward]")
	s.take(21)
	s.sinkHas("offered once each", s.made)
}

// TestSpoolGivesWholeRuns: a receiver that replays takes in one go what was one frame to it before. It gets that
// from the spool, in whatever frames, although it takes nothing until it has it all.
func TestSpoolGivesWholeRuns(t *testing.T) {
	const run = frame.TargetSize / (2 * spooledKey) // records with their keys: a frame has no more
	s := newSpooledWith(t, Bounds{Frames: 1, Unsent: 1})
	s.work(100)
	sum := func(n uint64) (sum frame.Sum) {
		for f, err := range s.spooledFrames() {
			if s.must(err); f.Last() == n {
				sum = f.After
			}
		}
		return sum
	}
	from := len(s.wire.frames)
	s.ticks(spoolTicks)
	asks := func(next uint64, window int, rewind bool) (got uint64) {
		t.Helper()
		g := Grant{Incarnation: 1, Next: abs.Seq(next), Sum: sum(next - 1), Window: window, Rewind: rewind}
		for range 3 * spoolTicks {
			s.must(s.task.TakeGrant(t.Context(), g))
			s.ticks(1)
			g.Rewind = false
		}
		for slices.ContainsFunc(s.wire.frames[from:], func(b []byte) bool {
			h, _, err := frame.Decode(b)
			return err == nil && h.First <= next+got && next+got <= h.Last()
		}) {
			got++
		}
		from = len(s.wire.frames)
		return got
	}
	if n := asks(4, grantWindow, false); n < run || n > 3*run {
		t.Errorf("a receiver that takes none gets %d items, a frame had up to %d", n, run)
	}
	asks(8, grantWindow, false)
	if n := asks(3, 1, true); n < run {
		t.Errorf("without credit it gets %d items again, a frame had up to %d", n, run)
	}
}

// spooledFrames reads what the spool holds.
func (s *spooled) spooledFrames() iter.Seq2[frame.Header, error] {
	return func(yield func(frame.Header, error) bool) {
		for _, e := range s.log.entries {
			if e.Kind != EntrySpool {
				continue
			}
			if h, _, _, err := decodeSpooled(e); !yield(h, err) {
				return
			}
		}
	}
}
