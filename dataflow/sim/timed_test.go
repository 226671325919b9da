package sim

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// Event time of the topologies that have it, in milliseconds. Records bear their ids as times, in this order but for
// what a broker delivers again; some are far ahead of every clock.
const (
	timeDelay = 3
	timeIdle  = 300
	timeAhead = 60_000
	farAhead  = int64(1) << 50
)

// eventTimeOf is the event time of a message.
func eventTimeOf(id uint32) int64 {
	if id%19 == 7 {
		return farAhead
	}
	return int64(id)
}

// timedTally is a tally that time matters to: it holds some records until a timer is due, and whatever time brings
// goes into the chain, so that all that follows depends on when it came.
type timedTally struct {
	*tally
	watermark int64
	seq       uint32
	timers    map[heldTimer][]byte // the record that waits
	given     map[heldTimer]bool   // changed since the last freeze
	due       []heldTimer
	taken     []byte // the record of the timer that came last
	tell, end bool
}

// heldTimer is a timer; its key is the record's id and a serial number.
type heldTimer struct {
	tick bool
	at   int64
	key  string
}

func (h heldTimer) encode() []byte {
	b := binary.LittleEndian.AppendUint64([]byte{1}, uint64(h.at))
	if h.tick {
		b[0] = 2
	}
	return append(b, h.key...)
}

func decodeTimer(b []byte) heldTimer {
	return heldTimer{b[0] == 2, int64(binary.LittleEndian.Uint64(b[1:])), string(b[9:])}
}

func (t *tally) timed(state dataflow.StateReader) (dataflow.Operator, error) {
	op := &timedTally{tally: t, watermark: dataflow.NoTime, timers: map[heldTimer][]byte{}, given: map[heldTimer]bool{}}
	if state == nil {
		return op, nil
	}
	return op, state(func(c dataflow.Change) error {
		switch {
		case c.Space != dataflow.SpaceTimer:
		case len(c.Key) == 1:
			op.watermark, op.seq = int64(binary.LittleEndian.Uint64(c.Value)), binary.LittleEndian.Uint32(c.Value[8:])
		default:
			op.timers[decodeTimer(c.Key)] = bytes.Clone(c.Value)
		}
		return nil
	})
}

// Process holds some records back and passes the others on.
func (t *timedTally) Process(b dataflow.Batch, emit dataflow.Emit) error {
	pass := b
	pass.Payload, pass.Count = nil, 0
	for rest := b.Payload; len(rest) > 0; {
		r, after, err := frame.Next(rest)
		if err != nil {
			return err
		}
		one := rest[:len(rest)-len(after)]
		rest = after
		if h, hold := t.holds(r, b.Stamp); hold {
			t.timers[h], t.given[h] = bytes.Clone(one), true
			t.w.chaos.count("record held for a timer")
			continue
		}
		pass.Payload, pass.Count = append(pass.Payload, one...), pass.Count+1
	}
	return t.tally.Process(pass, emit)
}

// holds says for which timer a record waits. One that has come round a loop waits for none: its event time may be
// beyond what the loop's head will ever see from outside.
func (t *timedTally) holds(r frame.Record, stamp int64) (h heldTimer, ok bool) {
	v := decodeValue(r.Value)
	if v.rounds > 0 {
		return h, false
	}
	poison := int(v.poison) == t.t.level+1
	switch (int(v.id) + t.t.level) % 4 {
	case 0:
		h.at, ok = r.Time-2*timeDelay, r.Time != farAhead && r.Time-2*timeDelay > t.watermark
	case 1:
		h.at, h.tick, ok = stamp+int64(v.id%50), true, !poison
	}
	if ok {
		t.seq++
		h.key = string(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, v.id), t.seq))
	}
	return h, ok
}

func (t *timedTally) Advance(m dataflow.Moment) {
	t.due, t.tell, t.end = nil, false, m.End
	if m.Watermark > t.watermark {
		t.watermark, t.tell = m.Watermark, true
	}
	for h := range t.timers {
		if h.tick && m.Tick && h.at <= m.Stamp || !h.tick && t.tell && h.at <= m.Watermark {
			t.due = append(t.due, h)
		}
	}
	slices.SortFunc(t.due, func(a, b heldTimer) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.key, b.key))
	})
}

func (t *timedTally) Next() (dataflow.TimeCall, bool) {
	switch {
	case len(t.due) > 0:
		h := t.due[0]
		t.due = t.due[1:]
		c := dataflow.TimeCall{Kind: dataflow.CallEventTimer, At: h.at, Key: []byte(h.key)}
		if h.tick {
			c.Kind = dataflow.CallProcessingTimer
		}
		t.taken = t.timers[h]
		delete(t.timers, h)
		t.given[h] = true
		return c, true
	case t.tell:
		t.tell = false
		return dataflow.TimeCall{Kind: dataflow.CallWatermark, At: t.watermark}, true
	case t.end:
		t.end = false
		return dataflow.TimeCall{Kind: dataflow.CallEnd}, true
	}
	return dataflow.TimeCall{}, false
}

func (t *timedTally) Call(c dataflow.TimeCall, emit dataflow.Emit) error {
	if t.lost {
		t.w.fail("operator %s is called by time after it has trapped", t.name)
	}
	t.w.chaos.count("called by time: " + c.Kind.String())
	t.chain = t.chain*1_000_003 + hashOf([]byte(fmt.Sprint(c.Kind, c.At)))
	switch c.Kind {
	case dataflow.CallWatermark:
		return nil
	case dataflow.CallEnd: // timers of processing time will not come any more
		var left []heldTimer
		for h := range t.timers {
			left = append(left, h)
		}
		slices.SortFunc(left, func(a, b heldTimer) int { return cmp.Compare(a.key, b.key) })
		b := dataflow.Batch{Count: len(left)}
		for _, h := range left {
			b.Payload = append(b.Payload, t.timers[h]...)
			delete(t.timers, h)
			t.given[h] = true
		}
		return t.tally.Process(b, emit)
	}
	return t.tally.Process(dataflow.Batch{Stamp: c.At, Count: 1, Payload: t.taken}, emit)
}

func (t *timedTally) NextTick() (at int64, ok bool) {
	for h := range t.timers {
		if h.tick && (!ok || h.at < at) {
			at, ok = h.at, true
		}
	}
	return at, ok
}

func (t *timedTally) Freeze(full bool) ([]dataflow.Change, error) {
	changes, err := t.tally.Freeze(full)
	head := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, uint64(t.watermark)), t.seq)
	changes = append(changes, dataflow.Change{Space: dataflow.SpaceTimer, Key: []byte("w"), Value: head})
	changed := t.given
	if full {
		changed = map[heldTimer]bool{}
		for h := range t.timers {
			changed[h] = true
		}
	}
	for h := range changed {
		changes = append(changes, dataflow.Change{Space: dataflow.SpaceTimer, Key: h.encode(), Value: t.timers[h]})
	}
	t.given = map[heldTimer]bool{}
	slices.SortFunc(changes, func(a, b dataflow.Change) int {
		return cmp.Or(cmp.Compare(a.Space, b.Space), bytes.Compare(a.Key, b.Key))
	})
	return changes, err
}

// givenUp is the value of the record that a dead letter is about: itself, or, as far as its id, the one that a timer held.
func givenUp(rec frame.Record) []byte {
	if rec.Header(dataflow.DueHeader) == nil {
		return rec.Value
	}
	return value{id: binary.BigEndian.Uint32(rec.Key)}.encode(nil)
}
