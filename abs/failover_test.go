package abs

import (
	"fmt"
	"slices"
	"testing"
)

// TestFailOverAtEveryStep lets a coordinator be followed by another after every single step of two epochs:
// from the first write, over each acknowledgement, the commit and each replica, to the mark that the parts are
// replicated. Its write under way is lost, or done without an answer, or done at any later step; it is dead,
// or lives on and does not know. And the next one is followed by a third after every step of its own.
func TestFailOverAtEveryStep(t *testing.T) {
	steps := 0
	for w := newSuccession(t, "undisturbed"); !w.over(); steps++ {
		w.step()
	}
	runs := 0
	for first := range steps {
		for _, fate := range []string{"lost", "unanswered", "late", "zombie"} {
			for second := range steps + 1 { // the last one: there is no third term
				if fate == "late" && second%3 != 0 && second != steps {
					continue // the late write comes at the same step: a third of the pairs do
				}
				w := newSuccession(t, fmt.Sprintf("term 2 after step %d, term 1 %s, term 3 after %d more", first, fate, second))
				for range first {
					w.step()
				}
				w.follow(fate)
				for i := 0; !w.over(); i++ {
					if i == second {
						w.late()
						w.follow(fate)
					}
					w.step()
				}
				w.late()
				w.atEnd()
				runs++
			}
		}
	}
	t.Logf("%d steps, %d runs", steps, runs)
	if steps < 20 {
		t.Errorf("two epochs take %d steps: the test steps over something", steps)
	}
}

// succession is a job whose coordinators follow each other. What happens next is always the first thing that can.
type succession struct {
	t     *testing.T
	what  string
	kv    *testKV
	terms []*term
	now   int64
	put   []Write // under way, of terms that are over
}

type term struct {
	c                     *Coordinator
	n                     Term
	write                 *Write
	lives, over           bool
	records, acks, copies int // seen
}

var successionPlan = Plan{
	Generation: 1,
	Tasks:      []PlannedTask{{ID: "s", Agent: "gate", Source: true}, {ID: "k", Agent: "hub"}},
	Channels:   []PlannedChannel{{ID: "c", From: "s", To: "k"}},
}

func newSuccession(t *testing.T, what string) *succession {
	w := &succession{t: t, what: what, kv: newTestKV()}
	w.begin()
	return w
}

func (w *succession) begin() {
	n := Term(len(w.terms) + 1)
	c, err := NewCoordinator(Config{IntervalMs: 100, TimeoutMs: 60_000, ReplicaTimeoutMs: 60_000, Replicate: true}, successionPlan, n, w.kv.recovered())
	if err != nil {
		w.t.Fatalf("%s: %v", w.what, err)
	}
	tm := &term{c: c, n: n, lives: true, records: len(w.kv.history), acks: len(w.kv.acks), copies: len(w.kv.replicas)}
	w.terms = append(w.terms, tm)
	w.give(tm, Tick{})
}

// follow begins the next term.
func (w *succession) follow(fate string) {
	old := w.terms[len(w.terms)-1]
	old.lives = fate == "zombie"
	if wr := old.write; wr != nil && !old.lives {
		switch fate {
		case "unanswered":
			w.swap(*wr)
		case "late":
			w.put = append(w.put, *wr)
		}
		old.write = nil
	}
	w.begin()
}

// late lets the writes arrive that were under way when their terms were over.
func (w *succession) late() {
	for _, wr := range w.put {
		w.swap(wr)
	}
	w.put = nil
}

func (w *succession) give(tm *term, n Notice) {
	act := tm.c.Step(n, w.now)
	switch {
	case act.Deposed != "" && tm == w.terms[len(w.terms)-1]:
		w.t.Fatalf("%s: the newest term is deposed: %s", w.what, act.Deposed)
	case act.Deposed != "":
		tm.over = true
	case act.Write != nil:
		tm.write = act.Write
	}
}

func (w *succession) swap(wr Write) (uint64, bool) {
	old, existed := w.kv.records[wr.Record.Epoch]
	rev, ok := w.kv.swap(wr)
	if !ok {
		return 0, false
	}
	r := wr.Record
	legal := map[EpochState][]EpochState{Started: {Started, Committed}, Committed: {Replicated}}
	before := w.kv.records[r.Epoch-1].Record
	switch {
	case existed && !slices.Contains(legal[old.Record.State], r.State), !existed && r.State != Started:
		w.t.Fatalf("%s: %v goes from %q to %q", w.what, r.Epoch, old.Record.State, r.State)
	case existed && r.Term < old.Record.Term:
		w.t.Fatalf("%s: %v is written by term %d after term %d", w.what, r.Epoch, r.Term, old.Record.Term)
	case !existed && r.Epoch > 0 && before.State != Replicated:
		w.t.Fatalf("%s: %v starts while the one before it is %q", w.what, r.Epoch, before.State)
	}
	return rev, true
}

// step does the first thing that can happen: every living term does one of its own, the oldest first.
func (w *succession) step() {
	w.now += 10
	acted := false
	for _, tm := range w.terms {
		acted = tm.lives && !tm.over && w.act(tm) || acted
	}
	if !acted && !w.answer() {
		w.now += 100
		for _, tm := range w.terms {
			if tm.lives && !tm.over {
				w.give(tm, Tick{})
			}
		}
	}
	if w.now > 100_000 {
		w.t.Fatalf("%s: no progress: %+v", w.what, w.kv.history)
	}
}

// act performs a term's write, or gives it what it has not seen.
func (w *succession) act(tm *term) bool {
	switch {
	case tm.write != nil:
		wr := *tm.write
		tm.write = nil
		if rev, ok := w.swap(wr); ok {
			w.give(tm, Written{rev})
			return true
		}
		w.give(tm, RecordSeen(w.kv.records[wr.Record.Epoch]))
		if !tm.over {
			w.give(tm, Unwritten{})
		}
	case tm.acks < len(w.kv.acks):
		tm.acks++
		w.give(tm, w.kv.acks[tm.acks-1])
	case tm.copies < len(w.kv.replicas):
		tm.copies++
		w.give(tm, w.kv.replicas[tm.copies-1])
	case tm.records < len(w.kv.history):
		tm.records++
		w.give(tm, RecordSeen(w.kv.history[tm.records-1]))
	default:
		return false
	}
	return true
}

// answer lets a task answer the newest record, one at a time.
func (w *succession) answer() bool {
	epochs := w.kv.epochs()
	if len(epochs) == 0 {
		return false
	}
	r := w.kv.records[epochs[len(epochs)-1]].Record
	for _, t := range successionPlan.Tasks {
		a := Ack{Task: t.ID, Epoch: r.Epoch, Generation: 1, Part: w.part(t.ID, r.Epoch)}
		if r.State == Started && !slices.ContainsFunc(w.kv.acks, func(o Ack) bool { return o.Task == a.Task && o.Epoch == a.Epoch }) {
			w.kv.acks = append(w.kv.acks, a)
			return true
		}
		ra := ReplicaAck{Task: t.ID, Epoch: r.Epoch, Generation: 1, Version: a.Part.Version, Packs: []string{"pack"}}
		if r.State == Committed && !slices.ContainsFunc(w.kv.replicas, func(o ReplicaAck) bool { return o.Task == ra.Task && o.Epoch == ra.Epoch }) {
			w.kv.replicas = append(w.kv.replicas, ra)
			return true
		}
	}
	return false
}

func (w *succession) part(t TaskID, e Epoch) Part {
	p := Part{Epoch: e, Generation: 1, Version: uint64(e) + 1}
	if t == "s" {
		p.Cut.Sent = map[ChannelID]Seq{"c": Seq(e)}
		return p
	}
	p.Cut.Consumed, p.Aligned = map[ChannelID]Seq{"c": Seq(e)}, []ChannelID{"c"}
	return p
}

// over says whether two epochs are replicated and the third has started.
func (w *succession) over() bool { return len(w.kv.records) == 3 }

// atEnd: nothing was skipped or done twice, and a term that others have followed knows it when it has seen
// what there is.
func (w *succession) atEnd() {
	for e := range Epoch(2) {
		r := w.kv.records[e].Record
		if r.State != Replicated || r.Parts["s"].Version != uint64(e)+1 || r.Parts["k"].Version != uint64(e)+1 {
			w.t.Fatalf("%s: in the end %v is %+v", w.what, e, r)
		}
	}
	for _, tm := range w.terms[:len(w.terms)-1] {
		for tm.lives && !tm.over && w.act(tm) {
			continue
		}
		if newest := w.terms[len(w.terms)-1]; tm.lives && !tm.over && w.kv.records[2].Record.Term == newest.n {
			w.t.Fatalf("%s: term %d does not know that it is over", w.what, tm.n)
		}
	}
}
