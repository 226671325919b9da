package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// inputQueue is how many deliveries may be between the stream and the task.
const inputQueue = 8

var (
	errFull        = errors.New("the stream is full")
	errUnavailable = errors.New("no answer from the stream")
)

// stream is a task's input stream. It is nobody's disk: it may lose its tail or all of it.
type stream struct {
	w      *world
	t      *plannedTask
	id     int // grows when it is made anew
	exists bool
	last   uint64 // sequence
	frames []stored
	held   map[int]int     // frames by channel
	lost   map[int]abs.Seq // highest number that a fault has taken, by channel
}

type stored struct {
	seq         uint64
	channel     int
	first, last abs.Seq
	data        []byte
}

func newStream(w *world, t *plannedTask) *stream {
	return &stream{w: w, t: t, held: map[int]int{}, lost: map[int]abs.Seq{}}
}

func (s *stream) String() string {
	text := fmt.Sprintf("%d.%d(", s.id, s.last)
	for _, f := range s.frames {
		text += fmt.Sprintf(" %d:%d–%d", f.channel, f.first, f.last)
	}
	return text + ")"
}

// ensure makes the stream if it is not there.
func (s *stream) ensure() {
	if !s.exists {
		s.id++
		s.exists = true
	}
}

// put appends a frame.
func (s *stream) put(channel int, data []byte) error {
	if !s.exists || s.w.profile.refusals > 0 && s.w.rng.Float64() < s.w.profile.refusals {
		return errUnavailable
	}
	if s.held[channel] >= s.w.profile.streamFrames {
		return errFull
	}
	h, _, err := frame.Decode(data)
	if err != nil {
		s.w.fail("channel %d: %v", channel, err)
	}
	s.last++
	s.held[channel]++
	s.frames = append(s.frames, stored{s.last, channel, abs.Seq(h.First), abs.Seq(h.Last()), data})
	if in := s.reader(); in != nil {
		in.pump()
	}
	return nil
}

// has says whether a number of a channel is in the stream.
func (s *stream) has(channel int, n abs.Seq) bool {
	return slices.ContainsFunc(s.frames, func(f stored) bool { return f.channel == channel && f.first <= n && n <= f.last })
}

// stopsAt says whether one reading of the stream, by a receiver that may have any lower number already, ends before a
// number: it is not there, or only before lower ones, which were sent again by a sender that ended in the midst of it.
func (s *stream) stopsAt(channel int, n abs.Seq) bool {
	read := func(from abs.Seq) abs.Seq {
		for _, f := range s.frames {
			if f.channel == channel && f.first <= from && from <= f.last {
				from = f.last + 1
			}
		}
		return from
	}
	return slices.ContainsFunc(s.frames, func(f stored) bool { return f.channel == channel && f.first < n && read(f.first) == n })
}

// reader is the input that reads the stream, if its agent runs.
func (s *stream) reader() *input {
	if r := s.w.agent(s.t.agent).runner(s.t); r != nil && r.run != nil {
		return r.run.in
	}
	return nil
}

// loseTail loses all frames beyond the first n.
func (s *stream) loseTail(n int) {
	s.lose(s.frames[n:])
	s.frames = s.frames[:n]
	s.last = 0
	if n > 0 {
		s.last = s.frames[n-1].seq
	}
	s.interrupt()
}

// loseChannel loses all frames of a channel.
func (s *stream) loseChannel(channel int) {
	var lost, kept []stored
	for _, f := range s.frames {
		if f.channel == channel {
			lost = append(lost, f)
		} else {
			kept = append(kept, f)
		}
	}
	s.lose(lost)
	s.frames = kept
	s.interrupt()
}

// empty loses the stream. A new one begins above the last one's sequences.
func (s *stream) empty() {
	s.lose(s.frames)
	s.frames = nil
	s.exists = false
	s.last += 1000
	s.interrupt()
}

func (s *stream) lose(frames []stored) {
	for _, f := range frames {
		s.lost[f.channel] = max(s.lost[f.channel], f.last)
		s.held[f.channel]--
	}
}

func (s *stream) interrupt() {
	if in := s.reader(); in != nil {
		in.gone = true
		in.pump()
	}
}

func (s *stream) purge(channel int, upto uint64) {
	kept := s.frames[:0]
	for _, f := range s.frames {
		if !s.w.rules.purged(s, f, channel, upto) {
			kept = append(kept, f)
		} else {
			s.held[f.channel]--
		}
	}
	s.frames = kept
}

// input is a task's reading of its stream, for one run of the task.
type input struct {
	run     *taskRun
	s       *stream
	id      int    // identity of what is read, 0 before the first reading
	at      uint64 // last sequence delivered in this reading
	seen    uint64 // highest sequence delivered of this stream
	target  uint64 // the stream's last sequence when the reading began
	open    bool
	drained bool
	gone    bool
	queue   []dataflow.Delivery
	pumping bool
	taking  bool
	tails   map[int]tail
}

func (in *input) Deliveries() <-chan dataflow.Delivery { return nil }
func (in *input) Asked() <-chan struct{}               { return nil }
func (in *input) Close()                               {}

func (in *input) Reread() {
	in.queue, in.open, in.at, in.drained = nil, false, 0, false
	in.pump()
}

// pump reads on after a while.
func (in *input) pump() {
	if in.pumping || in.run.agent().cut {
		return
	}
	in.pumping = true
	in.run.after(in.s.w.some(in.s.w.profile.link), func() {
		in.pumping = false
		if !in.run.agent().cut && len(in.queue) < inputQueue && in.read() {
			in.pump()
		}
	})
}

// read takes one thing from the stream; false if there is nothing now.
func (in *input) read() bool {
	if !in.open || in.gone {
		in.begin()
		return true
	}
	frames := in.s.frames
	i := sort.Search(len(frames), func(i int) bool { return frames[i].seq > in.at })
	if i < len(frames) && (in.drained || frames[i].seq <= in.target) {
		f := frames[i]
		in.at, in.seen = f.seq, f.seq
		in.push(dataflow.Delivery{Channel: f.channel, Seq: f.seq, Frame: bytes.Clone(f.data)})
		return true
	}
	if !in.drained {
		in.drained = true
		in.push(dataflow.Delivery{Drained: true})
		return true
	}
	return false
}

// begin opens the stream, from its beginning if it is not as it was left.
func (in *input) begin() {
	in.s.ensure()
	if in.id != 0 && (in.gone || in.id != in.s.id || in.s.last < in.at) {
		in.at, in.seen, in.drained = 0, 0, false
		in.push(dataflow.Delivery{Reset: true})
	}
	in.id, in.gone, in.open, in.target = in.s.id, false, true, in.s.last
}

func (in *input) push(d dataflow.Delivery) {
	in.queue = append(in.queue, d)
	in.take()
}

// take gives the task what is queued, one after the other.
func (in *input) take() {
	if in.taking || len(in.queue) == 0 {
		return
	}
	in.taking = true
	in.run.after(in.s.w.some(100*time.Microsecond), func() {
		in.taking = false
		if len(in.queue) == 0 {
			return // a reread has dropped it
		}
		d := in.queue[0]
		in.queue = in.queue[1:]
		in.traceDelivery(d)
		in.run.try(in.run.task.Deliver(in.s.w.rules.deliver(in, d)))
		in.run.wake()
		in.take()
		in.pump()
	})
}

func (in *input) traceDelivery(d dataflow.Delivery) {
	if in.s.w.tracer == nil {
		return
	}
	switch {
	case d.Reset, d.Drained:
		in.s.w.trace("%s: reset %v drained %v", in.s.t.id, d.Reset, d.Drained)
	default:
		h, _, _ := frame.Decode(d.Frame)
		in.s.w.trace("%s: %s %d–%d of channel %s at %d", in.s.t.id, h.Kind, h.First, h.Last(), in.s.w.topo.channels[d.Channel].id, d.Seq)
	}
}

func (in *input) Purge(_ context.Context, channel int, seq uint64) error {
	if seq > in.seen {
		return fmt.Errorf("purge up to %d, delivered up to %d", seq, in.seen)
	}
	if in.run.agent().cut || !in.s.exists {
		return errUnavailable
	}
	in.s.purge(channel, seq)
	return nil
}

func (in *input) Grant(g dataflow.Grant) {
	w := in.s.w
	c := w.topo.channels[g.Channel]
	sender := w.agent(c.from.agent)
	if in.run.agent().cut || sender.cut || w.rng.Float64() < w.profile.grantLoss {
		return
	}
	if w.profile.window > 0 {
		g.Window = w.profile.window
	}
	at := max(w.now+w.some(w.profile.link), w.grants[g.Channel])
	w.grants[g.Channel] = at
	w.after(at-w.now, func() {
		if r := sender.runner(c.from); r != nil && r.run != nil && !sender.cut {
			r.run.out.grant(g)
		}
	})
}

// output is a task's sending side, for one run of the task.
type output struct {
	run      *taskRun
	newest   map[int]dataflow.Grant
	order    []int
	granting bool
	arrives  map[int]time.Duration   // when the last frame of a channel arrives
	sends    []*send                 // under way, oldest first
	sent     map[int]map[abs.Seq]int // how often, by channel and first number
	consumed map[int]abs.Seq         // next of the last grant, by channel
}

type send struct {
	c       *plannedChannel
	buf     []byte // the task's
	data    []byte // what it was when it was sent
	done    func(error)
	settled bool
}

func (o *output) Grants() <-chan dataflow.Grant { return nil }
func (o *output) Close()                        {}

// grant keeps the newest grant of each channel until the task takes it.
func (o *output) grant(g dataflow.Grant) {
	if _, waits := o.newest[g.Channel]; !waits {
		o.order = append(o.order, g.Channel)
	}
	o.newest[g.Channel] = g
	o.takeGrants()
}

func (o *output) takeGrants() {
	if o.granting || len(o.order) == 0 {
		return
	}
	o.granting = true
	o.run.after(o.run.w().some(100*time.Microsecond), func() {
		o.granting = false
		g := o.newest[o.order[0]]
		delete(o.newest, g.Channel)
		o.order = o.order[1:]
		if g.Rewind {
			o.run.w().trace("%s: channel %s is asked for from %d on", o.run.r.t.id, o.run.w().topo.channels[g.Channel].id, g.Next)
		}
		o.consumed[g.Channel] = g.Next
		o.run.try(o.run.w().oracle.serving(o.run, g, func() error { return o.run.task.TakeGrant(context.Background(), g) }))
		o.run.wake()
		o.takeGrants()
	})
}

func (o *output) Ask() {
	w := o.run.w()
	if o.run.agent().cut {
		return
	}
	for _, t := range w.topo.tasks {
		for _, c := range t.in {
			if c.from == o.run.r.t {
				w.after(w.some(w.profile.link), func() { askFor(w, t) })
				break
			}
		}
	}
}

func askFor(w *world, t *plannedTask) {
	a := w.agent(t.agent)
	if r := a.runner(t); !a.cut && r != nil && r.run != nil {
		r.run.task.Asked()
		r.run.wake()
	}
}

func (o *output) Send(channel int, buf []byte, done func(error)) {
	w := o.run.w()
	s := &send{c: w.topo.channels[channel], buf: buf, data: bytes.Clone(buf), done: done}
	w.oracle.sent(s)
	o.sends = append(o.sends, s)
	o.noteSent(s)
	at := max(w.now+w.some(w.profile.link), o.arrives[channel])
	o.arrives[channel] = at
	if w.rules.ackBeforeStored {
		o.settle(s, nil)
	}
	w.after(at-w.now, func() { o.arrive(s) })
}

// noteSent counts how often a frame was sent.
func (o *output) noteSent(s *send) {
	h, _, err := frame.Decode(s.data)
	if err != nil {
		return // the oracle has said so
	}
	if o.sent[s.c.index] == nil {
		o.sent[s.c.index] = map[abs.Seq]int{}
	}
	o.sent[s.c.index][abs.Seq(h.First)]++
}

// arrive brings a frame to its stream, also one that a process has sent before it ended.
func (o *output) arrive(s *send) {
	w := o.run.w()
	if s.settled && !w.rules.ackBeforeStored {
		return // lost on the way
	}
	if !o.run.dead && !s.settled && !bytes.Equal(s.buf, s.data) {
		w.fail("channel %s: a frame was changed before the stream had taken it", s.c.id)
	}
	if o.run.agent().cut {
		o.settleLater(s, errUnavailable, 3*time.Second)
		return
	}
	err := w.streams[s.c.to.id].put(s.c.index, s.data)
	if err == nil && w.rng.Float64() < w.profile.ackLoss {
		w.chaos.count("acknowledgement of a frame lost")
		o.settleLater(s, errUnavailable, 3*time.Second)
		return
	}
	if err == errFull {
		w.chaos.count("stream full")
	}
	o.settleLater(s, err, w.some(w.profile.link))
}

func (o *output) settleLater(s *send, err error, d time.Duration) {
	o.run.after(d, func() { o.settle(s, err) })
}

func (o *output) settle(s *send, err error) {
	if s.settled {
		return
	}
	s.settled = true
	if err != nil {
		o.run.w().oracle.refused(s, o)
	}
	o.sends = slices.DeleteFunc(o.sends, func(other *send) bool { return other == s })
	s.done(err)
	o.run.wake()
}

// abandon decides which frames of a run that has ended still arrive: of each channel the first ones.
func (o *output) abandon() {
	cut := map[int]bool{}
	for _, s := range o.sends {
		if cut[s.c.index] || o.run.w().one(4) {
			cut[s.c.index] = true
			s.settled = true
		}
	}
}
