package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// Bounds of what the API waits for.
const (
	// peerPatience is how long another agent may take to tell its status.
	peerPatience = 2 * time.Second
	pollEvery    = 50 * time.Millisecond
)

// Ready implements [web.Fleet].
func (a *Agent) Ready(ctx context.Context) error {
	select {
	case <-a.ready:
		return nil
	default:
		return errors.New("the agent's local jobs are being started")
	}
}

// Status implements [web.Fleet].
func (a *Agent) Status(ctx context.Context) (api.Status, error) {
	usage, now := a.entries.Usage(), a.diskReading()
	all, log := a.disk.perHour(now)
	st := api.Status{
		Agent: a.self(), Ready: a.Ready(ctx) == nil, Links: []api.Link{a.natsLink()}, Tasks: []api.Task{}, Notices: a.notices.list(),
		Store: api.Store{
			Dir: a.opt.Data, LogBytes: usage.Bytes, LogBudgetBytes: usage.Budget, SnapshotBytes: fileSize(a.dir.StatePath()),
			WrittenBytes: now.all, WrittenPerHour: all, LogPerHour: log, LogHoursLeft: hoursThatFit(usage.Ingest, log), DeadLetterBytes: a.dead.bytes(),
		},
	}
	st.Notices = append(append(st.Notices, a.dead.notices()...), a.drill.notices()...)
	if err := a.entries.Err(); err != nil {
		st.Notices = append(st.Notices, "input log: sources acknowledge nothing and tasks wait, since it cannot be written; it goes on by itself when the disk takes writes: "+
			"make room, or make it writable: "+err.Error())
	}
	var running []*runner
	for _, h := range a.hosted() {
		running = append(running, h.tasks()...)
	}
	st.Notices = append(st.Notices, a.unsaved.notices(running)...)
	st.Notices = append(st.Notices, a.serverNotices()...)
	for _, r := range running {
		st.Tasks = append(st.Tasks, r.status())
		st.Links = append(st.Links, r.linkStates()...)
		st.Notices = append(st.Notices, r.sourceNotices()...)
	}
	st.Agent.Tasks = len(st.Tasks)
	return st, nil
}

func fileSize(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}

func (a *Agent) self() api.Agent {
	return api.Agent{
		Name: a.name, Labels: a.opt.Labels, State: "up", Version: a.opt.Version, Seen: time.Now().UTC(), Started: a.began.UTC(),
		Starts: uint64(a.dir.Incarnation()), Coordinator: a.leader.leads(), Addresses: a.addresses(),
	}
}

func (a *Agent) natsLink() api.Link {
	s := a.conn.State()
	l := api.Link{Kind: "nats", Address: a.opt.NATS, Up: s.Connected, Since: s.Since.UTC()}
	if a.server != nil {
		l.Address = "embedded"
	}
	if a.opt.Leaf != "" {
		return a.leafLink()
	}
	if s.Err != nil {
		l.Error = s.Err.Error()
	}
	if i := strings.LastIndexByte(l.Address, '@'); i >= 0 {
		l.Address = l.Address[i+1:]
	}
	return l
}

func (r *runner) linkStates() []api.Link {
	r.mu.Lock()
	links := r.linkStatus
	r.mu.Unlock()
	var out []api.Link
	for _, f := range links {
		l := f()
		l.Name = r.name + " " + l.Name
		out = append(out, l)
	}
	return out
}

// status is a task as others see it.
func (r *runner) status() api.Task {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := api.Task{
		ID: string(r.task.ID), Job: r.rec.Name, Agent: r.task.Agent, State: r.state, Reason: r.reason,
		Restarts: r.restarts, Generation: uint32(r.rec.Generation), DeadLetters: r.a.dead.count(r.name), Lost: lost(r.failure),
	}
	var repeats uint64
	t.Upgrade = r.upgradeStatus(nil)
	if r.running != nil {
		s := r.running.Status()
		t.Upgrade = r.upgradeStatus(&s)
		repeats = s.Repeats
		r.fill(&t, s)
	}
	t.Shadows = r.shadowStatus()
	t.Source, t.Losses = r.sourceCounts(repeats), r.losses
	if r.recovery != nil {
		rec := r.recovery
		t.Recovery = &api.Recovery{
			Level: rec.Level, Reason: rec.Reason, At: r.recoverT.UTC(), TookMS: rec.TookMS, Done: rec.TookMS > 0,
			Epoch: uint64(rec.Epoch), ReplayedRecords: rec.Replayed, HeldBack: rec.HeldBack, Compared: rec.Compared,
			Repeated: rec.Repeated, Unknown: rec.Unknown,
		}
	}
	return t
}

func (r *runner) fill(t *api.Task, s dataflow.Status) {
	if t.State == "" {
		t.State = s.State
	}
	t.Restarts += s.Restarts
	t.Epoch, t.RecordsIn, t.RecordsOut, t.Lag = uint64(s.Epoch), s.RecordsIn, s.RecordsOut, s.Held
	t.Spooled = s.Spooled
	if r.ingest != nil {
		t.Logged = r.ingest.Records()
		t.Lag += r.unread(s.Ingested, s.Backlog)
	}
	if t.Reason == "" {
		t.Reason = s.SaveError
	}
	t.EventTime = eventTime(s.Time)
	for i, f := range r.sinkStatus {
		sink := f()
		if i < len(s.Sinks) {
			sink.Held, sink.Early = s.Sinks[i].Unhanded, s.Sinks[i].Early
		}
		t.Sinks = append(t.Sinks, sink)
	}
}

// answerStatus answers the calls of other agents.
func (a *Agent) answerStatus(request []byte) []byte {
	if rest, ok := strings.CutPrefix(string(request), "dead/"); ok {
		limit, job, _ := strings.Cut(rest, "/")
		n, err := strconv.Atoi(limit)
		if err != nil {
			return nil
		}
		return mustJSON(a.dead.newest(job, n))
	}
	if ask, ok := strings.CutPrefix(string(request), replayAsk); ok {
		return a.answerReplay([]byte(ask))
	}
	if job, ok := strings.CutPrefix(string(request), receivingAsk); ok {
		return a.answerReceiving(job)
	}
	st, err := a.Status(a.life)
	if err != nil {
		return mustJSON(api.Status{Notices: []string{err.Error()}})
	}
	return mustJSON(st)
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// Agents implements [web.Fleet].
func (a *Agent) Agents(ctx context.Context) ([]api.Agent, error) {
	records := a.peers.list()
	statuses := a.askAll(ctx, names(records))
	_ = a.askHeard(ctx, names(records)) // what is not known is not shown
	out := []api.Agent{}
	for _, rec := range records {
		ag := api.Agent{
			Name: rec.Name, Labels: rec.Labels, State: "down", Version: rec.Version, Seen: a.peers.seen(rec.Name).UTC(),
			Started: millis(rec.StartedMS), Starts: rec.Starts, DeadLetters: a.peers.deadLetters(rec.Name),
			Addresses: api.Addresses{HTTP: rec.HTTP, NATS: rec.NATS, MQTT: rec.MQTT},
		}
		if st, ok := statuses[rec.Name]; ok {
			ag.State, ag.Coordinator, ag.Tasks = "up", st.Agent.Coordinator, st.Agent.Tasks
		}
		out = append(out, ag)
	}
	return out, nil
}

func names(records []agentRecord) []string {
	var out []string
	for _, r := range records {
		out = append(out, r.Name)
	}
	return out
}

// askAll asks agents for their status; those that do not answer in time are missing.
func (a *Agent) askAll(ctx context.Context, agents []string) map[string]api.Status {
	var mu sync.Mutex
	out := map[string]api.Status{}
	a.callAll(ctx, agents, nil, func(agent string, reply []byte) {
		var st api.Status
		if json.Unmarshal(reply, &st) == nil {
			mu.Lock()
			out[agent] = st
			mu.Unlock()
		}
	})
	return out
}

// askSilent gives agents that have not been heard of lately, such as those that have just started, the
// chance to be.
func (a *Agent) askSilent(ctx context.Context) {
	_ = a.askHeard(ctx, a.silent()) // the others answer for themselves
	a.askAll(ctx, a.silent())
}

// silent are the agents that have not been heard of lately.
func (a *Agent) silent() (silent []string) {
	for _, p := range a.peers.list() {
		if !a.peers.alive(p.Name) {
			silent = append(silent, p.Name)
		}
	}
	return silent
}

// heardAtOnce bounds the agents of one question, as the server bounds messages to 1 MiB: an agent takes some 130 bytes,
// with the letters of many jobs more.
const heardAtOnce = 1000

// askHeard asks the coordinator what it has heard of agents, unless this agent hears them itself. What it does not
// know stays unknown.
func (a *Agent) askHeard(ctx context.Context, agents []string) error {
	if a.hearsAll() || a.leader.leads() {
		return nil
	}
	for some := range slices.Chunk(agents, heardAtOnce) {
		reply, err := a.callCoordinator(ctx, coordinatorCall{Op: "heard", Agents: some})
		if err != nil {
			return err
		}
		a.peers.learn(reply.Heard)
	}
	return nil
}

// mustHear is askHeard for what is noted for good: it waits for a coordinator, and fails if there is none.
func (a *Agent) mustHear(ctx context.Context, agents ...string) error {
	ctx, cancel := context.WithTimeout(ctx, touchPatience)
	defer cancel()
	for {
		err := a.askHeard(ctx, agents)
		if err == nil {
			return nil
		}
		if !sleep(ctx, pollEvery) {
			return api.Unavailable("try it again; agent agents list shows who coordinates", "what was heard of agent %s before its device was lost has to be noted, and no coordinator tells: %v", strings.Join(agents, ", agent "), err)
		}
	}
}

// callAll calls agents at the same time; itself it answers directly, with NATS or without.
func (a *Agent) callAll(ctx context.Context, agents []string, request []byte, take func(agent string, reply []byte)) {
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	var wg sync.WaitGroup
	for _, name := range agents {
		if name == a.name {
			take(name, a.answerStatus(request))
			continue
		}
		wg.Go(func() {
			if reply, err := a.conn.Call(ctx, "status/"+name, request); err == nil {
				a.peers.answered(name)
				take(name, reply)
			}
		})
	}
	wg.Wait()
}

// touchPatience bounds the wait of a request for the control plane: an agent that has just started is
// in touch with it within a second.
const touchPatience = 5 * time.Second

// inTouch waits until the agent is in touch with the control plane.
func (a *Agent) inTouch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, touchPatience)
	defer cancel()
	for a.currentCluster() == "" {
		if !sleep(ctx, pollEvery) {
			why := "it has not answered yet"
			if s := a.conn.State(); s.Err != nil {
				why = s.Err.Error()
			}
			return api.Unavailable("agent status shows its connections", "the agent is not in touch with the control plane: %s", why)
		}
	}
	return nil
}

// controlPlaneAway says that what is kept on the hub cannot be read or changed now.
func controlPlaneAway(err error) error {
	return api.Unavailable("agent status shows the link; what runs goes on without it", "the control plane, which is on the hub, does not answer (%v)", err)
}

func (a *Agent) jobRecord(ctx context.Context, name string) (*jobRecord, error) {
	e, err := a.conn.KV(wnats.Jobs).Get(ctx, wnats.Key(name))
	if err != nil {
		return nil, err
	}
	var rec jobRecord
	if err := json.Unmarshal(e.Value, &rec); err != nil {
		return nil, fmt.Errorf("job %s: %w", name, err)
	}
	return &rec, nil
}

func promiseText(p *job.Physical) string {
	var lines []string
	for _, pr := range p.Promises {
		lines = append(lines, fmt.Sprintf("%s: %s (%s)", pr.Of, pr.Level, pr.Reason))
	}
	return strings.Join(lines, "\n")
}

func (h *hostedJob) committedIn(gen abs.Generation) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, rec := range h.epochs {
		if rec.Generation == gen && rec.Manifest() {
			return true
		}
	}
	return false
}

// StopJob implements [web.Jobs].
func (a *Agent) StopJob(ctx context.Context, name string) (api.Checkpoint, error) {
	if err := a.inTouch(ctx); err != nil {
		return api.Checkpoint{}, err
	}
	rec, err := a.changeState(ctx, name, jobStopping, nil)
	if err != nil {
		return api.Checkpoint{}, err
	}
	for rec.State == jobStopping {
		if !sleep(ctx, pollEvery) {
			return api.Checkpoint{}, fmt.Errorf("job %s is draining; its final checkpoint does not count yet: %w", name, ctx.Err())
		}
		if rec, err = a.jobRecord(ctx, name); err != nil {
			return api.Checkpoint{}, a.failure(name, err)
		}
	}
	a.waitHeard(ctx, *rec)
	list, err := a.Checkpoints(ctx, name)
	if err != nil {
		return api.Checkpoint{}, err
	}
	for _, c := range list {
		if c.Epoch == uint64(rec.Final) {
			return c, nil
		}
	}
	return api.Checkpoint{Job: name, Epoch: uint64(rec.Final), Final: true, State: api.CheckpointComplete}, nil
}

// waitHeard waits until this agent has taken a job's record, so that what it shows next agrees.
func (a *Agent) waitHeard(ctx context.Context, rec jobRecord) {
	for {
		h := a.hostedJob(rec.Name)
		if h == nil || !rec.newer(h.record()) || !sleep(ctx, pollEvery) {
			return
		}
	}
}

// changeState asks for a job's next state. What is there already, or further, is no error.
func (a *Agent) changeState(ctx context.Context, name string, to jobState, next *jobRecord) (*jobRecord, error) {
	kv, key := a.conn.KV(wnats.Jobs), wnats.Key(name)
	for {
		e, err := kv.Get(ctx, key)
		if err != nil {
			return nil, a.failure(name, err)
		}
		var rec jobRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			return nil, err
		}
		switch {
		case rec.State == jobDeleted:
			return nil, a.failure(name, wnats.ErrNotFound)
		case next != nil && next.Generation != rec.Generation+1:
			return nil, api.Conflict("look at it and try again", "job %s was changed by somebody else", name)
		case rec.State == jobRestarting && to != jobDeleted:
			return nil, api.Conflict("try again when it runs", "the tasks of job %s are about to restart from a checkpoint", name)
		case to == jobRestarting && !rec.live():
			return nil, api.Conflict("apply it without --restart", "job %s does not run", name)
		case to == jobStopping && !rec.live(), to == jobStopping && rec.State == jobStopping && next == nil && rec.Next == nil:
			return &rec, nil
		}
		old := rec
		rec.State, rec.Revision, rec.Next = to, rec.Revision+1, next
		_, err = kv.Update(ctx, key, mustJSON(rec), e.Revision)
		if errors.Is(err, wnats.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, a.failure(name, err)
		}
		if next != nil {
			if err := a.claimModules(ctx, *next, &old); err != nil {
				return nil, err
			}
		}
		return &rec, nil
	}
}

func (a *Agent) failure(name string, err error) error {
	if errors.Is(err, wnats.ErrNotFound) {
		return api.NotFound("agent job list shows what there is", "there is no job %s", name)
	}
	if errors.Is(err, wnats.ErrUnavailable) {
		return api.Unavailable("the agent's status shows its connection", "job %s: %v", name, err)
	}
	return fmt.Errorf("job %s: %w", name, err)
}

// DeleteJob implements [web.Jobs].
func (a *Agent) DeleteJob(ctx context.Context, name string, force bool) error {
	if err := a.inTouch(ctx); err != nil {
		return err
	}
	rec, err := a.jobRecord(ctx, name)
	if err != nil {
		return a.failure(name, err)
	}
	if rec.State == jobDeleted { // an earlier deletion may not have come to its end
		return errors.Join(a.deleteState(ctx, name, rec.Generation), a.failure(name, wnats.ErrNotFound))
	}
	if rec.live() && !force {
		return api.Conflict("stop it first, or use --force to give up what it has not written yet", "job %s is not stopped", name)
	}
	gone, err := a.changeState(ctx, name, jobDeleted, nil)
	if err != nil {
		return err
	}
	a.waitHeard(ctx, *gone)
	return a.deleteState(ctx, name, rec.Generation)
}

// deleteState removes a deleted job's checkpoints, packs and streams.
func (a *Agent) deleteState(ctx context.Context, name string, gen abs.Generation) error {
	kv := a.conn.KV(wnats.Checkpoints)
	for _, kind := range []string{kindEpoch, kindAck, kindReplica} {
		keys, err := kv.Keys(ctx, wnats.Key(kind, name))
		if err != nil {
			return err
		}
		for _, k := range keys {
			if err := kv.Delete(ctx, k); err != nil {
				return err
			}
		}
	}
	objects := a.conn.Objects(wnats.Snapshots)
	list, err := objects.List(ctx)
	if err != nil {
		return err
	}
	for _, o := range list {
		if _, _, ours := parsePack(o.Name, name); ours {
			if err := objects.Delete(ctx, o.Name); err != nil {
				return err
			}
		}
	}
	return a.conn.Streams(wnats.StreamOptions{}).Delete(ctx, name, gen)
}

// Jobs implements [web.Jobs].
func (a *Agent) Jobs(ctx context.Context) ([]api.JobSummary, error) {
	out := []api.JobSummary{}
	statuses := a.askAll(ctx, names(a.peers.list()))
	for _, h := range a.hostedSorted() {
		if h.record().State != jobDeleted {
			out = append(out, h.show(statuses).JobSummary)
		}
	}
	return out, nil
}

// Job implements [web.Jobs].
func (a *Agent) Job(ctx context.Context, name string) (api.Job, error) {
	h := a.hostedJob(name)
	if h == nil || h.record().State == jobDeleted {
		return api.Job{}, a.failure(name, wnats.ErrNotFound)
	}
	j := h.show(a.askAll(ctx, h.record().Plan.Agents()))
	a.fillRunning(ctx, &j)
	return j, nil
}

// show is the job as its agents tell of it.
func (h *hostedJob) show(statuses map[string]api.Status) api.Job {
	rec, name := h.record(), h.name
	j := api.Job{
		JobSummary: api.JobSummary{
			Name: name, Generation: uint32(rec.Generation), TaskCount: len(rec.Plan.Tasks), Applied: millis(rec.AppliedMS), State: string(rec.State),
		},
		Promise: promiseText(rec.Plan), Warnings: append([]string{}, rec.Plan.Warnings...), Tasks: []api.Task{}, YAML: rec.YAML,
	}
	if rec.State == jobRunning && !h.committedIn(rec.Generation) {
		j.State = api.JobStarting
	}
	for _, t := range rec.Plan.Tasks {
		task := taskOf(statuses[t.Agent], rec, t)
		j.Tasks = append(j.Tasks, task)
		j.Restarts += task.Restarts
		j.DeadLetters += task.DeadLetters
		if t.Source != nil {
			j.RecordsIn += task.RecordsIn
		}
		if len(t.Sinks) > 0 {
			j.RecordsOut += task.RecordsOut
		}
		if task.State == api.TaskRunning {
			j.RunningTasks++
		}
		if task.State == "failed" && rec.live() {
			j.State, j.Reason = api.JobFailed, task.ID+": "+task.Reason
		}
	}
	j.Upgrade, j.Shadow = rec.showUpgrade(j.Tasks), rec.showShadow()
	j.LostLetters = rec.showLostLetters()
	h.fillCheckpoints(&j)
	return j
}

func taskOf(st api.Status, rec jobRecord, t job.Task) api.Task {
	for _, task := range st.Tasks {
		if task.Job == rec.Name && task.ID == string(t.ID) {
			return task
		}
	}
	state := api.TaskUnknown
	if !rec.live() {
		state = api.TaskStopped
	}
	return api.Task{ID: string(t.ID), Job: rec.Name, Agent: t.Agent, State: state, Generation: uint32(rec.Generation)}
}

// fillCheckpoints tells of the job's newest checkpoints.
func (h *hostedJob) fillCheckpoints(j *api.Job) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, rec := range h.sortedEpochs() {
		if !rec.Manifest() {
			continue
		}
		j.LastCompleteEpoch = uint64(rec.Epoch)
		if rec.State == abs.Replicated {
			j.LastReplicatedEpoch = uint64(rec.Epoch)
		}
		c := checkpointOf(h.name, rec)
		j.AlignMS, j.FreezeMS, j.PersistMS, j.ReplicateMS = c.AlignMS, c.FreezeMS, c.PersistMS, c.ReplicateMS
	}
}

// fillRunning tells of the checkpoint under way, as the coordinator sees it.
func (a *Agent) fillRunning(ctx context.Context, j *api.Job) {
	st, ok := a.leader.job(j.Name)
	if !ok {
		reply, err := a.callCoordinator(ctx, coordinatorCall{Op: "status", Job: j.Name})
		if err != nil || reply.Status == nil {
			return
		}
		st = *reply.Status
	}
	j.Without = st.Detached
	if st.Running == nil {
		j.Waits = st.Holding
		return
	}
	j.Running = &api.Running{
		Epoch: uint64(st.Running.Epoch), Phase: "align", AgeMS: float64(a.now() - st.Running.StartedMs),
		Needed: j.TaskCount, Acked: j.TaskCount - len(st.Missing), HeldUpBy: []string{},
	}
	for _, t := range st.Missing {
		j.Running.HeldUpBy = append(j.Running.HeldUpBy, string(t))
	}
}

func checkpointOf(job string, rec abs.EpochRecord) api.Checkpoint {
	c := api.Checkpoint{
		Job: job, Epoch: uint64(rec.Epoch), Generation: uint32(rec.Generation), Started: millis(rec.StartedMs),
		Parts: len(rec.Parts), Savepoint: rec.Savepoint, Final: rec.Final, Without: rec.Detached, Reason: rec.Reason,
		State: map[abs.EpochState]string{
			abs.Started: api.CheckpointRunning, abs.Committed: api.CheckpointComplete,
			abs.Replicated: api.CheckpointReplicated, abs.Aborted: api.CheckpointAborted,
		}[rec.State],
	}
	if rec.EndedMs > rec.StartedMs {
		c.TookMS = float64(rec.EndedMs - rec.StartedMs)
	}
	if rec.ReplicatedMs > rec.EndedMs {
		c.ReplicateMS = float64(rec.ReplicatedMs - rec.EndedMs)
	}
	for _, p := range rec.Parts {
		c.Bytes += p.Bytes
		c.AlignMS = max(c.AlignMS, float64(p.AlignMs))
		c.FreezeMS = max(c.FreezeMS, float64(p.FreezeUs)/1000)
		c.PersistMS = max(c.PersistMS, float64(p.PersistMs))
	}
	return c
}

// Checkpoints implements [web.Checkpoints].
func (a *Agent) Checkpoints(ctx context.Context, name string) ([]api.Checkpoint, error) {
	if err := a.inTouch(ctx); err != nil {
		return nil, err
	}
	if h := a.hostedJob(name); h == nil || h.record().State == jobDeleted {
		return nil, a.failure(name, wnats.ErrNotFound)
	}
	entries, err := a.conn.KV(wnats.Checkpoints).List(ctx, wnats.Key(kindEpoch, name))
	if err != nil {
		return nil, a.failure(name, err)
	}
	out := []api.Checkpoint{}
	for _, e := range entries {
		var rec abs.EpochRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			return nil, err
		}
		out = append(out, checkpointOf(name, rec))
	}
	return out, nil
}

// CheckpointNow implements [web.Checkpoints].
func (a *Agent) CheckpointNow(ctx context.Context, name, savepoint string) (api.Checkpoint, error) {
	if err := a.inTouch(ctx); err != nil {
		return api.Checkpoint{}, err
	}
	if h := a.hostedJob(name); h == nil || h.record().State == jobDeleted {
		return api.Checkpoint{}, a.failure(name, wnats.ErrNotFound)
	}
	if savepoint == "" {
		savepoint = fmt.Sprintf("manual-%d", a.now())
	}
	if !api.NamePattern.MatchString(savepoint) {
		return api.Checkpoint{}, api.Invalid("use up to 64 letters, digits, - and _", "a checkpoint cannot be named %q", savepoint)
	}
	reply, err := a.callCoordinator(ctx, coordinatorCall{Op: "savepoint", Job: name, Name: savepoint})
	if err != nil {
		return api.Checkpoint{}, api.Unavailable("agent agents list shows who coordinates", "no coordinator answers: %v", err)
	}
	if reply.Refused != "" {
		return api.Checkpoint{}, api.Conflict("", "no checkpoint of job %s now: %s", name, reply.Refused)
	}
	for {
		if rec, ok, err := a.savepoint(ctx, name, savepoint); err != nil {
			return api.Checkpoint{}, a.failure(name, err)
		} else if ok {
			return checkpointOf(name, rec), nil
		}
		if !sleep(ctx, pollEvery) {
			return api.Checkpoint{}, fmt.Errorf("the checkpoint of job %s does not count yet: %w", name, ctx.Err())
		}
	}
}

// savepoint finds the savepoint of a name once it counts.
func (a *Agent) savepoint(ctx context.Context, job, savepoint string) (abs.EpochRecord, bool, error) {
	h := a.hostedJob(job)
	replicate := h.record().Plan.Checkpoint.Replicate
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, rec := range h.epochs {
		if rec.Savepoint == savepoint && rec.Counts(replicate) {
			return rec, true, nil
		}
	}
	return abs.EpochRecord{}, false, nil
}

// coordinatorCall is a question to the agent that coordinates.
type coordinatorCall struct {
	Op     string   `json:"op"` // "status", "savepoint" or "heard"
	Job    string   `json:"job"`
	Name   string   `json:"name,omitempty"`
	Agents []string `json:"agents,omitempty"` // of "heard"
}

type coordinatorReply struct {
	Refused string             `json:"refused,omitempty"`
	Status  *abs.Status        `json:"status,omitempty"`
	Heard   map[string]heardOf `json:"heard,omitempty"`
}

func (a *Agent) callCoordinator(ctx context.Context, c coordinatorCall) (coordinatorReply, error) {
	var reply coordinatorReply
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	b, err := a.conn.Call(ctx, "coordinator", mustJSON(c))
	if err != nil {
		return reply, err
	}
	return reply, json.Unmarshal(b, &reply)
}

// answerCoordinator answers questions while this agent coordinates.
func (a *Agent) answerCoordinator(request []byte) []byte {
	var c coordinatorCall
	if err := json.Unmarshal(request, &c); err != nil {
		return mustJSON(coordinatorReply{Refused: err.Error()})
	}
	switch c.Op {
	case "savepoint":
		ask := savepointAsk{c.Job, c.Name, make(chan string, 1)}
		a.savepoints.push(ask)
		select {
		case refused := <-ask.refused:
			return mustJSON(coordinatorReply{Refused: refused})
		case <-time.After(peerPatience):
			return mustJSON(coordinatorReply{Refused: "the coordinator is busy"})
		}
	case "status":
		if st, ok := a.leader.job(c.Job); ok {
			return mustJSON(coordinatorReply{Status: &st})
		}
	case "heard":
		return mustJSON(coordinatorReply{Heard: a.peers.heardOf(c.Agents)})
	}
	return mustJSON(coordinatorReply{})
}
