package dataflow

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// TestSourceTime: watermarks of a source are a function of stamps and event times.
func TestSourceTime(t *testing.T) {
	rule := EventTime{Watermarks: true, MaxDelay: 10, Idle: 1000, MaxAhead: 100}
	var s sourceTime
	type step struct {
		stamp int64
		times []int64 // nil: a tick that says that the source is idle
		want  string
	}
	for i, st := range []step{
		{500, nil, ""},                // it has not been silent for long enough
		{1000, nil, "idle"},           // nothing has ever come
		{1100, []int64{1000}, "990"},  // the first is sent at once
		{1150, []int64{1040}, ""},     // and the next one after watermarkEvery
		{1200, []int64{1020}, ""},     // out of order
		{1300, []int64{1010}, "1030"}, // the highest counts
		{1350, []int64{1500}, ""},     // too far ahead: counted
		{1900, []int64{1600}, "1590"}, //
		{2300, []int64{}, ""},         // an entry without records
		{2800, nil, ""},               // 1900 was the last record
		{2900, nil, "idle"},           //
		{3000, nil, ""},               // it is already
		{3100, []int64{1000}, "1590"}, // it is back, with nothing newer
		{3101, []int64{3200}, ""},     // just not too far ahead
		{4100, nil, "3190"},           // a watermark goes before idleness
		{4200, nil, "idle"},           //
		{4300, []int64{4301}, "4291"}, // back with something newer
		{4301, []int64{4402}, ""},     // too far ahead by 1
		{9000, []int64{4302}, "4292"}, //
		{9100, []int64{-5, 0, 7}, ""}, // late, all of them
	} {
		tick := st.times == nil
		var records []byte
		for _, at := range st.times {
			records = frame.AppendRecord(records, frame.Record{Time: at})
		}
		if err := s.take(rule, st.stamp, records); err != nil {
			t.Fatal(err)
		}
		got := ""
		if mark, ok := s.due(rule, st.stamp, tick); ok {
			got = fmt.Sprint(mark)
			if mark == NoTime {
				got = "idle"
			}
		}
		if got != st.want {
			t.Errorf("step %d at %d: sent %q, want %q", i, st.stamp, got, st.want)
		}
	}
	mustEqual(t, "ahead", s.Ahead, uint64(2))
	if err := s.take(rule, 1, []byte{1, 2}); err == nil {
		t.Error("a malformed record is taken")
	}
	if at, idle, ok := s.wants(rule, 9500); !ok || !idle || at != 10500 {
		t.Errorf("idle at %d %v %v, want 10500: nothing can have been missed since 9500", at, idle, ok)
	}
	if at, idle, ok := s.wants(EventTime{MaxDelay: 0}, 0); !ok || idle || at != 9200 {
		t.Errorf("a watermark waits until %d %v %v", at, idle, ok)
	}
}

// chimes makes operators that tell of all that time does to them. A record whose value is a number sets a timer
// that much after its time; "p" and a number one of processing time. A timer whose key begins with "bad" traps.
// The one called second passes on what it gets.
type chimes struct{}

func (c chimes) New(_ context.Context, spec OperatorSpec, state StateReader) (Operator, error) {
	op := &chime{name: spec.Name, watermark: NoTime, timers: map[chimeTimer]bool{}}
	if state == nil {
		return op, nil
	}
	return op, state(func(ch Change) error {
		switch {
		case len(ch.Key) == 1:
			op.watermark, op.count = int64(binary.LittleEndian.Uint64(ch.Value)), int(binary.LittleEndian.Uint64(ch.Value[8:]))
		default:
			op.timers[chimeTimer{ch.Key[0] == 1, int64(binary.LittleEndian.Uint64(ch.Key[1:])), string(ch.Key[9:])}] = true
		}
		return nil
	})
}

type chimeTimer struct {
	tick bool
	at   int64
	key  string
}

type chime struct {
	name      string
	watermark int64
	count     int // of all that was emitted
	timers    map[chimeTimer]bool
	due       []chimeTimer
	tell, end bool
	lost      bool
}

func (c *chime) say(emit Emit, format string, args ...any) error {
	c.count++
	text := fmt.Appendf(nil, "%d ", c.count)
	return emit(0, frame.AppendRecord(nil, frame.Record{Value: fmt.Appendf(text, format, args...)}), 1)
}

func (c *chime) Process(b Batch, emit Emit) error {
	if c.name == "second" {
		return emit(0, b.Payload, b.Count)
	}
	for rest := b.Payload; len(rest) > 0; {
		r, after, err := frame.Next(rest)
		if err != nil {
			return err
		}
		rest = after
		var n int64
		tick := bytes.HasPrefix(r.Value, []byte("p"))
		if _, err := fmt.Sscan(strings.TrimPrefix(string(r.Value), "p"), &n); err == nil {
			at := r.Time + n
			if tick {
				at = b.Stamp + n
			}
			c.timers[chimeTimer{tick, at, string(r.Key)}] = true
		}
		if err := c.say(emit, "record %s", r.Key); err != nil {
			return err
		}
	}
	return nil
}

func (c *chime) Advance(m Moment) {
	c.due, c.tell, c.end = nil, m.Watermark > c.watermark, m.End
	c.watermark = max(c.watermark, m.Watermark)
	for h := range c.timers {
		if h.tick && m.Tick && h.at <= m.Stamp || !h.tick && c.tell && h.at <= c.watermark {
			c.due = append(c.due, h)
		}
	}
	slices.SortFunc(c.due, func(a, b chimeTimer) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.key, b.key))
	})
}

func (c *chime) Next() (TimeCall, bool) {
	switch {
	case len(c.due) > 0:
		h := c.due[0]
		c.due = c.due[1:]
		delete(c.timers, h)
		call := TimeCall{Kind: CallEventTimer, At: h.at, Key: []byte(h.key)}
		if h.tick {
			call.Kind = CallProcessingTimer
		}
		return call, true
	case c.tell:
		c.tell = false
		return TimeCall{Kind: CallWatermark, At: c.watermark}, true
	case c.end:
		c.end = false
		return TimeCall{Kind: CallEnd}, true
	}
	return TimeCall{}, false
}

func (c *chime) Call(call TimeCall, emit Emit) error {
	if c.lost {
		panic("an instance was used after its trap")
	}
	if err := c.say(emit, "%s %s", c.name, strings.ReplaceAll(call.String(), fmt.Sprint(EndOfTime), "ever")); err != nil {
		return err
	}
	if bytes.HasPrefix(call.Key, []byte("bad")) {
		c.lost = true
		return &GuestError{c.name, "trap"}
	}
	return nil
}

func (c *chime) NextTick() (at int64, ok bool) {
	for h := range c.timers {
		if h.tick && (!ok || h.at < at) {
			at, ok = h.at, true
		}
	}
	return at, ok
}

func (c *chime) Freeze(bool) ([]Change, error) {
	head := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(c.watermark)), uint64(c.count))
	out := []Change{{SpaceTimer, []byte("w"), head}}
	for h := range c.timers {
		key := []byte{0}
		if h.tick {
			key[0] = 1
		}
		out = append(out, Change{SpaceTimer, append(binary.LittleEndian.AppendUint64(key, uint64(h.at)), h.key...), []byte{}})
	}
	return out, nil
}

func (c *chime) Close() error { return nil }

// timeDesk is a task with two chained chimes, the second of which tells what the first one says, driven by
// hand. Every part is a full one. It has two inputs, or, as a source, its log.
type timeDesk struct {
	t      *testing.T
	log    *memoryLog
	store  *partStore
	dead   *drawer
	source bool
	now    int64
	gen    abs.Generation
	next   [2]uint64
	sums   [2]frame.Sum
	sent   [2][]Delivery
	items  map[uint64]string // by number, over all lives
	frames int               // of the wire that were looked at
	shown  uint64            // of items, to want
	policy ErrorPolicy

	task   *Task
	ingest *IngestLog
	wire   *wire
	input  *grantBook
}

func newTimeDesk(t *testing.T, source bool) *timeDesk {
	return &timeDesk{
		t: t, log: &memoryLog{}, store: &partStore{saved: map[Version][]Change{}}, dead: &drawer{}, source: source, now: 1000, gen: 1,
		next: [2]uint64{1, 1}, items: map[uint64]string{},
	}
}

func (d *timeDesk) spec() TaskSpec {
	op := func(name string, to Target) OpSpec {
		return OpSpec{Operator: OperatorSpec{Name: name, Outputs: []string{"out"}, Inputs: []string{"in"}}, Outputs: [][]Target{{to}}, Policy: d.policy}
	}
	s := TaskSpec{
		Job: "job", Generation: d.gen, ID: "m", Agent: "hub", Source: d.source,
		Ops:   []OpSpec{op("first", Target{Kind: ToOp, Index: 1}), op("second", Target{Kind: ToEdge})},
		Edges: []EdgeSpec{{Channels: []OutChannel{{Channel: Channel{ID: "m>k", Index: 2}, To: "k", Incarnation: 1}}}},
	}
	if d.source {
		s.Entry = []Target{{Kind: ToOp}}
		s.Time = EventTime{Watermarks: true, Idle: 1000}
		return s
	}
	s.Inputs = []InChannel{
		{Channel: Channel{ID: "a>m", Index: 0}, Agent: "left", Incarnation: 1, To: Target{Kind: ToOp}, PassDetached: true},
		{Channel: Channel{ID: "b>m", Index: 1}, Agent: "right", Incarnation: 1, To: Target{Kind: ToOp}},
	}
	return s
}

// open starts the task anew and brings all that was brought.
func (d *timeDesk) open() {
	d.t.Helper()
	d.log.restart(false)
	d.wire, d.frames = &wire{}, 0
	clock := func() int64 { return d.now }
	env := Env{
		Log: d.log, Store: d.store, Operators: chimes{}, Output: d.wire, Dead: d.dead, Observer: &notes{},
		Save: func(info PartInfo, changes []Change, done func(error)) {
			info.Full = true
			done(d.store.Save(info, changes))
		},
		Clock: clock, Stopwatch: func() time.Duration { return 0 },
	}
	if d.source {
		d.ingest = NewIngestLog("job/m", d.log, d.dead, clock)
	} else {
		d.input = &grantBook{last: map[int]Grant{}}
		env.Input = d.input
	}
	d.task = NewTask(d.spec(), env)
	d.must(d.task.Open(d.t.Context()))
	if d.source {
		d.ingest.Resume(d.task.Source())
	}
	d.must(d.task.TakeGrant(d.t.Context(), Grant{Channel: 2, Incarnation: 1, Next: 1, Window: grantWindow}))
	d.work()
}

// reread brings all that was brought, if the task has asked for it.
func (d *timeDesk) reread() {
	d.t.Helper()
	if d.input == nil || d.input.rereads == 0 {
		return
	}
	d.input.rereads = 0
	for _, sent := range d.sent {
		for _, s := range sent {
			s.Frame = bytes.Clone(s.Frame)
			d.must(d.task.Deliver(s))
		}
	}
}

func (d *timeDesk) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// work lets the task do all it can. What it sends under a number it must always send.
func (d *timeDesk) work() {
	d.t.Helper()
	for busy := true; busy; {
		d.reread()
		d.task.Settle()
		var err error
		busy, err = d.task.Step(d.t.Context())
		d.must(err)
		busy = d.log.sync(1<<40) || busy
		d.must(d.task.HandOver())
	}
	for _, f := range d.wire.frames[d.frames:] {
		h, payload, err := frame.Decode(f)
		d.must(err)
		for i := uint64(0); len(payload) > 0; i++ {
			text := ""
			if h.Kind == frame.Data {
				r, rest, err := frame.Next(payload)
				d.must(err)
				text, payload = string(r.Value), rest
			} else {
				m, err := frame.DecodeMark(payload)
				d.must(err)
				text, payload = fmt.Sprintf("%s %d", m.Kind, int64(m.Value)), nil
				text = strings.NewReplacer(fmt.Sprint(NoTime), "idle", fmt.Sprint(EndOfTime), "ever").Replace(text)
			}
			if was, again := d.items[h.First+i]; again && was != text {
				d.t.Fatalf("number %d was %q, is %q", h.First+i, was, text)
			}
			d.items[h.First+i] = text
		}
	}
	d.frames = len(d.wire.frames)
}

// bring delivers the next item of a channel.
func (d *timeDesk) bring(channel int, kind frame.Kind, item []byte) {
	d.t.Helper()
	h := frame.Header{Kind: kind, Generation: uint32(d.gen), Incarnation: 1, Count: 1, First: d.next[channel], Before: d.sums[channel], After: d.sums[channel].Add(item)}
	d.next[channel], d.sums[channel] = h.Last()+1, h.After
	s := Delivery{Channel: channel, Seq: h.First, Frame: frame.Append(nil, h, item)}
	d.sent[channel] = append(d.sent[channel], Delivery{Channel: channel, Seq: s.Seq, Frame: bytes.Clone(s.Frame)})
	d.must(d.task.Deliver(s))
	d.work()
}

func (d *timeDesk) mark(channel int, kind frame.Kind, value int64) {
	d.t.Helper()
	d.bring(channel, kind, frame.AppendMark(nil, frame.Mark{Kind: kind, Value: uint64(value)}))
}

func (d *timeDesk) record(channel int, key string, at int64, value string) {
	d.t.Helper()
	d.bring(channel, frame.Data, frame.AppendRecord(nil, frame.Record{Key: []byte(key), Time: at, Value: []byte(value)}))
}

// receive logs records of a source as one entry.
func (d *timeDesk) receive(records ...frame.Record) {
	d.t.Helper()
	var b IngestBatch
	for _, r := range records {
		b.Payload = frame.AppendRecord(b.Payload, r)
		b.Count++
	}
	d.must(d.ingest.Append(b, func() {}))
	d.work()
}

// tick lets time pass.
func (d *timeDesk) tick(ms int64) {
	d.t.Helper()
	for ; ms > 0; ms -= 100 {
		d.now += min(ms, 100)
		d.task.Tick()
		d.work()
	}
}

// want compares what has been sent under new numbers.
func (d *timeDesk) want(what string, want ...string) {
	d.t.Helper()
	var have []string
	for ; d.items[d.shown+1] != ""; d.shown++ {
		text := d.items[d.shown+1]
		if _, said, ok := strings.Cut(text, " "); ok && text[0] >= '0' && text[0] <= '9' {
			text = said
		}
		have = append(have, text)
	}
	all := strings.Join(have, ", ")
	if w := strings.Join(want, ", "); all != w {
		d.t.Errorf("%s:\nhave %s\nwant %s", what, all, w)
	}
}

// TestWatermarkIsTheLowest: of the channels that count.
func TestWatermarkIsTheLowest(t *testing.T) {
	d := newTimeDesk(t, false)
	d.open()
	d.record(0, "x", 5, "10")
	d.mark(0, frame.Watermark, 20)
	d.want("the other channel has said nothing", "record x")
	d.mark(1, frame.Watermark, 15)
	d.want("both have", "first event_timer 15 of key \"x\"", "first watermark 15", "second watermark 15", "watermark 15")
	d.mark(1, frame.Watermark, 12)
	d.want("it does not go back")
	d.mark(0, frame.Watermark, NoTime)
	d.mark(1, frame.Watermark, 30)
	d.want("an idle channel does not count", "first watermark 30", "second watermark 30", "watermark 30")
	d.mark(0, frame.Watermark, 25)
	d.mark(1, frame.Watermark, 40)
	d.want("one that is back does")
	d.open()
	d.mark(1, frame.Watermark, NoTime)
	d.want("it is behind")
	d.mark(0, frame.Watermark, NoTime)
	d.want("all are idle: as far as any has come", "first watermark 40", "second watermark 40", "watermark 40", "watermark idle")
	d.mark(0, frame.Watermark, 26)
	d.want("one is back, with nothing new", "watermark 40")
	d.mark(0, frame.End, 0)
	d.want("only an idle one is left", "watermark idle")
	d.mark(1, frame.End, 0)
	d.want("the end", "first watermark ever", "first end", "second watermark ever", "second end", "end 0")
	mustEqual(t, "ticks", d.log.kinds(EntryTick), 0)
}

// TestDetachedChannelsHoldTimeBack unless the job says otherwise.
func TestDetachedChannelsHoldTimeBack(t *testing.T) {
	d := newTimeDesk(t, false)
	d.open()
	d.mark(0, frame.Watermark, 10)
	d.mark(1, frame.Watermark, 20)
	d.want("both", "first watermark 10", "second watermark 10", "watermark 10")
	detached := func(epoch abs.Epoch, agents ...string) {
		d.task.Record(abs.EpochRecord{Epoch: epoch, State: abs.Started, Detached: agents})
		d.work()
	}
	detached(1, "right")
	d.mark(0, frame.Watermark, 30)
	d.want("the other is detached, and waited for", "first watermark 20", "second watermark 20", "watermark 20")
	detached(2, "left", "right")
	d.want("the other holds it back", "barrier 1", "barrier 2")
	d.mark(1, frame.Watermark, 40)
	d.want("the first one does not while it is detached", "first watermark 40", "second watermark 40", "watermark 40")
	d.open()
	d.want("again")
	if _, idle := d.task.lowest(); idle {
		t.Error("the task is idle")
	}
}

// TestNothingFollowsTheEnd: a gateway that is detached or comes back moves no time of a task whose input has ended.
func TestNothingFollowsTheEnd(t *testing.T) {
	d := newTimeDesk(t, false)
	d.open()
	d.mark(0, frame.End, 0)
	d.mark(1, frame.End, 0)
	d.want("the end", "first watermark ever", "first end", "second watermark ever", "second end", "end 0")
	for epoch, agents := range [][]string{{"left"}, {"left", "right"}, nil} {
		d.task.Record(abs.EpochRecord{Epoch: abs.Epoch(epoch + 1), State: abs.Started, Detached: agents})
		d.work()
	}
	d.want("gateways come and go")
	d.open()
	d.want("again")
}

// TestTimersInReplay: a task that is started anew after every item, from parts taken on the way, sends the same
// items under the same numbers.
func TestTimersInReplay(t *testing.T) {
	run := func(restart bool) (map[uint64]string, int) {
		d := newTimeDesk(t, false)
		again := func() {
			if restart {
				d.open()
			}
		}
		d.open()
		for i := range int64(40) {
			d.record(int(i%2), fmt.Sprintf("k%d", i%7), i*10, fmt.Sprint(i%5*20))
			again()
			d.record(int(i%2), "p", i*10, fmt.Sprint("p", 300+i))
			again()
			d.mark(int(i%2), frame.Watermark, i*9)
			again()
			if i%6 == 5 {
				d.mark(0, frame.Barrier, i)
				again()
				d.mark(1, frame.Barrier, i)
				again()
			}
			d.tick(130)
		}
		d.mark(0, frame.End, 0)
		again()
		d.mark(1, frame.End, 0)
		again()
		return d.items, d.log.kinds(EntryTick)
	}
	whole, ticks := run(false)
	killed, _ := run(true)
	if len(whole) < 100 || ticks == 0 {
		t.Fatalf("%d items, %d ticks", len(whole), ticks)
	}
	kinds := map[string]bool{}
	for n, text := range whole {
		if killed[n] != text {
			t.Errorf("number %d is %q, restarted %q", n, text, killed[n])
		}
		for _, kind := range []string{"event_timer", "processing_timer", "watermark", "end", "barrier"} {
			kinds[kind] = kinds[kind] || strings.Contains(text, kind)
		}
	}
	mustEqual(t, "items when restarted", len(killed), len(whole))
	mustEqual(t, "kinds of items", len(kinds), 5)
	for kind, there := range kinds {
		mustEqual(t, kind, there, true)
	}
}

// TestTimerIsGivenUp: one that traps twice, as a record would be; replay does the same.
func TestTimerIsGivenUp(t *testing.T) {
	for _, end := range []bool{false, true} {
		d := newTimeDesk(t, false)
		d.open()
		for _, key := range []string{"a", "bad", "c"} {
			d.record(0, key, 5, "10")
		}
		d.mark(1, frame.Watermark, 100)
		d.mark(0, frame.Barrier, 1)
		d.mark(1, frame.Barrier, 1)
		d.want("before", "record a", "record bad", "record c", "barrier 1")
		fired := []string{"first event_timer 15 of key \"a\"", "first event_timer 15 of key \"c\""}
		if end {
			d.mark(1, frame.End, 0)
			d.mark(0, frame.End, 0)
			d.want("at the end", append(fired, "first watermark ever", "first end", "second watermark ever", "second end", "end 0")...)
		} else {
			d.mark(0, frame.Watermark, 50)
			d.want("by a watermark", append(fired, "first watermark 50", "second watermark 50", "watermark 50")...)
		}
		mustEqual(t, "given up", d.log.kinds(EntryGiveUp), 1)
		mustEqual(t, "restarts", d.task.Status().Restarts, uint64(2))
		if len(d.dead.recs) != 1 || string(d.dead.recs[0].Key) != "bad" {
			t.Errorf("dead letters %v", d.dead.recs)
		}
		for _, reason := range d.dead.kept {
			if reason != `event_timer 15 of key "bad": operator first: trap` {
				t.Errorf("the reason is %s", reason)
			}
		}
		before := len(d.items)
		d.open()
		mustEqual(t, "items after a restart", len(d.items), before)
		mustEqual(t, "given up", d.log.kinds(EntryGiveUp), 1)
	}
}

// TestFailingTimerStopsTheTask if the job says so.
func TestFailingTimerStopsTheTask(t *testing.T) {
	d := newTimeDesk(t, false)
	d.policy = PolicyFail
	d.open()
	d.record(0, "bad", 5, "10")
	d.mark(0, frame.Watermark, 15)
	s := frame.AppendMark(nil, frame.Mark{Kind: frame.Watermark, Value: 15})
	h := frame.Header{Kind: frame.Watermark, Generation: 1, Incarnation: 1, Count: 1, First: 1, After: frame.Sum(0).Add(s)}
	last := Delivery{Channel: 1, Seq: 1, Frame: frame.Append(nil, h, s)}
	d.sent[1] = append(d.sent[1], Delivery{Channel: 1, Seq: 1, Frame: bytes.Clone(last.Frame)})
	d.must(d.task.Deliver(last))
	var err error
	for range 20 {
		d.reread()
		if _, err = d.task.Step(t.Context()); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "its policy is to stop") {
		t.Errorf("error %v", err)
	}
}

// TestTicksAreLoggedWhenNeeded, and only then.
func TestTicksAreLoggedWhenNeeded(t *testing.T) {
	d := newTimeDesk(t, true)
	d.open()
	d.tick(900)
	d.want("nothing")
	mustEqual(t, "ticks of an idle source that still has time", d.log.kinds(EntryTick), 0)
	d.tick(300)
	d.want("idle", "watermark idle")
	mustEqual(t, "ticks", d.log.kinds(EntryTick), 1)
	d.tick(60_000)
	mustEqual(t, "ticks while idle", d.log.kinds(EntryTick), 1)

	d.receive(frame.Record{Key: []byte("a"), Time: 700, Value: []byte("50")})
	d.want("back", "record a", "first watermark 700", "second watermark 700", "watermark 700")
	d.receive(frame.Record{Key: []byte("b"), Time: 750, Value: []byte("p450")})
	d.want("too soon for another watermark", "record b")
	d.tick(100)
	d.want("still")
	d.tick(100)
	d.want("now", "first event_timer 750 of key \"a\"", "first watermark 750", "second watermark 750", "watermark 750")
	mustEqual(t, "ticks", d.log.kinds(EntryTick), 2)
	d.tick(200)
	d.want("the timer of processing time is not due")
	d.tick(100)
	d.want("it is", fmt.Sprintf("first processing_timer %d of key \"b\"", 1000+60_000+1200+450))
	mustEqual(t, "ticks", d.log.kinds(EntryTick), 3)
	d.tick(300)
	mustEqual(t, "ticks", d.log.kinds(EntryTick), 3)
	at := d.now
	d.now += 1 << 40 // the agent was down
	d.open()
	d.tick(900)
	d.want("being down is no silence")
	d.tick(300)
	d.want("idle", "watermark idle")
	d.open()
	mustEqual(t, "ticks", d.log.kinds(EntryTick), 4)
	if d.task.stamp < at {
		t.Errorf("stamp %d", d.task.stamp)
	}
}

// TestTicksHaveADistance: a timer that sets itself again for a time that has passed fills no log.
func TestTicksHaveADistance(t *testing.T) {
	d := newTimeDesk(t, true)
	d.open()
	for range 50 {
		d.receive(frame.Record{Key: []byte("a"), Value: []byte("p-5000")})
	}
	if n := d.log.kinds(EntryTick); n != 1 {
		t.Errorf("%d ticks at one time", n)
	}
	d.log.full = true
	d.tick(300)
	d.log.full = false
	mustEqual(t, "ticks while the log is full", d.log.kinds(EntryTick), 1)
	d.tick(100)
	mustEqual(t, "ticks with room again", d.log.kinds(EntryTick), 2)
}

// TestNothingIsDueBehindTheFinalBarrier: timers are left to the next generation, which has them.
func TestNothingIsDueBehindTheFinalBarrier(t *testing.T) {
	for _, source := range []bool{true, false} {
		d := newTimeDesk(t, source)
		d.open()
		if source {
			d.receive(frame.Record{Key: []byte("a"), Time: 900, Value: []byte("p200")})
			d.must(d.ingest.Barrier(7, true))
			d.work()
		} else {
			d.record(0, "a", 900, "p200")
			d.mark(0, frame.Barrier, 7|int64(-1<<63))
			d.mark(1, frame.Barrier, 7|int64(-1<<63))
		}
		before := len(d.items)
		d.tick(5000)
		d.open()
		d.tick(5000)
		mustEqual(t, "items behind the final barrier", len(d.items), before)
		mustEqual(t, "ticks", d.log.kinds(EntryTick), 0)
		if !source { // the epoch was aborted: something comes
			d.record(1, "b", 900, "")
			d.tick(100)
			mustEqual(t, "ticks once it goes on", d.log.kinds(EntryTick), 1)
		}
	}
}

// TestTickBehindTheFinalBarrierIsLeft to the next generation: it was logged before the source had read the barrier.
func TestTickBehindTheFinalBarrierIsLeft(t *testing.T) {
	d := newTimeDesk(t, true)
	d.open()
	d.receive(frame.Record{Key: []byte("a"), Time: 900, Value: []byte("p200")})
	d.must(d.ingest.Barrier(7, true))
	_, err := d.log.Append(EntryTick, tickEntry{d.now + 500, false}.encode())
	d.must(err)
	d.work()
	before := len(d.items)
	d.open()
	mustEqual(t, "items", len(d.items), before)
	part := d.store.parts[len(d.store.parts)-1]
	mustEqual(t, "newest part", part.Epoch, abs.Epoch(7))
	d.gen = 2
	next := NewTask(d.spec(), Env{
		Log: d.log, Store: d.store, Operators: chimes{}, Output: d.wire, Dead: d.dead, Observer: &notes{}, Base: &part, BaseHere: true, Floor: 8,
		Save:  func(info PartInfo, changes []Change, done func(error)) { done(nil) },
		Clock: func() int64 { return d.now }, Stopwatch: func() time.Duration { return 0 },
	})
	d.task = next
	d.must(next.Open(t.Context()))
	d.must(next.TakeGrant(t.Context(), Grant{Channel: 2, Incarnation: 1, Next: abs.Seq(before + 1), Sum: next.outs[0].sum, Window: grantWindow}))
	d.work()
	d.want("the next generation", "record a", "first watermark 900", "second watermark 900", "watermark 900", fmt.Sprintf("barrier %d", 7|int64(-1<<63)),
		fmt.Sprintf("first processing_timer %d of key \"a\"", 1200), "watermark 900")
}

// TestPartWithoutTime: one from before there was event time.
func TestPartWithoutTime(t *testing.T) {
	m, err := decodeMeta(PartInfo{Meta: []byte(`{"stamp":5,"epoch":3,"log":1,"aligner":{},"in":{"a>m":{"next":4,"sum":0}},"out":{"m>k":{"sent":2,"sum":0,"reserved":9}}}`)})
	if err != nil {
		t.Fatal(err)
	}
	if timeOr(m.Watermark) != NoTime || timeOr(m.In["a>m"].Watermark) != NoTime || m.Source != nil || m.Drained {
		t.Errorf("%+v", m)
	}
}

func TestTickEntry(t *testing.T) {
	for _, e := range []tickEntry{{1_700_000_000_123, true}, {-1, false}} {
		got, err := decodeTick(e.encode())
		if err != nil || got != e {
			t.Errorf("%+v, %v; want %+v", got, err, e)
		}
	}
	for _, b := range [][]byte{nil, make([]byte, 8)} {
		if _, err := decodeTick(b); err == nil {
			t.Errorf("%d bytes are a tick", len(b))
		}
	}
}
