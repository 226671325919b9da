package node_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// telling is a guest that makes one record of each batch: its letter and how many records it has counted, one
// digit, in a variable that it migrates.
func telling(letter string) *wasmtest.Guest {
	const counter, record = 1024, 2048
	rec := frame.AppendRecord(nil, frame.Record{Key: []byte("k"), Value: []byte(letter + "?")})
	digit := int32(record + len(rec) - 1)
	load, store, add := []byte{0x28, 2, 0}, []byte{0x36, 2, 0}, []byte{0x6a}
	g := wasmtest.NewGuest().Data(record, string(rec))
	g.Body("weir_process", wasmtest.Code(
		wasmtest.I32(counter), wasmtest.I32(counter), load, []byte{0x20, 3}, add, store,
		wasmtest.I32(digit), wasmtest.I32(counter), load, wasmtest.I32('0'), add, []byte{0x3a, 0, 0},
		wasmtest.Call(1, 0, record, int32(len(rec)), 1), wasmtest.OK)...)
	g.Func("weir_migrate_out", ":I", wasmtest.I64(counter<<32|4)...)
	g.Func("weir_migrate_in", "ii:i", wasmtest.Code(wasmtest.I32(counter), []byte{0x20, 0}, load, store, wasmtest.OK)...)
	return g
}

func (a *agent) push(version string, g *wasmtest.Guest) {
	a.t.Helper()
	if _, err := a.client.PushOperator(a.t.Context(), "tell", version, bytes.NewReader(g.Wasm())); err != nil {
		a.t.Fatal(err)
	}
}

func (f files) tells(version, more string) string {
	return fmt.Sprintf(`name: lines
checkpoint: {interval: 200ms}
sources:
  text: {file: {path: %q, follow: true}, key: {const: k}}
operators:
  tell: {wasm: tell@%s, from: text%s}
sinks:
  out: {file: {path: %q, line: "{number} {value}"}, from: tell}
`, f.in, version, more, f.out)
}

func (a *agent) upgrade(yaml string, trial *api.Trial, fresh ...string) (api.Applied, error) {
	return a.client.ApplyJob(a.t.Context(), api.JobSource{File: "job.yaml", YAML: yaml, Trial: trial, Fresh: fresh}, patience)
}

// upgraded waits until the job's upgrade is in a state, and returns it.
func (a *agent) upgraded(state string) (u api.Upgrade) {
	a.t.Helper()
	a.until("the upgrade is "+state, func() (bool, string) {
		j, err := a.client.Job(a.t.Context(), "lines")
		if j.Upgrade != nil {
			u = *j.Upgrade
		}
		return u.State == state, fmt.Sprintf("%+v, %v", j.Upgrade, err)
	})
	return u
}

// TestUpgradeWhileTheJobRuns: nothing is drained, variables migrate, and restarts from before and after change
// nothing.
func TestUpgradeWhileTheJobRuns(t *testing.T) {
	t.Parallel()
	f, dir := newFiles(t), t.TempDir()
	a := start(t, dir)
	a.push("1", telling("a"))
	a.push("2", telling("b"))
	a.push("3", telling("c").Without("weir_migrate_in"))
	a.mustApply(f.tells("1", ""))
	f.write(t, "x\n")
	f.wants(a, "1 a1")
	done, err := a.upgrade(f.tells("2", ""), &api.Trial{TimeMS: 1})
	if err != nil || done.Upgrade != 1 || done.Generation != 1 || done.Drained != "" {
		t.Fatalf("%+v, %v", done, err)
	}
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 b2")
	a.stop()
	a = start(t, dir)
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 b2", "3 b3")
	if u := a.upgraded(api.UpgradeDone); u.Number != 1 || len(u.Operators) != 1 || u.Operators[0] != "tell" {
		t.Errorf("%+v", u)
	}
	a.replicated("lines")
	a.stop()
	a = start(t, dir)
	if again, err := a.upgrade(f.tells("2", ""), nil); err != nil || !again.Unchanged {
		t.Fatalf("the same again: %+v, %v", again, err)
	}
	if _, err := a.upgrade(f.tells("3", ""), nil); err == nil || !strings.Contains(err.Error(), "--fresh tell") {
		t.Fatalf("variables would be lost: %v", err)
	}
	if _, err := a.upgrade(f.tells("3", ""), &api.Trial{Off: true}, "tell"); err != nil {
		t.Fatal(err)
	}
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 b2", "3 b3", "4 c1")
	if _, err := a.client.StopJob(t.Context(), "lines", patience); err != nil {
		t.Fatal(err)
	}
	done, err = a.upgrade(f.tells("3", ", limits: {memory: 1MiB}"), nil) // of a stopped job, with its state
	if err != nil || done.Generation != 2 || done.Upgrade != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 b2", "3 b3", "4 c1", "5 c2")
}

// TestUpgradeIsRolledBack: by itself, when the new version does not take the variables of the old one, or fails on what the old one took; by
// hand too.
func TestUpgradeIsRolledBack(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	a := start(t, t.TempDir())
	a.push("1", telling("a"))
	a.push("broken", telling("b").Body("weir_init", wasmtest.I32(1)...))
	a.push("picky", telling("c").Body("weir_process", wasmtest.Trap...))
	a.push("4", telling("d"))
	a.push("bad", telling("e").Body("weir_migrate_in", wasmtest.I32(1)...))
	a.mustApply(f.tells("1", ""))
	f.write(t, "x\n")
	f.wants(a, "1 a1")
	if _, err := a.upgrade(f.tells("broken", ""), nil); !api.IsInvalid(err) || !strings.Contains(err.Error(), "job.yaml:6:3: operator tell: ") {
		t.Fatalf("a version that does not start: %v", err)
	}
	if j, err := a.client.Job(t.Context(), "lines"); err != nil || j.Upgrade != nil {
		t.Fatalf("after a version that does not start: %+v, %v", j.Upgrade, err)
	}
	if _, err := a.upgrade(f.tells("bad", ""), nil); err == nil || !strings.Contains(err.Error(), "is not upgraded") {
		t.Fatalf("a version that takes no variables: %v", err)
	}
	a.until("that version is rolled back", func() (bool, string) {
		j, err := a.client.Job(t.Context(), "lines")
		return j.Upgrade != nil && j.Upgrade.Number == 2, fmt.Sprintf("%+v, %v", j.Upgrade, err)
	})
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 a2")
	for _, ms := range []int64{-1, 1 << 60} {
		if _, err := a.upgrade(f.tells("4", ""), &api.Trial{TimeMS: ms}); !api.IsInvalid(err) {
			t.Errorf("a trial of %d ms: %v", ms, err)
		}
	}

	if _, err := a.upgrade(f.tells("picky", ", on_error: fail"), &api.Trial{TimeMS: 3_600_000}); err != nil {
		t.Fatal(err)
	}
	f.write(t, "x\n")
	if u := a.upgraded(api.UpgradeRolledBack); !strings.Contains(u.Reason, "1 of 1 records failed") {
		t.Errorf("%+v", u)
	}
	a.until("the record is a dead letter", func() (bool, string) {
		letters, err := a.letters("lines", 10)
		return len(letters) == 1 && strings.Contains(letters[0].Reason, "sha256:"), fmt.Sprint(letters, err)
	})
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 a2", "3 a3")
	j, err := a.client.Job(t.Context(), "lines")
	if err != nil || j.Generation != 1 || !strings.Contains(j.YAML, "tell@1") {
		t.Errorf("the job shows %s, generation %d, %v", j.YAML, j.Generation, err)
	}

	if _, err := a.upgrade(f.tells("4", ""), &api.Trial{TimeMS: 3_600_000}); err != nil {
		t.Fatal(err)
	}
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 a2", "3 a3", "4 d4")
	if u, err := a.client.EndTrial(t.Context(), "lines", false); err != nil || u.State != api.UpgradeRolledBack {
		t.Fatalf("%+v, %v", u, err)
	}
	if _, err := a.client.EndTrial(t.Context(), "lines", false); err == nil || !strings.Contains(err.Error(), "no upgrade") {
		t.Errorf("twice: %v", err)
	}
	a.until("the old version is back", func() (bool, string) {
		j, err := a.client.Job(t.Context(), "lines")
		return err == nil && j.Tasks[0].Upgrade.Number == j.Upgrade.Number, fmt.Sprintf("%+v, %v", j.Tasks, err)
	})
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 a2", "3 a3", "4 d4", "5 a5")
}

// TestUpgradeAfterOneThatWasRefused: what a task has refused says nothing of the next upgrade.
func TestUpgradeAfterOneThatWasRefused(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	a := start(t, t.TempDir())
	a.push("1", telling("a"))
	a.push("bad", telling("b").Body("weir_migrate_in", wasmtest.I32(1)...))
	a.push("3", telling("c"))
	a.mustApply(f.tells("1", ""))
	f.write(t, "x\n")
	f.wants(a, "1 a1")
	if _, err := a.upgrade(f.tells("bad", ""), &api.Trial{Off: true}); err == nil || !strings.Contains(err.Error(), "is not upgraded") {
		t.Fatalf("it is not refused: %v", err)
	}
	if _, err := a.upgrade(f.tells("3", ""), &api.Trial{TimeMS: 1}); err != nil {
		t.Fatal(err)
	}
	if u := a.upgraded(api.UpgradeDone); u.Number != 2 {
		t.Errorf("%+v", u)
	}
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 c2")
}

func (f *fleet) tells(version string) string {
	return fmt.Sprintf(`name: lines
checkpoint: {interval: 200ms}
sources:
  text: {file: {path: %q, follow: true}, key: {const: k}, on: {role: gateway}}
operators:
  tell: {wasm: tell@%s, from: text}
sinks:
  out: {file: {path: %q, line: "{value}"}, from: tell}
`, filepath.Join(f.dir, "in-{agent}"), version, filepath.Join(f.dir, "out"))
}

// TestCanary: one gateway has the new version first, and the other, which is away meanwhile, once it has proved
// itself; one that fails goes no further.
func TestCanary(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "native: count")
	dirs := map[string]string{"g1": t.TempDir(), "g2": t.TempDir()}
	up := func(name string) *agent {
		return startWith(t, node.Options{Data: dirs[name], Name: name, Labels: map[string]string{"role": "gateway", "place": name}, NATS: "nats://" + f.at.NATS})
	}
	run := map[string]*agent{}
	for name := range dirs {
		f.write(name, "")
		run[name] = up(name)
	}
	f.until("the gateways are known", func() (bool, string) {
		agents, err := f.client.Agents(t.Context())
		return len(agents) == 3, fmt.Sprint(agents, err)
	})
	yaml := func(version string) string {
		return strings.Replace(f.tells(version), filepath.Join(f.dir, "out"), filepath.Join(f.dir, "out-{agent}"), 1)
	}
	g := func(name string) files {
		return files{in: filepath.Join(f.dir, "in-"+name), out: filepath.Join(f.dir, "out-"+name)}
	}
	f.push("1", telling("a"))
	f.push("2", telling("b"))
	f.push("picky", telling("c").Body("weir_process", wasmtest.Trap...))
	f.mustApply(yaml("1"))
	for name := range dirs {
		g(name).write(t, "x\n")
		g(name).wants(f.agent, "a1")
	}

	if _, err := f.upgrade(yaml("2"), &api.Trial{Canary: "3"}); err == nil || !strings.Contains(err.Error(), "all agents") {
		t.Errorf("all are no canary: %v", err)
	}
	if _, err := f.upgrade(yaml("2"), &api.Trial{Canary: "place=g3"}); err == nil || !strings.Contains(err.Error(), "place=g3") {
		t.Errorf("nobody is no canary: %v", err)
	}
	done, err := f.upgrade(yaml("picky"), &api.Trial{Canary: "place=g2"})
	if err != nil || done.Upgrade != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	if _, err := f.upgrade(yaml("2"), nil); err == nil || !strings.Contains(err.Error(), "a canary") {
		t.Errorf("beside a canary: %v", err)
	}
	g("g1").write(t, "x\n")
	g("g1").wants(f.agent, "a1", "a2")
	g("g2").write(t, "x\n")
	f.upgraded(api.UpgradeRolledBack)
	g("g2").write(t, "x\n")
	g("g2").wants(f.agent, "a1", "a2")

	done, err = f.upgrade(yaml("2"), &api.Trial{Canary: "1", Records: 2, TimeMS: 1})
	if err != nil || done.Upgrade != 3 {
		t.Fatalf("%+v, %v", done, err)
	}
	run["g2"].stop()
	g("g1").write(t, "x\n")
	g("g1").wants(f.agent, "a1", "a2", "b3")
	if u := f.upgraded(api.UpgradeCanary); len(u.Agents) != 1 || u.Agents[0] != "g1" || u.NeedRecords != 2 {
		t.Errorf("%+v", u)
	}
	g("g1").write(t, "x\n")
	f.upgraded(api.UpgradeDone)
	g("g2").write(t, "x\n")
	run["g2"] = up("g2")
	f.until("the gateway that was away has the new version", func() (bool, string) {
		j, err := f.client.Job(t.Context(), "lines")
		for _, task := range j.Tasks {
			if task.Agent == "g2" && task.Upgrade != nil && task.Upgrade.Number == 3 {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v, %v", j.Tasks, err)
	})
	g("g2").write(t, "x\n")
	f.until("the output of g2", func() (bool, string) {
		b, err := os.ReadFile(g("g2").out)
		got := strings.Join(strings.Fields(string(b)), " ")
		// The record that waited was taken by one version or the other.
		return got == "a1 a2 a3 b4" || got == "a1 a2 b3 b4", fmt.Sprint(got, err)
	})
}

// TestUpgradeOrDrain: what cannot be changed while the job runs is changed with a drain, and apply says why.
func TestUpgradeOrDrain(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	a := start(t, t.TempDir())
	a.push("1", telling("a"))
	a.push("2", telling("b"))
	two := func(version, more string) string {
		y := f.tells(version, "")
		y = strings.Replace(y, "sinks:", fmt.Sprintf("  then: {wasm: tell@%s, from: tell, key_by: key, parallelism: 2}\nsinks:", version), 1)
		y = strings.Replace(y, f.out, f.out+"-{task}", 1)
		return strings.Replace(y, "from: tell}\n", "from: then"+more+"}\n", 1)
	}
	y := two("1", "")
	a.mustApply(y)
	done, err := a.upgrade(two("2", ""), nil)
	if err != nil || done.Upgrade != 0 || done.Generation != 2 || !strings.Contains(done.Drained, "both change") {
		t.Fatalf("%+v, %v", done, err)
	}
	if _, err := a.upgrade(two("1", ""), &api.Trial{Canary: "1"}); err == nil || !strings.Contains(err.Error(), "must be drained") {
		t.Errorf("a canary of what is drained: %v", err)
	}
	f.write(t, "x\n")
	a.until("the output is there", func() (bool, string) {
		names, err := filepath.Glob(f.out + "-*")
		var all []byte
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				return false, err.Error()
			}
			all = append(all, b...)
		}
		return string(all) == "1 b1\n", fmt.Sprintf("%q %s, %v", names, all, err)
	})
}

// TestAgentEndsDuringUpgrades: whatever the moment, an upgrade that was decided is taken after the restart, each
// record counts once, and the versions do not go back and forth.
func TestAgentEndsDuringUpgrades(t *testing.T) {
	t.Parallel()
	f, dir := newFiles(t), t.TempDir()
	a := start(t, dir)
	for _, v := range []string{"1", "2"} {
		a.push(v, telling(v))
	}
	a.mustApply(f.tells("1", ""))
	var want []string
	record := func(version string) {
		t.Helper()
		f.write(t, "x\n")
		want = append(want, fmt.Sprintf("%d %s%c", len(want)+1, version, '0'+len(want)+1))
		f.wants(a, want...)
	}
	record("1")
	for round := range 6 {
		version := []string{"2", "1"}[round%2]
		ctx, cancel := context.WithCancel(t.Context())
		applied := make(chan struct{})
		go func() {
			defer close(applied)
			_, _ = a.client.ApplyJob(ctx, api.JobSource{File: "job.yaml", YAML: f.tells(version, ""), Trial: &api.Trial{Off: true}}, patience)
		}()
		time.Sleep(time.Duration(round*10) * time.Millisecond) // anywhere: the test holds for each moment
		a.stop()
		cancel()
		<-applied
		a = start(t, dir)
		done, err := a.upgrade(f.tells(version, ""), &api.Trial{Off: true}) // again, if it was not decided
		if err != nil || done.Generation != 1 {
			t.Fatalf("round %d: %+v, %v", round, done, err)
		}
		a.until("the version is taken", func() (bool, string) {
			j, err := a.client.Job(t.Context(), "lines")
			return err == nil && len(j.Tasks) == 1 && j.Tasks[0].Upgrade != nil && j.Tasks[0].Upgrade.Number == j.Upgrade.Number, fmt.Sprintf("%+v, %v", j.Tasks, err)
		})
		record(version)
	}
}

// TestDeadLettersAreReplayed: once, by the version that mends what the old one refused, also over a restart; what
// is refused again is another letter.
func TestDeadLettersAreReplayed(t *testing.T) {
	t.Parallel()
	f, dir := newFiles(t), t.TempDir()
	a := start(t, dir)
	a.push("picky", telling("a").Body("weir_process", wasmtest.Trap...))
	a.push("2", telling("b"))
	a.mustApply(f.tells("picky", ""))
	f.write(t, "one\ntwo\n")
	letters := func(n int) (list []api.DeadLetter) {
		a.until(fmt.Sprint(n, " dead letters"), func() (ok bool, state string) {
			var err error
			list, err = a.letters("lines", 10)
			return err == nil && len(list) == n, fmt.Sprint(list, err)
		})
		return list
	}
	replay := func(what api.Replay) api.Replayed {
		t.Helper()
		done, err := a.client.ReplayDeadLetters(t.Context(), "lines", what, patience)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	first := letters(2)[0]
	if first.Operator != "tell" || !first.Replayed.IsZero() {
		t.Fatalf("%+v", first)
	}
	if done := replay(api.Replay{IDs: []string{first.ID}}); len(done.Replayed) != 1 || len(done.Skipped) != 0 {
		t.Fatalf("the first: %+v", done)
	}
	letters(3) // refused again
	if _, err := a.upgrade(f.tells("2", ""), &api.Trial{Off: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.client.ReplayDeadLetters(t.Context(), "lines", api.Replay{Operator: "other"}, patience); err == nil || !strings.Contains(err.Error(), "no such dead letter") {
		t.Errorf("of another operator: %v", err)
	}
	if done := replay(api.Replay{Operator: "tell"}); len(done.Replayed) != 2 || len(done.Skipped) != 1 || done.Skipped[0].ID != first.ID {
		t.Fatalf("the others: %+v", done)
	}
	f.wants(a, "1 b1", "2 b2")
	a.stop()
	a = start(t, dir)
	a.until("the job runs", func() (bool, string) {
		j, err := a.client.Job(t.Context(), "lines")
		return err == nil && len(j.Tasks) == 1 && j.Tasks[0].State == api.TaskRunning, fmt.Sprintf("%+v, %v", j.Tasks, err)
	})
	if done := replay(api.Replay{}); len(done.Replayed) != 0 || len(done.Skipped) != 3 {
		t.Fatalf("all again: %+v", done)
	}
	if done := replay(api.Replay{IDs: []string{first.ID}, Again: true}); len(done.Replayed) != 1 {
		t.Fatalf("the first again: %+v", done)
	}
	f.wants(a, "1 b1", "2 b2", "3 b3")
	for _, l := range letters(3) {
		if l.Replayed.IsZero() {
			t.Errorf("not marked: %+v", l)
		}
	}
}

// TestOldModuleIsFetched: an agent that has lost its copies of modules goes on with a new version, which asks the old
// one for its variables.
func TestOldModuleIsFetched(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	a := start(t, t.TempDir())
	far := node.Options{Data: t.TempDir(), Name: "far", Labels: map[string]string{"far": "yes"}, NATS: "nats://" + a.at.NATS}
	b := startWith(t, far)
	a.push("1", telling("a"))
	a.push("2", telling("b"))
	yaml := func(version string) string {
		return strings.Replace(f.tells(version, ""), "key: {const: k}", "key: {const: k}, on: {far: yes}", 1)
	}
	a.until("the other agent is known", func() (bool, string) {
		list, err := a.client.Agents(t.Context())
		return len(list) == 2, fmt.Sprint(list, err)
	})
	a.mustApply(yaml("1"))
	f.write(t, "x\n")
	f.wants(a, "1 a1")
	if _, err := a.client.StopJob(t.Context(), "lines", patience); err != nil {
		t.Fatal(err)
	}
	b.stop()
	if err := os.RemoveAll(filepath.Join(far.Data, "blobs")); err != nil {
		t.Fatal(err)
	}
	applied := make(chan error, 1)
	go func() {
		_, err := a.upgrade(yaml("2"), nil)
		applied <- err
	}()
	startWith(t, far)
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	f.write(t, "x\n")
	f.wants(a, "1 a1", "2 b2")
}
