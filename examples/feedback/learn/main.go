// Learn is the body of the example's loop. It passes alarms on, and moves the threshold of the alarm's key
// towards the reading that raised it: the output "threshold" goes back to the operator watch.
package main

import (
	"errors"
	"fmt"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Outputs: []string{"threshold", "broken"}, Init: start, Process: process}

var rate float64 // share of the way to the reading

func start(c weir.Config) (err error) {
	if rate, err = c.Float("rate", 0.5); err == nil && (rate <= 0 || rate > 1) {
		err = errors.New("config rate: must be above 0 and at most 1")
	}
	return err
}

var (
	seen = map[string]int64{} // alarms, by key
	buf  []byte
)

func process(r weir.Record, out *weir.Out) error {
	n, ok := weir.JSONNumber(r.Value, "n")
	v, okV := weir.JSONNumber(r.Value, "v")
	above, okA := weir.JSONNumber(r.Value, "above")
	if !ok || !okV || !okA {
		weir.Count("not_an_alarm", 1)
		return nil
	}
	want := seen[string(r.Key)] + 1
	if seen[string(r.Key)] = int64(n); int64(n) != want {
		out.EmitTo("broken", r.Key, r.Time, fmt.Appendf(buf[:0], `{"alarm":%d,"expected":%d}`, int64(n), want))
	}
	out.Emit(r.Key, r.Time, r.Value)
	buf = append(buf[:0], `{"n":`...)
	buf = strconv.AppendInt(buf, int64(n), 10)
	buf = append(buf, `,"threshold":`...)
	buf = strconv.AppendFloat(buf, above+rate*(v-above), 'g', -1, 64)
	out.EmitTo("threshold", r.Key, r.Time, append(buf, '}'))
	return nil
}
