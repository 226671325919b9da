package abs

import (
	"fmt"
	"maps"
	"slices"
)

// Bounds of the coordinator.
const (
	// maxSavepoints bounds the savepoints that wait for their epoch: each takes an epoch of its own,
	// and more than these would be asked for by a loop, not by a person.
	maxSavepoints = 16
	// maxAwaiting bounds the committed epochs that wait for replication: the newest complete one
	// makes all before it needless.
	maxAwaiting = 8
	// retryMs is the wait after a write that did not succeed, so that an unreachable KV is not
	// asked in a loop.
	retryMs = 500
	// persistShare: writing snapshots may take at most one part in so many of a device's time.
	persistShare = 2
	// maxStretch bounds by how much that can stretch the interval: beyond it the device is overloaded
	// and shall be seen to be.
	maxStretch = 32
)

// Config is how a job takes checkpoints. Times are in milliseconds.
type Config struct {
	IntervalMs int64 // from start to start; 0: none but on request
	MinPauseMs int64 // from one being over to the next start; requests do not wait for it
	// TimeoutMs: an epoch that is not complete by then is aborted. An initial one never is.
	TimeoutMs int64
	// DetachAfterMs: a gateway that has been gone so long is detached; 0: never.
	DetachAfterMs int64
	// ReplicaTimeoutMs bounds the wait of the next epoch for the last one's replication.
	ReplicaTimeoutMs int64
	// TolerateFailures: after more epochs than this were aborted in a row, Status says Failing.
	TolerateFailures int
	Mode             Mode // of the tasks' aligners
	Replicate        bool // a checkpoint counts when it is replicated, not when committed
	// Restarted says that the plan's generation was begun by a [Restart], from the epoch Base: what
	// manifests of older generations there may be above it is void.
	Restarted bool
	Base      Epoch
}

// VersionedRecord is a record with its key's revision in KV.
type VersionedRecord struct {
	Record   EpochRecord
	Revision uint64
}

// Recovered is what KV holds when a term begins: at least the newest record, the newest manifest,
// the newest replicated one and what lies between, and the acknowledgements of those epochs.
type Recovered struct {
	Records  []VersionedRecord
	Acks     []Ack
	Replicas []ReplicaAck
}

// Notice is something that reaches the coordinator: one of Tick, Trigger, Stop, Restart, RecordSeen, Written,
// Unwritten, Ack, ReplicaAck, AgentGone, AgentBack, AgentDrained and AgentQuiet.
type Notice interface{ notice() }

type (
	// Tick says that time has passed. Several a second are enough.
	Tick struct{}
	// Trigger asks for a savepoint. A name that a record already carries, unless aborted, or that
	// waits already, changes nothing.
	Trigger struct{ Name string }
	// Stop asks for the final epoch. It may be repeated, and must be to the next term.
	Stop struct{}
	// Restart asks for the end of the generation without a drain, so that the next one begins from the
	// newest checkpoint that counts. It is repeated like Stop, and cannot be taken back.
	Restart struct{}
	// RecordSeen is a record as it is in KV: from the watch, or read after a write that failed.
	RecordSeen VersionedRecord
	// Written says that the write of the last Actions succeeded.
	Written struct{ Revision uint64 }
	// Unwritten says that it did not, or is not known to have. If the key can be read, its content
	// is given as RecordSeen first.
	Unwritten struct{}
	// AgentGone says that an agent's presence has ended.
	AgentGone struct{ Agent string }
	// AgentBack says that an agent is present. At the start of a term all are taken to be.
	AgentBack struct{ Agent string }
	// AgentDrained says that a detached agent has sent on its backlog and can be waited for again.
	AgentDrained struct{ Agent string }
	// AgentQuiet says that no task of an agent has changed since its part of an epoch, or, with epoch 0,
	// that some may have. It may be out of date: it delays epochs, and nothing else depends on it.
	AgentQuiet struct {
		Agent string
		Since Epoch
	}
)

func (Tick) notice()         {}
func (Trigger) notice()      {}
func (Stop) notice()         {}
func (Restart) notice()      {}
func (RecordSeen) notice()   {}
func (Written) notice()      {}
func (Unwritten) notice()    {}
func (Ack) notice()          {}
func (ReplicaAck) notice()   {}
func (AgentGone) notice()    {}
func (AgentBack) notice()    {}
func (AgentDrained) notice() {}
func (AgentQuiet) notice()   {}

// Write is one compare-and-set on the key of one epoch.
type Write struct {
	Record   EpochRecord
	Revision uint64 // the key must have this one; 0: the key must not exist
}

// Actions is what must be done after one notice.
type Actions struct {
	// Write, if not nil, is to be performed now and answered by Written or Unwritten. There is never
	// a second one before the answer, and nothing may be told to tasks before it has succeeded:
	// agents act on what they see in KV.
	Write *Write
	// Deposed, if not empty, says why this term is over: drop the coordinator. It does nothing more.
	Deposed string
	// Refused, if not empty, says why the trigger was not taken.
	Refused string
	// Stopped: the final checkpoint counts; the job has stopped and no epoch will be started.
	Stopped bool
	// Fence, if not nil, is the record that has ended the generation: its successor may be stored, and
	// begins from the record's Base. The coordinator does nothing more.
	Fence *EpochRecord
}

// Coordinator drives the epochs of one job during one term of the lease. It belongs to one
// goroutine. All that must outlast it is in the records: the next term continues from there, whatever
// it has written or not.
type Coordinator struct {
	cfg  Config
	plan Plan
	term Term

	records map[Epoch]VersionedRecord // newest, newest manifest, awaiting replication
	any     bool
	newest  Epoch
	acks    map[Epoch]map[TaskID]Ack // of the newest epoch and of the next, whose record may be seen later
	packs   map[partID][]string
	names   map[string]bool // savepoints that have a record which is not aborted

	gone      map[string]int64 // since
	detached  map[string]bool  // by the newest record
	returning map[string]bool  // drained, attached with the next epoch
	quiet     map[string]Epoch // since

	outstanding *Write
	retryAt     int64
	deposed     string

	savepoints []string
	stop       bool
	restart    bool
	fence      *EpochRecord // in KV: the generation has ended
	failures   int

	now, startedAt, endedAt int64 // by this term's clock
	begun                   bool
	persistMs               int64 // longest of the last manifest's new parts
}

type partID struct {
	task       TaskID
	epoch      Epoch
	generation Generation
	version    uint64
}

// NewCoordinator begins a term. It fails if the plan is inconsistent.
func NewCoordinator(cfg Config, plan Plan, term Term, rec Recovered) (*Coordinator, error) {
	if err := plan.Validate(); err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	if cfg.TimeoutMs <= 0 {
		return nil, fmt.Errorf("coordinator: a timeout of %d ms would abort every epoch: set a positive one", cfg.TimeoutMs)
	}
	c := &Coordinator{
		cfg: cfg, plan: plan, term: term,
		records: map[Epoch]VersionedRecord{}, acks: map[Epoch]map[TaskID]Ack{},
		packs: map[partID][]string{}, names: map[string]bool{},
		gone: map[string]int64{}, detached: map[string]bool{}, returning: map[string]bool{},
		quiet: map[string]Epoch{},
	}
	records := slices.Clone(rec.Records)
	slices.SortFunc(records, func(a, b VersionedRecord) int { return compareEpochs(a.Record.Epoch, b.Record.Epoch) })
	for _, r := range records {
		c.adopt(r)
	}
	for _, a := range rec.Acks {
		c.takeAck(a)
	}
	for _, a := range rec.Replicas {
		c.takeReplica(a)
	}
	return c, nil
}

// Step takes one notice at a time that must not go back, in milliseconds.
func (c *Coordinator) Step(n Notice, nowMs int64) Actions {
	c.now = max(c.now, nowMs)
	if !c.begun {
		c.begun, c.startedAt, c.endedAt = true, c.now, c.now
	}
	var act Actions
	if c.deposed == "" {
		c.take(n, &act)
	}
	if c.deposed != "" {
		return Actions{Deposed: c.deposed}
	}
	if c.fence != nil {
		return Actions{Fence: c.fence}
	}
	if c.outstanding == nil && c.now >= c.retryAt {
		c.outstanding = c.decide()
		act.Write = c.outstanding
	}
	act.Stopped = c.stopped()
	return act
}

func (c *Coordinator) take(n Notice, act *Actions) {
	switch n := n.(type) {
	case Tick:
	case Trigger:
		act.Refused = c.trigger(n.Name)
	case Stop:
		c.stop = true
	case Restart:
		c.restart = true
	case RecordSeen:
		c.adopt(VersionedRecord(n))
	case Written:
		c.written(n.Revision)
	case Unwritten:
		if c.outstanding != nil {
			c.outstanding, c.retryAt = nil, c.now+retryMs
		}
	case Ack:
		c.takeAck(n)
	case ReplicaAck:
		c.takeReplica(n)
	case AgentGone:
		if _, known := c.gone[n.Agent]; !known {
			c.gone[n.Agent] = c.now
		}
		delete(c.returning, n.Agent)
		delete(c.quiet, n.Agent)
	case AgentBack:
		delete(c.gone, n.Agent)
	case AgentDrained:
		delete(c.gone, n.Agent)
		if c.detached[n.Agent] {
			c.returning[n.Agent] = true
		}
	case AgentQuiet:
		c.quiet[n.Agent] = n.Since
	default:
		panic(fmt.Sprintf("abs: coordinator given a %T", n))
	}
}

func (c *Coordinator) trigger(name string) string {
	if c.names[name] || slices.Contains(c.savepoints, name) {
		return ""
	}
	switch {
	case name == "":
		return "a savepoint needs a name"
	case c.stopped():
		return "the job has stopped"
	case len(c.savepoints) == maxSavepoints:
		return fmt.Sprintf("%d savepoints are waiting already: try again when one is done", maxSavepoints)
	}
	c.savepoints = append(c.savepoints, name)
	return ""
}

func (c *Coordinator) written(revision uint64) {
	if w := c.outstanding; w != nil {
		c.outstanding = nil
		c.adopt(VersionedRecord{w.Record, revision})
	}
}

// adopt takes a record as the truth about its epoch if it is newer than what is known.
func (c *Coordinator) adopt(v VersionedRecord) {
	r := v.Record
	known, seen := c.records[r.Epoch]
	if seen && v.Revision <= known.Revision || c.any && !seen && r.Epoch < c.oldest() {
		return
	}
	if r.Fence && r.Generation == c.plan.Generation+1 && r.Term <= c.term {
		c.fence = &r
		return
	}
	if c.isDeposedBy(r) {
		return
	}
	if c.void(r) {
		r.State, r.Parts = Aborted, nil
		v.Record = r
	}
	c.records[r.Epoch] = v
	if !c.any || r.Epoch >= c.newest {
		c.adoptNewest(r, !seen || known.Record.State != r.State)
	} else if r.State == Aborted {
		delete(c.names, r.Savepoint) // it had to give way
	}
	c.forget()
}

func (c *Coordinator) isDeposedBy(r EpochRecord) bool {
	switch {
	case r.Term > c.term:
		c.deposed = fmt.Sprintf("%v was written by term %d, this is term %d", r.Epoch, r.Term, c.term)
	case r.Generation > c.plan.Generation:
		c.deposed = fmt.Sprintf("%v is of generation %d, this plan is of generation %d", r.Epoch, r.Generation, c.plan.Generation)
	}
	return c.deposed != ""
}

// void says of a record that its checkpoint was left behind when the generation began.
func (c *Coordinator) void(r EpochRecord) bool {
	return c.cfg.Restarted && r.Generation < c.plan.Generation && r.Epoch > c.cfg.Base && r.Manifest()
}

func (c *Coordinator) adoptNewest(r EpochRecord, changed bool) {
	c.any, c.newest = true, r.Epoch
	c.detached = setOf(slices.Values(r.Detached))
	maps.DeleteFunc(c.returning, func(agent string, _ bool) bool { return !c.detached[agent] })
	if changed {
		c.moved(r)
	}
}

// moved keeps the books of an epoch that has started or is over.
func (c *Coordinator) moved(r EpochRecord) {
	if r.Savepoint != "" {
		c.names[r.Savepoint] = true
		if r.State == Aborted {
			delete(c.names, r.Savepoint)
		}
		c.savepoints = slices.DeleteFunc(c.savepoints, func(s string) bool { return s == r.Savepoint })
	}
	switch r.State {
	case Started:
		c.startedAt = c.now
	case Aborted:
		c.endedAt = c.now
		if !r.Fence {
			c.failures++
		}
	case Committed:
		c.endedAt = c.now
		c.failures = 0
		c.persistMs = longestPersist(r)
	}
}

func longestPersist(r EpochRecord) (ms int64) {
	for _, p := range r.Parts {
		if p.Epoch == r.Epoch {
			ms = max(ms, p.PersistMs)
		}
	}
	return ms
}

// forget drops what no decision needs any more.
func (c *Coordinator) forget() {
	base, _ := c.base()
	replicated, any := c.replicated()
	awaiting := c.awaiting()
	maps.DeleteFunc(c.records, func(e Epoch, v VersionedRecord) bool {
		keep := e == c.newest || v.Record.Manifest() && e == base.Epoch || any && e == replicated
		return !keep && !slices.Contains(awaiting, e)
	})
	maps.DeleteFunc(c.acks, func(e Epoch, _ map[TaskID]Ack) bool { return e < c.newest })
	maps.DeleteFunc(c.packs, func(id partID, _ []string) bool { return !c.wanted(id) })
}

func (c *Coordinator) oldest() Epoch {
	return slices.Min(slices.Collect(maps.Keys(c.records)))
}

// replicated is the newest replicated epoch.
func (c *Coordinator) replicated() (e Epoch, any bool) {
	for n, v := range c.records {
		if v.Record.State == Replicated {
			e, any = max(e, n), true
		}
	}
	return e, any
}

// base is the newest manifest: where kept parts come from.
func (c *Coordinator) base() (base EpochRecord, ok bool) {
	for n, v := range c.records {
		if v.Record.Manifest() && (!ok || n > base.Epoch) {
			base, ok = v.Record, true
		}
	}
	return base, ok
}

// awaiting lists the committed epochs that still can be replicated usefully, newest first.
func (c *Coordinator) awaiting() []Epoch {
	if !c.cfg.Replicate {
		return nil
	}
	replicated, any := c.replicated()
	var out []Epoch
	for n, v := range c.records {
		if v.Record.State == Committed && (!any || n > replicated) {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b Epoch) int { return compareEpochs(b, a) })
	return out[:min(len(out), maxAwaiting)]
}

func (c *Coordinator) takeAck(a Ack) {
	task, known := c.plan.task(a.Task)
	if !known || a.Generation != c.plan.Generation {
		return
	}
	if !c.expects(a.Epoch) {
		return
	}
	of := c.acks[a.Epoch]
	if of == nil {
		of = map[TaskID]Ack{}
		c.acks[a.Epoch] = of
	}
	if first, answered := of[task.ID]; answered && (first.Failed == "" || !c.initial(a.Epoch)) {
		return
	}
	of[task.ID] = a
}

// expects says whether acknowledgements of an epoch matter: of the one in flight and of the next,
// whose record another watch may deliver later.
func (c *Coordinator) expects(e Epoch) bool {
	switch {
	case !c.any:
		return e == 0
	case e == c.newest:
		return !c.records[e].Record.over()
	}
	return e == c.newest+1
}

func (c *Coordinator) initial(e Epoch) bool { return c.records[e].Record.Initial }

func (c *Coordinator) takeReplica(a ReplicaAck) {
	id := partID{a.Task, a.Epoch, a.Generation, a.Version}
	if len(a.Packs) > 0 && c.wanted(id) && c.packs[id] == nil {
		c.packs[id] = slices.Clone(a.Packs)
	}
}

// wanted says whether a part belongs to an epoch that may yet be replicated.
func (c *Coordinator) wanted(id partID) bool {
	if !c.cfg.Replicate {
		return false
	}
	for _, of := range c.acks {
		if a, ok := of[id.task]; ok && idOf(id.task, a.Part) == id {
			return true
		}
	}
	for _, v := range c.records {
		if p, ok := v.Record.Parts[id.task]; ok && idOf(id.task, p) == id {
			return true
		}
	}
	return false
}

func idOf(t TaskID, p Part) partID { return partID{t, p.Epoch, p.Generation, p.Version} }
