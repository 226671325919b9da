package dataflow

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// Mark is a change of what a source remembers from one batch to the next, for as long as the job: numbers
// under keys of the source's choice. Marks are logged with the records of their batch, in one entry, and
// are part of the task's snapshots, so that after a restart the source knows of exactly the messages that
// were logged. The source bounds how many there are.
type Mark struct {
	// Drop removes the keys from Key to Value, both included; else Value is kept under Key.
	Drop       bool
	Key, Value uint64
}

// Ops of an encoded mark.
const (
	markSet  = 1
	markDrop = 2
)

// appendMarks encodes marks: each an op (1 byte), its key (uvarint) and its value (8 bytes when kept; the
// number of further keys, a uvarint, when dropped).
func appendMarks(dst []byte, marks []Mark) []byte {
	for _, m := range marks {
		if m.Drop {
			dst = binary.AppendUvarint(append(dst, markDrop), m.Key)
			dst = binary.AppendUvarint(dst, m.Value-m.Key)
			continue
		}
		dst = binary.AppendUvarint(append(dst, markSet), m.Key)
		dst = binary.LittleEndian.AppendUint64(dst, m.Value)
	}
	return dst
}

// applyMarks makes the encoded changes.
func applyMarks(to map[uint64]uint64, encoded []byte) error {
	r := entryReader{b: encoded}
	for len(r.b) > 0 && r.err == nil {
		op := r.bytes(1)[0]
		key := r.uvarint()
		switch op {
		case markSet:
			if v := r.i64(); r.err == nil {
				to[key] = uint64(v)
			}
		case markDrop:
			if more := r.uvarint(); r.err == nil {
				dropMarks(to, key, key+more)
			}
		default:
			r.fail(fmt.Sprintf("mark of kind %d", op))
		}
	}
	return r.err
}

func dropMarks(from map[uint64]uint64, first, last uint64) {
	if first == last {
		delete(from, first)
		return
	}
	maps.DeleteFunc(from, func(k, _ uint64) bool { return first <= k && k <= last })
}

// encodeMarks is the whole map, for a snapshot: the marks that make it, by ascending key.
func encodeMarks(m map[uint64]uint64) []byte {
	if len(m) == 0 {
		return nil
	}
	all := make([]Mark, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, Mark{Key: k, Value: m[k]})
	}
	return appendMarks(nil, all)
}

func decodeMarks(encoded []byte) (map[uint64]uint64, error) {
	m := map[uint64]uint64{}
	return m, applyMarks(m, encoded)
}
