package sim

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// Bounds and pace of the shell, as an agent has them.
const (
	keptManifests = 3
	keptRecords   = 4
	workRetry     = 500 * time.Millisecond
	workTries     = 20
	taskTick      = 100 * time.Millisecond
	restartAfter  = 200 * time.Millisecond
	signEvery     = 200 * time.Millisecond
)

// agent is a device: its disk stays, its process comes and goes.
type agent struct {
	w     *world
	name  string
	disk  *disk
	proc  *process // nil while it is down
	cut   bool     // from the network
	heard time.Duration
	// caughtUp is what the agent's last sign of life said: it has brought its backlog to its receivers.
	caughtUp bool
	quiet    abs.Epoch // likewise: since which none of its tasks has changed
}

func newAgent(w *world, name string) *agent {
	return &agent{w: w, name: name, disk: newDisk(w, name)}
}

func (a *agent) runner(t *plannedTask) *runner {
	if a.proc == nil {
		return nil
	}
	for _, r := range a.proc.runners {
		if r.t == t {
			return r
		}
	}
	return nil
}

func (a *agent) wake(t *plannedTask) {
	if r := a.runner(t); r != nil && r.run != nil {
		r.run.wake()
	}
}

// boot starts the agent's process.
func (a *agent) boot() {
	if a.proc != nil {
		return
	}
	a.w.trace("%s boots", a.name)
	p := &process{w: a.w, a: a, alive: true, epochs: map[abs.Epoch]abs.EpochRecord{}, skew: a.w.rng.Int64N(10_000)}
	a.proc = p
	for _, e := range slices.Sorted(mapKeys(a.disk.copies)) {
		p.epochs[e] = a.disk.copies[e]
	}
	for _, t := range a.w.topo.tasks {
		if t.agent == a.name {
			p.runners = append(p.runners, newRunner(p, t))
		}
	}
	for _, r := range p.runners {
		r.start()
	}
	p.connect()
	p.sign()
}

// end ends the process at once. What it had on its way may still arrive.
func (a *agent) end(power bool) {
	p := a.proc
	if p == nil {
		return
	}
	a.heard, a.caughtUp = a.w.now, false
	for _, r := range p.runners {
		r.end()
	}
	p.alive = false
	a.proc = nil
	a.disk.crash(power)
}

func (a *agent) setCut(cut bool) {
	if a.cut == cut {
		return
	}
	a.w.trace("%s cut off: %v", a.name, cut)
	a.cut, a.heard, a.caughtUp = cut, a.w.now, false
	if a.proc == nil {
		return
	}
	a.proc.connected = false
	if cut {
		return
	}
	a.proc.connect()
	for _, r := range a.proc.runners {
		if r.run != nil && r.run.in != nil {
			r.run.in.pump()
		}
	}
}

// absentFor is since when the others have heard nothing of the agent.
func (a *agent) absentFor() time.Duration {
	if a.proc != nil && !a.cut {
		return 0
	}
	return a.w.now - a.heard
}

func (a *agent) watch() {
	if a.proc != nil {
		a.proc.watch()
	}
}

// process is a running agent: its tasks and what the shell keeps in memory.
type process struct {
	w       *world
	a       *agent
	alive   bool
	runners []*runner
	skew    int64 // of its clock, ms

	connected bool
	mark      abs.Position // last log entry when the session began
	session   int          // serial, so that watches of an old one end
	watching  bool
	seen      int // of the control plane's history
	first     []abs.Epoch

	epochs  map[abs.Epoch]abs.EpochRecord
	counted abs.Epoch

	saves  []saveJob
	saving bool
	acks   []abs.Ack
	acking bool
	purges int // under way
}

// after runs something unless the process has ended by then.
func (p *process) after(d time.Duration, do func()) {
	p.w.after(d, func() {
		if p.alive {
			do()
		}
	})
}

func (p *process) clock() int64 { return p.w.now.Milliseconds() + 1_700_000_000_000 + p.skew }

// connect begins a session with the control plane: first what is there, in order, then what changes.
func (p *process) connect() {
	p.session++
	mine := p.session
	p.after(p.w.some(20*time.Millisecond), func() {
		if p.a.cut || p.session != mine {
			return
		}
		p.connected, p.watching, p.mark = true, false, p.a.disk.last
		p.first, p.seen = p.w.kv.epochs(), len(p.w.kv.history)
		p.watch()
	})
}

// sign tells the others every now and then that the agent lives.
func (p *process) sign() {
	if !p.a.cut {
		p.a.caughtUp, p.a.quiet = p.connected && !p.behind(), p.quiet()
	}
	p.after(signEvery, p.sign)
}

// behind says whether some task has not yet brought to its receivers what was in the log when the
// session began.
func (p *process) behind() bool {
	return slices.ContainsFunc(p.runners, func(r *runner) bool {
		last := r.log.lastEntry()
		return last > 0 && (r.run == nil || r.run.task.Status().HandedOver < min(p.mark, last))
	})
}

// quiet is the epoch since which none of the agent's tasks has changed; 0: there is none.
func (p *process) quiet() (since abs.Epoch) {
	for i, r := range p.runners {
		if r.run == nil || r.run.task.Quiet() == 0 || i > 0 && r.run.task.Quiet() != since {
			return 0
		}
		since = r.run.task.Quiet()
	}
	return since
}

func (p *process) watch() {
	if p.watching || !p.connected {
		return
	}
	p.watching = true
	p.watchAfter(p.w.some(p.w.profile.control * p.w.profile.lag(p.a)))
}

// watchAfter takes what is there by then.
func (p *process) watchAfter(d time.Duration) {
	mine := p.session
	p.after(d, func() {
		if p.session != mine || !p.connected {
			return
		}
		next, ok := p.next()
		if !ok {
			p.watching = false
			return
		}
		v, _ := p.w.kv.record(next)
		p.epoch(v.Record)
		p.watchAfter(p.w.some(100 * time.Microsecond))
	})
}

// next is the next epoch whose record is news. Of a record that has changed again meanwhile the older
// value may be passed over.
func (p *process) next() (abs.Epoch, bool) {
	if len(p.first) > 0 {
		e := p.first[0]
		p.first = p.first[1:]
		return e, true
	}
	for p.seen < len(p.w.kv.history) {
		e := p.w.kv.history[p.seen]
		p.seen++
		if !slices.Contains(p.w.kv.history[p.seen:], e) || p.w.one(2) {
			return e, true
		}
	}
	return 0, false
}

// epoch takes an epoch's record. A manifest is stored before it is acted on.
func (p *process) epoch(rec abs.EpochRecord) {
	p.w.trace("%s sees %v %s", p.a.name, rec.Epoch, rec.State)
	known, seen := p.epochs[rec.Epoch]
	if seen && known.State == rec.State && known.Term >= rec.Term && !(p.w.profile.revises && !slices.Equal(known.Detached, rec.Detached)) {
		for _, r := range p.runners {
			r.answer(rec)
		}
		return
	}
	if rec.Manifest() {
		p.a.disk.copies[rec.Epoch] = rec
	}
	p.epochs[rec.Epoch] = rec
	p.forgetEpochs()
	for _, r := range p.runners {
		r.epoch(rec)
		r.answer(rec)
	}
	if rec.Counts(p.w.profile.checkpoints.Replicate) || p.w.rules.truncateCommitted && rec.Manifest() {
		p.count(rec)
	}
	if p.w.rules.releaseCommitted && rec.Manifest() {
		for _, r := range p.runners {
			if part, ok := rec.Parts[r.t.id]; ok && r.run != nil {
				r.run.task.Counted(part.Pos)
			}
		}
	}
}

func (p *process) forgetEpochs() {
	var manifests []abs.Epoch
	for e, r := range p.epochs {
		if r.Manifest() {
			manifests = append(manifests, e)
		}
	}
	if len(manifests) <= keptManifests {
		return
	}
	slices.Sort(manifests)
	oldest := manifests[len(manifests)-keptManifests]
	for e := range p.epochs {
		if e < oldest {
			delete(p.epochs, e)
			delete(p.a.disk.copies, e)
		}
	}
}

// count gives up what a checkpoint that counts has made needless, task by task.
func (p *process) count(rec abs.EpochRecord) {
	if rec.Epoch <= p.counted && p.counted != 0 {
		return
	}
	p.counted = max(p.counted, rec.Epoch)
	for _, r := range p.runners {
		if part, ok := rec.Parts[r.t.id]; ok && part.Generation == p.w.gen && rec.Generation == p.w.gen {
			p.after(p.w.some(time.Millisecond), func() { r.truncate(part) })
		}
	}
}

// synced tells everybody that the log has been synced further.
func (p *process) synced() {
	for _, r := range p.runners {
		if r.ingest != nil {
			r.ingest.Synced(r.log.Synced())
		}
		if r.run != nil {
			r.run.wake()
		}
	}
}

// saveJob is a part on its way to the disk. One goes after the other.
type saveJob struct {
	info    dataflow.PartInfo
	changes []dataflow.Change
	done    func(error)
}

func (p *process) save(info dataflow.PartInfo, changes []dataflow.Change, done func(error)) {
	info.Meta = p.w.rules.saved(p.a.runner(p.w.topo.task(taskOf(info.Task))), info.Meta)
	p.saves = append(p.saves, saveJob{info, changes, done})
	p.saveNext()
}

func (p *process) saveNext() {
	if p.saving || len(p.saves) == 0 {
		return
	}
	p.saving = true
	job := p.saves[0]
	p.saves = p.saves[1:]
	p.after(p.w.chaos.persistTime(p.a), func() {
		err := p.w.chaos.saveError()
		if err == nil {
			err = store{p.a.disk}.Save(job.info, job.changes)
		}
		p.w.trace("%s saves version %d of %s, %v pos %d full %v: %v", p.a.name, job.info.Version, job.info.Task, job.info.Epoch, job.info.Pos, job.info.Full, err)
		p.after(p.w.some(100*time.Microsecond), func() {
			p.saving = false
			job.done(err)
			t := p.w.topo.task(taskOf(job.info.Task))
			if err == nil {
				p.w.oracle.saved(p.a.runner(t), job.info)
			}
			p.a.wake(t)
			p.saveNext()
		})
	})
}

func taskOf(name string) string { return name[len(jobName)+1:] }

func (p *process) ack(a abs.Ack) {
	p.acks = append(p.acks, a)
	p.ackNext()
}

func (p *process) ackNext() {
	if p.acking || len(p.acks) == 0 {
		return
	}
	p.acking = true
	a := p.acks[0]
	p.acks = p.acks[1:]
	p.tryAck(a, workTries)
}

// tryAck writes an acknowledgement until the answer comes, or often enough: the next session takes up
// what is left.
func (p *process) tryAck(a abs.Ack, tries int) {
	p.after(p.w.some(p.w.profile.control), func() {
		lost := p.w.rng.Float64() < p.w.profile.writeLoss
		if !p.a.cut {
			p.w.kv.putAck(a)
		}
		if (p.a.cut || lost) && tries > 1 {
			p.after(workRetry, func() { p.tryAck(a, tries-1) })
			return
		}
		p.acking = false
		p.ackNext()
	})
}

// runner keeps one task running while its process lives.
type runner struct {
	p         *process
	t         *plannedTask
	log       *taskLog
	ingest    *dataflow.IngestLog
	commit    chan struct{}
	committed bool
	floor     abs.Epoch
	floored   bool
	counted   abs.Position // of the part up to which log and parts were given up
	run       *taskRun     // nil while it does not run
	records   []abs.EpochRecord
	reports   map[abs.Epoch]dataflow.PartReport
}

func newRunner(p *process, t *plannedTask) *runner {
	r := &runner{
		p: p, t: t, log: p.a.disk.log(t), commit: make(chan struct{}), reports: map[abs.Epoch]dataflow.PartReport{},
	}
	if t.source {
		r.ingest = dataflow.NewIngestLog(t.name(), r.log, deadLetters{p.a.disk}, p.clock)
	}
	for _, e := range slices.Sorted(mapKeys(p.epochs)) {
		r.epoch(p.epochs[e])
	}
	return r
}

// start runs the task as soon as it knows from where: from a part of its own, or from the beginning,
// whose epoch it is told.
func (r *runner) start() {
	parts, err := store{r.p.a.disk}.Parts(r.t.name())
	if err != nil {
		r.p.w.fail("%v", err)
	}
	if r.run == nil && (r.floored || slices.ContainsFunc(parts, func(p dataflow.PartInfo) bool { return p.Generation == r.p.w.gen })) {
		r.p.after(r.p.w.some(5*time.Millisecond), r.launch)
	}
}

func (r *runner) launch() {
	if r.run != nil {
		return
	}
	w := r.p.w
	run := &taskRun{r: r}
	env := dataflow.Env{
		Log: r.log, Store: store{r.p.a.disk}, Operators: operators{w}, Dead: deadLetters{r.p.a.disk},
		Observer: run, Save: r.p.save, Clock: r.p.clock, Stopwatch: func() time.Duration { return w.now },
		Floor: r.floor, Go: r.commit, Bounds: w.profile.bounds,
		Spool: func(c dataflow.Channel, create bool) (dataflow.Spool, error) { return r.p.a.disk.spool(r.t, c, create) },
	}
	if w.next != nil {
		base := w.next.base[r.t]
		env.Base, env.BaseHere = &base, !w.replaced(r.t)
	}
	if len(r.t.in) > 0 {
		run.in = &input{run: run, s: w.streams[r.t.id], tails: map[int]tail{}}
		env.Input = run.in
		if !w.rules.keepConsumed {
			env.Relieve = run.relieve
		}
	}
	if len(r.t.edges) > 0 {
		run.out = &output{
			run: run, newest: map[int]dataflow.Grant{}, arrives: map[int]time.Duration{}, sent: map[int]map[abs.Seq]int{}, consumed: map[int]abs.Seq{},
		}
		env.Output = run.out
	}
	if r.t.sink {
		run.sink = newSink(run)
		env.Sinks = []dataflow.Sink{run.sink}
	}
	run.task = dataflow.NewTask(r.t.spec(w), env)
	r.run = run
	if w.profile.holds {
		run.task.Counted(r.countedPart())
	}
	for _, rec := range r.records {
		run.task.Record(w.rules.told(r, rec))
	}
	w.trace("%s starts", r.t.id)
	if !run.try(run.task.Open(context.Background())) {
		return
	}
	if r.ingest != nil {
		r.ingest.Resume(run.task.Source())
	}
	run.aligning = w.now
	run.tick()
	run.wake()
	if run.in != nil {
		run.in.pump()
	}
	r.feed()
}

// end stops the task where it is.
func (r *runner) end() {
	if r.run == nil {
		return
	}
	r.run.dead = true
	if r.run.out != nil {
		r.run.out.abandon()
	}
	if err := r.run.task.Close(); err != nil {
		r.p.w.fail("close %s: %v", r.t.id, err)
	}
	r.run = nil
	r.p.w.brokerOf(r.t).interrupted()
}

// restart is what becomes of a task that an adapter has failed under.
func (r *runner) restart() {
	r.end()
	r.p.after(restartAfter, r.start)
}

// feed lets the source receive once the job has begun.
func (r *runner) feed() {
	if r.ingest != nil && r.committed && r.run != nil {
		r.p.w.brokerOf(r.t).deliver()
	}
}

func (r *runner) epoch(rec abs.EpochRecord) {
	if rec.Initial && rec.Generation == r.p.w.gen && !r.floored {
		r.floor, r.floored = rec.Epoch, true
		if r.p.a.proc == r.p && len(r.p.runners) > 0 {
			r.start()
		}
	}
	if rec.Manifest() && rec.Generation == r.p.w.gen && !r.committed {
		r.committed = true
		close(r.commit)
		r.feed()
	}
	if r.ingest != nil && !rec.Initial && rec.State == abs.Started && !slices.Contains(rec.Detached, r.p.a.name) {
		if err := r.ingest.Barrier(rec.Epoch, rec.Final); err != nil {
			r.p.w.trace("%s: barrier of %v: %v", r.t.id, rec.Epoch, err)
		}
	}
	i := slices.IndexFunc(r.records, func(o abs.EpochRecord) bool { return o.Epoch == rec.Epoch })
	switch {
	case i >= 0:
		r.records[i] = rec
	case len(r.records) == keptRecords:
		r.records = append(r.records[1:], rec)
	default:
		r.records = append(r.records, rec)
	}
	if r.run != nil {
		r.run.task.Record(r.p.w.rules.told(r, rec))
		r.run.wake()
	}
}

// countedPart is the position of the task's part in the newest checkpoint known to count.
func (r *runner) countedPart() (pos abs.Position) {
	for _, rec := range r.p.epochs {
		if part, ok := rec.Parts[r.t.id]; ok && rec.Generation == r.p.w.gen && rec.Counts(r.p.w.profile.checkpoints.Replicate) {
			pos = max(pos, part.Pos)
		}
	}
	return pos
}

// answer gives what a record asks for and is there: the first answer may have been lost.
func (r *runner) answer(rec abs.EpochRecord) {
	if part, ok := rec.Parts[r.t.id]; ok && rec.State == abs.Committed && len(part.Packs) == 0 && r.p.w.profile.checkpoints.Replicate {
		r.replicate(rec.Epoch, part, workTries)
	}
	if rec.State != abs.Started {
		return
	}
	if rep, ok := r.reports[rec.Epoch]; ok {
		r.p.ack(ackOf(rep))
		return
	}
	parts, err := store{r.p.a.disk}.Parts(r.t.name())
	if err != nil {
		r.p.w.fail("%v", err)
	}
	for _, p := range parts {
		if p.Epoch != rec.Epoch || p.Local {
			continue
		}
		rep, err := dataflow.ReportOf(p)
		if err != nil {
			r.p.w.fail("%v", err)
		}
		r.p.ack(ackOf(rep))
		return
	}
}

// replicate puts a part into the object store, unless a newer checkpoint makes that needless.
func (r *runner) replicate(epoch abs.Epoch, part abs.Part, tries int) {
	r.p.after(r.p.w.some(r.p.w.profile.persist), func() {
		for e, rec := range r.p.epochs {
			if e > epoch && rec.Manifest() {
				return
			}
		}
		if _, err := (store{r.p.a.disk}).state(r.t.name(), dataflow.Version(part.Version)); err != nil {
			r.p.w.fail("%s of %v is to be replicated, but %v", r.t.id, epoch, err)
		}
		if r.p.a.cut && tries > 1 {
			r.p.after(workRetry, func() { r.replicate(epoch, part, tries-1) })
			return
		}
		if !r.p.a.cut {
			r.p.w.kv.putReplica(abs.ReplicaAck{
				Task: r.t.id, Epoch: part.Epoch, Generation: part.Generation, Version: part.Version, Packs: []string{"pack"},
			})
		}
	})
}

func ackOf(rep dataflow.PartReport) abs.Ack {
	return abs.Ack{
		Task: abs.TaskID(taskOf(rep.Info.Task)), Epoch: rep.Info.Epoch, Generation: rep.Info.Generation,
		Part: abs.Part{
			Epoch: rep.Info.Epoch, Generation: rep.Info.Generation, Version: uint64(rep.Info.Version), Pos: rep.Info.Pos,
			Cut: rep.Cut, Aligned: rep.Aligned, PersistMs: int64(rep.PersistMS),
		},
	}
}

// truncate gives up what lies before a part that counts.
func (r *runner) truncate(part abs.Part) {
	r.p.w.oracle.givenUp(r.t, part)
	if r.p.w.profile.holds && r.run != nil {
		r.run.task.Counted(part.Pos)
		r.run.wake()
	}
	if err := r.log.Truncate(part.Pos); err != nil {
		r.p.w.fail("%v", err)
	}
	store{r.p.a.disk}.drop(r.t.name(), part.Version)
	r.counted = part.Pos
	r.p.w.trace("%s: log given up to %d, parts below %d", r.t.id, part.Pos, part.Version)
	run := r.run
	if run != nil && r.t.spools {
		run.task.Truncated(part.Pos, part.Cut.Sent)
	}
	if run == nil || run.in == nil {
		return
	}
	run.task.Purgeable(part.Cut.Consumed, run.purge)
	run.wake()
}

// taskRun is one life of a task within a process.
type taskRun struct {
	r       *runner
	task    *dataflow.Task
	in      *input
	out     *output
	sink    *sink
	dead    bool
	turning bool
	// restored is when the task was last restored for a reason of its own.
	restored   time.Duration
	aligning   time.Duration // when it was last seen not to wait for an epoch that is over
	recoveries int
	level      string // of the last
}

func (r *taskRun) w() *world     { return r.r.p.w }
func (r *taskRun) agent() *agent { return r.r.p.a }

func (r *taskRun) after(d time.Duration, do func()) {
	r.w().after(d, func() {
		if !r.dead {
			do()
		}
	})
}

// purge removes frames from the input stream.
func (r *taskRun) purge(seqs map[int]uint64, reading uint64) {
	for _, channel := range slices.Sorted(mapKeys(seqs)) {
		seq := seqs[channel]
		r.purgeChannel(channel, seq, func(err error) {
			if err != nil {
				r.task.Unpurged(channel, seq, reading)
			}
		})
	}
}

func (r *taskRun) purgeChannel(channel int, seq uint64, done func(error)) {
	p := r.r.p
	p.purges++
	p.after(p.w.some(p.w.profile.control), func() {
		p.purges--
		err := r.in.Purge(context.Background(), channel, seq)
		if err != nil {
			p.w.trace("%s: %v", r.r.t.id, err)
		}
		done(err)
	})
}

// relieve purges what no counting checkpoint has: it may have to be made again.
func (r *taskRun) relieve(channel int, seq uint64, done func(error)) {
	r.w().chaos.count("stream relieved")
	for _, f := range r.in.s.frames {
		if f.channel == channel && f.seq <= seq {
			r.in.s.lost[channel] = max(r.in.s.lost[channel], f.last)
		}
	}
	r.purgeChannel(channel, seq, done)
}

func (r *taskRun) tick() {
	r.after(taskTick, func() {
		r.upgraded()
		r.task.Tick()
		r.w().oracle.aligns(r)
		r.wake()
		r.tick()
	})
}

// wake gives the task a turn soon.
func (r *taskRun) wake() {
	if r.turning || r.dead {
		return
	}
	r.turning = true
	r.after(r.w().some(r.w().profile.turn), r.turn)
}

// turn lets the task do a little of what it can.
func (r *taskRun) turn() {
	r.turning = false
	if r.w().one(8) && !r.try(r.task.HandOver()) {
		return
	}
	r.task.Settle()
	if !r.try(r.task.HandOver()) {
		return
	}
	stepped, err := r.task.Step(context.Background())
	if r.try(err) && stepped {
		r.wake()
	}
}

// try restarts the task if it has failed, which only happens if something was made to fail.
func (r *taskRun) try(err error) bool {
	if err == nil {
		return true
	}
	r.w().oracle.failed(r, err)
	return false
}

// PartDurable implements [dataflow.Observer].
func (r *taskRun) PartDurable(rep dataflow.PartReport) {
	if w := r.w(); w.rules.countAside {
		for _, p := range (store{r.agent().disk}).of(rep.Info.Task).list {
			if own, err := dataflow.ReportOf(p.info); err == nil && p.info.Version == rep.Info.Version {
				rep.Cut = own.Cut
			}
		}
	}
	if r.w().rules.truncateAtOnce {
		if err := r.r.log.Truncate(rep.Info.Pos); err != nil {
			r.w().fail("%v", err)
		}
		store{r.agent().disk}.drop(rep.Info.Task, uint64(rep.Info.Version))
	}
	r.r.reports[rep.Info.Epoch] = rep
	delete(r.r.reports, rep.Info.Epoch-8)
	r.r.p.ack(ackOf(rep))
}

// PartSkipped implements [dataflow.Observer].
func (r *taskRun) PartSkipped(epoch abs.Epoch, reason string) {
	r.w().chaos.count("part skipped")
	r.r.p.ack(abs.Ack{Task: r.r.t.id, Epoch: epoch, Generation: r.w().gen, Failed: reason})
}

// Recovered implements [dataflow.Observer].
func (r *taskRun) Recovered(rec dataflow.Recovery) {
	r.w().trace("%s is restored: %s, version %d of %v: %s", r.r.t.id, rec.Level, rec.Version, rec.Epoch, rec.Reason)
	r.recoveries, r.level = r.recoveries+1, rec.Level
	r.w().oracle.recovered(r, rec)
}

// CaughtUp implements [dataflow.Observer].
func (r *taskRun) CaughtUp(rec dataflow.Recovery) {
	r.w().trace("%s has caught up: replayed %d, held back %d", r.r.t.id, rec.Replayed, rec.HeldBack)
}

// Drained implements [dataflow.Observer].
func (r *taskRun) Drained(abs.Epoch) {}

// Stirred implements [dataflow.Observer]. Agents tell at their next sign of life.
func (r *taskRun) Stirred() {}

// through copies a value by way of its encoding, as the control plane does.
func through[T any](v T) T {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var out T
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	return out
}
