// Bench has the operators that benchmarks compare, see BenchmarkOperators in sdk/project: "mode" is noop, filter, count or
// state.
package main

import (
	"encoding/binary"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(weir.Operator{Init: start, Process: process}) }

func main() {}

var (
	mode   string
	counts = map[string]*int64{}
	text   []byte
	value  [8]byte
)

func start(c weir.Config) error {
	mode = c.String("mode", "noop")
	return nil
}

func process(r weir.Record, out *weir.Out) error {
	switch mode {
	case "filter":
		if n := len(r.Value); n > 0 && r.Value[n-1]&1 == 1 {
			out.EmitRecord(weir.MainOutput, r)
		}
	case "count":
		n := counts[string(r.Key)]
		if n == nil {
			n = new(int64)
			counts[string(r.Key)] = n
		}
		*n++
		text = strconv.AppendInt(text[:0], *n, 10)
		out.Emit(r.Key, r.Time, text)
	case "state":
		n := uint64(0)
		if had, ok := weir.State.Get(r.Key, value[:]); ok {
			n = binary.LittleEndian.Uint64(had)
		}
		n++
		binary.LittleEndian.PutUint64(value[:], n)
		weir.State.Put(r.Key, value[:])
		text = strconv.AppendUint(text[:0], n, 10)
		out.Emit(r.Key, r.Time, text)
	}
	return nil
}
