// Filter is the benchmark's operator: it passes on the records whose JSON field value is above 50.
package main

import weir "github.com/weir-stream/weir/sdk/go"

func init() { weir.Register(weir.Operator{Process: process}) }

func main() {}

func process(r weir.Record, out *weir.Out) error {
	if v, ok := weir.JSONNumber(r.Value, "value"); ok && v > 50 {
		out.EmitRecord("out", r)
	}
	return nil
}
