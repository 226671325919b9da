package ops

import (
	"bytes"
	"errors"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

// LatestJoin joins the latest value of each of its inputs, per key. Latest is by event time; of equal times,
// the one that came last. A record that is older than what its input has is [Late].
//
// State is an entry for each key with the values of all inputs, up to 1 MiB.
type LatestJoin struct {
	Inputs int   // how many there are
	MaxAge int64 // values that are older than a record by more are not joined with it; 0: no limit
	Store  Store // nil: keyed state
	Tag    byte  // tells blocks of one operator apart; 0: 'l'

	slot  slot
	value []byte // per input that has one: input (1), time (8), length (4), value; in order of inputs
	made  []byte
	sides []Side
}

// Init checks and prepares the block; it comes before all else.
func (j *LatestJoin) Init() error {
	if j.Inputs < 2 || j.Inputs > 64 {
		return errors.New("a join has 2 to 64 inputs")
	}
	if j.Store == nil {
		j.Store = Keyed()
	}
	if j.Tag == 0 {
		j.Tag = 'l'
	}
	j.sides = make([]Side, j.Inputs)
	return nil
}

// Add takes a record and returns the latest value of each input; one that has none, or only one that is too old, has a
// Value of nil. The sides are borrowed until the next call.
func (j *LatestJoin) Add(r weir.Record) ([]Side, Outcome, error) {
	if r.Input >= j.Inputs {
		return nil, Ignored, errors.New("input " + strconv.Itoa(r.Input) + " of a join of " + strconv.Itoa(j.Inputs))
	}
	if err := j.slot.of(r.Key, j.Tag); err != nil {
		return nil, Ignored, err
	}
	value, ok := j.Store.Get(j.slot.key, j.value)
	if !ok {
		value = j.value[:0]
	}
	j.value = value
	clear(j.sides)
	for len(value) > 0 {
		n := 13 + le32(value[9:])
		if input := int(value[0]); input < j.Inputs {
			j.sides[input] = Side{le64(value[1:]), value[13:n:n]}
		}
		value = value[n:]
	}
	if old := j.sides[r.Input]; old.Value != nil && r.Time < old.Time {
		return nil, Late, nil
	}
	j.sides[r.Input] = Side{r.Time, r.Value}
	if r.Value == nil {
		j.sides[r.Input].Value = []byte{}
	}
	j.made = j.made[:0]
	for input, s := range j.sides {
		if s.Value == nil {
			continue
		}
		j.made = put64(append(j.made, byte(input)), s.Time)
		j.made = append(put32(j.made, len(s.Value)), s.Value...)
	}
	j.Store.Put(j.slot.key, j.made)
	for input, s := range j.sides {
		if j.MaxAge > 0 && s.Value != nil && r.Time-s.Time > j.MaxAge {
			j.sides[input].Value = nil
		}
	}
	return j.sides, Taken, nil
}

// AppendJSON appends a record's value as JSON: as it is if it is JSON, else as a string; nil as null. Of objects and
// arrays only the brackets are looked at.
func AppendJSON(dst, value []byte) []byte {
	if value == nil {
		return append(dst, "null"...)
	}
	if raw, ok := jsonValue(value); ok {
		return append(dst, raw...)
	}
	return weir.AppendJSONString(dst, string(value))
}

// jsonValue returns the one JSON value that a text is, without space around it; false if it is none.
func jsonValue(text []byte) ([]byte, bool) {
	text = bytes.Trim(text, " \t\r\n")
	raw, ok := weir.Path(nil).Find(text)
	if !ok || len(raw) != len(text) {
		return nil, false
	}
	switch raw[0] {
	case '{', '[', '"':
		return raw, true
	}
	if string(raw) == "true" || string(raw) == "false" || string(raw) == "null" {
		return raw, true
	}
	_, ok = weir.ParseNumber(raw)
	return raw, ok
}
