package wasmops

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"github.com/tetratelabs/wazero/experimental"

	"github.com/weir-stream/weir/dataflow"
)

// trackFrom is the size in bytes from which a memory is watched by the operating system, where it can be,
// instead of being compared with a copy: below, comparing takes less than asking (BenchmarkFreezeSize).
const trackFrom = 4 << 20

// linear is one instance's memory, as far as its limit, with a copy of what it was at the last freeze, the
// shadow. Both are on the heap, or, from trackFrom on, in a [tracked] memory.
type linear struct {
	limit   uint64
	compare bool   // never track
	from    uint64 // track from this size on; 0: trackFrom
	buffer  []byte
	heap    shadow
	tracked *tracked // nil: buffer and shadow are on the heap
	cold    []pageRange
}

// pageRange is pages of pageSize, the second one exclusive.
type pageRange struct{ from, to int }

// Allocate implements [experimental.MemoryAllocator].
func (l *linear) Allocate(_, _ uint64) experimental.LinearMemory { return l }

// Reallocate implements [experimental.LinearMemory]. Memory beyond the length is zero: it was never used.
func (l *linear) Reallocate(size uint64) []byte {
	switch {
	case size > l.limit:
		return nil
	case l.tracked.holds(size):
	case size >= cmp.Or(l.from, trackFrom) && !l.compare && l.track():
	case l.tracked != nil: // the limit was raised beyond it, and there is no larger one
		l.untrack()
		fallthrough
	default:
		l.buffer = append(l.buffer, make([]byte, size-uint64(len(l.buffer)))...)
		return l.buffer
	}
	l.buffer = l.tracked.memory[:size:size]
	return l.buffer
}

// Free implements [experimental.LinearMemory].
func (l *linear) Free() {
	l.buffer, l.heap = nil, shadow{}
	if l.tracked != nil {
		l.tracked.close()
		l.tracked = nil
	}
}

// track moves memory and shadow into a tracked one; false if there can be none.
func (l *linear) track() bool {
	t, err := newTracked(l.limit)
	if err != nil {
		return false
	}
	l.heap.grow(uint32(len(l.buffer)))
	for n := range len(l.buffer) / pageSize {
		was, is := l.shadowPage(n), l.buffer[n*pageSize:(n+1)*pageSize]
		if !bytes.Equal(was, zeroPage) { // what is zero costs nothing as long as nobody writes
			copy(t.page(n), was)
		}
		if !bytes.Equal(is, was) {
			copy(t.memory[n*pageSize:], is)
		}
	}
	if l.tracked != nil {
		l.tracked.close()
	}
	l.tracked, l.heap = t, shadow{}
	return true
}

// untrack moves both back to the heap.
func (l *linear) untrack() {
	var s shadow
	s.grow(uint32(len(l.buffer)))
	for n := range len(l.buffer) / pageSize {
		copy(s.page(n), l.tracked.page(n))
	}
	l.buffer = append([]byte(nil), l.buffer...)
	l.tracked.close()
	l.tracked, l.heap = nil, s
}

// shadowPage is a page of the shadow, which reaches as far as settle has been called for.
func (l *linear) shadowPage(n int) []byte {
	if l.tracked != nil {
		return l.tracked.page(n)
	}
	return l.heap.page(n)
}

// extend makes the shadow as large as the memory, ahead of the next freeze.
func (l *linear) extend() {
	if l.tracked == nil {
		l.heap.grow(uint32(len(l.buffer)))
	}
}

// adopt makes the shadow equal to the memory: a freeze whose outcome nobody wants. What is tracked begins anew.
func (l *linear) adopt() {
	l.extend()
	for n := range len(l.buffer) / pageSize {
		is, was := l.buffer[n*pageSize:(n+1)*pageSize], l.shadowPage(n)
		if !bytes.Equal(is, was) {
			copy(was, is)
		}
	}
	if l.tracked != nil {
		l.tracked.drop([]pageRange{{0, len(l.buffer) / pageSize}})
	}
}

// maxRun bounds, in pages, what one copy of neighbouring pages holds: a page that is kept keeps the
// whole copy.
const maxRun = 64

// freeze returns the pages that differ from the shadow, or all that are not zero, and brings the shadow up
// to date. A page that has become zero is a tombstone.
func (l *linear) freeze(full bool) []dataflow.Change {
	l.extend()
	pages := len(l.buffer) / pageSize
	if full {
		changes := l.freezeRange(nil, pageRange{0, pages}, true)
		l.adopt() // pages that are zero were left out
		return changes
	}
	if l.tracked != nil {
		if written, ok := l.tracked.written(pages); ok {
			var changes []dataflow.Change
			l.cold = l.cold[:0]
			for _, r := range written {
				changes = l.freezeRange(changes, r, false)
			}
			// What was written and is as before is not written often: it need not be looked at again.
			l.tracked.drop(l.cold)
			return changes
		}
	}
	return l.freezeRange(nil, pageRange{0, pages}, false)
}

func (l *linear) freezeRange(changes []dataflow.Change, r pageRange, full bool) []dataflow.Change {
	mem := l.buffer
	for n := r.from; n < r.to; {
		page := mem[n*pageSize : (n+1)*pageSize]
		if !full && bytes.Equal(page, l.shadowPage(n)) {
			if l.tracked != nil {
				l.cool(n)
			}
			n++
			continue
		}
		if bytes.Equal(page, zeroPage) {
			if !full {
				changes = append(changes, pageChange(n, nil))
				clear(l.shadowPage(n))
			}
			n++
			continue
		}
		run := 1
		for run < maxRun && n+run < r.to && l.belongs(n+run, full) {
			run++
		}
		// Copied by append, which does not clear the memory first.
		values := append([]byte(nil), mem[n*pageSize:(n+run)*pageSize]...)
		for ; run > 0; run-- {
			changes = append(changes, pageChange(n, values[:pageSize:pageSize]))
			copy(l.shadowPage(n), values)
			values = values[pageSize:]
			n++
		}
	}
	return changes
}

// copy returns the pages that are not zero, and leaves the shadow as it is.
func (l *linear) copy() []dataflow.Change {
	var changes []dataflow.Change
	zero := func(n int) bool { return bytes.Equal(l.buffer[n*pageSize:(n+1)*pageSize], zeroPage) }
	for n, pages := 0, len(l.buffer)/pageSize; n < pages; {
		run := 0
		for run < maxRun && n+run < pages && !zero(n+run) {
			run++
		}
		values := append([]byte(nil), l.buffer[n*pageSize:(n+run)*pageSize]...)
		for i := range run {
			changes = append(changes, pageChange(n+i, values[i*pageSize:(i+1)*pageSize:(i+1)*pageSize]))
		}
		n += max(run, 1)
	}
	return changes
}

// cool notes a page that was written and is as before.
func (l *linear) cool(n int) {
	if last := len(l.cold) - 1; last >= 0 && l.cold[last].to == n {
		l.cold[last].to++
		return
	}
	l.cold = append(l.cold, pageRange{n, n + 1})
}

// belongs says whether a page is to be saved with its content.
func (l *linear) belongs(n int, full bool) bool {
	page := l.buffer[n*pageSize : (n+1)*pageSize]
	return (full || !bytes.Equal(page, l.shadowPage(n))) && !bytes.Equal(page, zeroPage)
}

func pageChange(n int, value []byte) dataflow.Change {
	return dataflow.Change{Space: dataflow.SpaceMemory, Key: binary.BigEndian.AppendUint32(nil, uint32(n)), Value: value}
}
