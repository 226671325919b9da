package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
)

// patience bounds every wait of these tests; nothing depends on how much of it is used.
const patience = 5 * time.Minute

// agent is an agent in this process, with the embedded server and no MQTT listener.
type agent struct {
	t      testing.TB
	dir    string
	at     api.Addresses
	client *api.Client
	cancel context.CancelFunc
	done   chan error
}

func start(t testing.TB, dir string) *agent {
	return startWith(t, node.Options{Data: dir, Name: "a", NATSListen: "127.0.0.1:0"})
}

func startWith(t testing.TB, opt node.Options) *agent {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{t: t, dir: opt.Data, cancel: cancel, done: make(chan error, 1)}
	if err := os.RemoveAll(filepath.Join(opt.Data, "addresses.json")); err != nil {
		t.Fatal(err)
	}
	if opt.MQTTListen == "" {
		opt.MQTTListen = node.Off
	}
	opt.HTTP, opt.Version = "127.0.0.1:0", "test"
	go func() { a.done <- node.Run(ctx, opt, slog.New(slog.NewTextHandler(t.Output(), nil))) }()
	t.Cleanup(a.stop)
	a.again()
	return a
}

// again finds the agent at the addresses that it has said last.
func (a *agent) again() {
	a.t.Helper()
	a.until("the agent is up", func() (bool, string) {
		b, err := os.ReadFile(filepath.Join(a.dir, "addresses.json"))
		return err == nil && json.Unmarshal(b, &a.at) == nil, fmt.Sprint(err)
	})
	client, err := api.NewClient("http://" + a.at.HTTP)
	if err != nil {
		a.t.Fatal(err)
	}
	a.client = client
}

// stop ends the agent as a signal would.
func (a *agent) stop() {
	if a.cancel == nil {
		return
	}
	a.cancel()
	a.cancel = nil
	if err := <-a.done; err != nil {
		a.t.Errorf("the agent ended with: %v", err)
	}
}

func (a *agent) until(what string, f func() (ok bool, state string)) {
	a.t.Helper()
	state := ""
	for end := time.Now().Add(patience); time.Now().Before(end); {
		var ok bool
		if ok, state = f(); ok {
			return
		}
		select {
		case err := <-a.done:
			a.done <- err
			a.t.Fatalf("waiting until %s: the agent ended: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	a.t.Fatalf("not in %s: %s; last seen: %s", patience, what, state)
}

// letters are the dead letters of a job; all of its agents must answer.
func (a *agent) letters(job string, limit int) ([]api.DeadLetter, error) {
	found, err := a.client.DeadLetters(a.t.Context(), job, limit)
	if err == nil && len(found.Unanswered) > 0 {
		err = fmt.Errorf("these do not answer: %+v", found.Unanswered)
	}
	return found.Letters, err
}

func (a *agent) apply(yaml string) (api.Applied, error) {
	return a.client.ApplyJob(a.t.Context(), api.JobSource{File: "job.yaml", YAML: yaml}, patience)
}

func (a *agent) mustApply(yaml string) api.Applied {
	a.t.Helper()
	done, err := a.apply(yaml)
	if err != nil {
		a.t.Fatalf("%v%s", err, a.jobs())
	}
	return done
}

// jobs says where the jobs are, one task a line.
func (a *agent) jobs() (out string) {
	list, err := a.client.Jobs(context.Background())
	for _, known := range list {
		j, err := a.client.Job(context.Background(), known.Name)
		out += fmt.Sprintf("\n  %s is %s in generation %d, epoch %d %s %s %v", known.Name, j.State, j.Generation, j.LastCompleteEpoch, j.Reason, j.Waits, err)
		for _, t := range j.Tasks {
			out += fmt.Sprintf("\n    %s on %s: %s in generation %d, epoch %d %s", t.ID, t.Agent, t.State, t.Generation, t.Epoch, t.Reason)
		}
	}
	return fmt.Sprint(out, " ", err)
}

func (a *agent) state(job, want string) {
	a.t.Helper()
	a.until("job "+job+" is "+want, func() (bool, string) {
		j, err := a.client.Job(a.t.Context(), job)
		return err == nil && j.State == want, fmt.Sprintf("%s, %v", j.State, err)
	})
}

// reason waits until the job's first task says something, and returns it.
func (a *agent) reason(job string) string {
	a.t.Helper()
	said := ""
	a.until("a task of "+job+" says why it does not run", func() (bool, string) {
		j, err := a.client.Job(a.t.Context(), job)
		if err == nil && len(j.Tasks) > 0 {
			said = j.Tasks[0].Reason
		}
		return said != "", fmt.Sprint(err)
	})
	return said
}

// files are the input and output of the counting job.
type files struct{ in, out string }

func newFiles(t testing.TB) files {
	dir := t.TempDir()
	f := files{filepath.Join(dir, "in"), filepath.Join(dir, "out")}
	f.write(t, "")
	return f
}

func (f files) write(t testing.TB, lines string) {
	t.Helper()
	w, err := os.OpenFile(f.in, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.WriteString(lines)
	if e := w.Close(); err != nil || e != nil {
		t.Fatal(err, e)
	}
}

// job counts lines by key; extra is put into its checkpoint section.
func (f files) job(follow bool, extra string) string {
	return fmt.Sprintf(`name: lines
checkpoint: {interval: 200ms%s}
sources:
  text: {file: {path: %q, follow: %v}, key: {json: k}}
operators:
  total: {native: count, from: text}
sinks:
  out: {file: {path: %q, line: "{number} {key} {value}"}, from: total}
`, extra, f.in, follow, f.out)
}

// wants waits until the output has these lines, each once.
func (f files) wants(a *agent, lines ...string) {
	a.t.Helper()
	want := strings.Join(lines, "\n") + "\n"
	a.until("the output is there", func() (bool, string) {
		b, err := os.ReadFile(f.out)
		return string(b) == want, fmt.Sprintf("%s, %v", b, err)
	})
}

// replicated waits until a checkpoint beyond what there is now counts.
func (a *agent) replicated(job string) {
	a.t.Helper()
	if _, err := a.client.CheckpointNow(a.t.Context(), job, "", patience); err != nil {
		a.t.Fatal(err)
	}
}

const a1, b1, a2, a3 = `1 a {"count":1}`, `2 b {"count":1}`, `3 a {"count":2}`, `4 a {"count":3}`

func TestJobFinishesWithItsInput(t *testing.T) {
	f := newFiles(t)
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n{\"k\":\"a\"}\n")
	dir := t.TempDir()
	a := start(t, dir)
	a.mustApply(f.job(false, ""))
	a.state("lines", api.JobFinished)
	f.wants(a, a1, b1, a2)
	a.stop()
	a = start(t, dir)
	a.state("lines", api.JobFinished)
	f.wants(a, a1, b1, a2)
}

func TestRestartGoesOn(t *testing.T) {
	f := newFiles(t)
	dir := t.TempDir()
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	a.stop()
	f.write(t, "{\"k\":\"a\"}\n")
	a = start(t, dir)
	f.wants(a, a1, b1, a2)
}

func TestUpdateKeepsStateAndDeletionForgetsIt(t *testing.T) {
	f := newFiles(t)
	a := start(t, t.TempDir())
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	if again := a.mustApply(f.job(true, "")); !again.Unchanged || again.Generation != 1 {
		t.Errorf("the same job again: %+v", again)
	}
	if next := a.mustApply(f.job(true, ", min_pause: 100ms")); next.Unchanged || next.Generation != 2 {
		t.Errorf("a changed job: %+v", next)
	}
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, a1, b1, a2)

	if err := a.client.DeleteJob(t.Context(), "lines", false, patience); err == nil {
		t.Error("a running job was deleted")
	}
	if _, err := a.client.StopJob(t.Context(), "lines", patience); err != nil {
		t.Fatal(err)
	}
	if err := a.client.DeleteJob(t.Context(), "lines", false, patience); err != nil {
		t.Fatal(err)
	}
	if _, err := a.client.Job(t.Context(), "lines"); err == nil {
		t.Error("the deleted job is shown")
	}
	if err := os.Remove(f.out); err != nil {
		t.Fatal(err)
	}
	if anew := a.mustApply(f.job(true, "")); !anew.Created {
		t.Errorf("the job made again: %+v", anew)
	}
	f.wants(a, a1, b1, a2) // from the file's beginning, counted from nothing
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, a1, b1, a2, a3)
}

func TestStoppedJobIsExportedAndImported(t *testing.T) {
	f := newFiles(t)
	a := start(t, t.TempDir())
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	if _, err := a.client.StopJob(t.Context(), "lines", patience); err != nil {
		t.Fatal(err)
	}
	var ckpt strings.Builder
	if _, err := a.client.ExportCheckpoint(t.Context(), "lines", 0, &ckpt); err != nil {
		t.Fatal(err)
	}
	a.stop()

	dir := t.TempDir()
	whole := ckpt.String()
	for _, damaged := range []string{"", whole[:len(whole)/2], strings.Replace(whole, `"generation"`, `"generatiom"`, 1)} {
		if _, err := node.ImportCheckpoint(t.Context(), strings.NewReader(damaged), dir); err == nil {
			t.Errorf("a damaged file of %d bytes was imported", len(damaged))
		}
	}
	im, err := node.ImportCheckpoint(t.Context(), strings.NewReader(whole), dir)
	if err != nil || im.Job != "lines" || im.Tasks != 1 {
		t.Fatalf("imported %+v, %v", im, err)
	}
	if _, err := node.ImportCheckpoint(t.Context(), strings.NewReader(whole), dir); err == nil {
		t.Error("the job was imported over itself")
	}
	d := diagnose(t, dir)
	if !d.Fine() || !strings.Contains(item(t, d, "log").Detail, "imported") || !strings.Contains(item(t, d, "snapshots").Detail, "imported") {
		t.Errorf("a directory with an imported checkpoint: %+v", d)
	}
	a = start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, a1, b1, a2)
	a.stop()
	for _, name := range []string{"log", "state.db"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if d := diagnose(t, dir); item(t, d, "log").State != node.DiagnosedMissing || item(t, d, "snapshots").State != node.DiagnosedMissing {
		t.Errorf("the same, and what an agent had there since is gone: %+v", d)
	}
}

func TestLostSnapshotsComeFromTheReplica(t *testing.T) {
	f := newFiles(t)
	dir := t.TempDir()
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	a.replicated("lines")
	a.stop()
	if err := os.Remove(filepath.Join(dir, "state.db")); err != nil {
		t.Fatal(err)
	}
	f.write(t, "{\"k\":\"a\"}\n")
	a = start(t, dir)
	f.wants(a, a1, b1, a2)
}

func TestLostLogIsNoticed(t *testing.T) {
	f := newFiles(t)
	dir := t.TempDir()
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	a.replicated("lines")
	a.stop()
	if err := os.RemoveAll(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	a = start(t, dir)
	if why := a.reason("lines"); !strings.Contains(why, "the log was lost") {
		t.Errorf("the task says %q", why)
	}
	a.state("lines", api.JobFailed)

	// Nor does it go on when the new log has grown beyond where the old one was.
	other := newFiles(t)
	other.write(t, strings.Repeat("{\"k\":\"a\"}\n", 3))
	a.mustApply(strings.Replace(other.job(true, ""), "name: lines", "name: other", 1))
	other.wants(a, a1, `2 a {"count":2}`, `3 a {"count":3}`)
	for range 5 {
		a.replicated("other")
	}
	a.stop()
	a = start(t, dir)
	if why := a.reason("lines"); !strings.Contains(why, "the log was lost") {
		t.Errorf("the task says %q when the new log has grown", why)
	}
	a.state("lines", api.JobFailed)
	a.state("other", api.JobRunning)
}

// TestDamagedLogIsSetAside: the agent starts, the tasks that need the log stop, and a job that is applied
// anew runs.
func TestDamagedLogIsSetAside(t *testing.T) {
	f := newFiles(t)
	dir := t.TempDir()
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	a.stop()
	segments, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("segments of the log: %v, %v", segments, err)
	}
	b, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	b[20] ^= 4
	if err := os.WriteFile(segments[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	a = start(t, dir)
	if why := a.reason("lines"); !strings.Contains(why, "the log was lost") {
		t.Errorf("the task says %q", why)
	}
	a.state("lines", api.JobFailed)
	if status, err := a.client.Status(t.Context()); err != nil || !strings.Contains(strings.Join(status.Notices, "\n"), "log.damaged-1") {
		t.Errorf("the agent says %q, %v", status.Notices, err)
	}
	if err := a.client.DeleteJob(t.Context(), "lines", true, patience); err != nil {
		t.Fatal(err)
	}
	anew := newFiles(t)
	a.mustApply(anew.job(true, ""))
	anew.write(t, "{\"k\":\"a\"}\n")
	anew.wants(a, a1)
}
