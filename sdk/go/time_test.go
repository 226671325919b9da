package weir

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// clocked tells of everything that happens to it, by what it emits.
func clocked(failAt int64) Operator {
	tell := func(out *Out, format string, args ...any) {
		out.Emit(nil, Watermark(), fmt.Appendf(nil, format, args...))
	}
	return Operator{
		Process: func(r Record, out *Out) error {
			tell(out, "record %s", r.Key)
			SetTimer(EventTime, r.Time+10, r.Key)
			SetTimer(ProcessingTime, Now()+5, r.Key)
			State.PutUntil(r.Key, r.Value, r.Time+20)
			return nil
		},
		OnTimer: func(t Timer, out *Out) error {
			tell(out, "timer %d %d %s", t.Kind, t.At, t.Key)
			if t.At == failAt {
				return errors.New("this one fails")
			}
			if string(t.Key) == "again" {
				SetTimer(t.Kind, t.At, t.Key)
			}
			if string(t.Key) == "b" {
				ClearTimer(EventTime, t.At, []byte("c"))
			}
			return nil
		},
		OnWatermark: func(at int64, out *Out) error {
			tell(out, "watermark")
			return nil
		},
		OnEnd: func(out *Out) error {
			tell(out, "end")
			return nil
		},
	}
}

func said(t *testing.T, got []Emitted, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, e := range got {
		at := fmt.Sprint(e.Record.Time)
		switch e.Record.Time {
		case NoWatermark:
			at = "none"
		case EndOfTime:
			at = "ever"
		}
		text = append(text, string(e.Record.Value)+"@"+at)
	}
	return strings.Join(text, ", ")
}

func TestTimeInHarness(t *testing.T) {
	h, err := NewHarness(clocked(-1), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := func(have, want string) {
		t.Helper()
		if have != want {
			t.Errorf("have %s\nwant %s", have, want)
		}
	}
	keys := func() string {
		var all []string
		for k := range h.Keys {
			all = append(all, k)
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	h.Clock = 100
	got, err := h.Process(0, Record{Key: []byte("c"), Time: 1}, Record{Key: []byte("b"), Time: 1}, Record{Key: []byte("a"), Time: 2}, Record{Key: []byte("again"), Time: 3})
	want(said(t, got, err), "record c@none, record b@none, record a@none, record again@none")
	if n := len(h.Timers(EventTime)); n != 4 {
		t.Errorf("%d timers of event time", n)
	}
	got, err = h.AdvanceWatermark(10)
	want(said(t, got, err), "watermark@10")
	got, err = h.AdvanceWatermark(13)
	want(said(t, got, err), "timer 0 11 b@13, timer 0 12 a@13, timer 0 13 again@13, watermark@13")
	got, err = h.AdvanceWatermark(13)
	want(said(t, got, err), "")
	got, err = h.AdvanceWatermark(21)
	want(said(t, got, err), "timer 0 13 again@21, watermark@21")
	want(keys(), "a again")
	got, err = h.AdvanceClock(104)
	want(said(t, got, err), "")
	got, err = h.AdvanceClock(105)
	want(said(t, got, err), "timer 1 105 a@21, timer 1 105 again@21, timer 1 105 b@21, timer 1 105 c@21")
	got, err = h.End()
	want(said(t, got, err), "timer 0 13 again@ever, watermark@ever, end@ever")
	want(keys(), "")
	if n := len(h.Timers(ProcessingTime)); n != 1 {
		t.Errorf("%d timers of processing time", n)
	}
}

func TestTimeErrors(t *testing.T) {
	h, err := NewHarness(clocked(12), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Process(0, Record{Key: []byte("k"), Time: 2}); err != nil {
		t.Fatal(err)
	}
	if got, err := h.AdvanceWatermark(12); err == nil || got != nil {
		t.Errorf("error of OnTimer: %v, %v", got, err)
	}
	bare, err := NewHarness(Operator{Process: func(r Record, _ *Out) error {
		SetTimer(EventTime, 0, nil)
		return nil
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bare.Process(0, Record{}); err != nil {
		t.Fatal(err)
	}
	if _, err := bare.AdvanceWatermark(1); err == nil || !strings.Contains(err.Error(), "OnTimer is nil") {
		t.Errorf("a timer that nobody takes: %v", err)
	}
	if got, err := bare.End(); err != nil || got != nil {
		t.Errorf("an operator without OnEnd: %v, %v", got, err)
	}
	if said := panics(func() { SetTimer(2, 0, nil) }); !strings.Contains(said, "kind 2") {
		t.Errorf("unknown kind: %s", said)
	}
}
