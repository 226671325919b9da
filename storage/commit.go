package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/weir-stream/weir/abs"
)

// blockSize is the unit in which a disk may lose what shares it: a failed write of the last block
// can damage the durable records at its beginning.
const blockSize = 4096

// ballastSize is how many bytes are set aside so that on a full disk a new segment's header and a
// commit that frees segments can still be written.
const ballastSize = 32 << 10

const ballastName = "ballast"

// commitMark is where a commit begins in the active segment, and its first position.
type commitMark struct {
	off   int64
	end   int64
	first abs.Position
}

// batch is what one commit writes: the records from first to last, which lie in parts.
type batch struct {
	first, last abs.Position // last is first-1 if there are no entries
	parts       [][]byte
	bytes       int
	meta        commit
}

func (b *batch) size() int64 { return int64(b.bytes + recordHeader + len(b.meta.encode())) }

// run is the committer. It commits at once when there is something; what gathers meanwhile goes
// with the next commit.
func (l *Log) run() {
	defer close(l.done)
	defer l.finish()
	for closing := false; !closing; {
		select {
		case <-l.kick:
		case <-l.quit:
			closing = true
		}
		for b, ok := l.take(); ok; b, ok = l.take() {
			if !l.commit(b) {
				return // what follows must not be written without it
			}
		}
	}
}

// commit makes a batch durable, trying until it is; false if the log was closed and a last try failed.
func (l *Log) commit(b batch) bool {
	last := false
	for wait := l.opt.retry; ; wait = min(2*wait, maxRetry) {
		err := l.store(&b)
		if err == nil {
			l.publish(b, true)
			l.notify.call(b.last)
			return true
		}
		l.failed(fmt.Errorf("log %s: write up to position %d: %w", l.dir, b.last, err))
		if isFull(err) {
			l.freeOnFullDisk(&b)
		}
		if last {
			return false
		}
		last = !l.pause(wait)
	}
}

// take moves what is pending to a batch.
func (l *Log) take() (batch, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &l.pending
	if p.bytes == 0 && !p.force {
		return batch{}, false
	}
	b := batch{first: l.Synced() + 1, last: l.last, bytes: p.bytes, meta: p.meta}
	c, off := p.from, p.off
	if c == nil {
		c, off = l.tail.first, 0
	}
	for ; c != nil; c, off = c.next, 0 {
		if part := c.buf[off:]; len(part) > 0 {
			b.parts = append(b.parts, part)
		}
		p.from, p.off = c, len(c.buf)
	}
	l.inflight = p.bytes
	p.bytes, p.records, p.meta, p.force = 0, 0, commit{}, false
	return b, true
}

// pause waits before the next try; false if the log has been closed.
func (l *Log) pause(wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.retry:
		return true
	case <-l.quit:
		return false
	}
}

func (l *Log) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	l.room.Broadcast()
}

// active is the segment that the committer writes to.
func (l *Log) active() *segment { return l.segs[len(l.segs)-1] }

// store writes a batch to the active segment, or to a new one where that is full or cannot be
// trusted, and syncs it. After an error nothing of the batch counts as durable.
func (l *Log) store(b *batch) error {
	l.takeRemovals(b)
	seg := l.active()
	full := seg.length > seg.start && seg.length+b.size() > l.opt.SegmentSize && len(b.parts) > 0
	if seg.broken || full {
		next, err := l.newSegment(b.first)
		if err != nil {
			return err
		}
		seg = next
	}
	err := l.write(seg, b)
	if err != nil {
		// What was durable stays so; give the space back and write again in the same place.
		if cut := seg.f.Truncate(seg.length); cut != nil {
			seg.broken = true
		}
		return err
	}
	if err := seg.f.Sync(); err != nil {
		// The system may have dropped the written pages and call them clean: write them again, and
		// what shares a block with them, in another file.
		seg.broken = true
		l.rehome(seg, b)
		return fmt.Errorf("sync %s: %w", segmentName(l.dir, seg.number), err)
	}
	return nil
}

// takeRemovals adds what has been given up since the batch was taken, so that space comes back even
// while the batch cannot be written.
func (l *Log) takeRemovals(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.pending.meta
	if len(m.removed) == 0 {
		return
	}
	b.meta.removed = append(b.meta.removed, m.removed...)
	b.meta.fronts = m.fronts
	m.removed, m.fronts = nil, nil
}

// scratchSize is up to which size a commit is put together for one write.
const scratchSize = 64 << 10

func (l *Log) write(seg *segment, b *batch) error {
	head := appendRecord(nil, uint32(l.id), b.first-1, 0, kindCommit, b.meta.encode())
	parts := append([][]byte{head}, b.parts...)
	if b.size() <= scratchSize {
		parts = [][]byte{slices.Concat(parts...)}
	}
	off := seg.length
	for _, p := range parts {
		n, err := seg.f.WriteAt(p, off)
		l.written.Add(int64(n))
		if err != nil {
			return fmt.Errorf("write %s at offset %d: %w", segmentName(l.dir, seg.number), off, err)
		}
		off += int64(n)
	}
	return nil
}

// rehome takes back into the batch the commits that reach into the block where the failed write
// began, and gives up the segment from there on. Their entries are still in memory. Until they are
// durable again the segment is held: should the power go, what it has may be all there is.
func (l *Log) rehome(seg *segment, b *batch) {
	if len(seg.recent) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	mark := seg.recent[0]
	seg.recent = nil
	if mark.first <= seg.last {
		seg.held = seg.sealed()
	}
	l.used -= seg.length - mark.off
	seg.length, seg.last = mark.off, mark.first-1
	for id, sp := range seg.streams {
		if sp.first > seg.last {
			delete(seg.streams, id)
			continue
		}
		sp.last = min(sp.last, seg.last)
		seg.streams[id] = sp
	}
	b.first = mark.first
	b.parts, b.bytes = l.tail.between(b.first, b.last)
	l.inflight = b.bytes
}

// between collects the records from first to last.
func (t *tail) between(first, last abs.Position) (parts [][]byte, bytes int) {
	if last < first {
		return nil, 0
	}
	for c := t.first; c != nil; c = c.next {
		if len(c.buf) == 0 || c.top < first {
			continue
		}
		from, to := 0, len(c.buf)
		for at := 0; at < len(c.buf); {
			n, err := recordLength(c.buf[at:])
			if err != nil {
				panic("storage: the tail holds what is not a record")
			}
			pos := recordPosition(c.buf[at:])
			at += n
			if pos < first {
				from = at
			}
			if pos == last {
				to = at
			}
		}
		parts = append(parts, c.buf[from:to])
		bytes += to - from
		if c.top >= last {
			break
		}
	}
	return parts, bytes
}

// newSegment leaves the active segment and starts one whose first entry has position base.
func (l *Log) newSegment(base abs.Position) (*segment, error) {
	l.mu.Lock()
	h := l.headerFor(base)
	l.mu.Unlock()
	encoded := h.encode()
	old := l.active()
	f, appeared, err := l.createSegment(h.number, encoded)
	// Once a file may be there under its name, with the length of the segment before it, nothing may be
	// added to that.
	old.broken = old.broken || appeared
	if err != nil {
		return nil, err
	}
	_ = old.f.Close() // its content is durable
	old.f = nil
	old.recent = nil
	l.restoreBallast()
	seg := newSegmentAt(h, int64(len(encoded)))
	seg.f = f
	l.mu.Lock()
	defer l.mu.Unlock()
	if old.empty() {
		l.discard([]uint64{old.number}) // the new one does not list it
	}
	l.segs = append(l.segs, seg)
	l.used += seg.length
	l.retire()
	return seg, nil
}

func (l *Log) headerFor(base abs.Position) header {
	l.nextNumber++
	h := header{log: l.id, number: l.nextNumber, base: base, nextStream: l.nextID}
	for _, s := range l.segs {
		if !s.removing && !s.empty() {
			h.earlier = append(h.earlier, s.sealed())
		}
	}
	for _, s := range l.streams {
		h.streams = append(h.streams, headerEntry{s.id, s.front, s.name})
	}
	slices.SortFunc(h.streams, func(a, b headerEntry) int { return int(int64(a.id) - int64(b.id)) })
	return h
}

// createSegment makes the file of a new segment durable. If it fails, appeared says whether the file
// may be there after a power cut.
func (l *Log) createSegment(number uint64, encoded []byte) (f file, appeared bool, err error) {
	name := segmentName(l.dir, number)
	renamed, err := writeWhole(l.opt.fs, name, encoded)
	if err != nil {
		if renamed {
			_ = l.opt.fs.Remove(name) // best effort: the next segment does not list it
		}
		return nil, renamed, fmt.Errorf("create segment %s: %w", name, err)
	}
	l.written.Add(int64(len(encoded)))
	if f, err = l.opt.fs.OpenFile(name, os.O_RDWR); err != nil {
		_ = l.opt.fs.Remove(name) // as above
		return nil, true, fmt.Errorf("open segment: %w", err)
	}
	return f, true, nil
}

// publish makes a stored batch known: to the segment's numbers, to followers, to those who wait.
// Settled says that nothing else is on its way and the log is in order.
func (l *Log) publish(b batch, settled bool) {
	spans := map[uint32]span{}
	seg := l.active()
	start := seg.length
	end := l.index(spans, start, b)

	l.mu.Lock()
	seg.length = end
	seg.last = b.last
	l.used += end - start
	for id, sp := range spans {
		have, ok := seg.streams[id]
		if ok {
			sp.off, sp.first = have.off, have.first
		}
		seg.streams[id] = sp
	}
	seg.mark(commitMark{start, end, b.first})
	if b.last > l.Synced() { // not so if only segments were given up while earlier entries are written again
		l.synced.Store(uint64(b.last))
	}
	if settled {
		l.inflight = 0
		l.err = nil
		l.room.Broadcast()
	}
	l.release(b.last)
	l.evict(seg.keepFrom())
	l.wake(b.last)
	l.discard(b.meta.removed)
	l.mu.Unlock()
	l.removeGarbage()
}

// release ends the holding of segments whose end is durable elsewhere now.
func (l *Log) release(upto abs.Position) {
	for _, s := range l.segs {
		if s.held.number != 0 && s.held.last <= upto {
			s.held = sealed{}
			l.retire()
		}
	}
}

// index finds the spans of a batch that was written at off and returns where it ends.
func (l *Log) index(spans map[uint32]span, off int64, b batch) int64 {
	off += int64(recordHeader + len(b.meta.encode()))
	for _, part := range b.parts {
		for len(part) > 0 {
			n, err := recordLength(part)
			if err != nil {
				panic("storage: a batch holds what is not a record")
			}
			id, pos := recordStream(part), recordPosition(part)
			sp, ok := spans[id]
			if !ok {
				sp.off, sp.first = off, pos
			}
			sp.last = pos
			spans[id] = sp
			off += int64(n)
			part = part[n:]
		}
	}
	return off
}

// mark remembers the commits that reach into the segment's last block.
func (s *segment) mark(m commitMark) {
	s.recent = append(s.recent, m)
	block := s.length / blockSize * blockSize
	s.recent = slices.DeleteFunc(s.recent, func(m commitMark) bool { return m.end <= block })
}

// keepFrom is the first position that must stay in memory though it is durable.
func (s *segment) keepFrom() abs.Position {
	if len(s.recent) == 0 {
		return s.last + 1
	}
	return s.recent[0].first
}

// evict drops the oldest chunks while the tail is over its bound and what they hold is on disk.
func (l *Log) evict(keep abs.Position) {
	for c := l.tail.first; c != nil && l.tail.bytes > l.opt.TailBytes && c.records > 0 && c.top < keep; c = l.tail.first {
		for at := 0; at < len(c.buf); {
			n, err := recordLength(c.buf[at:])
			if err != nil {
				panic("storage: the tail holds what is not a record")
			}
			if s := l.streams[recordStream(c.buf[at:])]; s != nil {
				s.evicted = s.refs.pop().pos
			}
			at += n
		}
		if l.pending.from == c {
			l.pending.from, l.pending.off = nil, 0
		}
		l.tail.drop()
	}
}

func (l *Log) wake(pos abs.Position) {
	l.waiters = slices.DeleteFunc(l.waiters, func(w waiter) bool {
		if w.pos <= pos {
			close(w.ch)
		}
		return w.pos <= pos
	})
}

// discard takes segments out of the log whose removal is durable.
func (l *Log) discard(numbers []uint64) {
	l.segs = slices.DeleteFunc(l.segs, func(s *segment) bool {
		gone := slices.Contains(numbers, s.number)
		if gone {
			l.garbage = append(l.garbage, s)
		}
		return gone
	})
}

// removeGarbage removes files; what cannot be removed is tried again with the next commit, and at
// the latest when the log is opened.
func (l *Log) removeGarbage() {
	l.mu.Lock()
	list := slices.Clone(l.garbage)
	l.mu.Unlock()
	for _, s := range list {
		err := l.opt.fs.Remove(segmentName(l.dir, s.number))
		if err != nil && !isMissing(err) {
			continue
		}
		l.mu.Lock()
		l.used -= s.length
		l.garbage = slices.DeleteFunc(l.garbage, func(o *segment) bool { return o == s })
		l.room.Broadcast()
		l.mu.Unlock()
	}
}

// freeOnFullDisk makes durable which segments have been given up, if any, with the little room that
// the ballast gives, and removes them.
func (l *Log) freeOnFullDisk(b *batch) {
	l.takeRemovals(b)
	if len(b.meta.removed) == 0 {
		return
	}
	l.dropBallast()
	only := batch{first: b.first, last: b.first - 1, meta: b.meta}
	if err := l.store(&only); err != nil {
		if only.first != b.first {
			b.first = only.first
			l.mu.Lock()
			b.parts, b.bytes = l.tail.between(b.first, b.last)
			l.inflight = b.bytes
			l.mu.Unlock()
		}
		l.failed(fmt.Errorf("log %s: give space back: %w", l.dir, err))
		return
	}
	l.publish(only, false)
	b.meta = commit{}
}

func (l *Log) dropBallast() {
	_ = l.opt.fs.Remove(filepath.Join(l.dir, ballastName)) // best effort: the write that needs it tells
	l.ballast = false
}

// restoreBallast sets space aside again. On a disk that is still full it fails and is tried again
// with the next segment.
func (l *Log) restoreBallast() {
	if l.ballast {
		return
	}
	// Not zeros, which some file systems store as nothing.
	content := make([]byte, ballastSize)
	for i := range content {
		content[i] = byte(i*7 + i>>8)
	}
	_, err := writeWhole(l.opt.fs, filepath.Join(l.dir, ballastName), content)
	if l.ballast = err == nil; l.ballast {
		l.written.Add(ballastSize)
	}
}

// finish ends the log: a last record says that nothing was lost beyond it.
func (l *Log) finish() {
	l.mu.Lock()
	lost := l.inflight + l.pending.bytes
	err := l.err
	last := l.last
	l.mu.Unlock()
	if lost > 0 {
		l.closeErr = fmt.Errorf("log %s: closed with entries %d to %d not durable: %w", l.dir, l.Synced()+1, last, err)
	} else {
		end := batch{first: last + 1, last: last, meta: commit{closed: true}}
		if err := l.store(&end); err != nil {
			l.closeErr = fmt.Errorf("log %s: close: %w", l.dir, err)
		}
	}
	if f := l.active().f; f != nil {
		l.closeErr = errors.Join(l.closeErr, f.Close())
	}
}
