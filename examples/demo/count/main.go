// Count is the demo's operator on the hub: a running count of the records of each key, with the seq of
// the last one, {"n":count,"seq":seq}. Its state is an ordinary map.
package main

import (
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Process: process}

var (
	counts = map[string]int64{}
	buf    []byte
)

func process(r weir.Record, out *weir.Out) error {
	n := counts[string(r.Key)] + 1
	counts[string(r.Key)] = n
	buf = append(buf[:0], `{"n":`...)
	buf = strconv.AppendInt(buf, n, 10)
	if seq, ok := weir.JSONNumber(r.Value, "seq"); ok {
		buf = append(buf, `,"seq":`...)
		buf = strconv.AppendInt(buf, int64(seq), 10)
	}
	out.Emit(r.Key, r.Time, append(buf, '}'))
	return nil
}
