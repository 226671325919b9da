package node_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/api"
	processes "github.com/weir-stream/weir/internal/fleet"
	"github.com/weir-stream/weir/internal/node"
)

// site is a control plane of its own, a hub and two gateways. Checkpoints are taken when a test asks for them.
type site struct {
	*agent // it runs the server and no task
	dir    string
	yaml   string
	agents map[string]*agent
	opts   map[string]node.Options
}

// newSite counts lines by key, on the gateway where they come in and on the hub. The hub has a sink of either
// kind.
func newSite(t *testing.T, more string) *site {
	s := &site{dir: t.TempDir(), agents: map[string]*agent{}, opts: map[string]node.Options{}}
	addr, err := processes.FreeAddr() // it comes back there
	if err != nil {
		t.Fatal(err)
	}
	center := node.Options{Data: t.TempDir(), Name: "center", NATSListen: addr}
	s.agent = startWith(t, center)
	s.agents["center"], s.opts["center"] = s.agent, center
	s.yaml = fmt.Sprintf(`name: lines
checkpoint: {interval: 24h, detach_after: 500ms}
%ssources:
  text: {file: {path: %q, follow: true}, key: {json: k}, on: {role: gateway}}
operators:
  near: {native: count, from: text}
  total: {native: count, from: text, key_by: key, on: {role: hub}}
sinks:
  here: {file: {path: %q, line: "{number} {key} {value}"}, from: near}
  now: {file: {path: %q, line: "{key} {value}"}, from: total}
  held: {file: {path: %q, line: "{number} {key} {value}"}, from: total, commit: checkpoint}
`, more, s.path("in-{agent}"), s.path("near-{agent}"), s.path("now"), s.path("held"))
	s.add("hub", "hub")
	s.add("g1", "gateway")
	s.add("g2", "gateway")
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) add(name, role string) {
	s.t.Helper()
	s.write(name, "")
	s.opts[name] = node.Options{
		Data: s.t.TempDir(), Name: name, Labels: map[string]string{"role": role}, NATS: "nats://" + s.at.NATS,
	}
	s.start(name)
}

// start starts an agent, on the directory it had, and waits until it is known.
func (s *site) start(name string) {
	s.t.Helper()
	s.agents[name] = startWith(s.t, s.opts[name])
	if name == "center" {
		s.agent = s.agents[name]
	}
	s.until(name+" is known", func() (bool, string) {
		agents, err := s.client.Agents(s.t.Context())
		return slices.ContainsFunc(agents, func(a api.Agent) bool { return a.Name == name && a.State == "up" }), fmt.Sprint(agents, err)
	})
}

func (s *site) stop(name string) { s.agents[name].stop() }

// lose stops an agent and gives another one its name, on an empty directory.
func (s *site) lose(name string) {
	s.t.Helper()
	s.stop(name)
	opt := s.opts[name]
	opt.Data = s.t.TempDir()
	s.opts[name] = opt
	s.start(name)
}

// write gives a gateway records of these keys.
func (s *site) write(gateway, keys string) {
	s.t.Helper()
	lines := ""
	for _, k := range strings.Fields(keys) {
		lines += fmt.Sprintf("{\"k\":%q}\n", k)
	}
	files{in: s.path("in-" + gateway)}.write(s.t, lines)
}

// lines are those of a file, sorted.
func (s *site) lines(file string) []string {
	s.t.Helper()
	b, err := os.ReadFile(s.path(file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	slices.Sort(got)
	return got
}

// wants waits until a file has these lines: "a1" says that a was counted as 1. Numbers before it are left out.
func (s *site) wants(file, counts string) {
	s.t.Helper()
	var want []string
	for _, c := range strings.Fields(counts) {
		want = append(want, fmt.Sprintf("%s {\"count\":%s}", c[:1], c[1:]))
	}
	slices.Sort(want)
	s.until(file+" has "+counts, func() (bool, string) {
		var got []string
		for _, line := range s.lines(file) {
			if i := strings.IndexAny(line, "abc"); i >= 0 {
				got = append(got, line[i:])
			}
		}
		slices.Sort(got)
		return slices.Equal(got, want), strings.Join(got, "\n")
	})
}

// task returns a task of the job.
func (s *site) task(id string) (found api.Task) {
	s.t.Helper()
	s.until("task "+id+" is shown", func() (bool, string) {
		j, err := s.client.Job(s.t.Context(), "lines")
		for _, t := range j.Tasks {
			if t.ID == id && t.State != api.TaskUnknown {
				found = t
			}
		}
		return found.ID != "", fmt.Sprint(j.Tasks, err)
	})
	return found
}

// failed waits until a task has stopped for good, and returns why.
func (s *site) failed(id string) (why string) {
	s.t.Helper()
	s.until("task "+id+" has failed", func() (bool, string) {
		t := s.task(id)
		why = t.Reason
		return t.State == "failed", fmt.Sprint(t)
	})
	return why
}

// recovered waits until a task has come back in a way of this level.
func (s *site) recovered(id, level string) (r api.Recovery) {
	s.t.Helper()
	s.until("task "+id+" is back by "+level, func() (bool, string) {
		t := s.task(id)
		if t.Recovery != nil {
			r = *t.Recovery
		}
		return r.Level == level && r.Done, fmt.Sprint(t, r)
	})
	return r
}

func (s *site) reapply(src api.JobSource) (done api.Applied, err error) {
	s.t.Helper()
	src.File, src.YAML = "job.yaml", s.yaml
	s.until("a coordinator answers", func() (bool, string) { // a busy machine may lose it for a moment
		done, err = s.client.ApplyJob(s.t.Context(), src, patience)
		return err == nil || !strings.Contains(err.Error(), "no coordinator answers"), fmt.Sprint(err)
	})
	return done, err
}

// begin runs the job to where its newest checkpoint has a1 and b1, and a2 and b2 came after it.
func (s *site) begin() {
	s.t.Helper()
	s.mustApply(s.yaml)
	s.write("g1", "a")
	s.write("g2", "b")
	s.wants("now", "a1 b1")
	s.replicated("lines")
	s.wants("held", "a1 b1")
	s.write("g1", "a")
	s.write("g2", "b")
	s.wants("now", "a1 b1 a2 b2")
	s.wants("near-g1", "a1 a2")
	s.until("the task knows what was handed over", func() (bool, string) {
		j, err := s.client.Job(s.t.Context(), "lines")
		for _, task := range j.Tasks {
			for _, sink := range task.Sinks {
				if sink.Name == "now" {
					return err == nil && sink.Handed == 4 && sink.Held == 0, fmt.Sprintf("%+v", sink)
				}
			}
		}
		return false, fmt.Sprint(j, err)
	})
}

// TestHubIsReplaced: the agent with the streamed tasks loses its directory. Its tasks go back to the newest
// checkpoint that counts, and the gateways send again what came after it; their own state and sinks stay where
// they are.
func TestHubIsReplaced(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.begin()
	if _, err := s.reapply(api.JobSource{Replace: []string{"hub"}}); err == nil || !strings.Contains(err.Error(), "runs its tasks") {
		t.Fatalf("replace a hub that is well: %v", err)
	}
	s.lose("hub")
	if why := s.failed("total/0"); !strings.Contains(why, "--replace hub") {
		t.Errorf("the new hub says %q", why)
	}
	if _, err := s.reapply(api.JobSource{Restart: true}); err == nil {
		t.Error("rolled back without a word of what is lost")
	}
	s.write("g1", "a")
	s.wants("near-g1", "a1 a2 a3")
	done, err := s.reapply(api.JobSource{Replace: []string{"hub"}})
	if err != nil || done.Generation != 2 {
		t.Fatalf("%+v, %v", done, err)
	}
	s.wants("now", "a1 b1 a2 b2 a2 b2 a3")
	s.replicated("lines")
	s.write("g2", "a")
	s.wants("now", "a1 b1 a2 b2 a2 b2 a3 a4")
	s.replicated("lines")
	s.wants("near-g1", "a1 a2 a3")
	s.wants("near-g2", "b1 b2 a1")
	s.onceByNumber("held", "a1 b1 a2 b2 a3 a4")

	if r := s.recovered("total/0", "L4"); r.Epoch == 0 || !r.Unknown || !strings.Contains(r.Reason, "hub") {
		t.Errorf("the hub's task came back so: %+v", r)
	}
	if r := s.recovered("text@g1", "L4"); r.ReplayedRecords < 1 || r.HeldBack < 1 {
		t.Errorf("a gateway's task came back so: %+v", r)
	}
	for _, name := range []string{"g1", "hub", "g2"} { // the new generation restarts like any other
		s.stop(name)
		s.start(name)
	}
	s.write("g1", "b")
	s.wants("now", "a1 b1 a2 b2 a2 b2 a3 a4 b3")
	s.wants("near-g1", "a1 a2 a3 b1")
}

// onceByNumber waits until a file has, under each number, one line, and these.
func (s *site) onceByNumber(file, counts string) {
	s.t.Helper()
	want := strings.Fields(counts)
	slices.Sort(want)
	s.until(file+" has "+counts, func() (bool, string) {
		lines := slices.Compact(s.lines(file))
		var got, numbers []string
		for _, line := range lines {
			f := strings.NewReplacer(`{"count":`, "", "}", "").Replace(line)
			number, rest, _ := strings.Cut(f, " ")
			numbers, got = append(numbers, number), append(got, strings.ReplaceAll(rest, " ", ""))
		}
		slices.Sort(got)
		return slices.Equal(got, want) && len(slices.Compact(slices.Sorted(slices.Values(numbers)))) == len(lines), strings.Join(lines, "\n")
	})
}

// TestRollback: on request the streamed tasks go back although nobody has lost anything. What commits with
// checkpoints stays exact; what the other sink repeats is counted.
func TestRollback(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.begin()
	for generation := uint32(2); generation <= 3; generation++ {
		done, err := s.reapply(api.JobSource{Restart: true})
		if err != nil || done.Generation != generation {
			t.Fatalf("%+v, %v", done, err)
		}
		if r := s.recovered("total/0", "L4"); r.Repeated != 2 || r.Unknown {
			t.Errorf("generation %d: %+v", generation, r)
		}
		want := "a1 b1" + strings.Repeat(" a2 b2", int(generation))
		s.wants("now", want)
	}
	s.replicated("lines")
	s.wants("held", "a1 b1 a2 b2")
	s.wants("near-g1", "a1 a2")
	s.wants("near-g2", "b1 b2")
	s.write("g1", "b")
	s.wants("now", "a1 b1 a2 b2 a2 b2 a2 b2 b3")
	s.replicated("lines")
	s.wants("held", "a1 b1 a2 b2 b3")
}

// TestRollbackOverRestarts: agents end and start while the tasks go back; whichever it is, and the coordinator
// too, the sums come out.
func TestRollbackOverRestarts(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.yaml = strings.Replace(s.yaml, "detach_after: 500ms", "detach_after: 1h", 1) // the last checkpoint has everybody
	s.begin()
	for i, victims := range [][]string{{"g1"}, {"hub"}, {"g2", "hub"}, {"center"}} {
		done := make(chan error, 1)
		client := s.client
		go func() {
			_, err := client.ApplyJob(context.WithoutCancel(t.Context()), api.JobSource{File: "job.yaml", YAML: s.yaml, Restart: true}, patience)
			done <- err
		}()
		generation := uint32(i + 2)
		s.until("the tasks are about to go back", func() (bool, string) {
			j, err := client.Job(t.Context(), "lines")
			return err == nil && (j.State == api.JobRestarting || j.Generation == generation), fmt.Sprint(j.State, err)
		})
		for _, v := range victims {
			s.stop(v)
		}
		for _, v := range victims {
			s.start(v)
		}
		if err := <-done; err != nil && !slices.Contains(victims, "center") {
			t.Fatal(err)
		}
		s.until("the job runs again", func() (bool, string) {
			j, err := s.client.Job(t.Context(), "lines")
			return err == nil && j.State == api.JobRunning && j.Generation == generation, fmt.Sprint(j.State, j.Generation, err)
		})
		s.write("g1", "a")
		s.last("now", "a", i+3)
	}
	s.replicated("lines")
	s.wants("near-g1", "a1 a2 a3 a4 a5 a6")
	s.wants("near-g2", "b1 b2")
	s.wants("held", "a1 b1 a2 b2 a3 a4 a5 a6")
}

// last waits until the last line of a key in a file has this count.
func (s *site) last(file, key string, count int) {
	s.t.Helper()
	s.until(fmt.Sprintf("%s counts %s as %d", file, key, count), func() (bool, string) {
		b, err := os.ReadFile(s.path(file))
		last := ""
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, key) {
				last = strings.TrimSpace(line)
			}
		}
		return last == fmt.Sprintf("%s {\"count\":%d}", key, count), fmt.Sprint(last, err)
	})
}
