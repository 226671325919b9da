package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
)

// decision is what applying a job file comes to. Nothing is changed before do is called.
type decision struct {
	out  api.Applied
	does string // for people, after "apply "
	do   func(context.Context) (api.Applied, error)
}

// decide finds out what applying a job file comes to, or why it is refused. For a plan it also looks at what do finds out
// before it changes anything, and does without modules that are sent only when the file is applied.
func (a *Agent) decide(ctx context.Context, src api.JobSource, p *job.Physical, old *jobRecord, modules map[string]string, planned bool) (d decision, err error) {
	if err := missingModules(p); err != nil {
		return d, err
	}
	out := api.Applied{Job: p.Job, Generation: uint32(p.Generation), Created: old == nil || old.State == jobDeleted, Warnings: append([]string{}, p.Warnings...)}
	rec := jobRecord{
		Name: p.Job, Generation: p.Generation, Revision: 1, State: jobRunning, File: src.File, YAML: src.YAML,
		Modules: modules, Plan: p, AppliedMS: a.now(),
	}
	rec.Since = rec.Generation
	var unsent []string // digests
	if planned {
		unsent = slices.DeleteFunc(slices.Sorted(maps.Values(src.Modules)), func(d string) bool { return a.fetchModule(ctx, d) == nil })
	}
	if err := a.haveModules(ctx, rec, unsent...); err != nil {
		return d, err
	}
	if src.Shadow {
		return a.decideShadow(ctx, out, old, p, src, modules, unsent)
	}
	if unknown := p.Refresh(src.Fresh); len(unknown) > 0 {
		return d, api.Invalid("name operators of the job file", "no operator %s in job %s to start anew", strings.Join(unknown, ", "), p.Job)
	}
	rollback, err := a.replaceDevices(ctx, p, src.Replace)
	if err != nil {
		return d, err
	}
	rollback = rollback || src.Restart
	if rec.Because = because(src.Replace, false); rec.Because == "" && rollback {
		rec.Because = "it was asked for with --restart"
	}
	var was jobRecord
	does := "creates the job"
	if !out.Created {
		was, does = *old, "lets the job, which does not run, go on from its final checkpoint"
		rec.Since, rec.Earlier = old.Since, old.earlier()
		if old.State == jobRunning && len(src.Fresh) == 0 && len(src.Replace) == 0 && !rollback && samePlan(old.plan(), p) {
			out.Unchanged, out.Generation = true, uint32(old.Generation)
			return decision{out, "changes nothing: the job runs as the file says", func(ctx context.Context) (api.Applied, error) {
				return a.started(ctx, out, *old)
			}}, nil
		}
		if old.State == jobRunning {
			unbegun, err := a.unbegun(ctx, *old)
			if err != nil {
				return d, err
			}
			if unbegun {
				return decision{out, "takes the place of the job as it is, which has not begun", func(ctx context.Context) (api.Applied, error) {
					if err := a.noteLettersOf(ctx, &rec, was, src.Replace, rollback); err != nil {
						return out, err
					}
					return a.applyInstead(ctx, out, rec)
				}}, nil
			}
		}
		if old.Shadow != nil {
			out.Warnings = append(out.Warnings, "what ran in the shadow of its operators has ended: "+strings.Join(old.Shadow.operators(), ", "))
		}
		if rollback && old.live() {
			return a.decideRestart(ctx, out, *old, p, src.Replace, rec.Because, planned)
		}
		warned, err := a.fits(ctx, old.plan(), p, src, unsent)
		if err != nil {
			return d, err
		}
		out.Warnings = append(out.Warnings, warned...)
		rec.Base = old.Final
		next, why, err := a.upgrade(ctx, *old, p, src, modules)
		switch {
		case err != nil:
			return d, err
		case next != nil:
			if tr := upgradeTrial(*old); tr != nil && tr.Agents != nil {
				return d, api.Conflict("wait for its end (agent job show), or end it with agent job promote or agent job rollback", "a canary of job %s runs", rec.Name)
			}
			return decision{out, "gives the job the new versions of its operators while it runs", func(ctx context.Context) (api.Applied, error) {
				return a.applyUpgrade(ctx, out, *old, *next)
			}}, nil
		case src.Trial != nil && src.Trial.Canary != "":
			return d, api.Conflict("apply it without --canary", "job %s must be drained for this change, so no agent can have it before the others: %s", p.Job, why)
		}
		if old.live() {
			out.Drained, does = why, "drains the job, since "+why+", and lets it go on from its state"
		}
	}
	if src.Restart {
		return d, api.Conflict("apply it without --restart", "job %s does not run", p.Job)
	}
	if planned && !was.live() {
		if err := a.checkReplica(ctx, rec, rec.Base); err != nil {
			return d, err
		}
	}
	return decision{out, does, func(ctx context.Context) (api.Applied, error) {
		if out.Created && old != nil {
			if err := a.deleteState(ctx, rec.Name, old.Generation); err != nil {
				return out, a.failure(rec.Name, err)
			}
		}
		if err := a.noteLettersOf(ctx, &rec, was, src.Replace, rollback); err != nil {
			return out, err
		}
		if err := a.replaceJob(ctx, rec, old, false); err != nil {
			return out, err
		}
		return a.started(ctx, out, rec)
	}}, nil
}

// noteLettersOf notes what becomes of dead letters, unless the job goes back to a checkpoint, which does it itself.
func (a *Agent) noteLettersOf(ctx context.Context, rec *jobRecord, was jobRecord, replaced []string, rollback bool) error {
	if rollback && was.live() {
		return nil
	}
	return a.noteLetters(ctx, rec, was, replaced)
}

func missingModules(p *job.Physical) error {
	var missing []string
	for _, t := range p.Tasks {
		for _, op := range t.Ops {
			text := fmt.Sprintf("operator %s: module %s is not registered", op.Name, op.Module)
			if op.Digest == "" && !slices.Contains(missing, text) {
				missing = append(missing, text)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return api.Invalid("push it with agent operator push", "%s", strings.Join(missing, "\n"))
}

// fits refuses a plan that cannot go on from the state of the one that runs. Operators whose variables come over need not
// be asked for. Warned is of those of which that is known only when their modules are sent.
func (a *Agent) fits(ctx context.Context, was, is *job.Physical, src api.JobSource, unsent []string) (warned []string, err error) {
	for _, op := range lostVariables(was, is) {
		if slices.Contains(unsent, op.is.Digest) {
			warned = append(warned, fmt.Sprintf("operator %s changes its module; unless the new one, which was not sent yet, takes the variables of the old one over, this is refused without --fresh %s", op.is.Name, op.is.Name))
			is.Refresh([]string{op.is.Name})
		}
	}
	if err := a.markMigrating(ctx, was, is, unsent...); err != nil {
		return nil, err
	}
	misfit := job.Diff(was, is, a.removed)
	if misfit == nil {
		return warned, nil
	}
	lost := lostVariables(was, is)
	var names []string
	for _, op := range lost {
		names = append(names, op.is.Name)
	}
	is.Refresh(names)
	if rest := job.Diff(was, is, a.removed); rest != nil {
		text := fmt.Sprintf("job %s cannot go on from its state: %v", is.Job, rest)
		for _, name := range was.Agents() {
			peer, _ := a.peers.get(name)
			if labels := lacks(src.YAML, was, name, peer.Labels); len(labels) > 0 && !a.removed(name) {
				text += fmt.Sprintf("\nagent %s runs tasks of the job and was started without the label %s, by which the file selects it", name, strings.Join(labels, ", "))
			}
		}
		for _, name := range names {
			text += fmt.Sprintf("\noperator %s would lose its variables; that has to be asked for with --fresh %s", name, name)
		}
		return nil, api.Conflict("delete the job to start it from nothing, or keep what must not change", "%s", text)
	}
	return nil, a.refuseLoss(is, lost, src.File)
}

// changedOp is an operator as it was and as it is to be.
type changedOp struct{ was, is job.Op }

// lostVariables are the operators, each once, that cannot go on from the variables they have.
func lostVariables(was, is *job.Physical) (lost []changedOp) {
	old := map[string]job.Op{}
	for _, t := range was.Tasks {
		for _, op := range t.Ops {
			old[op.Name] = op
		}
	}
	for _, t := range is.Tasks {
		for _, op := range t.Ops {
			o, known := old[op.Name]
			if !known || op.Fresh || op.Digest == o.Digest && maps.Equal(op.Config, o.Config) {
				continue
			}
			if !slices.ContainsFunc(lost, func(c changedOp) bool { return c.is.Name == op.Name }) {
				lost = append(lost, changedOp{o, op})
			}
		}
	}
	return lost
}

// refuseLoss says what operators would lose, and what can be done about it.
func (a *Agent) refuseLoss(p *job.Physical, lost []changedOp, file string) error {
	var names, why, back []string
	keep := ""
	for _, c := range lost {
		names = append(names, c.is.Name)
		if hooks, err := a.hooks(c.was.Digest); err != nil { // a native one: there are none
		} else if hooks[0] && keep == "" {
			keep = "\nor keep them: let the new module export weir_migrate_in, as the old one exports weir_migrate_out (docs/abi.md)"
		} else if !hooks[0] {
			keep = fmt.Sprintf("\n(they cannot be kept: %s, which runs, does not export weir_migrate_out, see docs/abi.md)", c.was.Module)
		}
		if c.was.Digest != c.is.Digest {
			text := fmt.Sprintf("%s changes from %s to %s, which does not take over the variables of the old one", c.is.Name, c.was.Module, c.is.Module)
			if c.was.Module == c.is.Module {
				text = fmt.Sprintf("the file %s of %s has changed, and does not take over the variables of the old one", c.is.Module, c.is.Name)
			}
			why, back = append(why, text), append(back, "the old module")
			continue
		}
		var keys []string
		for k := range c.is.Config {
			if v, had := c.was.Config[k]; !had || v != c.is.Config[k] {
				keys = append(keys, k)
			}
		}
		for k := range c.was.Config {
			if _, has := c.is.Config[k]; !has {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		why = append(why, fmt.Sprintf("%s changes its configuration (%s), which it reads when it starts, and does not take over its own variables then", c.is.Name, strings.Join(keys, ", ")))
		back = append(back, "the old configuration")
	}
	tasks := 0
	for _, t := range p.Tasks {
		if slices.ContainsFunc(t.Ops, func(op job.Op) bool { return slices.Contains(names, op.Name) }) {
			tasks++
		}
	}
	if file == "" {
		file = "FILE.yaml"
	}
	back = slices.Compact(slices.Sorted(slices.Values(back)))
	hint := fmt.Sprintf("lose them: agent job apply %s --fresh %s", file, strings.Join(names, " --fresh "))
	hint += "\nor stay as you are: put " + strings.Join(back, " and ") + " back into the file" + keep
	noun, their := "operator", "its"
	if len(names) > 1 {
		noun, their = "operators", "their"
	}
	in := "in 1 task"
	if tasks > 1 {
		in = fmt.Sprintf("in %d tasks", tasks)
	}
	list := strings.Join(names, " and ")
	return api.Conflict(hint, "job %s is not changed: %s %s would lose what is in %s variables, %s (keyed state stays), and that has to be asked for with --fresh %s\n%s",
		p.Job, noun, list, their, in, strings.Join(names, " --fresh "), strings.Join(why, "\n"))
}
