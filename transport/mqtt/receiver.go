package mqtt

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// subscribeID is the packet identifier of SUBSCRIBE, the only packet a source sends that needs one.
const subscribeID = 1

// receiver is one run of a source. Its goroutine owns all of it but the durable callbacks, which
// only set a flag and signal.
type receiver struct {
	src *Source
	in  dataflow.Ingest

	sess *session            // nil without a connection
	open map[uint16]*receipt // QoS 1: received in this session, not acknowledged; QoS 2: until PUBREL
	due  []*receipt          // to be acknowledged in this session, in order of receipt

	queue      []message // received, not logged
	queueBytes int

	underway      []*unit // handed to the log, not known to be durable, in order
	underwayBytes int
	durable       chan struct{} // capacity 1: a unit became durable

	linger  alarm // messages have waited long enough
	retry   alarm // the log is full; try again
	suback  alarm // SUBACK is overdue
	retries int   // attempts in a row that the log refused
	full    bool  // the log was full at the last attempt

	payload, ids []byte // of the batch in the making
	acks         []byte
	seed         maphash.Seed
}

// receipt is what must be known of a message of QoS 1 or 2 to acknowledge it and to recognise it
// when it comes again.
type receipt struct {
	id      uint16
	qos     byte
	hash    uint64 // of topic and payload
	sess    *session
	durable bool
	due     bool // is in receiver.due
}

// unit is a batch or a dead letter handed to the log.
type unit struct {
	done     atomic.Bool // set by the log
	receipts []*receipt
	records  int // that count as logged
	bytes    int
}

// alarm is a timer that knows whether it is set.
type alarm struct {
	timer *time.Timer
	set   bool
}

func newAlarm() alarm {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return alarm{timer: t}
}

func (a *alarm) start(d time.Duration) {
	if !a.set {
		a.set = true
		a.timer.Reset(d)
	}
}

func (a *alarm) stop() {
	a.set = false
	a.timer.Stop()
}

func newReceiver(s *Source, in dataflow.Ingest) *receiver {
	return &receiver{
		src: s, in: in, open: map[uint16]*receipt{}, durable: make(chan struct{}, 1),
		linger: newAlarm(), retry: newAlarm(), suback: newAlarm(), seed: maphash.MakeSeed(),
	}
}

// run is the loop of the owner. It returns nil when ctx has ended.
func (r *receiver) run(ctx context.Context, sessions <-chan *session) error {
	r.src.enter(SourceConnecting)
	for {
		var packets <-chan []packet
		var ended <-chan struct{}
		if r.sess != nil {
			ended = r.sess.ended
			if r.queueBytes < r.src.bounds.queue {
				packets = r.sess.in
			}
		}
		lingered := false
		select {
		case <-ctx.Done():
			return nil
		case s := <-sessions:
			r.opened(s)
		case <-ended:
			r.lost()
		case got := <-packets:
			r.take(got)
		case <-r.durable:
			r.settle()
		case <-r.linger.timer.C:
			r.linger.stop()
			lingered = true
		case <-r.retry.timer.C:
			r.retry.stop()
		case <-r.suback.timer.C:
			r.suback.stop()
			r.sess.fail(fmt.Errorf("no answer to SUBSCRIBE in %s", subackWait))
		}
		if err := r.flush(lingered); err != nil {
			return err
		}
	}
}

// opened starts with a new session. Messages of QoS 1 that wait from the last one come again if the
// broker has kept the session, and are kept if not. Those of QoS 2 stay: their identifiers tell.
func (r *receiver) opened(s *session) {
	r.sess, r.due = s, nil
	r.suback.stop()
	for id, rc := range r.open {
		rc.due = false
		if rc.qos == 1 || !s.present {
			delete(r.open, id)
		}
	}
	if s.present {
		r.filterQueue(func(m message) bool { return m.receipt == nil || m.receipt.qos != 1 })
	}
	r.src.enter(SourceSubscribing)
	s.subscribe(subscribeID, r.src.cfg.Topics, r.src.cfg.QoS)
	r.suback.start(subackWait)
}

func (r *receiver) lost() {
	r.sess, r.due = nil, nil
	r.suback.stop()
	r.src.enter(SourceConnecting)
}

// filterQueue keeps the messages for which keep is true.
func (r *receiver) filterQueue(keep func(message) bool) {
	kept := r.queue[:0]
	for _, m := range r.queue {
		if keep(m) {
			kept = append(kept, m)
		} else {
			r.queueBytes -= m.size()
		}
	}
	clear(r.queue[len(kept):])
	r.queue = kept
	r.src.waiting.Store(int64(r.queueBytes))
}

func (r *receiver) take(got []packet) {
	now := r.src.deps.Clock()
	for i := range got {
		switch p := &got[i]; p.kind {
		case typePublish:
			r.publish(p, now)
		case typePubrel:
			r.release(p.id)
		case typeSuback:
			r.granted(p)
		}
	}
	r.ack()
	if r.queueBytes >= r.src.bounds.queue {
		r.shed()
	}
	r.src.waiting.Store(int64(r.queueBytes))
}

func (r *receiver) publish(p *packet, now int64) {
	r.src.received.Add(1)
	m := message{topic: p.topic, payload: p.payload, lost: p.lost, arrived: now}
	if p.qos > 0 {
		hash := r.hash(p)
		if rc := r.open[p.id]; rc != nil && r.repeats(rc, p, hash) {
			r.src.repeated.Add(1)
			r.mustAck(rc)
			return
		}
		m.receipt = &receipt{id: p.id, qos: p.qos, hash: hash, sess: r.sess}
		r.open[p.id] = m.receipt
		r.mustAck(m.receipt)
	}
	r.queue = append(r.queue, m)
	r.queueBytes += m.size()
}

// repeats says whether p is the message of rc again. An identifier in use names one message (MQTT
// 3.1.1, 2.3.1); that topic and payload are compared too, and DUP across sessions, keeps a broker
// that uses one anew too early from losing messages.
func (r *receiver) repeats(rc *receipt, p *packet, hash uint64) bool {
	return rc.qos == p.qos && rc.hash == hash && (rc.sess == r.sess || p.dup)
}

func (r *receiver) hash(p *packet) uint64 {
	var h maphash.Hash
	h.SetSeed(r.seed)
	h.WriteString(p.topic)
	h.WriteByte(0)
	h.Write(p.payload)
	return h.Sum64()
}

func (r *receiver) mustAck(rc *receipt) {
	if !rc.due {
		rc.due = true
		r.due = append(r.due, rc)
	}
}

// release answers PUBREL, also one whose message is not known: the broker then repeats what was
// answered before a restart (MQTT 3.1.1, 4.3.3).
func (r *receiver) release(id uint16) {
	if rc := r.open[id]; rc != nil && rc.qos == 2 {
		delete(r.open, id)
	}
	r.sess.send(func(dst []byte) []byte { return appendAck(dst, typePubcomp, id) })
}

func (r *receiver) granted(p *packet) {
	if p.id != subscribeID || !r.suback.set {
		return
	}
	r.suback.stop()
	cfg := &r.src.cfg
	if len(p.codes) != len(cfg.Topics) {
		r.sess.fail(fmt.Errorf("the broker answers %d subscriptions with %d codes", len(cfg.Topics), len(p.codes)))
		return
	}
	for i, code := range p.codes {
		switch {
		case code > 2:
			r.sess.fail(fmt.Errorf("the broker refuses the subscription to %q; check its access rules", cfg.Topics[i]))
			return
		case code < cfg.QoS:
			r.src.deps.Log.Warn("the broker grants a lower QoS than asked for", "topic", cfg.Topics[i], "asked", cfg.QoS, "granted", code)
		}
	}
	r.src.enter(SourceReceiving)
	r.src.link.useful("receiving")
}

// shed gives up the oldest messages of QoS 0 until an eighth of the queue's room is free, so that
// not every message costs a walk through the queue.
func (r *receiver) shed() {
	goal := r.src.bounds.queue / 8 * 7
	r.filterQueue(func(m message) bool {
		if m.receipt != nil || r.queueBytes <= goal {
			return true
		}
		r.src.shed.Add(1)
		return false
	})
}

// settle takes note of what has become durable and acknowledges it.
func (r *receiver) settle() {
	n := 0
	for ; n < len(r.underway) && r.underway[n].done.Load(); n++ {
		u := r.underway[n]
		r.underwayBytes -= u.bytes
		r.src.logged.Add(uint64(u.records))
		for _, rc := range u.receipts {
			rc.durable = true
		}
		r.underway[n] = nil
	}
	r.underway = r.underway[n:]
	r.ack()
}

// ack acknowledges, in order of receipt (MQTT 3.1.1, 4.6), up to the first message that is not durable.
func (r *receiver) ack() {
	if r.sess == nil {
		return
	}
	n := 0
	r.acks = r.acks[:0]
	for ; n < len(r.due) && r.due[n].durable; n++ {
		rc := r.due[n]
		rc.due = false
		if rc.qos == 2 {
			r.acks = appendAck(r.acks, typePubrec, rc.id)
		} else {
			r.acks = appendAck(r.acks, typePuback, rc.id)
			if r.open[rc.id] == rc {
				delete(r.open, rc.id)
			}
		}
		r.due[n] = nil
	}
	if n == 0 {
		return
	}
	r.due = r.due[n:]
	r.sess.send(func(dst []byte) []byte { return append(dst, r.acks...) })
	r.src.acked.Add(uint64(n))
}

// flush hands waiting messages to the log: at once if nothing is under way, when a batch is full,
// or when they have lingered.
func (r *receiver) flush(lingered bool) error {
	for len(r.queue) > 0 && !r.retry.set && r.underwayBytes < r.src.bounds.underway {
		if len(r.underway) > 0 && r.queueBytes < batchBytes && !lingered {
			r.linger.start(linger)
			return nil
		}
		switch err := r.logSome(); {
		case errors.Is(err, dataflow.ErrLogFull):
			r.waitForLog(true)
		case errors.Is(err, dataflow.ErrClosed): // ctx ends soon, or the log opens again
			r.waitForLog(false)
		case err != nil:
			return err
		}
	}
	r.linger.stop()
	return nil
}

// waitForLog leaves the messages unacknowledged where they are and sets the time to try again. Only
// a full log is news.
func (r *receiver) waitForLog(full bool) {
	if full && !r.full {
		r.full = true
		r.src.logFull(true)
		r.src.deps.Log.Warn("the input log is full; messages stay unacknowledged until it has room")
	}
	r.retry.start(r.src.bounds.logRetry.wait(r.retries, rand.Int64N))
	r.retries++
}

func (r *receiver) logged(taken int, u *unit) {
	r.underway = append(r.underway, u)
	for _, m := range r.queue[:taken] {
		u.bytes += m.size()
		if m.receipt != nil {
			u.receipts = append(u.receipts, m.receipt)
		}
	}
	r.underwayBytes += u.bytes
	r.queueBytes -= u.bytes
	clear(r.queue[:taken])
	r.queue = r.queue[taken:]
	r.src.waiting.Store(int64(r.queueBytes))
	r.retries = 0
	if r.full {
		r.full = false
		r.src.logFull(false)
		r.src.deps.Log.Info("the input log takes messages again")
	}
}

// logSome hands the first messages to the log as one batch, or the first alone as a dead letter.
func (r *receiver) logSome() error {
	var batch dataflow.IngestBatch
	withoutID := 0
	r.payload, r.ids = r.payload[:0], r.ids[:0]
	for _, m := range r.queue {
		rec, id, err := r.src.cfg.record(m)
		if err != nil {
			if batch.Count == 0 {
				return r.logDead(m, err.Error())
			}
			break
		}
		r.payload = frame.AppendRecord(r.payload, rec)
		if r.src.cfg.ID != "" {
			r.ids = dataflow.AppendID(r.ids, id)
			if id == "" {
				withoutID++
			}
		}
		if batch.Count++; len(r.payload) >= batchBytes {
			break
		}
	}
	batch.Payload, batch.IDs = r.payload, r.ids
	u := &unit{records: batch.Count}
	if err := r.in.Append(batch, r.whenDurable(u)); err != nil {
		return fmt.Errorf("logging %d messages: %w", batch.Count, err)
	}
	r.src.withoutID.Add(uint64(withoutID))
	r.logged(batch.Count, u)
	return nil
}

func (r *receiver) logDead(m message, reason string) error {
	u := &unit{}
	rec, reason := deadLetter(m, reason)
	if err := r.in.DeadLetter(rec, reason, r.whenDurable(u)); err != nil {
		return fmt.Errorf("keeping a dead letter: %w", err)
	}
	r.src.dead.Add(1)
	r.logged(1, u)
	return nil
}

// whenDurable may be called before the log's call returns, from any goroutine.
func (r *receiver) whenDurable(u *unit) func() {
	return func() {
		u.done.Store(true)
		signal(r.durable)
	}
}

// giveUp drops what is not logged: QoS 1 and 2 come again, QoS 0 is lost and counted.
func (r *receiver) giveUp() {
	r.filterQueue(func(m message) bool {
		if m.receipt == nil {
			r.src.shed.Add(1)
		}
		return false
	})
}

// stop waits briefly for what is under way, acknowledges it, and disconnects. After an error of the
// log there is nothing to wait for.
func (r *receiver) stop(cause error) {
	r.settle()
	deadline := time.NewTimer(stopWait)
	defer deadline.Stop()
	for waiting := cause == nil; waiting && len(r.underway) > 0; {
		select {
		case <-r.durable:
			r.settle()
		case <-deadline.C:
			waiting = false
		}
	}
	r.giveUp()
	if r.sess == nil {
		return
	}
	r.sess.finish()
	deadline.Reset(disconnectWait)
	select {
	case <-r.sess.ended:
	case <-deadline.C:
	}
}
