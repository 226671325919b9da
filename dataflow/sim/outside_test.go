package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// inFlight is how many messages a broker delivers without acknowledgement.
const inFlight = 20

func mapKeys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

// broker is what a source receives from. It keeps every message until it is acknowledged and delivers
// it again to a source that comes back.
type broker struct {
	w         *world
	t         *plannedTask
	messages  []message
	published int
	life      int // of the connection to the source
	busy      bool
}

type message struct {
	from         *plannedTask
	id           uint32
	poison       uint8
	padding      int
	acknowledged bool
	delivered    bool // and not known to be lost
}

func newBroker(w *world, t *plannedTask) *broker {
	b := &broker{w: w, t: t}
	return b
}

func (w *world) brokerOf(t *plannedTask) *broker {
	for _, b := range w.brokers {
		if b.t == t {
			return b
		}
	}
	return nil
}

// produce lets messages come into being, one after the other.
func (b *broker) produce() {
	for range b.w.profile.messages {
		b.messages = append(b.messages, b.w.outside.newMessage(b.t))
	}
	b.publish()
}

func (b *broker) publish() {
	if b.published == len(b.messages) {
		return
	}
	b.w.after(b.w.some(b.w.profile.pace), func() {
		b.published++
		b.deliver()
		b.publish()
	})
}

func (b *broker) acknowledged() int {
	n := 0
	for _, m := range b.messages {
		if m.acknowledged {
			n++
		}
	}
	return n
}

// interrupted: the source is gone. What it has not acknowledged will be delivered again.
func (b *broker) interrupted() {
	if b == nil {
		return
	}
	b.life++
	b.busy = false
	for i := range b.messages {
		b.messages[i].delivered = false
	}
}

// deliver brings messages to the source, some at a time.
func (b *broker) deliver() {
	r := b.w.agent(b.t.agent).runner(b.t)
	if b.busy || r == nil || r.run == nil || !r.committed {
		return
	}
	batch := b.next()
	if len(batch) == 0 {
		b.end(r)
		return
	}
	b.busy = true
	r.run.after(b.w.some(time.Millisecond), func() {
		b.busy = false
		b.hand(r, batch)
		b.deliver()
	})
}

// end lets the source end its input if there will be no more.
func (b *broker) end(r *runner) {
	if !b.w.profile.ends || b.acknowledged() < len(b.messages) {
		return
	}
	if err := r.ingest.End(); err != nil {
		b.w.trace("%s: end: %v", b.t.id, err)
		return
	}
	b.w.chaos.count("input ended")
}

// next picks messages that are neither acknowledged nor on their way.
func (b *broker) next() []int {
	under, most := 0, 1+b.w.rng.IntN(b.w.profile.batch)
	var batch []int
	for i := range b.messages[:b.published] {
		switch m := b.messages[i]; {
		case m.acknowledged:
		case m.delivered:
			under++
		case len(batch) < most && under+len(batch) < inFlight:
			batch = append(batch, i)
		}
	}
	return batch
}

func (b *broker) hand(r *runner, batch []int) {
	var in dataflow.IngestBatch
	for _, i := range batch {
		m := &b.messages[i]
		m.delivered = true
		v := value{id: m.id, poison: m.poison}
		in.Payload = frame.AppendRecord(in.Payload, frame.Record{
			Time: eventTimeOf(m.id), Key: []byte{byte('a' + m.id%5)}, Value: v.encode(make([]byte, m.padding)),
		})
		in.IDs = append(in.IDs, 4)
		in.IDs = binary.LittleEndian.AppendUint32(in.IDs, m.id)
		in.Count++
	}
	life := b.life
	err := r.ingest.Append(in, func() {
		b.w.after(b.w.some(time.Millisecond), func() { b.answered(life, batch) })
	})
	if err != nil { // the log is full: not acknowledged, tried again
		b.w.after(20*time.Millisecond, func() {
			if b.life == life {
				for _, i := range batch {
					b.messages[i].delivered = false
				}
				b.deliver()
			}
		})
	}
}

// answered takes acknowledgements, unless their connection is gone: then the messages come again.
func (b *broker) answered(life int, batch []int) {
	if b.life != life || b.w.rng.Float64() < b.w.profile.ackLoss && !b.w.calm {
		b.w.chaos.count("message delivered again")
		if b.life == life {
			for _, i := range batch {
				b.messages[i].delivered = false
			}
		}
		b.deliver()
		return
	}
	for _, i := range batch {
		b.messages[i].acknowledged = true
	}
	b.deliver()
}

// outside is what the sinks deliver to. It never forgets.
type outside struct {
	w        *world
	messages []message
	got      map[string]map[abs.Seq][]byte
	items    int // different ones
}

func newOutside(w *world) *outside {
	return &outside{w: w, got: map[string]map[abs.Seq][]byte{}}
}

func (o *outside) newMessage(from *plannedTask) message {
	m := message{from: from, id: uint32(len(o.messages) + 1), padding: o.w.rng.IntN(o.w.profile.padding + 1)}
	if o.w.rng.Float64() < o.w.profile.poison {
		m.poison = uint8(1 + o.w.rng.IntN(3))
	}
	o.messages = append(o.messages, m)
	return m
}

// take gets an item. Under a number there is only ever one content.
func (o *outside) take(it dataflow.SinkItem) {
	of := o.got[it.Channel]
	if of == nil {
		of = map[abs.Seq][]byte{}
		o.got[it.Channel] = of
	}
	if o.w.profile.holds && o.w.oracle.restore == nil && it.Number > o.w.oracle.releases[it.Channel] {
		o.w.fail("%s: number %d is handed over, checkpoints that count hold those up to %d", it.Channel, it.Number, o.w.oracle.releases[it.Channel])
	}
	content := frame.AppendRecord(nil, it.Record)
	if old, again := of[it.Number]; again {
		o.w.chaos.count("sink item again")
		if string(old) != string(content) {
			o.w.fail("%s: number %d was %v, is %v", it.Channel, it.Number, describe(old), describe(content))
		}
		return
	}
	of[it.Number] = content
	o.items++
}

func describe(record []byte) string {
	r, _, err := frame.Next(record)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %+v", r.Key, decodeValue(r.Value))
}

// sink hands items over one after the other. It implements [dataflow.Sink] for one run of a task.
type sink struct {
	run   *taskRun
	items []dataflow.SinkItem
	busy  bool
}

func newSink(run *taskRun) *sink { return &sink{run: run} }

func (s *sink) Run(context.Context, dataflow.SinkEvents) error { return nil }

// Offer takes a few.
func (s *sink) Offer(items []dataflow.SinkItem) int {
	n := min(len(items), 4-len(s.items))
	for _, it := range items[:n] {
		it.Record.Key = append([]byte(nil), it.Record.Key...)
		it.Record.Value = append([]byte(nil), it.Record.Value...)
		s.items = append(s.items, it)
	}
	s.next()
	return n
}

func (s *sink) next() {
	if s.busy || len(s.items) == 0 {
		return
	}
	s.busy = true
	w := s.run.w()
	s.run.after(w.some(w.profile.link), func() {
		it := s.items[0]
		w.outside.take(it)
		s.run.after(w.some(w.profile.link), func() { // until then it is not known here
			s.busy = false
			s.items = s.items[1:]
			ev := s.run.task.SinkEvents(0)
			ev.Handed(it.Number)
			ev.Ready()
			s.run.wake()
			s.next()
		})
	})
}
