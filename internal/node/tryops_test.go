package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// windowed is a job with a ready-made window; time is put into its source, config into the window.
func (f files) windowed(module, time, config string) string {
	return fmt.Sprintf(`name: lines
checkpoint: {interval: 200ms}
sources:
  text: {file: {path: %q, follow: true}, key: {json: k}%s}
operators:
  win:
    wasm: %s
    from: text
    config:
      %s
sinks:
  out: {file: {path: %q}, from: win}
`, f.in, time, module, strings.ReplaceAll(config, ", ", "\n      "), f.out)
}

// TestWhatOperatorsRefuseIsSaidBefore: plan, apply and validate say by file and line what an operator has against its
// configuration, and nothing is stored.
func TestWhatOperatorsRefuseIsSaidBefore(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	a := start(t, t.TempDir())
	wasm := wasmtest.Bytes(t, "../../examples/operators/window")
	if _, err := a.client.PushOperator(t.Context(), "window", "1", strings.NewReader(string(wasm))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "window.wasm")
	if err := os.WriteFile(path, wasm, 0o600); err != nil {
		t.Fatal(err)
	}
	a.until("the module is compiled, for which a plan does not wait long", func() (bool, string) {
		p, err := a.client.PlanJob(t.Context(), api.JobSource{File: "job.yaml", YAML: f.windowed("window@1", ", time: arrival", "size: 10s")})
		return err == nil && !strings.Contains(strings.Join(p.Warnings, " "), "be tried within"), fmt.Sprint(p.Warnings, err)
	})
	for _, c := range []struct{ time, config, want string }{
		{", time: arrival", "size: 10s, latenes: 1s", "job.yaml:11:7: operator win: config latenes: there is no such key, did you mean lateness?"},
		{", time: arrival", "kind: session, gap: soon", `job.yaml:11:7: operator win: config gap: "soon" is not a duration`},
		{"", "size: 10s", `job.yaml:10:7: operator win: config size: "10s" does not do: a window needs event time, and no source of the job has it`},
	} {
		src := api.JobSource{File: "job.yaml", YAML: f.windowed("window@1", c.time, c.config)}
		if _, err := a.client.PlanJob(t.Context(), src); !api.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("plan with %s: %v", c.config, err)
		}
		if _, err := a.client.ApplyJob(t.Context(), src, patience); !api.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("apply with %s: %v", c.config, err)
		}
		file, err := job.Parse("job.yaml", []byte(f.windowed("./window.wasm", c.time, c.config)))
		if err != nil {
			t.Fatal(err)
		}
		if err := node.TryFiles(t.Context(), file, map[string]string{"./window.wasm": path}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("validate with %s: %v", c.config, err)
		}
	}
	if ops, err := a.client.Operator(t.Context(), "window"); err != nil || len(ops) != 1 || !ops[0].Unused {
		t.Errorf("used by no job: %+v, %v", ops, err)
	}
	if jobs, err := a.client.Jobs(t.Context()); err != nil || len(jobs) != 0 {
		t.Errorf("stored: %+v, %v", jobs, err)
	}
	a.mustApply(f.windowed("window@1", ", time: arrival", "size: 10s, lateness: 1s"))
	if ops, err := a.client.Operator(t.Context(), "window"); err != nil || len(ops) != 1 || ops[0].Unused || !slices.Equal(ops[0].UsedBy, []string{"lines"}) {
		t.Errorf("used by: %+v, %v", ops, err)
	}
	if file, err := job.Parse("job.yaml", []byte(f.windowed("./window.wasm", ", time: arrival", "size: 10s"))); err != nil {
		t.Fatal(err)
	} else if err := node.TryFiles(t.Context(), file, map[string]string{"./window.wasm": path}); err != nil {
		t.Error(err)
	}
	if _, err := a.client.ApplyJob(t.Context(), api.JobSource{File: "job.yaml", YAML: f.windowed("window@1", "", "size: 10s")}, patience); !api.IsInvalid(err) {
		t.Errorf("a running job loses event time: %v", err)
	}
}

// TestFileThatIsNoModule is refused before it is sent.
func TestFileThatIsNoModule(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.wasm")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := job.Parse("job.yaml", []byte(newFiles(t).windowed("./x.wasm", "", "size: 10s")))
	if err != nil {
		t.Fatal(err)
	}
	if err := node.TryFiles(t.Context(), file, map[string]string{"./x.wasm": path}); err == nil || !strings.Contains(err.Error(), "job.yaml:7:11: operator win: ") {
		t.Errorf("%v", err)
	}
	if err := node.TryFiles(t.Context(), file, map[string]string{"./x.wasm": filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a file that is not there")
	}
}
