package frame

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Record is one record of a stream. Decoded slices alias the payload.
//
// Encoded, little-endian:
//
//	offset size field
//	     0    4 size: bytes that follow this field
//	     4    8 event time, milliseconds since 1970
//	    12    2 key length
//	    14    2 length of the headers
//	    16      key, headers, value
//
// Headers are a sequence of: name length (1 byte), value length (2 bytes), name, value.
type Record struct {
	Time    int64
	Key     []byte
	Headers []byte
	Value   []byte
}

// recordFixed is the size of a record without key, headers and value.
const recordFixed = 16

// Size is the encoded size of the record in bytes.
func (r Record) Size() int { return recordFixed + len(r.Key) + len(r.Headers) + len(r.Value) }

// Check reports why the record cannot be encoded: its key, headers or whole are too large.
func (r Record) Check() error {
	switch {
	case len(r.Key) > MaxKey:
		return fmt.Errorf("key of %d bytes, at most %d", len(r.Key), MaxKey)
	case len(r.Headers) > math.MaxUint16:
		return fmt.Errorf("headers of %d bytes, at most %d", len(r.Headers), math.MaxUint16)
	case r.Size() > MaxRecord:
		return fmt.Errorf("record of %d bytes, at most %d", r.Size(), MaxRecord)
	}
	return nil
}

// AppendRecord appends the encoded record to dst. The record must pass [Record.Check].
func AppendRecord(dst []byte, r Record) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, uint32(r.Size()-4))
	dst = le.AppendUint64(dst, uint64(r.Time))
	dst = le.AppendUint16(dst, uint16(len(r.Key)))
	dst = le.AppendUint16(dst, uint16(len(r.Headers)))
	dst = append(dst, r.Key...)
	dst = append(dst, r.Headers...)
	return append(dst, r.Value...)
}

// Next splits the first record off a payload. The caller loops while rest is not empty.
func Next(payload []byte) (r Record, rest []byte, err error) {
	n, err := recordSize(payload)
	if err != nil {
		return r, nil, err
	}
	le := binary.LittleEndian
	key := recordFixed + int(le.Uint16(payload[12:]))
	hdr := key + int(le.Uint16(payload[14:]))
	if key > recordFixed+MaxKey {
		return r, nil, fmt.Errorf("%w: key of %d bytes, at most %d", ErrCorrupt, key-recordFixed, MaxKey)
	}
	if hdr > n {
		return r, nil, fmt.Errorf("%w: record of %d bytes with key and headers of %d", ErrCorrupt, n, hdr)
	}
	r = Record{
		Time: int64(le.Uint64(payload[4:])), Key: payload[recordFixed:key:key],
		Headers: payload[key:hdr:hdr], Value: payload[hdr:n:n],
	}
	return r, payload[n:], nil
}

// recordSize is the size of the payload's first record, its size field included.
func recordSize(payload []byte) (int, error) {
	if len(payload) < recordFixed {
		return 0, fmt.Errorf("%w: %d bytes are less than a record", ErrCorrupt, len(payload))
	}
	n := uint64(binary.LittleEndian.Uint32(payload)) + 4
	if n < recordFixed || n > MaxRecord || n > uint64(len(payload)) {
		return 0, fmt.Errorf("%w: record of %d bytes in %d", ErrCorrupt, n, len(payload))
	}
	return int(n), nil
}

// Count walks a payload and returns its number of records, or an error if it is not whole records.
func Count(payload []byte) (int, error) {
	n := 0
	for len(payload) > 0 {
		_, rest, err := Next(payload)
		if err != nil {
			return n, err
		}
		payload = rest
		n++
	}
	return n, nil
}

// Skip returns the size in bytes of the payload's first n records.
func Skip(payload []byte, n int) (int, error) {
	at := 0
	for range n {
		size, err := recordSize(payload[at:])
		if err != nil {
			return 0, err
		}
		at += size
	}
	return at, nil
}

// AppendHeader appends one named header to a record's header block. Names are at most 255 bytes,
// values at most 65,535; longer ones are refused by returning dst unchanged and false.
func AppendHeader(dst []byte, name string, value []byte) ([]byte, bool) {
	if len(name) > math.MaxUint8 || len(value) > math.MaxUint16 {
		return dst, false
	}
	dst = append(dst, byte(len(name)))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(value)))
	dst = append(dst, name...)
	return append(dst, value...), true
}

// Header returns the value of the record's header of that name, nil if it has none.
func (r Record) Header(name string) []byte {
	for b := r.Headers; len(b) >= 3; {
		n, v := int(b[0]), int(binary.LittleEndian.Uint16(b[1:]))
		if 3+n+v > len(b) {
			return nil
		}
		if string(b[3:3+n]) == name {
			return b[3+n : 3+n+v]
		}
		b = b[3+n+v:]
	}
	return nil
}

// Mark is an item that is not a record.
//
// Encoded: kind (1 byte), value (8 bytes, little-endian), then Body.
type Mark struct {
	Kind Kind
	// Value is a barrier's epoch, with [Final] for the last one of a generation, or the time of a watermark or tick in milliseconds since 1970.
	Value uint64
	// Body is what a control item says; empty for others.
	Body []byte
}

// Final is set in the value of a barrier that ends a generation: sources read nothing after it, unless
// its epoch is aborted.
const Final = 1 << 63

// AppendMark appends the encoded mark to dst.
func AppendMark(dst []byte, m Mark) []byte {
	dst = append(dst, byte(m.Kind))
	dst = binary.LittleEndian.AppendUint64(dst, m.Value)
	return append(dst, m.Body...)
}

// DecodeMark reads the mark that fills b. Body aliases b.
func DecodeMark(b []byte) (Mark, error) {
	if len(b) < 9 {
		return Mark{}, fmt.Errorf("%w: %d bytes are less than a mark", ErrCorrupt, len(b))
	}
	m := Mark{Kind: Kind(b[0]), Value: binary.LittleEndian.Uint64(b[1:]), Body: b[9:]}
	if m.Kind <= Data || m.Kind > End {
		return m, fmt.Errorf("%w: mark of kind %d", ErrCorrupt, b[0])
	}
	if m.Kind != Control && len(m.Body) > 0 {
		return m, fmt.Errorf("%w: %s with a body of %d bytes", ErrCorrupt, m.Kind, len(m.Body))
	}
	return m, nil
}
