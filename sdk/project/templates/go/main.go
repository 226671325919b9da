// The operator: sums the readings of each key.
package main

import (
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(weir.Operator{Init: start, Process: process}) }

func main() {}

// total is what is known of one key. Variables are state: the host captures and restores them.
type total struct {
	n   int64
	sum float64
}

var (
	field  string // JSON field that holds the reading
	totals = map[string]*total{}
	text   []byte
)

func start(c weir.Config) error {
	field = c.String("field", "v")
	return nil
}

func process(r weir.Record, out *weir.Out) error {
	v, ok := weir.JSONNumber(r.Value, field)
	if !ok {
		weir.Count("not_a_reading", 1)
		return nil
	}
	t := totals[string(r.Key)]
	if t == nil {
		t = &total{}
		totals[string(r.Key)] = t
	}
	t.n++
	t.sum += v
	text = strconv.AppendInt(append(text[:0], `{"n":`...), t.n, 10)
	text = weir.AppendFixed(append(text, `,"sum":`...), t.sum, 3)
	out.Emit(r.Key, r.Time, append(text, '}'))
	return nil
}
