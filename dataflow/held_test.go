package dataflow

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/weir-stream/weir/abs"
)

// heldDevice has a source whose sink commits with checkpoints.
func heldDevice(t *testing.T) *device {
	spec := sourceSpec("")
	spec.Sinks[0].Checkpoint = true
	spec.CutAhead = true
	return newDevice(t, spec)
}

func heldBubble(t *testing.T, test func(d *device)) {
	synctest.Test(t, func(t *testing.T) { test(heldDevice(t)) })
}

// counts says that the checkpoint with the task's newest durable part counts.
func (p *process) counts() abs.Position {
	p.t.Helper()
	parts, _ := p.store.Parts("")
	pos := parts[len(parts)-1].Pos
	p.countsAt(pos)
	return pos
}

func (p *process) countsAt(pos abs.Position) {
	p.task.Counted(pos)
	synctest.Wait()
}

func (p *process) epoch(e abs.Epoch, state abs.EpochState, final bool) {
	p.task.Record(abs.EpochRecord{Epoch: e, State: state, Final: final})
	synctest.Wait()
}

// bound sets the soft bound of the sink's port, before the task has anything to do.
func (p *process) bound(items int) {
	p.task.mail.post(func() { p.task.chain.sinks[0].held.items = items })
	synctest.Wait()
}

func TestHeldUntilTheCheckpointCounts(t *testing.T) {
	heldBubble(t, func(d *device) {
		p := d.start()
		p.receive("a", "b")
		p.sync()
		p.wants("before the barrier")
		p.barrier(1)
		p.receive("a")
		p.sync()
		p.wants("before it counts")
		p.counts()
		p.wants("when it counts", "1 a=1", "2 b=1")
		p.barrier(2)
		p.sync()
		p.counts()
		p.wants("when the next counts", "1 a=1", "2 b=1", "3 a=2")
		p.stop(false)
	})
}

// After a restart what was made before a checkpoint that counts is handed over, from the outbox of a
// later part too, and nothing else, and what was handed over before is not.
func TestHeldAcrossRestarts(t *testing.T) {
	for _, powerCut := range []bool{false, true} {
		heldBubble(t, func(d *device) {
			p := d.start()
			p.receive("a", "b")
			p.barrier(1)
			p.receive("c")
			p.sync()
			first := p.counts()
			p.barrier(2)
			p.receive("d")
			p.sync()
			p.handed(1)
			p.sync()
			second := p.store.parts[len(p.store.parts)-1].Pos
			if first == second {
				t.Fatal("no second part")
			}
			p.stop(powerCut)

			p = d.start()
			p.sync()
			p.wants("nothing is known to count")
			p.countsAt(first)
			p.wants("what the first contains", "2 b=1")
			p.countsAt(second)
			p.wants("what the second contains", "2 b=1", "3 c=1")
			p.barrier(3)
			p.sync()
			p.counts()
			p.wants("what the third contains", "2 b=1", "3 c=1", "4 d=1")
			p.handed(4)
			p.sync()
			p.stop(powerCut)

			p = d.start()
			p.sync()
			p.counts()
			p.wants("all was handed over")
			p.stop(false)
		})
	}
}

// A generation that starts from a checkpoint hands over what that holds back: it counts.
func TestHeldIntoTheNextGeneration(t *testing.T) {
	heldBubble(t, func(d *device) {
		p := d.start()
		p.receive("a", "b")
		p.barrier(1)
		p.sync()
		p.stop(false)
		base := d.store.parts[len(d.store.parts)-1]
		d.base, d.floor, d.spec.Generation = &base, 1, 2
		p = d.start()
		p.sync()
		p.wants("of the base", "1 a=1", "2 b=1")
		p.stop(false)
	})
}

// A full sink does not keep the barrier away that would empty it: the source takes it where it stands,
// and replay takes it there again.
func TestHeldFullTakesTheBarrierAhead(t *testing.T) {
	heldBubble(t, func(d *device) {
		p := d.start()
		p.bound(2)
		for range 4 {
			p.receive("a")
		}
		p.sync()
		if st := p.task.chain.sinks[0]; len(st.items) != 2 {
			t.Fatalf("%d items held", len(st.items))
		}
		p.barrier(1) // behind what is not read
		p.sync()
		mustEqual(t, "parts", len(p.store.parts), 1)
		p.epoch(1, abs.Started, false)
		p.sync()
		mustEqual(t, "cuts", p.log.kinds(EntryCut), 1)
		mustEqual(t, "parts", len(p.store.parts), 2)
		p.wants("before it counts")
		p.epoch(1, abs.Replicated, false)
		p.counts()
		p.wants("when it counts", "1 a=1", "2 a=2")
		p.handed(2)
		p.sync()
		mustEqual(t, "sent", p.sent(), "a=1 a=2 barrier a=3 a=4")
		wire := p.wire.items(t)
		p.stop(true)

		// Replay from the part before the cut.
		d.store.parts = d.store.parts[:1]
		p = d.start()
		p.sync()
		for n, v := range p.wire.items(t) {
			if was, had := wire[n]; had && was != v {
				t.Errorf("number %d was %q and is %q", n, was, v)
			}
		}
		mustEqual(t, "sent again", p.sent(), "a=1 a=2 barrier a=3 a=4 barrier")
		p.stop(true)

		// And from the part of the cut itself.
		p = d.start()
		p.receive("b")
		p.barrier(2)
		p.sync()
		p.counts()
		if got := p.sink.got(); len(got) == 0 || got[len(got)-1] != "5 b=1" {
			t.Errorf("sink got %q", got)
		}
		p.stop(false)
	})
}

// A generation that goes on from a part before a barrier that was taken ahead makes the same numbers: a receiver
// may have some of them.
func TestBarrierTakenAheadInTheNextGeneration(t *testing.T) {
	heldBubble(t, func(d *device) {
		p := d.start()
		p.bound(2)
		for range 4 {
			p.receive("a")
		}
		p.sync()
		p.barrier(1)
		p.epoch(1, abs.Started, false)
		p.sync()
		mustEqual(t, "cuts", p.log.kinds(EntryCut), 1)
		p.epoch(1, abs.Replicated, false)
		p.counts()
		p.handed(2)
		p.sync()
		before := p.sent()
		mustEqual(t, "sent", before, "a=1 a=2 barrier a=3 a=4")
		p.stop(false)

		base := d.store.parts[0]
		d.base, d.floor, d.spec.Generation = &base, 5, 2
		for range 2 {
			p = d.start()
			p.sync()
			mustEqual(t, "sent by the next generation", p.sent(), before+" barrier")
			p.stop(false)
		}
	})
}

// Where a receiver has what comes next, no barrier is put before it.
func TestNoBarrierAheadOfWhatAReceiverHas(t *testing.T) {
	heldBubble(t, func(d *device) {
		p := d.start()
		for range 3 {
			p.receive("a")
		}
		received := Grant{Next: 4, Sum: p.task.outs[0].sum}
		p.stop(false)

		d = heldDevice(d.t)
		p = d.start()
		p.bound(2)
		for range 4 {
			p.receive("a")
		}
		p.barrier(1)
		p.grant(received)
		p.epoch(1, abs.Started, false)
		p.sync()
		mustEqual(t, "fourth", p.wire.items(t)[4], "barrier") // which is none of those that the receiver has
		p.stop(false)
	})
}

// Where the barrier cannot be taken ahead, since it is the last one, the task goes on to it, and at
// twice the bound it hands over what it holds.
func TestHeldGoesOnToABarrier(t *testing.T) {
	heldBubble(t, func(d *device) {
		p := d.start()
		p.bound(3)
		for range 4 {
			p.receive("a")
		}
		p.sync()
		port := p.task.chain.sinks[0]
		mustEqual(t, "held", len(port.items), 3)
		p.barrier(1)
		p.epoch(1, abs.Started, true)
		p.sync()
		mustEqual(t, "held", len(port.items), 4)
		mustEqual(t, "parts", len(p.store.parts), 2)
		p.wants("within twice the bound")
		p.epoch(1, abs.Aborted, true)
		for range 6 {
			p.receive("b")
		}
		p.sync()
		mustEqual(t, "held without an epoch", len(port.items), 4)
		p.barrier(2)
		p.epoch(2, abs.Started, true)
		p.sync()
		mustEqual(t, "offered ahead", port.held.released, 6)
		mustEqual(t, "sink got", len(p.sink.got()), 6)
		p.handed(6)
		p.sync()
		mustEqual(t, "held", len(port.items), 4)
		mustEqual(t, "parts", len(p.store.parts), 3)
		p.stop(false)
	})
}

// Many items make many keys, of which a part writes the new ones and drops those handed over.
func TestHeldOutboxIsIncremental(t *testing.T) {
	heldBubble(t, func(d *device) {
		p := d.start()
		var want []string
		batch := func(n int) {
			var recs []string
			for range n {
				want = append(want, fmt.Sprintf("%d k=%d", len(want)+1, len(want)+1))
				recs = append(recs, "k")
			}
			p.receive(recs...)
		}
		keys := func() (puts, gone int) {
			for _, c := range d.store.saved[Version(len(d.store.parts))] {
				switch {
				case c.Space != SpaceOutbox:
				case c.Value == nil:
					gone++
				default:
					puts++
				}
			}
			return puts, gone
		}
		batch(2*chunkItems + 10)
		p.barrier(1)
		p.sync()
		if puts, gone := keys(); puts != 3 || gone != 0 {
			t.Fatalf("%d keys written, %d dropped", puts, gone)
		}
		batch(5)
		p.barrier(2)
		p.sync()
		if puts, gone := keys(); puts != 1 || gone != 0 {
			t.Fatalf("%d keys written, %d dropped", puts, gone)
		}
		p.counts()
		p.handed(chunkItems + 3)
		p.barrier(3)
		p.sync()
		if puts, gone := keys(); puts != 0 || gone != 1 {
			t.Fatalf("%d keys written, %d dropped", puts, gone)
		}
		at := p.store.parts[len(p.store.parts)-1].Pos
		p.stop(true)
		p = d.start()
		p.sync()
		p.countsAt(at)
		if got := p.sink.got(); !slices.Equal(got, want[chunkItems+3:]) {
			t.Fatalf("%d items, from %q", len(got), got[:min(3, len(got))])
		}
		p.stop(false)
	})
}

// A sink that takes nothing for long: what the task keeps is bounded, while the source logs on; checkpoints
// go on too; and afterwards everything comes, in order and once, also over a power cut.
func TestDeadSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t, sourceSpec(""))
		d.spec.Ops[0].Outputs = [][]Target{{{Kind: ToSink}}}
		d.spec.Edges = nil
		p := d.start()
		const batches, each = 60, 100
		for range batches {
			recs := make([]string, each)
			for i := range recs {
				recs[i] = "k"
			}
			p.receive(recs...)
		}
		p.sync()
		port := p.task.chain.sinks[0]
		if n := len(port.items); n < sinkItems || n > sinkItems+each {
			t.Fatalf("%d items kept", n)
		}
		p.barrier(1)
		p.sync()
		mustEqual(t, "parts", len(p.store.parts), 1)
		p.epoch(1, abs.Started, false)
		p.sync()
		mustEqual(t, "parts while the sink is dead", len(p.store.parts), 2)
		p.stop(true)

		p = d.start()
		for {
			p.sync()
			p.sink.mu.Lock()
			last := p.sink.last
			p.sink.mu.Unlock()
			if last == batches*each {
				break
			}
			p.handed(last)
		}
		for i, got := range p.sink.got() {
			if want := fmt.Sprintf("%d k=%d", i+1, i+1); got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
		}
		p.stop(false)
	})
}
