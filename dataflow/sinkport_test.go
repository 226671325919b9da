package dataflow

import (
	"context"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// shelf is a sink that takes as many items as it has room for.
type shelf struct {
	room   int
	offers int
	most   int // items in one offer
	items  []SinkItem
}

func (s *shelf) Offer(items []SinkItem) int {
	s.offers++
	s.most = max(s.most, len(items))
	n := min(s.room, len(items))
	s.room -= n
	s.items = append(s.items, items[:n]...)
	return n
}

// Run implements [Sink]; the tests confirm by themselves.
func (s *shelf) Run(context.Context, SinkEvents) error { return nil }

func (s *shelf) numbers() []abs.Seq {
	var out []abs.Seq
	for _, it := range s.items {
		out = append(out, it.Number)
	}
	return out
}

const unlimited = 1 << 30

func portOf(s *shelf) *sinkPort {
	return &sinkPort{index: 3, name: "alarms", channel: "alarms@g1", sink: s, next: 1}
}

func mustAdd(t checker, p *sinkPort, s sequence, upto abs.Seq) {
	t.Helper()
	for n := p.next; n <= upto; n++ {
		if err := p.add(s.items[n-1].bytes, abs.Position(n)); err != nil {
			t.Fatal(err)
		}
	}
}

func mustNumbers(t checker, what string, got []abs.Seq, want ...abs.Seq) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: numbers %v, want %v", what, got, want)
	}
}

func TestSinkPortOffersWhatTheLogIsSyncedPast(t *testing.T) {
	s := newSequence(5)
	sink := &shelf{room: unlimited}
	p := portOf(sink)
	mustAdd(t, p, s, 5)
	p.offer(0, 0)
	mustEqual(t, "offers without anything", sink.offers, 0)
	p.offer(2, 0)
	mustNumbers(t, "taken", sink.numbers(), 1, 2)
	p.offer(2, 0)
	mustEqual(t, "offers without news", sink.offers, 1)
	p.offer(5, 0)
	mustNumbers(t, "taken", sink.numbers(), 1, 2, 3, 4, 5)
	for i, it := range sink.items {
		mustEqual(t, "channel", it.Channel, "alarms@g1")
		mustEqual(t, "time", it.Record.Time, int64(i+1))
		mustBytes(t, "record", frame.AppendRecord(nil, it.Record), s.items[i].bytes)
	}
}

func TestSinkPortOffersAgainWhatWasNotTaken(t *testing.T) {
	s := newSequence(6)
	sink := &shelf{room: 2}
	p := portOf(sink)
	mustAdd(t, p, s, 4)
	p.offer(9, 0)
	p.offer(9, 0)
	sink.room = unlimited
	mustAdd(t, p, s, 6)
	p.offer(9, 0)
	mustNumbers(t, "taken", sink.numbers(), 1, 2, 3, 4, 5, 6)
}

func TestSinkPortOwnsItsRecords(t *testing.T) {
	s := newSequence(1)
	sink := &shelf{room: unlimited}
	p := portOf(sink)
	borrowed := slices.Clone(s.items[0].bytes)
	if err := p.add(borrowed, 1); err != nil {
		t.Fatal(err)
	}
	clear(borrowed)
	p.offer(1, 0)
	mustBytes(t, "record", frame.AppendRecord(nil, sink.items[0].Record), s.items[0].bytes)
}

func TestSinkPortConfirms(t *testing.T) {
	s := newSequence(6)
	p := portOf(&shelf{room: unlimited})
	mustAdd(t, p, s, 6)
	p.offer(9, 0)
	for _, step := range []struct {
		upto abs.Seq
		news abs.Seq // 0: none
		left int
	}{{2, 2, 4}, {2, 0, 4}, {1, 0, 4}, {5, 5, 1}, {6, 6, 0}, {6, 0, 0}} {
		h, news := p.confirm(step.upto)
		mustEqual(t, "news", news, step.news > 0)
		if news {
			mustEqual(t, "entry", h, handedEntry{3, step.news, s.sum(step.news + 1)})
		}
		mustEqual(t, "items left", len(p.items), step.left)
		mustEqual(t, "bytes left", p.bytes, len(s.bytes(6-abs.Seq(step.left)+1, 6)))
	}
}

func TestSinkPortLimits(t *testing.T) {
	p := portOf(&shelf{})
	for range sinkItems {
		mustEqual(t, "full", p.full(), false)
		if err := p.add(numbered(1, 0), 1); err != nil {
			t.Fatal(err)
		}
	}
	mustEqual(t, "full by items", p.full(), true)
	p.confirm(1)
	mustEqual(t, "full after one was handed over", p.full(), false)

	p = portOf(&shelf{})
	for range sinkBytes / (100 << 10) {
		if err := p.add(numbered(1, 100<<10), 1); err != nil {
			t.Fatal(err)
		}
	}
	mustEqual(t, "full", p.full(), false)
	if err := p.add(numbered(1, 100<<10), 1); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "full by bytes", p.full(), true)
}

// TestSinkPortHoldsBackWhatWasHandedOver is a restart: the log says what was handed over, and replay
// makes it again.
func TestSinkPortHoldsBackWhatWasHandedOver(t *testing.T) {
	s := newSequence(6)
	sink := &shelf{room: unlimited}
	p := portOf(sink)
	p.handed, p.handedSum, p.logged, p.taken = 4, s.sum(5), 4, 4
	if err := p.seek(1, 0, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, p, s, 6)
	mustEqual(t, "held back", p.heldBack, 4)
	mustEqual(t, "compared", p.compared, 1)
	p.offer(9, 0)
	mustNumbers(t, "taken", sink.numbers(), 5, 6)
}

func TestSinkPortNamesADifference(t *testing.T) {
	s := newSequence(6)
	p := portOf(&shelf{})
	p.handed, p.handedSum = 4, s.sum(5)
	mustAdd(t, p, s, 2)
	if err := p.add(numbered(77, 0), 3); err != nil {
		t.Fatal(err)
	}
	err := p.add(s.items[3].bytes, 4)
	var diff *DiffError
	if !errors.As(err, &diff) || diff.Channel != "alarms@g1" || diff.Number != 4 {
		t.Fatalf("got %v", err)
	}
}

func TestSinkPortSeekTakesTheOutbox(t *testing.T) {
	s := newSequence(8)
	outbox := func(first, last abs.Seq) (recs [][]byte) {
		for n := first; n <= last; n++ {
			recs = append(recs, s.bytes(n, n))
		}
		return recs
	}
	cases := []struct {
		name   string
		handed abs.Seq // as the log says
		outbox [][]byte
		before frame.Sum
		taken  []abs.Seq
	}{
		{"all of it", 3, outbox(4, 6), s.sum(4), []abs.Seq{4, 5, 6, 7}},
		{"handed over after the cut, in part", 5, outbox(4, 6), s.sum(4), []abs.Seq{6, 7}},
		{"handed over whole", 6, outbox(4, 6), s.sum(4), []abs.Seq{7}},
		{"handed over and more", 7, outbox(4, 6), s.sum(4), nil},
		{"none", 6, nil, s.sum(7), []abs.Seq{7}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			sink := &shelf{room: unlimited}
			p := portOf(sink)
			p.handed, p.handedSum, p.taken = c.handed, s.sum(c.handed+1), c.handed
			if err := p.seek(7, s.sum(7), c.outbox, c.before, nil); err != nil {
				t.Fatal(err)
			}
			mustEqual(t, "next", p.next, 7)
			p.offer(0, 0) // what is in a snapshot needs no entry of the log
			mustAdd(t, p, s, 7)
			p.offer(9, 0)
			mustNumbers(t, "taken", sink.numbers(), c.taken...)
		})
	}
	for name, bad := range map[string]func(p *sinkPort) error{
		"a record is missing": func(p *sinkPort) error { return p.seek(7, s.sum(7), outbox(5, 6), s.sum(4), nil) },
		"another sum":         func(p *sinkPort) error { return p.seek(7, s.sum(7)^1, outbox(4, 6), s.sum(4), nil) },
		"another than was handed over": func(p *sinkPort) error {
			p.handed, p.handedSum = 5, s.sum(6)^1
			return p.seek(7, s.sum(7), outbox(4, 6), s.sum(4), nil)
		},
	} {
		var diff *DiffError
		if err := bad(portOf(&shelf{})); !errors.As(err, &diff) || diff.Channel != "alarms@g1" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSinkPortConfirmedAheadOfReplay: the task is restored while its sink goes on; what the sink
// confirms meanwhile is not offered again after the next restart, although no further confirmation
// comes.
func TestSinkPortConfirmedAheadOfReplay(t *testing.T) {
	s := newSequence(5)
	sink := &shelf{room: unlimited}
	p := portOf(sink)
	mustAdd(t, p, s, 5)
	p.offer(9, 0)
	p.confirm(2)
	if err := p.seek(1, 0, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	if _, news := p.confirm(4); news {
		t.Fatal("confirmed what the task has not made again: its checksum is not known")
	}
	mustAdd(t, p, s, 3)
	if _, news := p.news(); news {
		t.Fatal("an entry for each item that is made again")
	}
	mustAdd(t, p, s, 5)
	h, news := p.news()
	mustEqual(t, "news", news, true)
	mustEqual(t, "entry", h, handedEntry{3, 4, s.sum(5)})
	mustEqual(t, "items left", len(p.items), 1)
	p.offer(9, 0)
	mustNumbers(t, "taken", sink.numbers(), 1, 2, 3, 4, 5)
}

// TestSinkPortProperty: over restores of the task and of the process, a sink that confirms in order
// gets every number, in order, and nothing that the log says was handed over.
func TestSinkPortProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSequence(25)
		sink := &shelf{room: unlimited}
		p := portOf(sink)
		type part struct {
			next, handed   abs.Seq
			sum, handedSum frame.Sum
			outbox         [][]byte
		}
		parts := []part{{next: 1}}
		var logged handedEntry
		confirmed := 0    // of sink.items
		var floor abs.Seq // handed over when the process started
		note := func(h handedEntry, news bool) {
			if news {
				logged = h
			}
		}
		seek := func(pt part) {
			before := pt.sum
			if len(pt.outbox) > 0 {
				before = pt.handedSum
			}
			if pt.handed > p.handed {
				p.handed, p.handedSum = pt.handed, pt.handedSum
			}
			p.logged, p.taken = p.handed, max(p.taken, p.handed)
			if err := p.seek(pt.next, pt.sum, pt.outbox, before, nil); err != nil {
				t.Fatal(err)
			}
		}
		pick := func() part { return parts[rapid.IntRange(0, len(parts)-1).Draw(t, "part")] }
		t.Repeat(map[string]func(*rapid.T){
			"make": func(t *rapid.T) {
				mustAdd(t, p, s, min(25, p.next+abs.Seq(rapid.IntRange(0, 4).Draw(t, "items"))))
			},
			"offer": func(t *rapid.T) {
				sink.room = rapid.IntRange(0, 5).Draw(t, "room")
				p.offer(abs.Position(rapid.IntRange(0, 25).Draw(t, "synced")), 0)
			},
			"confirm": func(t *rapid.T) {
				if left := len(sink.items) - confirmed; left > 0 {
					confirmed += rapid.IntRange(1, left).Draw(t, "more")
					note(p.confirm(sink.items[confirmed-1].Number))
				}
			},
			"log what is news": func(t *rapid.T) { note(p.news()) },
			"snapshot": func(t *rapid.T) { // in replay, none is taken again
				if p.next < parts[len(parts)-1].next {
					return
				}
				pt := part{next: p.next, sum: p.sum, handed: p.handed, handedSum: p.handedSum}
				for _, it := range p.items {
					pt.outbox = append(pt.outbox, it.record)
				}
				parts = append(parts, pt)
			},
			"task restored": func(t *rapid.T) { seek(pick()) },
			"process restarted": func(t *rapid.T) {
				sink = &shelf{}
				p = portOf(sink)
				confirmed = 0
				p.handed, p.handedSum = logged.number, logged.sum
				seek(parts[len(parts)-1])
				floor = p.handed
				if logged.number < p.handed {
					logged = handedEntry{3, p.handed, p.handedSum}
				}
			},
			"": func(t *rapid.T) {
				for i, it := range sink.items {
					mustEqual(t, "number", it.Number, floor+1+abs.Seq(i))
					mustBytes(t, "record", frame.AppendRecord(nil, it.Record), s.bytes(it.Number, it.Number))
				}
				if p.handed > 0 {
					mustEqual(t, "checksum of what was handed over", p.handedSum, s.sum(p.handed+1))
				}
				mustEqual(t, "checksum", p.sum, s.sum(p.next))
				bytes := 0
				for i, it := range p.items {
					mustEqual(t, "number", it.number, p.next-abs.Seq(len(p.items)-i))
					bytes += len(it.record)
				}
				mustEqual(t, "bytes", p.bytes, bytes)
			},
		})
		// In the end everything arrives.
		sink.room = unlimited
		mustAdd(t, p, s, 25)
		p.offer(25, 0)
		mustEqual(t, "last", max(p.taken, p.handed), 25)
	})
}

// A port that goes back to a part, because its job does, holds nothing back that will be made anew.
func TestSinkPortRollsBack(t *testing.T) {
	s := newSequence(9)
	for _, c := range []struct {
		name           string
		handed, logged abs.Seq // by the part, by the log
		beyond         uint64
		offered        []abs.Seq
	}{
		{"within", 2, 3, 0, []abs.Seq{4, 5, 6}},
		{"all of it", 2, 5, 0, []abs.Seq{6}},
		{"beyond", 2, 8, 3, []abs.Seq{6}},
		{"beyond, as the part says", 7, 0, 2, []abs.Seq{6}},
	} {
		sink := &shelf{room: unlimited}
		p := portOf(sink)
		if c.logged > 0 {
			p.handed, p.handedSum, p.logged = c.logged, s.sum(c.logged+1), c.logged
		}
		m := sinkMeta{Next: 6, Sum: s.sum(6), Handed: c.handed, HandedSum: s.sum(c.handed + 1)}
		for n := c.handed + 1; n < m.Next; n++ {
			m.Outbox = append(m.Outbox, s.items[n-1].bytes)
		}
		task := &Task{chain: chain{sinks: []*sinkPort{p}}, loadSinks: map[string]sinkMeta{"alarms": m}, rollBack: true}
		if err := task.seekSinks(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		mustEqual(t, c.name, task.recovery.Repeated, c.beyond)
		if err := p.add(s.items[8].bytes, 9); err != nil { // another one than before
			t.Fatalf("%s: %v", c.name, err)
		}
		p.offer(9, 0)
		mustNumbers(t, c.name, sink.numbers(), c.offered...)
		if h, news := p.confirm(6); !news || h.number != 6 {
			t.Errorf("%s: what is handed over now is not logged: %+v", c.name, h)
		}
	}
}

// A sink that resumes begins anew: what it has under way may be among what is void. One that commits with
// checkpoints was only offered what is in the part.
func TestResumingSinkRollsBack(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		p, _ := resumingPort()
		p.resume.found(100, 4, 9)
		m := sinkMeta{Next: 6, Sent: 3}
		if keeps {
			p.held = &held{}
		}
		p.rollBack(&m)
		p.resume.begin()
		for n := abs.Seq(1); n < 9; n++ {
			want := PastNone
			if keeps && n < 6 {
				if want = PastSent; n <= 4 {
					want = PastReceived
				}
			}
			mustEqual(t, "past", p.resume.pastOf(n), want)
		}
	}
}

// TestSinkPortOffersAFullSinkLittle: it is asked after every step, for as long as its broker is away.
func TestSinkPortOffersAFullSinkLittle(t *testing.T) {
	s := newSequence(10 * offerItems)
	sink := &shelf{}
	p := portOf(sink)
	mustAdd(t, p, s, 10*offerItems)
	p.offer(10*offerItems, 0)
	mustEqual(t, "items offered", sink.most, offerItems)
	mustEqual(t, "times", sink.offers, 1)
	sink.room = unlimited
	p.offer(10*offerItems, 0)
	mustEqual(t, "taken", len(sink.items), 10*offerItems)
	mustEqual(t, "last", sink.items[10*offerItems-1].Number, 10*offerItems)
	sink.offers = 0
	p.offer(10*offerItems, 0)
	mustEqual(t, "offered again", sink.offers, 0)
}
