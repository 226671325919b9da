// Dedup drops records that come again; README.md has its configuration.
package main

import (
	weir "github.com/weir-stream/weir/sdk/go"
	"github.com/weir-stream/weir/sdk/go/ops"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Outputs: []string{"repeats"}, Init: start, Process: process}

var (
	dedup ops.Dedup
	id    weir.Path
)

func start(c weir.Config) error {
	s := ops.Read(c)
	id = s.Path("id", "id")
	dedup = ops.Dedup{Within: s.Duration("within", 0)}
	switch {
	case dedup.Within == 0:
		dedup.Last, dedup.Store = s.Int("last", 128, 1, 4096), s.Store("state")
	case s.Has("last"):
		s.Wrong("last", "is not used together with within")
	case s.Has("state"):
		s.Wrong("state", "is not used together with within: ids are then in keyed state")
	}
	if err := dedup.Init(); err != nil {
		s.Wrong("within", "does not do: "+err.Error())
	}
	return s.Done()
}

func process(r weir.Record, out *weir.Out) error {
	what := r.Value
	if len(id) > 0 {
		var ok bool
		if what, ok = id.Find(r.Value); !ok {
			weir.Count("without_id", 1)
			out.EmitRecord(weir.MainOutput, r)
			return nil
		}
	}
	seen, err := dedup.Seen(r.Key, r.Time, what)
	if err != nil {
		return err
	}
	if seen {
		weir.Count("repeats", 1)
		out.EmitRecord("repeats", r)
	} else {
		out.EmitRecord(weir.MainOutput, r)
	}
	return nil
}
