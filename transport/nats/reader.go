package nats

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Limits of reading a stream.
const (
	// pullBatch and pullBytes bound what is under way to a reader that does not take it. A pull
	// covers several frames of the usual size, so that the pause between two pulls does not count;
	// pullBytes is more than one message of MaxMessage.
	pullBatch = 64
	pullBytes = 4 << 20
	// pullExpires is how long a pull waits for messages.
	pullExpires = 30 * time.Second
	// heartbeat is how often the server says that a waiting pull is alive, silence how long none may
	// come before the reading counts as broken.
	heartbeat = time.Second
	silence   = 3500 * time.Millisecond
	// queueSlack is room in the subscription's queue beside a batch: the status messages and
	// heartbeats of one pull of pullExpires, if the reader takes none of them meanwhile.
	queueSlack = 64
	// inactive is after how long without a pull the server removes a consumer: longer than a task
	// stands still for want of credit, short enough that those of lost agents go.
	inactive = 10 * time.Minute
)

// How a reading ends. Both are recovered from; they differ in where the next reading starts.
var (
	// errGone: the consumer or the stream is gone.
	errGone = errors.New("consumer or stream is gone")
	// errBroken: heartbeats stopped, a message was missed or the connection was lost.
	errBroken = errors.New("reading was interrupted")
)

// source says what to read: a stream, some of its subjects, from where.
type source struct {
	stream  string
	filters []string // empty: all subjects
	last    bool     // only the last message of each subject, then what follows
	start   uint64   // first stream sequence, if not 0
}

// message is one message of a stream.
type message struct {
	subject string
	header  nats.Header
	data    []byte
	seq     uint64 // place in the stream
	// caughtUp instead of all that: what was in the stream when the reading started has been returned.
	caughtUp bool
}

// reader reads a stream in order by pulls without acknowledgement. It belongs to one goroutine. It
// makes its own consumer, which it never repairs: it returns an error, and the caller opens another
// reader.
type reader struct {
	link     *link
	api      string
	src      source
	consumer string
	id       string // the stream's random identity
	inbox    string
	sub      *nats.Subscription
	queue    chan *nats.Msg
	changed  chan struct{} // the connection's state
	connects uint64
	timer    *time.Timer // of next; stopped in between

	waiting  int    // messages that the pull under way may still bring; 0: none under way
	lastSeq  uint64 // of the stream
	consumed uint64 // number of the consumer's last message
	draining bool   // what was there at the start has not all come
	target   uint64 // the stream's last sequence at the start
	caughtUp bool   // to be returned next
}

// openReader makes a consumer. [ErrLost] says that the stream does not exist.
func (c *Conn) openReader(ctx context.Context, l *link, src source) (*reader, error) {
	r := &reader{
		link: l, api: l.api, src: src, consumer: "r" + rand.Text(), inbox: l.nc.NewInbox(),
		queue: make(chan *nats.Msg, pullBatch+queueSlack), changed: make(chan struct{}, 1),
		connects: l.connects(), draining: true, timer: time.NewTimer(silence),
	}
	var err error
	if r.sub, err = l.nc.ChanSubscribe(r.inbox, r.queue); err != nil {
		return nil, translate(err)
	}
	l.subscribe(r.changed)
	if err := l.request(ctx, r.create); err != nil {
		r.close()
		return nil, fmt.Errorf("stream %s: %w", src.stream, err)
	}
	return r, nil
}

// create makes the consumer first and reads the stream's identity then: if the stream is replaced
// in between, the consumer is gone, and the first pull says so.
func (r *reader) create(ctx context.Context) error {
	cfg := jetstream.ConsumerConfig{
		Name: r.consumer, AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverAllPolicy,
		FilterSubjects: r.src.filters, InactiveThreshold: inactive, MemoryStorage: true, Replicas: 1,
	}
	switch {
	case r.src.start > 0:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, r.src.start
	case r.src.last:
		cfg.DeliverPolicy = jetstream.DeliverLastPerSubjectPolicy
	}
	if _, err := r.link.js.CreateConsumer(ctx, r.src.stream, cfg); err != nil {
		return err
	}
	st, err := r.link.js.Stream(ctx, r.src.stream)
	if err != nil {
		return err
	}
	info := st.CachedInfo()
	r.id, r.target = info.Config.Metadata[metaID], info.State.LastSeq
	return nil
}

// leave ends the reading and lets the consumer be.
func (r *reader) leave() {
	r.link.unsubscribe(r.changed)
	_ = r.sub.Unsubscribe() // fails only if the connection is closed
}

// close ends the reading and removes the consumer, without waiting for the server, which removes it
// in any case some time later.
func (r *reader) close() {
	r.leave()
	_ = r.link.nc.PublishRequest(r.api+"CONSUMER.DELETE."+r.src.stream+"."+r.consumer, r.inbox, nil)
}

// next returns the next message. It waits until there is one, ctx ends, or the reading fails, with
// errGone or errBroken.
func (r *reader) next(ctx context.Context) (message, error) {
	r.timer.Reset(silence)
	defer r.timer.Stop()
	for {
		if r.caughtUp {
			if n, err := r.sub.Dropped(); err != nil || n > 0 {
				return message{}, fmt.Errorf("%w: %d messages found no room (%v)", errBroken, n, err)
			}
			r.caughtUp, r.draining = false, false
			return message{caughtUp: true}, nil
		}
		if r.waiting == 0 {
			if err := r.pull(); err != nil {
				return message{}, err
			}
		}
		select {
		case m := <-r.queue:
			r.timer.Reset(silence)
			msg, err := r.take(m)
			if err != nil || msg.data != nil {
				return msg, err
			}
		case <-r.changed:
			if r.link.connects() != r.connects {
				return message{}, fmt.Errorf("%w: connection lost", errBroken)
			}
		case <-r.timer.C:
			return message{}, fmt.Errorf("%w: no heartbeat for %v", errBroken, silence)
		case <-ctx.Done():
			return message{}, ctx.Err()
		}
	}
}

// pullRequest is the body of a request for messages (JetStream API, consumer next). Times are
// nanoseconds.
type pullRequest struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	NoWait    bool          `json:"no_wait,omitempty"`
	Expires   time.Duration `json:"expires,omitempty"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
}

// pull asks for messages. While draining it asks for what is there, since only then the server says
// that there is no more; the number pending that messages carry is not enough, as a purge may remove
// the last ones.
func (r *reader) pull() error {
	req := pullRequest{Batch: pullBatch, MaxBytes: pullBytes}
	if r.draining {
		req.NoWait = true
	} else {
		req.Expires, req.Heartbeat = pullExpires, heartbeat
	}
	body, err := json.Marshal(req)
	if err != nil {
		panic(err) // a struct of numbers
	}
	subject := r.api + "CONSUMER.MSG.NEXT." + r.src.stream + "." + r.consumer
	if err := r.link.nc.PublishRequest(subject, r.inbox, body); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	r.waiting = pullBatch
	return nil
}

// take handles what came; the message has no data if it was no message of the stream.
func (r *reader) take(m *nats.Msg) (message, error) {
	if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 {
		return message{}, r.status(status, m.Header)
	}
	meta, err := m.Metadata()
	if err != nil {
		return message{}, fmt.Errorf("%w: message that the stream did not send: %w", errBroken, err)
	}
	if meta.Sequence.Consumer != r.consumed+1 {
		return message{}, fmt.Errorf("%w: message %d of the consumer follows %d", errBroken, meta.Sequence.Consumer, r.consumed)
	}
	r.consumed, r.lastSeq = meta.Sequence.Consumer, meta.Sequence.Stream
	r.waiting--
	if r.draining && (meta.NumPending == 0 || r.lastSeq >= r.target) {
		r.caughtUp = true
	}
	data := m.Data
	if data == nil {
		data = []byte{}
	}
	return message{subject: m.Subject, header: m.Header, data: data, seq: r.lastSeq}, nil
}

// status handles a status message of the server: nil if the reading goes on.
func (r *reader) status(status string, h nats.Header) error {
	switch status {
	case "100": // heartbeat: it carries the number of the consumer's last message
		if n, err := strconv.ParseUint(h.Get("Nats-Last-Consumer"), 10, 64); err == nil && n != r.consumed {
			return fmt.Errorf("%w: consumer is at %d, reader at %d", errBroken, n, r.consumed)
		}
		return nil
	case "404": // nothing there
		r.waiting, r.caughtUp = 0, r.draining
		return nil
	case "408": // the pull has expired; or, draining, the server has not yet put the last one away
		r.waiting = 0
		return nil
	case "409":
		switch h.Get("Description") {
		case "Batch Completed": // the count says so already, and the next pull may be under way
			return nil
		case "Message Size Exceeds MaxBytes":
			r.waiting = 0
			return nil
		}
	}
	return fmt.Errorf("%w: %s %s", errGone, status, h.Get("Description"))
}
