package sim

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// valueHead is the size of a value without its padding: id (4), level at which it is poison (1, 0 for
// none), count (8), chain (8), rounds (1).
const valueHead = 22

// value is what a record says of itself: who it is, and what the last operator had seen with it.
type value struct {
	id     uint32
	poison uint8  // level+1 of the operators that trap on it whenever they see it
	count  uint64 // records that the operator has taken, this one included
	chain  uint64 // hash of all of them in order
	rounds uint8  // how often it has come to the end of the loop that it is in
}

func (v value) encode(padding []byte) []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, valueHead+len(padding)), v.id)
	b = append(b, v.poison)
	b = binary.LittleEndian.AppendUint64(b, v.count)
	b = binary.LittleEndian.AppendUint64(b, v.chain)
	b = append(b, v.rounds)
	return append(b, padding...)
}

func decodeValue(b []byte) value {
	le := binary.LittleEndian
	return value{le.Uint32(b), b[4], le.Uint64(b[5:]), le.Uint64(b[13:]), b[21]}
}

// tally is an operator whose every output depends on all that it has taken and on the order: it counts
// records, in all and per key, and chains their hashes. An instance that has trapped must not be used.
type tally struct {
	w      *world
	t      *plannedTask
	name   string
	digest string // its version: what it makes depends on it

	count, chain uint64
	keys         map[string]uint64
	dirty        map[string]bool
	lost         bool
}

// operators makes the operators of one agent.
type operators struct{ w *world }

func (o operators) New(_ context.Context, spec dataflow.OperatorSpec, state dataflow.StateReader) (dataflow.Operator, error) {
	t := &tally{w: o.w, t: o.w.topo.task(spec.Name), name: spec.Name, digest: spec.Digest, keys: map[string]uint64{}, dirty: map[string]bool{}}
	if why := o.w.chaos.refuses(t.t, spec.Digest); why != "" && spec.Fresh {
		return nil, &dataflow.GuestError{Operator: spec.Name, Reason: why}
	}
	if state == nil && o.w.topo.timed {
		return t.timed(nil)
	}
	if state == nil {
		return t, nil
	}
	err := state(func(c dataflow.Change) error {
		switch c.Space {
		case dataflow.SpaceGlobal:
			t.count, t.chain = binary.LittleEndian.Uint64(c.Value), binary.LittleEndian.Uint64(c.Value[8:])
		case dataflow.SpaceKeyed:
			t.keys[string(c.Key)] = binary.LittleEndian.Uint64(c.Value)
		}
		return nil
	})
	if spec.Fresh {
		t.chain = t.chain*31 + hashOf([]byte(spec.Digest)) // as migrated variables are
	}
	if err == nil && o.w.topo.timed {
		return t.timed(state)
	}
	return t, err
}

func (t *tally) Process(b dataflow.Batch, emit dataflow.Emit) error {
	if t.lost {
		t.w.fail("operator %s is used after it has trapped", t.name)
	}
	out, counts := make([][]byte, 1+t.t.backs), make([]int, 1+t.t.backs)
	for payload := b.Payload; len(payload) > 0; {
		r, rest, err := frame.Next(payload)
		if err != nil {
			return err
		}
		payload = rest
		v := decodeValue(r.Value)
		if why := t.traps(v); why != "" {
			t.lost = true
			return &dataflow.GuestError{Operator: t.name, Reason: why}
		}
		to := 0
		if t.t.backs > 0 {
			to, v.rounds = t.next(v)
		}
		made := t.take(r, v, b.Stamp)
		t.w.chaos.pass(t.name, v.id)
		out[to] = frame.AppendRecord(out[to], made)
		counts[to]++
		if to > 0 && t.w.topo.doubles {
			out[to] = frame.AppendRecord(out[to], made)
			counts[to]++
		}
	}
	for to, n := range counts {
		if n == 0 {
			continue
		}
		if err := emit(to, out[to], n); err != nil {
			return err
		}
	}
	return nil
}

// next is the output that a record takes at the end of a loop, and how often it has been there: the
// back edges in turn, until it has gone round as often as its id says.
func (t *tally) next(v value) (output int, been uint8) {
	if int(v.rounds) >= rounds(v.id)*t.t.backs {
		return 0, 0
	}
	return 1 + int(v.rounds)%t.t.backs, v.rounds + 1
}

func (t *tally) traps(v value) string {
	if int(v.poison) == t.t.level+1 && v.rounds == 0 && !strings.HasPrefix(t.digest, mends) {
		return "poison"
	}
	if t.w.chaos.trap[t.name] {
		t.w.chaos.trap[t.name] = false
		return "a limit of the host"
	}
	if t.w.chaos.limits[t.name].reached(v.id) {
		return "the host's limit"
	}
	return ""
}

// take counts a record and returns what becomes of it, under a key that is another one per level.
func (t *tally) take(r frame.Record, v value, stamp int64) frame.Record {
	var at [8]byte
	binary.LittleEndian.PutUint64(at[:], uint64(stamp))
	t.count++
	t.chain = t.chain*1_000_003 + hashOf(r.Key, r.Value, at[:], []byte(t.digest))
	t.keys[string(r.Key)]++
	t.dirty[string(r.Key)] = true
	v.count, v.chain = t.count, t.chain^t.keys[string(r.Key)]
	key := byte('a' + (int(v.id)*7+t.t.level*3)%5)
	return frame.Record{Time: r.Time, Key: []byte{key}, Value: v.encode(r.Value[valueHead:])}
}

func (t *tally) Freeze(full bool) ([]dataflow.Change, error) {
	head := binary.LittleEndian.AppendUint64(nil, t.count)
	changes := []dataflow.Change{{Space: dataflow.SpaceGlobal, Key: []byte("n"), Value: binary.LittleEndian.AppendUint64(head, t.chain)}}
	var keys []string
	for k := range t.keys {
		if full || t.dirty[k] {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		changes = append(changes, dataflow.Change{Space: dataflow.SpaceKeyed, Key: []byte(k), Value: binary.LittleEndian.AppendUint64(nil, t.keys[k])})
	}
	clear(t.dirty)
	return changes, nil
}

func (t *tally) Close() error { return nil }
