// Ewma smooths the readings of each sensor with an exponentially weighted moving average, and reports
// a reading that lies far from it on the output "alerts". Its state is an ordinary map.
package main

import (
	"errors"
	"math"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Outputs: []string{"alerts"}, Init: start, Process: process}

var (
	alpha     float64 // weight of a new reading, above 0 and at most 1
	deviation float64 // how many times the usual deviation a reading may be off
	warmup    int     // readings of a sensor before it can raise an alert
	field     string  // JSON field that holds the reading
)

func start(c weir.Config) (err error) {
	if alpha, err = c.Float("alpha", 0.2); err != nil {
		return err
	}
	if deviation, err = c.Float("deviation", 4); err != nil {
		return err
	}
	if warmup, err = c.Int("warmup", 5); err != nil {
		return err
	}
	field = c.String("field", "v")
	if alpha <= 0 || alpha > 1 {
		return errors.New("config alpha: must be above 0 and at most 1")
	}
	return nil
}

// sensor is what is known of one sensor.
type sensor struct {
	mean   float64
	spread float64 // smoothed absolute deviation
	seen   int
}

var (
	sensors = map[string]*sensor{}
	buf     []byte
)

func process(r weir.Record, out *weir.Out) error {
	v, ok := reading(r.Value)
	if !ok {
		weir.Count("not_a_reading", 1)
		return nil
	}
	s := sensors[string(r.Key)]
	if s == nil {
		s = &sensor{mean: v}
		sensors[string(r.Key)] = s
	}
	off := math.Abs(v - s.mean)
	if s.seen >= warmup && off > deviation*s.spread {
		buf = append(buf[:0], `{"v":`...)
		buf = number(buf, v)
		buf = append(buf, `,"mean":`...)
		buf = number(buf, s.mean)
		out.EmitTo("alerts", r.Key, r.Time, append(buf, '}'))
	}
	s.mean += alpha * (v - s.mean)
	s.spread += alpha * (off - s.spread)
	s.seen++
	buf = append(buf[:0], `{"v":`...)
	buf = number(buf, s.mean)
	out.Emit(r.Key, r.Time, append(buf, '}'))
	return nil
}

// reading takes a bare number or an object with a number in the field.
func reading(value []byte) (float64, bool) {
	if v, ok := weir.JSONNumber(value, field); ok {
		return v, true
	}
	return weir.ParseNumber(value)
}

// number rounds to thousandths: enough for a reading, short, and the same text in every language.
func number(dst []byte, v float64) []byte { return weir.AppendFixed(dst, v, 3) }
