package mqtt

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/template"
)

// publisher is one run of a sink. Its goroutine owns all of it but the kept callbacks, which only
// set a flag and signal.
type publisher struct {
	sink *Sink
	ev   dataflow.SinkEvents

	sess   *session  // nil without a connection
	flight []*flight // taken from the window and not handed over, in order
	sent   int       // of those, published in this session

	taken []dataflow.SinkItem // reused
	topic []byte              // reused
	body  []byte              // reused
	kept  chan struct{}       // capacity 1: a dead letter is safe
}

// flight is an item on its way.
type flight struct {
	item      dataflow.SinkItem
	stage     stage
	once      bool        // it was published before, in any session
	writtenAt uint64      // QoS 0: it is written when the session has written so many bytes
	kept      atomic.Bool // dead letters: safe
}

// stage is how far an item has come.
type stage uint8

const (
	stageWaiting  stage = iota // not published in this session
	stageSent                  // published
	stageReceived              // QoS 2: PUBREC came, PUBREL was sent
	stageDone                  // confirmed
	stageDead                  // a dead letter, not known to be safe
)

// packetID follows from the item's number, so that what is published again after a lost connection
// has its identifier again.
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
			p.sess = nil
			p.sink.state.Store(uint32(SinkConnecting))
		case got := <-packets:
			p.confirm(got)
		case <-wrote:
			p.confirmWritten()
		case <-p.kept:
		case <-p.sink.window.Wake():
		}
		p.take()
		for more := true; more; more = p.hand() { // what is handed over may free an identifier
			p.publish()
		}
	}
}

// opened starts again from the oldest item that is not handed over. What the broker has confirmed
// stays confirmed; with its session kept (QoS 2) so does what it has received.
func (p *publisher) opened(s *session) {
	p.sess, p.sent = s, 0
	for _, f := range p.flight {
		if f.stage == stageSent || f.stage == stageReceived && !s.present {
			f.stage = stageWaiting
		}
	}
	p.sink.state.Store(uint32(SinkDelivering))
	p.sink.link.useful("delivering")
}

func (p *publisher) take() {
	p.taken = p.sink.window.Take(p.taken[:0])
	for _, it := range p.taken {
		p.flight = append(p.flight, &flight{item: it})
	}
	clear(p.taken)
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

// free says that the item's number is near enough to the oldest's for its identifier to be its own.
// Numbers of marks leave gaps between the numbers of items.
func (p *publisher) free(f *flight) bool { return f.item.Number-p.flight[0].item.Number < 65535 }

func (p *publisher) send(f *flight) {
	switch f.stage {
	case stageDone, stageDead:
		return
	case stageReceived: // its PUBREL may be lost
		p.sess.send(func(dst []byte) []byte { return appendAck(dst, typePubrel, packetID(f.item)) })
		return
	}
	fields := template.Fields{Record: f.item.Record, Number: uint64(f.item.Number), Channel: f.item.Channel}
	p.topic = p.sink.topic.Append(p.topic[:0], fields)
	if err := checkTopic(p.topic); err != nil {
		p.deadLetter(f, err.Error())
		return
	}
	p.body = p.sink.payload.Append(p.body[:0], fields)
	cfg := &p.sink.cfg
	dup := f.once && cfg.QoS == 2
	f.writtenAt = p.sess.send(func(dst []byte) []byte {
		return appendPublish(dst, cfg.QoS, cfg.Retain, dup, packetID(f.item), p.topic, p.body)
	})
	p.sink.published.Add(1)
	if f.once {
		p.sink.repeated.Add(1)
	}
	f.stage, f.once = stageSent, true
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

// confirm takes the broker's acknowledgements. One for nothing under way is of a former process and
// changes nothing; a PUBREC is answered all the same (MQTT 3.1.1, 4.3.3).
func (p *publisher) confirm(got []packet) {
	for i := range got {
		f := p.byID(got[i].id)
		switch got[i].kind {
		case typePuback, typePubcomp:
			if f != nil && (f.stage == stageSent || f.stage == stageReceived) {
				f.stage = stageDone
			}
		case typePubrec:
			if f != nil && f.stage == stageSent {
				f.stage = stageReceived
			}
			p.sess.send(func(dst []byte) []byte { return appendAck(dst, typePubrel, got[i].id) })
		}
	}
}

// byID finds a published item. Confirmations come in order, so the search is short.
func (p *publisher) byID(id uint16) *flight {
	for _, f := range p.flight[:p.sent] {
		if packetID(f.item) == id {
			return f
		}
	}
	return nil
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

func (f *flight) done() bool { return f.stage == stageDone || f.stage == stageDead && f.kept.Load() }

// stop writes what is published and disconnects.
func (p *publisher) stop() {
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
