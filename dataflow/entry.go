package dataflow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// Log entries, little-endian; varints as in encoding/binary.
//
//	ingest   stamp (8 bytes, ms) | record count (uvarint) | length of ids (uvarint) | ids |
//	         length of the cursor (uvarint) | cursor | records
//	marked, marks  length of the marks (uvarint) | marks | as ingest
//	end      empty
//	barrier  epoch (uvarint) | final (1 byte)
//	order    stamp (8 bytes, ms) | channel (uvarint) | first number (uvarint) | count (uvarint)
//	control  kind (1 byte) | epoch (uvarint) | agent
//	handed   sink (uvarint) | number (uvarint) | running checksum at number (8 bytes)
//	reserve  channel (uvarint) | number (uvarint)
//	sink     sink (uvarint) | may be sent up to (uvarint) | received up to (uvarint)
//	cut      position of the last entry before it (uvarint) | epoch (uvarint)
//	upgrade  generation (uvarint) | the upgrade as JSON
//	spool    position of the cause (uvarint) | frame
//	tick     stamp (8 bytes, ms) | 1 if the source is idle, else 0 (1 byte)
//	replay   stamp (8 bytes, ms) | length of the letter's key (uvarint) | key | record
//	give up  position of the entry (uvarint) | index of the record in it, or of a call that time made due with timeCalls added (uvarint) | reason, empty if skipped

var errEntry = errors.New("malformed log entry")

type ingestEntry struct {
	stamp   int64
	count   int
	ids     []byte
	cursor  []byte // empty: the source has none
	payload []byte
	marks   []byte // encoded; empty: none
}

// ingestHead is an ingest entry up to its records.
func ingestHead(stamp int64, count int, ids, cursor []byte) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 24+len(ids)+len(cursor)), uint64(stamp))
	b = binary.AppendUvarint(b, uint64(count))
	b = append(binary.AppendUvarint(b, uint64(len(ids))), ids...)
	return append(binary.AppendUvarint(b, uint64(len(cursor))), cursor...)
}

func decodeIngest(b []byte) (e ingestEntry, err error) {
	r := entryReader{b: b}
	e.stamp = r.i64()
	e.count = r.int()
	ids := r.uvarint()
	e.ids = r.bytes(ids)
	e.cursor = r.bytes(r.uvarint())
	e.payload = r.b
	return e, r.err
}

// markedHead stands before ingestHead in an entry with marks.
func markedHead(marks []Mark) []byte {
	encoded := appendMarks(nil, marks)
	return append(binary.AppendUvarint(make([]byte, 0, len(encoded)+4), uint64(len(encoded))), encoded...)
}

func decodeMarked(b []byte) (e ingestEntry, err error) {
	r := entryReader{b: b}
	marks := r.bytes(r.uvarint())
	if r.err != nil {
		return e, r.err
	}
	e, err = decodeIngest(r.b)
	e.marks = marks
	return e, err
}

// ingestOf decodes an entry with records.
func ingestOf(e Entry) (ingestEntry, error) {
	if e.Kind != EntryIngest {
		return decodeMarked(e.Data)
	}
	return decodeIngest(e.Data)
}

type barrierEntry struct {
	epoch abs.Epoch
	final bool
}

func (e barrierEntry) encode() []byte {
	b := binary.AppendUvarint(nil, uint64(e.epoch))
	if e.final {
		return append(b, 1)
	}
	return append(b, 0)
}

func decodeBarrier(b []byte) (e barrierEntry, err error) {
	r := entryReader{b: b}
	e.epoch = abs.Epoch(r.uvarint())
	f := r.bytes(1)
	e.final = r.err == nil && f[0] == 1
	return e, r.err
}

type orderEntry struct {
	stamp   int64
	channel int
	first   abs.Seq
	count   int
}

func (e orderEntry) encode(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.stamp))
	dst = binary.AppendUvarint(dst, uint64(e.channel))
	dst = binary.AppendUvarint(dst, uint64(e.first))
	return binary.AppendUvarint(dst, uint64(e.count))
}

func decodeOrder(b []byte) (e orderEntry, err error) {
	r := entryReader{b: b}
	e.stamp = r.i64()
	e.channel = r.int()
	e.first = abs.Seq(r.uvarint())
	e.count = r.int()
	return e, r.err
}

// encodeControl writes a control item: an event of the aligner that comes from outside the channels.
func encodeControl(ev abs.Event) []byte {
	b := binary.AppendUvarint([]byte{byte(ev.Kind)}, uint64(ev.Epoch))
	return append(b, ev.Agent...)
}

func decodeControl(b []byte) (ev abs.Event, err error) {
	r := entryReader{b: b}
	if k := r.bytes(1); r.err == nil {
		ev.Kind = abs.EventKind(k[0])
	}
	ev.Epoch = abs.Epoch(r.uvarint())
	ev.Agent = string(r.b)
	return ev, r.err
}

type handedEntry struct {
	sink   int
	number abs.Seq
	sum    frame.Sum
}

func (e handedEntry) encode() []byte {
	b := binary.AppendUvarint(nil, uint64(e.sink))
	b = binary.AppendUvarint(b, uint64(e.number))
	return binary.LittleEndian.AppendUint64(b, uint64(e.sum))
}

func decodeHanded(b []byte) (e handedEntry, err error) {
	r := entryReader{b: b}
	e.sink = r.int()
	e.number = abs.Seq(r.uvarint())
	e.sum = frame.Sum(r.i64())
	return e, r.err
}

// sinkEntry is how far a [ResumingSink] has come, or may have.
type sinkEntry struct {
	sink           int
	sent, received abs.Seq
}

func (e sinkEntry) encode() []byte {
	b := binary.AppendUvarint(nil, uint64(e.sink))
	b = binary.AppendUvarint(b, uint64(e.sent))
	return binary.AppendUvarint(b, uint64(e.received))
}

func decodeSink(b []byte) (e sinkEntry, err error) {
	r := entryReader{b: b}
	e.sink = r.int()
	e.sent = abs.Seq(r.uvarint())
	e.received = abs.Seq(r.uvarint())
	return e, r.err
}

// cutEntry is a barrier that a source has taken behind an earlier entry.
type cutEntry struct {
	pos   abs.Position
	epoch abs.Epoch
}

func (e cutEntry) encode() []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(e.pos)), uint64(e.epoch))
}

func decodeCut(b []byte) (e cutEntry, err error) {
	r := entryReader{b: b}
	e.pos = abs.Position(r.uvarint())
	e.epoch = abs.Epoch(r.uvarint())
	return e, r.err
}

type reserveEntry struct {
	channel int
	number  abs.Seq
}

func (e reserveEntry) encode() []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(e.channel)), uint64(e.number))
}

func decodeReserve(b []byte) (e reserveEntry, err error) {
	r := entryReader{b: b}
	e.channel = r.int()
	e.number = abs.Seq(r.uvarint())
	return e, r.err
}

// giveUpEntry excludes one record of an earlier entry.
type giveUpEntry struct {
	pos    abs.Position
	index  int
	reason string
}

func (e giveUpEntry) encode() []byte {
	b := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(e.pos)), uint64(e.index))
	return append(b, e.reason...)
}

func decodeGiveUp(b []byte) (e giveUpEntry, err error) {
	r := entryReader{b: b}
	e.pos = abs.Position(r.uvarint())
	e.index = r.int()
	e.reason = string(r.b)
	return e, r.err
}

// entryReader takes fields off the front of an entry; the first failure sticks.
type entryReader struct {
	b   []byte
	err error
}

func (r *entryReader) fail(why string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", errEntry, why)
	}
	r.b = nil
}

// int reads a count or an index.
func (r *entryReader) int() int {
	v := r.uvarint()
	if v > math.MaxInt32 {
		r.fail(fmt.Sprintf("count or index %d", v))
		return 0
	}
	return int(v)
}

func (r *entryReader) i64() int64 {
	if b := r.bytes(8); r.err == nil {
		return int64(binary.LittleEndian.Uint64(b))
	}
	return 0
}

func (r *entryReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("a number is cut off or too large")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *entryReader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail("ends too early")
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}
