package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// replaceDevices marks what agents run that have lost what they had of it. It says whether the job's
// streamed tasks must go back to a checkpoint for that.
func (a *Agent) replaceDevices(ctx context.Context, p *job.Physical, agents []string) (rollback bool, err error) {
	for _, name := range agents {
		lost, err := a.lostTasks(ctx, name, p)
		if err != nil {
			return false, err
		}
		streamed, err := p.Replace(name, func(id abs.TaskID) bool { return lost[id] })
		if err != nil {
			return false, api.Invalid("agent job show tells where its tasks are", "%v", err)
		}
		if err := a.mustHear(ctx, name); err != nil {
			return false, err
		}
		a.noteHeard(p, name)
		rollback = rollback || streamed
	}
	return rollback, nil
}

// checkLost refuses to go back to a checkpoint while an agent that is not named has lost what it had.
func (a *Agent) checkLost(ctx context.Context, p *job.Physical, named []string) error {
	for agent, st := range a.askAll(ctx, p.Agents()) {
		for _, t := range st.Tasks {
			if t.Job == p.Job && t.Lost && abs.Generation(t.Generation)+1 == p.Generation && !slices.Contains(named, agent) {
				return api.Invalid("add --replace "+agent+", which gives up what that device alone knew, or restore its directory", "agent %s has lost what task %s had", agent, t.ID)
			}
		}
	}
	return nil
}

// because says why a generation begins that is a way back from something.
func because(replace []string, rollback bool) string {
	switch {
	case len(replace) > 0:
		return "what agent " + strings.Join(replace, " and agent ") + " had is lost"
	case rollback:
		return "replay of a task differed, or a gap could not be refilled"
	}
	return ""
}

// decideRestart lets the streamed tasks of a running job go back to the newest checkpoint that counts.
func (a *Agent) decideRestart(ctx context.Context, out api.Applied, old jobRecord, p *job.Physical, replace []string, because string, planned bool) (d decision, err error) {
	if !samePlan(old.plan(), p) {
		return d, api.Conflict("apply the file that it runs, and the changes afterwards", "job %s must be as it runs for its tasks to go back to a checkpoint", p.Job)
	}
	if planned {
		if err := a.checkLost(ctx, p, replace); err != nil {
			return d, err
		}
		base, err := a.newestCounting(ctx, old)
		if err != nil {
			return d, err
		}
		if err := a.checkReplica(ctx, jobRecord{Name: old.Name, Plan: p}, base.Epoch); err != nil {
			return d, err
		}
	}
	return decision{out, "lets the tasks that take records from others go back to the newest checkpoint that counts", func(ctx context.Context) (api.Applied, error) {
		rec, rollback, err := a.wayBack(ctx, old, replace, true)
		if err != nil {
			return out, err
		}
		rec.Because = because
		if err := a.replaceJob(ctx, rec, &old, rollback); err != nil {
			return out, err
		}
		out.Generation = uint32(rec.Generation)
		return a.started(ctx, out, rec)
	}}, nil
}

// wayBack is the record of a running job's next generation: as it is, but for devices that are replaced. If its
// tasks go back to a checkpoint, what that was before an upgrade is upgraded again.
func (a *Agent) wayBack(ctx context.Context, rec jobRecord, replace []string, rollback bool) (jobRecord, bool, error) {
	next := rec.successor(again(rec.Plan))
	next.Upgrade = rec.Upgrade
	if err := a.noteLetters(ctx, &next, rec, replace); err != nil {
		return next, false, err
	}
	streamed, err := a.replaceDevices(ctx, next.Plan, replace)
	if err != nil {
		return next, false, err
	}
	if rollback || streamed {
		return next, true, a.checkLost(ctx, next.Plan, replace)
	}
	next.Plan, next.Upgrade = again(rec.plan()), nil // with a drain, as any change
	_, err = a.replaceDevices(ctx, next.Plan, replace)
	return next, false, err
}

// lostTasks asks an agent which tasks of a job it has lost, once each of them runs or has stopped for good.
func (a *Agent) lostTasks(ctx context.Context, agent string, next *job.Physical) (map[abs.TaskID]bool, error) {
	end := time.Now().Add(touchPatience)
	for {
		st, ok := a.askAll(ctx, []string{agent})[agent]
		if !ok {
			return nil, api.Invalid("start the new device under the old one's name first", "agent %s is down", agent)
		}
		lost, failed, unsettled, some := map[abs.TaskID]bool{}, "", "", false
		for _, t := range st.Tasks {
			some = some || t.Job == next.Job
			switch {
			case t.Job != next.Job:
			case abs.Generation(t.Generation)+1 != next.Generation:
				unsettled = t.ID
			case t.Lost:
				lost[abs.TaskID(t.ID)] = true
			case t.State == stateFailed:
				failed = t.ID
			case t.State == api.TaskRestoring, t.State == api.TaskBackoff:
				unsettled = t.ID
			}
		}
		switch {
		case unsettled != "":
			if !sleep(ctx, pollEvery) {
				return nil, fmt.Errorf("task %s on agent %s has not yet found out what it has: %w", unsettled, agent, ctx.Err())
			}
		case !some && time.Now().Before(end) && sleep(ctx, pollEvery): // it may not have heard of the job yet
		case len(lost) > 0:
			return lost, nil
		case failed != "":
			return nil, api.Invalid("use --restart, which gives up nothing that sources have logged", "agent %s has the log of its tasks; task %s has stopped for another reason", agent, failed)
		default:
			return nil, api.Invalid("leave --replace out: a device that has its log loses nothing", "agent %s runs its tasks of job %s", agent, next.Job)
		}
	}
}

// replaceJob stores a job's next record. A running job is drained first, or, if its streamed tasks go back to
// a checkpoint, its generation is ended; the record comes with that, whatever becomes of the request.
func (a *Agent) replaceJob(ctx context.Context, rec jobRecord, old *jobRecord, rollback bool) (err error) {
	if len(rec.Earlier) > 0 {
		if rec.Earlier, err = a.keepEarlier(ctx, rec); err != nil {
			return a.failure(rec.Name, err)
		}
	}
	if old == nil || !old.live() {
		if err := a.checkReplica(ctx, rec, rec.Base); err != nil {
			return err
		}
		return a.putJob(ctx, rec, old)
	}
	if !rollback {
		_, err := a.changeState(ctx, rec.Name, jobStopping, &rec)
		return err
	}
	base, err := a.newestCounting(ctx, *old)
	if err != nil {
		return err
	}
	if err := a.checkReplica(ctx, rec, base.Epoch); err != nil {
		return err
	}
	_, err = a.changeState(ctx, rec.Name, jobRestarting, &rec)
	return err
}

// newestCounting is the newest checkpoint of a job that counts.
func (a *Agent) newestCounting(ctx context.Context, rec jobRecord) (best abs.EpochRecord, err error) {
	entries, err := a.conn.KV(wnats.Checkpoints).List(ctx, wnats.Key(kindEpoch, rec.Name))
	if err != nil {
		return best, a.failure(rec.Name, err)
	}
	found := false
	for _, e := range entries {
		var r abs.EpochRecord
		if err := json.Unmarshal(e.Value, &r); err != nil {
			return best, err
		}
		if r.Counts(rec.Plan.Checkpoint.Replicate) && (!found || r.Epoch > best.Epoch) {
			best, found = r, true
		}
	}
	if !found {
		return best, api.Conflict("delete the job and apply it again", "job %s has no checkpoint that counts, so its tasks cannot go back to one", rec.Name)
	}
	return best, nil
}
