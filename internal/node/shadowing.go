package node

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/dataflow/native"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node/shadow"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// New versions of operators can run in the shadow of those that run: the job's record names them, every agent whose tasks
// are concerned brings the modules here, and the slots beside the operators (internal/node/shadow) do the rest. Nothing of
// it is in a log or a snapshot. The next change of the job ends it.

// shadowRecord is what runs in the shadow of a job's operators.
type shadowRecord struct {
	Number    uint64               `json:"number"` // the record's revision when it was asked for
	Ops       []dataflow.OpVersion `json:"ops"`    // of the operators that differ
	Agents    []string             `json:"agents,omitempty"`
	StartedMS int64                `json:"started_ms"`
	// What is applied if it is promoted.
	File    string            `json:"file"`
	YAML    string            `json:"yaml"`
	Modules map[string]string `json:"modules"`
}

func (s *shadowRecord) operators() (names []string) {
	for _, v := range s.Ops {
		names = append(names, v.Name)
	}
	return names
}

// shadowOf is what is to run beside an operator on an agent.
func (r jobRecord) shadowOf(agent, op string) (dataflow.OpVersion, bool) {
	s := r.Shadow
	if s == nil || s.Agents != nil && !slices.Contains(s.Agents, agent) {
		return dataflow.OpVersion{}, false
	}
	i := slices.IndexFunc(s.Ops, func(v dataflow.OpVersion) bool { return v.Name == op })
	if i < 0 {
		return dataflow.OpVersion{}, false
	}
	return s.Ops[i], true
}

// decideShadow lets the operators that a job file changes run in the shadow of those that run.
func (a *Agent) decideShadow(ctx context.Context, out api.Applied, old *jobRecord, p *job.Physical, src api.JobSource, modules map[string]string, unsent []string) (d decision, err error) {
	if old == nil || old.State != jobRunning {
		return d, api.Conflict("apply it without --shadow", "job %s does not run: there is nothing beside which a new version could", p.Job)
	}
	if t := src.Trial; len(src.Fresh) > 0 || len(src.Replace) > 0 || src.Restart || t != nil && *t != (api.Trial{Canary: t.Canary}) {
		return d, api.Invalid("leave them out: what is promoted is on trial as without them; or apply the file with them and without --shadow", "what runs in the shadow has no trial and changes nothing: of the other choices only --canary goes with --shadow")
	}
	if upgradeTrial(*old) != nil {
		return d, api.Conflict("wait for its end (agent job show), or end it with agent job promote or agent job rollback", "an upgrade of job %s is on trial", p.Job)
	}
	was := old.plan()
	changed, only := onlyOperators(was, p)
	switch {
	case !only:
		return d, api.Conflict("apply it without --shadow", "more than versions of operators changes in job %s, and only these can run in the shadow", p.Job)
	case len(changed) == 0:
		return d, api.Invalid("change the module, configuration or limits of an operator", "job %s runs these versions of its operators already", p.Job)
	}
	rec := *old
	s := &shadowRecord{StartedMS: a.now(), File: src.File, YAML: src.YAML, Modules: modules}
	for _, v := range versionsOf(p) {
		if slices.Contains(changed, v.Name) {
			s.Ops = append(s.Ops, v)
		}
	}
	if src.Trial != nil {
		var err error
		if s.Agents, err = a.canaries(ctx, p, changed, src.Trial.Canary); err != nil {
			return d, err
		}
	}
	var refused *api.Error
	switch warned, err := a.fits(ctx, was, p, src, unsent); {
	case errors.As(err, &refused) && refused.Status == http.StatusConflict:
		out.Warnings = append(out.Warnings, "what runs in the shadow cannot be promoted as it is: "+strings.ReplaceAll(refused.Message, "\n", "; "))
	case err != nil:
		return d, err
	default:
		out.Warnings = append(out.Warnings, warned...)
	}
	return decision{out, "lets a new version of " + strings.Join(changed, ", ") + " run in the shadow", func(ctx context.Context) (api.Applied, error) {
		rec.Revision = old.Revision + 1
		s.Number, rec.Shadow = rec.Revision, s
		if err := a.putJob(ctx, rec, old); err != nil {
			return out, err
		}
		out.Generation, out.Shadow = uint32(rec.Generation), s.operators()
		a.waitHeard(ctx, rec)
		return out, nil
	}}, nil
}

// endShadow ends what runs in the shadow of a job: it is applied, as if it were by the file, or dropped.
func (a *Agent) endShadow(ctx context.Context, rec jobRecord, keep bool) (api.Upgrade, error) {
	s := rec.Shadow
	if rec.State == jobDeleted {
		return api.Upgrade{}, a.failure(rec.Name, wnats.ErrNotFound)
	}
	if keep {
		if rec.State != jobRunning {
			return api.Upgrade{}, api.Conflict("apply the file", "job %s does not run", rec.Name)
		}
		done, err := a.ApplyJob(ctx, api.JobSource{File: s.File, YAML: s.YAML, Modules: s.Modules})
		if err != nil {
			return api.Upgrade{}, err
		}
		out := api.Upgrade{Number: done.Upgrade, State: api.UpgradeDone, Operators: s.operators(), Reason: done.Drained}
		if h := a.hostedJob(rec.Name); h != nil && done.Upgrade > 0 {
			if u := h.record().showUpgrade(nil); u != nil {
				out = *u
			}
		}
		return out, nil
	}
	kv, key := a.conn.KV(wnats.Jobs), wnats.Key(rec.Name)
	for {
		e, err := kv.Get(ctx, key)
		if err != nil {
			return api.Upgrade{}, a.failure(rec.Name, err)
		}
		var now jobRecord
		if err := json.Unmarshal(e.Value, &now); err != nil {
			return api.Upgrade{}, err
		}
		if now.Generation != rec.Generation || now.Shadow == nil || now.Shadow.Number != s.Number {
			return api.Upgrade{}, api.Conflict("look at it again", "job %s was changed by somebody else", rec.Name)
		}
		now.Shadow, now.Revision = nil, now.Revision+1
		_, err = kv.Update(ctx, key, mustJSON(now), e.Revision)
		if errors.Is(err, wnats.ErrConflict) {
			continue
		}
		if err != nil {
			return api.Upgrade{}, a.failure(rec.Name, err)
		}
		a.log.Info("what ran in the shadow is dropped", "job", rec.Name, "operators", strings.Join(s.operators(), ", "))
		a.waitHeard(ctx, now)
		return api.Upgrade{State: api.ShadowDropped, Operators: s.operators()}, nil
	}
}

// showShadow tells of what runs in the shadow; nil: nothing does.
func (r jobRecord) showShadow() *api.Shadow {
	if r.Shadow == nil {
		return nil
	}
	return &api.Shadow{Operators: r.Shadow.operators(), Agents: r.Shadow.Agents, Started: millis(r.Shadow.StartedMS)}
}

// beside makes the operators of a task, each with its slot for a version in the shadow.
type beside struct {
	slots  map[string]*shadow.Slot
	makers dataflow.Operators
}

// New implements [dataflow.Operators].
func (b beside) New(ctx context.Context, spec dataflow.OperatorSpec, state dataflow.StateReader) (dataflow.Operator, error) {
	op, err := b.makers.New(ctx, spec, state)
	slot := b.slots[spec.Name]
	if err != nil || slot == nil {
		return op, err
	}
	return slot.Beside(op, spec), nil
}

// newSlots makes a slot for each operator of the task.
func (r *runner) newSlots() {
	r.slots = map[string]*shadow.Slot{}
	for _, op := range r.task.Ops {
		r.slots[op.Name] = shadow.NewSlot(shadow.Options{Makers: r.makers(), Go: r.a.background, Log: r.log.With("operator", op.Name)})
	}
}

// endShadows ends what runs in the shadow of the task.
func (r *runner) endShadows() {
	for _, s := range r.slots {
		s.End()
	}
}

// wantShadow tells the slots what is to run in them, by the job's record.
func (r *runner) wantShadow(rec jobRecord) {
	number := uint64(0)
	if rec.Shadow != nil {
		number = rec.Shadow.Number
	}
	r.mu.Lock()
	news := number != r.shadow
	r.shadow = number
	r.mu.Unlock()
	if !news {
		return
	}
	r.endShadows()
	for _, op := range r.task.Ops {
		if v, ok := rec.shadowOf(r.a.name, op.Name); ok {
			r.slots[op.Name].Prepare(shadow.Wanted{Number: number, Version: v}, shadow.Preparing, "")
			r.a.background(func() { r.prepareShadow(rec, op, v) })
		}
	}
}

// prepareShadow brings a version here, and then lets it run. It tries until it succeeds, or the version does not start, or
// is wanted no more.
func (r *runner) prepareShadow(rec jobRecord, op job.Op, v dataflow.OpVersion) {
	w, wait := shadow.Wanted{Number: rec.Shadow.Number, Version: v}, minBackoff
	for {
		var err error
		if err = r.try(op, v); err == nil {
			w.With, err = r.carries(rec, v)
		}
		var guest *dataflow.GuestError
		r.mu.Lock()
		current := r.shadow == w.Number
		state := shadow.Preparing
		switch {
		case !current:
		case err == nil:
			r.slots[op.Name].Run(w)
		default:
			if errors.As(err, &guest) || errors.Is(err, errUntrusted) {
				state = shadow.Refused
			}
			r.slots[op.Name].Prepare(w, state, err.Error())
		}
		r.mu.Unlock()
		if err != nil && current {
			r.log.Warn("a version cannot run in the shadow", "operator", op.Name, "version", v.Module, "given_up", state == shadow.Refused, "error", err)
		}
		if !current || err == nil || state == shadow.Refused {
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

// carries says what of the state of the version that runs another one begins with.
func (r *runner) carries(rec jobRecord, v dataflow.OpVersion) (string, error) {
	for _, old := range versionsOf(rec.plan()) {
		if old.Name != v.Name {
			continue
		}
		if old.Digest == v.Digest && maps.Equal(old.Config, v.Config) {
			return "all state of the running version", nil
		}
		if strings.HasPrefix(v.Digest, native.Prefix) {
			return "nothing: a native operator begins anew", nil
		}
		migrates, err := r.a.migrates(r.a.life, old.Digest, v.Digest)
		if err != nil {
			return "", err
		}
		if migrates {
			return "keyed state, and variables as the modules carry them over", nil
		}
	}
	return "keyed state, without the variables of the running version", nil
}

// shadowStatus is what came of the versions in the shadow of the task.
func (r *runner) shadowStatus() (out []api.TaskShadow) {
	for _, op := range r.task.Ops {
		s, ok := r.slots[op.Name].Status()
		if !ok {
			continue
		}
		t := api.TaskShadow{
			Operator: op.Name, Module: s.Version.Module, Digest: s.Version.Digest, State: string(s.State), Reason: s.Reason, With: s.With,
			Since: s.Since.UTC(), Begun: s.Begun.UTC(), Begins: s.Begins, Records: s.Records, Equal: s.Equal, Different: s.Different,
			Failed: s.Failed, Failure: s.Failure, Skipped: s.Skipped, Behind: s.Behind, RefusedBoth: s.RefusedBoth, Mended: s.Mended,
			RunningUS: float64(s.OldPerRecord.Nanoseconds()) / 1000, ShadowUS: float64(s.NewPerRecord.Nanoseconds()) / 1000,
		}
		if d := s.First; d != nil {
			t.First = &api.ShadowDifference{
				From: d.From, To: d.To, Output: d.Output, Index: d.Index, Key: d.Key, Part: d.Part, Running: d.Old, Shadow: d.New,
			}
			if y := d.At.Year(); y >= 0 && y <= 9999 { // what can be written
				t.First.At = d.At
			}
		}
		out = append(out, t)
	}
	return out
}

// shadowed is a version in the shadow, and the task that it is of.
type shadowed struct {
	task api.Task
	api.TaskShadow
}

func shadowsOf(tasks []api.Task) (out []shadowed) {
	for _, t := range tasks {
		for _, s := range t.Shadows {
			out = append(out, shadowed{t, s})
		}
	}
	return out
}

func (s shadowed) labels() []api.Label {
	return append(taskLabels(s.task), api.Label{Name: "operator", Value: s.Operator})
}

var shadowColumns = []column[shadowed]{
	{"weir_shadow_records_total", "Records that the running version of the operator and the one in its shadow have taken, replay included.", api.Counter, func(s shadowed) float64 { return float64(s.Records) }},
	{"weir_shadow_equal_total", "Records that both versions have put out alike.", api.Counter, func(s shadowed) float64 { return float64(s.Equal) }},
	{"weir_shadow_different_total", "Records in which the versions differ, or that only one of them has put out.", api.Counter, func(s shadowed) float64 { return float64(s.Different) }},
	{"weir_shadow_failed_total", "Calls on which the version in the shadow failed, and starts.", api.Counter, func(s shadowed) float64 { return float64(s.Failed) }},
	{"weir_shadow_skipped_total", "Records that only the running version took.", api.Counter, func(s shadowed) float64 { return float64(s.Skipped) }},
	{"weir_shadow_begins_total", "How often the version in the shadow has begun, each time with the state of the running one.", api.Counter, func(s shadowed) float64 { return float64(s.Begins) }},
}
