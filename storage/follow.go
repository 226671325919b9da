package storage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// ErrTruncated is wrapped by the error of a follower whose entries have been given up.
var ErrTruncated = errors.New("entries have been truncated")

// follower reads one stream. The log's lock decides between memory and disk: what is at or below
// the stream's evicted position is durable and on disk, everything beyond is in memory.
type follower struct {
	s     *LogStream
	ready chan struct{}
	after abs.Position // of the entry given out last

	// Where it reads on disk, while it is behind.
	number uint64 // of the segment that is open
	passed uint64 // number of a segment that had no more although its span says so
	f      file
	r      *segmentReader
}

// Follow reads the stream's entries after from, what is not yet synced included. Each follower may
// hold a buffer of 64 KiB while it is behind. It fails with [ErrTruncated] if from is before the
// position that was given up to Truncate.
func (s *LogStream) Follow(from abs.Position) (dataflow.Follower, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	f := &follower{s: s, ready: make(chan struct{}, 1), after: from}
	if err := f.check(); err != nil {
		return nil, err
	}
	s.followers = append(s.followers, f)
	return f, nil
}

// check says why the follower cannot go on. The log's lock is held.
func (f *follower) check() error {
	switch l := f.s.log; {
	case l.closing:
		return ErrClosed
	case f.s.dropped:
		return fmt.Errorf("log %s: stream %s has been dropped", l.dir, f.s.name)
	case f.after < f.s.front:
		return fmt.Errorf("log %s, stream %s: read after position %d: %w up to %d", l.dir, f.s.name, f.after, ErrTruncated, f.s.front)
	}
	return nil
}

// Ready is signalled when entries may have come, and when the log was closed or the stream dropped
// or truncated.
func (f *follower) Ready() <-chan struct{} { return f.ready }

// Next returns the next entry, with its data the caller's own; false when there is none now.
func (f *follower) Next() (dataflow.Entry, bool, error) {
	for {
		e, ok, src, err := f.look()
		if err != nil {
			return dataflow.Entry{}, false, err
		}
		if src.number == 0 {
			if ok {
				f.after = e.Pos
			}
			return e, ok, nil
		}
		e, ok, err = f.readFrom(src)
		if err != nil {
			if retry := f.explain(src, err); retry != nil {
				return dataflow.Entry{}, false, retry
			}
			continue
		}
		if ok {
			f.after = e.Pos
			return e, true, nil
		}
	}
}

// source is the part of a segment's file that may be read. Number 0 is none.
type source struct {
	number uint64
	span   span
	length int64
}

// look takes the next entry from memory, or says where it is on disk.
func (f *follower) look() (dataflow.Entry, bool, source, error) {
	l := f.s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := f.check(); err != nil {
		return dataflow.Entry{}, false, source{}, err
	}
	if f.after < f.s.evicted {
		for _, seg := range l.segs {
			sp, ok := seg.streams[f.s.id]
			if ok && seg.number > f.passed && sp.last > f.after {
				return dataflow.Entry{}, false, source{seg.number, sp, seg.length}, nil
			}
		}
		return dataflow.Entry{}, false, source{}, fmt.Errorf("%w: log %s, stream %s: entries after position %d are not on disk",
			ErrCorrupt, l.dir, f.s.name, f.after)
	}
	f.stopReading()
	x, ok := f.s.refs.after(f.after)
	if !ok {
		return dataflow.Entry{}, false, source{}, nil
	}
	return x.entry(), true, source{}, nil
}

// readFrom reads the next entry of the stream from a segment; false at the end of what may be read.
func (f *follower) readFrom(src source) (dataflow.Entry, bool, error) {
	if err := f.openAt(src); err != nil {
		return dataflow.Entry{}, false, err
	}
	f.r.end = src.length
	for {
		rec, err := f.r.read()
		if errors.Is(err, io.EOF) {
			f.stopReading()
			f.passed = src.number
			return dataflow.Entry{}, false, nil
		}
		if err != nil {
			f.stopReading()
			return dataflow.Entry{}, false, err
		}
		if rec.kind != kindCommit && rec.stream == f.s.id && rec.pos > f.after {
			return dataflow.Entry{Pos: rec.pos, Kind: dataflow.EntryKind(rec.kind), Data: slices.Clone(rec.data)}, true, nil
		}
	}
}

func (f *follower) openAt(src source) error {
	if f.r != nil && f.number == src.number {
		return nil
	}
	f.stopReading()
	l := f.s.log
	name := segmentName(l.dir, src.number)
	opened, err := l.opt.fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	f.number, f.f = src.number, opened
	f.r = &segmentReader{name: name, f: opened, seed: uint32(l.id), off: src.span.off, next: src.span.first}
	return nil
}

// explain decides about an error from disk: nil to look again, since the segment may just have been
// given up.
func (f *follower) explain(src source, err error) error {
	f.s.log.mu.Lock()
	defer f.s.log.mu.Unlock()
	if known := f.check(); known != nil {
		return known
	}
	if !isMissing(err) {
		return err
	}
	stillListed := slices.ContainsFunc(f.s.log.segs, func(s *segment) bool { return s.number == src.number })
	if stillListed {
		return err
	}
	return nil
}

func (f *follower) stopReading() {
	if f.f != nil {
		_ = f.f.Close() // read only
	}
	f.f, f.r = nil, nil
}

// Close ends the follower.
func (f *follower) Close() {
	f.s.log.mu.Lock()
	defer f.s.log.mu.Unlock()
	f.stopReading()
	f.s.followers = slices.DeleteFunc(f.s.followers, func(o *follower) bool { return o == f })
}
