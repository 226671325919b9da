package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
)

// kv is the control plane's memory of the job's epochs. It is durable; only the ways to it fail.
type kv struct {
	w        *world
	revision uint64
	records  map[abs.Epoch]versioned
	history  []abs.Epoch // of every change
	acks     map[ackID]ackEntry
	ackLog   []ackID
	replicas []abs.ReplicaAck
}

// versioned is a value as it is stored.
type versioned struct {
	value    []byte
	revision uint64
}

type ackID struct {
	epoch abs.Epoch
	task  abs.TaskID
}

type ackEntry struct {
	ack      abs.Ack
	revision uint64
}

func encode(r abs.EpochRecord) []byte {
	value, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return value
}

func newKV(w *world) *kv {
	return &kv{w: w, records: map[abs.Epoch]versioned{}, acks: map[ackID]ackEntry{}}
}

func (k *kv) record(e abs.Epoch) (abs.VersionedRecord, bool) {
	v, ok := k.records[e]
	if !ok {
		return abs.VersionedRecord{}, false
	}
	r, err := abs.DecodeRecord(v.value)
	if err != nil {
		k.w.fail("%v", err)
	}
	return abs.VersionedRecord{Record: r, Revision: v.revision}, true
}

// epochs lists all epochs in order.
func (k *kv) epochs() []abs.Epoch {
	var out []abs.Epoch
	for e := range k.records {
		out = append(out, e)
	}
	slices.Sort(out)
	return out
}

// swap is the compare-and-set of an epoch's key.
func (k *kv) swap(wr abs.Write) (uint64, bool) {
	old, existed := k.record(wr.Record.Epoch)
	if old.Revision != wr.Revision && !k.w.rules.blindWrites {
		return 0, false
	}
	k.revision++
	k.records[wr.Record.Epoch] = versioned{encode(wr.Record), k.revision}
	k.history = append(k.history, wr.Record.Epoch)
	k.w.trace("kv: %v %s by term %d %s", wr.Record.Epoch, wr.Record.State, wr.Record.Term, wr.Record.Reason)
	k.w.oracle.written(old.Record, existed, wr.Record)
	for _, a := range k.w.agents {
		a.watch()
	}
	for _, l := range k.w.leaders {
		l.watchRecords()
	}
	return k.revision, true
}

// putAck writes an acknowledgement: the first one holds, but for one that failed.
func (k *kv) putAck(a abs.Ack) {
	id := ackID{a.Epoch, a.Task}
	if old, ok := k.acks[id]; ok && (a.Failed != "" || old.ack.Failed == "") {
		return
	}
	k.revision++
	k.acks[id] = ackEntry{a, k.revision}
	k.ackLog = append(k.ackLog, id)
	k.w.trace("kv: %s acknowledges %v: version %d pos %d %s", a.Task, a.Epoch, a.Part.Version, a.Part.Pos, a.Failed)
	for _, l := range k.w.leaders {
		l.watchAcks()
	}
}

// putReplica notes that a part is in the object store.
func (k *kv) putReplica(a abs.ReplicaAck) {
	k.replicas = append(k.replicas, a)
	k.w.trace("kv: part %d of %s is replicated", a.Version, a.Task)
	for _, l := range k.w.leaders {
		l.watchReplicas()
	}
}

func (k *kv) recovered() abs.Recovered {
	var out abs.Recovered
	for _, e := range k.epochs() {
		v, _ := k.record(e)
		out.Records = append(out.Records, v)
	}
	for _, id := range k.ackLog {
		out.Acks = append(out.Acks, k.acks[id].ack)
	}
	out.Replicas = slices.Clone(k.replicas)
	return out
}

// leader is a coordinator during one term. It may live on after its term: then it is a zombie, whose
// writes go on until it learns better.
type leader struct {
	w       *world
	host    *agent
	proc    *process
	term    abs.Term
	coord   *abs.Coordinator
	offset  time.Duration // of its clock
	busy    bool          // a write is under way
	waiting []abs.Notice  // meanwhile
	records int           // of the history that its watch has delivered
	acks    int
	copies  int
	began   time.Duration
	lost    int // epochs in a row that terms before have decided since it began
	dead    bool

	watchingRecords, watchingAcks, watchingReplicas bool
}

// leaseTime is after how long another agent may take over from a coordinator that is not heard of.
const leaseTime = 3 * time.Second

// elect makes sure that there is a coordinator that can be reached.
func (w *world) elect() {
	w.after(leaseTime/2+w.some(leaseTime/2), w.elect)
	if l := w.leading(); l != nil && !l.host.cut {
		return
	}
	w.newTerm()
}

func (w *world) leading() *leader {
	if n := len(w.leaders); n > 0 && !w.leaders[n-1].dead && w.leaders[n-1].proc.alive {
		return w.leaders[n-1]
	}
	return nil
}

// newTerm begins a term on some agent that can be reached. The one before is not asked.
func (w *world) newTerm() {
	var able []*agent
	for _, a := range w.agents {
		if a.proc != nil && !a.cut && a.proc.connected {
			able = append(able, a)
		}
	}
	if len(able) == 0 {
		return
	}
	host := able[w.rng.IntN(len(able))]
	l := &leader{
		w: w, host: host, proc: host.proc, began: w.now, term: abs.Term(w.terms + len(w.leaders) + 1),
		offset: time.Duration(w.rng.Int64N(int64(time.Hour))),
	}
	w.trace("term %d begins on %s", l.term, host.name)
	var err error
	if l.coord, err = abs.NewCoordinator(w.profile.checkpoints, w.topo.plan(w.gen), l.term, w.kv.recovered()); err != nil {
		w.fail("%v", err)
	}
	w.leaders = append(w.leaders, l)
	l.watchRecords()
	l.watchAcks()
	l.watchReplicas()
	l.tick()
}

func (l *leader) after(d time.Duration, do func()) {
	l.w.after(d, func() {
		if !l.dead && l.proc.alive {
			do()
		}
	})
}

func (l *leader) tick() {
	l.after(50*time.Millisecond, l.tick)
	for _, a := range l.w.agents {
		switch {
		case a.absentFor() > l.w.profile.goneAfter:
			l.step(abs.AgentGone{Agent: a.name})
		case a.caughtUp:
			l.step(abs.AgentDrained{Agent: a.name})
		default:
			l.step(abs.AgentBack{Agent: a.name})
		}
		l.step(abs.AgentQuiet{Agent: a.name, Since: a.quiet})
	}
	if w := l.w; w.profile.savepoints && (!w.calm || w.oracle.marked) && w.one(4) {
		l.step(abs.Trigger{Name: fmt.Sprint("at ", w.now)})
	}
	l.step(abs.Tick{})
	if strings.HasPrefix(l.coord.Status().Holding, "nothing has changed") {
		l.w.chaos.count("no epoch, since nothing has changed")
	}
}

func (l *leader) nowMs() int64 { return (l.w.now + l.offset).Milliseconds() }

func (l *leader) step(n abs.Notice) {
	if l.busy {
		l.waiting = append(l.waiting, n)
		return
	}
	l.do(l.coord.Step(n, l.nowMs()))
}

func (l *leader) do(act abs.Actions) {
	if act.Deposed != "" {
		l.w.trace("term %d is deposed: %s", l.term, act.Deposed)
		if l == l.w.leading() {
			l.w.fail("the newest term, %d, is deposed: %s", l.term, act.Deposed)
		}
		l.dead = true
		return
	}
	if act.Write == nil {
		return
	}
	l.busy = true
	write := l.w.rules.write(l, *act.Write)
	l.after(l.w.some(l.w.profile.control), func() { l.perform(write) })
}

// perform writes, or does not, and tells the coordinator what is known of it.
func (l *leader) perform(write abs.Write) {
	switch fate := l.w.rng.Float64(); {
	case l.host.cut || fate < l.w.profile.writeLoss: // not done
		l.after(2*time.Second, func() { l.answer(abs.Unwritten{}) })
		return
	case fate < 2*l.w.profile.writeLoss: // done, but the answer is lost
		l.w.kv.swap(write)
		l.after(2*time.Second, func() { l.answer(abs.Unwritten{}) })
		return
	}
	rev, ok := l.w.kv.swap(write)
	l.after(l.w.some(l.w.profile.control), func() {
		if ok {
			l.answer(abs.Written{Revision: rev})
			return
		}
		if v, there := l.w.kv.record(write.Record.Epoch); there {
			l.coord.Step(abs.RecordSeen(v), l.nowMs())
		}
		l.answer(abs.Unwritten{})
	})
}

// answer gives the coordinator the outcome, and then what came meanwhile.
func (l *leader) answer(n abs.Notice) {
	l.busy = false
	l.do(l.coord.Step(n, l.nowMs()))
	for len(l.waiting) > 0 && !l.busy && !l.dead {
		n := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.step(n)
	}
}

func (l *leader) watchRecords() {
	if l.watchingRecords {
		return
	}
	l.watchingRecords = true
	l.after(l.w.some(l.w.profile.control), func() {
		l.watchingRecords = false
		if l.host.cut {
			l.after(time.Second, l.watchRecords)
			return
		}
		if l.records < len(l.w.kv.history) {
			v, _ := l.w.kv.record(l.w.kv.history[l.records]) // the newest value: a watch may skip older ones
			l.records++
			l.step(abs.RecordSeen(v))
			l.watchRecords()
		}
	})
}

func (l *leader) watchAcks() {
	if l.watchingAcks {
		return
	}
	l.watchingAcks = true
	l.after(l.w.some(l.w.profile.control), func() {
		l.watchingAcks = false
		if l.host.cut {
			l.after(time.Second, l.watchAcks)
			return
		}
		if l.acks < len(l.w.kv.ackLog) {
			a := l.w.kv.acks[l.w.kv.ackLog[l.acks]].ack
			l.acks++
			l.step(a)
			l.watchAcks()
		}
	})
}

func (l *leader) watchReplicas() {
	if l.watchingReplicas {
		return
	}
	l.watchingReplicas = true
	l.after(l.w.some(l.w.profile.control), func() {
		l.watchingReplicas = false
		if l.host.cut {
			l.after(time.Second, l.watchReplicas)
			return
		}
		if l.copies < len(l.w.kv.replicas) {
			a := l.w.kv.replicas[l.copies]
			l.copies++
			l.step(a)
			l.watchReplicas()
		}
	})
}

func (l *leader) String() string { return fmt.Sprintf("term %d on %s", l.term, l.host.name) }
