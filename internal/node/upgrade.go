package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/dataflow/native"
	"github.com/weir-stream/weir/internal/api"
)

// A job of which only operators change, by their modules, configuration, limits or policy, is upgraded while it
// runs: the job's record names the new versions under a number, every agent tells its tasks, and each task puts
// an entry into its log (dataflow/upgrade.go). The record is what is decided: agents that were away, and tasks
// that start anew, are told by it.

// maxUpgrades of one generation; the modules of all of them are kept, since parts and logs may need them. The
// next change drains the job.
const maxUpgrades = 32

// upgradeRecord is the newest upgrade of a generation.
type upgradeRecord struct {
	Number uint64               `json:"number"`
	Ops    []dataflow.OpVersion `json:"ops"` // of all operators of the job
	// Used are the digests of all modules of the generation's upgrades, the first one's not.
	Used []string `json:"used,omitempty"`
	// Trial is there while the new versions have not proved themselves.
	Trial *trialRecord `json:"trial,omitempty"`
	// Last is how the newest trial ended.
	Last *trialOutcome `json:"last,omitempty"`
}

// trialRecord is an upgrade on trial: what it changes, where, what proves it, and what to go back to.
type trialRecord struct {
	Changed   []string `json:"changed"`          // names of operators
	Agents    []string `json:"agents,omitempty"` // whose tasks have it; nil: all
	Records   uint64   `json:"records"`
	TimeMS    int64    `json:"time_ms"`
	Failures  uint64   `json:"failures"` // that are tolerated beyond the rate of the versions before
	StartedMS int64    `json:"started_ms"`
	// Unproved: the versions that were there had not proved themselves, so what they failed on excuses nothing.
	Unproved bool `json:"unproved,omitempty"`
	Before   struct {
		Number  uint64               `json:"number"`
		Ops     []dataflow.OpVersion `json:"ops"`
		File    string               `json:"file"`
		YAML    string               `json:"yaml"`
		Modules map[string]string    `json:"modules"`
	} `json:"before"`
}

// trialOutcome is how a trial ended.
type trialOutcome struct {
	Number  uint64   `json:"number"` // of the upgrade on trial
	Changed []string `json:"changed"`
	Kept    bool     `json:"kept"`
	Reason  string   `json:"reason"`
	AtMS    int64    `json:"at_ms"`
	Canary  bool     `json:"canary"`
}

// versionsOf are the versions of a plan's operators, by name.
func versionsOf(p *job.Physical) []dataflow.OpVersion {
	byName := map[string]dataflow.OpVersion{}
	for _, t := range p.Tasks {
		for _, op := range t.Ops {
			byName[op.Name] = versionOfOp(op)
		}
	}
	var out []dataflow.OpVersion
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, byName[name])
	}
	return out
}

func versionOfOp(op job.Op) dataflow.OpVersion {
	return dataflow.OpVersion{Name: op.Name, Module: op.Module, Digest: op.Digest, Config: op.Config, Limits: limitsOf(op.Limits), Policy: dataflow.ErrorPolicy(op.OnError)}
}

func limitsOf(l job.Limits) dataflow.Limits {
	return dataflow.Limits{Memory: l.Memory, Time: time.Duration(l.TimeMS) * time.Millisecond, Output: l.Output, State: l.State, LogRate: l.LogRate, Timers: l.Timers}
}

// plan is the job's plan with the newest versions of its operators.
func (r jobRecord) plan() *job.Physical {
	if r.Upgrade == nil {
		return r.Plan
	}
	return withVersions(r.Plan, r.Upgrade.Ops)
}

func withVersions(plan *job.Physical, versions []dataflow.OpVersion) *job.Physical {
	p := *plan
	p.Tasks = slices.Clone(p.Tasks)
	for i := range p.Tasks {
		ops := slices.Clone(p.Tasks[i].Ops)
		for j := range ops {
			for _, v := range versions {
				if v.Name == ops[j].Name {
					ops[j].Module, ops[j].Digest, ops[j].Config, ops[j].OnError = v.Module, v.Digest, v.Config, job.OnError(v.Policy)
					ops[j].Limits = job.Limits{Memory: v.Limits.Memory, TimeMS: v.Limits.Time.Milliseconds(), Output: v.Limits.Output, State: v.Limits.State, LogRate: v.Limits.LogRate, Timers: v.Limits.Timers}
				}
			}
		}
		p.Tasks[i].Ops = ops
	}
	return &p
}

// digests are those of all modules that the job's tasks may need.
func (r jobRecord) digests() []string {
	seen := map[string]bool{}
	for _, t := range r.Plan.Tasks {
		for _, op := range t.Ops {
			seen[op.Digest] = true
		}
	}
	if u := r.Upgrade; u != nil {
		for _, d := range u.Used {
			seen[d] = true
		}
	}
	if s := r.Shadow; s != nil {
		for _, v := range s.Ops {
			seen[v.Digest] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// upgradeFor is what an agent's tasks are to have; number 0: what the generation began with.
func (r jobRecord) upgradeFor(agent string) dataflow.Upgrade {
	u := r.Upgrade
	switch {
	case u == nil:
		return dataflow.Upgrade{}
	case u.Trial != nil && u.Trial.Agents != nil && !slices.Contains(u.Trial.Agents, agent):
		return dataflow.Upgrade{Number: u.Trial.Before.Number, Ops: u.Trial.Before.Ops}
	}
	return dataflow.Upgrade{Number: u.Number, Ops: u.Ops, Trial: u.Trial != nil}
}

// onlyOperators compares plans: nil if nothing but versions of operators differs, and the names of the operators that do.
func onlyOperators(was, is *job.Physical) (changed []string, ok bool) {
	old := versionsOf(was)
	for _, v := range versionsOf(is) {
		i := slices.IndexFunc(old, func(o dataflow.OpVersion) bool { return o.Name == v.Name })
		if i < 0 || string(mustJSON(old[i])) != string(mustJSON(v)) {
			changed = append(changed, v.Name)
		}
	}
	blank := func(p *job.Physical) string {
		q := running(p)
		for i := range q.Tasks {
			for j := range q.Tasks[i].Ops {
				op := &q.Tasks[i].Ops[j]
				op.Module, op.Digest, op.Config, op.OnError, op.Limits = "", "", nil, "", job.Limits{}
			}
		}
		return string(mustJSON(q))
	}
	return changed, blank(was) == blank(is)
}

// whyDrained says why changed operators cannot be upgraded while the job runs; empty: they can. Each task takes an
// upgrade at a place of its own, so what one new version sends may reach an old version of another, and the
// other way round: two that feed each other change with a drain.
func whyDrained(p *job.Physical, changed []string) string {
	if len(changed) < 2 {
		return ""
	}
	in := map[abs.TaskID][]string{}
	for _, t := range p.Tasks {
		for _, op := range t.Ops {
			if slices.Contains(changed, op.Name) {
				in[t.ID] = append(in[t.ID], op.Name)
			}
		}
	}
	next := map[abs.TaskID][]abs.TaskID{}
	for _, c := range p.Channels {
		next[c.From] = append(next[c.From], c.To)
	}
	for _, t := range p.Tasks {
		for seen, todo := map[abs.TaskID]bool{}, next[t.ID]; len(in[t.ID]) > 0 && len(todo) > 0; todo = todo[1:] {
			if seen[todo[0]] {
				continue
			}
			seen[todo[0]] = true
			todo = append(todo, next[todo[0]]...)
			for _, other := range in[todo[0]] {
				for _, own := range in[t.ID] {
					if own != other {
						return fmt.Sprintf("operators %s and %s both change, and records go from one to the other between tasks", own, other)
					}
				}
			}
		}
	}
	return ""
}

// upgrade changes the operators of a running job; false with the reason if that takes a drain.
func (a *Agent) upgrade(ctx context.Context, old jobRecord, p *job.Physical, src api.JobSource, modules map[string]string) (*jobRecord, string, error) {
	was := old.plan()
	changed, only := onlyOperators(was, p)
	for _, name := range src.Fresh {
		if !slices.Contains(changed, name) {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	switch why := whyDrained(p, changed); {
	case !only:
		return nil, "more than versions of operators changes", nil
	case len(src.Replace) > 0:
		return nil, "a device is replaced", nil
	case why != "":
		return nil, why, nil
	case !old.live():
		return nil, "the job does not run", nil
	case old.State != jobRunning:
		return nil, "it drains already", nil
	case old.Upgrade != nil && old.Upgrade.Number >= maxUpgrades:
		return nil, fmt.Sprintf("the job has been upgraded %d times since it was drained", old.Upgrade.Number), nil
	}
	rec := old
	rec.Shadow = nil
	u := upgradeRecord{Number: 1, Ops: versionsOf(p)}
	if old.Upgrade != nil {
		u.Number, u.Used, u.Last = old.Upgrade.Number+1, slices.Clone(old.Upgrade.Used), old.Upgrade.Last
	}
	for i := range u.Ops {
		v := &u.Ops[i]
		if old.Upgrade != nil {
			for _, o := range old.Upgrade.Ops {
				if o.Name == v.Name {
					v.Anew = o.Anew
				}
			}
		}
		if slices.Contains(src.Fresh, v.Name) {
			v.Anew = u.Number
		}
		if !slices.Contains(u.Used, v.Digest) {
			u.Used = append(u.Used, v.Digest)
		}
	}
	trial, err := a.trialOf(ctx, old, p, changed, src)
	if err != nil {
		return nil, "", err
	}
	u.Trial = trial
	rec.Upgrade, rec.File, rec.YAML, rec.Modules = &u, src.File, src.YAML, modules
	rec.Revision, rec.AppliedMS = old.Revision+1, a.now()
	return &rec, "", nil
}

// trialOf is how an upgrade is to prove itself.
func (a *Agent) trialOf(ctx context.Context, old jobRecord, p *job.Physical, changed []string, src api.JobSource) (*trialRecord, error) {
	tr := &trialRecord{Changed: slices.Clone(changed), StartedMS: a.now(), TimeMS: defaultTrialTime.Milliseconds()}
	if t := src.Trial; t != nil {
		if t.Off {
			return nil, nil
		}
		if t.TimeMS < 0 || t.TimeMS > maxTrialTime.Milliseconds() {
			return nil, api.Invalid("", "a trial of %d ms: not between 0 and %s", t.TimeMS, maxTrialTime)
		}
		tr.Records, tr.Failures = t.Records, t.Failures
		if t.TimeMS > 0 {
			tr.TimeMS = t.TimeMS
		}
		if t.Canary != "" {
			agents, err := a.canaries(ctx, p, changed, t.Canary)
			if err != nil {
				return nil, err
			}
			tr.Agents = agents
			if tr.Records == 0 {
				tr.Records = defaultTrialRecords
			}
		}
	}
	tr.Before.Ops, tr.Before.File, tr.Before.YAML, tr.Before.Modules = versionsOf(old.Plan), old.File, old.YAML, old.Modules
	switch u := old.Upgrade; {
	case u == nil:
	case u.Trial == nil:
		tr.Before.Number, tr.Before.Ops = u.Number, u.Ops
	case tr.Agents != nil:
		return nil, api.Conflict("wait for its end (agent job show), or end it with agent job promote or agent job rollback", "an upgrade of job %s is on trial", old.Name)
	default:
		tr.Before, tr.Unproved = u.Trial.Before, true // what has proved itself
		for _, op := range u.Trial.Changed {          // and would go back, too
			if !slices.Contains(tr.Changed, op) {
				tr.Changed = append(tr.Changed, op)
			}
		}
	}
	return tr, nil
}

// What proves a new version, unless it is said, and the longest trial.
const (
	defaultTrialTime    = 30 * time.Second
	maxTrialTime        = 10_000 * time.Hour
	defaultTrialRecords = 100 // of a canary
)

// migrates says whether the variables of one module come over to another.
func (a *Agent) migrates(ctx context.Context, from, to string) (bool, error) {
	for _, d := range []string{from, to} {
		if strings.HasPrefix(d, native.Prefix) {
			return false, nil
		}
		if err := a.fetchModule(ctx, d); err != nil {
			return false, err
		}
	}
	out, err := a.hooks(from)
	if err != nil {
		return false, err
	}
	in, err := a.hooks(to)
	return out[0] && in[1], err
}

// markMigrating marks operators that change and carry their variables over, as if they were asked for by name, but for those
// of modules that are not here yet.
func (a *Agent) markMigrating(ctx context.Context, was, is *job.Physical, but ...string) error {
	var names []string
	old := versionsOf(was)
	for _, v := range versionsOf(is) {
		for _, o := range old {
			if o.Name != v.Name || o.Digest == v.Digest && maps.Equal(o.Config, v.Config) || slices.Contains(but, v.Digest) {
				continue
			}
			ok, err := a.migrates(ctx, o.Digest, v.Digest)
			if err != nil {
				return controlPlaneAway(err)
			}
			if ok {
				names = append(names, v.Name)
			}
		}
	}
	is.Refresh(names)
	return nil
}

// waitUpgraded waits until the tasks that can be reached have taken an upgrade. What has not been, is told.
func (a *Agent) waitUpgraded(ctx context.Context, rec jobRecord) ([]string, error) {
	for {
		var waits, refused, away []string
		statuses := a.askAll(ctx, rec.Plan.Agents())
		for _, t := range rec.Plan.Tasks {
			want := rec.upgradeFor(t.Agent)
			if want.Number != rec.Upgrade.Number {
				continue
			}
			st, there := statuses[t.Agent]
			if !there {
				away = append(away, fmt.Sprintf("agent %s is not in reach; its task %s takes the new version when it is back", t.Agent, t.ID))
				continue
			}
			task := taskOf(st, rec, t)
			switch up := task.Upgrade; {
			case up == nil || up.Wanted < want.Number || up.Number < want.Number && up.Refused == "":
				why := "it has not taken it yet"
				if up != nil && up.Waits != "" {
					why = up.Waits
				} else if task.Reason != "" {
					why = task.Reason
				}
				waits = append(waits, fmt.Sprintf("task %s: %s", t.ID, why))
			case up.Refused != "" && up.Number <= want.Number:
				refused = append(refused, fmt.Sprintf("task %s refuses: %s", t.ID, up.Refused))
			}
		}
		now := a.hostedJob(rec.Name)
		switch {
		case len(refused) > 0:
			return away, fmt.Errorf("job %s is not upgraded: %s", rec.Name, strings.Join(refused, "; "))
		case now != nil && now.record().rolledBack(rec):
			return away, fmt.Errorf("job %s is not upgraded: %s", rec.Name, now.record().Upgrade.Last.Reason)
		case len(waits) == 0:
			return away, nil
		}
		if !sleep(ctx, pollEvery) {
			return away, fmt.Errorf("the upgrade of job %s is decided and goes on by itself, but is not everywhere yet: %s: %w", rec.Name, strings.Join(waits, "; "), ctx.Err())
		}
	}
}

// rolledBack says whether the record is one that took another's upgrade back.
func (r jobRecord) rolledBack(up jobRecord) bool {
	return r.Generation == up.Generation && r.Upgrade != nil && r.Upgrade.Last != nil && r.Upgrade.Last.Number == up.Upgrade.Number && !r.Upgrade.Last.Kept
}

// want tells the runner what its task is to have, from the job's record.
func (r *runner) want(rec jobRecord) {
	r.wantShadow(rec)
	u := rec.upgradeFor(r.a.name)
	r.mu.Lock()
	news := u.Number > r.wanted.Number
	if u.Number >= r.wanted.Number {
		r.wanted = u
	}
	if r.ready.Number == u.Number {
		r.ready = u // a trial is over
		if r.running != nil {
			r.running.Upgrade(u)
		}
	}
	r.mu.Unlock()
	if news {
		r.a.background(func() { r.prepareUpgrade(u) })
	}
}

// prepareUpgrade brings what an upgrade needs to this agent, and then tells the task. It tries until it
// succeeds, or the upgrade is refused, or another one is wanted.
func (r *runner) prepareUpgrade(u dataflow.Upgrade) {
	wait := minBackoff
	for {
		err := r.provide(u)
		var guest *dataflow.GuestError
		r.mu.Lock()
		current := r.wanted.Number == u.Number
		switch {
		case !current:
		case err == nil:
			r.ready, r.upgradeWaits = r.wanted, ""
			if r.running != nil {
				r.running.Upgrade(r.wanted)
			}
		case errors.As(err, &guest) || errors.Is(err, errUntrusted):
			r.refused, r.upgradeWaits = refusal{u.Number, err.Error()}, ""
		default:
			r.upgradeWaits = err.Error()
		}
		done := !current || err == nil || r.refused.number == u.Number
		r.mu.Unlock()
		if err != nil && current {
			r.log.Warn("upgrade cannot be taken", "upgrade", u.Number, "given_up", done, "error", err)
		}
		if done {
			return
		}
		select {
		case <-r.done:
			return
		default:
		}
		if !sleep(r.a.life, wait) {
			return
		}
		wait = min(2*wait, maxBackoff)
	}
}

// refusal is an upgrade that the task was never told of.
type refusal struct {
	number uint64
	reason string
}

// provide fetches and compiles the modules of an upgrade, and tries whether new instances would start.
func (r *runner) provide(u dataflow.Upgrade) error {
	for _, op := range r.task.Ops {
		i := slices.IndexFunc(u.Ops, func(v dataflow.OpVersion) bool { return v.Name == op.Name })
		if i < 0 {
			continue
		}
		if err := r.try(op, u.Ops[i]); err != nil {
			return err
		}
	}
	return nil
}

// try fetches and compiles the module of a version, and tries whether an instance would start.
func (r *runner) try(op job.Op, v dataflow.OpVersion) error {
	if err := r.a.fetchModule(r.a.life, v.Digest); err != nil {
		return err
	}
	spec := r.operatorSpec(op)
	spec.Module, spec.Digest, spec.Config, spec.Limits, spec.Anew = v.Module, v.Digest, v.Config, v.Limits, v.Anew
	made, err := r.makers().New(r.a.life, spec, nil)
	if err != nil {
		return fmt.Errorf("operator %s, version %s: %w", v.Name, v.Module, err)
	}
	return made.Close()
}

// upgradeStatus is where the task is with its upgrades; nil: there was none. The caller holds mu.
func (r *runner) upgradeStatus(s *dataflow.Status) *api.TaskUpgrade {
	if r.wanted.Number == 0 && (s == nil || s.Upgraded.Refused == "") { // the plan's versions can be refused, too
		return nil
	}
	out := &api.TaskUpgrade{Wanted: r.wanted.Number, Waits: r.upgradeWaits}
	if s != nil {
		u := s.Upgraded
		if out.Number = u.Number; u.Number >= r.wanted.Number { // else it has refused another one
			out.Refused = u.Refused
		}
		out.Records, out.Failed, out.RecordsBefore, out.FailedBefore = u.Since.Records, u.Since.Failed, u.Before.Records, u.Before.Failed
		for _, v := range u.Ops {
			out.Operators = append(out.Operators, api.OperatorVersion{Name: v.Name, Module: v.Module, Digest: v.Digest})
		}
	}
	if r.refused.number > out.Number && r.refused.number == r.wanted.Number {
		out.Refused = r.refused.reason
	}
	return out
}
