package abs

import (
	"fmt"
	"maps"
	"slices"
)

// decide is the whole policy: the next write that the known state calls for.
func (c *Coordinator) decide() *Write {
	if counting := c.Status().Counting; c.restart && counting != nil { // else the job has not begun
		return c.end(counting.Epoch)
	}
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

// end makes it certain, write by write, that no checkpoint of the generation comes to count any more, and
// notes from which one the next goes on. Whoever else believes to coordinate the generation has one of its
// writes refused by that: an epoch's key has changed, or the next epoch's exists, and is of a later generation.
func (c *Coordinator) end(counting Epoch) *Write {
	const why = "the tasks restart from an earlier checkpoint"
	if v := c.records[c.newest]; v.Record.State == Started {
		return c.abort(v, why)
	}
	if open := c.awaiting(); len(open) > 0 {
		v := c.records[open[0]]
		v.Record.Parts = nil
		return c.abort(v, why)
	}
	return &Write{Record: EpochRecord{
		Epoch: c.newest + 1, Term: c.term, Generation: c.plan.Generation + 1, State: Aborted, Detached: sorted(c.detached),
		Fence: true, Base: counting, StartedMs: c.now, EndedMs: c.now,
		Reason: fmt.Sprintf("generation %d begins from %v", c.plan.Generation+1, counting),
	}}
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
	var first Ack
	for id, a := range c.acks[r.Epoch] {
		if a.Failed == "" || first.Failed != "" && first.Task < id {
			continue
		}
		if task, _ := c.plan.task(id); !slices.Contains(r.Detached, task.Agent) {
			first = a
		}
	}
	if first.Failed == "" {
		return ""
	}
	return fmt.Sprintf("task %q: %s", first.Task, first.Failed)
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
		err = Check(c.plan, c.cfg.Mode, parts)
	}
	if err == nil && r.Final {
		err = c.allTakePart(r, parts)
	}
	if err != nil {
		v.Record = r
		return c.abort(v, err.Error())
	}
	if w := c.giveWay(r.Epoch, parts); w != nil {
		return w
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
	parts := map[TaskID]Part{}
	for _, t := range c.plan.Tasks {
		if !kept[t.Agent] {
			parts[t.ID] = c.acks[r.Epoch][t.ID].Part
			continue
		}
		p, has := c.keptPart(t.ID)
		if !has {
			return nil, fmt.Errorf("task %q on agent %q does not take part and has no earlier part to keep", t.ID, t.Agent)
		}
		parts[t.ID] = p
	}
	return parts, nil
}

// keptPart is the part that stands for a task that does not take part: that of the newest manifest, or, if
// its agent went away before it was replicated, that of the newest replicated one. Else no checkpoint would
// count until the agent is back. An older part of a gateway fits: its receivers only hold more of it.
func (c *Coordinator) keptPart(task TaskID) (p Part, has bool) {
	base, _ := c.base()
	p, has = base.Parts[task]
	if !has || !c.cfg.Replicate || len(c.packsOf(task, p)) > 0 {
		return p, has
	}
	if e, any := c.replicated(); any {
		if older, ok := c.records[e].Record.Parts[task]; ok {
			return older, true
		}
	}
	return p, has
}

// giveWay ends a committed epoch that has a newer part of a task than the next manifest will keep. Were it
// replicated late, the task's agent would give up its log up to that part, and the newer checkpoint, which
// counts more, could not be gone on from: of a task's parts no older one may come to count after a newer.
// That is certain only when the epoch's key says so: another term may be about to mark it.
func (c *Coordinator) giveWay(next Epoch, parts map[TaskID]Part) *Write {
	for _, e := range c.awaiting() {
		v := c.records[e]
		if task := outruns(v.Record, parts); task != "" {
			v.Record.Parts = nil
			return c.abort(v, fmt.Sprintf("the part of task %q was not replicated before its agent was gone: %v keeps an older one", task, next))
		}
	}
	return nil
}

// outruns names a task of which a manifest has a newer part than a later manifest, empty if there is none.
// A generation's initial part is at the cut of the one that it was made from.
func outruns(r EpochRecord, later map[TaskID]Part) TaskID {
	if r.Initial {
		return ""
	}
	for _, id := range sorted(setOf(maps.Keys(r.Parts))) {
		if p, has := later[id]; has && p.Epoch < r.Parts[id].Epoch {
			return id
		}
	}
	return ""
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

// markReplicated marks the newest committed epoch whose parts are all in the object store. One that had to give
// way may be committed again: agents bring their copies when the control plane was lost.
func (c *Coordinator) markReplicated() *Write {
	awaiting := c.awaiting()
	for i, e := range awaiting {
		v := c.records[e]
		late := slices.ContainsFunc(awaiting[:i], func(n Epoch) bool { return outruns(v.Record, c.records[n].Record.Parts) != "" })
		if parts, all := c.withPacks(v.Record); all && !late {
			r := v.Record
			r.State, r.Parts, r.ReplicatedMs = Replicated, parts, c.now
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
		return c.holdsUntil(c.pauseEnd(), r.State == Aborted && !r.Fence && r.Generation == c.plan.Generation)
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
	case c.allQuiet(r):
		return fmt.Sprintf("nothing has changed since %v", r.Epoch)
	}
	return c.holdsUntil(max(c.startedAt+c.intervalMs(), c.pauseEnd()), true)
}

// allQuiet says that the newest epoch is a checkpoint that counts, and that a next one would hold the
// same: no task that would take part has changed, and the same agents would.
func (c *Coordinator) allQuiet(r EpochRecord) bool {
	if r.Epoch == 0 || !r.Counts(c.cfg.Replicate) || len(c.returning) > 0 || !slices.Equal(r.Detached, c.nextDetached()) {
		return false
	}
	for _, t := range c.plan.Tasks {
		if !slices.Contains(r.Detached, t.Agent) && c.quiet[t.Agent] != r.Epoch {
			return false
		}
	}
	return true
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
	if !c.cfg.Replicate || r.State != Committed || c.now-c.endedAt >= c.cfg.ReplicaTimeoutMs {
		return false
	}
	for _, t := range c.plan.Tasks {
		if p, has := r.Parts[t.ID]; has && len(c.packsOf(t.ID, p)) == 0 && !c.overdue(t.Agent) {
			return true
		}
	}
	return false
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
