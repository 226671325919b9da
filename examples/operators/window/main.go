// Window collects the records of each key in windows and puts out what a window has come to; README.md has its
// configuration.
package main

import (
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
	"github.com/weir-stream/weir/sdk/go/ops"
)

func init() { weir.Register(operator) }

func main() {}

var operator = weir.Operator{Outputs: []string{"late"}, Init: start, Process: process, OnTimer: timer}

// The window is one of these, the others are nil.
var (
	aligned *ops.Window
	session *ops.Session
	counted *ops.CountWindow
)

var (
	aggregate *ops.Aggregate
	buf       []byte
)

// What the key must be without which there is no window.
const (
	lasts   = "must be how long a window is: a duration above 0, such as 10s"
	ends    = "must be how long nothing comes until a session is over: a duration above 0, such as 30s"
	records = "must be how many records a window is of"
)

func start(c weir.Config) error {
	s := ops.Read(c)
	aggregate = s.Aggregate()
	kind := s.Choice("kind", "tumbling", "sliding", "session", "count")
	store, lateness := s.Store("state"), s.Duration("lateness", 0)
	key, err := "size", error(nil)
	switch kind {
	case "tumbling", "sliding":
		aligned = &ops.Window{Size: s.Duration("size", 0), Offset: s.Span("offset", 0), Lateness: lateness, Store: store, Fold: aggregate, Fire: fire}
		if aligned.Size == 0 {
			s.Wrong("size", lasts)
		}
		if kind == "sliding" {
			key = "slide"
			if aligned.Slide = s.Duration("slide", 0); aligned.Slide == 0 {
				s.Wrong("slide", "is not a duration above 0")
			}
		}
		err = aligned.Init()
	case "session":
		key = "gap"
		session = &ops.Session{Gap: s.Duration("gap", 0), Lateness: lateness, Store: store, Fold: aggregate, Fire: fire}
		if session.Gap == 0 {
			s.Wrong("gap", ends)
		}
		err = session.Init()
	case "count":
		counted = &ops.CountWindow{Size: s.Int("size", 0, 1, 1<<30), Every: s.Int("every", 0, 1, 1<<30), Store: store, Fold: aggregate}
		if counted.Size == 0 {
			s.Wrong("size", records)
		}
		err = counted.Init()
	}
	if err != nil {
		s.Wrong(key, "does not do: "+err.Error())
	}
	return s.Done()
}

func process(r weir.Record, out *weir.Out) (err error) {
	var what ops.Outcome
	switch {
	case aligned != nil:
		what, err = aligned.Add(r, out)
	case session != nil:
		what, err = session.Add(r, out)
	default:
		var acc []byte
		if acc, what, err = counted.Add(r); acc != nil {
			buf = append(aggregate.AppendFields(append(buf[:0], '{'), acc), '}')
			out.Emit(r.Key, r.Time, buf)
		}
	}
	switch what {
	case ops.Late:
		weir.Count("late", 1)
		out.EmitRecord("late", r)
	case ops.Ignored:
		if err == nil {
			weir.Count("not_a_reading", 1)
		}
	}
	return err
}

func timer(t weir.Timer, out *weir.Out) (err error) {
	if aligned != nil {
		_, err = aligned.OnTimer(t, out)
	} else if session != nil {
		_, err = session.OnTimer(t, out)
	}
	return err
}

// fire puts out a window's result, at the last time that is in it.
func fire(w ops.Result, out *weir.Out) error {
	buf = strconv.AppendInt(append(buf[:0], `{"start":`...), w.Start, 10)
	buf = strconv.AppendInt(append(buf, `,"end":`...), w.End, 10)
	buf = aggregate.AppendFields(append(buf, ','), w.Acc)
	if w.Update {
		buf = append(buf, `,"update":true`...)
	}
	out.Emit(w.Key, w.End-1, append(buf, '}'))
	return nil
}
