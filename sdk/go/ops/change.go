package ops

import (
	"errors"
	"math"
)

// Rate computes how fast a number changes, per key: the difference to the number before it, divided by the event time
// between them.
//
// State is an entry of 16 bytes for each key.
type Rate struct {
	Per     int64 // the unit of time in milliseconds; 0: a second
	Counter bool  // the number only grows: if it is less than before, it has begun again at 0
	Store   Store // nil: keyed state
	Tag     byte  // tells blocks of one operator apart; 0: 'r'

	slot  slot
	value []byte
}

// Init checks and prepares the block; it comes before all else.
func (c *Rate) Init() error {
	if c.Per == 0 {
		c.Per = 1000
	}
	if c.Per < 0 {
		return errors.New("a rate is per more than 0 ms")
	}
	if c.Store == nil {
		c.Store = Keyed()
	}
	if c.Tag == 0 {
		c.Tag = 'r'
	}
	return nil
}

// Add takes a number and returns the rate; false for the first of a key. One that is not newer than the last is [Late].
func (c *Rate) Add(key []byte, time int64, v float64) (rate float64, ok bool, _ Outcome, _ error) {
	if err := c.slot.of(key, c.Tag); err != nil {
		return 0, false, Ignored, err
	}
	value, had := c.Store.Get(c.slot.key, c.value)
	if had {
		c.value = value
		then, was := le64(value), float(value[8:])
		if time <= then {
			return 0, false, Late, nil
		}
		change := v - was
		if c.Counter && v < was {
			change = v
		}
		rate = float64(change*float64(c.Per)) / float64(time-then)
	}
	c.value = put64(put64(c.value[:0], time), int64(math.Float64bits(v)))
	c.Store.Put(c.slot.key, c.value)
	return rate, had, Taken, nil
}

// Deadband lets a number pass, per key, if it is more than a band away from the last that has passed.
//
// State is an entry of 16 bytes for each key.
type Deadband struct {
	Band       float64 // in units of the number
	Share      float64 // of the last number that has passed; the wider of both counts
	MaxSilence int64   // a number passes in any case so many milliseconds after the last one, or more; 0: none does
	Store      Store   // nil: keyed state
	Tag        byte    // tells blocks of one operator apart; 0: 'b'

	slot  slot
	value []byte
}

// Init checks and prepares the block; it comes before all else.
func (d *Deadband) Init() error {
	if !(d.Band >= 0) || !(d.Share >= 0) || d.MaxSilence < 0 {
		return errors.New("a dead-band has a width and a silence of 0 or more")
	}
	if d.Store == nil {
		d.Store = Keyed()
	}
	if d.Tag == 0 {
		d.Tag = 'b'
	}
	return nil
}

// Add takes a number and says whether it passes. The first of a key does.
func (d *Deadband) Add(key []byte, time int64, v float64) (bool, error) {
	if err := d.slot.of(key, d.Tag); err != nil {
		return false, err
	}
	if value, had := d.Store.Get(d.slot.key, d.value); had {
		d.value = value
		last := float(value[8:])
		band := d.Band
		if wide := float64(d.Share * math.Abs(last)); wide > band {
			band = wide
		}
		if math.Abs(v-last) <= band && (d.MaxSilence == 0 || time-le64(value) < d.MaxSilence) {
			return false, nil
		}
	}
	d.value = put64(put64(d.value[:0], time), int64(math.Float64bits(v)))
	d.Store.Put(d.slot.key, d.value)
	return true, nil
}
