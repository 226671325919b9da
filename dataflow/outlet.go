package dataflow

import (
	"fmt"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// Bounds of a channel.
const (
	// grantWindow is how many bytes a sender may have under way beyond what was consumed. 16 frames
	// instead of 4 bring no speed and four times the latency under backlog (DESIGN 12).
	grantWindow = 256 << 10
	// minFrames may always be under way, else one large record could not pass.
	minFrames = 4
	// unsentLimit is how many bytes a task may have computed that are not handed over: enough to
	// work on while the log is synced.
	unsentLimit = 256 << 10
	// reserveAhead is how many numbers a reservation in the log reaches beyond those made.
	reserveAhead = 1 << 14
	// resendTicks is how long a frame that was sent counts as under way before a receiver that
	// asks for it again gets it again.
	resendTicks = 5
	// retryTicks is the pause after the stream has refused a frame.
	retryTicks = 2
	// lackTicks is for how long a receiver must ask for the same number before the task is restored to
	// make it again: what it asks for may have reached its stream just after it had looked.
	lackTicks = 2
	// gapTicks is for how long it must ask for what no part can make again before that is a failure. It may
	// only replay what a checkpoint that counts has made needless, and be about to learn of it.
	gapTicks = 100
)

// outlet is the sending end of one channel: it gives items their numbers, cuts them into frames,
// keeps frames until the receiver has consumed them, holds back what the receiver has, and says
// when it must be regenerated. It is pure; the task owns it.
type outlet struct {
	OutChannel
	bounds  Bounds
	gen     abs.Generation
	next    abs.Seq // next number to give
	sum     frame.Sum
	epoch   abs.Epoch   // last barrier sent
	window  []*outFrame // the first sent of them are under way
	sent    int
	under   int // bytes under way
	unsent  int // bytes in window that are not
	highest abs.Seq

	build      []byte // header space and payload under construction
	buildCount int

	granted bool    // a grant has come since the task started
	have    abs.Seq // receiver's next
	haveAt  uint64  // the tick at which it moved
	check   frame.Sum
	checkAt abs.Seq // compare the sum before this number when it is reached; 0: nothing to compare
	credit  int

	reserved     abs.Seq // may be handed over: a synced entry says so, for the restart
	reserving    abs.Seq // the same once the log is synced to reservingPos
	reservingPos abs.Position
	retryTick    uint64  // nothing is sent before: the stream refused
	free         abs.Seq // numbers up to this one were made before and need no credit
	acked        abs.Seq // handed over: in the stream or with the receiver

	lackNext abs.Seq // number asked for that is not at hand
	lackTick uint64  // when it was first asked for

	made     uint64 // records
	heldBack uint64 // items that the receiver had
	compared uint64 // checksums compared

	spool     spool
	tail      []*outFrame // made, to go to the spool
	tailBytes int
	moved     bool  // the tail does not lead on from what the spool holds, which is given up
	fullFor   int   // ticks
	diff      error // what was made again differs from what the spool has

	pool *framePool
}

type outFrame struct {
	buf      []byte
	kind     frame.Kind
	first    abs.Seq
	last     abs.Seq
	before   frame.Sum
	cause    abs.Position // nothing leaves before the log is synced to here: what the first item comes from
	entry    abs.Position // nor to here: what the last comes from, or where the spool has it
	sentTick uint64
	inFlight int  // publishes not yet done
	gone     bool // out of the window
	parked   bool // on its way to the spool
	taken    bool // by the stream
}

func newOutlet(gen abs.Generation, c OutChannel, pool *framePool) *outlet {
	return &outlet{OutChannel: c, bounds: Bounds{}.orDefault(), gen: gen, next: 1, have: 1, pool: pool}
}

// add appends one encoded record.
func (o *outlet) add(record []byte, cause abs.Position) {
	if o.build == nil {
		o.build = o.pool.get()
	}
	if o.buildCount > 0 && o.spool.edge(o.next+abs.Seq(o.buildCount)) {
		o.cut(frame.Data, cause)
		o.build = o.pool.get()
	}
	o.build = append(o.build, record...)
	o.buildCount++
	if len(o.build) >= frame.HeaderSize+frame.TargetSize {
		o.cut(frame.Data, cause)
	}
}

// addAll appends encoded records.
func (o *outlet) addAll(records []byte, count int, cause abs.Position) error {
	if o.build == nil && count > 0 && len(records) <= frame.TargetSize && o.next > o.spool.last {
		o.build = append(o.pool.get(), records...)
		o.buildCount = count
		return nil
	}
	for len(records) > 0 {
		n, err := frame.Skip(records, 1)
		if err != nil {
			return err
		}
		o.add(records[:n], cause)
		records = records[n:]
	}
	return nil
}

// flush cuts what is under construction: at the end of a step.
func (o *outlet) flush(cause abs.Position) {
	if o.buildCount > 0 {
		o.cut(frame.Data, cause)
	}
}

// mark appends a mark.
func (o *outlet) mark(m frame.Mark, cause abs.Position) {
	o.flush(cause)
	if m.Kind == frame.Barrier {
		o.epoch = abs.Epoch(m.Value &^ frame.Final)
	}
	o.build = frame.AppendMark(o.pool.get(), m)
	o.buildCount = 1
	o.cut(m.Kind, cause)
}

func (o *outlet) cut(kind frame.Kind, cause abs.Position) {
	payload := o.build[frame.HeaderSize:]
	count := o.buildCount
	f := &outFrame{kind: kind, first: o.next, last: o.next + abs.Seq(count) - 1, before: o.sum, cause: cause}
	h := o.header(f, o.sum.Add(payload))
	frame.PutHeader(o.build, h, len(payload))
	f.buf = o.pool.fit(o.build)
	o.build, o.buildCount = nil, 0
	o.next, o.sum = f.last+1, h.After
	if kind == frame.Data {
		o.made += uint64(count)
	}
	if f.last < o.have {
		o.heldBack += uint64(count)
		o.acked = max(o.acked, f.last)
		o.release(f)
		return
	}
	o.keep(f, h.After)
}

// join adds the items of a frame to the one before it, if that waits behind another and nothing of it has ever
// been sent: so steps that are taken while the log is synced or credit is awaited leave in few frames. To the
// first that waits nothing is added, else its cause would move on with each step, and it with that.
func (o *outlet) join(f *outFrame, after frame.Sum) bool {
	n := len(o.window) - 1
	if n <= o.sent {
		return false
	}
	to, payload := o.window[n], f.buf[frame.HeaderSize:]
	switch {
	case to.kind != frame.Data, f.kind != frame.Data, f.first != to.last+1, o.spool.edge(f.first):
		return false
	case to.first <= max(o.highest, o.free): // its items have, or may have, been sent in other frames
		return false
	case len(to.buf)+len(payload) > frame.HeaderSize+o.bounds.Join:
		return false
	}
	to.buf = o.pool.grow(to.buf, len(payload))
	to.buf = append(to.buf, payload...)
	to.last, to.entry = f.last, f.cause
	frame.PutHeader(to.buf, o.header(to, after), len(to.buf)-frame.HeaderSize)
	o.unsent += len(payload)
	o.release(f)
	return true
}

func (o *outlet) header(f *outFrame, after frame.Sum) frame.Header {
	return frame.Header{
		Kind: f.kind, Generation: uint32(o.gen), Incarnation: o.Incarnation, Count: uint32(f.last - f.first + 1),
		First: uint64(f.first), Epoch: uint64(o.epoch), Watermark: frame.NoWatermark, Before: f.before, After: after,
	}
}

// differs compares the running checksum with the receiver's where it can: at the current number or
// at a frame's edge.
func (o *outlet) differs() error {
	if o.diff != nil {
		return o.diff
	}
	if o.checkAt == 0 {
		return nil
	}
	at, mine := o.checkAt, o.sum
	if at != o.next {
		i := o.find(at)
		if i < 0 {
			return nil
		}
		mine = o.window[i].before
	}
	o.checkAt = 0
	o.compared++
	if mine != o.check {
		return &DiffError{o.ID, at - 1, "the receiver's running checksum is another one"}
	}
	return nil
}

// find returns the index of the frame that starts at the number, -1 if there is none.
func (o *outlet) find(first abs.Seq) int {
	for i, f := range o.window {
		if f.first == first {
			return i
		}
	}
	return -1
}

// grant takes a grant. It returns true when the receiver lacks numbers that are not at hand: the
// task must be restored to a point before them and run again.
func (o *outlet) grant(g Grant, tick uint64) (regenerate bool, err error) {
	if g.Incarnation != o.Incarnation {
		return false, nil
	}
	if o.have != g.Next {
		o.haveAt = tick
	}
	o.granted, o.have, o.credit = true, g.Next, g.Window
	o.check, o.checkAt = g.Sum, g.Next
	n := 0
	for n < len(o.window) && o.window[n].last < g.Next {
		n++
	}
	o.consumed(n)
	if o.spool.unread() && o.spool.cursor < g.Next {
		o.spool.seek(g.Next)
	}
	o.acked = max(o.acked, min(g.Next, o.next)-1)
	if !g.Rewind || g.Next >= o.next && !o.spool.holds(g.Next) {
		return false, nil
	}
	if len(o.window) == 0 && (o.spool.unread() && o.spool.cursor == g.Next || len(o.tail) > 0 && o.tail[0].first <= g.Next) {
		return false, nil // it comes from the spool
	}
	if len(o.window) == 0 || o.window[0].first > g.Next {
		return !o.reload(g.Next), nil
	}
	if o.sent > 0 && o.window[0].sentTick+resendTicks <= tick {
		o.unsend(0)
	}
	return false, nil
}

// lacking says whether the receiver has asked for a number that is not at hand for long enough.
func (o *outlet) lacking(next abs.Seq, tick uint64) bool {
	if o.lackNext != next {
		o.lackNext, o.lackTick = next, tick
	}
	return tick >= o.lackTick+lackTicks
}

// consumed takes the first n frames out of the window: the receiver has them.
func (o *outlet) consumed(n int) {
	for i, f := range o.window[:n] {
		o.acked = max(o.acked, f.last)
		if i < o.sent {
			o.under -= len(f.buf)
		} else {
			o.unsent -= len(f.buf)
			o.heldBack += uint64(f.last - f.first + 1)
		}
		o.release(f)
	}
	o.window = o.window[n:]
	o.sent = max(0, o.sent-n)
}

// unsend makes the frames from index i on to be sent again: go-back-N.
func (o *outlet) unsend(i int) {
	for ; o.sent > i; o.sent-- {
		n := len(o.window[o.sent-1].buf)
		o.under -= n
		o.unsent += n
	}
}

// sendable returns the next frame that may be handed over, nil if there is none: the log is synced
// past its cause and its reservation, and it is within credit, or needs none.
func (o *outlet) sendable(synced abs.Position, tick uint64) *outFrame {
	if o.unsent == 0 || !o.granted || tick < o.retryTick {
		return nil
	}
	if synced >= o.reservingPos {
		o.reserved = max(o.reserved, o.reserving)
	}
	f := o.window[o.sent]
	switch {
	case f.cause > synced, f.entry > synced, f.last > o.reserved:
		return nil
	case !o.Back && f.kind == frame.Data && f.last > o.free && o.sent >= o.bounds.Frames && o.under+len(f.buf) > o.credit:
		return nil
	}
	return f
}

// sending marks the frame as under way.
func (o *outlet) sending(f *outFrame, tick uint64) {
	f.sentTick = tick
	f.inFlight++
	o.sent++
	o.under += len(f.buf)
	o.unsent -= len(f.buf)
	o.highest = max(o.highest, f.last)
}

// done takes the outcome of a publish. A frame that the stream has not taken is sent again, and all
// behind it: go-back-N.
func (o *outlet) done(f *outFrame, err error, tick uint64) {
	f.inFlight--
	if f.gone {
		o.release(f)
		return
	}
	if f.parked {
		return
	}
	if err == nil {
		f.taken = true
		o.advance()
		return
	}
	o.retryTick = tick + retryTicks
	i := o.find(f.first)
	if i < 0 {
		panic(fmt.Sprintf("channel %s: frame %d is neither in the window nor gone", o.ID, f.first))
	}
	o.unsend(i)
}

// advance moves acked over the frames that the stream has taken.
func (o *outlet) advance() {
	for _, f := range o.window {
		if !f.taken {
			return
		}
		o.acked = max(o.acked, f.last)
	}
}

func (o *outlet) release(f *outFrame) {
	f.gone = true
	if f.inFlight == 0 && f.buf != nil {
		o.pool.put(f.buf)
		f.buf = nil
	}
}

// reserve says whether a new reservation is due, and up to which number.
func (o *outlet) reserve() (abs.Seq, bool) {
	if o.next+reserveAhead/2 <= o.reserving {
		return 0, false
	}
	return o.next + reserveAhead, true
}

// reserveUpto notes that the entry at pos reserves numbers up to one.
func (o *outlet) reserveUpto(upto abs.Seq, pos abs.Position) {
	o.reserving, o.reservingPos = upto, pos
}

// full says that the task must not compute more for this channel now. A back edge whose head answers is
// never full: the head may be waiting for this very task.
func (o *outlet) full() bool {
	if o.spooling() {
		return o.tailBytes > 0 // the log takes no more
	}
	return o.unsent > o.bounds.Unsent && !(o.Back && o.granted)
}

// seek sets the channel to what a snapshot says: nothing after sent has been made. What had been
// handed over before needs no credit when it is made again.
func (o *outlet) seek(sent abs.Seq, sum frame.Sum, epoch abs.Epoch) {
	for _, f := range o.window {
		o.release(f)
	}
	if o.build != nil {
		o.pool.put(o.build)
	}
	o.build, o.buildCount = nil, 0
	o.window, o.sent, o.under, o.unsent = nil, 0, 0, 0
	o.free, o.lackNext = max(o.free, o.highest), 0
	o.next, o.sum, o.epoch, o.acked = sent+1, sum, epoch, sent
	if o.granted {
		o.checkAt = o.have // what is made again is compared again
	}
	for _, f := range o.tail {
		o.release(f)
	}
	o.seekSpool(sent)
}
