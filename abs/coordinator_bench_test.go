package abs

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// testKV is the bucket of a job's epochs: one key per epoch, compare-and-set, and what tasks have
// written. Values go through JSON as they would outside.
type testKV struct {
	records  map[Epoch]VersionedRecord
	history  []VersionedRecord
	revision uint64
	acks     []Ack
	replicas []ReplicaAck
}

func newTestKV() *testKV { return &testKV{records: map[Epoch]VersionedRecord{}} }

func throughJSON[T any](v T) (out T) {
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		panic(err)
	}
	return out
}

// swap performs a write; false if the key has another revision.
func (kv *testKV) swap(w Write) (uint64, bool) {
	if kv.records[w.Record.Epoch].Revision != w.Revision {
		return 0, false
	}
	kv.revision++
	kv.records[w.Record.Epoch] = VersionedRecord{throughJSON(w.Record), kv.revision}
	kv.history = append(kv.history, kv.records[w.Record.Epoch])
	return kv.revision, true
}

func (kv *testKV) recovered() Recovered {
	rec := Recovered{Acks: slices.Clone(kv.acks), Replicas: slices.Clone(kv.replicas)}
	for _, e := range kv.epochs() {
		rec.Records = append(rec.Records, kv.records[e])
	}
	slices.Reverse(rec.Records) // in any order
	return rec
}

func (kv *testKV) epochs() []Epoch { return slices.Sorted(maps.Keys(kv.records)) }

// coordinatorBench runs the coordinator scripts over a testKV:
//
//	plan [gen=G]                 body: task ID AGENT [source] | channel ID FROM TO [back]
//	config key=N...              interval pause timeout detach replicatimeout tolerate, replicate, at-least-once,
//	                             base=N: the generation was begun by a restart from there
//	term N                       a new coordinator from KV, and a tick
//	use N                        the coordinator of another term goes on
//	at MS                        tick at that time
//	ack TASK EPOCH [sent=] [consumed=] [logged=] [aligned=] [failed=] [gen=] [version=] [persist=] [ended]
//	ackall EPOCH [except=]       every other task: numbers EPOCH*10 on all channels, all aligned
//	replica TASK EPOCH [version=] | replicaall EPOCH
//	gone|back|drained AGENT | quiet AGENT EPOCH | trigger NAME | stop | restart | seen EPOCH (from the watch)
//	rewatch                      the watch begins again and delivers every state that the keys had
//	collect                      deletes all acknowledgements from KV
//	unwritten                    answers a lost write
//	next-write lost|unanswered|blocked   lost: neither done nor answered; unanswered: done, not answered;
//	                             blocked: stands until "answer"
//	answer                       performs and answers the term's blocked write
//	written EPOCH                answers an unanswered write
//	status | kv [EPOCH]
type coordinatorBench struct {
	plan  Plan
	cfg   Config
	kv    *testKV
	terms map[Term]*Coordinator
	term  Term
	now   int64
	fault string
	held  map[Term]Write
	out   strings.Builder
}

func (b *coordinatorBench) say(format string, args ...any) {
	fmt.Fprintf(&b.out, format+"\n", args...)
}

func (b *coordinatorBench) run(c command) string {
	if b.kv == nil {
		b.kv, b.terms, b.held = newTestKV(), map[Term]*Coordinator{}, map[Term]Write{}
		b.cfg = Config{IntervalMs: 1000, MinPauseMs: 100, TimeoutMs: 5000, ReplicaTimeoutMs: 3000}
	}
	b.out.Reset()
	b.do(c)
	return b.out.String()
}

func (b *coordinatorBench) do(c command) {
	switch c.name {
	case "plan":
		b.parsePlan(c)
	case "config":
		b.parseConfig(c)
	case "term":
		b.newTerm(Term(c.num(0)))
	case "use":
		b.term = Term(c.num(0))
	case "at":
		b.now = int64(c.num(0))
		b.step(Tick{})
	case "ack":
		b.ack(b.parseAck(c))
	case "ackall":
		b.ackAll(Epoch(c.num(0)), c.words("except"))
	case "replica":
		b.replica(ReplicaAck{Task: TaskID(c.arg(0)), Epoch: Epoch(c.num(1)), Generation: b.plan.Generation, Version: c.num(1) + 1, Packs: []string{c.arg(0) + "-" + c.arg(1)}})
	case "replicaall":
		for _, t := range b.plan.Tasks {
			b.replica(ReplicaAck{Task: t.ID, Epoch: Epoch(c.num(0)), Generation: b.plan.Generation, Version: c.num(0) + 1, Packs: []string{string(t.ID) + "-" + c.arg(0)}})
		}
	case "gone":
		b.step(AgentGone{c.arg(0)})
	case "back":
		b.step(AgentBack{c.arg(0)})
	case "drained":
		b.step(AgentDrained{c.arg(0)})
	case "quiet":
		b.step(AgentQuiet{c.arg(0), Epoch(c.num(1))})
	case "trigger":
		b.step(Trigger{c.arg(0)})
	case "stop":
		b.step(Stop{})
	case "restart":
		b.step(Restart{})
	case "seen":
		b.step(RecordSeen(b.kv.records[Epoch(c.num(0))]))
	case "rewatch":
		for _, v := range b.kv.history {
			b.step(RecordSeen(v))
		}
	case "collect":
		b.kv.acks, b.kv.replicas = nil, nil
	case "unwritten":
		b.step(Unwritten{})
	case "next-write":
		b.fault = c.arg(0)
	case "answer":
		w := b.held[b.term]
		delete(b.held, b.term)
		b.perform(w)
	case "written":
		b.step(Written{b.kv.records[Epoch(c.num(0))].Revision})
	case "status":
		b.status()
	case "kv":
		b.showKV(c)
	case "check":
		b.say("%v", Check(b.plan, b.cfg.Mode, b.kv.records[Epoch(c.num(0))].Record.Parts))
	case "control":
		for _, t := range b.plan.Tasks {
			evs := NewAligner(b.plan.Inputs(t.ID), ExactlyOnce).Lacks(b.kv.records[Epoch(c.num(0))].Record, t.Agent)
			b.say("%s: %v", t.ID, evs)
		}
	default:
		panic("script: unknown command " + c.name)
	}
}

func (b *coordinatorBench) parsePlan(c command) {
	b.plan = Plan{Generation: 1}
	if g := c.opts["gen"]; g != "" {
		b.plan.Generation = Generation(number(g))
	}
	for _, line := range c.body {
		w := parseCommand([]string{line})
		if w.name == "task" {
			b.plan.Tasks = append(b.plan.Tasks, PlannedTask{ID: TaskID(w.arg(0)), Agent: w.arg(1), Source: w.has("source")})
			continue
		}
		b.plan.Channels = append(b.plan.Channels, PlannedChannel{ID: ChannelID(w.arg(0)), From: TaskID(w.arg(1)), To: TaskID(w.arg(2)), Back: w.has("back")})
	}
	if err := b.plan.Validate(); err != nil {
		b.say("%v", err)
	}
}

func (b *coordinatorBench) parseConfig(c command) {
	of := map[string]*int64{
		"interval": &b.cfg.IntervalMs, "pause": &b.cfg.MinPauseMs, "timeout": &b.cfg.TimeoutMs,
		"detach": &b.cfg.DetachAfterMs, "replicatimeout": &b.cfg.ReplicaTimeoutMs,
	}
	for k, v := range c.opts {
		if k == "tolerate" {
			b.cfg.TolerateFailures = int(number(v))
			continue
		}
		if k == "base" {
			b.cfg.Restarted, b.cfg.Base = true, Epoch(number(v))
			continue
		}
		*of[k] = int64(number(v))
	}
	b.cfg.Replicate = c.has("replicate")
	if c.has("at-least-once") {
		b.cfg.Mode = AtLeastOnce
	}
}

func (b *coordinatorBench) newTerm(t Term) {
	co, err := NewCoordinator(b.cfg, b.plan, t, b.kv.recovered())
	if err != nil {
		b.say("%v", err)
		return
	}
	b.terms[t], b.term = co, t
	b.step(Tick{})
}

func (b *coordinatorBench) parseAck(c command) Ack {
	e := Epoch(c.num(1))
	a := Ack{Task: TaskID(c.arg(0)), Epoch: e, Generation: b.plan.Generation, Failed: strings.ReplaceAll(c.opts["failed"], "_", " ")}
	if g := c.opts["gen"]; g != "" {
		a.Generation = Generation(number(g))
	}
	a.Part = Part{
		Epoch: e, Generation: a.Generation, Version: uint64(e) + 1, Ended: c.has("ended"),
		Cut:     Cut{Sent: c.seqs("sent"), Consumed: c.seqs("consumed"), Logged: c.seqs("logged")},
		Aligned: channels(c.words("aligned")),
	}
	if v := c.opts["version"]; v != "" {
		a.Part.Version = number(v)
	}
	if p := c.opts["persist"]; p != "" {
		a.Part.PersistMs = int64(number(p))
	}
	return a
}

// plainAck is an acknowledgement whose numbers fit those of all others.
func plainAck(p Plan, t PlannedTask, e Epoch) Ack {
	part := Part{Epoch: e, Generation: p.Generation, Version: uint64(e) + 1, Cut: Cut{Sent: map[ChannelID]Seq{}, Consumed: map[ChannelID]Seq{}}}
	for _, ch := range p.Channels {
		if ch.From == t.ID {
			part.Cut.Sent[ch.ID] = Seq(e * 10)
		}
		if ch.To == t.ID {
			part.Cut.Consumed[ch.ID] = Seq(e * 10)
			part.Aligned = append(part.Aligned, ch.ID)
		}
	}
	return Ack{Task: t.ID, Epoch: e, Generation: p.Generation, Part: part}
}

func (b *coordinatorBench) ackAll(e Epoch, except []string) {
	for _, t := range b.plan.Tasks {
		if !slices.Contains(except, string(t.ID)) {
			b.ack(plainAck(b.plan, t, e))
		}
	}
}

// ack is what a task does: written to KV if it is the first of its key, and seen by the watch.
func (b *coordinatorBench) ack(a Ack) {
	b.kv.acks = append(b.kv.acks, a)
	b.step(a)
}

func (b *coordinatorBench) replica(a ReplicaAck) {
	b.kv.replicas = append(b.kv.replicas, a)
	b.step(a)
}

func (b *coordinatorBench) step(n Notice) {
	act := b.terms[b.term].Step(n, b.now)
	if act.Deposed != "" {
		b.say("term %d deposed: %s", b.term, act.Deposed)
	}
	if act.Refused != "" {
		b.say("refused: %s", act.Refused)
	}
	if act.Write != nil {
		b.write(*act.Write)
		return
	}
	if act.Stopped {
		b.say("stopped")
	}
	if act.Fence != nil {
		b.say("the next generation begins from epoch %d", act.Fence.Base)
	}
}

func (b *coordinatorBench) write(w Write) {
	fault := b.fault
	b.fault = ""
	switch fault {
	case "lost":
		b.say("LOST: %s", describeRecord(w.Record))
	case "unanswered":
		_, ok := b.kv.swap(w)
		b.say("done %v, UNANSWERED: %s", ok, describeRecord(w.Record))
	case "blocked":
		b.held[b.term] = w
		b.say("BLOCKED: %s", describeRecord(w.Record))
	default:
		b.perform(w)
	}
}

func (b *coordinatorBench) perform(w Write) {
	rev, ok := b.kv.swap(w)
	if ok {
		b.say("write %s", describeRecord(w.Record))
		b.step(Written{rev})
		return
	}
	b.say("CONFLICT: %s", describeRecord(w.Record))
	b.step(RecordSeen(b.kv.records[w.Record.Epoch]))
	b.step(Unwritten{})
}

func describeRecord(r EpochRecord) string {
	s := fmt.Sprintf("epoch %d: %s by term %d gen %d", r.Epoch, r.State, r.Term, r.Generation)
	if r.Initial {
		s += " initial"
	}
	if r.Fence {
		s += " fence"
	}
	if r.Final {
		s += " final"
	}
	if r.Savepoint != "" {
		s += " savepoint " + r.Savepoint
	}
	if len(r.Detached) > 0 {
		s += " without " + join(r.Detached)
	}
	if len(r.Parts) > 0 {
		s += " parts"
	}
	for _, id := range sorted(setOf(maps.Keys(r.Parts))) {
		s += fmt.Sprintf(" %s=%d", id, r.Parts[id].Epoch)
	}
	if r.Reason != "" {
		s += ": " + r.Reason
	}
	return s
}

func (b *coordinatorBench) showKV(c command) {
	for _, e := range b.kv.epochs() {
		if len(c.args) == 0 || Epoch(c.num(0)) == e {
			b.say("%s", describeRecord(b.kv.records[e].Record))
		}
	}
}

func (b *coordinatorBench) status() {
	s := b.terms[b.term].Status()
	show := func(name string, r *EpochRecord) {
		if r != nil {
			b.say("%s: %d", name, r.Epoch)
		}
	}
	show("running", s.Running)
	if len(s.Missing) > 0 {
		b.say("missing: %s", join(s.Missing))
	}
	for _, f := range s.Failed {
		b.say("failed: %s", f)
	}
	show("committed", s.Committed)
	show("replicated", s.Replicated)
	show("counting", s.Counting)
	if len(s.Detached) > 0 {
		b.say("detached: %s", join(s.Detached))
	}
	if s.Failures > 0 {
		b.say("failures: %d failing=%v", s.Failures, s.Failing)
	}
	if s.Holding != "" {
		b.say("holding: %s", s.Holding)
	}
	if s.Stopped {
		b.say("stopped")
	}
	b.say("interval: %d, needed from: %d", s.IntervalMs, b.terms[b.term].Needed())
}
