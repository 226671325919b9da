package direct

import (
	"context"
	"fmt"
	"sync"

	"github.com/weir-stream/weir/dataflow"
)

// output sends frames. Send puts them into the stream; run calls done and delivers grants, and Close waits for it.
type output struct {
	owner   *Streams
	streams map[int]*stream // by channel
	grants  chan dataflow.Grant
	wake    chan struct{} // there is something for run
	stop    context.CancelFunc
	ctx     context.Context // until Close
	wg      sync.WaitGroup
	close   sync.Once

	mu      sync.Mutex
	closed  bool
	settled []settled              // to be told so; at most what was sent since run was scheduled last
	newest  map[int]dataflow.Grant // not yet taken, by channel
	order   []int                  // channels of newest, oldest first
}

// settled is what has become of a frame.
type settled struct {
	done func(error)
	err  error
}

func newOutput(s *Streams) *output {
	o := &output{
		owner: s, streams: map[int]*stream{}, grants: make(chan dataflow.Grant), wake: make(chan struct{}, 1),
		newest: map[int]dataflow.Grant{},
	}
	o.ctx, o.stop = context.WithCancel(context.Background())
	return o
}

func (o *output) Grants() <-chan dataflow.Grant { return o.grants }

func (o *output) Ask() {
	asked := make(map[*stream]bool, len(o.streams))
	for _, st := range o.streams {
		if !asked[st] {
			asked[st] = true
			st.ask()
		}
	}
}

// Send never waits. Done gets nil once the stream has the frame, else [ErrFull], [ErrUnavailable] or [ErrClosed]; then
// the stream does not have it.
func (o *output) Send(channel int, frame []byte, done func(error)) {
	st := o.streams[channel]
	if st == nil {
		panic(fmt.Sprintf("frame for channel %d, which this output does not have", channel))
	}
	o.mu.Lock()
	closed := o.closed
	o.mu.Unlock()
	if closed {
		go done(ErrClosed) // nobody is left to call it
		return
	}
	err := st.put(channel, frame)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		go done(err)
		return
	}
	o.settled = append(o.settled, settled{done, err})
	signal(o.wake)
}

// keep holds a grant until it is taken; a newer one of the same channel takes its place.
func (o *output) keep(g dataflow.Grant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, has := o.newest[g.Channel]; !has {
		o.order = append(o.order, g.Channel)
	}
	o.newest[g.Channel] = g
	signal(o.wake)
}

func (o *output) Close() {
	o.close.Do(func() {
		o.stop()
		o.wg.Wait()
		for channel, st := range o.streams {
			st.detach(channel, o)
			o.owner.drop(st)
		}
	})
}

// run calls done for frames and delivers grants, until Close, when it settles the rest.
func (o *output) run() {
	var batch []settled
	for {
		var g dataflow.Grant
		var grants chan<- dataflow.Grant
		batch, g, grants = o.take(batch)
		tell(batch)
		select {
		case grants <- g:
			o.given(g)
		case <-o.wake:
		case <-o.ctx.Done():
			o.end()
			return
		}
	}
}

// take returns what is settled, in place of the last batch, and the oldest grant with the queue that it is for, nil if
// there is none.
func (o *output) take(last []settled) ([]settled, dataflow.Grant, chan<- dataflow.Grant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.settled
	o.settled = last[:0]
	if len(o.order) == 0 {
		return batch, dataflow.Grant{}, nil
	}
	return batch, o.newest[o.order[0]], o.grants
}

// given forgets a grant that was taken, unless a newer one has come since.
func (o *output) given(g dataflow.Grant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	channel := o.order[0]
	o.order = append(o.order[:0], o.order[1:]...)
	if o.newest[channel] == g {
		delete(o.newest, channel)
		return
	}
	o.order = append(o.order, channel)
}

func (o *output) end() {
	o.mu.Lock()
	o.closed = true
	batch := o.settled
	o.settled = nil
	o.mu.Unlock()
	tell(batch)
}

func tell(batch []settled) {
	for _, s := range batch {
		s.done(s.err)
	}
	clear(batch) // what they hold may go
}
