package dataflow

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// hop is a channel from end to end: an outlet, a stream that refuses, loses and damages, and an
// inbox; both ends crash and go on from their snapshots. Everything random comes from the property.
type hop struct {
	t    *rapid.T
	s    sequence
	tick uint64

	out      *outlet
	sent     []senderPart
	reserved abs.Seq
	pending  []*outFrame // published, not yet with the stream
	dones    []func()    // outcomes on their way back

	in       *inbox
	received receiverPart

	stream []streamFrame
	last   uint64 // sequence of the stream's last frame ever
	cursor int
	target uint64 // reading is over when the frame of that sequence has been delivered
}

type senderPart struct {
	sent abs.Seq
	sum  frame.Sum
}

type receiverPart struct {
	next abs.Seq
	sum  frame.Sum
}

type streamFrame struct {
	seq   uint64
	frame []byte
}

// Bounds of the hop: small, so that they are met. unsentMost stands for the point where a task stops.
const (
	hopWindow  = 300
	unsentMost = 500
)

func newHop(t *rapid.T) *hop {
	size := rapid.IntRange(1, 40).Draw(t, "size")
	marks := rapid.SliceOfNDistinct(rapid.IntRange(1, size), 0, 4, rapid.ID[int]).Draw(t, "marks")
	h := &hop{t: t, s: newSequence(size, marks...), sent: []senderPart{{}}, received: receiverPart{next: 1}}
	h.startSender()
	h.startReceiver()
	return h
}

func (h *hop) draw(n int, what string) int { return rapid.IntRange(0, n-1).Draw(h.t, what) }

func (h *hop) total() abs.Seq { return abs.Seq(len(h.s.items)) }

func (h *hop) startSender() {
	h.out = newOutlet(h.s.gen, OutChannel{Channel: Channel{ID: "x>y", Index: 4}, Incarnation: h.s.inc}, &framePool{})
	h.out.reserved, h.out.reserving, h.out.free = h.reserved, h.reserved, h.reserved
	h.restoreSender(h.sent[len(h.sent)-1])
}

func (h *hop) restoreSender(p senderPart) { h.out.seek(p.sent, p.sum, 0) }

func (h *hop) startReceiver() {
	h.in = inboxOf(h.s, "x>y")
	h.channel().seek(h.received.next, h.received.sum)
	h.reread()
}

func (h *hop) reread() {
	h.in.restart()
	h.cursor, h.target = 0, h.last
}

func (h *hop) channel() *inChannel { return h.in.chans[0] }

// work makes up to n items in one step, unless too much waits.
func (h *hop) work(n int) {
	if h.out.unsent <= unsentMost {
		h.s.make(h.out, min(h.total(), h.out.next-1+abs.Seq(n)), 1)
	}
	h.check(h.out.differs())
}

func (h *hop) check(err error) {
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *hop) send() {
	if upto, due := h.out.reserve(); due {
		h.reserved = upto
		h.out.reserveUpto(upto, 1)
	}
	for f := h.out.sendable(1, h.tick); f != nil; f = h.out.sendable(1, h.tick) {
		h.out.sending(f, h.tick)
		h.pending = append(h.pending, f)
	}
}

// Outcomes of a publish.
const (
	taken = iota
	takenUnknown
	refused
	damaged
	outcomes
)

func (h *hop) publish(outcome int) {
	f := h.pending[0]
	h.pending = h.pending[1:]
	if outcome != refused {
		b := bytes.Clone(f.buf)
		if outcome == damaged {
			b[h.draw(len(b), "byte")] ^= 1
		}
		h.last++
		h.stream = append(h.stream, streamFrame{h.last, b})
	}
	var err error
	if outcome == refused || outcome == takenUnknown {
		err = errors.New("refused")
	}
	out := h.out
	h.dones = append(h.dones, func() { out.done(f, err, h.tick) })
}

func (h *hop) deliver() {
	if h.cursor < len(h.stream) {
		f := h.stream[h.cursor]
		h.cursor++
		h.check(h.in.accept(Delivery{Channel: 4, Seq: f.seq, Frame: bytes.Clone(f.frame)}))
	}
	if h.in.reading && (h.cursor == len(h.stream) || h.stream[h.cursor].seq > h.target) {
		h.in.drained()
	}
}

// take consumes up to n items and compares them with what they must be.
func (h *hop) take(n int) {
	c := h.in.pick(open)
	if c == nil {
		return
	}
	first := c.next
	last := h.s.run(first, min(c.tail-1, first+abs.Seq(n)-1))
	_, payload := h.in.take(c, int(last-first+1))
	mustBytes(h.t, "taken", payload, h.s.bytes(first, last))
	mustEqual(h.t, "next", c.next, last+1)
}

func (h *hop) grant() {
	g := h.channel().grant()
	g.Window = hopWindow
	again, err := h.out.grant(g, h.tick)
	h.check(err)
	h.check(h.out.differs())
	if !again {
		return
	}
	for i := len(h.sent) - 1; i >= 0; i-- {
		if h.sent[i].sent < g.Next {
			h.restoreSender(h.sent[i])
			return
		}
	}
	h.t.Fatalf("asked for %d, before the first snapshot", g.Next)
}

func (h *hop) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"work": func(*rapid.T) { h.work(1 + h.draw(5, "items")) },
		"send": func(*rapid.T) { h.send() },
		"publish": func(*rapid.T) {
			if len(h.pending) > 0 {
				h.publish(h.draw(outcomes, "outcome"))
			}
		},
		"publish all": func(*rapid.T) {
			for len(h.pending) > 0 {
				h.publish(taken)
			}
		},
		"outcome": func(*rapid.T) {
			if n := len(h.dones); n > 0 {
				i := h.draw(n, "which")
				h.dones[i]()
				h.dones = append(h.dones[:i:i], h.dones[i+1:]...)
			}
		},
		"tick":    func(*rapid.T) { h.tick += uint64(h.draw(8, "ticks")) },
		"deliver": func(*rapid.T) { h.deliver() },
		"take":    func(*rapid.T) { h.take(1 + h.draw(4, "items")) },
		"grant":   func(*rapid.T) { h.grant() },
		"snapshot of the sender": func(*rapid.T) {
			if n := h.out.next - 1; n > h.sent[len(h.sent)-1].sent && h.out.acked >= n {
				h.sent = append(h.sent, senderPart{n, h.out.sum})
			}
		},
		"snapshot of the receiver": func(*rapid.T) {
			if c := h.channel(); c.next >= h.received.next {
				h.received = receiverPart{c.next, c.sum}
			}
		},
		"purge": func(*rapid.T) {
			seq := h.channel().purgeable(h.received.next - 1)
			n := 0
			for n < h.cursor && h.stream[n].seq <= seq {
				n++
			}
			h.stream, h.cursor = h.stream[n:], h.cursor-n
		},
		"sender crashes": func(*rapid.T) {
			for len(h.pending) > 0 && h.draw(2, "still published") == 1 {
				h.publish(taken)
			}
			h.pending, h.dones = nil, nil
			h.startSender()
		},
		"receiver crashes":  func(*rapid.T) { h.startReceiver() },
		"stream read again": func(*rapid.T) { h.reread() },
		"stream lost": func(*rapid.T) {
			h.stream, h.last = nil, h.last+10
			h.reread()
		},
		"": func(*rapid.T) {
			o := h.out
			unsent, under := 0, 0
			for i, f := range o.window {
				if i < o.sent {
					under += len(f.buf)
				} else {
					unsent += len(f.buf)
				}
			}
			mustEqual(h.t, "bytes under way", o.under, under)
			mustEqual(h.t, "bytes unsent", o.unsent, unsent)
			mustEqual(h.t, "running checksum", o.sum, h.s.sum(o.next))
		},
	}
}

// settle lets everything work, and wants all items to arrive.
func (h *hop) settle() {
	const rounds = 500
	for range rounds {
		if h.channel().next > h.total() && h.out.next > h.total() {
			return
		}
		h.tick++
		h.work(3)
		h.send()
		for len(h.pending) > 0 {
			h.publish(taken)
		}
		for _, done := range h.dones {
			done()
		}
		h.dones = nil
		for h.in.reading || h.cursor < len(h.stream) {
			h.deliver()
		}
		for h.in.pick(open) != nil {
			h.take(len(h.s.items))
		}
		h.grant()
	}
	h.t.Fatalf("stuck: the receiver is at %d, the sender at %d of %d; inbox %+v, outlet window %d, sent %d",
		h.channel().next, h.out.next, h.total(), h.channel(), len(h.out.window), h.out.sent)
}

// TestChannelProperty: whatever is refused, lost, damaged, repeated and restarted, the receiver takes
// exactly the items in order, and gets all of them once things work again.
func TestChannelProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHop(t)
		t.Repeat(h.actions())
		h.settle()
	})
}
