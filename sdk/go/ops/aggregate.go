package ops

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"

	weir "github.com/weir-stream/weir/sdk/go"
)

// Fold is what windows do with their records. What it accumulates is bytes, so that windows can keep them in any
// [Store]. [Aggregate] is one.
type Fold interface {
	// Add adds a record to an accumulator, which is empty at first, and returns it; false if the record is
	// not one to add. It may change acc in place.
	Add(acc []byte, r weir.Record) ([]byte, bool)
	// Merge adds another accumulator.
	Merge(acc, other []byte) []byte
}

// Reading takes the number out of a record.
type Reading struct {
	Field weir.Path // in a value that is a JSON object or array
}

// Of returns the number in the value's field, or that is the value; false if there is none.
func (r Reading) Of(value []byte) (float64, bool) {
	for _, c := range value {
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		case '{', '[':
			return r.Field.Number(value)
		}
		break
	}
	return weir.ParseNumber(value)
}

// Aggregate computes functions of numbers: count, sum, mean, min, max, and quantiles as pN, such as p50 or p99.9. It
// is a [Fold] over a record's [Reading].
//
// An accumulator has the count (8 bytes), sum, minimum and maximum (8 each, doubles), little-endian; if there are
// quantiles, a [Sketch] follows.
type Aggregate struct {
	Reading  Reading
	Decimals int // of results, 0 to 9

	functions []function
	sketch    bool
	number    bool // a function needs the number
}

// function is one of an aggregate's functions.
type function struct {
	name string
	kind byte // c, s, a for mean, < for min, > for max, q
	q    float64
}

const accFixed = 32

// maxFunctions bounds the functions of an aggregate.
const maxFunctions = 32

// Functions sets the functions from a list such as "count, mean, p99", in the order in which results have them.
func (a *Aggregate) Functions(list string) error {
	a.functions, a.sketch, a.number = nil, false, false
	for name := range strings.SplitSeq(list, ",") {
		f := function{name: strings.Trim(name, " ")}
		switch f.name {
		case "count":
			f.kind = 'c'
		case "sum":
			f.kind = 's'
		case "mean":
			f.kind = 'a'
		case "min":
			f.kind = '<'
		case "max":
			f.kind = '>'
		default:
			percent, ok := 0.0, strings.HasPrefix(f.name, "p")
			if ok {
				percent, ok = weir.ParseNumber([]byte(f.name[1:]))
			}
			if !ok || percent < 0 || percent > 100 {
				return errors.New(strconv.Quote(f.name) + " is not count, sum, mean, min, max or a quantile such as p50 or p99.9")
			}
			f.kind, f.q, a.sketch = 'q', percent/100, true
		}
		a.number = a.number || f.kind != 'c'
		a.functions = append(a.functions, f)
	}
	if len(a.functions) > maxFunctions {
		return errors.New("more than " + strconv.Itoa(maxFunctions) + " functions")
	}
	return nil
}

// Add implements [Fold]. A record without a number is not added, unless all that is asked for is the count.
func (a *Aggregate) Add(acc []byte, r weir.Record) ([]byte, bool) {
	v := 0.0
	if a.number {
		var ok bool
		if v, ok = a.Reading.Of(r.Value); !ok {
			return acc, false
		}
	}
	return a.AddNumber(acc, v), true
}

// AddNumber adds a number, which is neither infinite nor NaN.
func (a *Aggregate) AddNumber(acc []byte, v float64) []byte {
	if len(acc) < accFixed {
		acc = append(acc[:0], make([]byte, accFixed)...)
		setFloat(acc[16:], v)
		setFloat(acc[24:], v)
	}
	binary.LittleEndian.PutUint64(acc, binary.LittleEndian.Uint64(acc)+1)
	setFloat(acc[8:], float(acc[8:])+v)
	if v < float(acc[16:]) {
		setFloat(acc[16:], v)
	}
	if v > float(acc[24:]) {
		setFloat(acc[24:], v)
	}
	if a.sketch {
		s := Sketch(acc[accFixed:]).Add(v)
		acc = append(acc[:accFixed], s...)
	}
	return acc
}

// Merge implements [Fold].
func (a *Aggregate) Merge(acc, other []byte) []byte {
	if len(other) < accFixed {
		return acc
	}
	if len(acc) < accFixed {
		return append(acc[:0], other...)
	}
	binary.LittleEndian.PutUint64(acc, binary.LittleEndian.Uint64(acc)+binary.LittleEndian.Uint64(other))
	setFloat(acc[8:], float(acc[8:])+float(other[8:]))
	if v := float(other[16:]); v < float(acc[16:]) {
		setFloat(acc[16:], v)
	}
	if v := float(other[24:]); v > float(acc[24:]) {
		setFloat(acc[24:], v)
	}
	if a.sketch {
		s := Sketch(acc[accFixed:]).Merge(Sketch(other[accFixed:]))
		acc = append(acc[:accFixed], s...)
	}
	return acc
}

// Count is how many numbers an accumulator has.
func (a *Aggregate) Count(acc []byte) uint64 {
	if len(acc) < accFixed {
		return 0
	}
	return binary.LittleEndian.Uint64(acc)
}

// AppendFields appends the results of an accumulator that is not empty as fields of a JSON object:
// "count":3,"mean":1.5.
func (a *Aggregate) AppendFields(dst, acc []byte) []byte {
	for i, f := range a.functions {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), f.name...), '"', ':')
		if f.kind == 'c' {
			dst = strconv.AppendUint(dst, a.Count(acc), 10)
		} else {
			dst = weir.AppendFixed(dst, a.result(f, acc), a.Decimals)
		}
	}
	return dst
}

func (a *Aggregate) result(f function, acc []byte) float64 {
	switch f.kind {
	case 's':
		return float(acc[8:])
	case 'a':
		return float(acc[8:]) / float64(a.Count(acc))
	case '<':
		return float(acc[16:])
	case '>':
		return float(acc[24:])
	}
	low, high := float(acc[16:]), float(acc[24:])
	switch v := Sketch(acc[accFixed:]).Quantile(f.q); {
	case f.q == 0 || v < low:
		return low
	case f.q == 1 || v > high:
		return high
	default:
		return v
	}
}

func float(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }

func setFloat(b []byte, v float64) { binary.LittleEndian.PutUint64(b, math.Float64bits(v)) }
