//go:build !wasip1

package weir

import (
	"cmp"
	"fmt"
	"slices"
)

// harnessTime is what a [Harness] keeps of time.
type harnessTime struct {
	watermark int64
	timers    map[harnessTimer]struct{}
	until     map[string]int64 // of keys that expire
}

type harnessTimer struct {
	kind uint32
	at   int64
	key  string
}

func newHarnessTime() harnessTime {
	return harnessTime{watermark: NoWatermark, timers: map[harnessTimer]struct{}{}, until: map[string]int64{}}
}

// AdvanceWatermark moves the watermark on, fires the timers that are due and calls OnWatermark. It returns what
// was emitted. A watermark that is not ahead of the last one does nothing.
func (h *Harness) AdvanceWatermark(at int64) ([]Emitted, error) {
	hostMu.Lock()
	defer hostMu.Unlock()
	current, h.emitted = h, nil
	if err := h.advance(at); err != nil {
		return nil, err
	}
	return h.emitted, nil
}

// AdvanceClock sets [Harness.Clock], unless that would put it back, and fires the timers of [ProcessingTime]
// that are due. It returns what was emitted.
func (h *Harness) AdvanceClock(at int64) ([]Emitted, error) {
	hostMu.Lock()
	defer hostMu.Unlock()
	current, h.emitted = h, nil
	h.Clock = max(h.Clock, at)
	if err := h.fire(ProcessingTime, h.Clock); err != nil {
		return nil, err
	}
	return h.emitted, nil
}

// End ends the input: the watermark becomes [EndOfTime], then OnEnd is called. It returns what was emitted.
func (h *Harness) End() ([]Emitted, error) {
	hostMu.Lock()
	defer hostMu.Unlock()
	current, h.emitted = h, nil
	if err := h.advance(EndOfTime); err != nil {
		return nil, err
	}
	if err := h.run.end(); err != nil {
		return nil, err
	}
	return h.emitted, nil
}

// Timers lists the timers of a kind that are set, in the order in which they fire.
func (h *Harness) Timers(kind TimerKind) []Timer {
	var out []Timer
	for _, t := range h.due(kind, EndOfTime) {
		out = append(out, Timer{Kind: kind, At: t.at, Key: []byte(t.key)})
	}
	return out
}

func (h *Harness) advance(at int64) error {
	if at <= h.time.watermark {
		return nil
	}
	h.time.watermark = at
	for key, until := range h.time.until {
		if until <= at {
			delete(h.Keys, key)
			delete(h.time.until, key)
		}
	}
	if err := h.fire(EventTime, at); err != nil {
		return err
	}
	return h.run.watermark(at)
}

// due lists timers up to a time in order.
func (h *Harness) due(kind TimerKind, upto int64) []harnessTimer {
	var due []harnessTimer
	for t := range h.time.timers {
		if t.kind == uint32(kind) && t.at <= upto {
			due = append(due, t)
		}
	}
	slices.SortFunc(due, func(a, b harnessTimer) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.key, b.key))
	})
	return due
}

func (h *Harness) fire(kind TimerKind, upto int64) error {
	for _, t := range h.due(kind, upto) {
		if _, set := h.time.timers[t]; !set {
			continue
		}
		delete(h.time.timers, t)
		key := []byte(t.key)
		if err := h.run.timer(Timer{Kind: kind, At: t.at, Key: key}); err != nil {
			return err
		}
		for i := range key {
			key[i] = 0xdb
		}
	}
	return nil
}

func hostTimerSet(kind uint32, at int64, key []byte) {
	if kind > uint32(ProcessingTime) {
		panic(fmt.Sprintf("timer of kind %d", kind))
	}
	current.time.timers[harnessTimer{kind, at, string(key)}] = struct{}{}
}

func hostTimerClear(kind uint32, at int64, key []byte) bool {
	t := harnessTimer{kind, at, string(key)}
	_, set := current.time.timers[t]
	delete(current.time.timers, t)
	return set
}

func hostWatermark() int64 { return current.time.watermark }

func hostStatePutUntil(key, value []byte, until int64) {
	if until <= current.time.watermark {
		hostStateDelete(key)
		return
	}
	hostStatePut(key, value)
	current.time.until[string(key)] = until
}
