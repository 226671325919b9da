// Filter passes on the records for which an expression is true; README.md has its configuration.
package main

import (
	weir "github.com/weir-stream/weir/sdk/go"
	"github.com/weir-stream/weir/sdk/go/ops"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Outputs: []string{"rest"}, Init: start, Process: process}

var where *ops.Expr

func start(c weir.Config) error {
	s := ops.Read(c)
	where = s.Expr("where")
	return s.Done()
}

func process(r weir.Record, out *weir.Out) error {
	if where.Eval(r).True() {
		out.EmitRecord(weir.MainOutput, r)
	} else {
		out.EmitRecord("rest", r)
	}
	return nil
}
