// Join joins records of several inputs that have the same key; README.md has its configuration.
package main

import (
	"strings"

	weir "github.com/weir-stream/weir/sdk/go"
	"github.com/weir-stream/weir/sdk/go/ops"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Outputs: []string{"late"}, Init: start, Process: process, OnTimer: timer}

// The join is one of these, the other is nil.
var (
	interval *ops.IntervalJoin
	latest   *ops.LatestJoin
)

var (
	names   []string // of the inputs
	first   bool     // results come out for records of the first input alone
	partial bool     // and before all inputs have a value
	buf     []byte
)

func start(c weir.Config) error {
	s := ops.Read(c)
	kind := s.Choice("kind", "latest", "interval")
	names = nil
	for name := range strings.SplitSeq(s.String("names", "left,right"), ",") {
		if name = strings.Trim(name, " "); name == "" {
			s.Wrong("names", "has an empty name")
		}
		names = append(names, name)
	}
	first, partial = s.Choice("emit", "any", "first") == "first", s.Bool("partial")
	if kind == "interval" {
		if len(names) != 2 {
			s.Wrong("names", "is not two names: an interval join has two inputs")
		}
		interval = &ops.IntervalJoin{Lower: s.Span("lower", 0), Upper: s.Span("upper", 0), Lateness: s.Duration("lateness", 0)}
		if err := interval.Init(); err != nil {
			s.Wrong("lower", "does not do: "+err.Error())
		}
		interval.Pair = pair
		return s.Done()
	}
	latest = &ops.LatestJoin{Inputs: len(names), MaxAge: s.Duration("max_age", 0), Store: s.Store("state")}
	if err := latest.Init(); err != nil {
		s.Wrong("names", "does not do: "+err.Error())
	}
	return s.Done()
}

func process(r weir.Record, out *weir.Out) error {
	var what ops.Outcome
	var err error
	if interval != nil {
		what, err = interval.Add(r, out)
	} else {
		var sides []ops.Side
		if sides, what, err = latest.Add(r); what == ops.Taken {
			emit(r, sides, out)
		}
	}
	if what == ops.Late {
		weir.Count("late", 1)
		out.EmitRecord("late", r)
	}
	return err
}

func timer(t weir.Timer, out *weir.Out) (err error) {
	if interval != nil {
		_, err = interval.OnTimer(t, out)
	}
	return err
}

// emit puts out the latest values, if all are there that are asked for.
func emit(r weir.Record, sides []ops.Side, out *weir.Out) {
	if first && r.Input != 0 {
		return
	}
	for _, s := range sides {
		if s.Value == nil && !partial {
			return
		}
	}
	buf = buf[:0]
	for i, s := range sides {
		field(i, s.Value)
	}
	out.Emit(r.Key, r.Time, append(buf, '}'))
}

func pair(key []byte, left, right ops.Side, out *weir.Out) error {
	buf = buf[:0]
	field(0, left.Value)
	field(1, right.Value)
	out.Emit(key, max(left.Time, right.Time), append(buf, '}'))
	return nil
}

// field appends one input's value to the result.
func field(input int, value []byte) {
	open := byte(',')
	if input == 0 {
		open = '{'
	}
	buf = append(weir.AppendJSONString(append(buf, open), names[input]), ':')
	buf = ops.AppendJSON(buf, value)
}
