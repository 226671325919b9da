package ops

import (
	"errors"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

// CountWindow collects the records of a key in windows of Size records: one after the other, or, if Every is less than
// Size, every so many records the last Size ones.
//
// State is an entry for each key, with an accumulator for every Every records of a window.
type CountWindow struct {
	Size, Every int // Every 0: as Size
	Fold        Fold
	Store       Store // nil: keyed state
	Tag         byte  // tells blocks of one operator apart; 0: 'c'

	slot  slot
	value []byte // records in the last part (4), then, for each part, length (4) and accumulator
	acc   []byte
}

// maxParts bounds the parts of a window by count.
const maxParts = 1000

// Init checks and prepares the block; it comes before all else.
func (w *CountWindow) Init() error {
	if w.Every == 0 {
		w.Every = w.Size
	}
	if w.Size <= 0 || w.Every <= 0 || w.Size%w.Every != 0 || w.Size > 1<<30 {
		return errors.New("a window has a size of more than 0 records that is a multiple of every")
	}
	if w.Size/w.Every > maxParts {
		return errors.New("a window of " + strconv.Itoa(w.Size) + " records every " + strconv.Itoa(w.Every) + " has more than " +
			strconv.Itoa(maxParts) + " parts")
	}
	if w.Store == nil {
		w.Store = Keyed()
	}
	if w.Tag == 0 {
		w.Tag = 'c'
	}
	return nil
}

// Add adds a record. If that makes a window full, it returns what it has accumulated, borrowed until the next call; else
// nil.
func (w *CountWindow) Add(r weir.Record) ([]byte, Outcome, error) {
	if err := w.slot.of(r.Key, w.Tag); err != nil {
		return nil, Ignored, err
	}
	value, ok := w.Store.Get(w.slot.key, w.value)
	if !ok {
		value = append(put32(w.value[:0], 0), 0, 0, 0, 0)
	}
	w.value = value
	last, parts := 4, 1
	for at := last; ; parts++ {
		last = at
		if at += 4 + le32(value[at:]); at == len(value) {
			break
		}
	}
	acc, ok := w.Fold.Add(append(w.acc[:0], value[last+4:]...), r)
	w.acc = acc
	if !ok {
		return nil, Ignored, nil
	}
	n := le32(value) + 1
	value = append(put32(value[:last], len(acc)), acc...)
	w.value = value
	put32(value[:0], n)
	if n < w.Every {
		w.Store.Put(w.slot.key, value)
		return nil, Taken, nil
	}
	var full []byte
	first := 0
	if parts == w.Size/w.Every {
		full = w.acc[:0]
		for at := 4; at < len(value); {
			end := at + 4 + le32(value[at:])
			if at == 4 {
				full, first = append(full, value[at+4:end]...), end-4
			} else {
				full = w.Fold.Merge(full, value[at+4:end])
			}
			at = end
		}
		w.acc = full
	}
	// The next part begins; the oldest of a full window goes.
	value = append(value, 0, 0, 0, 0)
	w.value = value
	put32(value[first:first], 0)
	w.Store.Put(w.slot.key, value[first:])
	return full, Taken, nil
}

// Running accumulates all records of a key, without end.
//
// State is an entry for each key.
type Running struct {
	Fold  Fold
	Store Store // nil: keyed state
	Tag   byte  // tells blocks of one operator apart; 0: 'a'

	slot slot
	acc  []byte
}

// Init prepares the block; it comes before all else.
func (a *Running) Init() error {
	if a.Store == nil {
		a.Store = Keyed()
	}
	if a.Tag == 0 {
		a.Tag = 'a'
	}
	return nil
}

// Add adds a record and returns what its key has accumulated, borrowed until the next call.
func (a *Running) Add(r weir.Record) ([]byte, Outcome, error) {
	if err := a.slot.of(r.Key, a.Tag); err != nil {
		return nil, Ignored, err
	}
	acc, had := a.Store.Get(a.slot.key, a.acc)
	if !had {
		acc = a.acc[:0]
	}
	acc, ok := a.Fold.Add(acc, r)
	a.acc = acc
	if !ok {
		return nil, Ignored, nil
	}
	a.Store.Put(a.slot.key, acc)
	return acc, Taken, nil
}
