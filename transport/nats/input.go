package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// inputQueue is how many deliveries wait for the task beside what one pull has brought: enough to
// keep the task busy while the reading goroutine is not scheduled.
const inputQueue = 8

// OpenInput opens a task's input stream. It does not wait for the server: the stream is made, if it
// is missing, and read as soon as the server can be reached. Frames of channels that are not named
// are dropped.
func (s *Streams) OpenInput(_ context.Context, job string, gen abs.Generation, task abs.TaskID, channels []int) (dataflow.Input, error) {
	in := &input{
		streams: s, job: job, gen: gen, task: task,
		stream: s.conn.names.stream(job, gen, task), subject: s.conn.names.frames(job, gen, task),
		channels: make(map[int]bool, len(channels)),
		queue:    make(chan dataflow.Delivery, inputQueue),
		asked:    make(chan struct{}, 1),
		done:     make(chan struct{}),
	}
	for _, c := range channels {
		in.channels[c] = true
	}
	asks, err := s.conn.data.nc.Subscribe(s.conn.names.asks(job, gen, task), func(*nats.Msg) {
		select {
		case in.asked <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return nil, fmt.Errorf("input of %s: %w", task, translate(err))
	}
	in.asks = asks
	in.ctx, in.cancel = context.WithCancel(context.Background())
	in.current = in.newSession()
	go in.run()
	return in, nil
}

// input reads a task's stream. One goroutine, run, owns all but what mu and atomics guard; Close
// waits for it.
type input struct {
	streams  *Streams
	job      string
	gen      abs.Generation
	task     abs.TaskID
	stream   string
	subject  string // of all channels, without the last token
	channels map[int]bool
	queue    chan dataflow.Delivery
	asked    chan struct{}
	asks     *nats.Subscription
	ctx      context.Context // until Close
	cancel   context.CancelFunc
	done     chan struct{} // run has returned

	mu      sync.Mutex
	current *session

	seen atomic.Uint64 // highest sequence delivered since the last Reset

	// Owned by run.
	id       string // the stream's identity; empty before the first reading
	last     uint64 // sequence of the last frame delivered in this reading; 0: start from the beginning
	drained  bool   // Drained has been delivered since reading started from the beginning
	previous string // consumer that was left behind when the reading was interrupted
	gone     bool   // the consumer or stream was lost
}

// session is one attempt at reading, up to an error or a Reread.
type session struct {
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // nothing of this session is delivered any more
	reread bool          // guarded by the input's mu
}

func (in *input) newSession() *session {
	s := &session{ended: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(in.ctx)
	return s
}

func (in *input) Deliveries() <-chan dataflow.Delivery { return in.queue }

func (in *input) Asked() <-chan struct{} { return in.asked }

// Reread returns when nothing from before it will be delivered any more: it drops what is queued.
func (in *input) Reread() {
	in.mu.Lock()
	s := in.current
	s.reread = true
	s.cancel()
	in.mu.Unlock()
	select {
	case <-s.ended:
	case <-in.done:
	}
}

func (in *input) Purge(ctx context.Context, channel int, seq uint64) error {
	if seen := in.seen.Load(); seq > seen {
		return fmt.Errorf("purge of channel %d of %s up to %d, delivered up to %d: %w since", channel, in.task, seq, seen, ErrLost)
	}
	return in.streams.purge(ctx, in.stream, fmt.Sprintf("%s.%d", in.subject, channel), seq)
}

func (in *input) Grant(g dataflow.Grant) {
	subject := in.streams.conn.names.grants(in.job, in.gen, g.Channel)
	_ = in.streams.conn.data.nc.Publish(subject, appendGrant(nil, g)) // best effort; grants are repeated
}

func (in *input) Close() {
	in.cancel()
	<-in.done
}

func (in *input) run() {
	defer close(in.done)
	defer close(in.queue)
	defer func() { _ = in.asks.Unsubscribe() }() // fails only if the connection is closed
	for attempt := 0; ; attempt++ {
		s := in.session()
		progress, err := in.read(s.ctx)
		if progress {
			attempt = 0
		}
		if s.ctx.Err() == nil {
			in.streams.log.Debug("input stream interrupted", "task", in.task, "error", err)
			_ = sleep(s.ctx, backoff(attempt)) // ends early for Reread and Close
		}
		if in.turn(s) {
			attempt = 0
		}
		if in.ctx.Err() != nil {
			return
		}
	}
}

func (in *input) session() *session {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.current
}

// turn puts the next session in the place of s and reports whether s was ended by a Reread.
func (in *input) turn(s *session) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if s.reread {
		in.flush()
		in.last, in.drained = 0, false
	}
	s.cancel()
	in.current = in.newSession()
	close(s.ended)
	return s.reread
}

func (in *input) flush() {
	for {
		select {
		case <-in.queue:
		default:
			return
		}
	}
}

// read opens a reader and delivers what it yields, until an error. Progress says that it delivered.
func (in *input) read(ctx context.Context) (progress bool, err error) {
	r, err := in.open(ctx)
	if err != nil {
		return false, err
	}
	for err == nil {
		var m message
		if m, err = r.next(ctx); err == nil {
			progress = true
			err = in.deliver(ctx, m)
		}
	}
	if errors.Is(err, errBroken) {
		in.previous = r.consumer
		r.leave()
		return progress, err
	}
	in.gone = errors.Is(err, errGone)
	r.close()
	return progress, err
}

// open makes the stream if it is missing and a reader on it. It goes on where the last reading was
// interrupted if the server still knows that one's consumer, which does not survive what loses frames
// of the stream; else it delivers Reset, unless nothing has been read yet, and starts from the beginning.
func (in *input) open(ctx context.Context) (*reader, error) {
	if err := in.streams.ensure(ctx, in.job, in.gen, in.task); err != nil {
		return nil, err
	}
	if err := in.checkPrevious(ctx); err != nil {
		return nil, err
	}
	r, err := in.openAt(ctx)
	if err != nil {
		return nil, err
	}
	if in.id != "" && (in.gone || r.id != in.id || r.target < in.last) {
		restart := in.last > 0
		in.seen.Store(0) // other frames may have the places of those that are lost
		in.id, in.last, in.drained, in.gone = r.id, 0, false, false
		if err := in.push(ctx, dataflow.Delivery{Reset: true}); err != nil {
			r.close()
			return nil, err
		}
		if restart {
			r.close()
			return in.openAt(ctx)
		}
	}
	in.id, in.gone = r.id, false
	return r, nil
}

func (in *input) openAt(ctx context.Context) (*reader, error) {
	src := source{stream: in.stream}
	if in.last > 0 {
		src.start = in.last + 1
	}
	return in.streams.conn.openReader(ctx, in.streams.conn.data, src)
}

// checkPrevious finds out whether the interrupted reading's consumer is still there, and removes it.
func (in *input) checkPrevious(ctx context.Context) error {
	if in.previous == "" {
		return nil
	}
	data := in.streams.conn.data
	err := data.request(ctx, func(ctx context.Context) error { return data.js.DeleteConsumer(ctx, in.stream, in.previous) })
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, ErrLost):
		in.gone = true
	case err != nil:
		return err
	}
	in.previous = ""
	return nil
}

func (in *input) deliver(ctx context.Context, m message) error {
	if m.caughtUp {
		if in.drained {
			return nil
		}
		in.drained = true
		return in.push(ctx, dataflow.Delivery{Drained: true})
	}
	in.last = m.seq
	channel, err := channelOf(m.subject)
	if err != nil || !in.channels[channel] {
		in.streams.log.Warn("frame of an unknown channel dropped", "task", in.task, "subject", m.subject)
		return nil
	}
	in.seen.Store(m.seq)
	return in.push(ctx, dataflow.Delivery{Channel: channel, Seq: m.seq, Frame: m.data})
}

func (in *input) push(ctx context.Context, d dataflow.Delivery) error {
	select {
	case in.queue <- d:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
