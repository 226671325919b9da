// Parse is the demo's operator on each gateway: it takes {"seq":n,…} of a sensor, and passes on the
// number and how many readings of that sensor this gateway has seen. What is not such a reading goes
// to the output "malformed". Its state is an ordinary map.
package main

import (
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Outputs: []string{"malformed"}, Process: process}

var (
	seen = map[string]int64{}
	buf  []byte
)

func process(r weir.Record, out *weir.Out) error {
	seq, ok := weir.JSONNumber(r.Value, "seq")
	if !ok {
		out.EmitRecord("malformed", r)
		return nil
	}
	n := seen[string(r.Key)] + 1
	seen[string(r.Key)] = n
	buf = append(buf[:0], `{"seq":`...)
	buf = strconv.AppendInt(buf, int64(seq), 10)
	buf = append(buf, `,"gateway":`...)
	buf = strconv.AppendInt(buf, n, 10)
	out.Emit(r.Key, r.Time, append(buf, '}'))
	return nil
}
