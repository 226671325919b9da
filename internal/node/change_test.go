package node_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// fleet is a hub and gateways that read lines from files of their own.
type fleet struct {
	*agent // the hub
	dir    string
	yaml   string
}

func newFleet(t *testing.T, operator string) *fleet {
	f := &fleet{dir: t.TempDir()}
	f.agent = startWith(t, node.Options{Data: t.TempDir(), Name: "hub", Labels: map[string]string{"role": "hub"}, NATSListen: "127.0.0.1:0"})
	f.yaml = fmt.Sprintf(`name: lines
checkpoint: {interval: 200ms}
sources:
  text: {file: {path: %q, follow: true}, key: {json: k}, on: {role: gateway}}
operators:
  total: {%s, from: text, key_by: key, on: {role: hub}}
sinks:
  out: {file: {path: %q, line: "{key} {value}"}, from: total}
`, filepath.Join(f.dir, "in-{agent}"), operator, filepath.Join(f.dir, "out"))
	return f
}

func (f *fleet) gateway(t *testing.T, name string) *agent {
	t.Helper()
	f.write(name, "")
	a := startWith(t, node.Options{Data: t.TempDir(), Name: name, Labels: map[string]string{"role": "gateway"}, NATS: "nats://" + f.at.NATS})
	f.until(name+" is known", func() (bool, string) {
		agents, err := f.client.Agents(t.Context())
		for _, known := range agents {
			if known.Name == name && known.State == "up" {
				return true, ""
			}
		}
		return false, fmt.Sprint(agents, err)
	})
	return a
}

func (f *fleet) write(name, lines string) {
	f.t.Helper()
	files{in: filepath.Join(f.dir, "in-"+name)}.write(f.t, lines)
}

// wants waits until the output has these lines, in any order, each once.
func (f *fleet) wants(lines ...string) {
	f.t.Helper()
	sort.Strings(lines)
	want := strings.Join(lines, "\n")
	f.until("the output is there", func() (bool, string) {
		b, err := os.ReadFile(filepath.Join(f.dir, "out"))
		got := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		sort.Strings(got)
		return err == nil && strings.Join(got, "\n") == want, fmt.Sprintf("%s, %v", b, err)
	})
}

// failed waits until an agent's task of the job has stopped for good, and returns why.
func (f *fleet) failed(agent string) (why string) {
	f.t.Helper()
	f.until("a task on "+agent+" has failed", func() (bool, string) {
		j, err := f.client.Job(f.t.Context(), "lines")
		for _, task := range j.Tasks {
			if task.Agent == agent && task.State == "failed" {
				why = task.Reason
			}
		}
		return why != "", fmt.Sprint(j.Tasks, err)
	})
	return why
}

func (f *fleet) replace(agents ...string) error {
	_, err := f.client.ApplyJob(f.t.Context(), api.JobSource{File: "job.yaml", YAML: f.yaml, Replace: agents}, patience)
	return err
}

// TestDeviceIsReplaced: a gateway's directory is lost. Nobody waits for it; another device takes its name
// and goes on from the replica, and the state of the others is as it was.
func TestDeviceIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "native: count")
	f.yaml = strings.Replace(f.yaml, "interval: 200ms", "interval: 200ms, detach_after: 300ms", 1)
	f.gateway(t, "g1")
	old := f.gateway(t, "g2")
	f.mustApply(f.yaml)
	f.write("g1", "{\"k\":\"a\"}\n")
	f.write("g2", "{\"k\":\"b\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`)
	f.replicated("lines")
	if err := f.replace("g2"); err == nil || !strings.Contains(err.Error(), "runs its tasks") {
		t.Fatalf("replace a device that is well: %v", err)
	}
	old.stop()
	if err := f.replace("g2"); err == nil || !strings.Contains(err.Error(), "agent g2") {
		t.Fatalf("replace a device without another one: %v", err)
	}

	again := f.gateway(t, "g2") // with a directory of its own
	if why := f.failed("g2"); !strings.Contains(why, "--replace g2") {
		t.Errorf("the new device says %q", why)
	}
	f.write("g1", "{\"k\":\"a\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`, `a {"count":2}`)
	f.replicated("lines") // without g2

	if err := f.replace("hub"); err == nil || !strings.Contains(err.Error(), "agent hub") {
		t.Fatalf("replace the hub: %v", err)
	}
	if err := f.replace("g2"); err != nil {
		t.Fatal(err)
	}
	f.write("g1", "{\"k\":\"b\"}\n")
	f.write("g2", "{\"k\":\"b\"}\n{\"k\":\"a\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`, `a {"count":2}`, `b {"count":2}`, `b {"count":3}`, `a {"count":3}`)
	f.replicated("lines")
	j, err := f.client.Job(t.Context(), "lines")
	if err != nil || j.Generation != 2 || j.State != api.JobRunning {
		t.Fatalf("%+v, %v", j, err)
	}

	// Lost again while the records of how the generation began, the aborted tries too, are still there.
	again.stop()
	f.gateway(t, "g2")
	if why := f.failed("g2"); !strings.Contains(why, "--replace g2") {
		t.Errorf("the next device says %q", why)
	}
	f.until("the hub has heard of it", func() (bool, string) {
		err := f.replace("g2")
		return err == nil, fmt.Sprint(err)
	})
	f.write("g2", "{\"k\":\"a\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`, `a {"count":2}`, `b {"count":2}`, `b {"count":3}`, `a {"count":3}`, `a {"count":4}`)
}

// TestJobChangesWithoutAGateway: a gateway that is away does not hold up a change; back, it goes on in the new
// generation, with what it had logged.
func TestJobChangesWithoutAGateway(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "native: count")
	f.yaml = strings.Replace(f.yaml, "interval: 200ms", "interval: 200ms, detach_after: 300ms", 1)
	f.gateway(t, "g1")
	away := f.gateway(t, "g2")
	f.mustApply(f.yaml)
	f.write("g1", "{\"k\":\"a\"}\n")
	f.write("g2", "{\"k\":\"b\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`)
	f.replicated("lines") // the first part of a gateway that has never replicated one would be waited for
	away.stop()
	f.write("g2", "{\"k\":\"b\"}\n")

	f.until("g2 is known to be away", func() (bool, string) {
		agents, err := f.client.Agents(t.Context())
		for _, a := range agents {
			if a.Name == "g2" && a.State != "up" {
				return true, ""
			}
		}
		return false, fmt.Sprint(agents, err)
	})
	f.yaml = strings.Replace(f.yaml, "interval: 200ms", "interval: 250ms", 1)
	done := f.mustApply(f.yaml)
	if done.Generation != 2 || !strings.Contains(strings.Join(done.Warnings, "\n"), "agent g2") {
		t.Fatalf("applied without g2: %+v", done)
	}
	f.write("g1", "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`, `a {"count":2}`, `b {"count":2}`)
	f.replicated("lines")

	startWith(t, node.Options{Data: away.dir, Name: "g2", Labels: map[string]string{"role": "gateway"}, NATS: "nats://" + f.at.NATS})
	f.write("g2", "{\"k\":\"a\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`, `a {"count":2}`, `b {"count":2}`, `b {"count":3}`, `a {"count":3}`)
	f.until("g2 takes part again", func() (bool, string) {
		j, err := f.client.Job(t.Context(), "lines")
		for _, task := range j.Tasks {
			if task.Agent == "g2" {
				return err == nil && task.Generation == 2 && task.Epoch == j.LastCompleteEpoch, fmt.Sprintf("%+v", task)
			}
		}
		return false, fmt.Sprint(j, err)
	})
}

// TestOperatorChangesWithoutAGateway: a gateway that is away when its operator changes, with a drain, has sent what no
// checkpoint has. Back, it makes that again as it was, and then goes on with the new version.
func TestOperatorChangesWithoutAGateway(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "native: count")
	for _, version := range []string{"1", "2"} {
		if _, err := f.client.PushOperator(t.Context(), "mark", version, bytes.NewReader(marking("v"+version))); err != nil {
			t.Fatal(err)
		}
	}
	f.yaml = strings.NewReplacer("interval: 200ms", "interval: 24h, detach_after: 300ms", "from: text", "from: mark",
		"operators:\n", "operators:\n  mark: {wasm: mark@1, from: text}\n",
		"sinks:\n", fmt.Sprintf("sinks:\n  near: {file: {path: %q, line: \"{value}\"}, from: mark}\n", filepath.Join(f.dir, "near-{agent}"))).Replace(f.yaml)
	away := f.gateway(t, "g1")
	f.mustApply(f.yaml)
	f.replicated("lines")
	f.write("g1", "{\"k\":\"k\"}\n")
	f.wants(`k {"count":1}`)
	away.stop()
	f.write("g1", "{\"k\":\"k\"}\n")
	f.until("g1 is known to be away", func() (bool, string) {
		agents, err := f.client.Agents(t.Context())
		return err == nil && slices.ContainsFunc(agents, func(a api.Agent) bool { return a.Name == "g1" && a.State != "up" }), fmt.Sprint(agents, err)
	})
	f.yaml = strings.NewReplacer("interval: 24h", "interval: 23h", "mark@1", "mark@2").Replace(f.yaml)
	done, err := f.client.ApplyJob(t.Context(), api.JobSource{File: "job.yaml", YAML: f.yaml, Fresh: []string{"mark"}}, patience)
	if err != nil || done.Generation != 2 {
		t.Fatalf("%+v, %v", done, err)
	}
	back := startWith(t, node.Options{Data: away.dir, Name: "g1", Labels: map[string]string{"role": "gateway"}, NATS: "nats://" + f.at.NATS})
	f.wants(`k {"count":1}`, `k {"count":2}`)
	f.write("g1", "{\"k\":\"k\"}\n")
	f.wants(`k {"count":1}`, `k {"count":2}`, `k {"count":3}`)
	near, err := os.ReadFile(filepath.Join(f.dir, "near-g1"))
	if got := strings.Fields(string(near)); err != nil || len(got) != 3 || got[0] != "v1" || got[2] != "v2" {
		t.Errorf("near the gateway came %q, %v", got, err)
	}
	back.until("nothing has failed", func() (bool, string) {
		j, err := f.client.Job(t.Context(), "lines")
		return err == nil && len(j.Tasks) == 2 && !slices.ContainsFunc(j.Tasks, func(task api.Task) bool { return task.State != api.TaskRunning || task.Restarts > 0 }), f.jobs()
	})
}

// marking is a guest that puts out one record for each call, whose value is the mark.
func marking(mark string) []byte {
	rec := string(frame.AppendRecord(nil, frame.Record{Key: []byte("k"), Value: []byte(mark)}))
	return wasmtest.NewGuest().Data(64, rec).
		Body("weir_process", wasmtest.Code(wasmtest.Call(1, 0, 64, int32(len(rec)), 1), wasmtest.OK)...).Wasm()
}

// TestCopyOfADirectory: an agent on a copy of a running agent's directory, as from a cloned card, is refused, and says
// why. The one that runs goes on, also when it comes back itself.
func TestCopyOfADirectory(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "native: count")
	g := f.gateway(t, "g1")
	f.mustApply(f.yaml)
	f.write("g1", "{\"k\":\"a\"}\n")
	f.wants(`a {"count":1}`)
	f.replicated("lines") // nothing is written while it is copied
	opt := node.Options{Data: filepath.Join(t.TempDir(), "copy"), Name: "g1", Labels: map[string]string{"role": "gateway"}, NATS: "nats://" + f.at.NATS, HTTP: "127.0.0.1:0", MQTTListen: node.Off}
	if err := os.CopyFS(opt.Data, os.DirFS(g.dir)); err != nil {
		t.Fatal(err)
	}
	err := node.Run(t.Context(), opt, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err == nil || !strings.Contains(err.Error(), `agent "g1" has run on a copy of this directory since`) {
		t.Fatalf("the copy ended with %v", err)
	}
	g.stop()
	startWith(t, node.Options{Data: g.dir, Name: "g1", Labels: opt.Labels, NATS: opt.NATS})
	f.write("g1", "{\"k\":\"a\"}\n")
	f.wants(`a {"count":1}`, `a {"count":2}`)
}

// TestGatewayLeaves: a gateway that is gone for good is taken out of the fleet and of the job.
func TestGatewayLeaves(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "native: count")
	f.yaml = strings.Replace(f.yaml, "interval: 200ms", "interval: 200ms, detach_after: 300ms", 1)
	f.gateway(t, "g1")
	gone := f.gateway(t, "g2")
	f.mustApply(f.yaml)
	f.write("g1", "{\"k\":\"a\"}\n")
	f.write("g2", "{\"k\":\"b\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`)
	if err := f.client.RemoveAgent(t.Context(), "g2"); err == nil || !strings.Contains(err.Error(), "is up") {
		t.Fatalf("remove an agent that is up: %v", err)
	}
	if err := f.client.RemoveAgent(t.Context(), "g3"); err == nil || !strings.Contains(err.Error(), "no agent g3") {
		t.Fatalf("remove an agent that is not there: %v", err)
	}
	f.replicated("lines")
	gone.stop()
	f.until("g2 is removed", func() (bool, string) {
		err := f.client.RemoveAgent(t.Context(), "g2")
		return err == nil, fmt.Sprint(err)
	})
	done := f.mustApply(f.yaml)
	if done.Generation != 2 {
		t.Fatalf("applied without g2: %+v", done)
	}
	f.write("g1", "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`, `a {"count":2}`, `b {"count":2}`)
	f.replicated("lines")
	j, err := f.client.Job(t.Context(), "lines")
	if err != nil || len(j.Tasks) != 2 {
		t.Fatalf("%+v, %v", j.Tasks, err)
	}
}

// TestRemovedGatewayIsNotWaitedFor: the hub starts again after a gateway was taken out of the fleet and before the job
// is applied without it. The job is coordinated all the same, so it can be
// drained.
func TestRemovedGatewayIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "native: count")
	f.agent.stop()
	opt := node.Options{Data: t.TempDir(), Name: "hub", Labels: map[string]string{"role": "hub"}, NATSListen: "127.0.0.1:0"}
	f.agent = startWith(t, opt)
	f.yaml = strings.Replace(f.yaml, "interval: 200ms", "interval: 200ms, detach_after: 300ms", 1)
	gone := f.gateway(t, "g2")
	f.write("g2", "{\"k\":\"a\"}\n")
	f.mustApply(f.yaml)
	f.wants(`a {"count":1}`)
	f.replicated("lines")
	gone.stop()
	f.until("g2 is removed", func() (bool, string) {
		err := f.client.RemoveAgent(t.Context(), "g2")
		return err == nil, fmt.Sprint(err)
	})
	f.agent.stop()
	f.agent = startWith(t, opt)
	f.gateway(t, "g1")
	if done := f.mustApply(f.yaml); done.Generation != 2 {
		t.Fatalf("applied without g2: %+v", done)
	}
	f.write("g1", "{\"k\":\"a\"}\n")
	f.wants(`a {"count":1}`, `a {"count":2}`)
	f.replicated("lines")
}

// TestGatewayJoins: a job that runs takes in a new gateway when it is applied again, and its state goes on.
func TestGatewayJoins(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "native: count")
	f.gateway(t, "g1")
	if done := f.mustApply(f.yaml); done.Generation != 1 {
		t.Fatalf("generation %d", done.Generation)
	}
	f.write("g1", "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`)

	f.gateway(t, "g2")
	if done := f.mustApply(f.yaml); done.Generation != 2 || done.Unchanged {
		t.Fatalf("applied again: %+v", done)
	}
	f.write("g1", "{\"k\":\"a\"}\n")
	f.write("g2", "{\"k\":\"b\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`, `a {"count":2}`, `b {"count":2}`)
	f.replicated("lines")
}

// TestOperatorStartsAnew: an operator whose module changes is refused unless it may start anew, which it then
// does once and not at every restart.
func TestOperatorStartsAnew(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	dir := t.TempDir()
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\",\"v\":5}\n{\"k\":\"a\",\"v\":5}\n")
	f.wants(a, a1, `2 a {"count":2}`)

	sum := strings.Replace(f.job(true, ""), "native: count", "native: sum, config: {field: v}", 1)
	apply := func(fresh ...string) error {
		_, err := a.client.ApplyJob(t.Context(), api.JobSource{File: "job.yaml", YAML: sum, Fresh: fresh}, patience)
		return err
	}
	if err := apply(); err == nil || !strings.Contains(err.Error(), "--fresh total") {
		t.Fatalf("another operator: %v", err)
	}
	if err := apply("totals"); err == nil || !strings.Contains(err.Error(), "no operator totals in job lines") {
		t.Fatalf("an operator that is not there: %v", err)
	}
	if err := apply("total"); err != nil {
		t.Fatal(err)
	}
	f.write(t, "{\"k\":\"a\",\"v\":3}\n")
	f.wants(a, a1, `2 a {"count":2}`, `3 a {"sum":3,"count":1}`)
	a.replicated("lines")
	a.stop()
	a = start(t, dir)
	f.write(t, "{\"k\":\"a\",\"v\":4}\n")
	f.wants(a, a1, `2 a {"count":2}`, `3 a {"sum":3,"count":1}`, `4 a {"sum":7,"count":2}`)

	// The file without --fresh is the job that runs.
	done, err := a.apply(sum)
	if err != nil || !done.Unchanged {
		t.Fatalf("the same again: %+v, %v", done, err)
	}
}
