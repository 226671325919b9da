// Deadband drops readings that differ little from the last one that it has let pass; README.md has its configuration.
package main

import (
	weir "github.com/weir-stream/weir/sdk/go"
	"github.com/weir-stream/weir/sdk/go/ops"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Init: start, Process: process}

var (
	reading ops.Reading
	band    ops.Deadband
)

func start(c weir.Config) error {
	s := ops.Read(c)
	reading = ops.Reading{Field: s.Path("field", "v")}
	band = ops.Deadband{
		Band: s.Float("band", 0), Share: s.Float("percent", 0) / 100, MaxSilence: s.Duration("max_silence", 0), Store: s.Store("state"),
	}
	if err := band.Init(); err != nil {
		s.Wrong("band", "does not do: "+err.Error())
	}
	return s.Done()
}

func process(r weir.Record, out *weir.Out) error {
	v, ok := reading.Of(r.Value)
	if !ok {
		weir.Count("not_a_reading", 1)
		return nil
	}
	pass, err := band.Add(r.Key, r.Time, v)
	if pass {
		out.EmitRecord(weir.MainOutput, r)
	}
	return err
}
