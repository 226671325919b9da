package storage

import (
	"sort"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// tail holds the newest records in memory, encoded as on disk: those that wait for the committer,
// and behind them as much as its bound allows, for followers. It is a list of chunks; the log's
// lock guards it, but the committer reads what it has taken without it, since a chunk's bytes never
// move or change once written.
type tail struct {
	first, last *chunk
	chunkSize   int
	bytes       int // of all chunks, references included
	spare       []*chunk
}

type chunk struct {
	buf     []byte
	top     abs.Position // of the last record
	records int
	next    *chunk
}

// maxSpare bounds the empty chunks kept for reuse.
const maxSpare = 4

// refSize is what a record costs in memory besides its bytes.
const refSize = 24

// ref is where a stream's record is in memory.
type ref struct {
	pos abs.Position
	c   *chunk
	off int
}

// room returns the chunk that takes the next n bytes.
func (t *tail) room(n int) *chunk {
	if t.last != nil && cap(t.last.buf)-len(t.last.buf) >= n {
		return t.last
	}
	c := t.fresh(n)
	if t.last == nil {
		t.first = c
	} else {
		t.last.next = c
	}
	t.last = c
	t.bytes += cap(c.buf)
	return c
}

func (t *tail) fresh(n int) *chunk {
	if k := len(t.spare); k > 0 && n <= t.chunkSize {
		c := t.spare[k-1]
		t.spare = t.spare[:k-1]
		return c
	}
	return &chunk{buf: make([]byte, 0, max(n, t.chunkSize))}
}

// drop removes the oldest chunk.
func (t *tail) drop() {
	c := t.first
	t.first = c.next
	if t.first == nil {
		t.last = nil
	}
	t.bytes -= cap(c.buf) + c.records*refSize
	if cap(c.buf) == t.chunkSize && len(t.spare) < maxSpare {
		*c = chunk{buf: c.buf[:0]}
		t.spare = append(t.spare, c)
	}
}

// refs is one stream's part of the tail, oldest first.
type refs struct {
	list []ref
	head int
}

func (r *refs) push(x ref) { r.list = append(r.list, x) }

func (r *refs) pop() ref {
	x := r.list[r.head]
	r.list[r.head] = ref{}
	r.head++
	if r.head == len(r.list) {
		r.list, r.head = r.list[:0], 0
	} else if r.head > 64 && r.head > len(r.list)/2 {
		n := copy(r.list, r.list[r.head:])
		clear(r.list[n:])
		r.list, r.head = r.list[:n], 0
	}
	return x
}

// after finds the first record beyond a position.
func (r *refs) after(pos abs.Position) (ref, bool) {
	live := r.list[r.head:]
	i := sort.Search(len(live), func(i int) bool { return live[i].pos > pos })
	if i == len(live) {
		return ref{}, false
	}
	return live[i], true
}

// entry copies a record out of the tail.
func (x ref) entry() dataflow.Entry {
	b := x.c.buf[x.off:]
	n, err := recordLength(b)
	if err != nil {
		panic("storage: the tail holds what is not a record")
	}
	data := make([]byte, n-recordHeader)
	copy(data, b[recordHeader:n])
	return dataflow.Entry{Pos: x.pos, Kind: dataflow.EntryKind(b[20]), Data: data}
}
