// Rate puts out how fast a reading changes; README.md has its configuration.
package main

import (
	weir "github.com/weir-stream/weir/sdk/go"
	"github.com/weir-stream/weir/sdk/go/ops"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Init: start, Process: process}

var (
	reading  ops.Reading
	rate     ops.Rate
	decimals int
	buf      []byte
)

func start(c weir.Config) error {
	s := ops.Read(c)
	reading, decimals = ops.Reading{Field: s.Path("field", "v")}, s.Int("decimals", 3, 0, 9)
	rate = ops.Rate{Per: s.Duration("per", 1000), Counter: s.Bool("counter"), Store: s.Store("state")}
	if rate.Per == 0 {
		rate.Per = -1 // what Init takes 0 for is not what was asked for
	}
	if err := rate.Init(); err != nil {
		s.Wrong("per", "does not do: "+err.Error())
	}
	return s.Done()
}

func process(r weir.Record, out *weir.Out) error {
	v, ok := reading.Of(r.Value)
	if !ok {
		weir.Count("not_a_reading", 1)
		return nil
	}
	change, ok, what, err := rate.Add(r.Key, r.Time, v)
	switch {
	case what == ops.Late:
		weir.Count("out_of_order", 1)
	case ok:
		buf = append(weir.AppendFixed(append(buf[:0], `{"v":`...), change, decimals), '}')
		out.Emit(r.Key, r.Time, buf)
	}
	return err
}
