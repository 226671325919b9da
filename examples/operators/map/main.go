// Map makes a new value, and a new key, of each record; README.md has its configuration.
package main

import (
	"errors"

	weir "github.com/weir-stream/weir/sdk/go"
	"github.com/weir-stream/weir/sdk/go/ops"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Init: start, Process: process}

var (
	set        []ops.Assignment
	value, key *ops.Expr // nil: not asked for
	keep       bool
	decimals   int
	buf, name  []byte
)

func start(c weir.Config) error {
	s := ops.Read(c)
	keep, decimals = s.Bool("keep"), s.Int("decimals", 6, 0, 9)
	if s.Has("key") {
		key = s.Expr("key")
	}
	switch {
	case s.Has("value") && s.Has("set"):
		s.Wrong("value", "is not used together with set")
	case s.Has("value"):
		value = s.Expr("value")
	case s.Has("set"):
		set = s.Assignments("set")
	case !s.Has("key"):
		s.Wrong("set", "is needed, or value, or key")
	}
	return s.Done()
}

func process(r weir.Record, out *weir.Out) error {
	if key != nil {
		k := key.Eval(r)
		if k.Kind == ops.Null {
			return errors.New("the key comes to null")
		}
		name = k.AppendText(name[:0], decimals)
	} else {
		name = append(name[:0], r.Key...)
	}
	switch {
	case value != nil:
		buf = value.Eval(r).AppendText(buf[:0], decimals)
	case set != nil:
		buf = ops.AppendObject(buf[:0], r, set, keep, decimals)
	default:
		buf = append(buf[:0], r.Value...)
	}
	r.Key, r.Value = name, buf
	out.EmitRecord(weir.MainOutput, r)
	return nil
}
