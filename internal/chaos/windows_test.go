package main

import (
	"fmt"
	"testing"
)

// TestWindowed: each reading is in its window or came late, once.
func TestWindowed(t *testing.T) {
	const total = 40 * sensors
	st := newStream("windows", 0, "", 1, total)
	b := newBook()
	b.sent(st, total)
	w, number := b.windows, 0
	give := func(key, format string, args ...any) bool {
		number++
		was := len(w.faults)
		isNew := w.take(key, fmt.Appendf(nil, `{"number":%d,"channel":"c",%s}`, number, fmt.Sprintf(format, args...)))
		return isNew && len(w.faults) == was
	}
	lateSeq, lateKey, lateAt := int64(0), "", int64(0)
	for n := 1; n <= total; n++ {
		_, key, seq := st.sensor(n)
		if at := eventTime(n, total); at < firstTime { // one that would come late
			if lateKey == "" {
				lateSeq, lateKey, lateAt = int64(seq), key, at
			}
			if !give(key, `"t":%d,"seq":%d`, at, seq) {
				t.Fatal("not new, or a fault:", w.faults)
			}
		}
	}
	if lateKey == "" || w.complete() {
		t.Fatal("no reading is late, or windows are not missed")
	}
	for key, starts := range w.sent {
		for start, s := range starts {
			if start < firstTime-firstTime%windowSize {
				continue // all of it came late
			}
			if !give(key, `"start":%d,"count":%d,"sum":%d`, start, s.Count, s.Sum) {
				t.Fatal("not new, or a fault:", w.faults)
			}
		}
	}
	windows, late := w.total()
	if !w.complete() || len(w.missing()) != 0 || windows == 0 || late == 0 {
		t.Fatalf("%d windows, %d late, missing %v", windows, late, w.missing())
	}
	number-- // a repeat is neither new nor a fault
	last := w.places[fmt.Sprintf("c %d", number+1)]
	if give("any", `"start":%d,"count":%d,"sum":%d`, *last.Start, last.Count, last.Sum) || len(w.faults) != 0 {
		t.Fatal("a repeat:", w.faults)
	}
	number-- // another record in the same place
	if give("any", `"start":%d,"count":1,"sum":1`, *last.Start) || len(w.faults) != 1 {
		t.Fatal("another record in its place is no fault")
	}
	if give(lateKey, `"t":%d,"seq":%d`, lateAt, lateSeq) || len(w.faults) != 2 || w.complete() || len(w.missing()) == 0 {
		t.Fatal("a reading that came late twice is not noticed")
	}
	if give(lateKey, `"count":1`) || len(w.faults) != 3 {
		t.Fatal("what is neither a window nor late is no fault")
	}
}
