package node_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// tellingOf is a guest like that of telling, with code that is run when the first record of a batch has a key that begins
// with "b", before it puts out its record. That code may change the letter, at letterAt.
func tellingOf(letter string, onB ...byte) *wasmtest.Guest {
	const counter, record = 1024, 2048
	rec := frame.AppendRecord(nil, frame.Record{Key: []byte("k"), Value: []byte(letter + "?")})
	digit := int32(record + len(rec) - 1)
	load, store, add, equal := []byte{0x28, 2, 0}, []byte{0x36, 2, 0}, []byte{0x6a}, []byte{0x46}
	const keyAt = 16 // of a record
	return telling(letter).Body("weir_process", wasmtest.Code(
		wasmtest.I32(counter), wasmtest.I32(counter), load, []byte{0x20, 3}, add, store,
		wasmtest.I32(digit), wasmtest.I32(counter), load, wasmtest.I32('0'), add, []byte{0x3a, 0, 0},
		wasmtest.I32(digit-1), wasmtest.I32(int32(letter[0])), []byte{0x3a, 0, 0},
		[]byte{0x20, 1, 0x2d, 0, keyAt}, wasmtest.I32('b'), equal, []byte{0x04, 0x40}, onB, []byte{0x0b},
		wasmtest.Call(1, 0, record, int32(len(rec)), 1), wasmtest.OK)...)
}

// shout makes the letter of tellingOf a B.
func shout() []byte {
	rec := frame.AppendRecord(nil, frame.Record{Key: []byte("k"), Value: []byte("a?")})
	return wasmtest.Code(wasmtest.I32(int32(2048+len(rec)-2)), wasmtest.I32('B'), []byte{0x3a, 0, 0})
}

func (f files) keyed(version, more string) string {
	return strings.Replace(f.tells(version, more), "{const: k}", "{json: k}", 1)
}

func (a *agent) applyShadow(yaml string, trial *api.Trial) (api.Applied, error) {
	return a.client.ApplyJob(a.t.Context(), api.JobSource{File: "job.yaml", YAML: yaml, Shadow: true, Trial: trial}, patience)
}

// shadow waits until what runs in the shadow of the job's one operator is as it is to be, and returns it.
func (a *agent) shadow(what string, is func(s api.TaskShadow) bool) (s api.TaskShadow) {
	a.t.Helper()
	a.until("the shadow "+what, func() (bool, string) {
		j, err := a.client.Job(a.t.Context(), "lines")
		if err != nil || len(j.Tasks) != 1 || len(j.Tasks[0].Shadows) != 1 {
			return false, fmt.Sprintf("%+v, %v", j.Tasks, err)
		}
		s = j.Tasks[0].Shadows[0]
		return is(s), fmt.Sprintf("%+v, first %+v", s, s.First)
	})
	return s
}

func (a *agent) shadowReady() {
	a.t.Helper()
	a.shadow("may begin", func(s api.TaskShadow) bool { return s.State == "waiting" || s.State == "comparing" })
}

// TestShadow: a version that differs for some keys is compared, begins with the variables of the running one, and changes
// nothing of what the job puts out, also when the agent ends meanwhile. Then it is applied, and once more dropped.
func TestShadow(t *testing.T) {
	t.Parallel()
	f, dir := newFiles(t), t.TempDir()
	a := start(t, dir)
	a.push("1", tellingOf("a"))
	a.push("2", tellingOf("a", shout()...))
	if _, err := a.applyShadow(f.keyed("2", ""), nil); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("beside no job: %v", err)
	}
	a.mustApply(f.keyed("1", ""))
	want := []string{}
	record := func(key, said string) {
		t.Helper()
		f.write(t, fmt.Sprintf("{\"k\":%q}\n", key))
		want = append(want, fmt.Sprintf("%d %s%c", len(want)+1, said, '0'+len(want)+1))
		f.wants(a, want...)
	}
	record("a", "a")

	for what, err := range map[string]error{
		"with a trial":       second(a.applyShadow(f.keyed("2", ""), &api.Trial{Records: 1})),
		"of what runs":       second(a.applyShadow(f.keyed("1", ""), nil)),
		"on no other agent":  second(a.applyShadow(f.keyed("2", ""), &api.Trial{Canary: "1"})),
		"of another job":     second(a.applyShadow(strings.Replace(f.keyed("2", ""), "{value}", "{key}", 1), nil)),
		"of what is missing": second(a.applyShadow(f.keyed("3", ""), nil)),
	} {
		if err == nil {
			t.Errorf("a shadow %s", what)
		}
	}
	done, err := a.applyShadow(f.keyed("2", ""), nil)
	if err != nil || len(done.Shadow) != 1 || done.Generation != 1 || done.Upgrade != 0 || len(done.Warnings) != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	a.shadowReady()
	record("b", "a")
	record("a", "a")
	s := a.shadow("has compared", func(s api.TaskShadow) bool { return s.Records == 2 })
	if s.Equal != 1 || s.Different != 1 || s.Failed+s.Skipped != 0 || s.Begins != 1 || !strings.Contains(s.With, "carry") || s.Module != "tell@2" || s.RunningUS <= 0 || s.ShadowUS <= 0 {
		t.Errorf("%+v", s)
	}
	if d := s.First; d == nil || d.From != 1 || d.To != 1 || d.Output != "out" || d.Key != "k" || d.Part != "value" || d.Running != "a2" || d.Shadow != "B2" || d.At.IsZero() {
		t.Errorf("%+v", d)
	}
	if again, err := a.apply(f.keyed("1", "")); err != nil || !again.Unchanged {
		t.Errorf("what runs is applied: %+v, %v", again, err)
	}
	if text := a.metrics(); !strings.Contains(text, `weir_shadow_different_total{job="lines",task="text@a",operator="tell"} 1`) {
		t.Errorf("metrics:\n%s", text)
	}
	a.replicated("lines")
	record("b", "a")

	a.stop()
	a = start(t, dir)
	a.shadowReady()
	record("b", "a")
	again := a.shadow("compares after the restart", func(s api.TaskShadow) bool { return s.Different > 0 })
	if !again.Since.After(s.Since) || again.Different != again.Records || again.First.Shadow[:1] != "B" || again.First.Running[1:] != again.First.Shadow[1:] {
		t.Errorf("%+v, first %+v", again, again.First)
	}

	u, err := a.client.EndTrial(t.Context(), "lines", true)
	if err != nil || u.Number != 1 || u.State != api.UpgradeTrial {
		t.Fatalf("promoted: %+v, %v", u, err)
	}
	record("b", "B")
	if _, err := a.applyShadow(f.keyed("1", ""), nil); err == nil || !strings.Contains(err.Error(), "on trial") {
		t.Errorf("beside a trial: %v", err)
	}
	if j, err := a.client.Job(t.Context(), "lines"); err != nil || j.Shadow != nil || len(j.Tasks[0].Shadows) != 0 {
		t.Errorf("after it was promoted: %+v, %v", j.Shadow, err)
	}
	if _, err := a.client.EndTrial(t.Context(), "lines", true); err != nil {
		t.Fatal(err)
	}
	if _, err := a.applyShadow(f.keyed("1", ""), nil); err != nil {
		t.Fatal(err)
	}
	a.shadowReady()
	record("b", "B")
	s = a.shadow("has compared the other way round", func(s api.TaskShadow) bool { return s.Records == 1 })
	if s.First == nil || s.First.Running != "B7" || s.First.Shadow != "a7" {
		t.Errorf("%+v", s.First)
	}
	if u, err := a.client.EndTrial(t.Context(), "lines", false); err != nil || u.State != api.ShadowDropped || u.Operators[0] != "tell" {
		t.Fatalf("dropped: %+v, %v", u, err)
	}
	if j, err := a.client.Job(t.Context(), "lines"); err != nil || j.Shadow != nil || len(j.Tasks[0].Shadows) != 0 {
		t.Errorf("after it was dropped: %+v, %v", j.Shadow, err)
	}
	record("b", "B")

	if _, err := a.applyShadow(f.keyed("1", ""), nil); err != nil {
		t.Fatal(err)
	}
	a.replicated("lines")
	back, err := a.client.ApplyJob(t.Context(), api.JobSource{File: "job.yaml", YAML: f.keyed("2", ""), Restart: true}, patience)
	if err != nil || !strings.Contains(strings.Join(back.Warnings, "\n"), "what ran in the shadow of its operators has ended: tell") {
		t.Fatalf("told to go back: %+v, %v", back, err)
	}
	if j, err := a.client.Job(t.Context(), "lines"); err != nil || j.Shadow != nil {
		t.Errorf("after it went back: %+v, %v", j.Shadow, err)
	}
}

func second(_ api.Applied, err error) error { return err }

func (a *agent) metrics() string {
	a.t.Helper()
	r, err := http.Get("http://" + a.at.HTTP + "/metrics")
	if err != nil {
		a.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(b)
}

// TestShadowOfWhatFails: a version that never returns is stopped and counted, and nobody waits for it; what the running
// version refuses is offered to the one in its shadow; and a real upgrade ends it.
func TestShadowOfWhatFails(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	a := start(t, t.TempDir())
	a.push("1", tellingOf("a", wasmtest.Trap...))
	a.push("loop", tellingOf("b").Body("weir_process", 0x03, 0x40, 0x0c, 0, 0x0b, 0x41, 0)) // loop br 0 end
	a.push("2", tellingOf("c").Without("weir_migrate_in"))
	a.mustApply(f.keyed("1", ""))
	if _, err := a.applyShadow(f.keyed("loop", ", limits: {time: 10ms}"), nil); err != nil {
		t.Fatal(err)
	}
	a.shadowReady()
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, "1 a1")
	s := a.shadow("was stopped", func(s api.TaskShadow) bool { return s.Failed == 1 })
	if !strings.Contains(s.Failure, "endless loop") || s.Skipped != 1 || s.Equal+s.Different+s.Records != 0 || s.State != "resting" {
		t.Errorf("%+v", s)
	}

	done, err := a.applyShadow(f.keyed("2", ""), nil)
	if err != nil || len(done.Warnings) != 1 || !strings.Contains(done.Warnings[0], "--fresh tell") {
		t.Fatalf("instead of the other: %+v, %v", done, err)
	}
	a.shadow("has begun anew", func(s api.TaskShadow) bool { return s.State == "waiting" && s.Failed == 0 })
	f.write(t, "{\"k\":\"b\"}\n")
	s = a.shadow("has taken what was refused", func(s api.TaskShadow) bool { return s.Mended == 1 })
	if s.RefusedBoth+s.Failed != 0 {
		t.Errorf("%+v", s)
	}
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, "1 a1", "2 a2")
	s = a.shadow("goes on", func(s api.TaskShadow) bool { return s.Different == 1 })
	if s.First.Running != "a2" || s.First.Shadow != "c1" || !strings.Contains(s.With, "without") {
		t.Errorf("%+v, first %+v", s, s.First)
	}
	if _, err := a.client.EndTrial(t.Context(), "lines", true); err == nil || !strings.Contains(err.Error(), "--fresh tell") {
		t.Errorf("promoted although variables are lost: %v", err)
	}
	if _, err := a.upgrade(f.keyed("2", ""), &api.Trial{Off: true}, "tell"); err != nil {
		t.Fatal(err)
	}
	if j, err := a.client.Job(t.Context(), "lines"); err != nil || j.Shadow != nil || len(j.Tasks[0].Shadows) != 0 {
		t.Errorf("after the upgrade: %+v, %v", j.Shadow, err)
	}
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, "1 a1", "2 a2", "3 c1")
}
