package ops

import (
	"errors"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

// Result is what a window has come to. It is borrowed until the function that gets it returns.
type Result struct {
	Key        []byte
	Start, End int64  // the window has the times from Start to before End
	Acc        []byte // accumulated by the window's [Fold]
	Update     bool   // a result of this window has come out before, or could have: late records were added
}

// Window collects records in windows of event time per key: tumbling windows, or sliding ones if Slide is less than Size.
//
// A window's result comes out when the watermark reaches its end. It is kept for Lateness longer: a late record
// in that time is added, and each window that has it and is past its end comes out again at once. A
// record that comes later still is [Late].
//
// Records are added once, to panes: runs of time that windows share. State is an entry for each key and pane, with the
// [Fold]'s accumulator. A new pane sets a timer for each window that it is in.
type Window struct {
	Size, Slide int64 // Slide 0: as Size
	Offset      int64 // windows begin at multiples of Slide after it
	Lateness    int64
	Fold        Fold
	Store       Store                               // nil: keyed state
	Tag         byte                                // tells blocks of one operator apart; 0: 'w'
	Fire        func(w Result, out *weir.Out) error // takes results

	pane       int64
	slot       slot
	timer      []byte
	acc, other []byte
}

// maxPanes bounds the panes of a window and the windows of a pane.
const maxPanes = 10_000

// Init checks and prepares the window; it comes before all else.
func (w *Window) Init() error {
	if w.Slide == 0 {
		w.Slide = w.Size
	}
	if w.Size <= 0 || w.Slide <= 0 || w.Slide > w.Size {
		return errors.New("a window slides by more than 0 and at most its size")
	}
	if w.Lateness < 0 || w.Size > maxDuration || w.Lateness > maxDuration {
		return errors.New("size and lateness of a window are at most 100 years")
	}
	w.pane = w.Size
	for rest := w.Slide; rest != 0; {
		w.pane, rest = rest, w.pane%rest
	}
	if w.Size/w.pane > maxPanes {
		return errors.New("a window of " + strconv.FormatInt(w.Size, 10) + " ms that slides by " + strconv.FormatInt(w.Slide, 10) +
			" ms has more than " + strconv.Itoa(maxPanes) + " parts")
	}
	if w.Store == nil {
		w.Store = Keyed()
	}
	if w.Tag == 0 {
		w.Tag = 'w'
	}
	return needsEventTime("a window needs")
}

// floor is the greatest multiple of step, counted from the offset, that is not above t.
func (w *Window) floor(t, step int64) int64 {
	rest := (t - w.Offset) % step
	if rest < 0 {
		rest += step
	}
	return t - rest
}

// maxTime bounds event times, so that no sum of times overflows.
const maxTime = 1 << 60

// Add adds a record to its windows.
func (w *Window) Add(r weir.Record, out *weir.Out) (Outcome, error) {
	if r.Time > maxTime || r.Time < -maxTime {
		return Ignored, errors.New("event time " + strconv.FormatInt(r.Time, 10) + " is too far from 1970")
	}
	watermark := weir.Watermark()
	pane := w.floor(r.Time, w.pane)
	last := pane + w.Size // end of the last window that has the pane
	if w.pane != w.Slide {
		last = w.floor(pane, w.Slide) + w.Size
	}
	if last+w.Lateness <= watermark {
		return Late, nil
	}
	if err := w.slot.of(r.Key, w.Tag); err != nil {
		return Ignored, err
	}
	acc, had := w.Store.Get(w.slot.at(pane), w.acc)
	if !had {
		acc = w.acc[:0]
	}
	acc, ok := w.Fold.Add(acc, r)
	w.acc = acc
	if !ok {
		return Ignored, nil
	}
	w.Store.Put(w.slot.key, acc)
	if had && watermark <= pane {
		return Taken, nil // no window that has the pane is past its end
	}
	first := last - (last-pane-1)/w.Slide*w.Slide // end of the first window that has the pane
	if !had {
		w.timer = timerKey(w.timer, r.Key, w.Tag)
		for end := first; end <= last; end += w.Slide {
			if end > watermark {
				weir.SetTimer(weir.EventTime, end, w.timer)
			}
		}
		if w.Lateness > 0 {
			weir.SetTimer(weir.EventTime, last+w.Lateness, w.timer)
		}
	}
	for end := first; end <= last && end <= watermark; end += w.Slide {
		if end+w.Lateness > watermark {
			if err := w.fire(r.Key, end, true, out); err != nil {
				return Taken, err
			}
		}
	}
	return Taken, nil
}

// OnTimer takes the timers that the window has set; false if this is not one of them.
func (w *Window) OnTimer(t weir.Timer, out *weir.Out) (bool, error) {
	key, mine := timerOf(t, w.Tag)
	if !mine {
		return false, nil
	}
	if start := t.At - w.Size; w.floor(start, w.Slide) == start {
		if err := w.fire(key, t.At, false, out); err != nil {
			return true, err
		}
	}
	// Panes whose last window is over for good.
	start := t.At - w.Lateness - w.Size
	if w.floor(start, w.Slide) != start {
		return true, nil
	}
	if err := w.slot.of(key, w.Tag); err != nil {
		return true, err
	}
	for pane := start; pane < start+w.Slide; pane += w.pane {
		w.Store.Delete(w.slot.at(pane))
		w.slot.cut()
	}
	return true, nil
}

// fire gives the result of the window that ends there, if it has any records.
func (w *Window) fire(key []byte, end int64, update bool, out *weir.Out) error {
	if err := w.slot.of(key, w.Tag); err != nil {
		return err
	}
	any := false
	for pane := end - w.Size; pane < end; pane += w.pane {
		if !any {
			if acc, ok := w.Store.Get(w.slot.at(pane), w.acc); ok {
				w.acc, any = acc, true
			}
		} else if acc, ok := w.Store.Get(w.slot.at(pane), w.other); ok {
			w.other = acc
			w.acc = w.Fold.Merge(w.acc, acc)
		}
		w.slot.cut()
	}
	if !any {
		return nil
	}
	return w.Fire(Result{Key: key, Start: end - w.Size, End: end, Acc: w.acc, Update: update}, out)
}
