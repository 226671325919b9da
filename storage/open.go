package storage

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/weir-stream/weir/abs"
)

// OpenLog opens the log in a directory, or makes one, and starts its committer; [Log.Close] ends it.
//
// Every byte that the log needs is verified. What a power cut left behind the last whole entry is
// cut off. Anything else that is wrong is an error that wraps [ErrCorrupt] and names file and
// offset; then no file has been changed, and [SetAside] makes room for a new log.
func OpenLog(dir string, opt LogOptions) (*Log, error) {
	opt = opt.withDefaults()
	l := &Log{
		opt: opt, dir: dir,
		kick: make(chan struct{}, 1), retry: make(chan struct{}, 1),
		quit: make(chan struct{}), done: make(chan struct{}),
		streams: map[uint32]*LogStream{}, byName: map[string]*LogStream{}, nextID: 1,
	}
	l.room = sync.NewCond(&l.mu)
	l.tail.chunkSize = max(4<<10, min(64<<10, opt.TailBytes/8))
	if err := opt.fs.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("log %s: %w", dir, err)
	}
	found, err := l.examine()
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", dir, err)
	}
	if err := l.start(found); err != nil {
		return nil, fmt.Errorf("log %s: %w", dir, err)
	}
	go l.run()
	return l, nil
}

// finding is what the files of a log tell.
type finding struct {
	segs    []*segment
	streams map[uint32]*headerEntry
	nextID  uint32
	log     uint64
	last    abs.Position // highest that has been given out, as far as the files tell
	closed  bool
	number  uint64 // of the last segment
	tail    *tailEnd
	surplus []string
}

// tailEnd is the end of the log: the final commit, read back to be written again.
type tailEnd struct {
	number uint64 // of the segment
	off    int64
	bytes  []byte
	size   int64 // of the file
}

// examine reads and verifies the files and changes none. What the medium does not give back is damaged too.
func (l *Log) examine() (*finding, error) {
	fd, err := l.examineFiles()
	if err != nil && !errors.Is(err, ErrCorrupt) && (errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EISDIR)) {
		err = fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return fd, err
}

func (l *Log) examineFiles() (*finding, error) {
	names, err := l.opt.fs.List(l.dir)
	if err != nil {
		return nil, err
	}
	var numbers []uint64
	fd := &finding{streams: map[uint32]*headerEntry{}, nextID: 1}
	for _, name := range names {
		if strings.HasSuffix(name, tmpSuffix) {
			fd.surplus = append(fd.surplus, filepath.Join(l.dir, name))
		}
		l.ballast = l.ballast || name == ballastName
		if n, ok := segmentNumber(name); ok {
			numbers = append(numbers, n)
		}
	}
	if len(numbers) == 0 {
		return fd, nil
	}
	slices.Sort(numbers)
	return fd, l.examineSegments(fd, numbers)
}

func segmentNumber(name string) (uint64, bool) {
	base, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(base) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(base, 16, 64)
	return n, err == nil
}

func (l *Log) examineSegments(fd *finding, numbers []uint64) error {
	fd.number = numbers[len(numbers)-1]
	h, start, err := l.readHeader(fd.number)
	if err != nil {
		return err
	}
	fd.log, fd.nextID = h.log, h.nextStream
	for _, s := range h.streams {
		fd.streams[s.id] = &s
	}
	last := newSegmentAt(h, start)
	removed, err := l.examineLast(fd, last)
	if err != nil {
		return err
	}
	for _, e := range h.earlier {
		again := e.base >= last.base && last.last >= e.last // all of it has been written again
		if again || slices.Contains(removed, e.number) {
			continue
		}
		seg, tail, err := l.examineSealed(h.log, e, overlap{last.base, last.last})
		if err != nil {
			return err
		}
		if tail != nil {
			// The power went before this segment's end had been written again in the last one.
			fd.tail, fd.closed = tail, false
			last.last = last.base - 1
		}
		fd.last = max(fd.last, seg.last)
		fd.segs = append(fd.segs, seg)
	}
	if !last.empty() {
		fd.segs = append(fd.segs, last)
	}
	l.findSurplus(fd, numbers)
	return nil
}

// findSurplus finds the files of segments that are no part of the log.
func (l *Log) findSurplus(fd *finding, numbers []uint64) {
	for _, n := range numbers {
		if !slices.ContainsFunc(fd.segs, func(s *segment) bool { return s.number == n }) {
			fd.surplus = append(fd.surplus, segmentName(l.dir, n))
		}
	}
}

func (l *Log) readHeader(number uint64) (header, int64, error) {
	name := segmentName(l.dir, number)
	f, err := l.opt.fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return header{}, 0, err
	}
	defer f.Close()
	h, err := readHeaderOf(f)
	if err != nil {
		return h, 0, fmt.Errorf("%w: %s at offset 0: %w", ErrCorrupt, name, err)
	}
	if h.number != number {
		return h, 0, fmt.Errorf("%w: %s at offset 24: it is segment %d", ErrCorrupt, name, h.number)
	}
	return h, int64(len(h.encode())), nil
}

func readHeaderOf(f file) (header, error) {
	size, err := f.Size()
	if err != nil {
		return header{}, err
	}
	b := make([]byte, min(size, headerFixed))
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return header{}, err
	}
	n, err := headerLength(b)
	if err != nil {
		return header{}, err
	}
	if int64(n) > size {
		return header{}, errShort
	}
	b = make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return header{}, err
	}
	return parseHeader(b)
}

// overlap says which positions the last segment has: from its base up to the last.
type overlap struct{ base, last abs.Position }

// examineSealed verifies a segment that a later one lists: all of it must be there, but for what the
// last segment has instead. If that should have the end of this one and has not, the end is returned.
func (l *Log) examineSealed(log uint64, want sealed, over overlap) (*segment, *tailEnd, error) {
	seg, f, err := l.openSealed(log, want)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	overlapped := want.last >= over.base
	covered := overlapped && over.last >= want.last
	if covered {
		want.last = over.base - 1
	}
	r := l.reader(f, seg, log)
	r.end = want.length
	again := int64(-1) // where the end begins that the last segment lacks
	for !covered || r.next <= want.last {
		at := r.off
		if overlapped && !covered && again < 0 && r.next == over.base {
			again = at
		}
		rec, err := r.read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = seg.takeFrom(r, rec, at, nil)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	seg.length = r.off
	if seg.last != want.last {
		return nil, nil, r.corrupt(fmt.Errorf("it ends at position %d, not %d", seg.last, want.last))
	}
	if again < 0 {
		return seg, nil, nil
	}
	tail, err := readTail(f, seg, again)
	return seg, tail, err
}

// openSealed opens a segment that must be there and belong to the log.
func (l *Log) openSealed(log uint64, want sealed) (*segment, file, error) {
	name := segmentName(l.dir, want.number)
	h, start, err := l.readHeader(want.number)
	if isMissing(err) {
		return nil, nil, fmt.Errorf("%w: %s at offset 0: the segment is missing", ErrCorrupt, name)
	}
	if err != nil {
		return nil, nil, err
	}
	if h.log != log || h.base != want.base {
		return nil, nil, fmt.Errorf("%w: %s at offset 16: the segment belongs to another log", ErrCorrupt, name)
	}
	f, err := l.opt.fs.OpenFile(name, os.O_RDONLY)
	return newSegmentAt(h, start), f, err
}

// newSegmentAt is a segment of which nothing but the header is known.
func newSegmentAt(h header, start int64) *segment {
	return &segment{number: h.number, base: h.base, last: h.base - 1, start: start, length: start, streams: map[uint32]span{}}
}

func (l *Log) reader(f io.ReaderAt, seg *segment, log uint64) *segmentReader {
	return &segmentReader{
		name: segmentName(l.dir, seg.number), f: f, seed: uint32(log),
		off: seg.start, end: seg.length, next: seg.base,
	}
}

// takeFrom is take with an error that says where.
func (s *segment) takeFrom(r *segmentReader, rec record, at int64, apply func(commit)) error {
	if err := s.take(rec, apply, at); err != nil {
		return fmt.Errorf("%w: %s at offset %d: %w", ErrCorrupt, r.name, at, err)
	}
	return nil
}

// take adds a record that was read at an offset.
func (s *segment) take(rec record, apply func(commit), at int64) error {
	if rec.kind == kindCommit {
		c, err := parseCommit(rec.data)
		if err != nil {
			return err
		}
		if apply != nil {
			apply(c)
		}
		return nil
	}
	if rec.kind == 0 || rec.stream == 0 {
		return fmt.Errorf("entry of kind %d in stream %d", rec.kind, rec.stream)
	}
	s.add(rec.stream, at, rec.pos)
	s.last = rec.pos
	return nil
}

// examineLast reads the last segment up to where it was torn, if it was.
func (l *Log) examineLast(fd *finding, seg *segment) (removed []uint64, err error) {
	name := segmentName(l.dir, seg.number)
	f, err := l.opt.fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	r := l.reader(f, seg, fd.log)
	r.end = size
	again := seg.start
	apply := func(c commit) {
		fd.apply(c)
		removed = append(removed, c.removed...)
	}
	for {
		at := r.off
		rec, err := r.read()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, ErrCorrupt) && checkTorn(f, r, &err) {
			fd.closed = false
			break
		}
		if err != nil {
			return nil, err
		}
		if rec.kind == kindCommit {
			again = at
		}
		fd.closed = false
		if err := seg.takeFrom(r, rec, at, apply); err != nil {
			return nil, err
		}
	}
	seg.length = r.off
	fd.last = seg.last
	fd.tail, err = readTail(f, seg, again)
	return removed, err
}

// checkTorn tells a torn tail from damage to what had been durable, and then says why: a commit is
// written only when everything before it is durable.
func checkTorn(f file, r *segmentReader, bad *error) bool {
	rest := make([]byte, r.end-r.off)
	if _, err := f.ReadAt(rest, r.off); err != nil && !errors.Is(err, io.EOF) {
		*bad = fmt.Errorf("read %s: %w", r.name, err)
		return false
	}
	if at := findCommit(rest, r.seed, 1, r.next); at >= 0 {
		*bad = fmt.Errorf("%w (a later commit at offset %d is whole)", *bad, r.off+int64(at))
		return false
	}
	return true
}

// readTail reads a segment from an offset on.
func readTail(f file, seg *segment, off int64) (*tailEnd, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	t := &tailEnd{number: seg.number, off: off, bytes: make([]byte, seg.length-off), size: size}
	if _, err := f.ReadAt(t.bytes, off); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return t, nil
}

func (fd *finding) apply(c commit) {
	for _, s := range c.streams {
		fd.streams[s.id] = &headerEntry{id: s.id, name: s.name}
		fd.nextID = max(fd.nextID, s.id+1)
	}
	for _, s := range c.fronts {
		if have := fd.streams[s.id]; have != nil {
			have.front = max(have.front, s.front)
		}
	}
	for _, id := range c.dropped {
		delete(fd.streams, id)
	}
	fd.closed = c.closed
}

// start makes the log ready for the committer: the end of the last segment durable, a new segment
// behind it, so that what was found is never written to again.
func (l *Log) start(fd *finding) error {
	base := l.opt.After + 1
	if fd.number == 0 {
		fd.log = randomID()
	} else {
		next := fd.last + 1
		if !fd.closed {
			next += maxUnsynced
		}
		base = max(base, next)
		if err := l.secureTail(fd.tail); err != nil {
			return err
		}
	}
	l.id, l.nextID, l.nextNumber = fd.log, fd.nextID, fd.number
	for _, e := range fd.streams {
		l.addStream(e.id, e.name).front = e.front
	}
	for _, s := range fd.segs {
		l.used += s.length
		for id, sp := range s.streams {
			if st := l.streams[id]; st != nil {
				st.last, st.evicted = sp.last, sp.last
			}
		}
	}
	l.segs = fd.segs
	if err := l.startSegment(base); err != nil {
		return err
	}
	for _, name := range fd.surplus {
		_ = l.opt.fs.Remove(name) // best effort: no log needs it, and the next open tries again
	}
	l.retire()
	signal(l.kick)
	return nil
}

// secureTail writes the last commit again and syncs it. The process before may have been killed
// between write and sync, or its sync may have failed and left pages that look clean.
func (l *Log) secureTail(t *tailEnd) error {
	f, err := l.opt.fs.OpenFile(segmentName(l.dir, t.number), os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(t.bytes, t.off); err != nil {
		return err
	}
	l.written.Add(int64(len(t.bytes)))
	if end := t.off + int64(len(t.bytes)); end < t.size {
		if err := f.Truncate(end); err != nil {
			return err
		}
	}
	return f.Sync()
}

func (l *Log) startSegment(base abs.Position) error {
	h := l.headerFor(base)
	encoded := h.encode()
	f, appeared, err := l.createSegment(h.number, encoded)
	if err != nil && isFull(err) && !appeared {
		l.dropBallast()
		f, _, err = l.createSegment(h.number, encoded)
	}
	if err != nil {
		return err
	}
	seg := newSegmentAt(h, int64(len(encoded)))
	seg.f = f
	l.segs = append(l.segs, seg)
	l.used += seg.length
	l.last = base - 1
	l.synced.Store(uint64(base - 1))
	l.restoreBallast()
	return nil
}

// randomID makes the identity of a new log or directory.
func randomID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// Check reads all durable bytes of the log again and verifies checksums, order and table. Segments
// that are given up meanwhile do not matter.
func (l *Log) Check() error {
	for _, want := range l.listed() {
		_, _, err := l.examineSealed(l.id, want, overlap{base: math.MaxUint64})
		if err != nil && slices.ContainsFunc(l.listed(), func(s sealed) bool { return s.number == want.number }) {
			return fmt.Errorf("log %s: %w", l.dir, err)
		}
	}
	return nil
}

// listed are the segments that the log needs, as far as they are durable.
func (l *Log) listed() []sealed {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []sealed
	for _, s := range l.segs {
		if !s.removing {
			list = append(list, s.sealed())
		}
	}
	return list
}
