package sim

import (
	"bytes"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

var flagRule = flag.String("sim.rule", "", "leave this rule out (TestSeed), or look for it only (TestRules)")

// rules are those left out: each field is one rule that is not kept.
type rules struct {
	handOverUnsynced  bool // outputs leave before the log is synced past their cause
	forgetOrder       bool // order entries are not logged
	forgetControl     bool // control items are not logged
	forgetReplays     bool // nor dead letters that are replayed
	forgetUpgrades    bool // nor upgrades of operators
	forgetVersions    bool // a restored task has the versions that it began with
	forgetAligner     bool // a restored task's aligner begins anew
	forgetFinished    bool // it does not know which epochs are over
	forgetReserved    bool // after a restart all that is sent takes credit
	ackBeforeStored   bool // a frame counts as handed over before the stream has it
	purgeByPosition   bool // a purge takes all frames up to a place in the stream
	keepConsumed      bool // a stream is purged for counting checkpoints only
	truncateAtOnce    bool // log and older parts are given up as soon as a part is durable
	countAside        bool // a part counts what is set aside as consumed
	blindWrites       bool // epochs are written without compare-and-set
	trustNumbers      bool // numbers are not checked before a commit
	creditOnBackEdges bool // back edges take credit
	forgetLoopLog     bool // what was in a loop at the cut is not restored
	channelsAlone     bool // barriers come on channels only, not by control
	truncateCommitted bool // log and older parts are given up for what is committed and not replicated
	releaseCommitted  bool // likewise sinks that commit with checkpoints are let go
	forgetOutbox      bool // a part says that sinks have handed over all that was made for them
}

// ruleCase says where the absence of a rule shows.
type ruleCase struct {
	name   string
	rules  rules
	topo   string
	faults []string
	adjust func(*profile)
}

// busy is a profile in which barriers, records and faults meet often.
func busy(p *profile) {
	p.messages, p.pace, p.strikes, p.turn = 40, 20*time.Millisecond, 0.004, 50*time.Microsecond
	p.checkpoints.IntervalMs, p.checkpoints.MinPauseMs, p.checkpoints.TimeoutMs = 100, 0, 4000
}

// refusing is a profile in which operators refuse many records.
func refusing(p *profile) {
	busy(p)
	p.poison, p.strikes = 0.3, 0.02
}

// narrow is a profile in which one frame per channel may be under way once all have started anew: they
// make again what they had made with more.
func narrow(p *profile) {
	busy(p)
	p.window, p.bounds, p.poison, p.batch, p.narrows = 0, dataflow.Bounds{}, 0, 1, true
	p.streamFrames = 1 << 16 // what is under way must fit
}

// detaching is a profile in which gateways are away often, and soon not waited for.
func detaching(p *profile) {
	busy(p)
	p.goneAfter, p.checkpoints.DetachAfterMs = 100*time.Millisecond, 50
}

// failing is a profile in which no checkpoint succeeds for a long time.
func failing(p *profile) {
	busy(p)
	p.storm, p.streamFrames, p.bounds.Behind = 5*time.Second, 64, 32
	p.persist, p.checkpoints.TimeoutMs = 300*time.Millisecond, 200
}

// relieved is a profile in which streams are so small that what tasks have taken is purged although they may have to
// go back behind it, and versions of operators often make them. It is for single seeds: what is on its way needs more
// room than such streams always have.
func relieved(p *profile) {
	p.window, p.streamFrames, p.bounds = 1, 32, dataflow.Bounds{Behind: 16, Stored: 16 * (p.padding + 60)}
	p.strikes, p.padding, p.batch = 0.01, min(p.padding, 20), 1
	p.checkpoints.DetachAfterMs = 200
}

// ending is a profile in which inputs end while barriers are on their way.
func ending(p *profile) {
	busy(p)
	p.messages, p.ends, p.storm = 15, true, 2*time.Second
}

// crowded is a profile in which four records fill what a loop may hold.
func crowded(p *profile) {
	p.window, p.padding, p.messages, p.batch, p.poison = 1, 90_000, 40, 8, 0
}

// replicating is a profile in which checkpoints count when they are replicated, which takes time.
func replicating(p *profile) {
	busy(p)
	p.checkpoints.Replicate, p.checkpoints.ReplicaTimeoutMs, p.persist = true, 100, 100*time.Millisecond
}

// holding is the same with sinks that commit with checkpoints.
func holding(p *profile) {
	replicating(p)
	p.holds = true
}

// steady is a profile without losses, in which every epoch succeeds, soon or after a while.
func steady(p *profile) {
	busy(p)
	p.messages, p.ends, p.poison, p.laggard = 30, true, 0, ""
	p.grantLoss, p.ackLoss, p.writeLoss = 0, 0, 0
	p.bounds, p.padding = dataflow.Bounds{Behind: p.bounds.Behind}, 20
	p.persist, p.checkpoints.TimeoutMs, p.checkpoints.DetachAfterMs, p.goneAfter, p.steady = 5*time.Millisecond, 60_000, 50, 100*time.Millisecond, true
}

// lagging is the same with an agent, far, that learns of epochs later than from its channels.
func lagging(p *profile) {
	steady(p)
	p.laggard, p.control, p.storm, p.strikes = "far", 50*time.Millisecond, 10*time.Second, 0.02
	p.messages, p.pace = 100, 50*time.Millisecond
}

// parted is a steady and swift profile in which gateways are away for longer than an epoch may take.
func parted(p *profile) {
	steady(p)
	p.messages, p.pace, p.storm, p.strikes, p.checkpoints.TimeoutMs = 80, 50*time.Millisecond, 10*time.Second, 0.003, 3000
	p.sync, p.link, p.control, p.turn, p.revises = time.Millisecond, 2*time.Millisecond, 2*time.Millisecond, 200*time.Microsecond, true
}

// paused is a steady profile in which epochs are far apart, and one of them is often over before a source has heard
// of it: then its barrier never comes.
func paused(p *profile) {
	steady(p)
	p.laggard, p.control, p.strikes, p.messages, p.pace, p.storm = "gate2", 20*time.Millisecond, 0.05, 60, 500*time.Millisecond, 30*time.Second
	p.checkpoints.MinPauseMs = 10_000
}

// overtaken is a steady profile in which coordinators change often.
func overtaken(p *profile) {
	steady(p)
	p.control, p.persist, p.strikes, p.messages, p.pace = 2*time.Millisecond, 30*time.Millisecond, 0.0005, 200, 50*time.Millisecond
}

// refused is a steady profile in which streams refuse some frames.
func refused(p *profile) {
	steady(p)
	p.refusals, p.link, p.window, p.streamFrames, p.messages = 0.05, time.Millisecond, 0, 1<<16, 100
	p.turn = 50 * time.Microsecond
}

// unheard is a parted profile in which the hub hears of a gateway's return from it rather than from the coordinator.
func unheard(p *profile) {
	parted(p)
	p.laggard, p.control, p.checkpoints.TimeoutMs = "hub", 20*time.Millisecond, 60_000
	p.messages, p.pace, p.storm, p.strikes = 100, 500*time.Millisecond, time.Minute, 0.001
}

// backlogged is a parted profile in which a gateway that was away takes seconds to bring what it has kept, longer than
// an epoch may take.
func backlogged(p *profile) {
	parted(p)
	p.messages, p.pace, p.storm, p.batch, p.strikes = 360, 100*time.Millisecond, 36*time.Second, 1, 0.0005
	p.window = 1
	p.bounds.Frames, p.bounds.Unsent, p.checkpoints.TimeoutMs = 1, 1, 3000
}

// rereading is a profile in which tasks that operators have failed in replay for long, since their streams are slow,
// while what they had frozen before is written.
func rereading(p *profile) {
	refusing(p)
	p.strikes, p.link, p.persist, p.sync, p.control, p.hasty = 0, 60*time.Millisecond, 400*time.Millisecond, time.Millisecond, 2*time.Millisecond, true
	p.bounds, p.window, p.streamFrames, p.messages, p.grantLoss, p.ackLoss = dataflow.Bounds{}, 0, 1<<16, 100, 0, 0
}

// sparse is a profile in which few records go round a loop, slowly, and parts take long to be written.
func sparse(p *profile) {
	busy(p)
	p.poison, p.pace, p.messages, p.batch, p.ends, p.dedupe, p.strikes = 0, 150*time.Millisecond, 40, 1, false, 1024, 0.003
	p.grantLoss, p.ackLoss, p.writeLoss, p.bounds, p.padding, p.window, p.streamFrames = 0, 0, 0, dataflow.Bounds{Behind: 1 << 15}, 20, 0, 1<<16
	p.link, p.sync, p.control, p.persist, p.laggard = 10*time.Millisecond, time.Millisecond, 2*time.Millisecond, 150*time.Millisecond, ""
	p.storm, p.refills = 8*time.Second, true
}

// alone is a profile in which tasks take snapshots between checkpoints, skip others, and are rewound.
func alone(p *profile) {
	busy(p)
	p.persist, p.strikes, p.messages, p.storm, p.pace = 200*time.Millisecond, 0.01, 100, 8*time.Second, 50*time.Millisecond
	p.checkpoints.TimeoutMs, p.checkpoints.IntervalMs = 150, 50
	p.bounds.Alone, p.bounds.AloneTicks = 1, 1
}

// filled is a steady profile with more than a loop can hold, and a source that hears of epochs late.
func filled(p *profile) {
	steady(p)
	p.window, p.padding, p.messages, p.batch, p.pace, p.ends = 1, 90_000, 120, 8, time.Millisecond, false
	p.laggard, p.control, p.storm = "gate2", 20*time.Millisecond, 4*time.Second
}

// revising is the usual profile, with agents that look at all of a record that has changed.
func revising(p *profile) { p.revises = true }

// asked is a steady profile in which there are epochs only when somebody asks for a savepoint: while things
// go wrong, and when all has been delivered.
func asked(p *profile) {
	steady(p)
	p.checkpoints.IntervalMs, p.savepoints = 0, true
	p.storm, p.link, p.strikes = time.Millisecond, 30*time.Millisecond, 0.05
}

// flood is the same with more than a loop can hold.
func flood(p *profile) {
	crowded(p)
	p.messages, p.pace = 120, time.Millisecond
}

// profiles by name, for -sim.profile.
var profiles = map[string]func(*profile){
	"busy": busy, "narrow": narrow, "detaching": detaching, "failing": failing, "ending": ending, "crowded": crowded,
	"replicating": replicating, "holding": holding, "steady": steady, "lagging": lagging, "parted": parted, "asked": asked, "revising": revising, "flood": flood,
	"paused": paused, "relieved": relieved, "overtaken": overtaken, "refused": refused, "unheard": unheard, "backlogged": backlogged, "rereading": rereading, "alone": alone, "sparse": sparse, "filled": filled,
}

var ruleCases = []ruleCase{
	{"output-rule", rules{handOverUnsynced: true}, "merge", []string{"power"}, busy},
	{"output-rule-local", rules{handOverUnsynced: true}, "local", []string{"power"}, busy},
	{"order", rules{forgetOrder: true, forgetControl: true}, "merge", []string{"kill"}, busy},
	{"order-of-data", rules{forgetOrder: true}, "chain", []string{"kill"}, busy},
	{"order-of-control", rules{forgetControl: true}, "shuffle", nil, busy},
	{"upgrades", rules{forgetUpgrades: true}, "shuffle", []string{"kill", "upgrade"}, busy},
	{"replays", rules{forgetReplays: true}, "shuffle", []string{"kill", "upgrade", "replay"}, refusing},
	{"upgrades-in-parts", rules{forgetVersions: true}, "chain", []string{"kill", "upgrade"}, busy},
	{"aligner", rules{forgetAligner: true}, "shuffle", []string{"kill", "task"}, busy},
	{"finished", rules{forgetFinished: true}, "shuffle", nil, busy},
	{"repeats-free", rules{forgetReserved: true}, "diamond", []string{"power-all", "site"}, narrow},
	{"purge-subject", rules{purgeByPosition: true}, "shuffle", nil, busy},
	{"relief", rules{keepConsumed: true}, "merge", []string{"save", "slow"}, failing},
	{"truncate-counting", rules{truncateAtOnce: true}, "shuffle", []string{"empty", "tail"}, busy},
	{"truncate-replicated", rules{truncateCommitted: true}, "shuffle", nil, replicating},
	{"release-replicated", rules{releaseCommitted: true}, "shuffle", nil, holding},
	{"durability", rules{ackBeforeStored: true}, "shuffle", []string{"kill"}, busy},
	{"numbers", rules{trustNumbers: true}, "device", nil, detaching},
	{"barrier-by-control", rules{channelsAlone: true}, "device", []string{"cut", "power"}, detaching},
	{"outbox", rules{forgetOutbox: true}, "shuffle", []string{"kill", "power"}, busy},
	{"next-number", rules{countAside: true}, "shuffle", []string{"kill", "power"}, busy},
	{"compare-and-set", rules{blindWrites: true}, "chain", []string{"term", "cut"}, busy},
}

// TestRules wants that each rule is needed: some seed that passes fails without it.
func TestRules(t *testing.T) {
	for _, c := range ruleCases {
		if *flagRule != "" && *flagRule != c.name {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.find(t)
		})
	}
}

// find looks for a seed that fails without the rule and passes with it.
func (c ruleCase) find(t *testing.T) {
	const seeds = 300 // a few dozen suffice; more make room for changes of the simulator
	for seed := uint64(1); seed <= seeds; seed++ {
		opt := options{rules: c.rules, faults: c.faults, adjust: c.adjust}
		_, broken := simulate(topologyOf(c.topo), seed, opt)
		if broken == nil {
			continue
		}
		opt.rules = rules{}
		if _, err := simulate(topologyOf(c.topo), seed, opt); err == nil {
			t.Logf("seed %d finds it: %.300s\nreplay: %s", seed, broken, replay(c.topo, seed, " -sim.rule="+c.name))
			return
		}
	}
	t.Errorf("none of %d seeds finds that the rule is missing", seeds)
}

// forgets says whether entries of a kind are not stored.
func (r rules) forgets(kind dataflow.EntryKind) bool {
	switch kind {
	case dataflow.EntryOrder:
		return r.forgetOrder
	case dataflow.EntryControl:
		return r.forgetControl
	case dataflow.EntryReplay:
		return r.forgetReplays
	case dataflow.EntryUpgrade:
		return r.forgetUpgrades
	case dataflow.EntryReserve:
		return r.forgetReserved
	}
	return false
}

// restored is a part's own state as a task finds it.
func (r rules) restored(encoded []byte) []byte {
	if !r.forgetVersions && !r.forgetAligner && !r.forgetFinished && !r.forgetReserved {
		return encoded
	}
	meta := metaOf(encoded)
	if r.forgetAligner {
		meta["aligner"] = map[string]any{}
	}
	if r.forgetVersions {
		delete(meta, "upgraded")
	}
	if r.forgetFinished {
		delete(meta["aligner"].(map[string]any), "finished")
	}
	if out, ok := meta["out"].(map[string]any); ok && r.forgetReserved {
		for _, o := range out {
			o.(map[string]any)["reserved"] = 0
		}
	}
	return encodeMeta(meta)
}

// saved is a part's own state as it is saved.
func (r rules) saved(of *runner, encoded []byte) []byte {
	if r.forgetOutbox {
		meta := metaOf(encoded)
		sinks, _ := meta["sinks"].(map[string]any)
		for _, s := range sinks {
			m := s.(map[string]any)
			m["handed"], m["handed_sum"] = number(m["next"])-1, m["sum"]
			delete(m, "outbox")
		}
		return encodeMeta(meta)
	}
	if !r.countAside || of.run == nil || of.run.in == nil {
		return encoded
	}
	meta := metaOf(encoded)
	in, _ := meta["in"].(map[string]any)
	for _, c := range of.t.in {
		m, ok := in[string(c.id)].(map[string]any)
		if tail := of.run.in.tails[c.index]; ok && tail.next > number(m["next"]) {
			m["next"], m["sum"] = tail.next, uint64(tail.sum)
		}
	}
	return encodeMeta(meta)
}

// tail is what a task has or holds of a channel.
type tail struct {
	next uint64
	sum  frame.Sum
}

// deliver is what reaches the task.
func (r rules) deliver(in *input, d dataflow.Delivery) dataflow.Delivery {
	if r.countAside && d.Frame != nil {
		h, _, err := frame.Decode(bytes.Clone(d.Frame))
		if of := in.tails[d.Channel]; err == nil && (of.next == 0 || h.First <= of.next) && h.Last() >= of.next {
			in.tails[d.Channel] = tail{h.Last() + 1, h.After}
		}
	}
	return d
}

// told is what a task is told of an epoch: of one that its agent does not take part in there is no barrier.
func (r rules) told(to *runner, rec abs.EpochRecord) abs.EpochRecord {
	if r.channelsAlone && rec.State == abs.Started && !rec.Initial {
		rec.Detached = append(slices.Clone(rec.Detached), to.p.a.name)
	}
	return rec
}

// write is what a coordinator writes instead of what it should.
func (r rules) write(l *leader, wr abs.Write) abs.Write {
	if !r.trustNumbers || wr.Record.State != abs.Aborted || !strings.HasPrefix(wr.Record.Reason, "channel ") {
		return wr
	}
	wr.Record.State, wr.Record.Reason, wr.Record.Parts = abs.Committed, "", map[abs.TaskID]abs.Part{}
	base := l.coord.Status().Committed
	for _, t := range l.w.topo.tasks {
		wr.Record.Parts[t.id] = base.Parts[t.id]
		if a, ok := l.w.kv.acks[ackID{wr.Record.Epoch, t.id}]; ok && !slices.Contains(wr.Record.Detached, t.agent) {
			wr.Record.Parts[t.id] = a.ack.Part
		}
	}
	return wr
}

// purged says whether a purge up to a place takes a frame.
func (r rules) purged(s *stream, f stored, channel int, upto uint64) bool {
	switch {
	case f.seq > upto:
		return false
	case r.purgeByPosition:
		return true
	}
	return f.channel == channel
}
