package dataflow

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// DeadLetters keeps records that were given up. Put is idempotent per key and returns when the
// record is on disk.
type DeadLetters interface {
	Put(task, key string, rec frame.Record, reason string) error
	// Replayed marks a record of the task as processed again by the entry at a position of the task's log.
	// It is idempotent, and does nothing if there is no such record any more.
	Replayed(task, key string, at abs.Position) error
	// ReplayedAt is where the mark of a record says that it was processed again; 0 if it bears none, or is not there.
	ReplayedAt(task, key string) (abs.Position, error)
	// Unreplayed takes the marks back of entries after a position: what they did is lost.
	Unreplayed(task string, after abs.Position) error
}

// ErrClosed says that the source's input has ended: nothing more is logged.
var ErrClosed = errors.New("the source has been stopped")

// IngestLog is the way into a source task: what its source receives and the barriers of the
// coordinator become entries of its log. It may be used from several goroutines.
type IngestLog struct {
	task  string
	log   Log
	dead  DeadLetters
	clock func() int64

	mu      sync.Mutex
	closed  bool // by a final barrier: it may be opened again
	ended   bool
	cursor  []byte
	marks   map[uint64]uint64
	last    abs.Epoch
	waiting []durableCall
	records atomic.Uint64
	refused atomic.Uint64
}

type durableCall struct {
	pos  abs.Position
	call func()
}

// NewIngestLog returns the way into the named task's log. clock gives milliseconds since 1970.
func NewIngestLog(task string, log Log, dead DeadLetters, clock func() int64) *IngestLog {
	return &IngestLog{task: task, log: log, dead: dead, clock: clock, marks: map[uint64]uint64{}}
}

// Append implements [Ingest].
func (g *IngestLog) Append(b IngestBatch, durable func()) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.ended {
		return ErrClosed
	}
	pos, err := g.append(b)
	if err != nil {
		return err
	}
	for _, m := range b.Marks {
		if m.Drop {
			dropMarks(g.marks, m.Key, m.Value)
		} else {
			g.marks[m.Key] = m.Value
		}
	}
	if len(b.Cursor) > 0 {
		g.cursor = append([]byte(nil), b.Cursor...)
	}
	g.records.Add(uint64(b.Count))
	g.waiting = append(g.waiting, durableCall{pos, durable})
	return nil
}

func (g *IngestLog) append(b IngestBatch) (abs.Position, error) {
	head := ingestHead(g.clock(), b.Count, b.IDs, b.Cursor)
	if len(b.Marks) == 0 {
		return g.log.Append(EntryIngest, head, b.Payload)
	}
	kind := EntryMarked
	if b.Count == 0 {
		kind = EntryMarks // which a log takes that has no room for records
	}
	return g.log.Append(kind, markedHead(b.Marks), head, b.Payload)
}

// Marks implements [Ingest].
func (g *IngestLog) Marks(durable func()) map[uint64]uint64 {
	g.mu.Lock()
	m := maps.Clone(g.marks)
	g.waiting = append(g.waiting, durableCall{g.log.Last(), durable})
	g.mu.Unlock()
	g.Synced(g.log.Synced())
	return m
}

// Cursor implements [Ingest].
func (g *IngestLog) Cursor() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cursor
}

// End implements [Ingest].
func (g *IngestLog) End() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return nil
	}
	if _, err := g.log.Append(EntryEnd); err != nil {
		return err
	}
	g.ended = true
	return nil
}

// Resume sets what a restored task knows of its source.
func (g *IngestLog) Resume(s SourceState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cursor, g.ended, g.marks = s.Cursor, s.Ended, maps.Clone(s.Marks)
	if g.marks == nil {
		g.marks = map[uint64]uint64{}
	}
	if s.Final != 0 {
		g.closed, g.last = true, max(g.last, s.Final)
	}
}

// DeadLetter implements [Ingest].
func (g *IngestLog) DeadLetter(rec frame.Record, reason string, durable func()) error {
	n := g.refused.Add(1)
	if err := g.dead.Put(g.task, fmt.Sprintf("in-%d-%d-%d", g.clock(), g.log.Last(), n), rec, reason); err != nil {
		return err
	}
	durable()
	return nil
}

// Barrier appends the barrier of an epoch, unless it or a newer one has been appended. A final one
// ends the input.
func (g *IngestLog) Barrier(epoch abs.Epoch, final bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if epoch <= g.last || g.closed && !final {
		return nil
	}
	if _, err := g.log.Append(EntryBarrier, barrierEntry{epoch, final}.encode()); err != nil {
		return err
	}
	g.last, g.closed = epoch, final
	return nil
}

// Reopen takes back the end of the input: the final epoch was aborted.
func (g *IngestLog) Reopen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
}

// Synced tells that the log is durable up to a position. It runs what waited for it.
func (g *IngestLog) Synced(pos abs.Position) {
	g.mu.Lock()
	n := 0
	for n < len(g.waiting) && g.waiting[n].pos <= pos {
		n++
	}
	ready := slices.Clone(g.waiting[:n])
	clear(g.waiting[:n]) // what the calls hold may go
	g.waiting = g.waiting[n:]
	g.mu.Unlock()
	for _, w := range ready {
		w.call()
	}
}

// Records is how many records have been appended since the process started.
func (g *IngestLog) Records() uint64 { return g.records.Load() }

// Refused is how many records were dead-lettered instead.
func (g *IngestLog) Refused() uint64 { return g.refused.Load() }
