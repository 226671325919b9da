package mqtt

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/template"
)

// publisher is one run of a sink. Its goroutine owns all of it but the kept callbacks, which only
// set a flag and signal.
//
// At QoS 2 an item goes through the stages waiting, sent, received, released, done. PUBLISH leaves an
// item only in waiting; what PUBREC was seen for never goes back there, whatever the broker says of its
// session. PUBREL leaves it only when the task's log holds durably that PUBREC came: so a restart
// never publishes what a PUBREL may have been sent for.
type publisher struct {
	sink *Sink
	ev   dataflow.SinkEvents

	sess    *session  // nil without a connection
	flight  []*flight // taken from the window and not handed over, in order
	sent    int       // of those, published in this session
	started bool      // the first item of the run has come
	scratch bool      // nothing of an earlier life is under way: the session must be without a past

	received abs.Seq // QoS 2: reported to the task as received by the broker

	taken []dataflow.SinkItem // reused
	topic []byte              // reused
	body  []byte              // reused
	kept  chan struct{}       // capacity 1: a dead letter is safe
}

// flight is an item on its way.
type flight struct {
	item      dataflow.SinkItem
	stage     stage
	once      bool        // it was published before, in any session, or may have been
	mine      bool        // it was published before by this sink
	doubted   bool        // counted as uncertain
	writtenAt uint64      // QoS 0: it is written when the session has written so many bytes
	kept      atomic.Bool // dead letters: safe
}

// stage is how far an item has come.
type stage uint8

const (
	stageWaiting  stage = iota // not published in this session
	stageSent                  // published
	stageReceived              // QoS 2: PUBREC came
	stageReleased              // QoS 2: PUBREL was sent in this session
	stageDone                  // confirmed
	stageDead                  // a dead letter, not known to be safe
)

// packetID follows from the item's number, so that what is published again after a lost connection
// or a restart has its identifier again.
func packetID(it dataflow.SinkItem) uint16 { return uint16((uint64(it.Number)-1)%65535) + 1 }

func (p *publisher) run(ctx context.Context, sessions <-chan *session) {
	p.sink.state.Store(uint32(SinkConnecting))
	for {
		var packets <-chan []packet
		var ended, wrote <-chan struct{}
		if p.sess != nil {
			packets, ended, wrote = p.sess.in, p.sess.ended, p.sess.wrote
		}
		select {
		case <-ctx.Done():
			return
		case s := <-sessions:
			p.opened(s)
		case <-ended:
			p.closed()
		case got := <-packets:
			p.confirm(got)
		case <-wrote:
			p.confirmWritten()
		case <-p.kept:
		case <-p.sink.logged:
		case <-p.sink.window.Wake():
		}
		p.take()
		p.settleSession()
		for more := true; more; more = p.hand() { // what is handed over may free an identifier
			p.publish()
			p.report()
			p.release()
		}
		p.count()
	}
}

func (p *publisher) closed() {
	p.sess = nil
	p.sink.state.Store(uint32(SinkConnecting))
}

// opened starts again from the oldest item that is not handed over. What the broker has confirmed
// stays confirmed; with its session kept (QoS 2) so does what it has received.
func (p *publisher) opened(s *session) {
	p.sess, p.sent = s, 0
	for _, f := range p.flight {
		p.doubt(f)
		switch {
		case f.stage == stageSent, f.stage == stageReceived && !s.present && f.item.Number > p.received:
			f.stage = stageWaiting
		case f.stage == stageReleased:
			f.stage = stageReceived
		}
	}
	p.sink.state.Store(uint32(SinkDelivering))
	p.sink.link.useful("delivering")
}

// doubt counts an item of which a broker that has lost the session may or may not have passed on the
// message.
func (p *publisher) doubt(f *flight) {
	if p.sink.cfg.QoS < 2 || p.sess == nil || p.sess.present || f.doubted || !f.once || f.stage >= stageDone {
		return
	}
	f.doubted = true
	p.sink.uncertain.Add(1)
}

func (p *publisher) take() {
	p.taken = p.sink.window.Take(p.taken[:0])
	for _, it := range p.taken {
		f := &flight{item: it}
		if p.sink.cfg.QoS == 2 {
			if !p.started {
				p.started, p.scratch = true, it.Past == dataflow.PastNone
			}
			switch it.Past {
			case dataflow.PastSent:
				f.once = true
			case dataflow.PastReceived:
				f.once, f.stage = true, stageReceived
				p.received = max(p.received, it.Number)
			}
		}
		p.doubt(f)
		p.flight = append(p.flight, f)
	}
	clear(p.taken)
}

// settleSession ends a session in which the broker may keep identifiers of items that nobody knows of
// any more: of a job of this name that was deleted, or a log that was lost. One of them would swallow
// a new item's message. If the first item of a run was never sent nothing of an earlier life is under way.
func (p *publisher) settleSession() {
	if !p.scratch || p.sess == nil {
		return
	}
	p.scratch = false
	if p.sess.present {
		p.sess.fail(errRenew)
		p.closed()
	}
}

// publish appends what is not published in this session, in order. It stops before an item whose
// identifier is in use by an older one.
func (p *publisher) publish() {
	if p.sess == nil || p.sent == len(p.flight) {
		return
	}
	for p.sent < len(p.flight) && p.free(p.flight[p.sent]) {
		p.send(p.flight[p.sent])
		p.sent++
	}
}

// free says that there may be one more in flight, and that the item's number is near enough to the
// oldest's for its identifier to be its own.
func (p *publisher) free(f *flight) bool {
	return p.sent < p.sink.cfg.InFlight && f.item.Number-p.flight[0].item.Number < 65535
}

func (p *publisher) send(f *flight) {
	if f.stage != stageWaiting {
		p.releaseOne(f)
		return
	}
	fields := template.Fields{Record: f.item.Record, Number: uint64(f.item.Number), Channel: f.item.Channel}
	if err := p.expand(fields); err != nil {
		p.deadLetter(f, err.Error())
		return
	}
	cfg := &p.sink.cfg
	dup := f.once && cfg.QoS == 2
	f.writtenAt = p.sess.send(func(dst []byte) []byte {
		return appendPublish(dst, cfg.QoS, cfg.Retain, dup, packetID(f.item), p.topic, p.body)
	})
	p.sink.published.Add(1)
	if f.mine {
		p.sink.repeated.Add(1)
	}
	f.stage, f.once, f.mine = stageSent, true, true
}

// expand fills in topic and body. An error says why the item cannot be published.
func (p *publisher) expand(f template.Fields) (err error) {
	if p.topic, err = p.sink.topic.Append(p.topic[:0], f); err != nil {
		return fmt.Errorf("topic %s: %w", p.sink.topic, err)
	}
	if err := checkTopic(p.topic); err != nil {
		return err
	}
	if p.body, err = p.sink.payload.Append(p.body[:0], f); err != nil {
		return fmt.Errorf("payload %s: %w", p.sink.payload, err)
	}
	return nil
}

func (p *publisher) deadLetter(f *flight, reason string) {
	p.sink.letter.Add(1)
	f.stage = stageDead
	if p.sink.deps.DeadLetter == nil {
		f.stage = stageDone
		return
	}
	p.sink.deps.DeadLetter(f.item, reason, func() {
		f.kept.Store(true)
		signal(p.kept)
	})
}

// confirm takes the broker's acknowledgements. One that answers nothing that was sent in this session
// changes nothing. At QoS 2 it is not answered either: its identifier may be of an item still to come
// that the broker has of an earlier life, and a PUBREL would make the broker take its repeat for new.
func (p *publisher) confirm(got []packet) {
	for i := range got {
		f := p.byID(got[i].id)
		switch got[i].kind {
		case typePuback:
			if f != nil && f.stage == stageSent && p.sink.cfg.QoS == 1 {
				f.stage = stageDone
			}
		case typePubrec:
			switch {
			case p.sink.cfg.QoS < 2: // of a former configuration; a PUBREC is answered (MQTT 3.1.1, 4.3.3)
				p.sess.send(func(dst []byte) []byte { return appendAck(dst, typePubrel, got[i].id) })
			case f != nil && f.stage == stageSent:
				f.stage = stageReceived
			case f != nil && f.stage == stageReleased:
				f.stage = stageReceived
			}
		case typePubcomp:
			if f != nil && f.stage == stageReleased {
				f.stage = stageDone
			}
		}
	}
}

// byID finds an item of those whose turn in this session has come. Confirmations come in order, so the
// search is short.
func (p *publisher) byID(id uint16) *flight {
	for _, f := range p.flight[:p.sent] {
		if packetID(f.item) == id {
			return f
		}
	}
	return nil
}

// report tells the task up to where the broker has everything: what comes before may be released once
// that is logged.
func (p *publisher) report() {
	if p.sink.cfg.QoS < 2 {
		return
	}
	upto := p.received
	for _, f := range p.flight[:p.sent] {
		if f.stage < stageReceived || f.stage == stageDead && !f.done() {
			break
		}
		upto = max(upto, f.item.Number)
	}
	if upto > p.received {
		p.received = upto
		p.ev.Received(upto)
	}
}

// release sends PUBREL for what was received, if a restart will know that it was.
func (p *publisher) release() {
	if p.sess == nil || p.sink.cfg.QoS < 2 {
		return
	}
	for _, f := range p.flight[:p.sent] {
		if !p.releaseOne(f) {
			return
		}
	}
}

// releaseOne is false if it is not the item's turn.
func (p *publisher) releaseOne(f *flight) bool {
	if uint64(f.item.Number) > p.sink.durable.Load() {
		return false
	}
	if f.stage == stageReceived {
		f.stage = stageReleased
		p.sess.send(func(dst []byte) []byte { return appendAck(dst, typePubrel, packetID(f.item)) })
	}
	return true
}

// confirmWritten is the confirmation of QoS 0.
func (p *publisher) confirmWritten() {
	if p.sink.cfg.QoS > 0 {
		return
	}
	written := p.sess.sentBytes()
	for _, f := range p.flight[:p.sent] {
		if f.stage == stageSent && f.writtenAt <= written {
			f.stage = stageDone
		}
	}
}

// hand reports the items at the front that are done, and says whether there were any.
func (p *publisher) hand() bool {
	n := 0
	for ; n < len(p.flight) && p.flight[n].done(); n++ {
	}
	if n == 0 {
		return false
	}
	last := p.flight[n-1].item.Number
	clear(p.flight[:n])
	p.flight = p.flight[n:]
	p.sent = max(0, p.sent-n)
	p.sink.handed.Add(uint64(n))
	p.ev.Handed(last)
	if p.sink.window.Done(n) {
		p.ev.Ready()
	}
	return true
}

// count notes for Status how many items the broker has not confirmed.
func (p *publisher) count() { p.sink.underWay.Store(int64(p.sent)) }

func (f *flight) done() bool { return f.stage == stageDone || f.stage == stageDead && f.kept.Load() }

// stop writes what is published and disconnects.
func (p *publisher) stop() {
	p.sink.underWay.Store(0)
	if p.sess == nil {
		return
	}
	p.sess.finish()
	deadline := time.NewTimer(disconnectWait)
	defer deadline.Stop()
	select {
	case <-p.sess.ended:
	case <-deadline.C:
	}
}
