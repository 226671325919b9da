package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	wnats "github.com/weir-stream/weir/transport/nats"
	"github.com/weir-stream/weir/wasmops"
)

// An upgrade is on trial until it has proved itself. The coordinator asks the tasks that have it how many records
// they took and gave up since; tasks count that as part of their state, so a restart changes nothing. If more are
// given up than the versions before would have, or a task refuses the upgrade, the job's record takes it back: an
// upgrade to the old versions under the next number. A canary that has proved itself goes to all agents.

// trialEvery is how often trials are looked at.
const trialEvery = 500 * time.Millisecond

// canaries chooses the agents of a canary: a number of them, or those with a label K=V. Who was up when the plan was made
// may not have been heard of since: to look for modules and to try them takes a while.
func (a *Agent) canaries(ctx context.Context, p *job.Physical, changed []string, canary string) ([]string, error) {
	var agents []string
	for _, t := range p.Tasks {
		if slices.ContainsFunc(t.Ops, func(op job.Op) bool { return slices.Contains(changed, op.Name) }) && !slices.Contains(agents, t.Agent) {
			agents = append(agents, t.Agent)
		}
	}
	slices.Sort(agents)
	a.askSilent(ctx)
	all := len(agents)
	agents = slices.DeleteFunc(agents, func(name string) bool { return !a.peers.alive(name) })
	key, value, labelled := strings.Cut(canary, "=")
	n, err := strconv.Atoi(canary)
	switch {
	case labelled:
		agents = slices.DeleteFunc(agents, func(name string) bool {
			peer, ok := a.peers.get(name)
			return !ok || peer.Labels[key] != value
		})
	case err != nil || n < 1:
		return nil, api.Invalid("give a number of agents, or a label as K=V", "canary %q", canary)
	default:
		agents = agents[:min(n, len(agents))]
	}
	switch {
	case len(agents) == 0:
		return nil, api.Invalid("agent agents list shows who is up, with labels", "no agent that is up, runs one of the changed operators and is chosen by %q", canary)
	case len(agents) == all:
		return nil, api.Invalid("apply it without --canary: an upgrade is on trial all the same", "canary %s is all agents that run the changed operators", canary)
	}
	return agents, nil
}

// hooks says whether a module that is here gives and takes variables in an upgrade.
func (a *Agent) hooks(digest string) (h [2]bool, err error) {
	b, err := a.blobs.Get(digest)
	if err != nil {
		return h, err
	}
	m, err := wasmops.Prepare(b)
	if err != nil {
		return h, err
	}
	h[0], h[1] = m.CanMigrate()
	return h, nil
}

// evidence is what the tasks on trial tell.
type evidence struct {
	tasks, taken    int // that are concerned, and of them those that have the new version
	records, failed uint64
	allowed         uint64
	refused         string
}

// gather sums up what the tasks tell that run a changed operator on an agent of the trial.
func gather(rec jobRecord, tasks []api.Task) (e evidence) {
	u, tr := rec.Upgrade, rec.Upgrade.Trial
	var before, failedBefore uint64
	for _, t := range rec.Plan.Tasks {
		if tr.Agents != nil && !slices.Contains(tr.Agents, t.Agent) || !slices.ContainsFunc(t.Ops, func(op job.Op) bool { return slices.Contains(tr.Changed, op.Name) }) {
			continue
		}
		e.tasks++
		i := slices.IndexFunc(tasks, func(k api.Task) bool { return k.ID == string(t.ID) })
		if i < 0 || tasks[i].Upgrade == nil {
			continue
		}
		up := tasks[i].Upgrade
		if up.Wanted == u.Number && up.Refused != "" {
			e.refused = fmt.Sprintf("task %s refuses it: %s", t.ID, up.Refused)
		}
		if up.Number != u.Number {
			continue
		}
		e.taken++
		e.records, e.failed = e.records+up.Records, e.failed+up.Failed
		before, failedBefore = before+up.RecordsBefore, failedBefore+up.FailedBefore
	}
	e.allowed = tr.Failures
	if before > 0 && !tr.Unproved { // what the versions before would have failed on, rounded up
		e.allowed += (failedBefore*e.records + before - 1) / before
	}
	return e
}

// judge says whether a trial is over: kept, or taken back, with the reason. Since is how long all tasks have had
// the new version, as the coordinator saw it.
func judge(tr trialRecord, e evidence, since time.Duration) (over, kept bool, reason string) {
	switch {
	case e.refused != "":
		return true, false, e.refused
	case e.failed > e.allowed:
		return true, false, fmt.Sprintf("%d of %d records failed, at most %d would have before", e.failed, e.records, e.allowed)
	case e.taken < e.tasks || e.records < tr.Records || since < time.Duration(tr.TimeMS)*time.Millisecond:
		return false, false, ""
	}
	return true, true, fmt.Sprintf("%d of %d records failed in %s", e.failed, e.records, since.Round(time.Second))
}

// trialClock is since when the coordinator has seen a trial, and all its tasks with the new version.
type trialClock struct {
	number uint64
	seen   time.Time
	since  time.Time
}

// watchTrials looks after all trials during a term.
func (a *Agent) watchTrials(ctx context.Context) error {
	clocks := map[string]trialClock{}
	for sleep(ctx, trialEvery) {
		for _, h := range a.hosted() {
			rec := h.record()
			if rec.State != jobRunning || rec.Upgrade == nil || rec.Upgrade.Trial == nil {
				delete(clocks, rec.Name)
				continue
			}
			a.watchTrial(ctx, rec, clocks)
		}
	}
	return ctx.Err()
}

func (a *Agent) watchTrial(ctx context.Context, rec jobRecord, clocks map[string]trialClock) {
	tr := rec.Upgrade.Trial
	agents := tr.Agents
	if agents == nil {
		agents = rec.Plan.Agents()
	}
	e := gather(rec, tasksOf(rec, a.askAll(ctx, agents)))
	c := clocks[rec.Name]
	if c.number != rec.Upgrade.Number {
		c = trialClock{number: rec.Upgrade.Number, seen: time.Now()}
	}
	if e.taken == e.tasks && c.since.IsZero() {
		c.since = time.Now()
	}
	clocks[rec.Name] = c
	var since time.Duration
	if !c.since.IsZero() {
		since = time.Since(c.since)
	}
	over, kept, reason := judge(*tr, e, since)
	if !over && tr.Agents == nil && time.Since(c.seen) > 10*time.Duration(tr.TimeMS)*time.Millisecond && e.taken < e.tasks {
		over, kept, reason = true, true, "tasks that are out of reach take it when they are back"
	}
	if !over {
		return
	}
	if _, err := a.endTrial(ctx, rec.Name, rec.Generation, rec.Upgrade.Number, kept, reason); err != nil && ctx.Err() == nil {
		a.log.Warn("end of an upgrade's trial not noted: it will be tried again", "job", rec.Name, "error", err)
	}
}

// tasksOf are the tasks of a job that agents tell of.
func tasksOf(rec jobRecord, statuses map[string]api.Status) []api.Task {
	var out []api.Task
	for _, t := range rec.Plan.Tasks {
		if st, ok := statuses[t.Agent]; ok {
			out = append(out, taskOf(st, rec, t))
		}
	}
	return out
}

// endTrial keeps an upgrade, on all agents, or takes it back. It changes nothing if that trial is over already.
func (a *Agent) endTrial(ctx context.Context, name string, gen abs.Generation, number uint64, kept bool, reason string) (*jobRecord, error) {
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
		u := rec.Upgrade
		if rec.State != jobRunning || u == nil || u.Trial == nil || gen != rec.Generation || u.Number != number {
			return &rec, nil
		}
		rec = rec.afterTrial(kept, reason, a.now())
		_, err = kv.Update(ctx, key, mustJSON(rec), e.Revision)
		if errors.Is(err, wnats.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, a.failure(name, err)
		}
		attrs := []any{"job", name, "upgrade", number, "operators", strings.Join(u.Trial.Changed, ", "), "reason", reason}
		if kept {
			a.log.Info("an upgrade has proved itself", attrs...)
		} else {
			a.log.Warn("an upgrade is rolled back", attrs...)
		}
		return &rec, nil
	}
}

// afterTrial is the record once its trial has ended.
func (r jobRecord) afterTrial(kept bool, reason string, now int64) jobRecord {
	u := *r.Upgrade
	tr := u.Trial
	u.Trial = nil
	u.Last = &trialOutcome{Number: u.Number, Changed: tr.Changed, Kept: kept, Reason: reason, AtMS: now, Canary: tr.Agents != nil}
	if !kept {
		u.Number++
		u.Ops = tr.Before.Ops
		r.File, r.YAML, r.Modules = tr.Before.File, tr.Before.YAML, tr.Before.Modules
	}
	r.Upgrade, r.Revision = &u, r.Revision+1
	return r
}

// EndTrial implements [web.Jobs]: somebody does not want to wait for the trial's end, or has seen enough of a shadow.
func (a *Agent) EndTrial(ctx context.Context, name string, keep bool) (api.Upgrade, error) {
	if err := a.inTouch(ctx); err != nil {
		return api.Upgrade{}, err
	}
	rec, err := a.jobRecord(ctx, name)
	if err != nil {
		return api.Upgrade{}, a.failure(name, err)
	}
	if rec.Shadow != nil {
		return a.endShadow(ctx, *rec, keep)
	}
	if rec.Upgrade == nil || rec.Upgrade.Trial == nil {
		return api.Upgrade{}, api.Conflict("agent job show tells how the last one ended; to go back later, apply the old file", "no upgrade of job %s is on trial, and nothing runs in its shadow", name)
	}
	number := rec.Upgrade.Number
	if rec, err = a.endTrial(ctx, name, rec.Generation, number, keep, "by hand"); err != nil {
		return api.Upgrade{}, err
	}
	a.waitHeard(ctx, *rec)
	out := rec.showUpgrade(nil)
	if out == nil {
		return api.Upgrade{}, api.Conflict("look at it again", "job %s was changed by somebody else", name)
	}
	return *out, nil
}

// showUpgrade tells of the newest upgrade; nil: there was none in this generation.
func (r jobRecord) showUpgrade(tasks []api.Task) *api.Upgrade {
	u := r.Upgrade
	if u == nil {
		return nil
	}
	out := &api.Upgrade{Number: u.Number, State: api.UpgradeDone}
	if l := u.Last; l != nil {
		out.Operators, out.Reason, out.Ended = l.Changed, l.Reason, millis(l.AtMS)
		if !l.Kept {
			out.State = api.UpgradeRolledBack
		}
	}
	if tr := u.Trial; tr != nil {
		e := gather(r, tasks)
		out.State, out.Operators, out.Reason, out.Ended = api.UpgradeTrial, tr.Changed, "", time.Time{}
		out.Agents, out.Tasks, out.Taken = tr.Agents, e.tasks, e.taken
		out.Records, out.Failed, out.Allowed = e.records, e.failed, e.allowed
		out.NeedRecords, out.NeedMS, out.Started = tr.Records, float64(tr.TimeMS), millis(tr.StartedMS)
		if tr.Agents != nil {
			out.State = api.UpgradeCanary
		}
	}
	return out
}
