package dataflow

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// Bounds of loops. A back edge takes no credit, so what is in a loop is bounded here.
const (
	// loopCrowd is how many bytes a task may have at hand of its back edges, or may have sent on one that
	// its head has not consumed, before it takes nothing from outside the loop: four windows of an edge.
	loopCrowd = 4 * grantWindow
	// loopWindow is how many bytes may be on one back edge: as much as a head holds in memory.
	loopWindow = asideBudget
	// loopLogLimit bounds a part's loop log in bytes: what a head can hold when it is restored.
	loopLogLimit = asideBudget
	// loopStuckTicks is how long an alignment may keep a full loop from moving before the epoch is given
	// up: a second, far longer than a barrier that is under way takes.
	loopStuckTicks = 10
)

// ErrLoopFull says that records multiply in a loop faster than its head takes them.
var ErrLoopFull = errors.New("a loop is full")

// loopItem is what a head has taken from a back edge in one step while it logged: a run of records or
// one mark.
type loopItem struct {
	channel abs.ChannelID
	kind    frame.Kind
	first   abs.Seq
	count   int
	payload []byte
}

// encode writes the item as the value of its key in SpaceLoop: kind (1 byte), first number, count and
// length of the channel's name (uvarints), name, items. The key is its place in the log (4 bytes,
// big-endian), so that a part overwrites what the part before it has there.
func (it loopItem) encode() []byte {
	b := append(make([]byte, 0, 24+len(it.channel)+len(it.payload)), byte(it.kind))
	b = binary.AppendUvarint(b, uint64(it.first))
	b = binary.AppendUvarint(b, uint64(it.count))
	b = binary.AppendUvarint(b, uint64(len(it.channel)))
	b = append(b, it.channel...)
	return append(b, it.payload...)
}

// decodeLoopItem reads what encode writes. The item aliases b.
func decodeLoopItem(b []byte) (it loopItem, err error) {
	r := entryReader{b: b}
	if k := r.bytes(1); r.err == nil {
		it.kind = frame.Kind(k[0])
	}
	it.first = abs.Seq(r.uvarint())
	it.count = r.int()
	it.channel = abs.ChannelID(r.bytes(r.uvarint()))
	it.payload = r.b
	if r.err != nil {
		return it, r.err
	}
	return it, it.check()
}

func (it loopItem) check() error {
	if it.first == 0 || it.count == 0 || it.first+abs.Seq(it.count) < it.first {
		return fmt.Errorf("%w: items %d and %d more of a loop", errEntry, it.first, it.count)
	}
	if it.kind == frame.Data {
		if n, err := frame.Count(it.payload); err != nil || n != it.count {
			return fmt.Errorf("%w: %d records of a loop instead of %d (%v)", errEntry, n, it.count, err)
		}
		return nil
	}
	if m, err := frame.DecodeMark(it.payload); err != nil || m.Kind != it.kind || it.count != 1 {
		return fmt.Errorf("%w: a mark of a loop (%v)", errEntry, err)
	}
	return nil
}

func loopKey(place int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(place)) }

// logLoop appends what was taken from a back edge to the loop log of the part that is open.
func (t *Task) logLoop(c *inChannel, e orderEntry, kind frame.Kind, payload []byte) {
	p := t.open
	if p == nil || t.aligner.Logging(c.ID) != p.info.Epoch {
		return
	}
	p.loop = append(p.loop, loopItem{c.ID, kind, e.first, e.count, payload})
	if p.loopBytes += len(payload); p.loopBytes > loopLogLimit {
		t.dropLog()
		t.env.Observer.PartSkipped(p.info.Epoch, fmt.Sprintf("more than %d MiB came round the loop during the snapshot: let the loop's operators drop more, or give its head more tasks", loopLogLimit>>20))
	}
}

// stopLog completes the open part: its log holds all that was in the loop at the cut.
func (t *Task) stopLog(epoch abs.Epoch) {
	if t.open != nil && t.open.info.Epoch == epoch {
		t.open.upto = t.pos
		t.seal(t.open)
	}
}

// dropLog gives up the open part's log. The part belongs to no checkpoint then; its changes still belong
// to the versions that follow, and the task can restart from it.
func (t *Task) dropLog() {
	if p := t.open; p != nil {
		p.info.Local, p.loop = true, p.loop[:p.ahead]
		t.seal(p)
	}
}

// seal completes a part with its loop log. Only then may it be persisted.
func (t *Task) seal(p *pendingPart) {
	t.open = nil
	for i, it := range p.loop {
		p.changes = append(p.changes, Change{SpaceLoop, loopKey(i), it.encode()})
	}
	for i := len(p.loop); i < t.loopKeys && !p.info.Full; i++ {
		p.changes = append(p.changes, Change{SpaceLoop, loopKey(i), nil})
	}
	t.loopKeys = len(p.loop)
	for _, it := range p.loop {
		if p.meta.Logged == nil {
			p.meta.Logged = map[abs.ChannelID]abs.Seq{}
		}
		p.meta.Logged[it.channel] = it.first + abs.Seq(it.count) - 1
	}
	p.loop = nil
	p.report.Cut.Logged = p.meta.Logged
	p.info.Meta, p.info.Bytes = p.meta.encode(), 0
	for _, c := range p.changes {
		p.info.Bytes += int64(len(c.Key) + len(c.Value))
	}
	p.report.Info = p.info
}

// loadLoop gives the inbox the loop log of the part that is being restored: items that no sender can
// make again, since their own parts lie behind them.
func (t *Task) loadLoop(state StateReader) error {
	t.loopKeys = 0
	for _, c := range t.inbox.chans {
		c.loop = nil
	}
	if state == nil {
		return nil
	}
	return state(func(ch Change) error {
		if ch.Space != SpaceLoop {
			return nil
		}
		it, err := decodeLoopItem(append([]byte(nil), ch.Value...))
		if err != nil {
			return fmt.Errorf("loop log: %w", err)
		}
		t.loopKeys++
		return t.inbox.preload(it)
	})
}

// preload adds an item of a restored loop log to its channel. Items come in the order in which they were
// taken before the snapshot was complete, and are taken in that order again.
func (in *inbox) preload(it loopItem) error {
	for _, c := range in.chans {
		if c.ID != it.channel {
			continue
		}
		next, sum := c.next, c.sum
		if n := len(c.loop); n > 0 {
			next, sum = c.loop[n-1].last()+1, c.loop[n-1].after
		}
		if it.first != next {
			return fmt.Errorf("loop log: number %d of channel %s where %d should be", it.first, it.channel, next)
		}
		in.arrival++
		c.loop = append(c.loop, heldFrame{
			kind: it.kind, first: it.first, count: it.count, payload: it.payload, after: sum.Add(it.payload), arrival: in.arrival,
		})
		return nil
	}
	return fmt.Errorf("loop log: channel %s is not one of the task's", it.channel)
}

// reload holds what the task has not yet taken of its channel's loop log.
func (c *inChannel) reload() {
	c.shed()
	for i, f := range c.loop {
		if i == 0 && f.first < c.next {
			n := int(c.next - f.first)
			size, err := frame.Skip(f.payload, n)
			if err != nil {
				panic(fmt.Sprintf("checked loop log is malformed: %v", err))
			}
			f.first, f.count, f.payload = c.next, f.count-n, f.payload[size:]
		}
		c.held = append(c.held, f)
		c.tail, c.tailSum = f.last()+1, f.after
		c.box.bytes += len(f.payload)
		c.bytes += len(f.payload)
	}
}

// refill gives a task that replays what a loop log among its parts holds of a back edge from its number
// on. It replays from an older part than that one, to serve a receiver, and a checkpoint may count of
// which the log is part: then nobody else can send the items again.
func (t *Task) refill(c *inChannel) error {
	if !c.Back || !c.rewind || c.refilled == c.next {
		return nil
	}
	c.refilled = c.next
	parts, err := t.env.Store.Parts(t.spec.Name())
	if err != nil {
		return err
	}
	of, err := summaries(parts)
	if err != nil {
		return err
	}
	version, ok := abs.Refill(of, t.spec.Generation, c.ID, c.next)
	if !ok {
		return nil
	}
	return t.stateReader(Version(version))(func(ch Change) error {
		if ch.Space != SpaceLoop {
			return nil
		}
		it, err := decodeLoopItem(append([]byte(nil), ch.Value...))
		if err == nil && it.channel == c.ID {
			err = c.append(it)
		}
		return err
	})
}

// append holds what the channel lacks of an item of a loop log, if it is next.
func (c *inChannel) append(it loopItem) error {
	last := it.first + abs.Seq(it.count) - 1
	if it.first > c.tail || last < c.tail {
		return nil
	}
	skip, err := skipItems(frame.Header{Kind: it.kind}, it.payload, int(c.tail-it.first))
	if err != nil {
		return err
	}
	payload := it.payload[skip:]
	c.box.arrival++
	c.held = append(c.held, heldFrame{
		kind: it.kind, first: c.tail, count: int(last - c.tail + 1), payload: payload, after: c.tailSum.Add(payload), arrival: c.box.arrival,
	})
	c.tail, c.tailSum, c.gap, c.rewind = last+1, c.tailSum.Add(payload), false, false
	c.box.bytes += len(payload)
	c.bytes += len(payload)
	return nil
}

// shed forgets what the task has taken of its loop log.
func (c *inChannel) shed() {
	for len(c.loop) > 0 && c.loop[0].last() < c.next {
		c.loop = c.loop[1:]
	}
}

// ahead lists what the task has not yet taken of its restored loop log, in order: a part that is frozen
// before then must hold it too.
func (in *inbox) ahead() []loopItem {
	type placed struct {
		arrival uint64
		item    loopItem
	}
	var left []placed
	for _, c := range in.chans {
		for _, f := range c.held {
			if n := len(c.loop); n > 0 && f.last() <= c.loop[n-1].last() {
				left = append(left, placed{f.arrival, loopItem{c.ID, f.kind, f.first, f.count, f.payload}})
			}
		}
	}
	slices.SortFunc(left, func(a, b placed) int { return cmp.Compare(a.arrival, b.arrival) })
	var items []loopItem
	for _, p := range left {
		items = append(items, p.item)
	}
	return items
}

// loops says whether the task is the head of a loop. Such a task does not end by itself: what is in
// the loop may come round again.
func (t *Task) loops() bool {
	return slices.ContainsFunc(t.inbox.chans, func(c *inChannel) bool { return c.Back })
}

// withheld is what came from a back edge after the final barrier of a generation. The part's loop log has
// it, so the next generation processes it; were it processed now as well, what it makes would leave twice.
type withheld struct {
	pos abs.Position
	to  []Target
	b   Batch
}

// release processes what was withheld: the final epoch was aborted, and this generation goes on.
func (t *Task) release() error {
	held, pos, stamp := t.withheld, t.pos, t.stamp
	t.withheld, t.draining = nil, false
	for _, w := range held {
		t.pos, t.stamp = w.pos, w.b.Stamp
		if err := t.process(w.pos, w.to, w.b); err != nil {
			return err
		}
	}
	t.pos, t.stamp = pos, stamp
	return nil
}

// crowded says whether a loop that the task belongs to holds as much as it should: the task then takes
// nothing from outside. What comes from inside it always takes, so that the loop can become emptier.
func (t *Task) crowded() bool {
	for _, c := range t.inbox.chans {
		if c.Back && c.bytes > loopCrowd {
			return true
		}
	}
	return t.backlogged()
}

// backlogged says whether the head of a loop is behind with what the task has sent it.
func (t *Task) backlogged() bool {
	return slices.ContainsFunc(t.outs, func(o *outlet) bool { return o.Back && o.under+o.unsent > loopCrowd })
}

// overrun says that a back edge holds more than it may. What was made before a restart does not count:
// it is only there until the head, which may be away, has said that it has it.
func (o *outlet) overrun() error {
	if !o.Back || o.under+o.unsent <= loopWindow {
		return nil
	}
	n := 0
	for _, f := range o.window {
		if f.last > o.free {
			n += len(f.buf)
		}
	}
	if n <= loopWindow {
		return nil
	}
	return fmt.Errorf("channel %s: %w: more than %d MiB are on their way back to the head %s: let the loop's operators pass on less than they take, or give the head more tasks",
		o.ID, ErrLoopFull, loopWindow>>20, o.To)
}

// unstick gives up an epoch whose alignment stands in the way of a full loop: the task waits for a
// barrier from outside, takes nothing from outside because the loop is full, and the loop cannot become
// emptier because the channel by which its head would go on, or one by which it comes back, is blocked for
// the epoch.
func (t *Task) unstick() {
	if t.aligner.Pending() == 0 || t.replaying || !t.crowded() || !t.blocksLoop() {
		t.stuck = 0
		return
	}
	if t.stuck++; t.stuck == loopStuckTicks {
		t.env.Observer.PartSkipped(t.aligner.Pending(), "the loop is full, and waiting for the barrier from outside keeps it so")
	}
}

func (t *Task) blocksLoop() bool {
	return slices.ContainsFunc(t.inbox.chans, func(c *inChannel) bool { return c.Loop && t.aligner.Blocked(c.ID) })
}
