package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	wnats "github.com/weir-stream/weir/transport/nats"
)

const (
	// policyEvery is how often the coordinator looks whether a job is to go back by its own policy.
	policyEvery = time.Second
	// policyPatience bounds one try, for which replicas are read.
	policyPatience = 5 * time.Minute
	// policyRest is the pause after a try that failed.
	policyRest = 10 * time.Second
)

// copyTakeover is the kind of the copy that says that this directory was begun in the place of another one.
const copyTakeover = "takeover"

// lost says whether the task has stopped for good since its log or its snapshots are gone.
func (r *runner) lost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return lost(r.failure)
}

// differs says whether the task has stopped for good although it has lost nothing.
func (r *runner) differs() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var diff *dataflow.DiffError
	return errors.As(r.failure, &diff) || errors.Is(r.failure, dataflow.ErrGap)
}

// failedIn has the jobs of which a task here has stopped for good in this way, with the generation.
func (a *Agent) failedIn(way func(*runner) bool) map[string]abs.Generation {
	out := map[string]abs.Generation{}
	for _, h := range a.hosted() {
		for _, r := range h.tasks() {
			if way(r) {
				out[h.name] = r.rec.Generation
			}
		}
	}
	return out
}

// takesOver says whether the agent was started in the place of another one and has not yet a checkpoint of its
// own that counts.
func (a *Agent) takesOver() bool { return a.takeover.Load() }

// errNobody says that there is nobody whose place the agent could take.
var errNobody = errors.New("there is nothing to take the place of")

// checkReplaced refuses to take the place of an agent that nobody knows: under a mistyped name it would join as one more
// agent, which does nothing, while the lost one's tasks wait for it. An agent that runs the control plane on an empty
// directory cannot know; it says so.
func (a *Agent) checkReplaced(ctx context.Context) error {
	if !a.takesOver() {
		return nil
	}
	if joined, err := a.hasJoined(); joined || err != nil {
		return err // it was checked then
	}
	agents, err := a.directories(ctx)
	if err != nil {
		return err
	}
	_, known := agents[a.name]
	if known {
		return nil
	}
	jobs, err := a.conn.KV(wnats.Jobs).List(ctx, "")
	if err != nil {
		return err
	}
	for _, e := range jobs { // it may have been taken out of the fleet
		var rec jobRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil || rec.State != jobDeleted && len(rec.Plan.On(a.name)) > 0 {
			return nil
		}
	}
	if a.hearsAll() {
		const unknown = "begun with --replace %s: whether there was such an agent is not known, since this one runs the control plane and its directory is new; if agent job list shows no tasks on it once the others are up, the name is wrong"
		a.notices.add(fmt.Sprintf(unknown, a.name))
		a.log.Warn(fmt.Sprintf(unknown, a.name))
		return nil
	}
	names := slices.Sorted(maps.Keys(agents))
	const some = 20
	if len(names) > some {
		names = append(names[:some], fmt.Sprintf("and %d more", len(names)-some))
	}
	return errors.Join(fmt.Errorf("%w: begun with --replace %s, and neither an agent nor a job's tasks are known by that name (agents: %s); start it with the name of the lost agent, or, as a new one, with --name %s instead",
		errNobody, a.name, strings.Join(names, ", "), a.name), a.letGo())
}

// hasJoined says whether the directory has been part of a fleet.
func (a *Agent) hasJoined() (bool, error) {
	id, has, err := a.copies.Get(copyCluster, "id")
	return has && string(id) != importedCluster, err
}

// letGo lets a directory that has joined no fleet be started under another name.
func (a *Agent) letGo() error {
	if err := a.dir.SetName(""); err != nil {
		return err
	}
	return a.copies.Delete(copyTakeover, a.name)
}

// tookOver ends that, unless there are tasks of another job that have not gone on yet.
func (a *Agent) tookOver() error {
	if !a.takeover.Load() || len(a.failedIn((*runner).lost)) > 0 {
		return nil
	}
	a.takeover.Store(false)
	return a.copies.Delete(copyTakeover, a.name)
}

// sign is what was last heard of an agent; false if that is too long ago.
func (p *peers) sign(name string) (sign, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.heard[name]
	return s, time.Since(s.at) < goneAfter
}

// policy begins a way back that the job's file, or an agent that takes another one's place, asks for.
func (l *lead) policy(ctx context.Context, j *led) {
	if j.rec.State != jobRunning || j.goingBack.Load() || time.Since(j.looked) < policyEvery || time.Now().Before(j.rests) {
		return
	}
	j.looked = time.Now()
	var replace []string
	differs := false
	for _, name := range j.agents {
		s, alive := l.a.peers.sign(name)
		if !alive {
			continue
		}
		if s.Lost[j.rec.Name] == j.rec.Generation && (s.Takeover || j.rec.Plan.Recovery.Replace == job.Automatic) {
			replace = append(replace, name)
		}
		differs = differs || s.Differs[j.rec.Name] == j.rec.Generation && j.rec.Plan.Recovery.Restart == job.Automatic
	}
	if len(replace) == 0 && !differs || differs && len(replace) == 0 && l.justBack(j) {
		return
	}
	j.goingBack.Store(true)
	rec := j.rec
	l.a.background(func() {
		defer j.goingBack.Store(false)
		ctx, cancel := context.WithTimeout(ctx, policyPatience)
		defer cancel()
		if j.notBack == "" {
			l.a.log.Warn("job goes back by its policy", "job", rec.Name, "replace", replace, "restart", differs)
		}
		err := l.a.goBack(ctx, rec, replace, differs)
		if err != nil {
			j.rests = time.Now().Add(policyRest)
		}
		switch {
		case err == nil:
			j.notBack = ""
		case ctx.Err() == nil && err.Error() != j.notBack: // it is tried again and again, and said once
			j.notBack = err.Error()
			l.a.log.Error("job cannot go back by its policy", "job", rec.Name, "error", err)
		}
	})
}

// justBack says that the job's generation was begun by policy, and no checkpoint counts since: the same again
// would not help.
func (l *lead) justBack(j *led) bool {
	counting := j.coord.Status().Counting
	return j.rec.ByPolicy && (counting == nil || counting.Generation != j.rec.Generation || counting.Initial)
}

// goBack stores the next generation of a running job by its policy.
func (a *Agent) goBack(ctx context.Context, rec jobRecord, replace []string, rollback bool) error {
	next, rollback, err := a.wayBack(ctx, rec, replace, rollback)
	if err != nil {
		return err
	}
	next.ByPolicy = true
	next.Because = because(replace, rollback) + ", and so it goes back by its policy"
	if err := a.replaceJob(ctx, next, &rec, rollback); err != nil || rec.Shadow == nil {
		return err
	}
	a.log.Warn("what ran in the shadow of a job's operators has ended", "job", rec.Name, "operators", rec.Shadow.operators())
	return nil
}

// successor is the record of the next generation of a job that stays as it is.
func (r jobRecord) successor(p *job.Physical) jobRecord {
	r.Earlier = r.earlier()
	r.Plan, r.Generation, r.Revision, r.State = p, p.Generation, 1, jobRunning
	r.Base, r.Final, r.Next, r.RolledBack, r.ByPolicy, r.Because, r.Upgrade, r.Shadow = 0, 0, nil, false, false, "", nil, nil
	return r
}

// again is a plan for a generation that differs in nothing.
func again(p *job.Physical) *job.Physical {
	q := running(p)
	var out job.Physical
	if err := json.Unmarshal(mustJSON(q), &out); err != nil {
		panic(err)
	}
	out.Generation, out.Warnings = p.Generation+abs.Generation(1), p.Warnings
	return &out
}
