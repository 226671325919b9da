package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
)

// timeJob counts by seconds of event time what two agents read.
const timeJob = `name: sums
checkpoint: {interval: 300ms, min_pause: 50ms}
sources:
  readings:
    file: {path: "DIR/readings-{agent}.txt", follow: true}
    key: {json: m}
    time: {json: ts, idle: 0s}
operators:
  sums: {wasm: ./sums.wasm, from: readings, key_by: key, parallelism: 2, on: {role: hub}}
sinks:
  out:  {file: {path: "sums-{task}.txt", line: "{channel} {number} {key} {value}"}, from: sums}
  late: {file: {path: "late-{task}.txt", line: "{key} {value}"}, from: sums.late}
`

// timeMachines are the keys.
const timeMachines = 5

// TestWindowsAreExactOverKills kills two agents in mid-stream, each alone and both at once, while windows are open, timers
// are set and state expires: every window comes out once, with every reading.
func TestWindowsAreExactOverKills(t *testing.T) {
	s := &loopSite{t: t, dir: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), loopLimit)
	t.Cleanup(cancel)
	s.ctx = ctx
	program, wasm := filepath.Join(s.dir, "agent"), filepath.Join(s.dir, "sums.wasm")
	s.build(nil, "-o", program, "github.com/weir-stream/weir/cmd/agent")
	s.build([]string{"GOOS=wasip1", "GOARCH=wasm"}, "-buildmode=c-shared", "-o", wasm, "./testdata/sums")
	s.fleet = fleet.New(program, s.dir)
	t.Cleanup(s.fleet.Kill)
	s.hub = s.add("hub", nil)
	s.far = s.add("far", s.hub)
	for _, a := range []*fleet.Agent{s.hub, s.far} {
		s.must(os.WriteFile(s.input(a), nil, 0o600))
	}
	s.must(s.fleet.Start(ctx))
	f, err := os.Open(wasm)
	s.must(err)
	defer f.Close()
	m, err := s.hub.Client().PushModule(ctx, f)
	s.must(err)
	s.src = api.JobSource{File: "sums.yaml", YAML: strings.Replace(timeJob, "DIR", s.dir, 1), Modules: map[string]string{"./sums.wasm": m.Digest}}
	s.until("both agents to be known", func() bool {
		list, err := s.hub.Client().Agents(ctx)
		return err == nil && api.Up(list) == 2
	})
	s.must(s.apply())

	windows := 0
	for _, killed := range [][]*fleet.Agent{{s.far}, {s.hub}, {s.hub, s.far}, {s.far, s.hub}, nil} {
		s.read(4000)
		windows += 4 * timeMachines
		if killed == nil {
			break
		}
		// Half of this round's windows are out; what is killed has others open.
		s.until("windows to come out", func() bool { return len(s.sums()) >= windows-2*timeMachines })
		s.read(500) // into the next second
		s.kill(killed...)
		s.read(500)
		windows += timeMachines
	}
	end := s.sent
	s.read(1) // closes the last one; its own window stays open
	s.until("all windows", func() bool { return len(s.sums()) >= windows })

	got := map[string]int{}
	for _, l := range s.sums() {
		var w struct{ From, N, Stale int }
		s.must(json.Unmarshal([]byte(l.value), &w))
		at := fmt.Sprintf("%s from %d", l.key, w.From)
		if _, twice := got[at]; twice {
			t.Errorf("the window of %s comes out twice", at)
		}
		got[at] = w.N
		if w.Stale > 0 {
			t.Errorf("%s: %d keys have not expired", at, w.Stale)
		}
	}
	for from := 0; from < end; from += 1000 {
		for m := range timeMachines {
			// A reading of each agent every 10 ms.
			if at := fmt.Sprintf("m%d from %d", m, from); got[at] != 2*100 {
				t.Errorf("the window of %s has %d readings", at, got[at])
			}
		}
	}
	if len(got) != windows {
		t.Errorf("%d windows, want %d", len(got), windows)
	}
	late, err := filepath.Glob(filepath.Join(s.dir, "*", "files", "late-*"))
	s.must(err)
	for _, name := range late {
		data, err := os.ReadFile(name)
		s.must(err)
		if len(data) > 0 {
			t.Errorf("%s: %.200s", name, data)
		}
	}
	s.until("all tasks to say how far event time has come", func() bool { // as of their last tick
		j, err := s.hub.Client().Job(ctx, "sums")
		for _, task := range j.Tasks {
			e := task.EventTime
			if e == nil || e.Watermark == nil {
				return false
			}
			if e.Watermark.After(time.UnixMilli(int64(s.sent))) {
				t.Fatalf("%s says of event time %+v", task.ID, e)
			}
		}
		return err == nil && len(j.Tasks) > 0
	})
}

// build runs go build.
func (s *loopSite) build(env []string, args ...string) {
	s.t.Helper()
	c := exec.CommandContext(s.ctx, "go", append([]string{"build"}, args...)...)
	c.Env = append(os.Environ(), env...)
	if out, err := c.CombinedOutput(); err != nil {
		s.t.Fatalf("go build %v: %v\n%s", args, err, out)
	}
}

func (s *loopSite) input(a *fleet.Agent) string {
	return filepath.Join(s.dir, "readings-"+a.Name+".txt")
}

// read appends to both files what is read in so many milliseconds of event time.
func (s *loopSite) read(ms int) {
	s.t.Helper()
	for _, a := range []*fleet.Agent{s.hub, s.far} {
		var b []byte
		for at := s.sent; at < s.sent+ms; at += 10 {
			for m := range timeMachines {
				b = fmt.Appendf(b, `{"m":"m%d","ts":%d}`+"\n", m, at)
			}
		}
		f, err := os.OpenFile(s.input(a), os.O_WRONLY|os.O_APPEND, 0)
		s.must(err)
		_, err = f.Write(b)
		s.must(err)
		s.must(f.Close())
	}
	s.sent += ms
}

// sums are the windows that have come out.
func (s *loopSite) sums() []line {
	return append(s.lines(s.hub, "sums-sums-0.txt"), s.lines(s.hub, "sums-sums-1.txt")...)
}
