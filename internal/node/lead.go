package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-stream/weir/abs"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// Pace of the coordinator.
const (
	leadTick = 50 * time.Millisecond
	// tidyEvery is how often what no checkpoint needs is removed from the control plane.
	tidyEvery = 30 * time.Second
	// keptRecords is how many epochs of a job remain to be listed.
	keptRecords = 32
	// keptSavepoints is how many checkpoints that were asked for are kept beyond that, the newest.
	keptSavepoints = 16
	// clientPatience is how much later an agent whose server is not the hub strives for the lease:
	// the agent beside the server loses touch with it last.
	clientPatience = 10 * time.Second
)

// leader is what others may know of the coordinator, if it is on this agent.
type leader struct {
	mu     sync.Mutex
	term   abs.Term // 0: it is not
	asked  uint64   // the number of its newest ask
	status map[string]abs.Status
}

// runLeader strives for the coordinator's lease and leads while it is held.
func (a *Agent) runLeader() {
	if (!a.opt.Embedded() || a.opt.Leaf != "") && !sleep(a.life, clientPatience) {
		return
	}
	lease := a.conn.Lease(wnats.LeaseOptions{Name: "coordinator", Holder: a.name, Instance: a.dir.Identity().Instance, Floor: a.highestTerm})
	for a.life.Err() == nil {
		err := lease.Run(a.life, a.lead)
		if a.life.Err() != nil {
			return
		}
		a.log.Warn("coordinator ended", "reason", err)
		if !sleep(a.life, time.Second) {
			return
		}
	}
}

// highestTerm is the highest that this agent knows of: of a record, or of an ask, which also one has that wrote none.
func (a *Agent) highestTerm() abs.Term {
	term := a.highestAsk()
	for _, h := range a.hosted() {
		h.mu.Lock()
		for _, rec := range h.epochs {
			term = max(term, rec.Term)
		}
		h.mu.Unlock()
	}
	return term
}

// lead coordinates the checkpoints of all jobs during one term.
func (a *Agent) lead(ctx context.Context, term abs.Term) error {
	a.log.Info("this agent coordinates", "term", uint64(term))
	a.leader.begin(term)
	defer a.leader.end()
	l := &lead{a: a, term: term, began: time.Now(), jobs: map[string]*led{}, events: make(chan func(), 256)}
	stop, err := a.conn.Serve("coordinator", a.answerCoordinator)
	if err != nil {
		return err
	}
	defer stop()
	if !a.hearsAll() {
		deaf, err := a.hear(saysAlive)
		if err != nil {
			return err
		}
		defer deaf()
	}
	g, ctx := errgroup.WithContext(ctx)
	kv := a.conn.KV(wnats.Checkpoints)
	g.Go(func() error { return kv.Watch(ctx, kindEpoch, l.watch(ctx, l.onEpoch)) })
	g.Go(func() error { return kv.Watch(ctx, kindAck, l.watch(ctx, l.onAck)) })
	g.Go(func() error { return kv.Watch(ctx, kindReplica, l.watch(ctx, l.onReplica)) })
	g.Go(func() error { return l.a.watchTrials(ctx) })
	g.Go(func() error { return l.scrub(ctx) })
	g.Go(func() error { return l.a.sweepModules(ctx) })
	g.Go(func() error { return l.run(ctx) })
	return g.Wait()
}

// lead is one term. run owns it.
type lead struct {
	a     *Agent
	term  abs.Term
	began time.Time
	// outdated: agents have brought records of a higher term to a control plane that is a new one. The next term is
	// above it, and above that of an ask of the lost one, which some agents may answer.
	outdated bool
	jobs     map[string]*led
	events   chan func()
	tidied   time.Time
	// cluster is the identity of the control plane that jobs are of.
	cluster string
}

// led is a job during a term.
type led struct {
	rec    jobRecord
	agents []string
	coord  *abs.Coordinator

	goingBack atomic.Bool // by policy: a record of the next generation is being stored
	looked    time.Time   // whether it has to
	notBack   string      // why it could not the last time; of who has set goingBack
	rests     time.Time   // until when it is not tried again; of who has set goingBack

	written uint64 // revision of the newest record that this term has written: its coordinator knows it
	ticks   uint64
	told    map[string]abs.Notice // of presence, by agent
	needs   map[string]uint64     // by agent: the number of the first ask that it has heard since it was gone
	quiet   map[string]abs.AgentQuiet
	gone    map[string]time.Time // since when an agent does not take part
	givenUp []string             // as [lead.givenUp], when coord was made
}

func (l *lead) run(ctx context.Context) error {
	t := time.NewTicker(leadTick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f := <-l.events:
			f()
		case <-l.a.wakeLeader:
			l.tick(ctx)
		case <-t.C:
			l.tick(ctx)
		}
		if l.outdated || l.a.highestAsk() > l.term {
			return errOutdated
		}
	}
}

var errOutdated = errors.New("it is of a lower term than what was heard of")

// watch passes a bucket's changes on to run.
func (l *lead) watch(ctx context.Context, take func(context.Context, string, wnats.Event)) func(wnats.Event) error {
	return func(e wnats.Event) error {
		if e.CaughtUp || e.Deleted {
			return nil
		}
		names, err := wnats.SplitKey(e.Key)
		if err != nil || len(names) < 3 {
			return nil
		}
		select {
		case l.events <- func() { take(ctx, names[1], e) }:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *lead) onEpoch(ctx context.Context, job string, e wnats.Event) {
	j := l.jobs[job]
	if j == nil || e.Revision == j.written {
		return
	}
	if rec, err := abs.DecodeRecord(e.Value); err == nil {
		l.step(ctx, j, abs.RecordSeen{Record: rec, Revision: e.Revision})
	}
}

func (l *lead) onAck(ctx context.Context, job string, e wnats.Event) {
	var list ackList
	j := l.jobs[job]
	if j == nil || json.Unmarshal(e.Value, &list) != nil {
		return
	}
	notices := make([]abs.Notice, len(list.Acks))
	for i, ack := range list.Acks {
		notices[i] = ack
	}
	l.step(ctx, j, notices...)
}

func (l *lead) onReplica(ctx context.Context, job string, e wnats.Event) {
	acks, err := decodeReplicas(e.Value)
	if err != nil {
		l.a.log.Warn("acknowledgements of replicas cannot be read and are ignored", "key", e.Key, "error", err)
		return
	}
	notices := make([]abs.Notice, len(acks))
	for i, ack := range acks {
		notices[i] = ack
	}
	if j := l.jobs[job]; j != nil {
		l.step(ctx, j, notices...)
	}
}

// tick looks after every job.
func (l *lead) tick(ctx context.Context) {
	cluster := l.a.currentCluster()
	if cluster == "" {
		return
	}
	if cluster != l.cluster { // it has forgotten something: what is known of the jobs is learnt again
		for name := range l.jobs {
			l.drop(name)
		}
		l.cluster = cluster
	}
	for _, h := range l.a.hosted() {
		rec := h.record()
		if !rec.live() {
			l.drop(rec.Name)
			continue
		}
		j, err := l.job(ctx, rec)
		if err != nil {
			l.a.log.Warn("job cannot be coordinated now", "job", rec.Name, "error", err)
			continue
		}
		if j == nil {
			continue
		}
		if rec.State == jobStopping && rec.Next != nil && rec.Next.Unbegun {
			l.supplant(ctx, j)
			continue
		}
		if rec.State == jobRestarting { // before anything that might start an epoch
			l.step(ctx, j, abs.Restart{})
		}
		l.presence(ctx, j)
		if rec.State == jobStopping {
			l.step(ctx, j, abs.Stop{})
		}
		l.step(ctx, j, abs.Tick{})
		l.policy(ctx, j)
	}
	l.answerAsks(ctx)
	if time.Since(l.tidied) > tidyEvery {
		l.tidied = time.Now()
		l.tidy(ctx)
	}
}

func (l *lead) drop(job string) {
	delete(l.jobs, job)
	l.a.leader.forget(job)
}

// job returns the coordinator of a job, which begins once all its agents, but those taken out of the fleet, have brought
// their copies to this control plane: none of them may know a higher epoch.
func (l *lead) job(ctx context.Context, rec jobRecord) (*led, error) {
	j, gone := l.jobs[rec.Name], map[string]time.Time{}
	if j != nil && j.rec.Generation != rec.Generation {
		j = nil
	}
	givenUp := l.givenUp(rec, j)
	if j != nil {
		if slices.Equal(j.givenUp, givenUp) {
			j.rec = rec
			return j, nil
		}
		gone = j.gone
	}
	for _, name := range rec.Plan.Agents() {
		if l.a.peers.takenOut(name) {
			continue // what it knew was given up
		}
		if p, ok := l.a.peers.get(name); !ok || p.Cluster != l.a.currentCluster() {
			return nil, nil
		}
	}
	recovered, err := l.recovered(ctx, rec.Name)
	if err != nil {
		return nil, err
	}
	cfg := rec.config()
	if len(givenUp) > 0 {
		cfg.DetachAfterMs = 1 // whoever is told to be gone: see presence
	}
	coord, err := abs.NewCoordinator(cfg, rec.absPlan(), l.term, recovered)
	if err != nil {
		return nil, err
	}
	j = &led{
		rec: rec, agents: rec.Plan.Agents(), coord: coord, told: map[string]abs.Notice{}, needs: map[string]uint64{}, quiet: map[string]abs.AgentQuiet{},
		gone: gone, givenUp: givenUp,
	}
	l.jobs[rec.Name] = j
	return j, nil
}

// recovered reads what the control plane holds of a job.
func (l *lead) recovered(ctx context.Context, job string) (abs.Recovered, error) {
	var out abs.Recovered
	kv := l.a.conn.KV(wnats.Checkpoints)
	for _, kind := range []string{kindEpoch, kindAck, kindReplica} {
		entries, err := kv.List(ctx, wnats.Key(kind, job))
		if err != nil {
			return out, err
		}
		for _, e := range entries {
			if err := takeRecovered(&out, kind, e); err != nil {
				return out, fmt.Errorf("%s: %w", e.Key, err)
			}
		}
	}
	return out, nil
}

func takeRecovered(out *abs.Recovered, kind string, e wnats.Entry) (err error) {
	switch kind {
	case kindEpoch:
		v := abs.VersionedRecord{Revision: e.Revision}
		v.Record, err = abs.DecodeRecord(e.Value)
		out.Records = append(out.Records, v)
	case kindAck:
		var list ackList
		err = json.Unmarshal(e.Value, &list)
		out.Acks = append(out.Acks, list.Acks...)
	case kindReplica:
		var acks []abs.ReplicaAck
		acks, err = decodeReplicas(e.Value)
		out.Replicas = append(out.Replicas, acks...)
	}
	return err
}

// presenceTicks is how often the coordinator is told again of agents that are detached what is no news: that one has
// drained was of no effect if it was said before the record that detached it. Of the others there is nothing that a
// record makes void, and they may be thousands, of each of which it would look at all tasks.
const presenceTicks = 10

// presence tells the coordinator who is gone, who is back, and where nothing changes.
func (l *lead) presence(ctx context.Context, j *led) {
	var detached []string
	if j.ticks%presenceTicks == 0 {
		detached = j.coord.Status().Detached
	}
	j.ticks++
	for _, name := range j.agents {
		var now abs.Notice = abs.AgentBack{Agent: name}
		quiet := abs.AgentQuiet{Agent: name, Since: l.a.peers.quietSince(name, j.rec.Name)}
		switch {
		case slices.Contains(j.givenUp, name):
			now, quiet.Since = abs.AgentGone{Agent: name}, 0
		case !l.a.peers.alive(name) && time.Since(l.began) < goneAfter:
			quiet.Since = 0 // it may just not have said anything yet
		case !l.a.peers.takesPart(name, j.rec.Name):
			quiet.Since = 0
			if j.isGone(name) {
				now = abs.AgentGone{Agent: name}
			}
			j.needs[name] = l.a.leader.asks().N + 1
		case l.a.peers.drained(name, l.ask(j.needs[name])):
			now = abs.AgentDrained{Agent: name}
			delete(j.gone, name)
		default:
			delete(j.gone, name)
		}
		again := slices.Contains(detached, name)
		if told := j.told[name]; again || told != now {
			l.step(ctx, j, now)
		}
		if again || j.quiet[name] != quiet {
			l.step(ctx, j, quiet)
		}
		j.told[name], j.quiet[name] = now, quiet
	}
}

// isGone says whether the coordinator is told of an agent that does not take part. While it gives agents up it waits for
// nobody of whom it is told, so of others it is told when their time is over.
func (j *led) isGone(name string) bool {
	if _, known := j.gone[name]; !known {
		j.gone[name] = time.Now()
	}
	return len(j.givenUp) == 0 || j.overdue(name)
}

// overdue says whether an agent has not taken part for longer than the job waits for one.
func (j *led) overdue(name string) bool {
	patience := time.Duration(j.rec.Plan.Checkpoint.DetachAfterMS) * time.Millisecond
	since, known := j.gone[name]
	return known && patience > 0 && time.Since(since) >= patience
}

// givenUp are the agents whose devices the job's next generation replaces, once nobody else is awaited. Until then the job
// waits as it does for any checkpoint: the final one closes all sources when it begins, and would not come about.
func (l *lead) givenUp(rec jobRecord, j *led) []string {
	names := rec.givenUp()
	for _, name := range rec.Plan.Agents() {
		if !slices.Contains(names, name) && !l.a.peers.takesPart(name, rec.Name) && (j == nil || !j.overdue(name)) {
			return nil
		}
	}
	return names
}

// ask is the ask of a number, the first one for 0. It is said if it is new.
func (l *lead) ask(n uint64) ask {
	q, isNew := l.a.leader.ask(n)
	if isNew {
		signal(l.a.asked)
	}
	return q
}

// step gives the coordinator notices that have come together and does what it says. How the job is then is noted
// when something was written and with each tick: to look at all tasks for every acknowledgement would be work that
// grows with the square of their number.
func (l *lead) step(ctx context.Context, j *led, notices ...abs.Notice) {
	var act abs.Actions
	note := false
	for _, n := range notices {
		if _, tick := n.(abs.Tick); tick {
			note = true
		}
		act = j.coord.Step(n, l.now())
		for act.Write != nil && ctx.Err() == nil {
			note = true
			act = l.write(ctx, j, *act.Write)
		}
	}
	if act.Deposed != "" {
		l.a.log.Info("coordinator of a job begins anew", "job", j.rec.Name, "reason", act.Deposed)
		l.outdated = l.a.highestTerm() > l.term
		l.drop(j.rec.Name)
		return
	}
	if act.Fence != nil {
		if j.rec.State == jobRestarting {
			l.next(ctx, j, func(rec *jobRecord) { rec.Next.Base, rec.Next.RolledBack = act.Fence.Base, true })
		}
		return
	}
	if !note {
		return
	}
	st := j.coord.Status()
	if st.Running != nil {
		running := *st.Running
		running.StartedMs, st.Running = l.wall(running.StartedMs), &running
	}
	l.a.leader.note(j.rec.Name, st)
	switch {
	case act.Stopped && j.rec.State == jobStopping:
		l.over(ctx, j, jobStopped)
	case j.rec.State == jobRunning && allEnded(st.Counting, j.rec.Generation):
		l.over(ctx, j, jobFinished)
	}
}

// over notes in the job's record that it ended with a checkpoint that counts.
func (l *lead) over(ctx context.Context, j *led, state jobState) {
	l.next(ctx, j, func(rec *jobRecord) {
		if st := j.coord.Status(); st.Counting != nil {
			rec.Final = st.Counting.Epoch
		}
		rec.State, rec.Revision = state, rec.Revision+1
		if rec.Next != nil {
			rec.Next.Base = rec.Final
		}
	})
}

func (l *lead) now() int64 { return l.a.stopwatch().Milliseconds() }

// write performs one compare-and-set and tells the coordinator how it ended.
func (l *lead) write(ctx context.Context, j *led, w abs.Write) abs.Actions {
	kv, key := l.a.conn.KV(wnats.Checkpoints), epochKey(j.rec.Name, w.Record.Epoch)
	w.Record.StartedMs, w.Record.EndedMs = l.wall(w.Record.StartedMs), l.wall(w.Record.EndedMs)
	w.Record.ReplicatedMs = l.wall(w.Record.ReplicatedMs)
	value, err := json.Marshal(w.Record)
	if err != nil {
		panic(err)
	}
	var rev uint64
	if w.Revision == 0 {
		rev, err = kv.Create(ctx, key, value)
	} else {
		rev, err = kv.Update(ctx, key, value, w.Revision)
	}
	if err == nil {
		l.logRecord(j, w.Record)
		j.written = rev
		return j.coord.Step(abs.Written{Revision: rev}, l.now())
	}
	if !errors.Is(err, wnats.ErrConflict) {
		l.a.log.Warn("epoch record not written", "job", j.rec.Name, "epoch", uint64(w.Record.Epoch), "error", err)
	}
	if e, err := kv.Get(ctx, key); err == nil {
		if rec, err := abs.DecodeRecord(e.Value); err == nil {
			j.coord.Step(abs.RecordSeen{Record: rec, Revision: e.Revision}, l.now())
		}
	}
	return j.coord.Step(abs.Unwritten{}, l.now())
}

// wall turns the coordinator's time, which never goes back, into the time of day, for display. What an
// earlier term wrote is the time of day already.
func (l *lead) wall(ms int64) int64 {
	const earliestDay = 1e11 // 1973; no process runs that long
	if ms == 0 || ms > earliestDay {
		return ms
	}
	return l.a.began.UnixMilli() + ms
}

func (l *lead) logRecord(j *led, rec abs.EpochRecord) {
	attrs := []any{"job", j.rec.Name, "epoch", uint64(rec.Epoch), "state", string(rec.State)}
	if rec.Reason != "" {
		attrs = append(attrs, "reason", rec.Reason)
	}
	if rec.State == abs.Aborted {
		l.a.log.Warn("checkpoint", attrs...)
		return
	}
	l.a.log.Debug("checkpoint", attrs...)
}

// allEnded says whether a checkpoint holds the end of every task.
func allEnded(rec *abs.EpochRecord, gen abs.Generation) bool {
	if rec == nil || rec.Generation != gen || len(rec.Parts) == 0 {
		return false
	}
	for _, p := range rec.Parts {
		if !p.Ended {
			return false
		}
	}
	return true
}

// next changes the record of a job whose generation has ended, or puts its successor in its place.
func (l *lead) next(ctx context.Context, j *led, change func(*jobRecord)) {
	kv, key := l.a.conn.KV(wnats.Jobs), wnats.Key(j.rec.Name)
	e, err := kv.Get(ctx, key)
	if err != nil {
		return
	}
	var rec jobRecord
	if json.Unmarshal(e.Value, &rec) != nil || rec.State != j.rec.State || rec.Generation != j.rec.Generation {
		return
	}
	change(&rec)
	if rec.Next != nil {
		rec.Next.Revision = 1
		rec = *rec.Next
	}
	if _, err := kv.Update(ctx, key, mustJSON(rec), e.Revision); err != nil {
		l.a.log.Warn("end of a job's generation not noted: it will be tried again", "job", rec.Name, "state", string(rec.State), "error", err)
	}
}

// tidy removes records, acknowledgements and packs that no restore needs any more.
func (l *lead) tidy(ctx context.Context) {
	for name, j := range l.jobs {
		if err := l.tidyJob(ctx, name, j); err != nil && ctx.Err() == nil {
			l.a.log.Warn("old checkpoints not removed", "job", name, "error", err)
		}
	}
	if err := l.a.tidyStreams(ctx); err != nil && ctx.Err() == nil {
		l.a.log.Warn("input streams of jobs that have ended not removed", "error", err)
	}
}

// tidyStreams removes the input streams of jobs that do not run and of generations that are over.
// Tasks that have not yet heard of it make theirs again; a later round removes those too.
func (a *Agent) tidyStreams(ctx context.Context) error {
	streams := a.conn.Streams(wnats.StreamOptions{})
	list, err := streams.List(ctx)
	if err != nil {
		return err
	}
	for _, s := range list {
		h := a.hostedJob(s.Job)
		if h == nil {
			continue
		}
		if rec := h.record(); rec.live() && s.Generation >= rec.Generation || s.Generation > rec.Generation {
			continue
		}
		if err := streams.DeleteStream(ctx, s.Name); err != nil {
			return err
		}
	}
	return nil
}

// noEpoch is the number of none.
const noEpoch = ^abs.Epoch(0)

func (l *lead) tidyJob(ctx context.Context, name string, j *led) error {
	kv := l.a.conn.KV(wnats.Checkpoints)
	needed, base := j.coord.Needed(), noEpoch
	if len(j.coord.Status().Detached) > 0 {
		base = j.rec.Base // who was away when the generation began goes on from there
	}
	for _, kind := range []string{kindAck, kindReplica} {
		if err := dropAcks(ctx, kv, kind, name, needed); err != nil {
			return err
		}
	}
	keys, err := kv.Keys(ctx, wnats.Key(kindEpoch, name))
	if err != nil {
		return err
	}
	saved := 0
	for _, key := range slices.Backward(keys) {
		e, ok := epochOf(key)
		if !ok || e >= max(needed, keptRecords)-keptRecords || e == base {
			continue
		}
		if l.savepoint(ctx, kv, key) {
			if saved++; saved <= keptSavepoints {
				continue
			}
		}
		if err := kv.Delete(ctx, key); err != nil {
			return err
		}
	}
	return l.tidyPacks(ctx, name)
}

// dropAcks removes the acknowledgements of epochs before one that is needed, those of an epoch at once: there is a key
// per agent, nobody waits for its end, and marks of the deletion would be kept for a day.
func dropAcks(ctx context.Context, kv *wnats.KV, kind, job string, needed abs.Epoch) error {
	keys, err := kv.Keys(ctx, wnats.Key(kind, job))
	if err != nil {
		return err
	}
	dropped := noEpoch
	for _, key := range keys {
		e, ok := epochOf(key)
		if !ok || e >= needed || e == dropped {
			continue
		}
		if err := kv.Drop(ctx, wnats.Key(kind, job, epochToken(e))); err != nil {
			return err
		}
		dropped = e
	}
	return nil
}

// epochOf reads the epoch off the key of a record or an acknowledgement.
func epochOf(key string) (abs.Epoch, bool) {
	parts, err := wnats.SplitKey(key)
	if err != nil || len(parts) < 3 {
		return 0, false
	}
	e, err := strconv.ParseUint(parts[2], 10, 64)
	return abs.Epoch(e), err == nil
}

func (l *lead) savepoint(ctx context.Context, kv *wnats.KV, key string) bool {
	e, err := kv.Get(ctx, key)
	if err != nil {
		return true
	}
	var rec abs.EpochRecord
	return json.Unmarshal(e.Value, &rec) != nil || rec.Savepoint != ""
}

// tidyPacks removes packs that no record names and that are older than the newest that records name:
// newer ones may be on their way into one.
func (l *lead) tidyPacks(ctx context.Context, name string) error {
	entries, err := l.a.conn.KV(wnats.Checkpoints).List(ctx, wnats.Key(kindEpoch, name))
	if err != nil {
		return err
	}
	named, newest := map[string]bool{}, map[abs.TaskID]packID{}
	for _, e := range entries {
		var rec abs.EpochRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			return err
		}
		for _, p := range rec.Parts {
			for _, pack := range p.Packs {
				object, _ := splitPack(pack)
				named[object], named[pack] = true, true // imported, a pack is an object of its own
				owner, id, ok := parsePack(object, name)
				if o, known := newest[owner]; ok && (!known || o.before(id)) {
					newest[owner] = id
				}
			}
		}
	}
	objects := l.a.conn.Objects(wnats.Snapshots)
	list, err := objects.List(ctx)
	if err != nil {
		return err
	}
	for _, o := range list {
		owner, id, ok := parsePack(o.Name, name)
		if ref, known := newest[owner]; !ok || named[o.Name] || !known || !id.before(ref) {
			continue
		}
		if err := objects.Delete(ctx, o.Name); err != nil {
			return err
		}
	}
	return nil
}

func (l *leader) begin(term abs.Term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term, l.asked, l.status = term, 1, map[string]abs.Status{}
}

func (l *leader) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term, l.asked, l.status = 0, 0, nil
}

// asks is the newest ask of the coordinator on this agent; zero if there is none.
func (l *leader) asks() ask {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ask{l.term, l.asked}
}

// ask is the coordinator's ask of a number, the first one for 0, and whether it is a new one.
func (l *leader) ask(n uint64) (q ask, isNew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	isNew = n > l.asked
	l.asked = max(l.asked, n)
	return ask{l.term, max(n, 1)}, isNew
}

func (l *leader) note(job string, s abs.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.status != nil {
		l.status[job] = s
	}
}

func (l *leader) forget(job string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.status, job)
}

func (l *leader) leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term != 0
}

// job returns what the coordinator on this agent knows of a job.
func (l *leader) job(name string) (abs.Status, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.status[name]
	return s, ok
}

// savepointAsk asks the coordinator for a savepoint; it answers at its next tick.
type savepointAsk struct {
	job, name string
	refused   chan string
}

func (l *lead) answerAsks(ctx context.Context) {
	for _, ask := range l.a.savepoints.take() {
		j := l.jobs[ask.job]
		if j == nil {
			ask.refused <- "the job is not coordinated here now"
			continue
		}
		act := j.coord.Step(abs.Trigger{Name: ask.name}, l.now())
		ask.refused <- act.Refused
		for act.Write != nil && ctx.Err() == nil {
			act = l.write(ctx, j, *act.Write)
		}
	}
}
