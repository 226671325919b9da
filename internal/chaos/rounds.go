package main

import (
	"encoding/json"
	"fmt"
)

// rounds are the records of one sink of the loop: numbered per key, without a gap.
type rounds struct {
	places map[string]round // by channel and number
	keys   map[string]*turns
	faults []string
}

type round struct {
	key         string
	n, readings int
}

type turns struct {
	seen     map[int]bool
	last     int // the highest n
	readings int // its
}

func newRounds() *rounds { return &rounds{places: map[string]round{}, keys: map[string]*turns{}} }

// take notes a record and says whether it is new.
func (r *rounds) take(key string, payload []byte) bool {
	var m struct {
		Number      uint64
		Channel     string
		N, Readings int
	}
	if err := json.Unmarshal(payload, &m); err != nil || m.N < 1 {
		r.fault("%s: not a record: %s", key, payload)
		return false
	}
	place, rec := fmt.Sprintf("%s %d", m.Channel, m.Number), round{key, m.N, m.Readings}
	if before, known := r.places[place]; known {
		if before != rec {
			r.fault("%s: %+v, later %+v", place, before, rec)
		}
		return false
	}
	r.places[place] = rec
	t := r.keys[key]
	if t == nil {
		t = &turns{seen: map[int]bool{}}
		r.keys[key] = t
	}
	if t.seen[m.N] {
		r.fault("%s: round %d came in two places", key, m.N)
	}
	t.seen[m.N] = true
	if m.N > t.last {
		t.last, t.readings = m.N, m.Readings
	}
	return true
}

// maxFaults bounds what is told.
const maxFaults = 5

func (r *rounds) fault(format string, args ...any) {
	if len(r.faults) < maxFaults {
		r.faults = append(r.faults, fmt.Sprintf(format, args...))
	}
}

// complete says whether the highest round of each of so many keys came of all its readings, and no round is missing.
func (r *rounds) complete(keys, readings int) bool {
	for _, t := range r.keys {
		if t.readings != readings || len(t.seen) != t.last {
			return false
		}
	}
	return len(r.keys) == keys
}

// total is how many rounds came.
func (r *rounds) total() (n int) {
	for _, t := range r.keys {
		n += len(t.seen)
	}
	return n
}

// missing says what keeps it from being complete.
func (r *rounds) missing(readings int) (out []string) {
	for key, t := range r.keys {
		if (t.readings != readings || len(t.seen) != t.last) && len(out) < maxFaults {
			out = append(out, fmt.Sprintf("%s: %d of %d rounds came, the last of reading %d of %d", key, len(t.seen), t.last, t.readings, readings))
		}
	}
	return out
}
