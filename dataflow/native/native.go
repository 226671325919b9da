// Package native has operators that are part of the host: keyed aggregates. They are there for jobs
// that need no more, and as the measure of what WebAssembly costs.
//
// An operator here is a [Function] over a [State]. The state is the interface of Carbone et al. 2015,
// section 6: an operator updates it, and the runtime checkpoints it.
package native

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// Prefix of a digest that names an operator of this package.
const Prefix = "native:"

// State is keyed operator state.
type State interface {
	// Get returns a key's value, nil if it has none. It is the state's own: not to be changed.
	Get(key []byte) []byte
	// Update sets a key's value.
	Update(key, value []byte)
	// Checkpoint returns what has changed since the last one, or, if full, all. The changes own
	// their memory.
	Checkpoint(full bool) []dataflow.Change
}

// Function is what an operator does with one record: it updates the state and appends to out the
// value of the record that it makes, which keeps key and time. An error gives the record up.
type Function func(r frame.Record, s State, out []byte) ([]byte, error)

// Names are the operators of this package, sorted.
func Names() []string { return []string{"count", "max", "mean", "min", "sum"} }

// Operators makes the operators of this package. It implements [dataflow.Operators] for specs whose
// digest begins with [Prefix].
type Operators struct{}

// New implements [dataflow.Operators].
func (Operators) New(_ context.Context, spec dataflow.OperatorSpec, state dataflow.StateReader) (dataflow.Operator, error) {
	name := strings.TrimPrefix(spec.Digest, Prefix)
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("no native operator %q; there are %s", name, strings.Join(Names(), ", "))
	}
	for key := range spec.Config {
		if key != "field" {
			return nil, fmt.Errorf("native operator %s: unknown configuration %q; there is field, the JSON field that is aggregated", name, key)
		}
	}
	op := &operator{name: spec.Name, f: aggregate(name, spec.Config["field"]), state: newTable()}
	if state == nil || spec.Fresh {
		return op, nil
	}
	return op, state(func(c dataflow.Change) error {
		if c.Space == dataflow.SpaceKeyed {
			op.state.values[string(c.Key)] = slices.Clone(c.Value)
		}
		return nil
	})
}

// operator runs a function. It implements [dataflow.Operator].
type operator struct {
	name  string
	f     Function
	state *table
	out   []byte
	value []byte
}

// Process implements [dataflow.Operator].
func (o *operator) Process(b dataflow.Batch, emit dataflow.Emit) error {
	o.out = o.out[:0]
	n := 0
	for rest := b.Payload; len(rest) > 0; n++ {
		r, after, err := frame.Next(rest)
		if err != nil {
			return err
		}
		if o.value, err = o.f(r, o.state, o.value[:0]); err != nil {
			return &dataflow.GuestError{Operator: o.name, Reason: err.Error()}
		}
		o.out = frame.AppendRecord(o.out, frame.Record{Key: r.Key, Time: r.Time, Headers: r.Headers, Value: o.value})
		rest = after
	}
	return emit(0, o.out, n)
}

// Freeze implements [dataflow.Operator].
func (o *operator) Freeze(full bool) ([]dataflow.Change, error) { return o.state.Checkpoint(full), nil }

// Copy returns all of the state, and changes nothing of what the next Freeze returns.
func (o *operator) Copy() ([]dataflow.Change, error) { return o.state.all(), nil }

// Close implements [dataflow.Operator].
func (o *operator) Close() error { return nil }

// table is a [State] in memory that knows what has changed.
type table struct {
	values map[string][]byte
	dirty  map[string]bool
}

func newTable() *table { return &table{map[string][]byte{}, map[string]bool{}} }

// Get implements [State].
func (t *table) Get(key []byte) []byte { return t.values[string(key)] }

// Update implements [State].
func (t *table) Update(key, value []byte) {
	if old, ok := t.values[string(key)]; ok && len(old) == len(value) {
		copy(old, value)
	} else {
		t.values[string(key)] = slices.Clone(value)
	}
	if !t.dirty[string(key)] {
		t.dirty[string(key)] = true
	}
}

// Checkpoint implements [State].
func (t *table) Checkpoint(full bool) []dataflow.Change {
	defer clear(t.dirty)
	if full {
		return t.all()
	}
	var out []dataflow.Change
	for key := range t.dirty {
		out = append(out, t.change(key))
	}
	return out
}

// all is the whole state; the changes own their memory.
func (t *table) all() []dataflow.Change {
	var out []dataflow.Change
	for key := range t.values {
		out = append(out, t.change(key))
	}
	return out
}

func (t *table) change(key string) dataflow.Change {
	return dataflow.Change{Space: dataflow.SpaceKeyed, Key: []byte(key), Value: slices.Clone(t.values[key])}
}

// aggregate returns the function of a name. What it keeps per key is a count and a number.
func aggregate(name, field string) Function {
	kept := make([]byte, 0, 16)
	return func(r frame.Record, s State, out []byte) ([]byte, error) {
		x := 0.0
		if name != "count" {
			var err error
			if x, err = number(r.Value, field); err != nil {
				return out, err
			}
		}
		n, acc := unpack(s.Get(r.Key))
		acc = fold(name, n, acc, x)
		n++
		kept = pack(kept[:0], n, acc)
		s.Update(r.Key, kept)
		if name == "count" {
			return append(strconv.AppendUint(append(out, `{"count":`...), n, 10), '}'), nil
		}
		v := acc
		if name == "mean" {
			v = acc / float64(n)
		}
		out = append(append(append(out, `{"`...), name...), `":`...)
		out = strconv.AppendFloat(out, v, 'g', -1, 64)
		return append(strconv.AppendUint(append(out, `,"count":`...), n, 10), '}'), nil
	}
}

// fold adds x, the (n+1)-th number, to what was kept.
func fold(name string, n uint64, acc, x float64) float64 {
	switch {
	case name == "count":
		return 0
	case n == 0:
		return x
	case name == "min":
		return math.Min(acc, x)
	case name == "max":
		return math.Max(acc, x)
	}
	return acc + x
}

func number(value []byte, field string) (float64, error) {
	text := string(value)
	if field != "" {
		v := gjson.GetBytes(value, field)
		if v.Type != gjson.Number {
			return 0, fmt.Errorf("field %q is not a number", field)
		}
		text = v.Raw
	}
	x, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, fmt.Errorf("%.40q is not a number; name the JSON field that holds one with config: {field: …}", text)
	}
	return x, nil
}

func pack(dst []byte, n uint64, acc float64) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, n)
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(acc))
}

func unpack(b []byte) (n uint64, acc float64) {
	if len(b) < 16 {
		return 0, 0
	}
	return binary.LittleEndian.Uint64(b), math.Float64frombits(binary.LittleEndian.Uint64(b[8:]))
}
