package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/transport/direct"
	wnats "github.com/weir-stream/weir/transport/nats"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// hopPatience bounds waits that end by themselves.
const hopPatience = 5 * time.Minute

// Every record of the diamond reaches its end by two ways, every one of the loop once it has gone round.
const (
	hopBlock   = 2500 // records that a job is fed at a time
	hopKeys    = 5
	diamondJob = `name: diamond
checkpoint: {interval: 200ms, min_pause: 0s}
sources: {made: {file: {path: diamond.jsonl, follow: true}, key: {json: k}, on: {role: worker}}}
operators:
  left:  {native: count, from: made, key_by: key, parallelism: 2, on: {role: worker}}
  right: {native: count, from: made, key_by: key, parallelism: 2, on: {role: worker}}
  total: {native: count, from: [left, right], key_by: key, parallelism: 2, on: {role: worker}}
sinks: {out: {file: {path: "diamond-{task}.txt", line: "{channel} {number} {key} {value.count}"}, from: total}}
`
	roundJob = `name: round
checkpoint: {interval: 200ms, min_pause: 0s}
sources: {made: {file: {path: round.jsonl, follow: true}, key: {json: k}, on: {role: worker}}}
operators:
  head:  {wasm: switch@1, from: [made, body], key_by: key, parallelism: 2, on: {role: worker}}
  body:  {wasm: switch@1, from: head, key_by: key, parallelism: 2, on: {role: worker}}
  total: {native: count, from: head.round, key_by: key, parallelism: 2, on: {role: worker}}
sinks: {out: {file: {path: "round-{task}.txt", line: "{channel} {number} {key} {value.count}"}, from: total}}
`
)

// switchGuest puts out what comes in at input i at output i.
func switchGuest() []byte {
	return wasmtest.NewGuest().Data(16, "round").
		Body("weir_init", wasmtest.Code(wasmtest.Call(0, 0, 3), wasmtest.Drop, wasmtest.Call(0, 16, 5), wasmtest.Drop, wasmtest.OK)...).
		Body("weir_process", wasmtest.Code([]byte{0x20, 0, 0x20, 1, 0x20, 2, 0x20, 3, 0x10, 1}, wasmtest.OK)...).Wasm()
}

// hopSite is an agent in this process that can be started anew on its directory.
type hopSite struct {
	t      *testing.T
	dir    string
	bounds direct.Options // of its streams
	want   map[string]int // records of each job's sinks, of what it was fed
	a      *Agent
	client *api.Client
	stop   func()
}

func (s *hopSite) start() {
	s.t.Helper()
	opt := Options{Data: s.dir, Name: "a", HTTP: "127.0.0.1:0", NATSListen: "127.0.0.1:0", MQTTListen: Off, Version: "test", Labels: map[string]string{"role": "worker"}}
	a, err := newAgent(opt, slog.New(slog.NewTextHandler(s.t.Output(), nil)), false)
	if err != nil {
		s.t.Fatal(err)
	}
	bounds := s.bounds
	bounds.Log = a.log
	a.within = direct.New(bounds)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.live(ctx) }()
	s.a, s.stop = a, func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("the agent ended with: %v", err)
		}
		s.stop = func() {}
	}
	select {
	case <-a.ready:
	case <-time.After(hopPatience):
		s.t.Fatal("the agent is not up")
	}
	if s.client, err = api.NewClient("http://" + a.httpAt); err != nil {
		s.t.Fatal(err)
	}
}

func (s *hopSite) until(what string, f func() bool) {
	s.t.Helper()
	for end := time.Now().Add(hopPatience); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("waited for %s", what)
		}
	}
}

// feed gives a job a block of records and waits until some of them are through.
func (s *hopSite) feed(name string) {
	s.t.Helper()
	var lines strings.Builder
	for i := range hopBlock {
		fmt.Fprintf(&lines, "{\"k\":\"k%d\"}\n", i%hopKeys)
	}
	had, ways := s.total(name), 1
	if name == "diamond" {
		ways = 2
	}
	s.want[name] += ways * hopBlock
	s.write(name, lines.String())
	s.until("more of "+name, func() bool { return s.total(name) > had })
}

// write appends to the file that a job follows.
func (s *hopSite) write(name, lines string) {
	s.t.Helper()
	dir := filepath.Join(s.dir, "files")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		s.t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name+".jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(lines)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// kill lets streamed tasks of a job fail as one does whose stream has broken. They are started anew by themselves.
func (s *hopSite) kill(name string, which func(*runner) bool) {
	s.t.Helper()
	s.until("a task to kill", func() bool {
		h := s.a.hostedJob(name)
		if h == nil {
			return false
		}
		killed := 0
		for _, r := range h.tasks() {
			r.mu.Lock()
			in := r.input
			r.mu.Unlock()
			if in != nil && which(r) {
				in.Close()
				killed++
			}
		}
		return killed > 0
	})
}

// counts are the last counts of a job's keys, by what is first seen under each number of its sinks: under one number
// there is only one line, and each count follows the one before it.
func (s *hopSite) counts(name string) map[string]int {
	s.t.Helper()
	last, seen := map[string]int{}, map[string]string{}
	paths, err := filepath.Glob(filepath.Join(s.dir, "files", name+"-*.txt"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			s.t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			words := strings.Fields(line)
			if len(words) != 4 || !strings.HasSuffix(line, "\n") {
				continue // being written
			}
			id := words[0] + " " + words[1]
			if was, again := seen[id]; again {
				if was != line {
					s.t.Fatalf("%s: %q and %q", path, was, line)
				}
				continue
			}
			seen[id] = line
			n, err := strconv.Atoi(words[3])
			if err != nil || n != last[words[2]]+1 {
				s.t.Fatalf("%s: %q follows count %d", path, line, last[words[2]])
			}
			last[words[2]] = n
		}
	}
	return last
}

func (s *hopSite) total(name string) (n int) {
	for _, c := range s.counts(name) {
		n += c
	}
	return n
}

// TestHopsWithinAreExact kills tasks, one and all of a job, and stops the agent while a diamond and a loop run on it,
// whose channels do not leave the process: each record counts once. Also where the streams cannot hold what comes
// between two checkpoints, and so what a task that is started anew has to read again.
func TestHopsWithinAreExact(t *testing.T) {
	for name, bounds := range map[string]direct.Options{
		"with room":    {Bytes: streamBytes, Total: withinBytes(0), Least: channelBytes},
		"without room": {Bytes: 120 << 10, Total: 400 << 10, Least: 64 << 10},
	} {
		t.Run(name, func(t *testing.T) { hopsAreExact(t, bounds) })
	}
}

func hopsAreExact(t *testing.T, bounds direct.Options) {
	s := &hopSite{t: t, dir: t.TempDir(), bounds: bounds, want: map[string]int{}, stop: func() {}}
	t.Cleanup(func() { s.stop() })
	s.start()
	if _, err := s.client.PushOperator(t.Context(), "switch", "1", bytes.NewReader(switchGuest())); err != nil {
		t.Fatal(err)
	}
	for name, yaml := range map[string]string{"diamond": diamondJob, "round": roundJob} {
		s.write(name, "")
		if _, err := s.client.ApplyJob(t.Context(), api.JobSource{File: "job.yaml", YAML: yaml}, hopPatience); err != nil {
			t.Fatal(err)
		}
	}
	headed := func(prefix string) func(*runner) bool {
		return func(r *runner) bool { return strings.HasPrefix(string(r.task.ID), prefix) }
	}
	for _, k := range []struct{ job, tasks string }{
		{"diamond", "left/0"}, {"round", "head/0"}, {"diamond", "total"}, {"round", "body"}, {"diamond", ""}, {"round", ""},
	} {
		s.feed(k.job)
		s.kill(k.job, headed(k.tasks))
	}
	s.feed("diamond")
	s.feed("round")
	s.stop()
	s.start()
	for name, tasks := range map[string]string{"diamond": "right", "round": "total"} {
		s.feed(name)
		s.kill(name, headed(tasks))
		s.feed(name)
	}
	for name, n := range s.want {
		s.until("all of "+name, func() bool { return s.total(name) >= n })
		if got := s.counts(name); s.total(name) != n || len(got) != hopKeys {
			t.Errorf("%s: counts of keys are %v, together %d, want %d", name, got, s.total(name), n)
		}
	}
	list, err := s.a.conn.Streams(wnats.StreamOptions{}).List(t.Context())
	if err != nil || len(list) > 0 {
		t.Errorf("streams on the server: %v, %v", list, err)
	}
}

// TestHopsFollowThePlan: a task has a stream within the process only if all that feeds it is on its agent, and
// whoever sends to it says the same.
func TestHopsFollowThePlan(t *testing.T) {
	plan := &job.Physical{
		Tasks: []job.Task{{ID: "src@a", Agent: "a"}, {ID: "src@b", Agent: "b"}, {ID: "own@a", Agent: "a"}, {ID: "all@a", Agent: "a"}, {ID: "far@b", Agent: "b"}},
		Channels: []job.Channel{
			{Index: 0, From: "src@a", To: "own@a"}, {Index: 1, From: "own@a", To: "all@a"}, {Index: 2, From: "src@b", To: "all@a"},
			{Index: 3, From: "own@a", To: "far@b"}, {Index: 4, From: "own@a", To: "own@a"},
		},
	}
	var got []abs.TaskID
	h := newHops(plan, direct.New(direct.Options{}), nil)
	for _, task := range plan.Tasks {
		if len(task.Inputs) == 0 && h.direct[task.ID] {
			got = append(got, task.ID)
		}
	}
	slices.Sort(got)
	if fmt.Sprint(got) != "[own@a src@a src@b]" {
		t.Errorf("%v", got)
	}
}
