package dataflow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// loopHead is the head of a loop: it has a forward channel 0, a back edge 1, and sends on channel 2. It
// is driven by hand. The device outlives it.
type loopHead struct {
	t       *testing.T
	log     *memoryLog
	store   *partStore
	wire    *wire
	notes   *notes
	in      *grantBook
	task    *Task
	forward sequence
	back    sequence
	gen     abs.Generation
}

// grantBook is an input stream that brings nothing by itself.
type grantBook struct {
	last    map[int]Grant
	rereads int
}

func (g *grantBook) Deliveries() <-chan Delivery { return nil }
func (g *grantBook) Reread()                     { g.rereads++ }
func (g *grantBook) Grant(gr Grant)              { g.last[gr.Channel] = gr }
func (g *grantBook) Asked() <-chan struct{}      { return nil }
func (g *grantBook) Close()                      {}

func (g *grantBook) Purge(context.Context, int, uint64) error {
	return errors.New("the task purges nothing")
}

// newLoopHead opens a head whose channels carry records with barriers at the given numbers.
func newLoopHead(t *testing.T, forward, back []int) *loopHead {
	h := &loopHead{
		t: t, log: &memoryLog{}, store: &partStore{saved: map[Version][]Change{}}, wire: &wire{grants: make(chan Grant, 8)},
		notes: &notes{}, forward: newSequence(20, forward...), back: newSequence(20, back...), gen: 3,
	}
	h.open(nil)
	return h
}

func (h *loopHead) open(base *PartInfo) {
	h.t.Helper()
	h.log.restart(false)
	h.in = &grantBook{last: map[int]Grant{}}
	h.wire.grants = make(chan Grant, 8)
	spec := TaskSpec{
		Job: "job", Generation: h.gen, ID: "h", Agent: "hub",
		Inputs: []InChannel{
			{Channel: Channel{ID: "s>h", Index: 0}, Agent: "gate", Incarnation: 2, To: Target{Kind: ToOp}},
			{Channel: Channel{ID: "b>h", Index: 1}, Agent: "far", Incarnation: 2, Back: true, Loop: true, To: Target{Kind: ToOp}},
		},
		Ops:   []OpSpec{{Operator: OperatorSpec{Name: "count", Outputs: []string{"out"}, Inputs: []string{"in"}}, Outputs: [][]Target{{{Kind: ToEdge}}}}},
		Edges: []EdgeSpec{{Channels: []OutChannel{{Channel: Channel{ID: "h>b", Index: 2}, To: "b", Incarnation: 2}}}},
	}
	h.task = NewTask(spec, Env{
		Log: h.log, Store: h.store, Operators: &counters{}, Input: h.in, Output: h.wire, Observer: h.notes, Base: base, Floor: 100 * abs.Epoch(h.gen-3),
		Save:  func(info PartInfo, changes []Change, done func(error)) { done(h.store.Save(info, changes)) },
		Clock: func() int64 { return 5 }, Stopwatch: func() time.Duration { return 0 },
	})
	if err := h.task.Open(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	h.must(h.task.TakeGrant(h.t.Context(), Grant{Channel: 2, Incarnation: 2, Next: 1, Window: 1 << 20}))
	h.work()
}

func (h *loopHead) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// work lets the task do all that it can, with everything synced.
func (h *loopHead) work() {
	h.t.Helper()
	for busy := true; busy; {
		var err error
		busy, err = h.task.Step(h.t.Context())
		h.must(err)
		h.log.sync(1 << 40)
		h.task.HandOver()
		h.task.Settle()
		h.task.HandOver()
	}
}

// bring delivers items of a channel and lets the task work.
func (h *loopHead) bring(channel int, first, last abs.Seq) {
	h.t.Helper()
	s := []*sequence{&h.forward, &h.back}[channel]
	s.gen = h.gen
	for n := first; n <= last; n++ {
		end := s.run(n, last)
		h.must(h.task.Deliver(Delivery{Channel: channel, Seq: uint64(n), Frame: s.frame(n, end)}))
		n = end
	}
	h.work()
}

func (h *loopHead) record(r abs.EpochRecord) {
	h.t.Helper()
	h.task.Record(r)
	h.task.Settle()
	h.work()
}

// sent lists what was sent to the body, which is the same whenever it is sent.
func (h *loopHead) sent() string {
	h.t.Helper()
	items := h.wire.items(h.t)
	var out []string
	for n := uint64(1); n <= uint64(len(items)); n++ {
		out = append(out, items[n])
	}
	return strings.Join(out, " ")
}

// logged describes the loop log of the newest part.
func (h *loopHead) logged() string {
	h.t.Helper()
	var out []string
	v := h.store.parts[len(h.store.parts)-1].Version
	h.must(h.store.Load("job/h", v, func(c Change) error {
		if c.Space == SpaceLoop {
			it, err := decodeLoopItem(c.Value)
			h.must(err)
			out = append(out, fmt.Sprintf("%s %s %d+%d", it.channel, it.kind, it.first, it.count))
		}
		return nil
	}))
	return strings.Join(out, ", ")
}

func (h *loopHead) wantDurable(epochs ...abs.Epoch) {
	h.t.Helper()
	if !slices.Equal(h.notes.durable, epochs) {
		h.t.Fatalf("durable are the parts of %v, not of %v", h.notes.durable, epochs)
	}
}

func TestLoopHeadLogsUntilTheBarrierComesRound(t *testing.T) {
	h := newLoopHead(t, []int{3, 6}, []int{4, 6})
	h.bring(1, 1, 1)
	h.bring(0, 1, 4)
	h.wantDurable(0)
	h.bring(1, 2, 3)
	h.wantDurable(0)
	h.bring(1, 4, 4)
	h.wantDurable(0, 1)
	mustEqual(t, "loop log", h.logged(), "b>h data 2+2, b>h barrier 4+1")
	rep, err := ReportOf(h.store.parts[1])
	h.must(err)
	mustEqual(t, "consumed at the cut", rep.Cut.Consumed["b>h"], abs.Seq(1))
	mustEqual(t, "logged", rep.Cut.Logged["b>h"], abs.Seq(4))
	mustEqual(t, "sent", h.sent(), "k1=1 k1=2 k2=1 barrier k4=1 k2=2 k3=1")

	h.bring(1, 5, 5)
	h.bring(0, 5, 6)
	h.bring(1, 6, 6)
	h.wantDurable(0, 1, 2)
	mustEqual(t, "loop log of the next part", h.logged(), "b>h barrier 6+1")
}

func TestLoopHeadRestartsWithoutItsStreamAndItsSender(t *testing.T) {
	h := newLoopHead(t, []int{3}, []int{4})
	h.bring(1, 1, 1)
	h.bring(0, 1, 3)
	h.bring(1, 2, 4)
	h.wantDurable(0, 1)
	before := h.sent()

	h.open(nil)
	h.must(h.task.Deliver(Delivery{Drained: true}))
	h.work()
	mustEqual(t, "sent again", h.sent(), before)
	h.task.sendGrants(true)
	if g := h.in.last[1]; g.Next != 5 || !g.Rewind || g.Sum != h.back.sum(5) {
		t.Fatalf("grant on the back edge after the loop log: %+v", g)
	}

	h.open(nil)
	h.must(h.task.Deliver(Delivery{Reset: true})) // the stream was lost once more, on the way
	h.must(h.task.Deliver(Delivery{Drained: true}))
	h.bring(1, 3, 6) // the sender has cut elsewhere, and what the head has is dropped
	if c := h.task.inbox.byIndex[1]; c.next != 7 || len(c.loop) != 0 {
		t.Fatalf("next is %d, %d items of the loop log are left", c.next, len(c.loop))
	}
	if got := h.sent(); !strings.HasPrefix(got, before) || len(got) == len(before) {
		t.Fatalf("sent %q after %q", got, before)
	}
}

// TestLoopHeadRefillsItselfWhileItServes: it replays from before the cut of a part whose loop log is all
// that is left of the back edge.
func TestLoopHeadRefillsItselfWhileItServes(t *testing.T) {
	h := newLoopHead(t, []int{3}, []int{4})
	h.bring(1, 1, 1)
	h.bring(0, 1, 3)
	h.bring(1, 2, 4)
	h.wantDurable(0, 1)
	before := h.sent()
	o := h.task.outs[0]
	h.must(h.task.TakeGrant(t.Context(), Grant{Channel: 2, Incarnation: 2, Next: o.next, Sum: o.sum, Window: 1 << 20}))
	for range lackTicks + 1 {
		h.must(h.task.TakeGrant(t.Context(), Grant{Channel: 2, Incarnation: 2, Next: 1, Window: 1 << 20, Rewind: true}))
		h.task.Tick()
	}
	mustEqual(t, "restored from", h.notes.recovery[0].Epoch, abs.Epoch(0))
	h.wire.frames = nil
	h.bring(1, 1, 1)
	h.bring(0, 1, 3)
	h.must(h.task.Deliver(Delivery{Drained: true}))
	h.work()
	mustEqual(t, "sent again", h.sent(), before)
	mustEqual(t, "has caught up", len(h.notes.caughtUp), 1)
	if c := h.task.inbox.byIndex[1]; c.next != 5 || c.sum != h.back.sum(5) || c.rewind {
		t.Fatalf("the back edge is at %d, asked for again: %v", c.next, c.rewind)
	}
}

// TestTaskReadsAgainWhileOtherChannelsAreBusy: what a channel lacks is in the stream, and another one always brings
// something to take.
func TestTaskReadsAgainWhileOtherChannelsAreBusy(t *testing.T) {
	h := newLoopHead(t, nil, nil)
	h.must(h.task.Deliver(Delivery{Drained: true}))
	deliver := func(channel int, s sequence, first, last abs.Seq) {
		t.Helper()
		h.must(h.task.Deliver(Delivery{Channel: channel, Seq: uint64(first), Frame: s.frame(first, last)}))
	}
	deliver(0, h.forward, 5, 8)
	deliver(0, h.forward, 1, 4)
	deliver(1, h.back, 1, 1)
	before, busy := h.in.rereads, abs.Seq(1)
	ticks := func() {
		t.Helper()
		for range grantTicks {
			busy++
			deliver(1, h.back, busy, busy)
			if stepped, err := h.task.Step(t.Context()); !stepped || err != nil {
				t.Fatal(stepped, err)
			}
			h.task.Tick()
		}
	}
	ticks()
	mustEqual(t, "next of the channel", h.task.inbox.byIndex[0].next, 5)
	mustEqual(t, "read again", h.in.rereads, before+1)
	ticks()
	mustEqual(t, "read again while it is being read", h.in.rereads, before+1)
	h.must(h.task.Deliver(Delivery{Reset: true}))
	deliver(0, h.forward, 5, 8)
	deliver(0, h.forward, 1, 4)
	h.must(h.task.Deliver(Delivery{Drained: true}))
	h.work()
	mustEqual(t, "next of the channel", h.task.inbox.byIndex[0].next, 9)
}

func TestAbortedLoopLogBelongsToNoCheckpoint(t *testing.T) {
	h := newLoopHead(t, []int{3, 6}, []int{6})
	h.bring(1, 1, 1)
	h.bring(0, 1, 3)
	h.bring(1, 2, 3)
	h.record(abs.EpochRecord{Epoch: 1, State: abs.Aborted})
	h.wantDurable(0)
	if p := h.store.parts[1]; !p.Local || p.Epoch != 1 || h.logged() != "" {
		t.Fatalf("part %+v with the loop log %q", p, h.logged())
	}
	before := h.sent()

	h.open(nil) // from that part: what came after it is read again
	h.bring(1, 2, 3)
	mustEqual(t, "sent again", h.sent(), before)

	h.bring(0, 4, 6)
	h.bring(1, 4, 5)
	h.back.items[5] = seqItem{frame.Barrier, frame.AppendMark(nil, frame.Mark{Kind: frame.Barrier, Value: 2})}
	h.bring(1, 6, 6)
	h.wantDurable(0, 2)
	mustEqual(t, "loop log of the next part", h.logged(), "b>h data 4+2, b>h barrier 6+1")
}

func TestGenerationBeginsWithWhatIsInTheLoop(t *testing.T) {
	h := newLoopHead(t, []int{3}, []int{4})
	h.forward.items[2] = seqItem{frame.Barrier, frame.AppendMark(nil, frame.Mark{Kind: frame.Barrier, Value: frame.Final | 1})}
	h.bring(1, 1, 1)
	h.bring(0, 1, 3)
	h.bring(1, 2, 4)
	h.wantDurable(0, 1)
	mustEqual(t, "sent at the end", h.sent(), "k1=1 k1=2 k2=1 barrier")

	h.open(nil) // a restart does not make it go on
	h.must(h.task.Deliver(Delivery{Drained: true}))
	h.work()
	mustEqual(t, "sent after a restart", h.sent(), "k1=1 k1=2 k2=1 barrier")
	h.wantDurable(0, 1, 1)

	base := h.store.parts[1]
	h.gen++
	h.open(&base)
	h.wantDurable(0, 1, 1, 100)
	mustEqual(t, "loop log of the initial part", h.logged(), "b>h data 2+2, b>h barrier 4+1")
	mustEqual(t, "sent in all", h.sent(), "k1=1 k1=2 k2=1 barrier k2=2 k3=1")
	rep, err := ReportOf(h.store.parts[2])
	h.must(err)
	if rep.Cut.Logged["b>h"] != 4 || rep.Cut.Consumed["b>h"] != 1 || rep.Cut.Sent["h>b"] != 4 {
		t.Fatalf("cut of the initial part: %+v", rep.Cut)
	}

	h.open(nil) // and the initial part is as good as the one before
	h.must(h.task.Deliver(Delivery{Drained: true}))
	h.work()
	mustEqual(t, "sent in all", h.sent(), "k1=1 k1=2 k2=1 barrier k2=2 k3=1")
}

func TestFinalBarrierThatWasAborted(t *testing.T) {
	h := newLoopHead(t, []int{3, 6}, []int{5})
	h.forward.items[2] = seqItem{frame.Barrier, frame.AppendMark(nil, frame.Mark{Kind: frame.Barrier, Value: frame.Final | 1})}
	h.bring(0, 1, 3)
	h.bring(1, 1, 2)
	mustEqual(t, "state", h.task.state(), "drained")
	h.record(abs.EpochRecord{Epoch: 1, State: abs.Aborted, Final: true})
	want := "k1=1 k2=1 barrier k1=2 k2=2"
	mustEqual(t, "sent after the abort", h.sent(), want)

	h = newLoopHead(t, []int{3, 6}, []int{4})
	h.forward.items[2] = seqItem{frame.Barrier, frame.AppendMark(nil, frame.Mark{Kind: frame.Barrier, Value: frame.Final | 1})}
	h.bring(0, 1, 3)
	h.bring(1, 1, 4)
	h.wantDurable(0, 1) // another task's part did not come: this one hears of it by what follows
	h.bring(0, 4, 4)
	want = "k1=1 k2=1 barrier k1=2 k2=2 k3=1 k4=1"
	mustEqual(t, "sent after the source has gone on", h.sent(), want)
	h.open(nil)
	h.bring(0, 4, 4)
	mustEqual(t, "sent after a restart", h.sent(), want)
}

func TestLoopHeadTakesWhatIsInTheLoopFirst(t *testing.T) {
	h := newLoopHead(t, nil, nil)
	for i := range h.back.items {
		h.back.items[i].bytes = numbered(i+1, 200<<10)
	}
	h.bring(0, 1, 1)
	for n := abs.Seq(2); n <= 3; n++ {
		h.must(h.task.Deliver(Delivery{Channel: 0, Frame: h.forward.frame(n, n)}))
	}
	for n := abs.Seq(1); n <= 7; n++ {
		h.back.gen = h.gen
		h.must(h.task.Deliver(Delivery{Channel: 1, Frame: h.back.frame(n, n)}))
	}
	h.must(h.task.TakeGrant(t.Context(), Grant{Channel: 2, Incarnation: 2, Next: 1, Window: 1 << 20}))
	h.work()
	// Seven records are more than the bound, six and five are not.
	mustEqual(t, "sent", h.sent(), "k1=1 k1=2 k2=1 k2=2 k3=1 k3=2 k4=1 k5=1 k6=1 k0=1")
}

func TestBackEdgeIsBoundedAndNeedsNoCredit(t *testing.T) {
	fill := func(o *outlet, frames int) {
		for range frames {
			o.add(numbered(1, 100<<10), 1)
			o.flush(1)
		}
	}
	o := newOutlet(3, OutChannel{Channel: Channel{ID: "b>h"}, To: "h", Back: true}, &framePool{})
	o.reserved = 1 << 30
	fill(o, 10)
	if !o.full() {
		t.Fatal("a back edge whose head is away must hold the task")
	}
	if _, err := o.grant(Grant{Next: 1, Window: 1}, 0); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for f := o.sendable(1, 0); f != nil; f = o.sendable(1, 0) {
		o.sending(f, 0)
		sent++
	}
	if sent != 10 || o.full() || o.overrun() != nil {
		t.Fatalf("%d frames were sent without credit; full %v, %v", sent, o.full(), o.overrun())
	}
	fill(o, loopWindow/(100<<10))
	if err := o.overrun(); !errors.Is(err, ErrLoopFull) || !strings.Contains(err.Error(), "b>h") {
		t.Fatalf("a full back edge: %v", err)
	}
	o.free = o.next
	if err := o.overrun(); err != nil {
		t.Fatalf("what was made before a restart counts: %v", err)
	}
}

func TestAlignmentThatKeepsALoopFull(t *testing.T) {
	spec := TaskSpec{
		Job: "job", Generation: 3, ID: "b",
		Inputs: []InChannel{
			{Channel: Channel{ID: "h>b", Index: 0}, Incarnation: 2, Loop: true},
			{Channel: Channel{ID: "t>b", Index: 1}, Incarnation: 2},
		},
		Edges: []EdgeSpec{{Channels: []OutChannel{{Channel: Channel{ID: "b>h", Index: 2}, To: "h", Back: true}}}},
	}
	n := &notes{}
	task := NewTask(spec, Env{Observer: n})
	task.aligner = abs.NewAligner([]abs.Input{{ID: "h>b"}, {ID: "t>b"}}, abs.ExactlyOnce)
	task.aligner.Step(abs.Event{Kind: abs.OnBarrier, Epoch: 7, Channel: "h>b"})
	for range 2 * loopStuckTicks {
		task.unstick()
	}
	if len(n.skipped) != 0 {
		t.Fatalf("an alignment was given up with the loop empty: %v", n.skipped)
	}
	for !task.backlogged() {
		task.outs[0].add(numbered(1, 100<<10), 1)
		task.outs[0].flush(1)
	}
	for range 2 * loopStuckTicks {
		task.unstick()
	}
	if !slices.Equal(n.skipped, []abs.Epoch{7}) {
		t.Fatalf("given up: %v", n.skipped)
	}
	if !task.crowded() {
		t.Fatal("the task takes more from outside")
	}
}

func TestLoopLogHasABound(t *testing.T) {
	h := newLoopHead(t, []int{2}, nil)
	big := numbered(1, 250<<10)
	for i := range h.back.items {
		h.back.items[i].bytes = big
	}
	for len(h.back.items) < loopLogLimit/len(big)+2 {
		h.back.items = append(h.back.items, seqItem{frame.Data, big})
	}
	h.bring(0, 1, 2)
	for n := abs.Seq(1); int(n) <= len(h.back.items); n++ {
		h.bring(1, n, n)
	}
	h.wantDurable(0)
	if !slices.Equal(h.notes.skipped, []abs.Epoch{1}) || !h.store.parts[1].Local || h.logged() != "" {
		t.Fatalf("given up %v; part %+v", h.notes.skipped, h.store.parts[1])
	}
}

// FuzzLoopItem wants that what is read is what would be written.
func FuzzLoopItem(f *testing.F) {
	f.Add(loopItem{"b>h", frame.Data, 7, 2, append(numbered(1, 0), numbered(2, 0)...)}.encode())
	f.Add(loopItem{"b>h", frame.Barrier, 9, 1, frame.AppendMark(nil, frame.Mark{Kind: frame.Barrier, Value: 3})}.encode())
	f.Add([]byte{1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		it, err := decodeLoopItem(b)
		if err != nil {
			if !errors.Is(err, errEntry) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		again, err := decodeLoopItem(it.encode())
		if err != nil || again.channel != it.channel || again.kind != it.kind || again.first != it.first || again.count != it.count || !bytes.Equal(again.payload, it.payload) {
			t.Fatalf("%+v became %+v: %v", it, again, err)
		}
	})
}
