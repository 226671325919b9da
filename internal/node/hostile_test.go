package node_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/wasmops"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// TestHostileOperators runs every guest of the catalogue in an agent, as a job of its own, beside a job
// that counts. Each is refused, does not start, has its records given up, or does no harm; the counts
// of the neighbour are exact.
func TestHostileOperators(t *testing.T) {
	a := start(t, t.TempDir())
	neighbour := newFiles(t)
	a.mustApply(neighbour.job(true, ""))
	wants := []string{}
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	if err := os.WriteFile(in, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("guests", func(t *testing.T) {
		for i, g := range wasmtest.HostileGuests() {
			wants = append(wants, fmt.Sprintf(`%d a {"count":%d}`, i+1, i+1))
			t.Run(g.Name, func(t *testing.T) {
				t.Parallel()
				neighbour.write(t, "{\"k\":\"a\"}\n")
				own := *a
				own.t = t
				own.meets(g, fmt.Sprintf("h%d", i), in)
			})
		}
	})
	neighbour.wants(a, wants...)
	j, err := a.client.Job(t.Context(), "lines")
	if err != nil || len(j.Tasks) != 1 || j.Tasks[0].Restarts != 0 || j.DeadLetters != 0 {
		t.Errorf("the neighbour noticed: %+v, %v", j, err)
	}
}

// meets pushes a guest and runs it in a job of that name.
func (a *agent) meets(g wasmtest.Hostile, name, in string) {
	t := a.t
	var err error
	a.until("the control plane takes the guest, or it is refused", func() (bool, string) {
		_, err = a.client.PushOperator(t.Context(), name, "1", bytes.NewReader(g.Wasm))
		return err == nil || !strings.Contains(err.Error(), "NATS is not available"), fmt.Sprint(err)
	})
	if g.Ends == wasmtest.Refused {
		if err == nil || !strings.Contains(err.Error(), g.Reason) {
			t.Errorf("pushed with %v, want a refusal that says %q", err, g.Reason)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	yaml := fmt.Sprintf(`name: %s
checkpoint: {interval: 100ms, min_pause: 50ms}
sources:
  text: {file: {path: %q}, key: {const: k}}
operators:
  bad: {wasm: %s@1, from: text, limits: {memory: %d, time: %dms, state: %d}}
sinks:
  out: {file: {path: %q}, from: bad}
`, name, in, name, wasmtest.HostileLimits.Memory, wasmtest.HostileLimits.Time, wasmtest.HostileLimits.State, out)
	switch g.Ends {
	case wasmtest.Starts:
		a.doesNotStart(yaml, g)
	case wasmtest.Records:
		a.mustApply(yaml)
		a.givesUp(name, g)
	case wasmtest.Fine:
		a.mustApply(yaml)
		a.state(name, api.JobFinished)
		if b, err := os.ReadFile(out); err != nil || string(b) != "one\ntwo\n" {
			t.Errorf("output %q, %v", b, err)
		}
	}
}

// doesNotStart plans a job whose operator fails to start: that is refused, and says why. A busy agent may plan it without
// having tried the operator to the end.
func (a *agent) doesNotStart(yaml string, g wasmtest.Hostile) {
	a.t.Helper()
	a.until("the job is refused", func() (bool, string) {
		p, err := a.client.PlanJob(a.t.Context(), api.JobSource{File: "job.yaml", YAML: yaml})
		if err != nil && !strings.Contains(err.Error(), g.Reason) {
			a.t.Errorf("refused for another reason than %q: %v", g.Reason, err)
		}
		return err != nil, fmt.Sprint(p.Warnings)
	})
}

// givesUp waits until both records are dead letters and the job, all of whose input is done with, ends.
func (a *agent) givesUp(name string, g wasmtest.Hostile) {
	a.t.Helper()
	a.state(name, api.JobFinished)
	letters, err := a.letters(name, 10)
	if err != nil || len(letters) != 2 {
		a.t.Errorf("%d dead letters, %v", len(letters), err)
	}
	for i, l := range letters {
		if !strings.Contains(l.Reason, g.Reason) || !strings.Contains(l.Reason, wasmops.Digest(g.Wasm)) || l.Position == "" || string(l.Value) != []string{"one", "two"}[i] {
			a.t.Errorf("dead letter %q at %s: %q", l.Value, l.Position, l.Reason)
		}
	}
}

// TestLargerLimitIsApplied: an operator that has used up its memory gives up its records; with a larger
// limit the job goes on from the state that it had.
func TestLargerLimitIsApplied(t *testing.T) {
	// takes a page for each batch and passes it on, or traps; a gauge shows 0.5
	wasm := wasmtest.NewGuest().Import("weir", "gauge_set", "iiF:").Body("weir_process", wasmtest.Code(
		wasmtest.I32(0), wasmtest.I32(3), []byte{0x44, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f, 0x10, 2},
		wasmtest.I32(1), []byte{0x40, 0}, wasmtest.I32(-1), []byte{0x46, 0x04, 0x40, 0x00, 0x0b}, wasmtest.Pass, wasmtest.OK)...).Wasm()
	a := start(t, t.TempDir())
	if _, err := a.client.PushOperator(t.Context(), "leak", "1", bytes.NewReader(wasm)); err != nil {
		t.Fatal(err)
	}
	f := newFiles(t)
	yaml := func(memory string) string {
		return fmt.Sprintf(`name: lines
checkpoint: {interval: 200ms}
sources:
  text: {file: {path: %q, follow: true}, key: {const: k}}
operators:
  leak: {wasm: leak@1, from: text, limits: {memory: %s}}
sinks:
  out: {file: {path: %q, line: "{value}"}, from: leak}
`, f.in, memory, f.out)
	}
	a.mustApply(yaml("320KiB")) // a page more than the guest starts with
	f.write(t, "one\n")
	f.wants(a, "one")
	f.write(t, "two\n")
	a.until("a record is given up", func() (bool, string) {
		letters, err := a.letters("lines", 10)
		return len(letters) == 1 && string(letters[0].Value) == "two", fmt.Sprint(letters, err)
	})
	if done := a.mustApply(yaml("1MiB")); done.Generation != 1 || done.Upgrade != 1 {
		t.Errorf("applied %+v", done)
	}
	f.write(t, "three\n")
	f.wants(a, "one", "three")
	resp, err := http.Get("http://" + a.at.HTTP + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if want := `weir_operator_gauge{task="lines/text@a",operator="leak",gauge="out"} 0.5`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("no %s among the metrics: %v", want, err)
	}
}
