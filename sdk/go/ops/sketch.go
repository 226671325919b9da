package ops

import (
	"encoding/binary"
	"math"
)

// Sketch says how the values of a distribution are kept so that quantiles can be asked for: as DDSketch (Masson,
// Rim, Lee 2019, PVLDB 12(12), doi 10.14778/3352063.3352135) with buckets by exponent and leading bits
// of the mantissa, which is section 4's linear interpolation between powers of two. So it computes with
// whole numbers only, and gives the same bits on every machine.
//
// A quantile is off by less than 1/128 of its value. Sketches merge without further loss, and the order
// in which values come or sketches merge does not matter. A sketch has at most [MaxBuckets] buckets of 8 bytes; then
// the lowest are merged, as in the paper's section 2.2, and only quantiles that lie there become
// inexact. 512 buckets hold the exact promise over a range of 1 to 256; values that spread less use fewer.
//
// A sketch is a sequence of buckets, each 8 bytes, little-endian: the bucket's index in the upper 20 bits, how
// many values it has in the lower 44, ordered by index.
type Sketch []byte

// MaxBuckets is the most buckets that a sketch has.
const MaxBuckets = 512

const (
	mantissaBits = 6 // of the value, that tell buckets apart
	indexShift   = 52 - mantissaBits
	indexZero    = 1 << 19 // the bucket of 0 and what is close to it
	countBits    = 44
	maxCount     = 1<<countBits - 1
)

// bucketOf is the index of a value's bucket. Indexes are ordered as values are.
func bucketOf(v float64) uint64 {
	m := math.Float64bits(math.Abs(v)) >> indexShift
	if v < 0 {
		return indexZero - m
	}
	return indexZero + m
}

// valueOf is the value that stands for a bucket: it is off by at most 1 part in 2 to the power of
// mantissaBits+1 from any value in it.
func valueOf(index uint64) float64 {
	if index < indexZero {
		return -valueOf(2*indexZero - index)
	}
	m := index - indexZero
	if m == 0 {
		return 0
	}
	low, high := math.Float64frombits(m<<indexShift), math.Float64frombits((m+1)<<indexShift)
	if math.IsInf(high, 1) {
		return low
	}
	r := high / low
	return low * (2 * r / (1 + r))
}

func (s Sketch) bucket(i int) (index, count uint64) {
	b := binary.LittleEndian.Uint64(s[8*i:])
	return b >> countBits, b & maxCount
}

func (s Sketch) set(i int, index, count uint64) {
	binary.LittleEndian.PutUint64(s[8*i:], index<<countBits|min(count, maxCount))
}

// find returns the place of a bucket, or where it would be.
func (s Sketch) find(index uint64) (at int, there bool) {
	low, high := 0, len(s)/8
	for low < high {
		mid := (low + high) / 2
		if i, _ := s.bucket(mid); i < index {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == len(s)/8 {
		return low, false
	}
	i, _ := s.bucket(low)
	return low, i == index
}

// Add adds a value, which is neither infinite nor NaN, and returns the sketch, which may have moved.
func (s Sketch) Add(v float64) Sketch { return s.add(bucketOf(v), 1) }

func (s Sketch) add(index, count uint64) Sketch {
	at, there := s.find(index)
	n := len(s) / 8
	switch {
	case there:
	case n < MaxBuckets:
		s = append(s, 0, 0, 0, 0, 0, 0, 0, 0)
		copy(s[8*at+8:], s[8*at:])
		s.set(at, index, 0)
	case at == 0: // below all that is kept
	default: // the lowest two become one
		_, lowest := s.bucket(0)
		at--
		copy(s, s[8:8*at+8])
		s.set(at, index, 0)
		next, has := s.bucket(0)
		s.set(0, next, has+lowest)
	}
	i, had := s.bucket(at)
	s.set(at, i, had+count)
	return s
}

// Merge adds all values of another sketch.
func (s Sketch) Merge(other Sketch) Sketch {
	for i := range len(other) / 8 {
		s = s.add(other.bucket(i))
	}
	return s
}

// Count is how many values were added.
func (s Sketch) Count() uint64 {
	n := uint64(0)
	for i := range len(s) / 8 {
		_, count := s.bucket(i)
		n += count
	}
	return n
}

// Quantile is the value below which a share q, from 0 to 1, of the values lies; 0 if there are none.
func (s Sketch) Quantile(q float64) float64 {
	total := s.Count()
	if total == 0 {
		return 0
	}
	rank, below := q*float64(total-1), uint64(0)
	for i := range len(s) / 8 {
		index, count := s.bucket(i)
		below += count
		if float64(below) > rank {
			return valueOf(index)
		}
	}
	index, _ := s.bucket(len(s)/8 - 1)
	return valueOf(index)
}
