package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/examples"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
)

// loopJob is a loop over two agents: the head, two tasks, on one, the body on another, whose server has
// the streams. Every alarm goes round once; it and what comes back of it are numbered per key.
const loopJob = `name: feedback
checkpoint: {interval: 300ms, min_pause: 50ms}
sources:
  readings:
    file: {path: READINGS, follow: true}
    key: {json: m}
    on: {role: gateway}
operators:
  watch: {wasm: ./watch.wasm, from: [readings, learn.threshold], key_by: key, parallelism: 2, on: {role: far}, config: {threshold: "0"}}
  learn: {wasm: ./learn.wasm, from: watch, on: {role: hub}, config: {rate: "0.01"}}
sinks:
  alarms:  {file: {path: "alarms.txt", line: "{channel} {number} {key} {value}"}, from: learn}
  learned: {file: {path: "learned-{task}.txt", line: "{channel} {number} {key} {value}"}, from: watch.learned}
  broken:  {file: {path: "broken-{task}.txt", line: "{key} {value}"}, from: [watch.broken, learn.broken]}
`

// loopMachines are the keys, loopLimit bounds the whole test.
const (
	loopMachines = 7
	loopLimit    = 3 * time.Minute
)

// loopSite is three agents, their job, and the file of readings.
type loopSite struct {
	t             *testing.T
	ctx           context.Context
	fleet         *fleet.Fleet
	hub, far      *fleet.Agent
	src           api.JobSource
	dir, readings string
	sent          int // of every machine
}

// TestLoopIsExactOverKills kills the agents of a loop in mid-stream, each alone and both at once, so that
// all streams are gone too, stops the job with records in the loop, and lets it go on in a new generation.
func TestLoopIsExactOverKills(t *testing.T) {
	s := newLoopSite(t)
	s.send(300)
	s.kill(s.far)
	s.send(300)
	s.kill(s.hub)
	s.send(300)
	s.kill(s.hub, s.far)
	s.send(300)
	s.feed(func() { s.must(s.stop()) })
	came := len(s.lines(s.far, "learned-watch-0.txt")) + len(s.lines(s.far, "learned-watch-1.txt"))
	t.Logf("stopped with %d of %d alarms back from the loop", came, len(s.lines(s.hub, "alarms.txt")))
	s.must(s.apply())
	s.send(300)
	s.kill(s.far, s.hub)
	s.send(100)
	s.judge()
}

func newLoopSite(t *testing.T) *loopSite {
	ctx, cancel := context.WithTimeout(t.Context(), loopLimit)
	t.Cleanup(cancel)
	s := &loopSite{t: t, ctx: ctx, dir: t.TempDir()}
	s.readings = filepath.Join(s.dir, "readings.txt")
	s.must(os.WriteFile(s.readings, nil, 0o600))
	program := filepath.Join(s.dir, "agent")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/weir-stream/weir/cmd/agent").CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	s.fleet = fleet.New(program, s.dir)
	t.Cleanup(s.fleet.Kill)
	s.hub = s.add("hub", nil)
	s.far = s.add("far", s.hub)
	s.add("gateway", s.hub)
	s.must(s.fleet.Start(ctx))
	s.src = api.JobSource{File: "loop.yaml", YAML: strings.Replace(loopJob, "READINGS", s.readings, 1), Modules: map[string]string{}}
	for _, op := range []string{"watch", "learn"} {
		s.push(op)
	}
	s.until("all agents to be known", func() bool {
		list, err := s.hub.Client().Agents(ctx)
		return err == nil && api.Up(list) == 3
	})
	s.must(s.apply())
	return s
}

func (s *loopSite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.fleet.Tails())
	}
}

func (s *loopSite) until(what string, yes func() bool) {
	s.t.Helper()
	for !yes() {
		if !fleet.Sleep(s.ctx, 50*time.Millisecond) {
			s.t.Fatalf("waited for %s\n%s", what, s.fleet.Tails())
		}
	}
}

func (s *loopSite) add(name string, hub *fleet.Agent) *fleet.Agent {
	s.t.Helper()
	a, err := s.fleet.Add(fleet.Options{Name: name, Label: "role=" + name, Hub: hub})
	s.must(err)
	return a
}

func (s *loopSite) push(op string) {
	s.t.Helper()
	wasm := filepath.Join(s.dir, op+".wasm")
	s.must(examples.BuildOperator(s.ctx, "feedback/"+op, wasm))
	f, err := os.Open(wasm)
	s.must(err)
	defer f.Close()
	m, err := s.hub.Client().PushModule(s.ctx, f)
	s.must(err)
	s.src.Modules["./"+op+".wasm"] = m.Digest
}

func (s *loopSite) apply() error {
	_, err := s.hub.Client().ApplyJob(s.ctx, s.src, loopLimit)
	return err
}

func (s *loopSite) stop() error {
	_, err := s.hub.Client().StopJob(s.ctx, "feedback", loopLimit)
	return err
}

// send appends readings of every machine, each higher than the one before so that most raise an alarm,
// and returns when the loop is at work on them.
func (s *loopSite) send(n int) {
	s.t.Helper()
	before := len(s.lines(s.hub, "alarms.txt"))
	s.must(s.write(n))
	s.until("an alarm", func() bool { return len(s.lines(s.hub, "alarms.txt")) > before })
}

// feed appends readings, more than the loop can take, until do is done.
func (s *loopSite) feed(do func()) {
	s.t.Helper()
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			case <-time.After(10 * time.Millisecond):
			}
			if err := s.write(40); err != nil {
				stopped <- err
				return
			}
		}
	}()
	do()
	close(stop)
	s.must(<-stopped)
}

// write appends n readings of every machine.
func (s *loopSite) write(n int) error {
	f, err := os.OpenFile(s.readings, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	for range n {
		s.sent++
		for m := range loopMachines {
			fmt.Fprintf(f, `{"m":"m%d","v":%d}`+"\n", m, s.sent)
		}
	}
	return f.Close()
}

// kill kills agents as a power cut would, and starts them again.
func (s *loopSite) kill(agents ...*fleet.Agent) {
	s.t.Helper()
	for _, a := range agents {
		a.Kill()
	}
	for _, a := range agents {
		s.must(a.Start())
	}
	for _, a := range agents {
		s.must(a.WaitReady(s.ctx))
	}
}

// line is one line of a sink: what it is numbered on, and the record.
type line struct{ id, key, value string }

// lines reads a sink's file without the repeats that a kill leaves. Under one number there is only ever
// one record.
func (s *loopSite) lines(a *fleet.Agent, name string) []line {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(a.Dir, "files", name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	var all []line
	seen := map[string]line{}
	for lines := bufio.NewScanner(strings.NewReader(string(data))); lines.Scan(); {
		words := strings.SplitN(lines.Text(), " ", 4)
		if len(words) < 4 || !json.Valid([]byte(words[3])) {
			continue // a kill has cut it off, and it was written again
		}
		l := line{words[0] + " " + words[1], words[2], words[3]}
		if old, again := seen[l.id]; again {
			if old != l {
				s.t.Fatalf("%s of %s: %q and %q", name, a.Name, old, l)
			}
			continue
		}
		seen[l.id] = l
		all = append(all, l)
	}
	return all
}

// judge waits until the last readings, which all raise an alarm, have gone round, and wants every number
// of every key once.
func (s *loopSite) judge() {
	s.t.Helper()
	type record struct {
		N, Alarms, Readings int
	}
	parse := func(l line) (r record) {
		s.must(json.Unmarshal([]byte(l.value), &r))
		return r
	}
	s.sent++
	f, err := os.OpenFile(s.readings, os.O_WRONLY|os.O_APPEND, 0)
	s.must(err)
	for m := range loopMachines {
		fmt.Fprintf(f, `{"m":"m%d","v":1000000}`+"\n", m)
	}
	s.must(f.Close())
	learned := func() map[string]record {
		last := map[string]record{}
		for i := range 2 {
			for _, l := range s.lines(s.far, fmt.Sprintf("learned-watch-%d.txt", i)) {
				if r := parse(l); r.N == last[l.key].N+1 {
					last[l.key] = r
				}
			}
		}
		return last
	}
	s.until("the last readings to go round", func() bool {
		done := 0
		for _, r := range learned() {
			if r.Readings == s.sent && r.N == r.Alarms {
				done++
			}
		}
		return done == loopMachines
	})
	alarms := map[string]int{}
	for _, l := range s.lines(s.hub, "alarms.txt") {
		r := parse(l)
		if alarms[l.key]++; r.N != alarms[l.key] {
			s.t.Fatalf("alarm %d of %s comes as number %d", r.N, l.key, alarms[l.key])
		}
		if r.Readings > s.sent {
			s.t.Fatalf("%s has counted %d readings of %d", l.key, r.Readings, s.sent)
		}
	}
	total := 0
	for key, r := range learned() {
		if r.N != alarms[key] || r.Readings != s.sent {
			s.t.Fatalf("%s: %d alarms, %+v came back, %d readings were sent", key, alarms[key], r, s.sent)
		}
		total += r.N
	}
	broken, err := filepath.Glob(filepath.Join(s.dir, "*", "files", "broken-*"))
	s.must(err)
	for _, name := range broken {
		data, err := os.ReadFile(name)
		s.must(err)
		if len(data) > 0 {
			s.t.Fatalf("%s: %s", name, data)
		}
	}
	s.t.Logf("%d readings, %d alarms went round", s.sent*loopMachines, total)
}
