package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// Limits of an output.
const (
	// maxSends is how many frames of one output may be under way, from Send to done. Credit keeps a
	// task far below it; in replay, where numbers need no credit, it is 12 MiB of usual frames.
	maxSends = 256
	// ackTimeout is how long the stream may take to acknowledge a frame.
	ackTimeout = 3 * time.Second
	// sweepInterval is how often frames without acknowledgement are looked for, while there are any.
	sweepInterval = 250 * time.Millisecond
	// grantQueue is how many grants may wait to be looked at, before the newest of each is kept: a
	// task with a thousand outputs may get one for each at once.
	grantQueue = 1024
)

// OpenOutput opens a task's output channels. It does not wait for the server.
func (s *Streams) OpenOutput(_ context.Context, job string, gen abs.Generation, to map[int]abs.TaskID) (dataflow.Output, error) {
	nc := s.conn.data.nc
	o := &output{
		link: s.conn.data, subjects: make(map[int]string, len(to)),
		sends: make(map[uint64]*send), written: make(chan struct{}, 1), queued: make(chan struct{}, 1),
		failed: make(chan struct{}, 1), inbox: nc.NewInbox() + ".",
		acks: make(chan *nats.Msg, 2*maxSends), received: make(chan *nats.Msg, grantQueue),
		grants: make(chan dataflow.Grant), newest: make(map[int]dataflow.Grant), changed: make(chan struct{}, 1),
	}
	receivers := make(map[string]bool)
	subscribe := []string{o.inbox + "*"}
	for channel, task := range to {
		o.subjects[channel] = fmt.Sprintf("%s.%d", s.conn.names.frames(job, gen, task), channel)
		receivers[s.conn.names.asks(job, gen, task)] = true
		subscribe = append(subscribe, s.conn.names.grants(job, gen, channel))
	}
	for r := range receivers {
		o.receivers = append(o.receivers, r)
	}
	for i, subject := range subscribe {
		queue := o.received
		if i == 0 {
			queue = o.acks
		}
		sub, err := nc.ChanSubscribe(subject, queue)
		if err != nil {
			o.unsubscribe()
			return nil, fmt.Errorf("output of job %s: %w", job, translate(err))
		}
		o.subs = append(o.subs, sub)
	}
	o.link.subscribe(o.changed)
	o.ctx, o.cancel = context.WithCancel(context.Background())
	writing := make(chan struct{})
	o.wg.Go(func() { defer close(writing); o.write() })
	o.wg.Go(func() { o.settleAll(writing) })
	return o, nil
}

// send is a frame under way, from Send to its done.
type send struct {
	id      uint64
	subject string
	frame   []byte
	done    func(error)
	// deadline is when it counts as lost; zero until it has been handed to the connection, before
	// which its bytes may still be read and done must not be called.
	deadline time.Time
	err      error // why it was refused or could not be written
}

// output sends frames. Two goroutines, for which Close waits: write hands frames to the connection
// in the order of Send and may hang with it; settleAll never waits for the network and calls done,
// and delivers grants.
type output struct {
	link      *link
	subjects  map[int]string // of frames, by channel
	receivers []string       // subjects at which receivers are asked for grants
	subs      []*nats.Subscription
	inbox     string // begins the subjects of acknowledgements
	acks      chan *nats.Msg
	received  chan *nats.Msg // grants as they come
	grants    chan dataflow.Grant
	changed   chan struct{} // the connection's state
	queued    chan struct{} // there is something to write
	written   chan struct{} // there is something to wait for
	failed    chan struct{} // there is something in failures
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	lastID   uint64
	queue    []*send          // not yet handed to the connection
	sends    map[uint64]*send // all under way, at most maxSends
	failures []*send          // to be told so; settleAll empties it at once

	// Owned by settleAll.
	newest map[int]dataflow.Grant // not yet taken, by channel
	order  []int                  // channels of newest, oldest first
}

func (o *output) Grants() <-chan dataflow.Grant { return o.grants }

func (o *output) Ask() {
	for _, subject := range o.receivers {
		_ = o.link.nc.Publish(subject, nil) // best effort: whoever lacks a grant asks again
	}
}

// Send never waits. Done gets nil once the stream has the frame, else [ErrFull], [ErrUnavailable],
// [ErrBusy] if too many are under way, or [ErrClosed]. After an error the stream may have the frame
// all the same, and may have later ones: send again from this one on.
func (o *output) Send(channel int, frame []byte, done func(error)) {
	subject, ok := o.subjects[channel]
	if !ok {
		panic(fmt.Sprintf("frame for channel %d, which this output does not have", channel))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &send{subject: subject, frame: frame, done: done}
	switch {
	case o.closed:
		go done(ErrClosed) // nobody is left to call it
		return
	case len(o.sends) >= maxSends:
		s.err = ErrBusy
		o.failures = append(o.failures, s)
		signal(o.failed)
		return
	}
	o.lastID++
	s.id = o.lastID
	o.sends[s.id] = s
	o.queue = append(o.queue, s)
	signal(o.queued)
}

func (o *output) Close() {
	o.cancel()
	o.wg.Wait()
	o.link.unsubscribe(o.changed)
	o.unsubscribe()
}

func (o *output) unsubscribe() {
	for _, s := range o.subs {
		_ = s.Unsubscribe() // fails only if the connection is closed
	}
}

// write hands frames to the connection, which copies them or fails at once.
func (o *output) write() {
	for {
		s := o.pop()
		if s == nil {
			select {
			case <-o.queued:
				continue
			case <-o.ctx.Done():
				return
			}
		}
		if o.ctx.Err() != nil {
			return // settleAll ends those under way
		}
		err := o.link.nc.PublishRequest(s.subject, o.inbox+strconv.FormatUint(s.id, 10), s.frame)
		o.handed(s, err)
	}
}

func (o *output) pop() *send {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		o.queue = nil
		return nil
	}
	s := o.queue[0]
	o.queue[0] = nil
	o.queue = o.queue[1:]
	return s
}

// handed notes that the connection has the frame, or does not take it.
func (o *output) handed(s *send, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sends[s.id] == nil {
		return // already acknowledged
	}
	if err != nil {
		delete(o.sends, s.id)
		s.err = translate(err)
		o.failures = append(o.failures, s)
		signal(o.failed)
		return
	}
	s.deadline = time.Now().Add(ackTimeout)
	signal(o.written)
}

// settleAll calls done for frames and delivers grants, until Close, when it settles the rest once
// write, which may be reading one of them, has returned.
func (o *output) settleAll(writing <-chan struct{}) {
	connects := o.link.connects()
	var sweep <-chan time.Time // nil while nothing is waited for
	for {
		var grants chan<- dataflow.Grant
		var g dataflow.Grant
		if len(o.order) > 0 {
			grants, g = o.grants, o.newest[o.order[0]]
		}
		select {
		case m := <-o.acks:
			o.acked(m)
		case m := <-o.received:
			o.keep(m)
		case grants <- g:
			delete(o.newest, g.Channel)
			o.order = o.order[1:]
		case <-o.failed:
			o.fail()
		case <-o.written:
			if sweep == nil {
				sweep = time.After(sweepInterval)
			}
		case <-sweep:
			sweep = nil
			if o.expire(time.Now(), errors.New("no acknowledgement in time")) > 0 {
				sweep = time.After(sweepInterval)
			}
		case <-o.changed:
			if n := o.link.connects(); n != connects {
				connects = n
				o.expire(time.Time{}, errors.New("connection lost"))
			}
		case <-o.ctx.Done():
			<-writing
			o.end()
			return
		}
	}
}

// acked settles the frame that an answer is about.
func (o *output) acked(m *nats.Msg) {
	id, err := strconv.ParseUint(m.Subject[len(o.inbox):], 10, 64)
	if err != nil {
		return // nobody of ours
	}
	o.mu.Lock()
	s := o.sends[id]
	delete(o.sends, id)
	o.mu.Unlock()
	if s != nil {
		s.done(ackError(m))
	}
}

// ackError reads the stream's answer to a frame.
func ackError(m *nats.Msg) error {
	if status := m.Header.Get("Status"); status != "" {
		return fmt.Errorf("%w: no stream takes the frame (%s)", ErrUnavailable, status)
	}
	stream, err := decodeResponse(m.Data)
	if err == nil && stream == "" {
		err = fmt.Errorf("%w: answer names no stream", ErrUnavailable)
	}
	return err
}

// keep holds a grant until it is taken; a newer one of the same channel takes its place.
func (o *output) keep(m *nats.Msg) {
	g, err := decodeGrant(m.Data)
	if err != nil {
		return // of another version or nobody of ours; grants are repeated
	}
	if _, ok := o.subjects[g.Channel]; !ok {
		return
	}
	if _, ok := o.newest[g.Channel]; !ok {
		o.order = append(o.order, g.Channel)
	}
	o.newest[g.Channel] = g
}

// fail tells those whose frames were refused.
func (o *output) fail() {
	o.mu.Lock()
	failures := o.failures
	o.failures = nil
	o.mu.Unlock()
	for _, s := range failures {
		s.done(s.err)
	}
}

// expire gives up the frames that the connection has and whose deadline is before now (all if now is
// zero), and returns how many are still waited for.
func (o *output) expire(now time.Time, reason error) int {
	o.mu.Lock()
	var lost []*send
	left := 0
	for id, s := range o.sends {
		switch {
		case s.deadline.IsZero():
		case now.IsZero() || now.After(s.deadline):
			lost = append(lost, s)
			delete(o.sends, id)
		default:
			left++
		}
	}
	o.mu.Unlock()
	for _, s := range lost {
		s.done(fmt.Errorf("%w: %w", ErrUnavailable, reason))
	}
	return left
}

// end settles everything: from now on Send refuses.
func (o *output) end() {
	o.mu.Lock()
	o.closed = true
	sends := o.sends
	o.sends, o.queue = nil, nil
	o.mu.Unlock()
	o.fail()
	for _, s := range sends {
		s.done(ErrClosed)
	}
}
