// Package frame is the wire unit of a channel: a header and a payload.
//
// The payload of a data frame is a sequence of records (see [AppendRecord]). It has the same bytes
// in the ingest log, on the wire and in guest memory. The payload of a mark frame is one mark (see
// [Mark]). Records and marks alike are items; every item of a channel has a number, starting at 1.
//
// Each frame carries the channel's running checksum before its first and after its last item. The
// checksum is taken over the item bytes alone, so that it does not depend on where frames are cut,
// and After also guards the payload.
//
// Header, little-endian, 64 bytes:
//
//	offset size field
//	     0    1 magic 'W'
//	     1    1 version (1)
//	     2    1 kind
//	     3    1 flags (0)
//	     4    4 generation of the physical plan
//	     8    4 incarnation of the channel's writer
//	    12    4 item count
//	    16    8 number of the first item
//	    24    8 epoch: a barrier's own, else the last one sent on the channel
//	    32    8 watermark, milliseconds since 1970 (math.MinInt64: none)
//	    40    8 running checksum before
//	    48    8 running checksum after
//	    56    4 payload length
//	    60    4 CRC-32C of bytes 0–59
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// Sizes in bytes.
const (
	HeaderSize = 64
	// TargetSize is the payload size at which a sender cuts a frame.
	TargetSize = 48 << 10
	// MaxRecord is the largest record, its size field included. A larger one is dead-lettered where it enters.
	MaxRecord = 256 << 10
	// MaxKey is the longest key in bytes: keys are kept in state, whose index cannot hold much longer ones.
	MaxKey = 8 << 10
	// MaxPayload bounds a payload: less than TargetSize is followed by at most one record of MaxRecord.
	MaxPayload = TargetSize + MaxRecord
)

const (
	magic   = 'W'
	version = 1
)

// NoWatermark is the watermark of a channel that has seen none.
const NoWatermark = math.MinInt64

// Kind tells what a frame carries.
type Kind uint8

// Kinds of frames. All but Data carry exactly one item, a mark.
const (
	Data Kind = iota + 1
	Barrier
	Watermark
	Tick
	Control
	End
)

func (k Kind) String() string {
	switch k {
	case Data:
		return "data"
	case Barrier:
		return "barrier"
	case Watermark:
		return "watermark"
	case Tick:
		return "tick"
	case Control:
		return "control"
	case End:
		return "end"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ErrCorrupt is wrapped by every error about bytes that are not a frame or not what the sender wrote.
var ErrCorrupt = errors.New("corrupt frame")

// ErrVersion is wrapped by the error about a frame of a version that this build does not read.
var ErrVersion = errors.New("unknown frame version")

// Sum is a channel's running checksum: the CRC-32C of all item bytes so far in the low 32 bits, their
// total length modulo 2³² in the high ones. The zero value is the sum of no bytes.
type Sum uint64

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Add returns the sum extended by item bytes.
func (s Sum) Add(items []byte) Sum {
	crc := crc32.Update(uint32(s), castagnoli, items)
	return Sum(crc) | Sum(uint32(s>>32)+uint32(len(items)))<<32
}

// Header describes a frame. Before and After are the running checksum before its first and after its last item.
type Header struct {
	Kind        Kind
	Generation  uint32
	Incarnation uint32
	Count       uint32
	First       uint64
	Epoch       uint64
	Watermark   int64
	Before      Sum
	After       Sum
}

// Last is the number of the frame's last item.
func (h Header) Last() uint64 { return h.First + uint64(h.Count) - 1 }

// Append appends the encoded frame to dst.
func Append(dst []byte, h Header, payload []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	PutHeader(dst[at:], h, len(payload))
	return append(dst, payload...)
}

// PutHeader writes the header of a frame whose payload of that length follows it into the first
// HeaderSize bytes of b.
func PutHeader(b []byte, h Header, payloadLen int) {
	le := binary.LittleEndian
	b[0], b[1], b[2], b[3] = magic, version, byte(h.Kind), 0
	le.PutUint32(b[4:], h.Generation)
	le.PutUint32(b[8:], h.Incarnation)
	le.PutUint32(b[12:], h.Count)
	le.PutUint64(b[16:], h.First)
	le.PutUint64(b[24:], h.Epoch)
	le.PutUint64(b[32:], uint64(h.Watermark))
	le.PutUint64(b[40:], uint64(h.Before))
	le.PutUint64(b[48:], uint64(h.After))
	le.PutUint32(b[56:], uint32(payloadLen))
	le.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
}

// Decode reads the frame that fills b and checks header, payload checksum and item count. The
// payload aliases b.
func Decode(b []byte) (Header, []byte, error) {
	h, n, err := decodeHeader(b)
	if err != nil {
		return h, nil, err
	}
	payload := b[HeaderSize:]
	if len(payload) != n {
		return h, nil, fmt.Errorf("%w: payload of %d bytes, header says %d", ErrCorrupt, len(payload), n)
	}
	if h.Before.Add(payload) != h.After {
		return h, nil, fmt.Errorf("%w: payload of items %d–%d does not match its checksum", ErrCorrupt, h.First, h.Last())
	}
	if h.Kind != Data {
		m, err := DecodeMark(payload)
		if err != nil {
			return h, nil, err
		}
		if m.Kind != h.Kind {
			return h, nil, fmt.Errorf("%w: %s frame with a %s", ErrCorrupt, h.Kind, m.Kind)
		}
		return h, payload, nil
	}
	count, err := Count(payload)
	if err != nil {
		return h, nil, err
	}
	if uint32(count) != h.Count {
		return h, nil, fmt.Errorf("%w: %d records, header says %d", ErrCorrupt, count, h.Count)
	}
	return h, payload, nil
}

// DecodeHeader reads the header of a frame and looks at nothing behind it: for a frame that is known to be whole.
func DecodeHeader(b []byte) (Header, error) {
	h, _, err := decodeHeader(b)
	return h, err
}

func decodeHeader(b []byte) (Header, int, error) {
	var h Header
	if len(b) < HeaderSize {
		return h, 0, fmt.Errorf("%w: %d bytes are less than a header", ErrCorrupt, len(b))
	}
	if b[0] != magic {
		return h, 0, fmt.Errorf("%w: starts with byte %#02x", ErrCorrupt, b[0])
	}
	if b[1] != version {
		return h, 0, fmt.Errorf("%w: %d, this build reads %d", ErrVersion, b[1], version)
	}
	le := binary.LittleEndian
	if crc32.Checksum(b[:60], castagnoli) != le.Uint32(b[60:]) {
		return h, 0, fmt.Errorf("%w: header does not match its checksum", ErrCorrupt)
	}
	h = Header{
		Kind: Kind(b[2]), Generation: le.Uint32(b[4:]), Incarnation: le.Uint32(b[8:]), Count: le.Uint32(b[12:]),
		First: le.Uint64(b[16:]), Epoch: le.Uint64(b[24:]), Watermark: int64(le.Uint64(b[32:])),
		Before: Sum(le.Uint64(b[40:])), After: Sum(le.Uint64(b[48:])),
	}
	n := int(le.Uint32(b[56:]))
	switch {
	case b[3] != 0:
		return h, 0, fmt.Errorf("%w: unknown flags %#02x", ErrCorrupt, b[3])
	case h.Kind < Data || h.Kind > End:
		return h, 0, fmt.Errorf("%w: unknown kind %d", ErrCorrupt, b[2])
	case h.Count == 0 || h.Kind != Data && h.Count != 1:
		return h, 0, fmt.Errorf("%w: %s frame of %d items", ErrCorrupt, h.Kind, h.Count)
	case h.First == 0 || h.First > math.MaxUint64-uint64(h.Count):
		return h, 0, fmt.Errorf("%w: first number %d", ErrCorrupt, h.First)
	case n > MaxPayload:
		return h, 0, fmt.Errorf("%w: payload of %d bytes, at most %d", ErrCorrupt, n, MaxPayload)
	}
	return h, n, nil
}
