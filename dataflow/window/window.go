// Package window is the bounded queue between a task that offers items to a sink and the sink's own
// goroutine that delivers them.
//
// Items stay in the window until they are done, so that its bound covers what waits and what is
// under way. It is open only while the sink runs: an item is never taken by a sink that does not
// run, and what was not done is forgotten when it closes; the task offers it again.
package window

import (
	"sync"

	"github.com/weir-stream/weir/dataflow"
)

// itemOverhead is what an item costs beyond its bytes: the structs that hold it.
const itemOverhead = 160

// Window is used by two goroutines: the task's calls Offer, the sink's everything else.
type Window struct {
	maxItems int
	maxBytes int
	wake     chan struct{} // capacity 1

	mu      sync.Mutex // guards all below
	open    bool
	items   []dataflow.SinkItem // not done; the first taken are under way
	taken   int
	bytes   int
	starved bool // an offer was not taken whole since the last Done that made room
}

// New makes a closed window of at most maxItems items and maxBytes bytes; one item always fits.
func New(maxItems, maxBytes int) *Window {
	return &Window{maxItems: maxItems, maxBytes: maxBytes, wake: make(chan struct{}, 1)}
}

// Offer takes items from the front while there is room and returns how many it took.
func (w *Window) Offer(items []dataflow.SinkItem) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.open {
		return 0
	}
	n := 0
	for ; n < len(items) && w.room(size(items[n])); n++ {
		w.bytes += size(items[n])
		w.items = append(w.items, items[n])
	}
	if n < len(items) {
		w.starved = true
	}
	if n > 0 {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	return n
}

func (w *Window) room(bytes int) bool {
	return len(w.items) == 0 || len(w.items) < w.maxItems && w.bytes+bytes <= w.maxBytes
}

func size(it dataflow.SinkItem) int { return itemOverhead + it.Record.Size() }

// Open lets Offer take items.
func (w *Window) Open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = true
}

// Close forgets all items and lets Offer take none.
func (w *Window) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open, w.items, w.taken, w.bytes, w.starved = false, nil, 0, 0, false
}

// Wake is signalled (capacity 1) when items have come.
func (w *Window) Wake() <-chan struct{} { return w.wake }

// Take appends the items that came since the last Take to dst, in order. They stay in the window.
func (w *Window) Take(dst []dataflow.SinkItem) []dataflow.SinkItem {
	w.mu.Lock()
	defer w.mu.Unlock()
	dst = append(dst, w.items[w.taken:]...)
	w.taken = len(w.items)
	return dst
}

// Done removes the n oldest items, which must have been taken, and says whether the task waits for
// room that there is now.
func (w *Window) Done(n int) (ready bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > w.taken {
		panic("window: more items done than taken")
	}
	for i := range n {
		w.bytes -= size(w.items[i])
		w.items[i] = dataflow.SinkItem{} // its memory may go
	}
	w.items = w.items[n:]
	w.taken -= n
	ready = w.starved && n > 0
	if ready {
		w.starved = false
	}
	return ready
}

// Len is the number of items not done.
func (w *Window) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.items)
}
