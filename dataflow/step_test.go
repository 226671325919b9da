package dataflow

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// stepper drives a task of a device by hand, in one goroutine, and makes its parts durable when told.
type stepper struct {
	*device
	task   *Task
	ingest *IngestLog
	ops    *counters
	sink   *basket
	wire   *wire
	notes  *notes
	saves  []func(store bool)
}

func (d *device) open(log Log, ops *counters) *stepper {
	s := &stepper{device: d, ops: ops, sink: &basket{}, notes: &notes{}, wire: &wire{}}
	clock := func() int64 { return d.now }
	s.ingest = NewIngestLog(d.spec.Name(), log, d.dead, clock)
	s.task = NewTask(d.spec, Env{
		Log: log, Store: d.store, Operators: s.ops, Output: s.wire, Sinks: []Sink{s.sink}, Dead: d.dead, Observer: s.notes,
		Save: func(info PartInfo, changes []Change, done func(error)) {
			s.saves = append(s.saves, func(store bool) {
				if store {
					done(d.store.Save(info, changes))
				}
			})
		},
		Clock: clock, Stopwatch: func() time.Duration { return 0 },
		Bounds: d.bounds,
		Spool: func(_ Channel, create bool) (Spool, error) {
			if d.spool == nil && create {
				d.spool = &memorySpool{memoryLog: d.log}
			}
			if d.spool == nil {
				return nil, nil
			}
			return d.spool, nil
		},
	})
	s.must(s.task.Open(d.t.Context()))
	s.must(s.task.TakeGrant(d.t.Context(), Grant{Incarnation: 1, Next: 1, Window: grantWindow}))
	return s
}

func (s *stepper) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stepper) receive(records ...frame.Record) {
	s.t.Helper()
	var b IngestBatch
	for _, r := range records {
		b.Payload = frame.AppendRecord(b.Payload, r)
		b.Count++
	}
	s.must(s.ingest.Append(b, func() {}))
}

func rec(key, value string) frame.Record { return frame.Record{Key: []byte(key), Value: []byte(value)} }

// step lets the task take one step.
func (s *stepper) step() bool {
	s.t.Helper()
	s.task.Settle()
	s.must(s.task.HandOver())
	stepped, err := s.task.Step(s.t.Context())
	s.must(err)
	return stepped
}

// settle makes the log durable and lets the task do all it can.
func (s *stepper) settle() {
	s.t.Helper()
	for again := true; again; {
		for s.step() {
		}
		again = s.log.sync(1 << 40)
		s.task.Settle()
		s.must(s.task.HandOver())
	}
}

// save ends the oldest save under way.
func (s *stepper) save() {
	s.t.Helper()
	if len(s.saves) == 0 {
		s.t.Fatal("no part is being saved")
	}
	s.saves[0](true)
	s.saves = s.saves[1:]
	s.task.Settle()
}

// TestTaskGivesNothingUpThatItHasProcessed: in replay a failure may be the host's; what was processed
// once, and handed over, is not given up.
func TestTaskGivesNothingUpThatItHasProcessed(t *testing.T) {
	d := newDevice(t, sourceSpec(PolicyDeadLetter))
	s := d.open(d.log, &counters{})
	s.settle()
	s.save()
	s.receive(rec("a", "slow"), rec("b", "bad"))
	s.settle()
	mustEqual(t, "sink", s.sink.got()[0], "1 a=1")
	mustEqual(t, "given up", d.log.kinds(EntryGiveUp), 1)
	mustEqual(t, "kept for replay", len(s.task.giveUps), 1)
	at := slices.Collect(maps.Keys(s.task.giveUps))[0]
	s.task.Truncated(at-1, nil)
	s.settle()
	mustEqual(t, "kept while the entry is", len(s.task.giveUps), 1)

	d.log.restart(true)
	s = d.open(d.log, &counters{slow: 1})
	s.settle()
	mustEqual(t, "instances: the first one failed", s.ops.made, 2)
	mustEqual(t, "given up", d.log.kinds(EntryGiveUp), 1)
	mustEqual(t, "sink", s.sink.got()[0], "1 a=1")
	mustEqual(t, "dead letters", len(d.dead.recs), 1)

	s.task.Truncated(at, nil)
	s.settle()
	mustEqual(t, "kept when the entry is given up", len(s.task.giveUps), 0)
}

// TestTaskReplayIsOvertaken: a part that becomes durable while the task replays towards it takes the
// place of the rest.
func TestTaskReplayIsOvertaken(t *testing.T) {
	d := newDevice(t, sourceSpec(PolicySkip))
	s := d.open(d.log, &counters{})
	s.settle()
	s.save()
	s.receive(rec("a", ""))
	s.receive(rec("b", ""))
	s.must(s.ingest.Barrier(1, false))
	s.settle() // the part of epoch 1 is on its way
	s.receive(rec("c", "bad"))
	s.step() // fails: back to the part of epoch 0
	mustEqual(t, "restored from", s.notes.recovery[0].Epoch, 0)
	s.step()
	s.save()
	s.settle()
	again := s.notes.recovery[1]
	mustEqual(t, "restored again", again.Epoch, 1)
	mustEqual(t, "for that reason", strings.HasSuffix(again.Reason, "a part further on has become durable"), true)
	s.receive(rec("a", ""), rec("b", ""))
	s.settle()
	got := s.sink.got()
	mustEqual(t, "last item", got[len(got)-1], "4 b=2")
}

// TestTaskSaysWhetherItHasChanged: from a barrier to the first thing that changes the task.
func TestTaskSaysWhetherItHasChanged(t *testing.T) {
	d := newDevice(t, sourceSpec(PolicySkip))
	s := d.open(d.log, &counters{})
	s.settle()
	s.save()
	barrier := func(e abs.Epoch) {
		s.must(s.ingest.Barrier(e, false))
		s.settle()
		s.save()
		s.task.Tick()
		mustEqual(t, "resting, with output under way", s.task.Resting(), false)
	}
	mustEqual(t, "quiet since the initial part", s.task.Quiet(), 0)
	barrier(1)
	mustEqual(t, "quiet since", s.task.Quiet(), 1)
	barrier(2)
	mustEqual(t, "quiet since", s.task.Quiet(), 2)
	mustEqual(t, "stirred", len(s.notes.stirred), 0)

	s.receive(rec("a", ""), rec("b", ""))
	s.settle()
	mustEqual(t, "quiet after a batch", s.task.Quiet(), 0)
	mustEqual(t, "stirred by it", len(s.notes.stirred), 1)
	barrier(3)
	mustEqual(t, "quiet at the first barrier after it", s.task.Quiet(), 0)
	barrier(4)
	mustEqual(t, "quiet since", s.task.Quiet(), 4)

	s.task.SinkEvents(0).Handed(1) // what is left for the sink is part of the state
	s.settle()
	mustEqual(t, "quiet after a confirmation", s.task.Quiet(), 0)
	mustEqual(t, "stirred by it", len(s.notes.stirred), 2)
	barrier(5)
	barrier(6)

	s.task.SinkEvents(0).Handed(2)
	s.settle()
	barrier(7)
	barrier(8)
	h, _, err := frame.Decode(s.wire.frames[len(s.wire.frames)-1])
	s.must(err)
	s.must(s.task.TakeGrant(t.Context(), Grant{Incarnation: 1, Next: abs.Seq(h.First) + abs.Seq(h.Count), Sum: h.After, Window: grantWindow}))
	s.task.Tick()
	mustEqual(t, "resting", s.task.Resting(), true)
	s.receive(rec("a", ""))
	s.settle()
	mustEqual(t, "resting after a batch", s.task.Resting(), false)

	d.log.restart(true) // the log may hold more than the part
	s = d.open(d.log, &counters{})
	s.settle()
	mustEqual(t, "quiet after a restart", s.task.Quiet(), 0)
	barrier(9)
	mustEqual(t, "quiet at the first barrier after it", s.task.Quiet(), 0)
	barrier(10)
	mustEqual(t, "quiet since", s.task.Quiet(), 10)
}

// cutLog is a log whose front can be given up.
type cutLog struct {
	*memoryLog
	front abs.Position
}

var errGivenUp = errors.New("entries were given up")

func (l *cutLog) Follow(from abs.Position) (Follower, error) {
	f, err := l.memoryLog.Follow(from)
	return &cutFollower{f.(*memoryFollower), l}, err
}

type cutFollower struct {
	*memoryFollower
	of *cutLog
}

func (f *cutFollower) Next() (Entry, bool, error) {
	if f.after < f.of.front {
		return Entry{}, false, errGivenUp
	}
	return f.memoryFollower.Next()
}

// TestTaskWhoseLogIsGivenUp: a checkpoint counts while the task replays what lies before it, to serve a
// receiver. It goes on from its part of that checkpoint.
func TestTaskWhoseLogIsGivenUp(t *testing.T) {
	d := newDevice(t, sourceSpec(PolicySkip))
	log := &cutLog{memoryLog: d.log}
	s := d.open(log, &counters{})
	s.settle()
	s.save()
	s.receive(rec("a", ""))
	s.receive(rec("b", ""))
	s.must(s.ingest.Barrier(1, false))
	s.settle()
	s.save()
	last := d.log.Last()
	s.receive(rec("c", ""))
	s.settle()
	s.must(s.task.TakeGrant(t.Context(), Grant{Incarnation: 1, Next: 4, Sum: sumBefore(s, 4), Window: grantWindow}))
	for range lackTicks + 1 {
		s.must(s.task.TakeGrant(t.Context(), Grant{Incarnation: 1, Next: 1, Rewind: true}))
		s.task.Tick()
	}
	mustEqual(t, "rewound to", s.notes.recovery[0].Epoch, 0)
	s.step()
	log.front = last
	s.settle()
	mustEqual(t, "went on from", s.notes.recovery[1].Epoch, 1)
	got := s.sink.got()
	mustEqual(t, "last item", got[len(got)-1], "3 c=1")

	log.front = log.Last() + 1 // without a part that is further on it is an error
	if _, err := s.task.Step(t.Context()); !errors.Is(err, errGivenUp) {
		t.Errorf("got %v", err)
	}
}

// sumBefore is the running checksum before a number, of what was sent.
func sumBefore(s *stepper, n abs.Seq) frame.Sum {
	for _, b := range s.wire.frames {
		if h, _, err := frame.Decode(b); err == nil && abs.Seq(h.First) == n {
			return h.Before
		}
	}
	s.t.Fatalf("no frame begins with number %d", n)
	return 0
}

// TestTaskReportsPartsOfAnEarlierLife: what became durable as the last life ended was not reported.
func TestTaskReportsPartsOfAnEarlierLife(t *testing.T) {
	d := newDevice(t, sourceSpec(PolicySkip))
	s := d.open(d.log, &counters{})
	s.settle()
	s.saves[0](true) // and nobody hears of it
	mustEqual(t, "reported", len(s.notes.durable), 0)

	s = d.open(d.log, &counters{})
	mustEqual(t, "reported", len(s.notes.durable), 1)
	mustEqual(t, "parts", len(d.store.parts), 1)
}

// TestTaskSavesBehindAnEarlierLife: the last life's part reaches the disk after the task has looked
// which versions there are.
func TestTaskSavesBehindAnEarlierLife(t *testing.T) {
	d := newDevice(t, sourceSpec(PolicySkip))
	s := d.open(d.log, &counters{})
	s.settle()
	s.save()
	s.receive(rec("a", ""))
	s.must(s.ingest.Barrier(1, false))
	s.settle()
	late := s.saves[0]

	s = d.open(d.log, &counters{})
	s.settle()
	late(true)
	mustEqual(t, "parts", len(d.store.parts), 2)
	s.save() // fails
	mustEqual(t, "parts", len(d.store.parts), 2)
	for range retryTicks {
		s.task.Tick()
	}
	s.settle()
	s.save()
	mustEqual(t, "parts", len(d.store.parts), 3)
	mustEqual(t, "reported", s.notes.durable[len(s.notes.durable)-1], 1)
}

// TestAlignmentBeginsWithItsEpoch: the time of an alignment is from what opens its epoch, whether that is a barrier or an
// entry of the log, to its freeze.
func TestAlignmentBeginsWithItsEpoch(t *testing.T) {
	aligner, err := abs.RestoreAligner([]abs.Input{{ID: "a>t"}, {ID: "b>t"}}, abs.ExactlyOnce, abs.State{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	task := &Task{env: Env{Stopwatch: func() time.Duration { return now }}, aligner: aligner}
	for _, step := range []struct {
		at, began time.Duration
		ev        abs.Event
		freeze    abs.Epoch
	}{
		{10, 10, abs.Event{Kind: abs.OnBarrier, Epoch: 1, Channel: "a>t"}, 0},
		{20, 10, abs.Event{Kind: abs.OnBarrier, Epoch: 1, Channel: "b>t"}, 1},
		{30, 30, abs.Event{Kind: abs.OnBarrier, Epoch: 2, Channel: "b>t"}, 0},
		{40, 40, abs.Event{Kind: abs.OnBarrier, Epoch: 3, Channel: "a>t"}, 0}, // the newer one
		{50, 40, abs.Event{Kind: abs.OnBarrier, Epoch: 3, Channel: "b>t"}, 3},
		{60, 60, abs.Event{Kind: abs.OnBarrier, Epoch: 4, Channel: "a>t"}, 0},
		{70, 60, abs.Event{Kind: abs.OnEnd, Channel: "b>t"}, 4},
		{80, 80, abs.Event{Kind: abs.OnBarrier, Epoch: 5, Channel: "a>t"}, 5}, // at once
	} {
		now = step.at
		fx := task.align(step.ev)
		if fx.Freeze != step.freeze || task.alignStart != step.began {
			t.Errorf("%+v: freezes epoch %d, aligned since %d", step, fx.Freeze, task.alignStart)
		}
	}
}
