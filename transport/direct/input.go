package direct

import (
	"context"
	"fmt"
	"sync"

	"github.com/weir-stream/weir/dataflow"
)

// inputQueue is how many deliveries wait for the task beside the stream: enough to keep it busy while the goroutine
// that fills up is not scheduled. What does not find room is that goroutine's to deliver.
const inputQueue = 64

// input reads a stream. A frame is put into the queue by its sender if everything before it is there and there is
// room, else by run, for which Close waits.
type input struct {
	streams  *Streams
	st       *stream
	channels map[int]bool
	queue    chan dataflow.Delivery
	asked    chan struct{}
	wake     chan struct{} // there may be something for run
	stop     context.CancelFunc
	ctx      context.Context // until Close
	done     chan struct{}   // run has returned
	close    sync.Once

	// Guarded by the stream's mutex.
	next    *entry // the first that was not delivered
	target  uint64 // the last that was there when the reading began
	drained bool   // Drained has been delivered in this reading
	busy    bool   // run has a delivery in hand
	seen    uint64 // the highest place delivered
	reading *reading
}

// reading is one way through the stream from its beginning.
type reading struct {
	reread bool          // guarded by the stream's mutex
	over   chan struct{} // closed by Reread
	ended  chan struct{} // nothing of this reading is delivered any more
}

func newInput(s *Streams, st *stream, channels []int) *input {
	in := &input{
		streams: s, st: st, channels: make(map[int]bool, len(channels)), queue: make(chan dataflow.Delivery, inputQueue),
		asked: make(chan struct{}, 1), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	for _, c := range channels {
		in.channels[c] = true
	}
	in.ctx, in.stop = context.WithCancel(context.Background())
	return in
}

// begin starts a reading. The stream's mutex is held.
func (in *input) begin() {
	in.next, in.target, in.drained, in.busy = in.st.first, in.st.seq, false, false
	for _, l := range in.st.lanes {
		l.below, l.void = 0, 0 // a receiver that reads again may have gone back
	}
	in.reading = &reading{over: make(chan struct{}), ended: make(chan struct{})}
}

func (in *input) Deliveries() <-chan dataflow.Delivery { return in.queue }

func (in *input) Asked() <-chan struct{} { return in.asked }

// Reread returns when nothing from before it will be delivered any more: it drops what is queued.
func (in *input) Reread() {
	in.st.mu.Lock()
	r := in.reading
	if !r.reread {
		r.reread = true
		close(r.over)
	}
	in.st.mu.Unlock()
	select {
	case <-r.ended:
	case <-in.done:
	}
}

// Purge also works on a closed input. It fails for a place beyond what was delivered.
func (in *input) Purge(_ context.Context, channel int, seq uint64) error {
	in.st.mu.Lock()
	seen := in.seen
	in.st.mu.Unlock()
	if seq > seen {
		return fmt.Errorf("purge of channel %d of %s up to %d, delivered up to %d: %w", channel, in.st.name.task, seq, seen, ErrLost)
	}
	in.st.purge(channel, seq)
	return nil
}

func (in *input) Grant(g dataflow.Grant) {
	if o := in.st.granted(in, g); o != nil {
		o.keep(g)
	}
}

func (in *input) Close() {
	in.close.Do(func() {
		in.st.leave()
		in.stop()
		<-in.done
		in.streams.drop(in.st)
	})
}

// arrived takes a frame that has come into the stream, whose mutex is held.
func (in *input) arrived(e *entry) {
	if in.next == nil {
		in.next = e
	}
	if in.next == e && in.drained && !in.busy && !in.reading.reread && in.channels[e.channel] {
		select {
		case in.queue <- dataflow.Delivery{Channel: e.channel, Seq: e.seq, Frame: e.frame}:
			in.pass(e)
			return
		default:
		}
	}
	signal(in.wake)
}

// pass moves on beyond a frame. The stream's mutex is held.
func (in *input) pass(e *entry) { in.next, in.seen = e.next, max(in.seen, e.seq) }

// run delivers what senders do not.
func (in *input) run() {
	defer close(in.done)
	defer close(in.queue)
	for {
		d, r, some := in.take()
		queue, wake := in.queue, in.wake
		if some {
			wake = nil
		} else {
			queue = nil
		}
		select {
		case queue <- d:
		case <-wake:
		case <-r.over:
			in.turn(r)
		case <-in.ctx.Done():
			return
		}
	}
}

// take returns what is to be delivered next, if there is anything.
func (in *input) take() (d dataflow.Delivery, r *reading, some bool) {
	in.st.mu.Lock()
	defer in.st.mu.Unlock()
	r = in.reading
	in.busy = true
	for {
		switch {
		case !in.drained && (in.next == nil || in.next.seq > in.target):
			in.drained = true
			return dataflow.Delivery{Drained: true}, r, true
		case in.next == nil:
			in.busy = false
			return d, r, false
		case in.channels[in.next.channel]:
			e := in.next
			in.pass(e)
			return dataflow.Delivery{Channel: e.channel, Seq: e.seq, Frame: e.frame}, r, true
		}
		in.streams.opt.Log.Warn("frame of an unknown channel dropped", "task", in.st.name.task, "channel", in.next.channel)
		in.next = in.next.next
	}
}

// turn begins the next reading: what is queued is of the last one, and is dropped.
func (in *input) turn(r *reading) {
	in.st.mu.Lock()
	defer in.st.mu.Unlock()
	for len(in.queue) > 0 {
		<-in.queue
	}
	in.begin()
	close(r.ended)
}
