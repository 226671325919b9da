package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	wnats "github.com/weir-stream/weir/transport/nats"
)

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
		return nil, nil, nil, controlPlaneAway(err)
	}
	var previous *job.Physical
	gen := abs.Generation(1)
	if old != nil {
		gen = old.Generation + 1
		if old.State != jobDeleted {
			previous = old.plan()
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
		agents = append(agents, job.Agent{Name: p.Name, Labels: p.Labels, MQTTListen: p.MQTT != "" || p.MQTTLeaf, MQTTAddr: p.MQTT, MQTTLeaf: p.MQTTLeaf})
	}
	physical, err := job.Plan(graph, agents, modules, gen, previous)
	if err != nil {
		return nil, nil, nil, api.Invalid("", "%v", err)
	}
	untried, wrong := a.tried(ctx, file, modules)
	if wrong != nil {
		return nil, nil, nil, api.Invalid("", "%v", wrong)
	}
	physical.Warnings = append(physical.Warnings, untried...)
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
			return nil, controlPlaneAway(err)
		}
		if rec.RemovedMS != 0 {
			continue
		}
		modules[op.WASM] = rec.Digest
	}
	return modules, nil
}

// PlanJob implements [web.Jobs].
func (a *Agent) PlanJob(ctx context.Context, src api.JobSource) (api.Plan, error) {
	p, old, modules, err := a.plan(ctx, src)
	if err != nil {
		return api.Plan{}, err
	}
	out := api.Plan{
		Job: p.Job, Generation: uint32(p.Generation), Tasks: []api.PlannedTask{}, Channels: []string{},
		Promise: promiseText(p),
	}
	for _, t := range p.Tasks {
		out.Tasks = append(out.Tasks, api.PlannedTask{ID: string(t.ID), Agent: t.Agent, Chain: strings.Split(t.Chain(), " → ")})
	}
	for _, c := range p.Channels {
		out.Channels = append(out.Channels, string(c.ID))
	}
	if old != nil && old.changing() {
		out.Does = fmt.Sprintf("waits, for job %s is %s, since %s; what it does is decided when that is over", p.Job, old.State, old.Next.Because)
	} else if err := a.foresee(ctx, src, p, old, modules, &out); err != nil {
		return api.Plan{}, err
	}
	out.Warnings, out.Text = append([]string{}, p.Warnings...), p.Text()
	return out, nil
}

// foresee puts into a plan what applying it comes to, or why it is refused.
func (a *Agent) foresee(ctx context.Context, src api.JobSource, p *job.Physical, old *jobRecord, modules map[string]string, out *api.Plan) error {
	d, err := a.decide(ctx, src, p, old, modules, true)
	var refused *api.Error
	switch {
	case errors.As(err, &refused) && refused.Status < http.StatusInternalServerError:
		out.Refused = &api.Refusal{Status: refused.Status, Message: refused.Message, Hint: refused.Hint}
	case err != nil:
		return err
	default:
		out.Does, p.Warnings = d.does, d.out.Warnings
	}
	return nil
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
	if err == nil && old != nil && old.changing() {
		if err = a.waitChanged(ctx, *old); err == nil {
			p, old, modules, err = a.plan(ctx, src)
		}
	}
	if err != nil {
		return api.Applied{}, err
	}
	d, err := a.decide(ctx, src, p, old, modules, false)
	if err != nil {
		return api.Applied{}, err
	}
	return d.do(ctx)
}

// changing says that the job's next generation comes by its policy: without it a change would leave tasks that have
// lost what they had, and the policy would begin again behind it.
func (r jobRecord) changing() bool { return r.Next != nil && r.Next.ByPolicy }

// waitChanged waits until the next generation of a job has come that its policy has begun.
func (a *Agent) waitChanged(ctx context.Context, rec jobRecord) error {
	for {
		now, err := a.jobRecord(ctx, rec.Name)
		if err != nil {
			return a.failure(rec.Name, err)
		}
		if !now.changing() {
			return nil
		}
		if !sleep(ctx, pollEvery) {
			return api.Unavailable("agent job show "+rec.Name+" says whom it waits for; if the device of one of these is lost, too: agent job stop "+rec.Name+", then apply the file with --replace for each lost one",
				"job %s is %s, since %s; nothing was applied", rec.Name, now.State, now.Next.Because)
		}
	}
}

// applyUpgrade stores an upgrade and waits until the tasks have taken it.
func (a *Agent) applyUpgrade(ctx context.Context, out api.Applied, old, rec jobRecord) (api.Applied, error) {
	if err := a.putJob(ctx, rec, &old); err != nil {
		return out, err
	}
	out.Generation, out.Upgrade = uint32(rec.Generation), rec.Upgrade.Number
	away, err := a.waitUpgraded(ctx, rec)
	out.Warnings = append(out.Warnings, away...)
	return out, err
}

func upgradeTrial(r jobRecord) *trialRecord {
	if r.Upgrade == nil {
		return nil
	}
	return r.Upgrade.Trial
}

// started waits until a job runs and its sources receive, so that whoever applied it can publish.
func (a *Agent) started(ctx context.Context, out api.Applied, rec jobRecord) (api.Applied, error) {
	if err := a.waitStarted(ctx, rec); err != nil {
		return out, err
	}
	out.Warnings = append(out.Warnings, a.waitReceiving(ctx, rec)...)
	return out, nil
}

// samePlan compares plans but for what concerns the beginning of their generation.
func samePlan(a, b *job.Physical) bool {
	return string(mustJSON(running(a))) == string(mustJSON(running(b)))
}

func running(p *job.Physical) job.Physical {
	q := *p
	q.Generation, q.Warnings, q.Tasks = 0, nil, slices.Clone(p.Tasks)
	for i := range q.Tasks {
		q.Tasks[i].Replaced, q.Tasks[i].HeardPos, q.Tasks[i].HeardMS = false, 0, 0 // whatever was lost was lost then
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
	return a.claimModules(ctx, rec, old)
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
	failing := false
	statuses := a.askAll(ctx, rec.Plan.Agents())
	for _, t := range rec.Plan.Tasks {
		st, ok := statuses[t.Agent]
		if !ok {
			waits = append(waits, fmt.Sprintf("agent %s does not answer", t.Agent))
			continue
		}
		for _, task := range st.Tasks {
			if task.Job == rec.Name && task.ID == string(t.ID) && task.Reason != "" {
				waits, failing = append(waits, fmt.Sprintf("task %s: %s", t.ID, task.Reason)), true
			}
		}
	}
	hint := ""
	if failing {
		hint = " (if that is a mistake in the job: apply it corrected)"
	}
	if len(waits) == 0 {
		waits = []string{"its initial checkpoint is not committed yet"}
	}
	return fmt.Errorf("job %s is stored and will start by itself, but has not yet: %s%s: %w", rec.Name, strings.Join(waits, "; "), hint, cause)
}
