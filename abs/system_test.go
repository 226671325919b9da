package abs

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var (
	systemSeed  = flag.Uint64("system.seed", 0, "run the system test with this seed only")
	systemSeeds = flag.Uint64("system.seeds", 150, "run the system test with the seeds from 1 up to this")
)

// The system test runs coordinators, aligners and channels together in random order, with
// coordinators that die and live on as zombies, writes that are late or lost, gateways that are cut
// off and come back, failing tasks, and aligners that are restored at any moment.

// worldPlans are the graphs: tasks as name@agent, sources with a star, channels as from>to, back
// edges with a tilde.
var worldPlans = map[string]string{
	"chain":   "s@g1* m@hub k@hub2 s>m m>k",
	"merge":   "a@g1* b@g2* m@hub k@hub2 a>m b>m m>k",
	"shuffle": "a@g1* b@g2* c@h1 d@h2 e@h1 f@h3 a>c a>d b>c b>d c>e c>f d>e d>f",
	"diamond": "s@g1* p@h1 q@h2 m@h3 s>p s>q p>m q>m",
	"loop":    "s@g1* h@hub b@h2 k@h3 s>h h>b b>k b~h",
	"loop2":   "a@g1* b@g2* h@hub x@h1 y@h2 k@h3 a>h b>h h>x h>y x>k y>k x~h y~h",
	"device":  "a@g1* b@g1* m@g1 c@g2* k@hub a>m b>m m>k c>k",
}

func parseWorldPlan(text string) Plan {
	p := Plan{Generation: 1}
	for _, w := range strings.Fields(text) {
		if name, agent, ok := strings.Cut(w, "@"); ok {
			agent, source := strings.CutSuffix(agent, "*")
			p.Tasks = append(p.Tasks, PlannedTask{ID: TaskID(name), Agent: agent, Source: source})
			continue
		}
		from, to, back := strings.Cut(w, "~")
		if !back {
			from, to, _ = strings.Cut(w, ">")
		}
		p.Channels = append(p.Channels, PlannedChannel{ID: ChannelID(w), From: TaskID(from), To: TaskID(to), Back: back})
	}
	return p
}

// worldTask is a task, its outputs, and its parts.
type worldTask struct {
	PlannedTask
	t     *testTask
	outs  []PlannedChannel
	sent  map[ChannelID]Seq
	cuts  map[Epoch]Part // of every freeze
	open  *Part          // waits for its loop log
	ended bool
}

// worldTerm is a coordinator with its write under way.
type worldTerm struct {
	c       *Coordinator
	term    Term
	write   *Write
	records int // of the history that its watch has delivered
	acks    int
	replica int
	dead    bool
}

type world struct {
	t       *testing.T
	rng     *rand.Rand
	plan    Plan
	cfg     Config
	kv      *testKV
	history []VersionedRecord // every state of every key, in order
	tasks   map[TaskID]*worldTask
	queues  map[ChannelID][]string
	outbox  map[string][]Ack // acknowledgements that an agent has not written yet
	seen    map[string]int   // of the history, per agent
	cut     map[string]bool  // agents without network
	terms   []*worldTerm
	now     int64
	slow    string // an agent whose watch lags: data overtakes records
	calm    bool   // no more faults
	zombies bool   // may go on
}

func newWorld(t *testing.T, seed uint64) *world {
	names := slices.Sorted(maps.Keys(worldPlans))
	name := names[seed%uint64(len(names))]
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), plan: parseWorldPlan(worldPlans[name]), kv: newTestKV(), tasks: map[TaskID]*worldTask{},
		queues: map[ChannelID][]string{}, outbox: map[string][]Ack{}, seen: map[string]int{}, cut: map[string]bool{},
		cfg: Config{IntervalMs: 100, MinPauseMs: 10, TimeoutMs: 400, DetachAfterMs: 50, ReplicaTimeoutMs: 200},
	}
	w.cfg.Replicate = w.one(2)
	w.zombies = w.one(2)
	if w.one(2) {
		w.slow = "hub"
	}
	for _, pt := range w.plan.Tasks {
		w.addTask(pt)
	}
	w.newTerm()
	return w
}

func (w *world) addTask(pt PlannedTask) {
	k := &worldTask{PlannedTask: pt, t: newTestTask(w.plan.Inputs(pt.ID), ExactlyOnce), sent: map[ChannelID]Seq{}, cuts: map[Epoch]Part{}}
	for _, ch := range w.plan.Channels {
		if ch.From == pt.ID {
			k.outs = append(k.outs, ch)
		}
	}
	k.t.onFreeze = func(fx Effects) { w.freeze(k, fx) }
	k.t.onStop = func(n Epoch, logged map[ChannelID]Seq) {
		if k.open == nil || k.open.Epoch != n {
			w.t.Fatalf("task %s: log of %v is complete, open is %+v", k.ID, n, k.open)
		}
		k.open.Cut.Logged = logged
		w.ack(k, *k.open)
		k.open = nil
	}
	k.t.onDrop = func(Epoch) { k.open = nil }
	k.t.say = func(f string, args ...any) {}
	w.tasks[pt.ID] = k
	w.seen[pt.Agent] = 0
}

func (w *world) freeze(k *worldTask, fx Effects) {
	for _, ch := range k.outs {
		w.send(k, ch.ID, fmt.Sprintf("b%d", fx.Freeze))
	}
	part := Part{
		Epoch: fx.Freeze, Generation: 1, Version: uint64(fx.Freeze) + 1, Aligned: fx.Aligned, Ended: k.ended,
		Cut: Cut{Sent: maps.Clone(k.sent), Consumed: maps.Clone(k.t.consumed)},
	}
	if _, twice := k.cuts[fx.Freeze]; twice {
		w.t.Fatalf("task %s froze %v twice", k.ID, fx.Freeze)
	}
	k.cuts[fx.Freeze] = part
	if fx.StartLog != 0 {
		k.open = &part
		return
	}
	w.ack(k, part)
}

func (w *world) send(k *worldTask, ch ChannelID, it string) {
	if k.ended { // its freezes go on, its channels do not
		return
	}
	k.sent[ch]++
	w.queues[ch] = append(w.queues[ch], it)
}

func (w *world) ack(k *worldTask, p Part) {
	a := Ack{Task: k.ID, Epoch: p.Epoch, Generation: 1, Part: p}
	if !w.calm && w.one(40) {
		a = Ack{Task: k.ID, Epoch: p.Epoch, Generation: 1, Failed: "disk"}
	}
	w.outbox[k.Agent] = append(w.outbox[k.Agent], a)
}

// one is true in one of n draws.
func (w *world) one(n int) bool { return w.rng.IntN(n) == 0 }

func (w *world) pick(n int) int { return w.rng.IntN(n) }

func (w *world) newTerm() {
	term := Term(len(w.terms) + 1)
	c, err := NewCoordinator(w.cfg, w.plan, term, w.kv.recovered())
	if err != nil {
		w.t.Fatal(err)
	}
	wt := &worldTerm{c: c, term: term, records: len(w.history), acks: len(w.kv.acks), replica: len(w.kv.replicas)}
	w.terms = append(w.terms, wt)
	w.step(wt, Tick{})
	for _, agent := range slices.Sorted(maps.Keys(w.cut)) {
		if w.cut[agent] {
			w.step(wt, AgentGone{agent})
		}
	}
}

func (w *world) step(wt *worldTerm, n Notice) {
	if wt.dead {
		return
	}
	act := wt.c.Step(n, w.now)
	if act.Deposed != "" {
		if wt == w.terms[len(w.terms)-1] {
			w.t.Fatalf("the newest term was deposed: %s", act.Deposed)
		}
		wt.dead, wt.write = true, nil
		return
	}
	if act.Write != nil {
		if wt.write != nil {
			w.t.Fatalf("term %d: a second write before the answer", wt.term)
		}
		wt.write = act.Write
	}
}

// perform does, or loses, the write under way of a term.
func (w *world) perform(wt *worldTerm) {
	wr := wt.write
	if wr == nil {
		return
	}
	wt.write = nil
	fate := 0
	if !w.calm {
		fate = w.pick(10)
	}
	if fate == 9 { // not done, no answer in time
		w.step(wt, Unwritten{})
		return
	}
	before := w.kv.records[wr.Record.Epoch]
	rev, ok := w.kv.swap(*wr)
	if !ok {
		w.step(wt, RecordSeen(w.kv.records[wr.Record.Epoch]))
		w.step(wt, Unwritten{})
		return
	}
	after := w.kv.records[wr.Record.Epoch]
	w.history = append(w.history, after)
	w.checkWrite(before.Record, before.Revision != 0, after.Record)
	if fate == 8 { // done, the answer is lost
		w.step(wt, Unwritten{})
		return
	}
	w.step(wt, Written{rev})
}

// checkWrite holds every change of a key against the rules.
func (w *world) checkWrite(old EpochRecord, existed bool, r EpochRecord) {
	legal := map[EpochState][]EpochState{Started: {Started, Aborted, Committed}, Committed: {Replicated, Aborted}}
	switch {
	case !existed && r.State != Started, existed && !slices.Contains(legal[old.State], r.State):
		w.t.Fatalf("%v: from %q to %q", r.Epoch, old.State, r.State)
	case existed && r.Term < old.Term:
		w.t.Fatalf("%v: term %d wrote after term %d", r.Epoch, r.Term, old.Term)
	case !existed && r.Epoch > 0 && !w.kv.records[r.Epoch-1].Record.over():
		w.t.Fatalf("%v started while the one before it runs", r.Epoch)
	}
	if r.State == Aborted && strings.Contains(r.Reason, "channel ") && !strings.Contains(r.Reason, `"m>k"`) {
		w.t.Fatalf("%v: numbers do not fit: %s", r.Epoch, r.Reason)
	}
	if r.State == Committed && existed {
		w.checkManifest(r)
	}
}

func (w *world) checkManifest(r EpochRecord) {
	if err := Check(w.plan, ExactlyOnce, r.Parts); err != nil {
		w.t.Fatalf("%v committed although %v", r.Epoch, err)
	}
	for id, p := range r.Parts {
		if p.Epoch == 0 {
			continue
		}
		froze := w.tasks[id].cuts[p.Epoch]
		if !maps.Equal(p.Cut.Sent, froze.Cut.Sent) || !maps.Equal(p.Cut.Consumed, froze.Cut.Consumed) {
			w.t.Fatalf("%v: part of %s is %+v, it froze %+v", r.Epoch, id, p.Cut, froze.Cut)
		}
	}
	for _, ch := range w.plan.Channels {
		from, to := r.Parts[ch.From], r.Parts[ch.To]
		if !ch.Back && from.Epoch == to.Epoch && from.Cut.Sent[ch.ID] != to.Cut.Consumed[ch.ID] {
			w.t.Fatalf("%v: %s sent %d, consumed %d", r.Epoch, ch.ID, from.Cut.Sent[ch.ID], to.Cut.Consumed[ch.ID])
		}
	}
}

// watch delivers the next thing that a term's watch has not seen.
func (w *world) watch(wt *worldTerm) {
	switch {
	case wt.records < len(w.history):
		wt.records++
		w.step(wt, RecordSeen(w.history[wt.records-1]))
	case wt.acks < len(w.kv.acks):
		wt.acks++
		w.step(wt, w.kv.acks[wt.acks-1])
	case wt.replica < len(w.kv.replicas):
		wt.replica++
		w.step(wt, w.kv.replicas[wt.replica-1])
	default:
		w.step(wt, Tick{})
	}
}

// agentSees gives an agent the next record and its tasks what they lack of it.
func (w *world) agentSees(agent string) {
	if w.cut[agent] || w.seen[agent] == len(w.history) {
		return
	}
	r := w.history[w.seen[agent]].Record
	w.seen[agent]++
	for _, pt := range w.plan.Tasks {
		if pt.Agent == agent {
			w.taskSees(w.tasks[pt.ID], r)
		}
	}
	if r.Manifest() && w.cfg.Replicate {
		for _, pt := range w.plan.Tasks {
			if p := r.Parts[pt.ID]; pt.Agent == agent && len(p.Packs) == 0 {
				w.kv.replicas = append(w.kv.replicas, ReplicaAck{pt.ID, p.Epoch, p.Generation, p.Version, []string{"x"}})
			}
		}
	}
}

func (w *world) taskSees(k *worldTask, r EpochRecord) {
	if r.Initial && r.State == Started {
		w.outbox[k.Agent] = append(w.outbox[k.Agent], Ack{Task: k.ID, Epoch: r.Epoch, Generation: 1, Part: Part{Generation: 1, Version: 1}})
	}
	for _, ev := range k.t.al.Lacks(r, k.Agent) {
		k.t.control(ev)
	}
	if again := k.t.al.Lacks(r, k.Agent); len(again) > 0 && !r.Initial {
		w.t.Fatalf("task %s still lacks %v of %+v", k.ID, again, r)
	}
}

func (w *world) writeAck(agent string) {
	if q := w.outbox[agent]; !w.cut[agent] && len(q) > 0 {
		w.outbox[agent] = q[1:]
		w.kv.acks = append(w.kv.acks, q[0])
	}
}

// emit lets a source send a record, or, seldom, its end.
func (w *world) emit(k *worldTask) {
	if !k.Source || k.ended {
		return
	}
	ch := k.outs[w.pick(len(k.outs))]
	w.send(k, ch.ID, "r")
	if w.calm || !w.one(400) {
		return
	}
	for _, ch := range k.outs {
		w.send(k, ch.ID, "end")
	}
	k.ended = true
}

// deliver takes the next item of a channel to its receiver, which sends a record on for a record.
func (w *world) deliver(ch PlannedChannel) {
	from, to := w.tasks[ch.From], w.tasks[ch.To]
	if len(w.queues[ch.ID]) == 0 || from.Agent != to.Agent && (w.cut[from.Agent] || w.cut[to.Agent]) {
		return
	}
	it := w.queues[ch.ID][0]
	w.queues[ch.ID] = w.queues[ch.ID][1:]
	before := len(to.t.aside)
	to.t.arrive(ch.ID, it)
	if it == "r" && len(to.outs) > 0 && len(to.t.aside) == before {
		out := to.outs[w.pick(len(to.outs))]
		if !ch.Back || !out.Back {
			w.send(to, out.ID, "r")
		}
	}
	if to.t.al.Ended() && !to.ended && !slices.ContainsFunc(w.plan.Channels, func(c PlannedChannel) bool { return c.Back }) {
		for _, out := range to.outs {
			w.send(to, out.ID, "end")
		}
		to.ended = true
	}
}

// toggle cuts a gateway off, or reconnects it; reports that its backlog is drained when it is.
func (w *world) toggle(agent string) {
	if !w.plan.Gateway(agent) {
		return
	}
	newest := w.terms[len(w.terms)-1]
	switch {
	case !w.cut[agent] && !w.calm:
		w.cut[agent] = true
		w.step(newest, AgentGone{agent})
	case w.cut[agent]:
		w.cut[agent] = false
		w.step(newest, AgentBack{agent})
	}
}

func (w *world) drained(agent string) {
	if w.cut[agent] || w.seen[agent] < len(w.history) || len(w.outbox[agent]) > 0 {
		return
	}
	for _, ch := range w.plan.Channels {
		if w.tasks[ch.From].Agent == agent && len(w.queues[ch.ID]) > 0 {
			return
		}
	}
	w.step(w.terms[len(w.terms)-1], AgentDrained{agent})
}

func (w *world) agents() []string { return slices.Sorted(maps.Keys(w.seen)) }

// tick does one random thing.
func (w *world) tick() {
	agents := w.agents()
	agent := agents[w.pick(len(agents))]
	task := w.tasks[w.plan.Tasks[w.pick(len(w.plan.Tasks))].ID]
	term := w.terms[len(w.terms)-1]
	if w.zombies && len(w.terms) > 1 && w.one(4) {
		term = w.terms[w.pick(len(w.terms))]
	}
	switch n := w.pick(100); {
	case n < 12:
		w.emit(task)
	case n < 45:
		w.deliver(w.plan.Channels[w.pick(len(w.plan.Channels))])
	case n < 60:
		if agent != w.slow || w.one(6) {
			w.agentSees(agent)
		}
	case n < 70:
		w.writeAck(agent)
	case n < 82:
		w.watch(term)
	case n < 90:
		w.perform(term)
	case n < 93:
		w.now += int64(w.pick(60))
		w.step(term, Tick{})
	case n < 97:
		w.drained(agent)
	case n < 98:
		if err := task.t.restore(); err != nil {
			w.t.Fatal(err)
		}
	case n < 99:
		w.toggle(agent)
	case len(w.terms) < 12 && w.one(8):
		w.newTerm()
	}
}

// settle runs without faults until a new epoch counts.
func (w *world) settle() {
	w.calm = true
	for _, agent := range w.agents() {
		if w.cut[agent] {
			w.toggle(agent)
		}
	}
	newest := w.terms[len(w.terms)-1]
	var from Epoch
	if n := len(w.kv.epochs()); n > 0 {
		from = w.kv.epochs()[n-1] + 2
	}
	for range 400 {
		w.round(newest)
		s := newest.c.Status()
		if s.Counting != nil && s.Counting.Epoch >= from && len(s.Counting.Detached) == 0 {
			w.checkAllNew(*s.Counting)
			return
		}
	}
	for _, pt := range w.plan.Tasks {
		w.t.Logf("%s: %+v aside %v", pt.ID, w.tasks[pt.ID].t.al.State(), w.tasks[pt.ID].t.aside)
	}
	for _, e := range w.kv.epochs() {
		w.t.Logf("%s", describeRecord(w.kv.records[e].Record))
	}
	w.t.Fatalf("no checkpoint counts; status %+v", newest.c.Status())
}

// checkAllNew: with everybody present, sooner or later every part is new.
func (w *world) checkAllNew(r EpochRecord) {
	for id, p := range r.Parts {
		if p.Epoch+1 < r.Epoch {
			w.t.Fatalf("%v still keeps the part of %s of %v", r.Epoch, id, p.Epoch)
		}
	}
}

// round lets everything happen once.
func (w *world) round(wt *worldTerm) {
	w.now += 20
	for range 4 {
		for _, agent := range w.agents() {
			w.agentSees(agent)
			w.writeAck(agent)
		}
		for _, ch := range w.plan.Channels {
			for len(w.queues[ch.ID]) > 0 {
				w.deliver(ch)
			}
		}
		w.perform(wt)
		for wt.records < len(w.history) || wt.acks < len(w.kv.acks) || wt.replica < len(w.kv.replicas) {
			w.watch(wt)
		}
	}
	for _, agent := range w.agents() {
		w.drained(agent)
	}
	w.step(wt, Tick{})
}

func TestSystem(t *testing.T) {
	total := map[string]int{}
	first, last := uint64(1), *systemSeeds
	if *systemSeed != 0 {
		first, last = *systemSeed, *systemSeed
	}
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range systemSteps {
				w.tick()
			}
			w.count(total)
			w.settle()
		})
	}
	t.Logf("%v", total)
	if *systemSeed != 0 || t.Failed() {
		return
	}
	for _, what := range []string{"committed", "replicated", "aborted", "detached", "logged", "deposed", "ended", "ignored"} {
		if total[what] == 0 {
			t.Errorf("nothing was %s in %d runs: the test has lost its grip", what, last)
		}
	}
}

// systemSteps is enough for some ten epochs.
const systemSteps = 4000

// count notes what has happened, so that a test that exercises nothing is seen.
func (w *world) count(total map[string]int) {
	for _, v := range w.kv.records {
		r := v.Record
		total[string(r.State)]++
		if len(r.Detached) > 0 {
			total["detached"]++
		}
		for id, p := range r.Parts {
			task, _ := w.plan.task(id)
			if p.Epoch < r.Epoch && !slices.Contains(r.Detached, task.Agent) {
				total["unaligned"]++
			}
			if len(p.Cut.Logged) > 0 {
				total["logged"]++
			}
		}
	}
	for _, k := range w.tasks {
		total["ignored"] += int(k.t.al.Ignored())
		if k.ended {
			total["ended"]++
		}
	}
	for _, wt := range w.terms {
		if wt.dead {
			total["deposed"]++
		}
	}
}
