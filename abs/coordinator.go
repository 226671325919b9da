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
	Replicate        bool // a checkpoint counts when it is replicated, not when committed
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

// Notice is something that reaches the coordinator: one of Tick, Trigger, Stop, RecordSeen, Written,
// Unwritten, Ack, ReplicaAck, AgentGone, AgentBack and AgentDrained.
type Notice interface{ notice() }

type (
	// Tick says that time has passed. Several a second are enough.
	Tick struct{}
	// Trigger asks for a savepoint. A name that a record already carries, unless aborted, or that
	// waits already, changes nothing.
	Trigger struct{ Name string }
	// Stop asks for the final epoch. It may be repeated, and must be to the next term.
	Stop struct{}
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
)

func (Tick) notice()         {}
func (Trigger) notice()      {}
func (Stop) notice()         {}
func (RecordSeen) notice()   {}
func (Written) notice()      {}
func (Unwritten) notice()    {}
func (Ack) notice()          {}
func (ReplicaAck) notice()   {}
func (AgentGone) notice()    {}
func (AgentBack) notice()    {}
func (AgentDrained) notice() {}

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
	returning map[string]bool // drained, attached with the next epoch

	outstanding *Write
	retryAt     int64
	deposed     string

	savepoints []string
	stop       bool
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
	case AgentBack:
		delete(c.gone, n.Agent)
	case AgentDrained:
		delete(c.gone, n.Agent)
		if c.detached[n.Agent] {
			c.returning[n.Agent] = true
		}
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
	if c.isDeposedBy(r) {
		return
	}
	c.records[r.Epoch] = v
	if !c.any || r.Epoch >= c.newest {
		c.adoptNewest(r, !seen || known.Record.State != r.State)
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
		c.failures++
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

// decide is the whole policy: the next write that the known state calls for.
func (c *Coordinator) decide() *Write {
	if c.any {
		if v := c.records[c.newest]; v.Record.State == Started {
			return c.drive(v)
		}
	}
	if w := c.markReplicated(); w != nil {
		return w
	}
	if why := c.holds(); why != "" {
		return nil
	}
	return c.start()
}

// drive moves the epoch in flight.
func (c *Coordinator) drive(v VersionedRecord) *Write {
	r := v.Record
	if r.Generation < c.plan.Generation {
		return c.abort(v, fmt.Sprintf("generation %d has begun", c.plan.Generation))
	}
	if r.Term != c.term {
		// First the term: from here on no write of the term before can succeed on this key.
		return c.revise(v, r)
	}
	if why := c.nacked(r); why != "" {
		return c.abort(v, why)
	}
	detached := c.detachOverdue(r)
	missing := c.missing(r, detached)
	switch {
	case len(missing) == 0:
		return c.complete(v, detached)
	case !r.Initial && c.now-c.startedAt >= c.cfg.TimeoutMs:
		return c.abort(v, fmt.Sprintf("not complete after %d ms: waiting for %s", c.now-c.startedAt, list(missing)))
	case len(detached) > len(r.Detached):
		r.Detached = detached
		return c.revise(v, r)
	}
	return nil
}

func (c *Coordinator) revise(v VersionedRecord, r EpochRecord) *Write {
	r.Term = c.term
	return &Write{Record: r, Revision: v.Revision}
}

func (c *Coordinator) abort(v VersionedRecord, why string) *Write {
	r := v.Record
	r.State, r.Reason, r.EndedMs = Aborted, why, c.now
	return c.revise(v, r)
}

func (c *Coordinator) nacked(r EpochRecord) string {
	if r.Initial {
		return ""
	}
	for _, id := range sorted(setOf(maps.Keys(c.acks[r.Epoch]))) {
		a := c.acks[r.Epoch][id]
		if task, _ := c.plan.task(id); a.Failed != "" && !slices.Contains(r.Detached, task.Agent) {
			return fmt.Sprintf("task %q: %s", id, a.Failed)
		}
	}
	return ""
}

// detachOverdue adds to a record's detached agents those that have been gone too long.
func (c *Coordinator) detachOverdue(r EpochRecord) []string {
	out := setOf(slices.Values(r.Detached))
	for agent := range c.gone {
		if c.overdue(agent) {
			out[agent] = true
		}
	}
	return sorted(out)
}

func (c *Coordinator) overdue(agent string) bool {
	since, gone := c.gone[agent]
	return gone && c.cfg.DetachAfterMs > 0 && c.now-since >= c.cfg.DetachAfterMs && c.detachable(agent)
}

// detachable: a gateway all of whose tasks have a part that the manifest can keep.
func (c *Coordinator) detachable(agent string) bool {
	base, ok := c.base()
	if !ok || !c.plan.Gateway(agent) {
		return false
	}
	for _, t := range c.plan.Tasks {
		if _, has := base.Parts[t.ID]; t.Agent == agent && !has {
			return false
		}
	}
	return true
}

// missing lists the tasks whose part is still awaited.
func (c *Coordinator) missing(r EpochRecord, detached []string) []TaskID {
	var out []TaskID
	for _, t := range c.plan.Tasks {
		a, answered := c.acks[r.Epoch][t.ID]
		if !slices.Contains(detached, t.Agent) && (!answered || a.Failed != "") {
			out = append(out, t.ID)
		}
	}
	return out
}

// complete commits an epoch whose parts are all there, or aborts it if they do not fit together.
func (c *Coordinator) complete(v VersionedRecord, detached []string) *Write {
	r := v.Record
	r.Detached = detached
	parts, err := c.assemble(r)
	if err == nil {
		err = Check(c.plan, parts)
	}
	if err == nil && r.Final {
		err = c.allTakePart(r, parts)
	}
	if err != nil {
		v.Record = r
		return c.abort(v, err.Error())
	}
	r.State, r.Parts, r.EndedMs = Committed, parts, c.now
	return c.revise(v, r)
}

// allTakePart: a job has not come to rest while a task that could be reached is left before the cut.
func (c *Coordinator) allTakePart(r EpochRecord, parts map[TaskID]Part) error {
	for _, t := range c.plan.Tasks {
		if parts[t.ID].Epoch != r.Epoch && !slices.Contains(r.Detached, t.Agent) {
			return fmt.Errorf("task %q did not take part in the final epoch", t.ID)
		}
	}
	return nil
}

// assemble collects the new parts, and the kept ones of agents that do not take part.
func (c *Coordinator) assemble(r EpochRecord) (map[TaskID]Part, error) {
	kept := map[string]bool{}
	for _, agent := range r.Detached {
		kept[agent] = true
	}
	if !r.Initial {
		c.keepUnaligned(r, kept)
	}
	base, _ := c.base()
	parts := map[TaskID]Part{}
	for _, t := range c.plan.Tasks {
		if !kept[t.Agent] {
			parts[t.ID] = c.acks[r.Epoch][t.ID].Part
			continue
		}
		p, has := base.Parts[t.ID]
		if !has {
			return nil, fmt.Errorf("task %q on agent %q does not take part and has no earlier part to keep", t.ID, t.Agent)
		}
		parts[t.ID] = p
	}
	return parts, nil
}

// keepUnaligned adds the agents whose new parts cannot be used because a receiver with a new part
// froze without their barrier: it had not yet seen that they are attached again, or saw them detached
// first. All tasks of an agent share this, so the answer is closed over agents.
func (c *Coordinator) keepUnaligned(r EpochRecord, kept map[string]bool) {
	for again := true; again; {
		again = false
		for _, ch := range c.plan.Channels {
			from, _ := c.plan.task(ch.From)
			to, _ := c.plan.task(ch.To)
			if ch.Back || kept[from.Agent] || kept[to.Agent] {
				continue
			}
			if !slices.Contains(c.acks[r.Epoch][to.ID].Part.Aligned, ch.ID) {
				kept[from.Agent], again = true, true
			}
		}
	}
}

// markReplicated marks the newest committed epoch whose parts are all in the object store.
func (c *Coordinator) markReplicated() *Write {
	for _, e := range c.awaiting() {
		v := c.records[e]
		if parts, all := c.withPacks(v.Record); all {
			r := v.Record
			r.State, r.Parts = Replicated, parts
			return c.revise(v, r)
		}
	}
	return nil
}

func (c *Coordinator) withPacks(r EpochRecord) (map[TaskID]Part, bool) {
	parts := maps.Clone(r.Parts)
	for id, p := range parts {
		p.Packs = c.packsOf(id, p)
		if len(p.Packs) == 0 {
			return nil, false
		}
		parts[id] = p
	}
	return parts, true
}

// packsOf finds a part's packs. A kept part may have got them under an earlier manifest.
func (c *Coordinator) packsOf(task TaskID, p Part) []string {
	id := idOf(task, p)
	if packs := c.packs[id]; len(packs) > 0 {
		return packs
	}
	for _, v := range c.records {
		if same, ok := v.Record.Parts[task]; ok && idOf(task, same) == id && len(same.Packs) > 0 {
			return same.Packs
		}
	}
	return p.Packs
}

// holds says why no epoch may start now, empty if one may.
func (c *Coordinator) holds() string {
	if !c.any {
		return ""
	}
	r := c.records[c.newest].Record
	switch {
	case r.State == Started:
		return fmt.Sprintf("%v is running", r.Epoch)
	case c.finalIsIn():
		return "the job has stopped"
	case c.awaitsReplica(r):
		return fmt.Sprintf("%v is being replicated", r.Epoch)
	}
	if c.needsInitial() {
		return c.holdsUntil(c.pauseEnd(), r.State == Aborted && r.Generation == c.plan.Generation)
	}
	if agent := c.awaitedAgent(); agent != "" {
		return fmt.Sprintf("agent %q is gone", agent)
	}
	if c.nobodyTakesPart() {
		return "all agents are detached"
	}
	return c.holdsForTime(r)
}

func (c *Coordinator) holdsForTime(r EpochRecord) string {
	switch {
	case len(c.savepoints) > 0:
		return ""
	case c.stop: // at once, but a final epoch that failed is not repeated in a loop
		return c.holdsUntil(c.pauseEnd(), r.Final)
	case c.cfg.IntervalMs == 0:
		return "no interval is set"
	}
	return c.holdsUntil(max(c.startedAt+c.intervalMs(), c.pauseEnd()), true)
}

func (c *Coordinator) holdsUntil(at int64, applies bool) string {
	if applies && c.now < at {
		return fmt.Sprintf("the next one starts in %d ms", at-c.now)
	}
	return ""
}

// pauseEnd is when the pause after the last epoch ends. After a failure it lasts at least retryMs.
func (c *Coordinator) pauseEnd() int64 {
	if c.failures > 0 {
		return c.endedAt + max(c.cfg.MinPauseMs, retryMs)
	}
	return c.endedAt + c.cfg.MinPauseMs
}

// intervalMs is the interval, stretched where a device takes long to write what changed.
func (c *Coordinator) intervalMs() int64 {
	stretched := min(persistShare*c.persistMs, maxStretch*c.cfg.IntervalMs)
	return max(c.cfg.IntervalMs, stretched)
}

func (c *Coordinator) awaitsReplica(r EpochRecord) bool {
	return c.cfg.Replicate && r.State == Committed && c.now-c.endedAt < c.cfg.ReplicaTimeoutMs
}

func (c *Coordinator) finalIsIn() bool {
	r := c.records[c.newest].Record
	return c.any && r.Final && r.Manifest() && r.Generation == c.plan.Generation
}

func (c *Coordinator) stopped() bool {
	return c.finalIsIn() && c.records[c.newest].Record.Counts(c.cfg.Replicate)
}

// needsInitial: no manifest of this generation yet.
func (c *Coordinator) needsInitial() bool {
	base, ok := c.base()
	return !ok || base.Generation != c.plan.Generation
}

// awaitedAgent is one that is gone and not, or not yet, detached: an epoch started now would wait
// for it.
func (c *Coordinator) awaitedAgent() string {
	for _, agent := range sorted(setOf(maps.Keys(c.gone))) {
		if !c.detached[agent] && !c.overdue(agent) && c.hosts(agent) {
			return agent
		}
	}
	return ""
}

func (c *Coordinator) hosts(agent string) bool {
	return slices.ContainsFunc(c.plan.Tasks, func(t PlannedTask) bool { return t.Agent == agent })
}

func (c *Coordinator) nobodyTakesPart() bool {
	out := c.nextDetached()
	return !slices.ContainsFunc(c.plan.Tasks, func(t PlannedTask) bool { return !slices.Contains(out, t.Agent) })
}

// nextDetached is who the next epoch does not wait for. Agents come back here only, never while an
// epoch runs.
func (c *Coordinator) nextDetached() []string {
	out := maps.Clone(c.detached)
	for agent := range c.returning {
		delete(out, agent)
	}
	maps.DeleteFunc(out, func(agent string, _ bool) bool { return !c.hosts(agent) })
	return c.detachOverdue(EpochRecord{Detached: sorted(out)})
}

// start creates the next epoch's record.
func (c *Coordinator) start() *Write {
	r := EpochRecord{Term: c.term, Generation: c.plan.Generation, State: Started, StartedMs: c.now, Detached: c.nextDetached()}
	if c.any {
		r.Epoch = c.newest + 1
	}
	switch {
	case c.needsInitial():
		r.Initial = true
	case len(c.savepoints) > 0:
		r.Savepoint = c.savepoints[0]
	case c.stop:
		r.Final = true
	}
	return &Write{Record: r}
}

// Status is what is worth showing of a job's checkpoints.
type Status struct {
	Running    *EpochRecord // the epoch in flight
	Missing    []TaskID     // whom it waits for
	Failed     []string     // what tasks reported for it
	Committed  *EpochRecord // the newest manifest
	Replicated *EpochRecord // the newest replicated one
	Counting   *EpochRecord // the newest that counts
	Detached   []string
	Failures   int    // epochs aborted in a row
	Failing    bool   // more than are tolerated
	Holding    string // why no epoch starts now, empty while one runs or starts
	IntervalMs int64  // as stretched
	Stopped    bool
}

// Status returns a view that shares nothing that changes.
func (c *Coordinator) Status() Status {
	s := Status{
		Detached: sorted(c.detached), Failures: c.failures, Failing: c.failures > c.cfg.TolerateFailures,
		IntervalMs: c.intervalMs(), Stopped: c.stopped(),
	}
	if !c.any {
		return s
	}
	for _, v := range c.records {
		s.note(v.Record, c.cfg.Replicate)
	}
	if s.Running == nil {
		s.Holding = c.holds()
		return s
	}
	s.Missing = c.missing(*s.Running, s.Running.Detached)
	for _, id := range s.Missing {
		if a := c.acks[s.Running.Epoch][id]; a.Failed != "" {
			s.Failed = append(s.Failed, fmt.Sprintf("task %q: %s", id, a.Failed))
		}
	}
	return s
}

func (s *Status) note(r EpochRecord, replicate bool) {
	newer := func(of **EpochRecord, applies bool) {
		if applies && (*of == nil || (*of).Epoch < r.Epoch) {
			*of = &r
		}
	}
	newer(&s.Running, r.State == Started)
	newer(&s.Committed, r.Manifest())
	newer(&s.Replicated, r.State == Replicated)
	newer(&s.Counting, r.Counts(replicate))
}

// Needed is the oldest epoch whose record and acknowledgements the next term needs; those before it,
// savepoints excepted, may be deleted.
func (c *Coordinator) Needed() Epoch {
	if !c.any {
		return 0
	}
	oldest := c.oldest()
	for _, e := range c.awaiting() {
		for id, p := range c.records[e].Record.Parts {
			if len(c.packsOf(id, p)) == 0 {
				oldest = min(oldest, p.Epoch) // its ReplicaAck is yet to come, under that epoch
			}
		}
	}
	return oldest
}

func setOf[K ~string](seq func(yield func(K) bool)) map[K]bool {
	out := map[K]bool{}
	for k := range seq {
		out[k] = true
	}
	return out
}

// list names at most a few tasks.
func list(tasks []TaskID) string {
	const named = 5 // a message is read by people
	s := ""
	for i, t := range tasks {
		if i == named {
			return fmt.Sprintf("%s and %d more", s, len(tasks)-named)
		}
		if i > 0 {
			s += ", "
		}
		s += string(t)
	}
	return s
}
