package ops

import (
	"bytes"
	"errors"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

// Dedup recognises records that come again, by an id, per key. It remembers either the last ids of a key, or all ids for
// some time.
//
// State, with Last: an entry for each key, with its last ids; each record is compared with all of them. With Within: an
// entry in keyed state for each id, which expires when the watermark is so far past the record's time. It
// takes a watermark for that: without one, every id is kept.
type Dedup struct {
	Last   int   // how many ids of a key are remembered, up to 4,096
	Within int64 // or for how long ids are remembered, in event time
	Store  Store // of Last; nil: keyed state
	Tag    byte  // tells blocks of one operator apart; 0: 'd'

	slot  slot
	value []byte // with Last: per id, oldest first, length (2) and id; with Within: the time
}

// maxID is the longest id in bytes.
const maxID = 1024

// Init checks and prepares the block; it comes before all else.
func (d *Dedup) Init() error {
	if (d.Last > 0) == (d.Within > 0) || d.Last < 0 || d.Last > 4096 || d.Within < 0 || d.Within > maxDuration {
		return errors.New("either the last ids are remembered, up to 4,096, or all for a time, up to 100 years")
	}
	if d.Within > 0 && d.Store != nil && d.Store != Keyed() {
		return errors.New("ids are remembered for a time in keyed state only")
	}
	if d.Store == nil {
		d.Store = Keyed()
	}
	if d.Tag == 0 {
		d.Tag = 'd'
	}
	if d.Within > 0 {
		return needsEventTime("to forget ids after a time needs")
	}
	return nil
}

// Seen says whether the id has come before, and remembers it.
func (d *Dedup) Seen(key []byte, time int64, id []byte) (bool, error) {
	if len(id) > maxID {
		return false, errors.New("id of " + strconv.Itoa(len(id)) + " bytes, at most " + strconv.Itoa(maxID))
	}
	if err := d.slot.of(key, d.Tag); err != nil {
		return false, err
	}
	if d.Within > 0 {
		return d.within(time, id)
	}
	value, ok := d.Store.Get(d.slot.key, d.value)
	if !ok {
		value = d.value[:0]
	}
	d.value = value
	n := 0
	for at := 0; at < len(value); n++ {
		end := at + 2 + int(value[at]) + int(value[at+1])<<8
		if bytes.Equal(value[at+2:end], id) {
			return true, nil
		}
		at = end
	}
	if n >= d.Last {
		value = value[:copy(value, value[2+int(value[0])+int(value[1])<<8:])]
	}
	d.value = append(append(value, byte(len(id)), byte(len(id)>>8)), id...)
	d.Store.Put(d.slot.key, d.value)
	return false, nil
}

// within looks for an id whose record was less than Within before or after this one.
func (d *Dedup) within(time int64, id []byte) (bool, error) {
	if len(d.slot.key)+len(id) > 4096 {
		return false, errors.New("key and id of " + strconv.Itoa(len(d.slot.key)+len(id)) + " bytes, at most 4,096")
	}
	if time > maxTime || time < -maxTime {
		return false, errors.New("event time " + strconv.FormatInt(time, 10) + " is too far from 1970")
	}
	d.slot.key = append(d.slot.key, id...)
	if value, had := weir.State.Get(d.slot.key, d.value); had {
		d.value = value
		if then := le64(value); time-then < d.Within && then-time < d.Within {
			return true, nil
		} else if then > time {
			return false, nil // an older one of the same id: the newer stays
		}
	}
	d.value = put64(d.value[:0], time)
	weir.State.PutUntil(d.slot.key, d.value, time+d.Within)
	return false, nil
}
