package dataflow

import (
	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// Bounds of what a sink has not confirmed; at either the task takes no step.
const (
	sinkItems = 1024 // dataflow/job allows no more of them in flight
	sinkBytes = 1 << 20
	// offerItems are offered to a sink at once.
	offerItems = 32
)

// sinkPort numbers what goes to a sink, keeps it until it is handed over, and holds back what was
// handed over before. It is pure but for Offer; the task owns it.
type sinkPort struct {
	index   int
	name    string
	channel string
	sink    Sink

	next  abs.Seq
	sum   frame.Sum
	items []portItem // not known to be handed over, in order
	batch []SinkItem // reused
	bytes int

	taken     abs.Seq // by the sink
	confirmed abs.Seq // by the sink, whether or not the port has made the item again since a restore
	handed    abs.Seq // by the sink, to the outside
	handedSum frame.Sum
	logged    abs.Seq // handed, as the log says

	made, heldBack, compared uint64

	resume resume
	held   *held // nil: items are offered at once
}

// resume is what a port keeps for a [ResumingSink].
type resume struct {
	sink  ResumingSink // nil: the sink is none
	past  abs.Seq      // an earlier life may have sent items up to here
	known bool         // past is that of this life

	sent     abs.Seq // may be offered: a synced entry says so
	sending  abs.Seq // the same once the log is synced to sendPos
	sendPos  abs.Position
	received abs.Seq // by the other side, as the sink or the log says
	logged   abs.Seq // of received, what the log says, durably once it is synced to logPos
	logPos   abs.Position
	told     abs.Seq // of received, what the sink knows to be durable
}

// sendAhead is how many numbers an entry that lets items be offered reaches beyond those made: no more
// than that are in doubt after a restart, and its sync is waited for once in as many items.
const sendAhead = 4096

func newSinkPort(index int, spec SinkSpec, sink Sink) *sinkPort {
	p := &sinkPort{index: index, name: spec.Name, channel: spec.Channel, sink: sink, next: 1}
	if spec.Checkpoint {
		p.held = &held{items: heldItems, bytes: heldBytes}
	}
	if r, ok := sink.(ResumingSink); ok && r.Resumes() {
		p.resume.sink = r
	}
	return p
}

type portItem struct {
	number abs.Seq
	sum    frame.Sum // after it
	cause  abs.Position
	record []byte // encoded
}

// add gives the record its number. The record is copied, unless it was handed over before: also one
// that the sink has confirmed while the task was being restored.
func (p *sinkPort) add(record []byte, cause abs.Position) error {
	n := p.next
	p.next++
	p.made++
	p.sum = p.sum.Add(record)
	if n <= p.handed {
		p.heldBack++
		if n == p.handed && p.handedSum != 0 {
			p.compared++
			if p.sum != p.handedSum {
				return &DiffError{abs.ChannelID(p.channel), n, "the sink has handed over something else under these numbers"}
			}
		}
		return nil
	}
	if n <= p.confirmed {
		p.heldBack++
		p.handed, p.handedSum = n, p.sum
		return nil
	}
	p.items = append(p.items, portItem{n, p.sum, cause, append([]byte(nil), record...)})
	p.bytes += len(record)
	return nil
}

func (p *sinkPort) full() bool { return len(p.items) >= sinkItems || p.bytes >= sinkBytes }

// offer hands items to the sink whose cause the log is synced past, and, where it commits with
// checkpoints, a checkpoint that counts contains.
func (p *sinkPort) offer(synced, counted abs.Position) {
	p.resume.reach(synced)
	limit := p.limit(synced, counted)
	for p.offerBatch(limit) {
	}
}

// offerBatch offers the next few items, and says whether the sink has room for more: one that is full, perhaps for
// hours, is asked after every step.
func (p *sinkPort) offerBatch(limit abs.Position) bool {
	p.batch = p.batch[:0]
	for _, it := range p.items[p.untaken():] {
		if it.cause > limit || p.resume.sink != nil && it.number > p.resume.sent || len(p.batch) == offerItems {
			break
		}
		rec, _, err := frame.Next(it.record)
		if err != nil {
			panic("a record that a task has made is malformed: " + err.Error())
		}
		p.batch = append(p.batch, SinkItem{it.number, p.channel, rec, p.resume.pastOf(it.number)})
	}
	if len(p.batch) == 0 {
		return false
	}
	n := p.sink.Offer(p.batch)
	if n > 0 {
		p.taken = p.batch[n-1].Number
	}
	more := n == offerItems
	clear(p.batch)
	return more
}

// untaken is the index of the first item that the sink has not taken. Numbers are without gaps.
func (p *sinkPort) untaken() int {
	if len(p.items) == 0 || p.items[0].number > p.taken {
		return 0
	}
	return min(int(p.taken-p.items[0].number)+1, len(p.items))
}

// confirm notes that the sink has handed over up to a number, and returns the entry for the log
// when that is news. What the sink confirms may lie ahead of what the task has made again.
func (p *sinkPort) confirm(upto abs.Seq) (handedEntry, bool) {
	p.confirmed = max(p.confirmed, upto)
	n := 0
	for n < len(p.items) && p.items[n].number <= upto {
		p.bytes -= len(p.items[n].record)
		p.handed, p.handedSum = p.items[n].number, p.items[n].sum
		n++
	}
	clear(p.items[:n]) // their memory may go
	p.items = p.items[n:]
	return p.news()
}

// news returns the entry for the log when more has been handed over than it says. While the task makes
// again what the sink has confirmed, one entry at the end of that is enough.
func (p *sinkPort) news() (handedEntry, bool) {
	if p.handed <= p.logged || p.next <= p.confirmed {
		return handedEntry{}, false
	}
	p.logged = p.handed
	return handedEntry{p.index, p.handed, p.handedSum}, true
}

// reach takes note of what the log is synced to.
func (r *resume) reach(synced abs.Position) {
	if r.sink == nil {
		return
	}
	if synced >= r.sendPos {
		r.sent = r.sending
	}
	if synced >= r.logPos && r.logged > r.told {
		r.told = r.logged
		r.sink.Logged(r.told)
	}
}

func (r *resume) pastOf(n abs.Seq) Past {
	switch {
	case r.sink == nil:
		return PastNone
	case n <= r.logged:
		return PastReceived
	case n <= r.past:
		return PastSent
	}
	return PastNone
}

// progress returns the entry for the log when more may have to be sent than it says, or more has been
// received. What was received is told only after what was handed over, so that the log never shows more
// of it as open than the sink has under way.
func (p *sinkPort) progress() (sinkEntry, bool) {
	r := &p.resume
	if r.sink == nil {
		return sinkEntry{}, false
	}
	e := sinkEntry{p.index, r.sending, r.logged}
	if p.next+sendAhead/2 > r.sending {
		e.sent = p.next + sendAhead
	}
	if p.handed <= p.logged {
		e.received = max(r.received, r.logged)
	}
	return e, e != sinkEntry{p.index, r.sending, r.logged}
}

// rollBack forgets what was handed over beyond a part, and returns how many items that were: the task will
// make others under their numbers. A sink that resumes begins anew then, since what it has under way may be
// among them; one that commits with checkpoints has only been offered what is in the part.
func (p *sinkPort) rollBack(m *sinkMeta) (beyond uint64) {
	last := m.Next - 1
	if handed := max(p.handed, m.Handed); handed > last {
		beyond = uint64(handed - last)
		p.handed, p.handedSum = last, m.Sum
	}
	if m.Handed > last { // the part was taken in a replay
		m.Handed, m.HandedSum = last, m.Sum
	}
	p.logged = min(p.logged, last)
	r := &p.resume
	if p.held == nil || beyond > 0 {
		*r = resume{sink: r.sink}
		m.Sent, m.Received = 0, 0
		return beyond
	}
	r.sending, r.logged, r.received = min(r.sending, last), min(r.logged, last), min(r.received, last)
	m.Sent, m.Received = min(m.Sent, last), min(m.Received, last)
	return beyond
}

// progressed notes that the entry is in the log.
func (r *resume) progressed(e sinkEntry, pos abs.Position) {
	if e.sent > r.sending {
		r.sending, r.sendPos = e.sent, pos
	}
	if e.received > r.logged {
		r.logged, r.logPos = e.received, pos
	}
}

// found takes what a snapshot, with position 0, or the log at a position says.
func (r *resume) found(sent, received abs.Seq, pos abs.Position) {
	r.received = max(r.received, received)
	r.progressed(sinkEntry{sent: sent, received: received}, pos)
}

// begin ends the look through the log: what it says of sent items is of an earlier life the first time.
func (r *resume) begin() {
	if !r.known {
		r.past, r.known = r.sending, true
	}
}

// seek sets the port to what a snapshot says; outbox holds the encoded records that were not known
// to be handed over at its cut, the last one being number next-1, and causes, if not nil, their causes.
func (p *sinkPort) seek(next abs.Seq, sum frame.Sum, outbox [][]byte, outboxSum frame.Sum, causes []abs.Position) error {
	made := p.made
	defer func() { p.made = made }() // what a snapshot holds was counted when it was made
	p.items, p.bytes = nil, 0
	p.next, p.sum = next-abs.Seq(len(outbox)), outboxSum
	for i, rec := range outbox {
		var cause abs.Position
		if causes != nil {
			cause = causes[i]
		}
		if err := p.add(rec, cause); err != nil {
			return err
		}
	}
	if p.sum != sum || p.next != next {
		return &DiffError{abs.ChannelID(p.channel), next - 1, "the snapshot's outbox does not match its checksum"}
	}
	return nil
}
