package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/weir-stream/weir/abs"
)

// The format of a segment file; the package documentation has the tables.
const (
	segmentMagic   = "WEIRLOG"
	segmentVersion = 1
	headerFixed    = 52 // bytes of a segment's header before its lists
	headerSegment  = 32 // bytes of one earlier segment in the list
	headerStream   = 14 // bytes of one stream in the table, without its name
	recordHeader   = 24
	kindCommit     = 0xff
)

// Bounds of the format.
const (
	// MaxEntry is the largest data of an entry of the log in bytes: more than three of the largest frames.
	MaxEntry = 1 << 20
	// maxStreamName keeps the table at the head of each segment small.
	maxStreamName = 1 << 10
	// maxHeader bounds what is read of a damaged header: 2^16 streams with names of 200 bytes.
	maxHeader = 16 << 20
	// maxRecordData bounds a record; a commit record may list every stream.
	maxRecordData = maxHeader
	// maxUnsynced is the most positions that can have been given out beyond the last durable one. A
	// log that was not closed starts that far beyond what it finds, so that no position is used twice.
	maxUnsynced = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is one record of a segment as read. Data is borrowed from the reader.
type record struct {
	pos    abs.Position
	stream uint32
	kind   uint8
	data   []byte
}

// appendRecord encodes a record. The checksum covers all but itself; position and seed make a record
// fail that was left in a reused block of the disk, or that somebody put into the data of another.
func appendRecord(dst []byte, seed uint32, pos abs.Position, stream uint32, kind uint8, data ...[]byte) []byte {
	n := 0
	for _, d := range data {
		n += len(d)
	}
	at := len(dst)
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, uint32(n))
	dst = append(dst, 0, 0, 0, 0)
	dst = le.AppendUint64(dst, uint64(pos))
	dst = le.AppendUint32(dst, stream)
	dst = append(dst, kind, 0, 0, 0)
	for _, d := range data {
		dst = append(dst, d...)
	}
	le.PutUint32(dst[at+4:], recordSum(seed, dst[at:]))
	return dst
}

func recordSum(seed uint32, b []byte) uint32 {
	sum := crc32.Update(seed, castagnoli, b[:4])
	return crc32.Update(sum, castagnoli, b[8:])
}

// recordPosition and recordStream read from a record that is known to be whole.
func recordPosition(b []byte) abs.Position { return abs.Position(binary.LittleEndian.Uint64(b[8:])) }

func recordStream(b []byte) uint32 { return binary.LittleEndian.Uint32(b[16:]) }

// errShort says that the bytes at hand end before the record does.
var errShort = errors.New("record goes on beyond the end")

// recordLength is the size of the record that b starts with, errShort if not even its length is there.
func recordLength(b []byte) (int, error) {
	if len(b) < recordHeader {
		return recordHeader, errShort
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxRecordData {
		return 0, fmt.Errorf("record of %d bytes", n)
	}
	return recordHeader + int(n), nil
}

// parseRecord reads the record that b starts with. Data aliases b.
func parseRecord(b []byte, seed uint32) (record, error) {
	n, err := recordLength(b)
	if err != nil {
		return record{}, err
	}
	if n > len(b) {
		return record{}, errShort
	}
	le := binary.LittleEndian
	if le.Uint32(b[4:]) != recordSum(seed, b[:n]) {
		return record{}, errors.New("record does not match its checksum")
	}
	if b[21]|b[22]|b[23] != 0 {
		return record{}, errors.New("record with unknown flags")
	}
	return record{
		pos: abs.Position(le.Uint64(b[8:])), stream: le.Uint32(b[16:]), kind: b[20],
		data: b[recordHeader:n:n],
	}, nil
}

// commit is what the record at the start of every commit says. Everything before it in its segment
// was durable when it was written.
type commit struct {
	streams []streamName // made since the last commit
	fronts  []streamFront
	dropped []uint32 // streams
	removed []uint64 // segments whose files may be gone
	closed  bool     // the log was closed: no position beyond this one was given out
}

type streamName struct {
	id   uint32
	name string
}

type streamFront struct {
	id    uint32
	front abs.Position
}

func (c commit) empty() bool {
	return len(c.streams)+len(c.fronts)+len(c.dropped)+len(c.removed) == 0 && !c.closed
}

func (c commit) encode() []byte {
	var b []byte
	if c.empty() {
		return b
	}
	flag := byte(0)
	if c.closed {
		flag = 1
	}
	b = append(b, flag)
	b = binary.AppendUvarint(b, uint64(len(c.streams)))
	for _, s := range c.streams {
		b = binary.AppendUvarint(b, uint64(s.id))
		b = binary.AppendUvarint(b, uint64(len(s.name)))
		b = append(b, s.name...)
	}
	b = binary.AppendUvarint(b, uint64(len(c.fronts)))
	for _, f := range c.fronts {
		b = binary.AppendUvarint(b, uint64(f.id))
		b = binary.AppendUvarint(b, uint64(f.front))
	}
	b = binary.AppendUvarint(b, uint64(len(c.dropped)))
	for _, id := range c.dropped {
		b = binary.AppendUvarint(b, uint64(id))
	}
	b = binary.AppendUvarint(b, uint64(len(c.removed)))
	for _, n := range c.removed {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// fields reads a sequence of fields and remembers the first failure.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 || v > limit {
		f.bad, f.b = true, nil
		return 0
	}
	f.b = f.b[n:]
	return v
}

// count reads the length of a list whose elements take at least one byte each.
func (f *fields) count() int { return int(f.uvarint(uint64(len(f.b)))) }

func (f *fields) bytes(n int) []byte {
	if n > len(f.b) {
		f.bad, f.b = true, nil
		return nil
	}
	b := f.b[:n:n]
	f.b = f.b[n:]
	return b
}

func parseCommit(b []byte) (commit, error) {
	var c commit
	if len(b) == 0 {
		return c, nil
	}
	f := &fields{b: b}
	flag := f.uvarint(1)
	c.closed = flag == 1
	for range f.count() {
		id := uint32(f.uvarint(math.MaxUint32))
		c.streams = append(c.streams, streamName{id, string(f.bytes(int(f.uvarint(maxStreamName))))})
	}
	for range f.count() {
		id := uint32(f.uvarint(math.MaxUint32))
		c.fronts = append(c.fronts, streamFront{id, abs.Position(f.uvarint(math.MaxUint64))})
	}
	for range f.count() {
		c.dropped = append(c.dropped, uint32(f.uvarint(math.MaxUint32)))
	}
	for range f.count() {
		c.removed = append(c.removed, f.uvarint(math.MaxUint64))
	}
	if f.bad || len(f.b) > 0 {
		return commit{}, errors.New("malformed commit record")
	}
	return c, nil
}

// header stands at the head of a segment. It makes the log self-contained whatever is removed
// before it: which earlier segments belong to the log and up to where, and all streams.
type header struct {
	log        uint64 // random, the same in all segments of a log; its low half is the seed of checksums
	number     uint64
	base       abs.Position // of the first entry
	nextStream uint32
	earlier    []sealed
	streams    []headerEntry
}

// sealed is an earlier segment that belongs to the log, and how far: what its file has beyond that
// was not durable when it was left and has been written again here. The last one may reach beyond
// the base: what it has from there on counts only as long as it is not here.
type sealed struct {
	number     uint64
	base, last abs.Position
	length     int64
}

type headerEntry struct {
	id    uint32
	front abs.Position
	name  string
}

func (h header) encode() []byte {
	le := binary.LittleEndian
	b := append([]byte(segmentMagic), segmentVersion)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // length, checksum
	b = le.AppendUint64(b, h.log)
	b = le.AppendUint64(b, h.number)
	b = le.AppendUint64(b, uint64(h.base))
	b = le.AppendUint32(b, h.nextStream)
	b = le.AppendUint32(b, uint32(len(h.earlier)))
	b = le.AppendUint32(b, uint32(len(h.streams)))
	for _, s := range h.earlier {
		b = le.AppendUint64(b, s.number)
		b = le.AppendUint64(b, uint64(s.base))
		b = le.AppendUint64(b, uint64(s.last))
		b = le.AppendUint64(b, uint64(s.length))
	}
	for _, s := range h.streams {
		b = le.AppendUint32(b, s.id)
		b = le.AppendUint64(b, uint64(s.front))
		b = le.AppendUint16(b, uint16(len(s.name)))
		b = append(b, s.name...)
	}
	le.PutUint32(b[8:], uint32(len(b)))
	le.PutUint32(b[12:], headerSum(b))
	return b
}

func headerSum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:12])
	return crc32.Update(sum, castagnoli, b[16:])
}

// headerLength is the length of the header that b starts with; b must have headerFixed bytes.
func headerLength(b []byte) (int, error) {
	if len(b) < headerFixed {
		return 0, errors.New("file is shorter than a segment's header")
	}
	if string(b[:7]) != segmentMagic {
		return 0, errors.New("not a segment of the log")
	}
	if b[7] != segmentVersion {
		return 0, fmt.Errorf("segment of format %d, this build reads %d", b[7], segmentVersion)
	}
	n := binary.LittleEndian.Uint32(b[8:])
	if n < headerFixed || n > maxHeader {
		return 0, fmt.Errorf("header of %d bytes", n)
	}
	return int(n), nil
}

// parseHeader reads the header that fills b.
func parseHeader(b []byte) (header, error) {
	var h header
	n, err := headerLength(b)
	if err != nil {
		return h, err
	}
	le := binary.LittleEndian
	if n != len(b) || le.Uint32(b[12:]) != headerSum(b) {
		return h, errors.New("header does not match its checksum")
	}
	h = header{log: le.Uint64(b[16:]), number: le.Uint64(b[24:]), base: abs.Position(le.Uint64(b[32:])), nextStream: le.Uint32(b[40:])}
	segments, streams := int(le.Uint32(b[44:])), int(le.Uint32(b[48:]))
	f := &fields{b: b[headerFixed:]}
	for i := 0; i < segments && !f.bad; i++ {
		if e := f.bytes(headerSegment); e != nil {
			h.earlier = append(h.earlier, sealed{
				le.Uint64(e), abs.Position(le.Uint64(e[8:])), abs.Position(le.Uint64(e[16:])), int64(le.Uint64(e[24:])),
			})
		}
	}
	for i := 0; i < streams && !f.bad; i++ {
		if e := f.bytes(headerStream); e != nil {
			name := f.bytes(int(le.Uint16(e[12:])))
			h.streams = append(h.streams, headerEntry{le.Uint32(e), abs.Position(le.Uint64(e[4:])), string(name)})
		}
	}
	if f.bad || len(f.b) > 0 {
		return h, errors.New("malformed lists in the header")
	}
	return h, h.check()
}

func (h header) check() error {
	if h.base == 0 || h.number == 0 {
		return errors.New("segment without number or position")
	}
	before := sealed{}
	for _, s := range h.earlier {
		if s.number <= before.number || s.base <= before.last || s.last+1 < s.base || s.length < headerFixed {
			return errors.New("list of earlier segments out of order")
		}
		before = s
	}
	if before.number >= h.number || before.base > h.base {
		return errors.New("earlier segments reach beyond this one")
	}
	for _, s := range h.streams {
		if s.id >= h.nextStream || len(s.name) > maxStreamName {
			return errors.New("table of streams out of range")
		}
	}
	return nil
}

// segmentReader reads the records of a segment's file in order, checking checksum and position.
type segmentReader struct {
	name string
	f    io.ReaderAt
	seed uint32
	off  int64        // of the next record
	end  int64        // nothing is read from here on
	next abs.Position // of the next entry
	buf  []byte       // holds the bytes from off on
	mem  []byte
}

// readAhead is how many bytes a reader fetches at once.
const readAhead = 64 << 10

func (r *segmentReader) corrupt(err error) error {
	return fmt.Errorf("%w: %s at offset %d: %w", ErrCorrupt, r.name, r.off, err)
}

// read returns the next record; io.EOF at the end. Its data is valid until the next call. After an
// error about the content, which wraps ErrCorrupt, off is where the bad record starts.
func (r *segmentReader) read() (record, error) {
	if r.off == r.end {
		return record{}, io.EOF
	}
	if err := r.fill(recordHeader); err != nil {
		return record{}, err
	}
	n, err := recordLength(r.buf)
	if err != nil {
		return record{}, r.corrupt(err)
	}
	if err := r.fill(n); err != nil {
		return record{}, err
	}
	rec, err := parseRecord(r.buf, r.seed)
	if err != nil {
		return record{}, r.corrupt(err)
	}
	if err := r.follow(rec); err != nil {
		return record{}, r.corrupt(err)
	}
	r.off += int64(n)
	r.buf = r.buf[n:]
	return rec, nil
}

// follow checks that the record has the position that is its turn.
func (r *segmentReader) follow(rec record) error {
	want := r.next
	if rec.kind == kindCommit {
		want--
	}
	if rec.pos != want {
		return fmt.Errorf("record at position %d where %d is its turn", rec.pos, want)
	}
	if rec.kind != kindCommit {
		r.next++
	}
	return nil
}

// fill makes at least n bytes from off available, or says that the file is too short.
func (r *segmentReader) fill(n int) error {
	if len(r.buf) >= n {
		return nil
	}
	if int64(n) > r.end-r.off {
		return r.corrupt(errShort)
	}
	want := int(min(int64(max(n, readAhead)), r.end-r.off))
	if cap(r.mem) < want {
		r.mem = make([]byte, want)
	}
	have := copy(r.mem[:want], r.buf)
	got, err := r.f.ReadAt(r.mem[have:want], r.off+int64(have))
	if got < want-have {
		if err == nil || errors.Is(err, io.EOF) {
			return r.corrupt(errShort)
		}
		return fmt.Errorf("read %s at offset %d: %w", r.name, r.off, err)
	}
	r.buf = r.mem[:want]
	return nil
}

// findCommit looks for a whole commit record anywhere after off and returns its offset, or -1. One
// that is found shows that what stands before it had been durable.
func findCommit(b []byte, seed uint32, off int, next abs.Position) int {
	le := binary.LittleEndian
	for ; off+recordHeader <= len(b); off++ {
		if b[off+20] != kindCommit || le.Uint32(b[off+16:]) != 0 {
			continue
		}
		pos := abs.Position(le.Uint64(b[off+8:]))
		if pos+1 < next || pos-next > maxUnsynced && pos+1 != next {
			continue
		}
		if _, err := parseRecord(b[off:], seed); err == nil {
			return off
		}
	}
	return -1
}
