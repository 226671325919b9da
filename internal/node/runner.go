package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node/shadow"
	"github.com/weir-stream/weir/storage"
	"github.com/weir-stream/weir/transport/mqtt"
)

// stateFailed is the state of a task that is not tried again.
const stateFailed = "failed"

// Pace of restarts and of a task's repetitions.
const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 30 * time.Second
	tickEvery  = 100 * time.Millisecond
	// restTicks: a task that rests is told of one tick in so many.
	restTicks = 5
	// healthyAfter of running, the next failure backs off from the start again.
	healthyAfter = time.Minute
)

// runner keeps one task of a generation running on this agent until it is stopped.
type runner struct {
	a    *Agent
	job  *hostedJob
	rec  jobRecord
	task *job.Task
	name string
	log  *slog.Logger
	// clock is what the task and its source read; it is in their log before it matters.
	clock *steadyClock

	entries *storage.LogStream
	ingest  *dataflow.IngestLog // nil: not a source
	commit  chan struct{}       // closed once the generation's initial checkpoint is committed
	floor   abs.Epoch           // the initial epoch, once floored is closed
	floored chan struct{}

	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	running  *dataflow.Task
	input    dataflow.Input
	draining bool
	// finalEpoch is the one whose barrier ended the source's input.
	finalEpoch abs.Epoch
	stopSrc    context.CancelFunc
	srcDone    chan struct{}
	resume     chan struct{}
	state      string // of the runner; empty: the task's own
	reason     string
	failure    error  // that it has stopped for good with; nil: it has not
	last       string // why it was last started anew
	losses     []api.Loss
	otherBase  string // why its generation begins with another part than the checkpoint's
	fetched    string // what of its snapshots was, from the replica; empty: nothing
	restarts   uint64
	recovery   *dataflow.Recovery
	recoverT   time.Time
	// ingestBase is what the source had logged when the task was restored.
	ingestBase   uint64
	reports      map[abs.Epoch]dataflow.PartReport // durable parts since the start
	records      []abs.EpochRecord                 // for a task that is not there yet
	linkStatus   []func() api.Link
	sinkStatus   []func() api.Sink // of the task's sinks, in order
	forget       []func(context.Context) error
	sourceStatus func() mqtt.SourceStatus
	sourceBase   mqtt.SourceStatus // counts of the sources that the task had before a restart
	wanted       dataflow.Upgrade  // by the job's record
	ready        dataflow.Upgrade  // what it needs is here
	refused      refusal
	upgradeWaits string
	shadow       uint64 // number of what is to run in the shadow of the operators; 0: nothing

	slots map[string]*shadow.Slot // by operator
}

func newRunner(a *Agent, hj *hostedJob, rec jobRecord, task *job.Task) (*runner, error) {
	name := rec.Name + "/" + string(task.ID)
	entries, err := a.entries.Stream(name)
	if err != nil {
		return nil, err
	}
	r := &runner{
		a: a, job: hj, rec: rec, task: task, name: name, entries: entries, clock: a.clocks.of(a, name),
		log:    a.log.With("job", rec.Name, "task", string(task.ID)),
		commit: make(chan struct{}), floored: make(chan struct{}), done: make(chan struct{}),
		resume: make(chan struct{}, 1), reports: map[abs.Epoch]dataflow.PartReport{},
	}
	r.newSlots()
	if task.Source != nil {
		if err := r.loadLosses(); err != nil {
			r.log.Error("what was lost with earlier devices of the task cannot be shown", "error", err)
		}
		r.ingest = dataflow.NewIngestLog(name, entries, a.dead, r.clock.now)
	}
	return r, nil
}

// start runs the task in the background; stop ends it and waits.
func (r *runner) start(ctx context.Context) {
	ctx, r.cancel = context.WithCancel(ctx)
	go r.run(ctx)
}

func (r *runner) stop() {
	r.cancel()
	<-r.done
}

func (r *runner) run(ctx context.Context) {
	defer close(r.done)
	defer r.endShadows()
	wait := minBackoff
	for {
		began := time.Now()
		err := r.once(ctx)
		if ctx.Err() != nil {
			return
		}
		err = r.rejectDamaged(err)
		if permanent(err) {
			err = r.withWayOut(err)
			r.log.Error("task stopped for good", "error", err)
			r.mu.Lock()
			r.failure = err
			r.mu.Unlock()
			r.setState(stateFailed, err)
			signal(r.a.stirred)
			<-ctx.Done()
			return
		}
		if time.Since(began) > healthyAfter {
			wait = minBackoff
		}
		r.log.Warn("task failed and will be restarted", "error", err, "in", wait)
		r.mu.Lock()
		r.restarts++
		r.mu.Unlock()
		r.last = "the task failed: " + err.Error()
		r.setState("back-off", err)
		if !sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, maxBackoff)
	}
}

// rejectDamaged marks the part that a task could not be restored from, if it is damaged, so that the next try takes
// an older one, or the replica's.
func (r *runner) rejectDamaged(err error) error {
	var part *dataflow.PartError
	if !errors.As(err, &part) || !errors.Is(err, storage.ErrCorrupt) {
		return err
	}
	return errors.Join(err, r.a.store.Reject(r.name, part.Version, err.Error()))
}

// permanent says that running the task again cannot help: replay differs, or a gap cannot be refilled.
func permanent(err error) bool {
	var diff *dataflow.DiffError
	var broken *panicError
	return errors.As(err, &diff) || errors.Is(err, dataflow.ErrGap) || errors.Is(err, dataflow.ErrLogLost) || errors.Is(err, errStateLost) || errors.Is(err, errReplicaBad) || errors.As(err, &broken)
}

// panicError is a broken invariant of a task. The task stops; the agent and its other tasks go on.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string {
	return fmt.Sprintf("broken invariant: %v; please report it with this stack:\n%s", e.value, e.stack)
}

// guarded runs a part of a task's life. It is the one place where a panic of a task is caught.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return f()
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (r *runner) setState(state string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.reason = state, ""
	if err != nil {
		r.reason = err.Error()
	}
}

// once restores and runs the task until it fails or ctx ends.
func (r *runner) once(ctx context.Context) error {
	r.setState("restoring", nil)
	r.mu.Lock()
	r.linkStatus, r.sinkStatus, r.forget = nil, nil, nil
	r.mu.Unlock()
	floor, base, err := r.prepare(ctx)
	if err == nil && floor != 0 {
		err = r.noteLoss(ctx, base)
	}
	if err != nil {
		return err
	}
	highest, err := r.a.store.Highest(r.name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	env := dataflow.Env{
		Log: r.entries, Store: ledStore{r.a.store, r.entries, r.rec.Generation}, Operators: r.operators(), Dead: patientLetters{r.a.dead, ctx, r.log}, Observer: observer{r},
		Save: r.a.save, Clock: r.clock.now, Stopwatch: r.a.stopwatch, Floor: floor, Base: base, BaseHere: r.here(base), Version: highest, Go: r.commit,
		Spool: r.spool,
	}
	if err := dropSpools(r.a.entries, r.name, r.rec.Generation); err != nil {
		return err
	}
	env.RolledBack = r.rec.RolledBack
	env.Level, env.Reason = r.wayBack(floor)
	spec, sinks, err := r.assemble(&env)
	if err != nil {
		return err
	}
	if err := r.openStreams(ctx, spec, &env); err != nil {
		return err
	}
	defer closeStreams(env)
	if in := env.Input; in != nil {
		env.Relieve = func(channel int, seq uint64, done func(error)) {
			r.a.purges.push(purgeJob{log: r.log, input: in, seqs: map[int]uint64{channel: seq}, done: done})
		}
	}
	ticks, synced, ingested := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	env.Ticks, env.Synced = ticks, synced
	defer r.a.entries.Notify(func(abs.Position) { signal(synced); signal(ingested) })()
	task := dataflow.NewTask(spec, env)
	var src dataflow.Source
	err = guarded(func() (err error) {
		src, err = r.openTask(ctx, task)
		return err
	})
	if err != nil {
		return errors.Join(err, task.Close())
	}
	r.attach(task, env.Input)
	task.Counted(r.job.countedPart(r.rec.Generation, r.task.ID))
	defer r.attach(nil, nil)
	defer r.a.ticker.add(func(n uint64) {
		if !task.Resting() || n%restTicks == 0 {
			signal(ticks)
		}
	})()
	for i, s := range sinks {
		g.Go(func() error { return s.Run(ctx, task.SinkEvents(i)) })
	}
	if r.ingest != nil {
		g.Go(func() error { return r.ackDurable(ctx, ingested) })
		g.Go(func() error { return r.runSource(ctx, src) })
	}
	r.setState("", nil)
	var served error
	g.Go(func() error {
		served = guarded(func() error { return task.Serve(ctx) })
		return errors.Join(served, ctx.Err())
	})
	err = g.Wait()
	return errors.Join(err, guarded(func() error {
		if served != nil {
			return task.Close()
		}
		// What the sinks confirmed last is logged, which spares repeats after the restart.
		task.Settle()
		return errors.Join(task.HandOver(), task.Close())
	}))
}

// here says whether a part is of this agent's log of the task: the log leads on from it.
func (r *runner) here(p *dataflow.PartInfo) bool {
	if p == nil || r.task.Replaced {
		return false
	}
	id, err := dataflow.LogOf(*p)
	info := r.entries.Info()
	return err == nil && id == r.entries.ID() && info.Front <= p.Pos && p.Pos <= info.Last
}

// openTask restores the task and makes its source, if it has one, which goes on where the log ends.
func (r *runner) openTask(ctx context.Context, task *dataflow.Task) (dataflow.Source, error) {
	if err := task.Open(ctx); err != nil || r.ingest == nil {
		return nil, err
	}
	st := task.Source()
	r.ingest.Resume(st)
	r.mu.Lock()
	if r.finalEpoch = max(r.finalEpoch, st.Final); st.Final != 0 {
		r.draining = true
	}
	r.mu.Unlock()
	return r.source()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ticker calls what is registered with it, all from one goroutine, so that an idle agent wakes up once for
// all its tasks.
type ticker struct {
	mu    sync.Mutex
	next  int
	funcs map[int]func(n uint64)
}

// add registers f until the returned function is called; f gets the number of the tick and returns at once.
func (t *ticker) add(f func(n uint64)) (remove func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.funcs == nil {
		t.funcs = map[int]func(uint64){}
	}
	id := t.next
	t.next++
	t.funcs[id] = f
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.funcs, id)
	}
}

func (t *ticker) run(ctx context.Context) {
	clock := time.NewTicker(tickEvery)
	defer clock.Stop()
	for n := uint64(0); ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
		t.mu.Lock()
		for _, f := range t.funcs {
			f(n)
		}
		t.mu.Unlock()
	}
}

// ackDurable lets the source acknowledge what the log has been synced past.
func (r *runner) ackDurable(ctx context.Context, synced <-chan struct{}) error {
	for {
		r.ingest.Synced(r.entries.Synced())
		select {
		case <-ctx.Done():
			r.ingest.Synced(r.entries.Synced())
			return nil
		case <-synced:
		}
	}
}

// prepare gets what the task needs on this agent: its modules, and, in a generation that it has no
// part of, the initial epoch and the part that the generation starts from.
func (r *runner) prepare(ctx context.Context) (floor abs.Epoch, base *dataflow.PartInfo, err error) {
	for _, op := range r.task.Ops {
		if err := r.a.fetchModule(ctx, op.Digest); err != nil {
			return 0, nil, err
		}
	}
	parts, err := r.ledOn()
	if err != nil {
		return 0, nil, err
	}
	if err := r.fetchVersions(ctx, parts); err != nil {
		return 0, nil, err
	}
	if r.hasParts(parts) {
		return 0, nil, nil
	}
	if r.rec.hasBase() {
		if base, r.otherBase, err = r.a.basePart(ctx, r.job, r.rec, r.task.ID, parts); err != nil {
			return 0, nil, err
		}
		r.fetchOld(ctx, base)
	}
	r.setState("waiting for the initial checkpoint", nil)
	select {
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	case <-r.commit:
		return r.joinLate(ctx, base)
	case <-r.floored:
		select {
		case <-r.commit:
			return r.joinLate(ctx, base)
		default:
			return r.floor, base, nil
		}
	}
}

// ledOn lists the task's usable parts. If the log no longer leads on from the newest, since a newer one was damaged, or
// the file is an old copy, it is rejected: a replica has to be fetched.
func (r *runner) ledOn() ([]dataflow.PartInfo, error) {
	front := r.entries.Info().Front
	for {
		parts, err := r.a.store.Parts(r.name)
		if err != nil || len(parts) == 0 {
			return parts, err
		}
		last := parts[len(parts)-1]
		if last.Generation != r.rec.Generation || last.Pos >= front {
			return parts, nil
		}
		reason := fmt.Sprintf("it needs the log from entry %d on, which begins with %d", last.Pos+1, front+1)
		r.log.Warn("a snapshot is of no use any more", "snapshot", uint64(last.Version), "epoch", uint64(last.Epoch), "reason", reason)
		if err := r.a.store.Reject(r.name, last.Version, reason); err != nil {
			return nil, err
		}
	}
}

// fetchVersions makes sure that the modules are here that the task's parts are of, and its log may name.
func (r *runner) fetchVersions(ctx context.Context, parts []dataflow.PartInfo) error {
	for _, p := range parts {
		if p.Generation != r.rec.Generation {
			continue
		}
		if err := r.fetchVersionsOf(ctx, p); err != nil {
			return err
		}
	}
	if r.a.currentCluster() == "" {
		return nil // what the log names was here before it was logged
	}
	for _, d := range r.job.record().digests() {
		if err := r.a.fetchModule(ctx, d); err != nil {
			r.log.Warn("a module of an upgrade is not here; it may be needed for replay", "error", err)
		}
	}
	return nil
}

// fetchOld brings the modules to this agent that the part is of which a generation goes on from: a new module may ask the
// old one for its variables, and what a source had made behind the part it makes again. Otherwise the old one is not
// needed.
func (r *runner) fetchOld(ctx context.Context, base *dataflow.PartInfo) {
	if base == nil {
		return
	}
	if err := r.fetchVersionsOf(ctx, *base); err != nil {
		r.log.Warn("not all modules are here that the part is of from which the task goes on; they are needed if variables migrate, or if there is work to be made again", "error", err)
	}
}

func (r *runner) fetchVersionsOf(ctx context.Context, p dataflow.PartInfo) error {
	versions, err := dataflow.VersionsOf(p)
	for _, v := range versions {
		err = errors.Join(err, r.a.fetchModule(ctx, v.Digest))
	}
	return err
}

// operators makes the operators of the task, with what runs in their shadow.
func (r *runner) operators() dataflow.Operators { return beside{r.slots, r.makers()} }

// makers makes operators alone.
func (r *runner) makers() dataflow.Operators { return trusted{r.a, operators{r.a.host}} }

// joinLate gets what a task needs whose generation has begun already: its part of it, from the replica, or,
// if it began without this agent, which was detached, the part that the generation started from.
func (r *runner) joinLate(ctx context.Context, base *dataflow.PartInfo) (abs.Epoch, *dataflow.PartInfo, error) {
	var first abs.Epoch
	for _, rec := range r.job.manifests() {
		if rec.Generation != r.rec.Generation {
			continue
		}
		if rec.Parts[r.task.ID].Generation == r.rec.Generation {
			return 0, nil, r.fetchReplica(ctx)
		}
		if first == 0 {
			first = rec.Epoch
		}
	}
	if first == 0 || !r.rec.hasBase() {
		return 0, nil, r.fetchReplica(ctx)
	}
	if base != nil && !r.task.Replaced && !r.here(base) {
		return 0, nil, fmt.Errorf("%w: the generation began without this agent, and the part that its task would go on from is of another log than the agent has now", errStateLost)
	}
	return first, base, nil
}

func (r *runner) hasParts(parts []dataflow.PartInfo) bool {
	return slices.ContainsFunc(parts, func(p dataflow.PartInfo) bool { return p.Generation == r.rec.Generation })
}

// errStateLost says that a task's snapshots are gone and cannot be had again.
var errStateLost = errors.New("the task's snapshots are gone from this agent")

// fetchReplica gets back a part of this generation whose snapshots are gone from this agent, if the
// object store has one that the agent's log leads on from (L2). If the newest is damaged, a source takes an older one:
// all that came since is in its log. What else came to a streamed task since, its senders have no more.
func (r *runner) fetchReplica(ctx context.Context) error {
	info := r.entries.Info()
	var bad []error
	for _, rec := range slices.Backward(r.job.manifests()) {
		part, ok := rec.Parts[r.task.ID]
		if !ok || part.Generation != r.rec.Generation || len(part.Packs) == 0 || part.Pos < info.Front || part.Pos > info.Last {
			continue
		}
		if err := r.a.store.DropTask(r.name); err != nil {
			return err
		}
		if _, err := r.a.importPacks(ctx, r.name, part.Packs); err != nil {
			err = fmt.Errorf("snapshot of epoch %d from the replica: %w", part.Epoch, err)
			if !badReplica(ctx, err) {
				return err
			}
			if bad = append(bad, err); len(r.task.Inputs) > 0 {
				break
			}
			continue
		}
		r.fetched = fmt.Sprintf("that of epoch %d, which was taken %s", part.Epoch, r.a.ago(rec.StartedMs))
		for _, err := range bad {
			r.fetched += "; " + err.Error()
		}
		r.log.Warn("the task's snapshots were gone and have been fetched from the replica", "epoch", uint64(part.Epoch), "taken", r.a.ago(rec.StartedMs))
		return nil
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w, and the replica cannot be used: %w", errStateLost, errors.Join(bad...))
	}
	return fmt.Errorf("%w, and no replica fits its log (entries %d to %d)", errStateLost, info.Front+1, info.Last)
}

// wayBack says how the task comes back when it is opened, and why. floor is that of a generation that it has no
// part of.
func (r *runner) wayBack(floor abs.Epoch) (level, reason string) {
	switch {
	case r.fetched != "":
		reason = "the task's snapshots were gone from the agent and came from the replica: " + r.fetched
		r.fetched = ""
		return "L2", reason
	case floor == 0:
		return "", r.last
	case r.rec.RolledBack && !(r.task.Replaced && r.task.Source != nil):
		return "L4", r.rec.Because
	case r.task.Replaced && r.otherBase != "":
		return "L3", r.rec.Because + "; " + r.otherBase
	case r.task.Replaced:
		return "L3", r.rec.Because
	}
	return "", ""
}

// withWayOut adds to an error what can be done for a task that has stopped for good.
func (r *runner) withWayOut(err error) error {
	var broken *panicError
	switch {
	case errors.As(err, &broken):
		return err
	case errors.Is(err, errReplicaBad):
		return fmt.Errorf("%w: bring the object store back (directory nats of the agent that runs the server) and start this agent again, or give up the state of the job: agent job delete %s --force, then apply it", err, r.rec.Name)
	case lost(err):
		return fmt.Errorf("%w: restore the directory, or apply the job again with --replace %s, which gives up what this device alone knew", err, r.a.name)
	}
	return fmt.Errorf("%w: apply the job again with --restart to let its streamed tasks go on from the newest checkpoint that counts", err)
}

// lost says of an error that the task's log or snapshots are gone from its agent.
func lost(err error) bool {
	return errors.Is(err, dataflow.ErrLogLost) || errors.Is(err, errStateLost)
}

// openStreams opens the ends of the task's channels.
func (r *runner) openStreams(ctx context.Context, spec dataflow.TaskSpec, env *dataflow.Env) error {
	streams := newHops(r.rec.Plan, r.a.within, r.a.streams)
	if len(spec.Inputs) > 0 {
		var channels []int
		for _, c := range spec.Inputs {
			channels = append(channels, c.Index)
		}
		in, err := streams.OpenInput(ctx, r.rec.Name, r.rec.Generation, r.task.ID, channels)
		if err != nil {
			return fmt.Errorf("open input stream: %w", err)
		}
		env.Input = in
	}
	to := map[int]abs.TaskID{}
	for _, e := range spec.Edges {
		for _, c := range e.Channels {
			to[c.Index] = c.To
		}
	}
	if len(to) == 0 {
		return nil
	}
	out, err := streams.OpenOutput(ctx, r.rec.Name, r.rec.Generation, to)
	if err != nil {
		closeStreams(*env)
		return fmt.Errorf("open output channels: %w", err)
	}
	env.Output = out
	return nil
}

func closeStreams(env dataflow.Env) {
	if env.Input != nil {
		env.Input.Close()
	}
	if env.Output != nil {
		env.Output.Close()
	}
}

// attach makes the running task known, and tells it of the epochs that came before it.
func (r *runner) attach(t *dataflow.Task, in dataflow.Input) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running, r.input = t, in
	if t == nil {
		return
	}
	for _, rec := range r.records {
		t.Record(rec)
	}
	if r.ready.Number > 0 {
		t.Upgrade(r.ready)
	}
}

// runSource runs the source once the job may take input, again after an aborted drain.
func (r *runner) runSource(ctx context.Context, src dataflow.Source) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.commit:
	}
	for {
		if err := r.receive(ctx, src); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.resume:
		}
	}
}

// receive runs the source until ctx ends or the job drains.
func (r *runner) receive(ctx context.Context, src dataflow.Source) error {
	r.mu.Lock()
	if r.draining {
		r.mu.Unlock()
		return nil
	}
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	r.stopSrc, r.srcDone = cancel, make(chan struct{})
	done := r.srcDone
	r.mu.Unlock()
	defer close(done)
	if err := src.Run(run, r.ingest); err != nil && run.Err() == nil {
		return fmt.Errorf("source %s: %w", r.task.Source.Name, err)
	}
	return nil
}

// drain stops the source and ends its input with the final barrier, unless the epoch is aborted while
// the source stops.
func (r *runner) drain(epoch abs.Epoch) {
	r.mu.Lock()
	r.draining, r.finalEpoch = true, epoch
	cancel, done := r.stopSrc, r.srcDone
	r.mu.Unlock()
	r.a.background(func() {
		if cancel != nil {
			cancel()
			<-done
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.draining && r.finalEpoch == epoch {
			r.barrier(epoch, true)
		}
	})
}

// barrier puts an epoch's barrier into the source's log.
func (r *runner) barrier(epoch abs.Epoch, final bool) {
	if err := r.ingest.Barrier(epoch, final); err != nil {
		r.log.Warn("barrier not logged: the epoch will time out", "epoch", uint64(epoch), "error", err)
	}
}

// undrain lets the source go on if the final epoch was aborted: its record says so, or, where the
// control plane has lost it, that of a later one.
func (r *runner) undrain(rec abs.EpochRecord) {
	r.mu.Lock()
	was := r.draining && (rec.Epoch > r.finalEpoch || rec.Epoch == r.finalEpoch && rec.State == abs.Aborted)
	if was {
		r.draining = false
	}
	r.mu.Unlock()
	if was {
		r.ingest.Reopen()
		signal(r.resume)
	}
}

// epoch takes an epoch's record of this generation, in the order of epochs.
func (r *runner) epoch(rec abs.EpochRecord) {
	// That the generation has begun is told first: a directory that has no part of it then, is none that it began
	// with. An initial epoch that was aborted begins nothing.
	if rec.Manifest() {
		r.committed()
	}
	if rec.Initial && rec.State != abs.Aborted {
		r.setFloor(rec.Epoch)
	}
	if r.ingest != nil {
		r.sourceEpoch(rec)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = appendRecord(r.records, rec)
	if r.running != nil {
		r.running.Record(rec)
	}
}

// setFloor tells the initial epoch. Epochs come one at a time.
func (r *runner) setFloor(e abs.Epoch) {
	select {
	case <-r.floored:
	default:
		r.floor = e
		close(r.floored)
	}
}

// appendRecord keeps the newest records by epoch: what a task that starts later must be told.
func appendRecord(records []abs.EpochRecord, rec abs.EpochRecord) []abs.EpochRecord {
	const kept = 4 // one in flight, the one before it, and what a drain needs
	for i := range records {
		if records[i].Epoch == rec.Epoch {
			records[i] = rec
			return records
		}
	}
	records = append(records, rec)
	if len(records) > kept {
		records = records[1:]
	}
	return records
}

func (r *runner) sourceEpoch(rec abs.EpochRecord) {
	r.undrain(rec)
	switch {
	case rec.Initial, slices.Contains(rec.Detached, r.task.Agent):
	case rec.State == abs.Started && rec.Final:
		r.drain(rec.Epoch)
	case rec.State == abs.Started:
		r.barrier(rec.Epoch, false)
	}
}

// committed lets the task take input.
func (r *runner) committed() {
	select {
	case <-r.commit:
	default:
		close(r.commit)
	}
}

// initialReport returns the part that the generation began with: it answers an initial epoch under
// whatever number.
func (r *runner) initialReport() (dataflow.PartReport, bool) {
	parts, err := r.a.store.Parts(r.name)
	if err != nil {
		r.log.Warn("snapshots cannot be listed", "error", err)
		return dataflow.PartReport{}, false
	}
	for _, p := range parts {
		if p.Generation == r.rec.Generation {
			rep, err := dataflow.ReportOf(p)
			return rep, err == nil
		}
	}
	return dataflow.PartReport{}, false
}

// report returns the durable part of an epoch, from this run or from the store.
func (r *runner) report(e abs.Epoch) (dataflow.PartReport, bool) {
	r.mu.Lock()
	rep, ok := r.reports[e]
	r.mu.Unlock()
	if ok {
		return rep, true
	}
	parts, err := r.a.store.Parts(r.name)
	if err != nil {
		r.log.Warn("snapshots cannot be listed", "error", err)
		return rep, false
	}
	for _, p := range parts {
		if p.Epoch == e && p.Generation == r.rec.Generation && !p.Local {
			rep, err := dataflow.ReportOf(p)
			return rep, err == nil
		}
	}
	return rep, false
}

func (r *runner) keepReport(rep dataflow.PartReport) {
	const kept = 8
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports[rep.Info.Epoch] = rep
	for e := range r.reports {
		if e+kept < rep.Info.Epoch {
			delete(r.reports, e)
		}
	}
}

// initialBehind are the initial epochs that were started before the task had a part to answer them with, because an
// earlier one, for which it made that part, was aborted meanwhile. No answer is lost between this and [Agent.answer]: a
// record is kept here before that looks for a part, and a part's report before this looks for records.
func (r *runner) initialBehind(e abs.Epoch) (epochs []abs.Epoch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.records {
		if rec.Initial && rec.State == abs.Started && rec.Epoch > e {
			epochs = append(epochs, rec.Epoch)
		}
	}
	return epochs
}

// ackOf is the acknowledgement that a durable part makes.
func (r *runner) ackOf(rep dataflow.PartReport) abs.Ack {
	return abs.Ack{
		Task: r.task.ID, Epoch: rep.Info.Epoch, Generation: rep.Info.Generation,
		Part: abs.Part{
			Epoch: rep.Info.Epoch, Generation: rep.Info.Generation, Version: uint64(rep.Info.Version),
			Pos: rep.Info.Pos, Cut: rep.Cut, Aligned: rep.Aligned, Bytes: rep.Info.Bytes,
			Ended: rep.Ended, AlignMs: int64(rep.AlignMS), FreezeUs: int64(rep.FreezeMS * 1000), PersistMs: int64(rep.PersistMS),
		},
	}
}

// observer takes a task's news.
type observer struct{ r *runner }

// PartDurable implements [dataflow.Observer].
func (o observer) PartDurable(rep dataflow.PartReport) {
	o.r.keepReport(rep)
	o.r.a.acks.push(ackJob{o.r.rec.Name, o.r.ackOf(rep)})
	for _, e := range o.r.initialBehind(rep.Info.Epoch) {
		ack := o.r.ackOf(rep)
		ack.Epoch = e
		o.r.a.acks.push(ackJob{o.r.rec.Name, ack})
	}
}

// PartSkipped implements [dataflow.Observer].
func (o observer) PartSkipped(epoch abs.Epoch, reason string) {
	o.r.log.Warn("no snapshot of this epoch", "epoch", uint64(epoch), "reason", reason)
	o.r.a.acks.push(ackJob{o.r.rec.Name, abs.Ack{Task: o.r.task.ID, Epoch: epoch, Generation: o.r.rec.Generation, Failed: reason}})
}

// Recovered implements [dataflow.Observer].
func (o observer) Recovered(rec dataflow.Recovery) {
	o.set(rec)
	if o.r.ingest != nil {
		o.r.mu.Lock()
		o.r.ingestBase = o.r.ingest.Records()
		o.r.mu.Unlock()
	}
	o.r.log.Info("restored", "level", rec.Level, "reason", rec.Reason, "epoch", uint64(rec.Epoch), "snapshot", uint64(rec.Version))
}

// CaughtUp implements [dataflow.Observer].
func (o observer) CaughtUp(rec dataflow.Recovery) {
	o.set(rec)
	o.r.log.Info("caught up", "level", rec.Level, "replayed", rec.Replayed, "epoch", uint64(rec.Epoch), "reason", rec.Reason,
		"held_back", rec.HeldBack, "compared", rec.Compared, "repeated", rec.Repeated, "repeated_unknown", rec.Unknown, "ms", rec.TookMS)
}

func (o observer) set(rec dataflow.Recovery) {
	o.r.clock.raise(rec.Stamp)
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	if o.r.recovery == nil || o.r.recovery.TookMS != 0 {
		o.r.recoverT = time.Now()
	}
	o.r.recovery = &rec
}

// Stirred implements [dataflow.Observer].
func (o observer) Stirred() { signal(o.r.a.stirred) }

// Drained implements [dataflow.Observer].
func (o observer) Drained(epoch abs.Epoch) { o.r.log.Info("drained", "epoch", uint64(epoch)) }
