package dataflow

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// A sink that commits with checkpoints is offered an item only when a checkpoint counts that contains
// what caused it: its task keeps it until then, in memory and in its snapshots (SpaceOutbox).
//
// What is kept is bounded. At the soft bound the task takes no step, except to reach a barrier that is
// on its way: that barrier's checkpoint is what the bound waits for, so a task that stood still before
// it would stand still for ever. To keep that way short a source of a job with such a sink takes the
// barrier of an epoch at once where it stands, ahead of what its log holds unread (EntryCut). What is
// left is what is under way on channels. If operators make so much of it that the hard bound is reached
// all the same, what is kept is offered ahead of its checkpoint, and counted: it is as exact as with an
// immediate commit then, and the job does not stand still.
const (
	heldItems = 1 << 16
	heldBytes = 16 << 20
	// Keys of SpaceOutbox hold so many items or bytes, whichever is reached first.
	chunkItems = 256
	chunkBytes = 32 << 10
)

// held is what a port keeps for a sink that commits with checkpoints.
type held struct {
	items, bytes int // the soft bound; the hard one is twice that

	early    abs.Position // items up to here are offered ahead of their checkpoint
	released uint64       // items offered ahead

	frozen abs.Seq       // items up to here are in the newest frozen part
	chunks []outboxChunk // in that part, ascending
}

// outboxChunk is a key of SpaceOutbox: the items from first to last.
type outboxChunk struct{ first, last abs.Seq }

// limit is the log position up to which items of the port may be offered.
func (p *sinkPort) limit(synced, counted abs.Position) abs.Position {
	if p.held == nil {
		return synced
	}
	return min(synced, max(counted, p.held.early))
}

// beyond says whether the port holds more than n times its soft bound.
func (p *sinkPort) beyond(n int) bool {
	return len(p.items) >= n*p.held.items || p.bytes >= n*p.held.bytes
}

// waiting says whether nothing that the port holds is offered or may be, so that it waits for a checkpoint.
func (p *sinkPort) waiting(limit abs.Position) bool {
	return len(p.items) > 0 && p.items[0].cause > limit
}

// full says that no more may be made for the port now. A barrier that is coming is reached first.
func (t *Task) full(p *sinkPort) bool {
	if p.held == nil {
		return p.full()
	}
	return p.beyond(1) && !(t.coming() && p.waiting(t.counted) && !p.beyond(2))
}

// coming says whether the barrier of a running epoch has not reached the task.
func (t *Task) coming() bool { return t.running > t.epoch }

// sinkFull says whether a sink keeps the task from taking steps.
func (t *Task) sinkFull() bool {
	for _, p := range t.chain.sinks {
		if t.full(p) {
			return true
		}
	}
	return false
}

// letGo offers what a port holds ahead of its checkpoint, where the barrier cannot be reached otherwise.
func (t *Task) letGo() {
	for _, p := range t.chain.sinks {
		if p.held == nil || !p.beyond(2) || !t.coming() || !p.waiting(p.limit(p.items[len(p.items)-1].cause, t.counted)) {
			continue
		}
		p.held.early = p.items[len(p.items)-1].cause
		p.held.released += uint64(len(p.items))
	}
}

// Counted says that a checkpoint counts that holds the task's part of a log position: what its entries
// up to there have caused may be handed over by sinks that commit with checkpoints. It may be called from
// any goroutine.
func (t *Task) Counted(pos abs.Position) {
	t.mail.post(func() { t.counted = max(t.counted, pos) })
}

// cut is a barrier that a source has taken ahead of what its log held unread.
type cut struct {
	epoch abs.Epoch
	at    abs.Position // of the entry that says so
}

// cutAhead takes a barrier where the source stands: one that the log says was taken here, or that of the
// running epoch, if the log holds other entries before it. Nothing may have been handed over of what
// comes next, by an earlier life or in an earlier generation: numbers on channels would change.
func (t *Task) cutAhead() (bool, error) {
	if !t.spec.Source || t.follow == nil || t.behind != "" {
		return false, nil
	}
	for _, c := range t.cuts[t.pos] {
		if c.epoch > t.epoch {
			return true, t.takeCut(c)
		}
	}
	if t.wanted <= t.epoch || t.final || t.ended || !(t.spec.CutAhead || t.sinkFull()) {
		return false, nil
	}
	for _, o := range t.outs {
		if o.next <= o.free || !o.granted || o.next < o.have {
			return false, nil
		}
	}
	if ok, err := t.peek(); err != nil || !ok || t.entry.Kind == EntryBarrier {
		if err == nil && (!ok || t.barrierOf(*t.entry) >= t.wanted) {
			t.wanted = 0 // it comes next
		}
		return false, err
	}
	pos, err := t.env.Log.Append(EntryCut, cutEntry{t.pos, t.wanted}.encode())
	if err != nil {
		return false, ignoreFull(err)
	}
	return true, t.takeCut(cut{t.wanted, pos})
}

func (t *Task) barrierOf(e Entry) abs.Epoch {
	b, err := decodeBarrier(e.Data)
	if err != nil {
		return 0 // the entry's own turn reports it
	}
	return b.epoch
}

// takeCut freezes the source where it stands and sends the barrier on. All of that is caused by the entry
// that says so, which is at the end of the log.
func (t *Task) takeCut(c cut) error {
	fx := t.align(abs.Event{Kind: abs.OnControlBarrier, Epoch: c.epoch})
	if fx.Ignored { // of a generation that is over: its barrier has a number all the same
		return t.barrier(c.epoch, c.at)
	}
	n := len(t.parts)
	if err := t.effects(fx, c.at); err != nil {
		return err
	}
	for _, p := range t.parts[min(n, len(t.parts)):] {
		p.upto = max(p.upto, c.at)
	}
	return nil
}

// freeze returns what has changed of the outbox since the last part, or all of it.
func (p *sinkPort) freeze(full bool) []Change {
	h := p.held
	if h == nil {
		return nil
	}
	var out []Change
	if full {
		h.frozen, h.chunks = 0, nil
	}
	for len(h.chunks) > 0 && h.chunks[0].last <= p.handed {
		out = append(out, Change{SpaceOutbox, p.outboxKey(h.chunks[0].first), nil})
		h.chunks = h.chunks[1:]
	}
	var value []byte
	var c outboxChunk
	cut := func() {
		if value != nil {
			out = append(out, Change{SpaceOutbox, p.outboxKey(c.first), value})
			h.chunks = append(h.chunks, c)
			value = nil
		}
	}
	for _, it := range p.items {
		if it.number <= h.frozen {
			continue
		}
		if value == nil {
			c.first, value = it.number, make([]byte, 0, 64)
		}
		c.last = it.number
		value = binary.AppendUvarint(value, uint64(it.cause))
		value = append(binary.AppendUvarint(value, uint64(len(it.record))), it.record...)
		if len(value) >= chunkBytes || c.last-c.first+1 >= chunkItems {
			cut()
		}
	}
	cut()
	h.frozen = p.next - 1
	return out
}

// outboxKey is the sink's name, a zero byte and the first item's number, big-endian.
func (p *sinkPort) outboxKey(first abs.Seq) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(p.name), 0), uint64(first))
}

// outbox is what a part holds back for a sink.
type outbox struct {
	records [][]byte
	causes  []abs.Position
	chunks  []outboxChunk
}

// loadOutboxes reads what a part holds back for sinks, by name. Chunks may begin before what the part
// says was handed over.
func loadOutboxes(state StateReader, sinks map[string]sinkMeta) (map[string]*outbox, error) {
	out := map[string]*outbox{}
	if state == nil {
		return out, nil
	}
	return out, state(func(c Change) error {
		if c.Space != SpaceOutbox {
			return nil
		}
		name, number, ok := bytes.Cut(c.Key, []byte{0})
		if !ok || len(number) != 8 {
			return fmt.Errorf("the snapshot's outbox has a malformed key %q", c.Key)
		}
		o := out[string(name)]
		if o == nil {
			o = &outbox{}
			out[string(name)] = o
		}
		n := abs.Seq(binary.BigEndian.Uint64(number))
		first := n
		r := entryReader{b: c.Value}
		for ; len(r.b) > 0; n++ {
			cause := abs.Position(r.uvarint())
			rec := r.bytes(r.uvarint())
			if _, rest, err := frame.Next(rec); r.err != nil || err != nil || len(rest) > 0 {
				return fmt.Errorf("the snapshot's outbox of sink %s: item %d is malformed", name, n)
			}
			if n > sinks[string(name)].Handed {
				o.records = append(o.records, bytes.Clone(rec))
				o.causes = append(o.causes, cause)
			}
		}
		o.chunks = append(o.chunks, outboxChunk{first, n - 1})
		return nil
	})
}
