package node_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/wasmops"
)

// planned is what the plan of a job file says of applying it.
func (a *agent) planned(src api.JobSource) api.Plan {
	a.t.Helper()
	src.File = "job.yaml"
	p, err := a.client.PlanJob(a.t.Context(), src)
	if err != nil {
		a.t.Fatal(err)
	}
	return p
}

// TestPlanSaysWhatApplyRefuses: for the same file and choices the plan has the error that applying them gives, with its
// status and hint; else it says what that does. It changes nothing.
func TestPlanSaysWhatApplyRefuses(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	a := start(t, t.TempDir())
	refused := func(what string, src api.JobSource, want string) {
		t.Helper()
		r := a.planned(src).Refused
		src.File = "job.yaml"
		_, err := a.client.ApplyJob(t.Context(), src, patience)
		e, ok := err.(*api.Error)
		if r == nil || !ok || r.Status != e.Status || r.Message != e.Message || r.Hint != e.Hint || !strings.Contains(r.Message, want) {
			t.Errorf("%s: planned %+v, applied %+v (%v)", what, r, e, err)
		}
	}
	does := func(src api.JobSource, want string) {
		t.Helper()
		if p := a.planned(src); p.Refused != nil || !strings.Contains(p.Does, want) {
			t.Errorf("%q, %+v instead of %q", p.Does, p.Refused, want)
		}
	}
	a.until("the agent is in touch with its control plane", func() (bool, string) {
		_, err := a.client.PlanJob(t.Context(), api.JobSource{File: "job.yaml", YAML: f.job(true, "")})
		return err == nil, fmt.Sprint(err)
	})
	two := strings.Replace(f.tells("1", ""), "sinks:", "  more: {wasm: more@7, from: tell}\nsinks:", 1)
	nobody := api.JobSource{File: "job.yaml", YAML: two}
	_, planned := a.client.PlanJob(t.Context(), nobody)
	_, applied := a.client.ApplyJob(t.Context(), nobody, patience)
	if said := fmt.Sprint(planned); said != fmt.Sprint(applied) || !strings.Contains(said, "module tell@1 is not registered") || !strings.Contains(said, "module more@7 is not registered") {
		t.Errorf("of modules that nobody has pushed: planned %v, applied %v", planned, applied)
	}
	a.push("1", telling("a"))
	a.push("2", telling("b"))
	a.push("3", telling("c").Without("weir_migrate_in"))
	refused("a shadow of nothing", api.JobSource{YAML: f.tells("1", ""), Shadow: true}, "does not run")
	refused("a restart of nothing", api.JobSource{YAML: f.tells("1", ""), Restart: true}, "does not run")
	does(api.JobSource{YAML: f.tells("1", "")}, "creates the job")
	a.mustApply(f.tells("1", ""))

	refused("variables that would be lost", api.JobSource{YAML: f.tells("3", "")}, "--fresh tell")
	if r := a.planned(api.JobSource{YAML: f.tells("3", "")}).Refused; r != nil {
		const message = `job lines is not changed: operator tell would lose what is in its variables, in 1 task (keyed state stays), and that has to be asked for with --fresh tell
tell changes from tell@1 to tell@3, which does not take over the variables of the old one`
		const hint = `lose them: agent job apply job.yaml --fresh tell
or stay as you are: put the old module back into the file
or keep them: let the new module export weir_migrate_in, as the old one exports weir_migrate_out (docs/abi.md)`
		if r.Message != message || r.Hint != hint {
			t.Errorf("it is said so:\n%s\n%s", r.Message, r.Hint)
		}
	}
	refused("an operator that is not there", api.JobSource{YAML: f.tells("3", ""), Fresh: []string{"tells"}}, "no operator tells")
	refused("a device that is well", api.JobSource{YAML: f.tells("1", ""), Replace: []string{"a"}}, "runs its tasks")
	drained := strings.Replace(f.tells("2", ""), "200ms", "300ms", 1)
	refused("a canary with a drain", api.JobSource{YAML: drained, Trial: &api.Trial{Canary: "1"}}, "must be drained")
	refused("another id", api.JobSource{YAML: strings.Replace(f.tells("1", ""), "key: ", "id: n, key: ", 1)}, "the remembered ids do not fit")
	refused("a shadow with a trial", api.JobSource{YAML: f.tells("2", ""), Shadow: true, Trial: &api.Trial{Records: 1}}, "only --canary")
	refused("a restart of another job", api.JobSource{YAML: f.tells("2", ""), Restart: true}, "must be as it runs")

	does(api.JobSource{YAML: f.tells("1", "")}, "changes nothing")
	does(api.JobSource{YAML: f.tells("2", "")}, "while it runs")
	does(api.JobSource{YAML: f.tells("3", ""), Fresh: []string{"tell"}}, "while it runs")
	does(api.JobSource{YAML: f.tells("3", ""), Shadow: true}, "new version of tell run in the shadow")
	does(api.JobSource{YAML: drained}, "drains the job, since more than versions of operators changes")
	does(api.JobSource{YAML: f.tells("1", ""), Restart: true}, "go back to the newest checkpoint")
	file := strings.Replace(f.tells("1", ""), "tell@1", "./new.wasm", 1)
	unsent := api.JobSource{YAML: file, Modules: map[string]string{"./new.wasm": wasmops.Digest([]byte("new"))}}
	does(unsent, "while it runs")
	if p := a.planned(unsent); len(p.Warnings) == 0 || !strings.Contains(p.Text, "refused without --fresh tell") {
		t.Errorf("of a module that was not sent: %q", p.Warnings)
	}
	if j, err := a.client.Job(t.Context(), "lines"); err != nil || j.Generation != 1 || j.Upgrade != nil || j.Shadow != nil || j.State != api.JobRunning {
		t.Errorf("after all that the job is %+v, %v", j, err)
	}
}
