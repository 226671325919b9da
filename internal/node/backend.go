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
	usage := a.entries.Usage()
	st := api.Status{
		Agent: a.self(), Ready: a.Ready(ctx) == nil, Links: []api.Link{a.natsLink()}, Tasks: []api.Task{}, Notices: a.notices.list(),
		Store: api.Store{
			Dir: a.opt.Data, LogBytes: usage.Bytes, LogBudgetBytes: usage.Budget, SnapshotBytes: fileSize(a.dir.StatePath()),
			WrittenBytes: a.entries.Written() + a.store.Written() + a.copies.Written(), DeadLetterBytes: a.dead.bytes(),
		},
	}
	if err := a.entries.Err(); err != nil {
		st.Notices = append(st.Notices, "input log: "+err.Error())
	}
	for _, h := range a.hosted() {
		for _, r := range h.tasks() {
			st.Tasks = append(st.Tasks, r.status())
			st.Links = append(st.Links, r.linkStates()...)
		}
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
		Restarts: r.restarts, Generation: uint32(r.rec.Generation), DeadLetters: r.a.dead.count(r.name),
	}
	var repeats uint64
	if r.running != nil {
		s := r.running.Status()
		repeats = s.Repeats
		r.fill(&t, s)
	}
	t.Source = r.sourceCounts(repeats)
	if r.recovery != nil {
		rec := r.recovery
		t.Recovery = &api.Recovery{
			Level: rec.Level, Reason: rec.Reason, At: r.recoverT.UTC(), TookMS: rec.TookMS, Done: rec.TookMS > 0,
			Epoch: uint64(rec.Epoch), ReplayedRecords: rec.Replayed, HeldBack: rec.HeldBack, Compared: rec.Compared,
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
	if r.ingest != nil {
		since := r.ingest.Records() - r.ingestBase
		t.Lag += since + s.Backlog - min(s.Ingested, since+s.Backlog)
	}
	if t.Reason == "" {
		t.Reason = s.SaveError
	}
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
			return mustJSON([]api.DeadLetter{})
		}
		return mustJSON(a.dead.newest(job, n))
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
	out := []api.Agent{}
	for _, rec := range records {
		ag := api.Agent{
			Name: rec.Name, Labels: rec.Labels, State: "down", Version: rec.Version, Seen: a.peers.seen(rec.Name).UTC(),
			Started: millis(rec.StartedMS), Starts: rec.Starts,
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
	var silent []string
	for _, p := range a.peers.list() {
		if !a.peers.alive(p.Name) {
			silent = append(silent, p.Name)
		}
	}
	a.askAll(ctx, silent)
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

// plan makes the physical plan of a job file.
func (a *Agent) plan(ctx context.Context, src api.JobSource) (*job.Physical, *jobRecord, map[string]string, error) {
	file, err := job.Parse(src.File, []byte(src.YAML))
	if err != nil {
		return nil, nil, nil, api.Invalid("", "%v", err)
	}
	graph, err := job.Build(file)
	if err != nil {
		return nil, nil, nil, api.Invalid("", "%v", err)
	}
	if err := a.inTouch(ctx); err != nil {
		return nil, nil, nil, err
	}
	modules, err := a.resolve(ctx, file, src)
	if err != nil {
		return nil, nil, nil, err
	}
	old, err := a.jobRecord(ctx, file.Name)
	if err != nil && !errors.Is(err, wnats.ErrNotFound) {
		return nil, nil, nil, api.Unavailable("", "%v", err)
	}
	var previous *job.Physical
	gen := abs.Generation(1)
	if old != nil {
		gen = old.Generation + 1
		if old.State != jobDeleted {
			previous = old.Plan
		}
	}
	var agents []job.Agent
	a.askSilent(ctx)
	var absent []string
	for _, p := range a.peers.list() {
		alive := a.peers.alive(p.Name)
		if !alive && (previous == nil || len(previous.On(p.Name)) == 0) {
			continue
		}
		if !alive {
			absent = append(absent, p.Name)
		}
		agents = append(agents, job.Agent{Name: p.Name, Labels: p.Labels, MQTTListen: p.MQTT != "", MQTTAddr: p.MQTT})
	}
	physical, err := job.Plan(graph, agents, modules, gen, previous)
	if err != nil {
		return nil, nil, nil, api.Invalid("", "%v", err)
	}
	for _, name := range absent {
		if len(physical.On(name)) > 0 {
			physical.Warnings = append(physical.Warnings, fmt.Sprintf("agent %s is not in reach; it keeps its tasks and goes on with them when it is back", name))
		}
	}
	return physical, old, modules, nil
}

// resolve finds the digest of every operator's module.
func (a *Agent) resolve(ctx context.Context, file *job.File, src api.JobSource) (map[string]string, error) {
	modules := map[string]string{}
	for _, op := range file.Operators {
		if op.IsNative() {
			continue
		}
		if op.IsPath() {
			if d := src.Modules[op.WASM]; d != "" {
				modules[op.WASM] = d
			}
			continue
		}
		name, version, _ := strings.Cut(op.WASM, "@")
		rec, err := a.operatorRecord(ctx, name, version)
		if errors.Is(err, wnats.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, api.Unavailable("", "%v", err)
		}
		modules[op.WASM] = rec.Digest
	}
	return modules, nil
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

// PlanJob implements [web.Jobs].
func (a *Agent) PlanJob(ctx context.Context, src api.JobSource) (api.Plan, error) {
	p, _, _, err := a.plan(ctx, src)
	if err != nil {
		return api.Plan{}, err
	}
	out := api.Plan{
		Job: p.Job, Generation: uint32(p.Generation), Tasks: []api.PlannedTask{}, Channels: []string{},
		Warnings: append([]string{}, p.Warnings...), Promise: promiseText(p), Text: p.Text(),
	}
	for _, t := range p.Tasks {
		out.Tasks = append(out.Tasks, api.PlannedTask{ID: string(t.ID), Agent: t.Agent, Chain: strings.Split(t.Chain(), " → ")})
	}
	for _, c := range p.Channels {
		out.Channels = append(out.Channels, string(c.ID))
	}
	return out, nil
}

func promiseText(p *job.Physical) string {
	var lines []string
	for _, pr := range p.Promises {
		lines = append(lines, fmt.Sprintf("%s: %s (%s)", pr.Of, pr.Level, pr.Reason))
	}
	return strings.Join(lines, "\n")
}

// removed says of an agent that it was taken out of the fleet.
func (a *Agent) removed(name string) bool {
	_, known := a.peers.get(name)
	return !known
}

// RemoveAgent implements [web.Fleet].
func (a *Agent) RemoveAgent(ctx context.Context, name string) error {
	if _, known := a.peers.get(name); !known {
		return api.NotFound("agent agents list shows which there are", "there is no agent %s", name)
	}
	if err := a.inTouch(ctx); err != nil {
		return err
	}
	a.askSilent(ctx)
	if a.peers.alive(name) {
		return api.Conflict("stop it first; while it runs it belongs to the fleet", "agent %s is up", name)
	}
	if err := a.conn.KV(wnats.Agents).Delete(ctx, wnats.Key(name)); err != nil {
		return api.Unavailable("", "agent %s is not removed: %v", name, err)
	}
	return a.forgetPeer(name)
}

// ApplyJob implements [web.Jobs]. A running job that changes is drained first; the new generation
// starts from its final checkpoint.
func (a *Agent) ApplyJob(ctx context.Context, src api.JobSource) (api.Applied, error) {
	p, old, modules, err := a.plan(ctx, src)
	if err != nil {
		return api.Applied{}, err
	}
	if err := missingModules(p); err != nil {
		return api.Applied{}, err
	}
	out := api.Applied{Job: p.Job, Generation: uint32(p.Generation), Created: old == nil || old.State == jobDeleted, Warnings: append([]string{}, p.Warnings...)}
	rec := jobRecord{
		Name: p.Job, Generation: p.Generation, Revision: 1, State: jobRunning, File: src.File, YAML: src.YAML,
		Modules: modules, Plan: p, AppliedMS: a.now(),
	}
	rec.Since = rec.Generation
	if unknown := p.Refresh(src.Fresh); len(unknown) > 0 {
		return out, api.Invalid("name operators of the job file", "no operator %s in job %s to start anew", strings.Join(unknown, ", "), p.Job)
	}
	if err := a.replaceDevices(p, src.Replace); err != nil {
		return out, err
	}
	if out.Created && old != nil {
		if err := a.deleteState(ctx, rec.Name, old.Generation); err != nil {
			return out, a.failure(rec.Name, err)
		}
	}
	if !out.Created {
		rec.Since = old.Since
		if old.State == jobRunning && len(src.Fresh) == 0 && len(src.Replace) == 0 && samePlan(old.Plan, p) {
			out.Unchanged, out.Generation = true, uint32(old.Generation)
			return a.started(ctx, out, *old)
		}
		if err := job.Diff(old.Plan, p, a.removed); err != nil {
			return out, api.Conflict("delete the job to start it from nothing, or keep what must not change", "job %s cannot go on from its state: %v", p.Job, err)
		}
		rec.Base = old.Final
	}
	if err := a.replaceJob(ctx, rec, old); err != nil {
		return out, err
	}
	return a.started(ctx, out, rec)
}

// replaceDevices marks what agents run whose devices were lost. One whose task runs has lost nothing.
func (a *Agent) replaceDevices(p *job.Physical, agents []string) error {
	for _, name := range agents {
		switch {
		case !a.peers.alive(name):
			return api.Invalid("start the new device under the old one's name first", "agent %s is down", name)
		case a.peers.takesPart(name, p.Job):
			return api.Invalid("leave --replace out: a device that has its log loses nothing", "agent %s runs its tasks of job %s", name, p.Job)
		}
		if err := p.Replace(name); err != nil {
			return api.Invalid("a job whose tasks on it are lost must be deleted and applied again", "%v", err)
		}
	}
	return nil
}

// replaceJob stores a job's next record. A running job is drained first; the record comes with that,
// whatever becomes of the request.
func (a *Agent) replaceJob(ctx context.Context, rec jobRecord, old *jobRecord) error {
	if old == nil || !old.live() {
		return a.putJob(ctx, rec, old)
	}
	_, err := a.changeState(ctx, rec.Name, jobStopping, &rec)
	return err
}

// started waits until a job runs and its sources receive, so that whoever applied it can publish.
func (a *Agent) started(ctx context.Context, out api.Applied, rec jobRecord) (api.Applied, error) {
	if err := a.waitStarted(ctx, rec); err != nil {
		return out, err
	}
	out.Warnings = append(out.Warnings, a.waitReceiving(ctx, rec)...)
	return out, nil
}

func missingModules(p *job.Physical) error {
	for _, t := range p.Tasks {
		for _, op := range t.Ops {
			if op.Digest == "" {
				return api.Invalid("push it with agent operator push", "operator %s: module %s is not registered", op.Name, op.Module)
			}
		}
	}
	return nil
}

// samePlan compares plans but for what concerns the beginning of their generation.
func samePlan(a, b *job.Physical) bool {
	return string(mustJSON(running(a))) == string(mustJSON(running(b)))
}

func running(p *job.Physical) job.Physical {
	q := *p
	q.Generation, q.Warnings, q.Tasks = 0, nil, slices.Clone(p.Tasks)
	for i := range q.Tasks {
		q.Tasks[i].Replaced = false // whatever was lost was lost then
		q.Tasks[i].Ops = slices.Clone(q.Tasks[i].Ops)
		for j := range q.Tasks[i].Ops {
			q.Tasks[i].Ops[j].Fresh = false
		}
	}
	return q
}

// putJob stores a job's next record; nobody else may have changed it.
func (a *Agent) putJob(ctx context.Context, rec jobRecord, old *jobRecord) error {
	kv, key := a.conn.KV(wnats.Jobs), wnats.Key(rec.Name)
	e, err := kv.Get(ctx, key)
	switch {
	case errors.Is(err, wnats.ErrNotFound):
		_, err = kv.Create(ctx, key, mustJSON(rec))
	case err == nil:
		var have jobRecord
		if err := json.Unmarshal(e.Value, &have); err != nil {
			return err
		}
		if old == nil || have.Generation != old.Generation || have.Revision != old.Revision {
			return api.Conflict("look at it and try again", "job %s was changed by somebody else", rec.Name)
		}
		_, err = kv.Update(ctx, key, mustJSON(rec), e.Revision)
	}
	if errors.Is(err, wnats.ErrConflict) {
		return api.Conflict("look at it and try again", "job %s was changed by somebody else", rec.Name)
	}
	if err != nil {
		return api.Unavailable("", "job %s is not stored: %v", rec.Name, err)
	}
	return nil
}

// waitStarted waits until the generation's initial checkpoint is committed.
func (a *Agent) waitStarted(ctx context.Context, rec jobRecord) error {
	for {
		if h := a.hostedJob(rec.Name); h != nil && h.committedIn(rec.Generation) {
			return nil
		}
		if !sleep(ctx, pollEvery) {
			return a.notStarted(rec, ctx.Err())
		}
	}
}

// notStarted says what a job's start still waits for.
func (a *Agent) notStarted(rec jobRecord, cause error) error {
	ctx, cancel := context.WithTimeout(a.life, peerPatience)
	defer cancel()
	var waits []string
	statuses := a.askAll(ctx, rec.Plan.Agents())
	for _, t := range rec.Plan.Tasks {
		st, ok := statuses[t.Agent]
		if !ok {
			waits = append(waits, fmt.Sprintf("agent %s does not answer", t.Agent))
			continue
		}
		for _, task := range st.Tasks {
			if task.Job == rec.Name && task.ID == string(t.ID) && task.Reason != "" {
				waits = append(waits, fmt.Sprintf("task %s: %s", t.ID, task.Reason))
			}
		}
	}
	if len(waits) == 0 {
		waits = []string{"its initial checkpoint is not committed yet"}
	}
	return fmt.Errorf("job %s is stored and will start by itself, but has not yet: %s: %w", rec.Name, strings.Join(waits, "; "), cause)
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
		case to == jobStopping && !rec.live(), to == jobStopping && rec.State == jobStopping && next == nil && rec.Next == nil:
			return &rec, nil
		}
		rec.State, rec.Revision, rec.Next = to, rec.Revision+1, next
		_, err = kv.Update(ctx, key, mustJSON(rec), e.Revision)
		if errors.Is(err, wnats.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, a.failure(name, err)
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
	if _, err := a.changeState(ctx, name, jobDeleted, nil); err != nil {
		return err
	}
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
		Parts: len(rec.Parts), Savepoint: rec.Savepoint, Final: rec.Final, Reason: rec.Reason,
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
	if !namePattern.MatchString(savepoint) {
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
	Op   string `json:"op"` // "status" or "savepoint"
	Job  string `json:"job"`
	Name string `json:"name,omitempty"`
}

type coordinatorReply struct {
	Refused string      `json:"refused,omitempty"`
	Status  *abs.Status `json:"status,omitempty"`
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
	}
	return mustJSON(coordinatorReply{})
}
