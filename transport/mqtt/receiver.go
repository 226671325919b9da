package mqtt

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// errDeadLetter says that a dead letter could not be kept now.
var errDeadLetter = errors.New("keeping a dead letter")

// subscribeID is the packet identifier of SUBSCRIBE, the only packet a source sends that needs one.
const subscribeID = 1

// receiver is one run of a source. Its goroutine owns all of it but the durable callbacks, which
// only set a flag and signal.
type receiver struct {
	src *Source
	in  dataflow.Ingest

	sess *session            // nil without a connection
	open map[uint16]*receipt // by packet identifier. QoS 1: not acknowledged; QoS 2: until its release is durable
	due  []*receipt          // to be answered on this connection, in order of receipt

	queue      []message // received, not logged; marks stand among them in their order
	queueBytes int

	marked    bool     // the log may hold packet identifiers
	forget    *receipt // their end is being logged: nothing is subscribed to before that is durable
	session   bool     // there has been a session at the broker, as far as the log knows
	foreign   bool     // the log's identifiers are those of another client's session
	retaining bool     // retained messages are taken: it is the first start
	sequence  sequence

	underway      []*unit // handed to the log, not known to be durable, in order
	underwayBytes int
	durable       chan struct{} // capacity 1: a unit became durable

	linger  alarm // messages have waited long enough
	retry   alarm // the log is full; try again
	suback  alarm // SUBACK is overdue
	settled alarm // retained messages have come, if there are any
	calm    alarm // nothing has waited for the full log for a while
	retries int   // attempts in a row that the log refused
	full    bool  // the log was full at the last attempt

	payload, ids []byte // of the batch in the making
	marks        []dataflow.Mark
	acks, hashed []byte
}

// receipt is what must be known of a message of QoS 1 or 2, or of a PUBREL, to answer it and to recognise
// it when it comes again.
type receipt struct {
	id      uint16
	qos     byte
	reply   byte     // type of the packet that answers it, once it is durable; 0: none
	hash    uint64   // of topic and payload
	sess    *session // on which it first came; nil: in an earlier process
	came    *session // on which it last came
	durable bool
	due     bool // is in receiver.due
	marked  bool // QoS 2: the identifier is in the log, or will be when the message is
	orphan  bool // the broker has lost the session: the message will not come again
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
		linger: newAlarm(), retry: newAlarm(), suback: newAlarm(), settled: newAlarm(), calm: newAlarm(),
		sequence: newSequence(s.cfg.Sequence),
	}
}

// restore takes up what the log knows of the session.
func (r *receiver) restore() {
	u := &unit{}
	known := r.in.Marks(r.whenDurable(u))
	r.session = known[markSession] == r.src.identity()
	r.foreign = known[markSession] != 0 && !r.session
	r.retaining = r.src.cfg.Retained == RetainedFirst && known[markRetained] == 0
	for key, value := range known {
		switch {
		case key <= maxPacketID:
			r.marked = true
			rc := &receipt{id: uint16(key), qos: 2, reply: typePubrec, hash: value, marked: true}
			u.receipts = append(u.receipts, rc)
			if !r.foreign {
				r.open[rc.id] = rc
			}
		case key >= markSequence:
			r.sequence.restore(key, value)
		}
	}
	r.underway = append(r.underway, u)
}

// run is the loop of the owner. It returns nil when ctx has ended.
func (r *receiver) run(ctx context.Context, sessions <-chan *session) error {
	r.src.enter(SourceConnecting)
	r.restore()
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
		case <-r.calm.timer.C: // all that waited is shed, and nobody knows how the log is now
			r.calm.stop()
			r.full = false
			r.src.logFull(false, "")
		case <-r.settled.timer.C:
			r.settled.stop()
			r.retaining = false
			r.note(dataflow.Mark{Key: markRetained, Value: 1}, nil)
			r.src.deps.Log.Info("the first start is over; retained messages are skipped from now on")
		}
		if err := r.flush(lingered); err != nil {
			return err
		}
		if r.full && len(r.queue) == 0 {
			r.calm.start(r.src.bounds.logRetry.max)
		} else if r.calm.set {
			r.calm.stop()
		}
	}
}

// opened starts with a new connection. What waits from the last one stays: if the broker has kept the
// session, identifiers tell what comes again.
func (r *receiver) opened(s *session) {
	r.sess, r.due = s, nil
	r.suback.stop()
	for _, rc := range r.open {
		rc.due = false
	}
	if !s.present && r.session {
		r.src.sessionsLost.Add(1)
		r.src.deps.Log.Warn("the broker has lost the session; what it had not delivered is gone, and what it delivers again counts as new")
	}
	if !s.present || r.foreign {
		r.foreign = false
		r.newSession()
	}
	r.src.enter(SourceSubscribing)
	if r.forget == nil {
		r.subscribe()
	}
}

// newSession forgets the packet identifiers of another one. The log must have forgotten them before the
// new session can have messages, which it has once there is a subscription: else a restart would take
// one of those for what it remembers.
func (r *receiver) newSession() {
	for _, m := range r.queue {
		if m.receipt != nil {
			m.receipt.orphan = true
		}
	}
	clear(r.open)
	if r.marked || r.src.cfg.QoS == 2 && r.waitsForMark() {
		r.marked, r.forget = false, &receipt{}
		r.note(dataflow.Mark{Drop: true, Value: maxPacketID}, r.forget)
	}
}

// waitsForMark says whether identifiers wait to be logged.
func (r *receiver) waitsForMark() bool {
	return slices.ContainsFunc(r.queue, func(m message) bool { return m.receipt != nil && m.receipt.marked })
}

func (r *receiver) subscribe() {
	r.sess.subscribe(subscribeID, r.src.cfg.Topics, r.src.cfg.QoS)
	r.suback.start(subackWait)
}

// note has a mark logged in its place among the messages.
func (r *receiver) note(m dataflow.Mark, rc *receipt) {
	r.enqueue(message{mark: m, isMark: true, receipt: rc})
}

func (r *receiver) enqueue(m message) {
	r.queue = append(r.queue, m)
	r.queueBytes += m.size()
}

func (r *receiver) lost() {
	r.sess, r.due = nil, nil
	r.suback.stop()
	r.settled.stop()
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
			rc.came = r.sess
			r.mustAck(rc)
			return
		}
		r.suspect(p, hash)
		m.receipt = &receipt{id: p.id, qos: p.qos, reply: typePuback, hash: hash, sess: r.sess, came: r.sess}
		if p.qos == 2 {
			m.receipt.reply, m.receipt.marked = typePubrec, true
		}
		r.open[p.id] = m.receipt
		r.mustAck(m.receipt)
	}
	if p.retain && r.skips() {
		r.src.skipped.Add(1)
		r.drop(m)
		return
	}
	r.enqueue(m)
}

// skips says whether a retained message is to be left out.
func (r *receiver) skips() bool {
	switch {
	case r.retaining:
		if r.settled.set { // there may be more
			r.settled.stop()
			r.settled.start(retainedWait)
		}
		return false
	case r.src.cfg.Retained == RetainedFirst:
		return true
	}
	return r.src.cfg.Retained == RetainedSkip
}

// drop lets a message be acknowledged though it is not logged: that is what the job asks for.
func (r *receiver) drop(m message) {
	if m.receipt != nil {
		m.receipt.durable, m.receipt.marked = true, false
	}
}

// repeats says whether p is the message of rc again. Until PUBACK, or PUBREL, an identifier names one
// message (MQTT 3.1.1, 2.3.1 and 4.3), and one that comes again on another connection has DUP set
// (3.3.1.1). That topic and payload are compared, too, keeps a broker that has lost the session without
// saying so from losing messages as well.
func (r *receiver) repeats(rc *receipt, p *packet, hash uint64) bool {
	return rc.reply != typePubcomp && rc.qos == p.qos && rc.hash == hash && (rc.sess == r.sess || p.dup)
}

// suspect counts a message of QoS 2 that looks like one that came on another connection under another identifier,
// and was not released. By the protocol it is a new one. A broker that has lost its identifiers sends such, and the
// source names no id by which they could be told.
func (r *receiver) suspect(p *packet, hash uint64) {
	if p.qos < 2 || !p.dup || r.src.cfg.ID != "" {
		return
	}
	for _, rc := range r.open {
		if rc.id == p.id || rc.qos != 2 || rc.reply == typePubcomp || rc.hash != hash || rc.came == r.sess {
			continue
		}
		if r.src.renamed.Add(1) == 1 {
			r.src.deps.Log.Warn("the broker seems to send messages again under other packet identifiers, as the one inside an agent does "+
				"after its restart; they count as new ones: name an id", "topic", p.topic, "identifier", p.id, "before", rc.id)
		}
		return
	}
}

func (r *receiver) hash(p *packet) uint64 {
	r.hashed = append(append(append(r.hashed[:0], p.topic...), 0), p.payload...)
	r.hashed = binary.AppendUvarint(r.hashed, uint64(p.lost))
	return xxh3.Hash(r.hashed)
}

func (r *receiver) mustAck(rc *receipt) {
	if !rc.due {
		rc.due = true
		r.due = append(r.due, rc)
	}
}

// release answers PUBREL once the log has forgotten the identifier, which the broker may use for another
// message as soon as it has the answer. One that is not known is answered at once: the answer of before
// was lost (MQTT 3.1.1, 4.3.3).
func (r *receiver) release(id uint16) {
	rc := r.open[id]
	switch {
	case rc == nil || rc.qos != 2:
		r.sess.send(func(dst []byte) []byte { return appendAck(dst, typePubcomp, id) })
	case rc.reply == typePubcomp:
		r.mustAck(rc)
	case !rc.marked:
		delete(r.open, id)
		r.sess.send(func(dst []byte) []byte { return appendAck(dst, typePubcomp, id) })
	default:
		released := &receipt{id: id, qos: 2, reply: typePubcomp}
		r.open[id] = released
		r.mustAck(released)
		r.note(dataflow.Mark{Drop: true, Key: uint64(id), Value: uint64(id)}, released)
	}
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
	lower := ""
	for i, code := range p.codes {
		switch {
		case code > 2:
			r.sess.fail(fmt.Errorf("the broker refuses the subscription to %q; check its access rules", cfg.Topics[i]))
			return
		case code < cfg.QoS:
			r.src.deps.Log.Warn("the broker grants a lower QoS than asked for", "topic", cfg.Topics[i], "asked", cfg.QoS, "granted", code)
			lower = cmp.Or(lower, fmt.Sprintf("the broker grants QoS %d where the job asks for %d, first for %q: messages may be lost, or come twice; let it grant more, or ask for less", code, cfg.QoS, cfg.Topics[i]))
		}
	}
	r.src.lower.Store(&lower)
	if !r.session {
		r.session = true
		r.note(dataflow.Mark{Key: markSession, Value: r.src.identity()}, nil)
	}
	if r.retaining {
		r.settled.start(retainedWait)
	}
	r.src.enter(SourceReceiving)
	r.src.link.useful("receiving")
}

// shed gives up the oldest messages of QoS 0, or of any if the job says so and the log is full, until an
// eighth of the queue's room is free, so that not every message costs a walk through the queue.
func (r *receiver) shed() {
	goal := r.src.bounds.queue / 8 * 7
	any := r.full && r.src.cfg.ShedOldest
	r.filterQueue(func(m message) bool {
		if m.isMark || m.receipt != nil && !any || r.queueBytes <= goal {
			return true
		}
		r.shedOne(m)
		return false
	})
	r.ack()
}

// shedWaiting gives up the messages for which the log had no room at the last attempt either: the broker
// sends no newer ones while they are not acknowledged.
func (r *receiver) shedWaiting() {
	r.filterQueue(func(m message) bool {
		if m.isMark || !m.refused {
			return true
		}
		r.shedOne(m)
		return false
	})
	for i := range r.queue {
		r.queue[i].refused = true
	}
	r.ack()
}

func (r *receiver) shedOne(m message) {
	r.src.shed.Add(1)
	r.drop(m)
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
			if rc.reply == typePubcomp && r.open[rc.id] == rc {
				delete(r.open, rc.id)
			}
		}
		r.underway[n] = nil
	}
	r.underway = r.underway[n:]
	r.ack()
	if r.forget != nil && r.forget.durable {
		r.forget = nil
		if r.sess != nil {
			r.subscribe()
		}
	}
}

// ack acknowledges, in order of receipt (MQTT 3.1.1, 4.6), up to the first message that is not durable.
func (r *receiver) ack() {
	if r.sess == nil {
		return
	}
	n, acked := 0, uint64(0)
	r.acks = r.acks[:0]
	for ; n < len(r.due) && r.due[n].durable; n++ {
		rc := r.due[n]
		rc.due = false
		r.acks = appendAck(r.acks, rc.reply, rc.id)
		if rc.reply != typePubcomp {
			acked++
		}
		if rc.reply == typePuback && r.open[rc.id] == rc {
			delete(r.open, rc.id)
		}
		r.due[n] = nil
	}
	if n == 0 {
		return
	}
	r.due = r.due[n:]
	r.sess.send(func(dst []byte) []byte { return append(dst, r.acks...) })
	r.src.acked.Add(acked)
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
			r.waitForLog(err)
		case errors.Is(err, errDeadLetter): // the disk is full there
			r.waitForLog(err)
		case errors.Is(err, dataflow.ErrClosed): // ctx ends soon, or the log opens again
			r.waitForLog(nil)
		case err != nil:
			return err
		}
	}
	r.linger.stop()
	return nil
}

// waitForLog leaves the messages unacknowledged where they are and sets the time to try again. Only
// a log without room is news: full says why.
func (r *receiver) waitForLog(full error) {
	if full != nil {
		r.src.logFull(true, full.Error())
	}
	if full != nil && !r.full {
		r.full = true
		r.src.deps.Log.Warn("the input log has no room; "+r.src.cfg.atLimit(), "error", full)
	}
	if full != nil && r.src.cfg.ShedOldest {
		r.shedWaiting()
		r.retry.start(r.src.bounds.logRetry.min)
		return
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
		r.src.logFull(false, "")
		r.src.deps.Log.Info("the input log takes messages again")
	}
}

// logSome hands the first messages and marks to the log as one batch, or the first alone as a dead letter.
func (r *receiver) logSome() error {
	var batch dataflow.IngestBatch
	withoutID, taken, marked := 0, 0, false
	r.payload, r.ids, r.marks = r.payload[:0], r.ids[:0], r.marks[:0]
	r.sequence.begin()
	for ; taken < len(r.queue) && len(r.payload) < batchBytes && len(r.marks) < maxMarks; taken++ {
		m := r.queue[taken]
		if m.isMark {
			r.marks = append(r.marks, m.mark)
			continue
		}
		rec, id, err := r.src.cfg.record(m)
		if err != nil {
			if taken == 0 {
				return r.logDead(m, err.Error())
			}
			break
		}
		if rc := m.receipt; rc != nil && rc.marked {
			marked = true
			r.marks = append(r.marks, dataflow.Mark{Key: uint64(rc.id), Value: rc.hash})
		}
		r.sequence.take(rec.Key, m.payload)
		r.payload = frame.AppendRecord(r.payload, rec)
		if r.src.cfg.ID != "" {
			r.ids = dataflow.AppendID(r.ids, id)
			if id == "" {
				withoutID++
			}
		}
		batch.Count++
	}
	r.marks = r.sequence.appendMarks(r.marks)
	batch.Payload, batch.IDs, batch.Marks = r.payload, r.ids, r.marks
	u := &unit{records: batch.Count}
	if err := r.in.Append(batch, r.whenDurable(u)); err != nil {
		return fmt.Errorf("logging %d messages: %w", batch.Count, err)
	}
	r.src.withoutID.Add(uint64(withoutID))
	r.src.noteGaps(r.sequence.commit())
	r.marked = r.marked || marked
	r.logged(taken, u)
	return nil
}

func (r *receiver) logDead(m message, reason string) error {
	u := &unit{}
	rec, reason := deadLetter(m, reason)
	if err := r.in.DeadLetter(rec, reason, r.whenDurable(u)); err != nil {
		return fmt.Errorf("%w: %w", errDeadLetter, err)
	}
	r.src.dead.Add(1)
	if m.receipt != nil {
		m.receipt.marked = false
	}
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

// giveUp drops what is not logged: QoS 1 and 2 come again; QoS 0, and what the broker has lost with the
// session, is lost and counted.
func (r *receiver) giveUp() {
	r.filterQueue(func(m message) bool {
		if !m.isMark && (m.receipt == nil || m.receipt.orphan) {
			r.src.shed.Add(1)
		}
		return false
	})
}

// stop waits briefly for what is under way, acknowledges it, and disconnects. After an error of the
// log there is nothing to wait for.
func (r *receiver) stop(cause error) {
	r.settle()
	deadline := time.NewTimer(r.src.bounds.stop)
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
