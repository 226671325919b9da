package job

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/abs"
)

var update = flag.Bool("update", false, "rewrite what the scripts want")

// script is a file of sections, each behind a line "-- name --": input, and what is wanted of it.
type script struct {
	path     string
	sections []section
}

type section struct{ name, text string }

func readScript(t testing.TB, path string) *script {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{path: path}
	for line := range strings.Lines(string(data)) {
		if name, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(name, " --\n") {
			s.sections = append(s.sections, section{name: strings.TrimSuffix(name, " --\n")})
			continue
		}
		if len(s.sections) == 0 {
			t.Fatalf("%s does not start with a section", path)
		}
		s.sections[len(s.sections)-1].text += line
	}
	return s
}

func scripts(t *testing.T, pattern string, run func(t *testing.T, s *script)) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts under %s (%v)", pattern, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			run(t, readScript(t, path))
		})
	}
}

func (s *script) find(name string) *section {
	for i := range s.sections {
		if s.sections[i].name == name {
			return &s.sections[i]
		}
	}
	return nil
}

func (s *script) get(name string) []byte {
	if f := s.find(name); f != nil {
		return []byte(f.text)
	}
	return nil
}

// want compares a section, or rewrites it under -update.
func (s *script) want(t *testing.T, name, got string) {
	t.Helper()
	if !strings.HasSuffix(got, "\n") {
		got += "\n"
	}
	f := s.find(name)
	if f != nil && f.text == got {
		return
	}
	if !*update {
		t.Errorf("%s, section %s:\n%s\nwant:\n%s", s.path, name, got, s.get(name))
		return
	}
	if f == nil {
		s.sections = append(s.sections, section{name: name})
		f = &s.sections[len(s.sections)-1]
	}
	f.text = got
	var b strings.Builder
	for _, f := range s.sections {
		b.WriteString("-- " + f.name + " --\n" + f.text)
	}
	if err := os.WriteFile(s.path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// graph parses and builds the job of a section.
func (s *script) graph(section string) (*Graph, error) {
	f, err := Parse("job.yaml", s.get(section))
	if err != nil {
		return nil, err
	}
	return Build(f)
}

// agents reads lines of: name, labels as k=v, and the word mqtt, or mqtt=ADDRESS, for one with a
// listener, or mqtt-leaf for one whose listener is its own.
func agents(t *testing.T, text []byte) []Agent {
	t.Helper()
	var all []Agent
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		a := Agent{Name: words[0], Labels: map[string]string{}}
		for _, w := range words[1:] {
			if w == "mqtt" || w == "mqtt-leaf" {
				a.MQTTListen, a.MQTTLeaf = true, w == "mqtt-leaf"
				continue
			}
			k, v, ok := strings.Cut(w, "=")
			if !ok {
				t.Fatalf("agent %s: word %q", a.Name, w)
			}
			if k == "mqtt" {
				a.MQTTListen, a.MQTTAddr = true, v
				continue
			}
			a.Labels[k] = v
		}
		all = append(all, a)
	}
	return all
}

// digests gives every module of a file one, but those listed in the section missing.
func (s *script) digests(g *Graph) map[string]string {
	m := map[string]string{}
	for _, o := range g.File.Operators {
		if !bytes.Contains(s.get("missing"), []byte(o.WASM)) {
			m[o.WASM] = "sha256:" + o.WASM
		}
	}
	return m
}

func (s *script) plan(t *testing.T, job, on string, gen abs.Generation, previous *Physical) (*Physical, error) {
	t.Helper()
	g, err := s.graph(job)
	if err != nil {
		return nil, err
	}
	return Plan(g, agents(t, s.get(on)), s.digests(g), gen, previous)
}

func TestBadFilesAreRefused(t *testing.T) {
	scripts(t, "testdata/bad/*.txt", func(t *testing.T, s *script) {
		_, err := s.graph("job.yaml")
		if err == nil {
			t.Fatal("no error")
		}
		if _, ok := err.(Errors); !ok {
			t.Errorf("the error is a %T", err)
		}
		s.want(t, "error", err.Error())
	})
}

func TestPlans(t *testing.T) {
	scripts(t, "testdata/plan/*.txt", func(t *testing.T, s *script) {
		p, err := s.plan(t, "job.yaml", "agents", 1, nil)
		if err != nil {
			s.want(t, "error", err.Error())
			return
		}
		s.want(t, "plan", p.Text())
		checkPlan(t, p)
		if s.get("plan.json") != nil {
			s.want(t, "plan.json", string(encode(t, p)))
		}
	})
}

func TestChangesOfAPlan(t *testing.T) {
	scripts(t, "testdata/change/*.txt", func(t *testing.T, s *script) {
		was, err := s.plan(t, "old.yaml", "old.agents", 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		is, err := s.plan(t, "new.yaml", "new.agents", 2, was)
		if err != nil {
			t.Fatal(err)
		}
		checkPlan(t, is)
		removed := func(agent string) bool { return slices.Contains(strings.Fields(string(s.get("removed"))), agent) }
		verdict := "fits"
		if err := Diff(was, is, removed); err != nil {
			verdict = err.Error()
		}
		s.want(t, "diff", verdict)
		s.want(t, "plan", is.Text())
		if err := Diff(is, is, removed); err != nil {
			t.Errorf("the plan does not fit itself: %v", err)
		}
	})
}

func encode(t *testing.T, p *Physical) []byte {
	t.Helper()
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPlanDependsOnNothingElse(t *testing.T) {
	scripts(t, "testdata/plan/*.txt", func(t *testing.T, s *script) {
		g, err := s.graph("job.yaml")
		if err != nil {
			t.Fatal(err)
		}
		all := agents(t, s.get("agents"))
		var first []byte
		var refused error
		for turn := range 8 {
			if turn > 0 && len(all) > 0 {
				all = append(all[1:], all[0])
			}
			p, err := Plan(g, all, s.digests(g), 1, nil)
			if err != nil {
				if refused != nil && refused.Error() != err.Error() {
					t.Fatalf("the order of agents changes the error:\n%v\n%v", refused, err)
				}
				refused = err
				continue
			}
			got := encode(t, p)
			if first == nil {
				first = got
			}
			if !bytes.Equal(first, got) {
				t.Fatalf("the order of agents changes the plan:\n%s\n%s", first, got)
			}
		}
	})
}

func TestPlanSurvivesJSON(t *testing.T) {
	scripts(t, "testdata/plan/*.txt", func(t *testing.T, s *script) {
		p, err := s.plan(t, "job.yaml", "agents", 7, nil)
		if err != nil {
			return
		}
		var back Physical
		if err := json.Unmarshal(encode(t, p), &back); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(p, &back) {
			t.Errorf("was\n%s\nis\n%s", encode(t, p), encode(t, &back))
		}
		if back.Generation != 7 {
			t.Errorf("generation %d", back.Generation)
		}
	})
}

// checkPlan wants what every consumer of a plan relies on.
func checkPlan(t *testing.T, p *Physical) {
	t.Helper()
	ids := map[string]bool{}
	unique := func(kind, id string) {
		if ids[kind+id] {
			t.Errorf("%s %s is there twice", kind, id)
		}
		ids[kind+id] = true
	}
	sent := map[int]string{}
	for i := range p.Tasks {
		task := &p.Tasks[i]
		unique("task", string(task.ID))
		checkTask(t, p, task, sent)
		for _, s := range task.Sinks {
			unique("channel", string(s.Channel))
		}
	}
	received := map[int]abs.TaskID{}
	for _, task := range p.Tasks {
		for _, in := range task.Inputs {
			received[in.Channel] = task.ID
		}
	}
	for i, c := range p.Channels {
		unique("channel", string(c.ID))
		if c.Index != i || received[i] != c.To || sent[i] != string(c.From) {
			t.Errorf("channel %d %s: index %d, sent by %q, received by %q", i, c.ID, c.Index, sent[i], received[i])
		}
	}
}

func checkTask(t *testing.T, p *Physical, task *Task, sent map[int]string) {
	t.Helper()
	fed := make([]int, len(task.Ops))
	fedSinks := make([]int, len(task.Sinks))
	follow := func(from int, targets []Target) {
		for _, to := range targets {
			switch to.Kind {
			case ToOp:
				if to.Index <= from {
					t.Errorf("task %s: operator %d feeds %d", task.ID, from, to.Index)
				}
				fed[to.Index]++
			case ToSink:
				fedSinks[to.Index]++
			case ToStream:
				for _, c := range to.Channels {
					if other, taken := sent[c]; taken {
						t.Errorf("channel %d is sent on by %s and %s", c, other, task.ID)
					}
					sent[c] = string(task.ID)
				}
			}
		}
	}
	if (task.Source == nil) == (len(task.Inputs) == 0) {
		t.Errorf("task %s: source %v, %d inputs", task.ID, task.Source != nil, len(task.Inputs))
	}
	if task.Source != nil {
		follow(-1, task.Source.Targets)
	}
	for _, in := range task.Inputs {
		if in.Op != 0 {
			t.Errorf("task %s: input into operator %d", task.ID, in.Op)
		}
	}
	if len(task.Inputs) > 0 {
		fed[0]++
	}
	for i, op := range task.Ops {
		if op.Outputs[0].Name != MainOutput {
			t.Errorf("task %s: first output of %s is %s", task.ID, op.Name, op.Outputs[0].Name)
		}
		for _, port := range op.Outputs {
			follow(i, port.Targets)
		}
	}
	for i, n := range fed {
		if n != 1 {
			t.Errorf("task %s: operator %d is fed %d times", task.ID, i, n)
		}
	}
	for i, n := range fedSinks {
		if n == 0 {
			t.Errorf("task %s: nothing feeds sink %d", task.ID, i)
		}
	}
}

func TestEveryRefusalSaysFileLineAndColumn(t *testing.T) {
	_, err := Parse("dir/some.yaml", []byte("name: x\nsources:\n  a: {mqtt: {topics: [t], qoss: 1}}\n"))
	want := "dir/some.yaml:3:27: unknown key \"qoss\" in mqtt of source a; did you mean qos? keys: broker, client_id, user, password_file, tls, topics, qos, keep_alive, retained, sequence and when_full"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	var one *Error
	if !asError(err, &one) || one.Pos != (Pos{3, 27}) {
		t.Errorf("no position: %v", one)
	}
}

func asError(err error, one **Error) bool {
	all, ok := err.(Errors)
	if ok {
		*one = all[0]
	}
	return ok && fmt.Sprint(all.Unwrap()[0]) == (*one).Error()
}

func TestLargeFilesAreRefused(t *testing.T) {
	_, err := Parse("job.yaml", bytes.Repeat([]byte("#\n"), maxFile))
	want := fmt.Sprintf("job.yaml:1:1: job file of %d bytes; at most %d", 2*maxFile, maxFile)
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
