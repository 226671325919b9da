package dataflow

import (
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// ender is a streamed task with two inputs, whose inputs end.
type ender struct {
	t     *testing.T
	log   *memoryLog
	store *partStore
	wire  *wire
	notes *notes
	task  *Task
	gen   abs.Generation
	mode  abs.Mode
	halt  bool
	next  [2]uint64
	sums  [2]frame.Sum
}

func newEnder(t *testing.T) *ender {
	return &ender{t: t, log: &memoryLog{}, store: &partStore{saved: map[Version][]Change{}}, gen: 1, next: [2]uint64{1, 1}}
}

// open starts the task anew; all that it is to get again must be brought again.
func (e *ender) open(base *PartInfo) {
	e.t.Helper()
	e.log.restart(false)
	e.wire, e.notes = &wire{}, &notes{}
	spec := TaskSpec{
		Job: "job", Generation: e.gen, ID: "m", Agent: "hub", Mode: e.mode, Halt: e.halt,
		Inputs: []InChannel{
			{Channel: Channel{ID: "a>m", Index: 0}, Agent: "left", Incarnation: 1, To: Target{Kind: ToOp}},
			{Channel: Channel{ID: "b>m", Index: 1}, Agent: "right", Incarnation: 1, To: Target{Kind: ToOp}},
		},
		Ops:   []OpSpec{{Operator: OperatorSpec{Name: "count", Outputs: []string{"out"}, Inputs: []string{"in"}}, Outputs: [][]Target{{{Kind: ToEdge}}}}},
		Edges: []EdgeSpec{{Channels: []OutChannel{{Channel: Channel{ID: "m>k", Index: 2}, To: "k", Incarnation: 1}}}},
	}
	e.task = NewTask(spec, Env{
		Log: e.log, Store: e.store, Operators: &counters{}, Input: &grantBook{last: map[int]Grant{}}, Output: e.wire, Observer: e.notes,
		Base: base, Floor: abs.Epoch(100 * (e.gen - 1)),
		Save:  func(info PartInfo, changes []Change, done func(error)) { done(e.store.Save(info, changes)) },
		Clock: func() int64 { return 5 }, Stopwatch: func() time.Duration { return 0 },
	})
	e.must(e.task.Open(e.t.Context()))
	e.must(e.task.TakeGrant(e.t.Context(), Grant{Channel: 2, Incarnation: 1, Next: 1, Window: grantWindow}))
	e.work()
}

func (e *ender) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *ender) work() {
	e.t.Helper()
	for busy := true; busy; {
		var err error
		busy, err = e.task.Step(e.t.Context())
		e.must(err)
		busy = e.log.sync(1<<40) || busy
		e.must(e.task.HandOver())
		e.task.Settle()
	}
}

// bring delivers the next item of a channel.
func (e *ender) bring(channel int, kind frame.Kind, item []byte) {
	e.t.Helper()
	h := frame.Header{Kind: kind, Generation: uint32(e.gen), Incarnation: 1, Count: 1, First: e.next[channel], Before: e.sums[channel], After: e.sums[channel].Add(item)}
	e.next[channel], e.sums[channel] = h.Last()+1, h.After
	e.must(e.task.Deliver(Delivery{Channel: channel, Seq: h.First, Frame: frame.Append(nil, h, item)}))
	e.work()
}

func (e *ender) record(channel int, key string) {
	e.bring(channel, frame.Data, frame.AppendRecord(nil, frame.Record{Key: []byte(key)}))
}

func (e *ender) mark(channel int, kind frame.Kind, value uint64) {
	e.bring(channel, kind, frame.AppendMark(nil, frame.Mark{Kind: kind, Value: value}))
}

func (e *ender) started(epoch abs.Epoch) {
	e.task.Record(abs.EpochRecord{Epoch: epoch, Generation: e.gen, State: abs.Started})
	e.task.Settle()
	e.work()
}

func (e *ender) sent(n uint64) string { return e.wire.items(e.t)[n] }

func (e *ender) newest() *PartInfo { return &e.store.parts[len(e.store.parts)-1] }

// TestTaskEndCompletesAnAlignment: the part that an end completes is frozen before the end is passed on;
// a task restored from it passes it on all the same.
func TestTaskEndCompletesAnAlignment(t *testing.T) {
	e := newEnder(t)
	e.open(nil)
	e.record(0, "a")
	e.mark(0, frame.Barrier, 1)
	e.mark(1, frame.End, 0)
	mustEqual(t, "epoch of the part", e.newest().Epoch, 1)
	mustEqual(t, "sent", e.sent(1)+" "+e.sent(2)+" "+e.sent(3), "a=1 barrier ")
	e.mark(0, frame.End, 0)
	mustEqual(t, "sent", e.sent(3), "end")

	e = newEnder(t)
	e.open(nil)
	e.mark(0, frame.End, 0)
	e.started(1)
	e.record(1, "b")
	e.mark(1, frame.End, 0)
	mustEqual(t, "epoch of the part", e.newest().Epoch, 1)
	mustEqual(t, "sent", e.sent(1)+" "+e.sent(2)+" "+e.sent(3), "b=1 barrier end")
	e.open(nil)
	mustEqual(t, "restored from", e.notes.recovery[0].Epoch, 1)
	mustEqual(t, "sent after the restart", e.sent(3), "end")
	e.started(2)
	mustEqual(t, "epoch of the next part", e.newest().Epoch, 2)
	mustEqual(t, "sent after the end", e.sent(4), "")
}

// TestTaskKnowsInTheNextGenerationWhatHasEnded: nobody sends a barrier there.
func TestTaskKnowsInTheNextGenerationWhatHasEnded(t *testing.T) {
	e := newEnder(t)
	e.open(nil)
	e.mark(1, frame.End, 0)
	e.mark(0, frame.Barrier, 1)
	mustEqual(t, "epoch of the part", e.newest().Epoch, 1)
	e.gen = 2
	e.open(e.newest())
	e.started(101)
	e.mark(0, frame.Barrier, 101)
	mustEqual(t, "epoch of the part", e.newest().Epoch, 101)
}
