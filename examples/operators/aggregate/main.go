// Aggregate keeps running aggregates of each key; README.md has its configuration.
package main

import (
	weir "github.com/weir-stream/weir/sdk/go"
	"github.com/weir-stream/weir/sdk/go/ops"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Init: start, Process: process}

var (
	aggregate *ops.Aggregate
	running   ops.Running
	every     uint64
	buf       []byte
)

func start(c weir.Config) error {
	s := ops.Read(c)
	aggregate = s.Aggregate()
	running = ops.Running{Fold: aggregate, Store: s.Store("state")}
	every = uint64(s.Int("every", 1, 1, 1<<30))
	if err := running.Init(); err != nil {
		return err
	}
	return s.Done()
}

func process(r weir.Record, out *weir.Out) error {
	acc, what, err := running.Add(r)
	if err != nil {
		return err
	}
	if what == ops.Ignored {
		weir.Count("not_a_reading", 1)
		return nil
	}
	if aggregate.Count(acc)%every == 0 {
		buf = append(aggregate.AppendFields(append(buf[:0], '{'), acc), '}')
		out.Emit(r.Key, r.Time, buf)
	}
	return nil
}
