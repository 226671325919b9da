package dataflow

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// asideBudget bounds the frames that a task holds in memory, in bytes. Live, credit keeps a channel
// at grantWindow; replay may bring more, which is dropped and read again from the stream.
const asideBudget = 16 << 20

// behindLimit bounds the frames of a channel that stay in the stream although they were consumed. It
// is half of what a stream takes of a channel: were it full of them, the barrier of the checkpoint by
// which they can go could not come in.
const behindLimit = 1 << 15

// storedLimit bounds the same of all channels of a task together, in bytes: half of what a stream has to take.
const storedLimit = 128 << 20

// inReplay is how much of either a task that replays leaves in the stream: seven eighths of what that takes. The rest
// is for what comes while a purge is under way.
func inReplay(limit int) int { return limit / 4 * 7 }

// standTicks is for how long a replay may stand before its task makes as much room as others: ten seconds, far longer
// than a sender takes to go back.
const standTicks = 100

// idleGrants is how often a grant is repeated without anything having come before the sender is asked
// for what it may believe to be in the stream: about three seconds, longer than frames are under way.
const idleGrants = 6

// DiffError says that an item differs from what was sent or taken under the same number before (P9).
type DiffError struct {
	Channel abs.ChannelID
	Number  abs.Seq
	Detail  string
}

func (e *DiffError) Error() string {
	return fmt.Sprintf("replay differs on channel %s at number %d: %s", e.Channel, e.Number, e.Detail)
}

// inbox is the receiving end of a task's channels: it takes exactly the next number of each, drops
// what it has, and checks the running checksum as it does so. It is pure; the task owns it.
type inbox struct {
	budget   int // bounds bytes
	behind   int // bounds each channel's places that were consumed
	most     int // bounds stored, where what is consumed can go
	gen      abs.Generation
	chans    []*inChannel
	byIndex  map[int]*inChannel
	bytes    int    // held
	stored   int    // bytes of the frames in the stream, of all channels
	shut     bool   // a loop of the task is full
	reading  bool   // through what is in the stream already: what is missing may still come
	restarts uint64 // how often the stream was begun anew: sequences of another one mean nothing
	arrival  uint64 // counts accepted frames: live, tasks take them in this order

	stale, duplicates, jumps uint64
}

// inChannel is one channel's cursor. next and sum are what the task has consumed; tail and tailSum
// are what it has or holds.
type inChannel struct {
	InChannel
	box      *inbox
	next     abs.Seq
	sum      frame.Sum
	tail     abs.Seq
	tailSum  frame.Sum
	held     []heldFrame
	bytes    int         // held
	loop     []heldFrame // of a restored loop log, not yet taken: held whatever becomes of the stream
	places   []place     // frames in the stream, for purging
	stored   int         // their bytes
	owed     uint64      // sequence up to which a purge has failed
	gap      bool        // the number after those held is not to be had from the stream
	rewind   bool        // gap, and nothing else is left to do first: the sender must send from next again
	dropped  bool        // frames were dropped that are still in the stream: for want of memory, or before their turn
	beyond   abs.Seq     // the last number that came before its turn, in this reading of the stream
	searched abs.Seq     // tail when the stream was last found not to have it
	want     int         // items that replay takes next at once: they are held whatever the budget says
	ended    bool
	time     inTime
	refilled abs.Seq // next when the loop logs of parts were last looked through for it
	granted  abs.Seq // next of the last grant sent
	said     abs.Seq // next of the last grant made, and how often it was repeated
	repeats  int
}

type heldFrame struct {
	kind    frame.Kind
	first   abs.Seq
	count   int
	payload []byte
	after   frame.Sum
	arrival uint64
}

func (f heldFrame) last() abs.Seq { return f.first + abs.Seq(f.count) - 1 }

// place says which items a frame in the stream has, where it lies, and how large it is.
type place struct {
	seq   uint64
	last  abs.Seq
	count int32
	size  int32
}

func newInbox(gen abs.Generation, chans []InChannel) *inbox {
	in := &inbox{budget: asideBudget, behind: behindLimit, most: storedLimit, gen: gen, byIndex: map[int]*inChannel{}}
	for _, c := range chans {
		ic := &inChannel{InChannel: c, box: in, next: 1, tail: 1}
		in.chans = append(in.chans, ic)
		in.byIndex[c.Index] = ic
	}
	return in
}

// seek sets what the task has consumed of a channel and forgets what is held.
func (c *inChannel) seek(next abs.Seq, sum frame.Sum) {
	c.next, c.sum, c.tail, c.tailSum = next, sum, next, sum
	c.held, c.bytes = nil, 0
	c.gap, c.rewind, c.dropped, c.beyond, c.searched, c.want, c.refilled, c.granted, c.said = false, false, false, 0, 0, 0, 0, 0, 0
}

// restart forgets everything held: the stream is read from its beginning.
func (in *inbox) restart() {
	in.bytes, in.reading = 0, true
	in.restarts++
	for _, c := range in.chans {
		c.forget(len(c.places))
		c.owed = 0
		c.seek(c.next, c.sum)
		c.reload()
	}
}

// accept takes a frame from the stream. The frame's bytes become the inbox's.
func (in *inbox) accept(d Delivery) error {
	h, payload, err := frame.Decode(d.Frame)
	c := in.byIndex[d.Channel]
	if err != nil {
		in.missing(c) // as if it had not come
		return nil
	}
	if c == nil || h.Generation != uint32(in.gen) || h.Incarnation != c.Incarnation {
		in.stale++
		return nil
	}
	first, last := abs.Seq(h.First), abs.Seq(h.Last())
	c.keep(place{d.Seq, last, int32(h.Count), int32(len(d.Frame))})
	if last < c.tail {
		in.duplicates++
		if last+1 == c.tail && h.After != c.tailSum {
			return &DiffError{c.ID, last, "the checksum of a repeated frame is another one"}
		}
		return nil
	}
	if first > c.tail {
		c.beyond = max(c.beyond, last)
		in.missing(c)
		return nil
	}
	if in.bytes+len(payload) > in.budget && c.wanted() {
		c.dropped = true
		return nil
	}
	return in.hold(c, h, payload)
}

// missing notes that a frame of the channel, nil if it is none of ours, cannot be used.
func (in *inbox) missing(c *inChannel) {
	in.jumps++
	if c != nil && !c.dropped {
		c.gap = true
		in.settle(c)
	}
}

// settle asks the sender for what is missing, once the task cannot go on with what is held, and the stream, which may
// still bring it, has been read through: asked earlier, a sender that no longer has what is held
// would have to make it again. What came before its turn is in the stream, which is read again for it.
func (in *inbox) settle(c *inChannel) {
	if !c.wanted() && !in.reading && !c.dropped && c.tail <= c.beyond && c.searched != c.tail {
		c.searched = c.tail
		c.dropped = slices.ContainsFunc(c.places, func(p place) bool { return p.last-abs.Seq(p.count) < c.tail && c.tail <= p.last })
	}
	c.rewind = c.gap && !c.dropped && !in.reading && !c.wanted()
}

// hold trims what the channel has off the front and holds the rest.
func (in *inbox) hold(c *inChannel, h frame.Header, payload []byte) error {
	first := abs.Seq(h.First)
	skip, err := skipItems(h, payload, int(c.tail-first))
	if err != nil {
		panic(fmt.Sprintf("checked frame is malformed: %v", err))
	}
	if h.Before.Add(payload[:skip]) != c.tailSum {
		return &DiffError{c.ID, c.tail - 1, "the running checksum is another one"}
	}
	in.arrival++
	f := heldFrame{
		kind: h.Kind, first: c.tail, count: int(h.Count) - int(c.tail-first),
		payload: payload[skip:], after: h.After, arrival: in.arrival,
	}
	c.held = append(c.held, f)
	c.tail, c.tailSum, c.gap, c.rewind = f.last()+1, h.After, false, false
	in.bytes += len(f.payload)
	c.bytes += len(f.payload)
	return nil
}

func skipItems(h frame.Header, payload []byte, n int) (int, error) {
	if h.Kind != frame.Data || n == 0 {
		return 0, nil
	}
	return frame.Skip(payload, n)
}

// pick returns the channel whose held frame came first among those not blocked, nil if there is none.
// While the inbox is shut it takes nothing from outside a loop.
func (in *inbox) pick(blocked func(abs.ChannelID) bool) *inChannel {
	var best *inChannel
	for _, c := range in.chans {
		if len(c.held) == 0 || best != nil && best.held[0].arrival < c.held[0].arrival || in.shut && !c.Loop || blocked(c.ID) {
			continue
		}
		best = c
	}
	return best
}

// has says whether count items from next on are held. If not, they are waited for.
func (c *inChannel) has(count int) bool {
	c.want = count
	return c.wanted()
}

// wanted says whether what the task takes next is held: one frame, or what replay asked for. The
// sender may have cut that into several frames this time.
func (c *inChannel) wanted() bool { return c.tail >= c.next+abs.Seq(max(1, c.want)) }

// take consumes count items from next on: one run of records or one mark. They may come from
// several frames when the sender has cut them elsewhere the second time.
func (in *inbox) take(c *inChannel, count int) (kind frame.Kind, payload []byte) {
	defer in.settle(c)
	defer c.shed()
	c.want = 0
	f := &c.held[0]
	if f.count == count {
		c.sum, c.next = f.after, f.last()+1
		in.bytes -= len(f.payload)
		c.bytes -= len(f.payload)
		kind, payload = f.kind, f.payload
		c.pop()
		return kind, payload
	}
	var run bytes.Buffer
	for count > 0 {
		f := &c.held[0]
		n := min(count, f.count)
		size, err := frame.Skip(f.payload, n)
		if f.kind != frame.Data || err != nil {
			panic(fmt.Sprintf("channel %s: %d items from %d on are not records", c.ID, count, c.next))
		}
		part := f.payload[:size]
		run.Write(part)
		c.sum = c.sum.Add(part)
		c.next += abs.Seq(n)
		count -= n
		f.first, f.count, f.payload = f.first+abs.Seq(n), f.count-n, f.payload[size:]
		in.bytes -= size
		c.bytes -= size
		if f.count == 0 {
			c.pop()
		}
	}
	return frame.Data, run.Bytes()
}

func (c *inChannel) pop() {
	c.held[0] = heldFrame{} // its memory may go
	c.held = c.held[1:]
}

// drained marks the channels whose next number was not in the stream when it was read through.
func (in *inbox) drained() {
	in.reading = false
	for _, c := range in.chans {
		if !c.wanted() && !c.dropped && !c.ended {
			c.gap = true
		}
		in.settle(c)
	}
}

// starved says that frames of the channel were dropped and are needed now.
func (c *inChannel) starved() bool { return c.dropped && !c.wanted() }

// keep notes a frame that the stream has.
func (c *inChannel) keep(p place) {
	c.places, c.stored = append(c.places, p), c.stored+int(p.size)
	c.box.stored += int(p.size)
}

// forget is told that the channel's first n frames are in the stream no more, or are read again.
func (c *inChannel) forget(n int) {
	for _, p := range c.places[:n] {
		c.stored -= int(p.size)
		c.box.stored -= int(p.size)
	}
	c.places = c.places[n:]
}

// excess is the stream sequence up to which frames of the channel must go although no checkpoint counts that has
// them, 0 if there is room: for as many frames, and for all bytes of the stream; if there is not, the channels go
// that have more than an equal share of them. If what the task takes next is not held, all that came was consumed, is
// held, or lies behind a gap, and is sent again when the gap is filled. A task that replays is sparing: if two tasks of a
// loop replay, and one must go back once more for the other, it needs again what it has taken meanwhile, and were that
// purged, the other would have to go back for it, and so on without end.
func (c *inChannel) excess(sparing bool) uint64 {
	in := c.box
	behind, most := in.behind, in.most
	if sparing {
		behind, most = inReplay(behind), inReplay(most)
	}
	switch {
	case len(c.places) <= behind && (in.stored <= most || c.stored <= most/len(in.chans)):
		return c.purgeable(0)
	case !c.wanted() && !c.dropped:
		seq := c.places[len(c.places)-1].seq
		c.forget(len(c.places))
		c.owed = 0
		return seq
	}
	return c.purgeable(c.next - 1)
}

// purgeFrames is how many frames of a channel are purged together: a request costs more than a few
// small frames that stay.
const purgeFrames = 8

// passed is how many of the channel's frames in the stream hold no item above upto.
func (c *inChannel) passed(upto abs.Seq) int {
	n := 0
	for n < len(c.places) && c.places[n].last <= upto {
		n++
	}
	return n
}

// purgeable returns the stream sequence of the channel's last frame whose items are all at most
// upto, or up to which a purge has failed, 0 if there is none, and forgets those up to it.
func (c *inChannel) purgeable(upto abs.Seq) uint64 {
	seq := c.owed
	c.owed = 0
	if n := c.passed(upto); n > 0 {
		seq = max(seq, c.places[n-1].seq)
		c.forget(n)
	}
	return seq
}

// grant is what the channel's sender is told. If nothing comes for long, the sender is asked to send
// again: that costs nothing if there is nothing, and helps where a sender was restarted while it
// repeated what a stream had lost.
func (c *inChannel) grant() Grant {
	if c.said != c.next {
		c.said, c.repeats = c.next, 0
	} else if c.repeats++; c.repeats >= idleGrants && !c.ended && (c.box.bytes <= heldEnough || c.want > 0) {
		c.gap = c.gap || !c.wanted() && !c.dropped
		c.box.settle(c)
	}
	return Grant{Channel: c.Index, Incarnation: c.Incarnation, Next: c.next, Sum: c.sum, Window: grantWindow, Rewind: c.rewind}
}
