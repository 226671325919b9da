package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// LogOptions are the bounds of a log. Zero values take the defaults.
type LogOptions struct {
	// SegmentSize is the size in bytes at which a segment file is left for a new one; default 8 MiB,
	// at most an eighth of the budget. Space is given back by whole segments.
	SegmentSize int64
	// Budget is how many bytes the segment files may take; default 1 GiB. Ingest entries stop at 7/8
	// of it, order entries and those of spools at 15/16, so that barriers, control and hand-over entries, without
	// which nothing would ever be truncated, still find room.
	Budget int64
	// PendingBytes is how much may wait for the disk in memory before Append waits; default 4 MiB, at
	// most 16 MiB and half a segment.
	PendingBytes int
	// TailBytes is how much of the newest entries stays in memory for followers; default 4 MiB.
	TailBytes int
	// After makes the positions of a log that does not exist yet start beyond this one. Whoever
	// starts afresh after the loss of a log passes the highest position that is known from elsewhere.
	After abs.Position
	// Room says how many of so many bytes a write finds room for; nil: what the disk has. It is for tests of
	// what a full disk does to those above.
	Room func(bytes int) int

	fs    fileSystem    // default: the disk
	retry time.Duration // first wait after a failed write; default 50 ms
}

const (
	defaultSegment = 8 << 20
	defaultBudget  = 1 << 30
	defaultPending = 4 << 20
	defaultTail    = 4 << 20
	minSegment     = 4 << 10
	maxPending     = 16 << 20
	// maxRetry is the longest wait between two tries to write after a failure.
	maxRetry = 2 * time.Second
)

func (o LogOptions) withDefaults() LogOptions {
	set := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	pending, tailBytes := int64(o.PendingBytes), int64(o.TailBytes)
	set(&o.Budget, defaultBudget)
	set(&o.SegmentSize, defaultSegment)
	set(&pending, defaultPending)
	set(&tailBytes, defaultTail)
	o.SegmentSize = max(minSegment, min(o.SegmentSize, o.Budget/8))
	o.PendingBytes = int(min(pending, maxPending, o.SegmentSize/2))
	o.TailBytes = int(tailBytes)
	if o.fs == nil {
		o.fs = disk{}
	}
	if o.Room != nil {
		o.fs = tightDisk{o.fs, o.Room}
	}
	if o.retry <= 0 {
		o.retry = 50 * time.Millisecond
	}
	return o
}

// Log is an agent's input log: one sequence of entries in segment files, shared by all its tasks,
// each of which has a stream in it. One goroutine, the committer, owns the files; it is started by
// [OpenLog] and ended by [Log.Close]. All methods may be called from any goroutine.
type Log struct {
	opt LogOptions
	dir string
	id  uint64 // of the log, random; its low half is the seed of checksums

	synced  atomic.Uint64
	written atomic.Int64

	kick  chan struct{} // capacity 1: there is something to commit
	retry chan struct{} // capacity 1: try again now, something has been given up
	quit  chan struct{} // closed by Close
	done  chan struct{} // closed when the committer has ended

	notify callbacks

	// Used by the committer alone once it runs.
	nextNumber uint64 // the newest segment's
	ballast    bool   // the ballast file is there

	mu       sync.Mutex // guards all below; never held during input or output
	room     *sync.Cond // pending has shrunk, or the log failed or was closed
	segs     []*segment // ascending; the last is the active one, written by the committer alone
	garbage  []*segment // no longer part of the log, their files not yet removed
	streams  map[uint32]*LogStream
	byName   map[string]*LogStream
	nextID   uint32
	last     abs.Position
	tail     tail
	pending  pending
	used     int64 // bytes of all segment files
	inflight int   // bytes taken by the committer and not yet durable
	waiters  []waiter
	err      error // why the last try to write failed; nil once one succeeded
	closing  bool
	closeErr error
}

// pending is what the committer has not taken yet.
type pending struct {
	from    *chunk // nil: from the start of the next chunk
	off     int
	bytes   int
	records int
	meta    commit
	force   bool // commit meta even without entries
}

type waiter struct {
	pos abs.Position
	ch  chan struct{}
}

// segment is one file of the log. Its numbers are guarded by the log's lock.
type segment struct {
	number     uint64
	base, last abs.Position // last durable entry; base-1 if there is none
	start      int64        // end of the header
	length     int64        // durable bytes
	streams    map[uint32]span
	removing   bool
	held       sealed // what it still vouches for while its end is written again elsewhere; number 0: nothing

	// Of the active segment, used by the committer alone.
	f      file
	broken bool         // never to be written to again
	recent []commitMark // the commits that reach into the last block
}

// span is a stream's part of a segment.
type span struct {
	off   int64        // of its first entry
	first abs.Position // of its first entry
	last  abs.Position // none of its entries is beyond
}

func (s *segment) sealed() sealed {
	if s.held.number != 0 {
		return s.held
	}
	return sealed{s.number, s.base, s.last, s.length}
}

// empty says that the segment has no entries: then no later segment lists it.
func (s *segment) empty() bool { return s.sealed().last < s.base }

func (s *segment) add(id uint32, off int64, pos abs.Position) {
	sp, ok := s.streams[id]
	if !ok {
		sp.off, sp.first = off, pos
	}
	sp.last = pos
	s.streams[id] = sp
}

func segmentName(dir string, number uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%016x%s", number, segmentSuffix))
}

const segmentSuffix = ".seg"

// LogStream is one task's part of the log; it implements [dataflow.Log].
type LogStream struct {
	log  *Log
	id   uint32
	name string

	// Guarded by the log's lock.
	front     abs.Position // given up to here
	last      abs.Position // of its last entry
	evicted   abs.Position // its entries beyond this one are in memory, the others on disk
	refs      refs
	followers []*follower
	dropped   bool
}

var _ dataflow.Log = (*LogStream)(nil)

// Stream returns the stream of that name and makes it if there is none. Names are at most 1 KiB.
func (l *Log) Stream(name string) (*LogStream, error) {
	if name == "" || len(name) > maxStreamName || strings.ContainsRune(name, 0) {
		return nil, fmt.Errorf("log %s: stream name of %d bytes: it must have 1 to %d and no zero byte", l.dir, len(name), maxStreamName)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return nil, ErrClosed
	}
	if s := l.byName[name]; s != nil {
		return s, nil
	}
	s := l.addStream(l.nextID, name)
	l.nextID++
	l.pending.meta.streams = append(l.pending.meta.streams, streamName{s.id, name})
	return s, nil
}

func (l *Log) addStream(id uint32, name string) *LogStream {
	s := &LogStream{log: l, id: id, name: name}
	l.streams[id] = s
	l.byName[name] = s
	return s
}

// StreamInfo describes a stream of the log.
type StreamInfo struct {
	Name  string
	Front abs.Position // entries up to here have been given up
	Last  abs.Position // the stream's last entry; Front if it has none beyond
}

// Streams lists the log's streams by name.
func (l *Log) Streams() []StreamInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []StreamInfo
	for _, s := range l.byName {
		list = append(list, s.info())
	}
	slices.SortFunc(list, func(a, b StreamInfo) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (s *LogStream) info() StreamInfo {
	return StreamInfo{Name: s.name, Front: s.front, Last: max(s.front, s.last)}
}

// Front is up to where the stream's entries have been given up.
func (s *LogStream) Front() abs.Position { return s.Info().Front }

// Info describes the stream.
func (s *LogStream) Info() StreamInfo {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return s.info()
}

// DropStream removes a stream and all its entries; a stream made later under that name is a new
// one. Handles and followers of the dropped one fail. It does not wait for the disk: after a power
// cut the stream may be there again. A name that is not there is no error.
func (l *Log) DropStream(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return ErrClosed
	}
	s := l.byName[name]
	if s == nil {
		return nil
	}
	s.dropped = true
	delete(l.byName, name)
	delete(l.streams, s.id)
	l.pending.meta.dropped = append(l.pending.meta.dropped, s.id)
	l.pending.force = true
	for _, f := range s.followers {
		signal(f.ready)
	}
	l.retire()
	signal(l.kick)
	signal(l.retry)
	return nil
}

// Append adds an entry and returns its position. It returns [dataflow.ErrLogFull] at the budget,
// and also when the disk takes no writes and the memory for what waits is used up; then the error
// says why. It waits only when PendingBytes are already on their way to a disk that works.
func (s *LogStream) Append(kind dataflow.EntryKind, data ...[]byte) (abs.Position, error) {
	if kind == 0 || uint8(kind) == kindCommit {
		panic(fmt.Sprintf("storage: entry of kind %d", kind))
	}
	n := recordHeader
	for _, d := range data {
		n += len(d)
	}
	if n > recordHeader+MaxEntry {
		return 0, fmt.Errorf("log %s, stream %s: entry of %d bytes, at most %d", s.log.dir, s.name, n-recordHeader, MaxEntry)
	}
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.admit(s, kind, n); err != nil {
		return 0, err
	}
	l.last++
	c := l.tail.room(n)
	off := len(c.buf)
	c.buf = appendRecord(c.buf, uint32(l.id), l.last, s.id, uint8(kind), data...)
	c.top = l.last
	c.records++
	l.tail.bytes += refSize
	l.pending.bytes += n
	l.pending.records++
	s.last = l.last
	s.refs.push(ref{l.last, c, off})
	for _, f := range s.followers {
		signal(f.ready)
	}
	signal(l.kick)
	return l.last, nil
}

// admit waits for room in memory and checks the budget.
func (l *Log) admit(s *LogStream, kind dataflow.EntryKind, n int) error {
	for {
		switch {
		case l.closing:
			return ErrClosed
		case s.dropped:
			return fmt.Errorf("log %s: stream %s has been dropped", l.dir, s.name)
		case l.used+int64(l.inflight+l.pending.bytes+n) > l.limit(kind):
			return fmt.Errorf("log %s, stream %s: %w of %d bytes: it goes on when checkpoints have freed some, or with a larger budget",
				l.dir, s.name, dataflow.ErrLogFull, l.opt.Budget)
		case l.pending.bytes == 0 || l.pending.bytes+n <= l.opt.PendingBytes && l.pending.records < maxUnsynced/2:
			return nil
		case l.err != nil:
			return fmt.Errorf("log %s, stream %s: %w in memory, and the disk takes no more: %w", l.dir, s.name, dataflow.ErrLogFull, l.err)
		}
		l.room.Wait()
	}
}

// limit is how many bytes the log may have for an entry of this kind to be taken.
func (l *Log) limit(kind dataflow.EntryKind) int64 {
	b := l.opt.Budget
	switch kind {
	case dataflow.EntryIngest, dataflow.EntryMarked:
		return b - b/8
	case dataflow.EntryOrder, dataflow.EntryMarks, dataflow.EntrySpool, dataflow.EntryTick, dataflow.EntryReplay:
		return b - b/16
	}
	return b
}

// Synced is the position up to which the agent's log is durable.
func (l *Log) Synced() abs.Position { return abs.Position(l.synced.Load()) }

// Synced is the position up to which the agent's log is durable.
func (s *LogStream) Synced() abs.Position { return s.log.Synced() }

// Last is the position of the log's last appended entry.
func (l *Log) Last() abs.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Last is the position of the agent's last appended entry, of whatever stream.
func (s *LogStream) Last() abs.Position { return s.log.Last() }

// ID is random about the log: it is another one if the log was lost and made anew.
func (s *LogStream) ID() uint64 { return s.log.id }

// Truncate gives up the stream's entries up to and including upto. Nothing is written unless a
// segment becomes free by it; after a power cut some of the entries may be there again.
func (s *LogStream) Truncate(upto abs.Position) error {
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closing:
		return ErrClosed
	case s.dropped:
		return fmt.Errorf("log %s: stream %s has been dropped", l.dir, s.name)
	}
	if front := min(upto, s.last); front > s.front {
		s.front = front
		for _, f := range s.followers {
			signal(f.ready)
		}
		if l.retire() {
			signal(l.kick)
			signal(l.retry)
		}
	}
	return nil
}

// retire marks the segments that no stream needs. Their files go once the next commit has made it
// durable that they may.
func (l *Log) retire() bool {
	found := false
	for _, seg := range l.segs[:len(l.segs)-1] {
		if seg.removing || seg.held.number != 0 || l.needed(seg) {
			continue
		}
		seg.removing, found = true, true
		l.pending.meta.removed = append(l.pending.meta.removed, seg.number)
		l.pending.force = true
	}
	if !found {
		return false
	}
	l.pending.meta.fronts = l.pending.meta.fronts[:0]
	for _, s := range l.streams {
		if s.front > 0 {
			l.pending.meta.fronts = append(l.pending.meta.fronts, streamFront{s.id, s.front})
		}
	}
	return true
}

func (l *Log) needed(seg *segment) bool {
	for id, sp := range seg.streams {
		if s := l.streams[id]; s != nil && sp.last > s.front {
			return true
		}
	}
	return false
}

// WaitSynced waits until the log is durable up to pos, the log is closed, or ctx ends; then the error
// has with it why the disk takes nothing, if so.
func (l *Log) WaitSynced(ctx context.Context, pos abs.Position) error {
	if l.Synced() >= pos {
		return nil
	}
	ch := make(chan struct{})
	l.mu.Lock()
	if l.Synced() >= pos {
		l.mu.Unlock()
		return nil
	}
	l.waiters = append(l.waiters, waiter{pos, ch})
	l.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-l.done:
		if l.Synced() >= pos {
			return nil
		}
		return errors.Join(ErrClosed, l.Err())
	case <-ctx.Done():
		l.mu.Lock()
		l.waiters = slices.DeleteFunc(l.waiters, func(w waiter) bool { return w.ch == ch })
		l.mu.Unlock()
		return errors.Join(ctx.Err(), l.Err())
	}
}

// Notify calls f after each commit, also one that only gave space back, with the position up to which
// the log is durable, until cancel is called. The committer makes the calls one after the other and waits for each, so f must be
// quick and must not wait for the log. A call under way when cancel is called may still be running
// when it returns.
func (l *Log) Notify(f func(abs.Position)) (cancel func()) { return l.notify.add(f) }

// Err says why the log cannot be written at the moment; nil if it can. Entries that were appended
// meanwhile are in memory, and the log goes on by itself when the disk does.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Written is how many bytes were written to the disk since the log was opened.
func (l *Log) Written() int64 { return l.written.Load() }

// LogUsage is the room that a log takes.
type LogUsage struct {
	Bytes    int64 // of segment files and of what waits for the disk
	Budget   int64
	Ingest   int64 // bytes that ingest entries can still take
	Segments int   // files
}

// Usage is the room that the log takes.
func (l *Log) Usage() LogUsage {
	l.mu.Lock()
	defer l.mu.Unlock()
	used := l.used + int64(l.inflight+l.pending.bytes)
	return LogUsage{Bytes: used, Budget: l.opt.Budget, Ingest: max(0, l.limit(dataflow.EntryIngest)-used), Segments: len(l.segs) + len(l.garbage)}
}

// Close makes durable what was appended, waits for the committer and closes the files. Its error
// says what could not be made durable; it is the same however often Close is called.
func (l *Log) Close() error {
	l.mu.Lock()
	if !l.closing {
		l.closing = true
		close(l.quit)
		l.room.Broadcast()
		for _, s := range l.streams {
			for _, f := range s.followers {
				signal(f.ready)
			}
		}
	}
	l.mu.Unlock()
	<-l.done
	return l.closeErr
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// callbacks is a set of functions to be called.
type callbacks struct {
	mu   sync.Mutex
	next int
	set  map[int]func(abs.Position)
}

func (c *callbacks) add(f func(abs.Position)) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.next
	c.next++
	if c.set == nil {
		c.set = map[int]func(abs.Position){}
	}
	c.set[id] = f
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.set, id)
	}
}

func (c *callbacks) call(pos abs.Position) {
	c.mu.Lock()
	list := make([]func(abs.Position), 0, len(c.set))
	for _, f := range c.set {
		list = append(list, f)
	}
	c.mu.Unlock()
	for _, f := range list {
		f(pos)
	}
}
