package dataflow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/frame"
)

// scripted is an operator whose calls a test writes.
type scripted struct {
	process func(b Batch, emit Emit) error
	changes []Change
	failing error // of Freeze and Close
	full    []bool
	closed  int
}

func (o *scripted) Process(b Batch, emit Emit) error { return o.process(b, emit) }

func (o *scripted) Freeze(full bool) ([]Change, error) {
	o.full = append(o.full, full)
	return o.changes, o.failing
}

func (o *scripted) Close() error {
	o.closed++
	return o.failing
}

// shop gives out operators by name, and notes the state that each was made from.
type shop struct {
	ops   map[string]*scripted
	state map[string][]string
}

func (s *shop) New(_ context.Context, spec OperatorSpec, state StateReader) (Operator, error) {
	op := s.ops[spec.Name]
	if op == nil {
		return nil, fmt.Errorf("no operator %s", spec.Name)
	}
	if state == nil {
		return op, nil
	}
	err := state(func(c Change) error {
		s.state[spec.Name] = append(s.state[spec.Name], fmt.Sprintf("%d %s=%s", c.Space, c.Key, c.Value))
		return nil
	})
	return op, err
}

// pass emits every batch as it came, on one output, and scribbles over what it lent.
func pass(output int) func(Batch, Emit) error {
	return func(b Batch, emit Emit) error {
		lent := slices.Clone(b.Payload)
		err := emit(output, lent, b.Count)
		for i := range lent {
			lent[i] = 0xa5
		}
		return err
	}
}

// chainOf opens a chain of operators with the given targets per output. Edge 0 has three channels,
// edge 1 one; there are two sinks.
func chainOf(t *testing.T, targets [][][]Target, ops ...*scripted) *chain {
	t.Helper()
	c := &chain{}
	s := &shop{ops: map[string]*scripted{}}
	for i, op := range ops {
		name := fmt.Sprintf("op%d", i)
		s.ops[name] = op
		c.spec.Ops = append(c.spec.Ops, OpSpec{
			Operator: OperatorSpec{Name: name, Outputs: make([]string, len(targets[i]))}, Outputs: targets[i],
		})
	}
	byKey := func(key []byte) int { return int(key[len(key)-1]-'0') % 3 }
	pool := &framePool{}
	for _, e := range []EdgeSpec{{Channels: make([]OutChannel, 3), Partition: byKey}, {Channels: make([]OutChannel, 1)}} {
		var outs []*outlet
		for _, oc := range e.Channels {
			outs = append(outs, newOutlet(1, oc, pool))
		}
		c.spec.Edges = append(c.spec.Edges, e)
		c.outlets = append(c.outlets, outs)
	}
	c.sinks = []*sinkPort{portOf(&shelf{}), portOf(&shelf{})}
	if err := c.open(t.Context(), s, nil, false); err != nil {
		t.Fatal(err)
	}
	return c
}

// keyed is a payload of records, one per key; the value tells the place.
func keyed(keys ...string) Batch {
	b := Batch{Stamp: 99, Count: len(keys)}
	for i, k := range keys {
		b.Payload = frame.AppendRecord(b.Payload, frame.Record{Time: int64(i), Key: []byte(k), Headers: []byte{1, 0, 0, 'h'}, Value: fmt.Appendf(nil, "%s#%d", k, i)})
	}
	return b
}

func (p *sinkPort) values(t *testing.T) string {
	var all []byte
	for _, it := range p.items {
		all = append(all, it.record...)
	}
	return strings.Join(payloadValues(t, all), " ")
}

func (o *outlet) values(t *testing.T) string {
	o.flush(1)
	var all []byte
	for _, f := range o.window {
		if _, _, err := frame.Decode(f.buf); err != nil {
			t.Fatal(err)
		}
		all = append(all, f.buf[frame.HeaderSize:]...)
	}
	return strings.Join(payloadValues(t, all), " ")
}

func TestChainRoutesByKey(t *testing.T) {
	c := chainOf(t, nil)
	both := []Target{{Kind: ToEdge, Index: 0}, {Kind: ToEdge, Index: 1}, {Kind: ToSink, Index: 1}}
	for _, b := range []Batch{keyed("k1", "k0", "k4"), keyed("k2", "k1")} {
		if err := c.run(both, b, 1); err != nil {
			t.Fatal(err)
		}
	}
	mustEqual(t, "partition 0", c.outlets[0][0].values(t), "k0#1")
	mustEqual(t, "partition 1", c.outlets[0][1].values(t), "k1#0 k4#2 k1#1")
	mustEqual(t, "partition 2", c.outlets[0][2].values(t), "k2#0")
	mustEqual(t, "single channel", c.outlets[1][0].values(t), "k1#0 k0#1 k4#2 k2#0 k1#1")
	mustEqual(t, "sink", c.sinks[1].values(t), "k1#0 k0#1 k4#2 k2#0 k1#1")
	mustEqual(t, "other sink", c.sinks[0].values(t), "")
}

func TestChainRekeys(t *testing.T) {
	c := chainOf(t, nil)
	upper := Target{Kind: ToSink, Rekey: func(r frame.Record) ([]byte, error) {
		if string(r.Key) == "bad" {
			return nil, errors.New("no such field")
		}
		if string(r.Key) == "long" {
			return make([]byte, 1<<16), nil
		}
		return append([]byte("new-"), r.Key...), nil
	}}
	b := keyed("a", "b")
	before := slices.Clone(b.Payload)
	if err := c.run([]Target{upper, {Kind: ToSink, Index: 1}}, b, 1); err != nil {
		t.Fatal(err)
	}
	mustBytes(t, "the other target's records", b.Payload, before)
	mustBytes(t, "the other target's record", c.sinks[1].items[0].record, before[:len(before)/2])
	for i, it := range c.sinks[0].items {
		r, _, err := frame.Next(it.record)
		if err != nil {
			t.Fatal(err)
		}
		want, _, _ := frame.Next(keyed("a", "b").Payload[i*len(before)/2:])
		mustBytes(t, "key", r.Key, append([]byte("new-"), want.Key...))
		mustBytes(t, "value", r.Value, want.Value)
		mustBytes(t, "headers", r.Headers, want.Headers)
		mustEqual(t, "time", r.Time, want.Time)
	}
	for _, key := range []string{"bad", "long"} {
		var guest *GuestError
		if err := c.run([]Target{upper}, keyed("a", key), 1); !errors.As(err, &guest) || guest.Operator != "key_by" {
			t.Errorf("key %s: %v", key, err)
		}
	}
}

// TestChainOutputs: each output's records go to each of its targets, a batch to its end before the
// next, and an output without records calls nobody.
func TestChainOutputs(t *testing.T) {
	calls := 0
	split := &scripted{process: func(b Batch, emit Emit) error {
		for rest := b.Payload; len(rest) > 0; {
			r, after, err := frame.Next(rest)
			if err != nil {
				return err
			}
			if err := pass(int(r.Key[0]-'0'))(Batch{Payload: rest[:len(rest)-len(after)], Count: 1}, emit); err != nil {
				return err
			}
			rest = after
		}
		return nil
	}}
	next := &scripted{process: func(b Batch, emit Emit) error {
		calls++
		mustEqual(t, "stamp", b.Stamp, 99)
		mustEqual(t, "input", b.Input, 4)
		n, err := frame.Count(b.Payload)
		if err != nil || n != b.Count {
			t.Fatalf("%d records, %v, the batch says %d", n, err, b.Count)
		}
		return pass(0)(b, emit)
	}}
	c := chainOf(t, [][][]Target{
		{{{Kind: ToSink}, {Kind: ToOp, Index: 1, Input: 4}}, {{Kind: ToSink, Index: 1}}, nil},
		{{{Kind: ToEdge, Index: 1}, {Kind: ToSink, Index: 1}}},
	}, split, next)
	entry := []Target{{Kind: ToOp, Index: 0}}
	for _, b := range []Batch{keyed("1", "0", "1", "0"), keyed("1"), keyed("2"), keyed("0")} {
		if err := c.run(entry, b, 1); err != nil {
			t.Fatal(err)
		}
	}
	mustEqual(t, "calls of the second operator", calls, 2)
	mustEqual(t, "sink 0", c.sinks[0].values(t), "0#1 0#3 0#0")
	mustEqual(t, "sink 1", c.sinks[1].values(t), "0#1 0#3 1#0 1#2 1#0 0#0")
	mustEqual(t, "edge", c.outlets[1][0].values(t), "0#1 0#3 0#0")
}

func TestChainPassesErrorsOn(t *testing.T) {
	trap := &GuestError{"op1", "unreachable"}
	first := &scripted{process: pass(0)}
	c := chainOf(t, [][][]Target{{{{Kind: ToOp, Index: 1}}}, {nil}},
		first, &scripted{process: func(Batch, Emit) error { return trap }})
	entry := []Target{{Kind: ToOp}, {Kind: ToSink}}
	if err := c.run(entry, keyed("a"), 1); !errors.Is(err, trap) {
		t.Fatalf("got %v", err)
	}
	mustEqual(t, "the target behind the failure", c.sinks[0].values(t), "")
	for _, output := range []int{-1, 1} {
		first.process = pass(output)
		if err := c.run(entry, keyed("a"), 1); err == nil || !strings.Contains(err.Error(), "output") {
			t.Errorf("output %d: %v", output, err)
		}
	}
	for _, target := range []Target{{Kind: ToEdge}, {Kind: ToSink}, {Kind: ToSink, Rekey: func(frame.Record) ([]byte, error) { return nil, nil }}} {
		if err := c.run([]Target{target}, Batch{Payload: []byte("no record"), Count: 1}, 1); !errors.Is(err, frame.ErrCorrupt) {
			t.Errorf("malformed records to %v: %v", target.Kind, err)
		}
	}
}

// TestChainStatePrefixes: an operator's state is kept under its place in the chain, and given back
// to the operator at that place without it.
func TestChainStatePrefixes(t *testing.T) {
	first := &scripted{changes: []Change{{SpaceKeyed, []byte("k"), []byte("1")}, {SpaceMemory, nil, []byte{}}}}
	second := &scripted{changes: []Change{{SpaceKeyed, []byte("k"), nil}}}
	c := chainOf(t, [][][]Target{nil, nil}, first, second)
	saved, err := c.freeze(true)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		space Space
		key   string
		value []byte
	}{{SpaceKeyed, "\x00\x00k", []byte("1")}, {SpaceMemory, "\x00\x00", []byte{}}, {SpaceKeyed, "\x00\x01k", nil}} {
		got := saved[i]
		if got.Space != want.space || string(got.Key) != want.key || string(got.Value) != string(want.value) || (got.Value == nil) != (want.value == nil) {
			t.Fatalf("change %d is %+v", i, got)
		}
	}
	if _, err := c.freeze(false); err != nil {
		t.Fatal(err)
	}
	for _, op := range []*scripted{first, second} {
		if !slices.Equal(op.full, []bool{true, false}) {
			t.Fatalf("asked for full %v", op.full)
		}
	}
	s := &shop{ops: map[string]*scripted{"op0": first, "op1": second}, state: map[string][]string{}}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	err = c.open(t.Context(), s, func(visit func(Change) error) error {
		for _, ch := range []Change{
			{SpaceKeyed, []byte("\x00\x00k"), []byte("1")}, {SpaceKeyed, []byte("\x00\x01k"), []byte("2")},
			{SpaceTimer, []byte("\x00\x01"), []byte("3")}, {SpaceDedupe, []byte("\x00\x01"), []byte("of the source")},
		} {
			if err := visit(ch); err != nil {
				return err
			}
		}
		return nil
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "state of the first", strings.Join(s.state["op0"], ", "), "3 k=1")
	mustEqual(t, "state of the second", strings.Join(s.state["op1"], ", "), "3 k=2, 4 =3")
	mustEqual(t, "operators", len(c.ops), 2)
}

func TestChainOpensAndClosesAll(t *testing.T) {
	bad := errors.New("does not close")
	ops := []*scripted{{failing: bad}, {}}
	c := chainOf(t, [][][]Target{nil, nil}, ops...)
	if _, err := c.freeze(false); !errors.Is(err, bad) || !strings.Contains(err.Error(), "op0") {
		t.Fatalf("freeze: %v", err)
	}
	if err := c.close(); !errors.Is(err, bad) {
		t.Fatalf("close: %v", err)
	}
	for i, op := range ops {
		mustEqual(t, fmt.Sprintf("closings of operator %d", i), op.closed, 1)
	}
	if err := c.close(); err != nil {
		t.Fatalf("closed twice: %v", err)
	}
	s := &shop{ops: map[string]*scripted{"op0": ops[0]}}
	if err := c.open(t.Context(), s, nil, false); err == nil || !strings.Contains(err.Error(), "op1") {
		t.Fatalf("open: %v", err)
	}
	_ = c.close()
	mustEqual(t, "closings of what was opened", ops[0].closed, 2)
	broken := errors.New("unreadable")
	err := c.open(t.Context(), &shop{ops: map[string]*scripted{"op0": {}}}, func(func(Change) error) error { return broken }, false)
	if !errors.Is(err, broken) {
		t.Fatalf("open from a broken state: %v", err)
	}
}
