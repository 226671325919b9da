package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// Limits of a run. Beyond them it does not make progress.
const (
	maxEvents = 400_000
	// patience is how much virtual time a run may take once nothing is broken any more.
	patience = 4 * time.Minute
)

// world is one run: everything there is, and the one queue of what happens next.
type world struct {
	seed    uint64
	rng     *rand.Rand
	profile profile
	topo    *topology
	rules   rules
	gen     abs.Generation
	next    *successor // nil: no agent was replaced

	now    time.Duration
	events eventHeap
	count  int    // events so far
	serial uint64 // of the last event queued
	tracer func(string)

	agents   []*agent
	streams  map[abs.TaskID]*stream
	grants   map[int]time.Duration // when the last one of a channel arrives
	kv       *kv
	upgrades map[*plannedTask]dataflow.Upgrade // decided
	leaders  []*leader
	terms    int // before the first of these
	brokers  []*broker
	outside  *outside
	oracle   *oracle
	chaos    *chaos

	calm    bool // no more faults
	calmAt  int  // events until then
	settled bool // the run has come to its end
}

// violation is what an oracle found.
type violation struct{ text string }

func (v violation) Error() string { return v.text }

type event struct {
	at     time.Duration
	serial uint64
	do     func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].serial < h[j].serial
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(e any)   { *h = append(*h, e.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}

// newWorld builds the job on its agents. Nothing has happened yet.
func newWorld(topo *topology, seed uint64, opt options) *world {
	w := &world{
		seed: seed, rng: rand.New(rand.NewPCG(seed, uint64(len(topo.name))<<32|uint64(topo.name[0]))), topo: topo, rules: opt.rules, gen: 1,
		streams: map[abs.TaskID]*stream{}, grants: map[int]time.Duration{}, upgrades: map[*plannedTask]dataflow.Upgrade{}, tracer: opt.trace,
	}
	w.profile = newProfile(w, opt)
	w.oracle = newOracle(w)
	w.outside = newOutside(w)
	w.kv = newKV(w)
	for _, name := range topo.agents() {
		w.agents = append(w.agents, newAgent(w, name))
	}
	for _, t := range topo.tasks {
		w.streams[t.id] = newStream(w, t)
		if t.source {
			w.brokers = append(w.brokers, newBroker(w, t))
		}
	}
	w.chaos = newChaos(w, opt)
	return w
}

// run lets events happen until the job has done all there is to do. It returns what went wrong.
func (w *world) run() (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case violation:
			err = r
		default:
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	for _, a := range w.agents {
		w.after(w.some(time.Millisecond), a.boot)
	}
	for _, b := range w.brokers {
		if w.oracle.restore == nil || w.replaced(b.t) {
			b.produce()
		}
	}
	if w.next != nil {
		w.haunt(400)
	}
	w.after(w.some(50*time.Millisecond), w.elect)
	w.after(0, w.chaos.watch)
	for !w.settled {
		w.step()
	}
	w.oracle.atEnd()
	return nil
}

func (w *world) step() {
	if len(w.events) == 0 || w.count >= maxEvents {
		w.fail("no progress after %d events and %v: %s", w.count, w.now, w.stuck())
	}
	e := heap.Pop(&w.events).(event)
	w.now = e.at
	w.count++
	e.do()
	w.chaos.strike()
}

// after queues an event.
func (w *world) after(d time.Duration, do func()) {
	w.serial++
	heap.Push(&w.events, event{w.now + d, w.serial, do})
}

func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.trace("VIOLATION %s", text)
	panic(violation{text})
}

func (w *world) trace(format string, args ...any) {
	if w.tracer != nil {
		w.tracer(fmt.Sprintf("%6d %10v  %s", w.count, w.now, fmt.Sprintf(format, args...)))
	}
}

// one is true in one of n draws.
func (w *world) one(n int) bool { return w.rng.IntN(n) == 0 }

// some is a delay around d, now and then much longer.
func (w *world) some(d time.Duration) time.Duration {
	d = time.Duration(w.rng.Int64N(int64(2*d) + 1))
	if w.rng.IntN(64) == 0 {
		d *= 40
	}
	return d
}

func (w *world) agent(name string) *agent {
	for _, a := range w.agents {
		if a.name == name {
			return a
		}
	}
	panic("no agent " + name)
}

// stuck describes what everybody waits for.
func (w *world) stuck() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", w.oracle.why)
	for _, a := range w.agents {
		fmt.Fprintf(&b, "agent %s: up %v, cut %v, log %d/%d\n", a.name, a.proc != nil, a.cut, a.disk.synced, a.disk.last)
		if a.proc == nil {
			continue
		}
		for _, r := range a.proc.runners {
			if r.run == nil {
				fmt.Fprintf(&b, "  %s: not running\n", r.t.id)
				continue
			}
			st := r.run.task.Status()
			fmt.Fprintf(&b, "  %s: %s pos %d epoch %d held %d waiting %v save %q counters %+v stream %s\n",
				r.t.id, st.State, st.Pos, st.Epoch, st.Held, st.Waiting, st.SaveError, st.Counters, w.streams[r.t.id])
		}
	}
	for _, b2 := range w.brokers {
		fmt.Fprintf(&b, "broker of %s: %d of %d acknowledged\n", b2.t.id, b2.acknowledged(), len(b2.messages))
	}
	for _, l := range w.leaders {
		if !l.dead {
			fmt.Fprintf(&b, "term %d on %s: busy %v %+v\n", l.term, l.host.name, l.busy, l.coord.Status())
		}
	}
	return b.String()
}
