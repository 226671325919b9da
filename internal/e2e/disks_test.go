//go:build fuse

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/examples"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
	"github.com/weir-stream/weir/internal/trial"
	"github.com/weir-stream/weir/internal/trial/lossy"
)

// disksLimit bounds the whole test, on a machine that is twenty times slower.
const disksLimit = 20 * time.Minute

// disksJob has a sink beside each agent's log, so that they share a disk.
const disksJob = `name: disks
checkpoint: {interval: 200ms, timeout: 2s, detach_after: 1s}
sources:
  text: {file: {path: %q, follow: true}, key: {json: k}, on: {role: gate}}
operators:
  total: {native: count, from: text, on: {role: hub}}
  sum: {native: sum, from: text, config: {field: n}}
sinks:
  near: {file: {path: near.txt, line: "{value}"}, from: text}
  far: {file: {path: far.txt, line: "{number} {value}"}, from: total}
  sums: {file: {path: sums.txt}, from: sum}
`

// reading is what the source reads as the n-th.
func reading(n int) string {
	return fmt.Sprintf("{\"k\":\"a\",\"n\":%d,\"text\":%q}", n, strings.Repeat("x", 500))
}

// disksSite is a hub and a gateway, all of whose files, those with what their processes say included, are on disks
// of their own.
type disksSite struct {
	t        *testing.T
	ctx      context.Context
	fleet    *fleet.Fleet
	hub, far *disksAgent // the far one is the gateway
	link     *trial.Proxy
	readings string
	module   []byte
	lines    int
	letters  uint64
	pushes   byte
}

type disksAgent struct {
	*fleet.Agent
	disk *lossy.Disk
	pid  int
}

// TestDisks: disks that are full, that can only be read, and that take 100 ms for each fsync, under the hub, under
// the gateway, and under the gateway while what it sends goes to its spool; while records come, snapshots are saved,
// sinks write, lines and records become dead letters and a module is uploaded. The processes last, no task is restarted,
// status says what is wrong, and when it is over everything goes on by itself, with nothing lost or doubled.
func TestDisks(t *testing.T) {
	s := newDisksSite(t)
	full := func(d *lossy.Disk, on bool) {
		if on {
			d.Fill(0)
		} else {
			d.Free()
		}
	}
	readOnly := func(d *lossy.Disk, on bool) { d.ReadOnly(on) }
	slow := func(d *lossy.Disk, on bool) {
		d.Slow(0)
		if on {
			d.Slow(100 * time.Millisecond)
		}
	}
	for _, c := range []struct {
		name  string
		fault func(d *lossy.Disk, on bool)
		on    []*disksAgent
		cut   bool   // the link is, so that the gateway spools
		said  string // in status, of each
	}{
		{"full under the gateway", full, []*disksAgent{s.far}, false, "no space left"},
		{"full under the gateway and its spool", full, []*disksAgent{s.far}, true, "no space left"},
		{"full under the hub", full, []*disksAgent{s.hub}, false, "no space left"},
		{"read only under the gateway", readOnly, []*disksAgent{s.far}, false, "read-only"},
		{"read only under the gateway and its spool", readOnly, []*disksAgent{s.far}, true, "read-only"},
		{"read only under the hub", readOnly, []*disksAgent{s.hub}, false, "read-only"},
		{"slow under both", slow, []*disksAgent{s.hub, s.far}, false, ""},
	} {
		t.Log(c.name)
		began := time.Now()
		if c.cut {
			s.cut(true)
		}
		for _, a := range c.on {
			c.fault(a.disk, true)
		}
		s.write(200)
		s.letter()
		for _, a := range c.on {
			s.says(a, c.said)
		}
		if c.said != "" && !c.cut { // checkpoints go on without a gateway that is out of reach
			s.refused(c.on[0])
		}
		s.write(200)
		if c.said == "" {
			s.settled() // while it is slow
		}
		for _, a := range c.on {
			c.fault(a.disk, false)
		}
		if c.cut {
			s.cut(false)
		}
		s.write(10)
		s.settled()
		t.Logf("%s: %.1f s", c.name, time.Since(began).Seconds())
	}
}

func newDisksSite(t *testing.T) *disksSite {
	ctx, cancel := context.WithTimeout(t.Context(), disksLimit)
	t.Cleanup(cancel)
	dir := t.TempDir()
	s := &disksSite{t: t, ctx: ctx, readings: filepath.Join(dir, "readings.txt")}
	s.must(os.WriteFile(s.readings, nil, 0o600))
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, "agent.bin"), "github.com/weir-stream/weir/cmd/agent").CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	wasm := filepath.Join(dir, "parse.wasm")
	s.must(examples.BuildOperator(ctx, "demo/parse", wasm))
	var err error
	s.module, err = os.ReadFile(wasm)
	s.must(err)
	// What the process says goes to the disk under trial; $3 is its directory there.
	script := filepath.Join(dir, "agent")
	s.must(os.WriteFile(script, []byte("#!/bin/sh\nexec "+filepath.Join(dir, "agent.bin")+` "$@" >>"$3.log" 2>&1`+"\n"), 0o700))
	s.fleet = fleet.New(script, dir)
	s.hub = s.add(dir, "hub", nil)
	s.link, err = trial.NewProxy(s.hub.NATS)
	s.must(err)
	running := make(chan struct{})
	go func() { s.link.Run(); close(running) }()
	t.Cleanup(func() { s.link.Close(); <-running })
	s.far = s.add(dir, "gate", s.hub.Agent)
	s.must(s.fleet.Start(ctx))
	for _, a := range []*disksAgent{s.hub, s.far} {
		a.pid = a.PID()
	}
	s.until("all agents to be known", func() (bool, string) {
		list, err := s.hub.Client().Agents(ctx)
		return err == nil && api.Up(list) == 2, fmt.Sprint(err)
	})
	_, err = s.hub.Client().ApplyJob(ctx, api.JobSource{File: "disks.yaml", YAML: fmt.Sprintf(disksJob, s.readings)}, disksLimit)
	s.must(err)
	s.write(100)
	s.settled()
	return s
}

func (s *disksSite) add(dir, name string, hub *fleet.Agent) *disksAgent {
	s.t.Helper()
	disk, err := lossy.New(dir, name+".disk.d", filepath.Join("data", "nats"))
	s.must(err)
	a := &disksAgent{disk: disk}
	s.t.Cleanup(func() {
		if a.Agent != nil {
			a.Kill()
		}
		if err := disk.Close(); err != nil {
			s.t.Error(err)
		}
	})
	opt := fleet.Options{Name: name, Label: "role=" + name, Hub: hub, Dir: filepath.Join(disk.Dir, "data")}
	if hub != nil {
		opt.Via = s.link.Addr()
	}
	a.Agent, err = s.fleet.Add(opt)
	s.must(err)
	return a
}

// read reads a file of an agent's disk, not by way of its file system.
func (a *disksAgent) read(name string) string {
	b, _ := os.ReadFile(filepath.Join(a.disk.Backing, name)) // not there yet: nothing is in it
	return string(b)
}

func (s *disksSite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err, s.tails())
	}
}

func (s *disksSite) tails() (all string) {
	for _, a := range []*disksAgent{s.hub, s.far} {
		if a != nil {
			log := a.read("data.log")
			all += "\n--- end of what " + a.Name + " says\n" + log[max(0, len(log)-4000):]
		}
	}
	return all
}

func (s *disksSite) until(what string, yes func() (ok bool, state string)) {
	s.t.Helper()
	for {
		ok, state := yes()
		if ok {
			return
		}
		if !fleet.Sleep(s.ctx, 50*time.Millisecond) {
			s.t.Fatalf("waited for %s; last seen: %s%s", what, state, s.tails())
		}
	}
}

// write appends so many lines to what the source reads.
func (s *disksSite) write(n int) {
	s.t.Helper()
	var b strings.Builder
	for range n {
		b.WriteString(reading(s.lines) + "\n")
		s.lines++
	}
	s.append(b.String())
}

// letter appends two lines that become dead letters: one that the source refuses, and one that the sum does.
func (s *disksSite) letter() {
	s.t.Helper()
	s.append(fmt.Sprintf("{\"no key\":%d}\n{\"k\":\"a\",\"no number\":%d}\n", s.letters, s.letters))
	s.letters += 2
}

func (s *disksSite) append(lines string) {
	s.t.Helper()
	f, err := os.OpenFile(s.readings, os.O_WRONLY|os.O_APPEND, 0)
	s.must(err)
	_, err = f.WriteString(lines)
	s.must(err)
	s.must(f.Close())
}

// cut cuts the gateway's link and waits until what it sends goes to its spool, or mends it.
func (s *disksSite) cut(down bool) {
	s.t.Helper()
	s.link.Refuse(down)
	if !down {
		return
	}
	s.link.CutAll(trial.Close)
	s.until("a spool", func() (bool, string) {
		s.write(100)
		st, err := s.far.Client().Status(s.ctx)
		n := uint64(0)
		for _, task := range st.Tasks {
			n += task.Spooled
		}
		return n > 0, fmt.Sprint(n, err)
	})
}

// says waits until an agent's status says something, and is ready all the same.
func (s *disksSite) says(a *disksAgent, what string) {
	s.t.Helper()
	if what == "" {
		return
	}
	s.until(a.Name+" to say "+what, func() (bool, string) {
		st, err := a.Client().Status(s.ctx)
		notices := strings.Join(st.Notices, "\n")
		return err == nil && st.Ready && strings.Contains(notices, what), fmt.Sprint(notices, err)
	})
	s.t.Log(a.Name, "says:", s.notices(a))
}

func (s *disksSite) notices(a *disksAgent) string {
	st, err := a.Client().Status(s.ctx)
	if err != nil {
		return err.Error()
	}
	return strings.Join(st.Notices, "\n  ")
}

// refused takes a checkpoint and, at the hub, uploads a module: neither is done, and the answer says so.
func (s *disksSite) refused(a *disksAgent) {
	s.t.Helper()
	if _, err := s.hub.Client().CheckpointNow(s.ctx, "disks", "", time.Second); err == nil {
		s.t.Errorf("a checkpoint was taken that cannot be on disk")
	}
	if a == s.hub {
		if err := s.push(); err == nil {
			s.t.Errorf("a module was taken that cannot be on disk")
		} else {
			s.t.Log("module:", err)
		}
	}
}

// push uploads a module that was not there before.
func (s *disksSite) push() error {
	s.pushes++
	other := append(append([]byte{}, s.module...), 0, 3, 1, 'x', s.pushes) // a custom section
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	_, err := s.hub.Client().PushModule(ctx, strings.NewReader(string(other)))
	return err
}

// settled waits until all has come out, once, checkpoints count, modules can be uploaded, and nobody has anything to
// say.
func (s *disksSite) settled() {
	s.t.Helper()
	s.comes(s.far, "near.txt", reading)
	s.comes(s.hub, "far.txt", func(i int) string { return fmt.Sprintf("%d {\"count\":%d}", i+1, i+1) })
	s.until("a checkpoint", func() (bool, string) {
		_, err := s.hub.Client().CheckpointNow(s.ctx, "disks", "", time.Minute)
		return err == nil, fmt.Sprint(err)
	})
	s.until("a module", func() (bool, string) {
		err := s.push()
		return err == nil, fmt.Sprint(err)
	})
	s.until("all dead letters", func() (bool, string) {
		st, err := s.far.Client().Status(s.ctx)
		n := uint64(0)
		for _, task := range st.Tasks {
			n += task.DeadLetters
		}
		return n == s.letters, fmt.Sprintf("%d of %d, %v", n, s.letters, err)
	})
	for _, a := range []*disksAgent{s.hub, s.far} {
		s.until(a.Name+" to say nothing", func() (bool, string) {
			said := s.notices(a)
			return said == "", said
		})
		if a.PID() != a.pid || !a.Running() {
			s.t.Fatalf("%s has ended%s", a.Name, s.tails())
		}
		st, err := a.Client().Status(s.ctx)
		s.must(err)
		for _, task := range st.Tasks {
			// What the sum refuses costs its task a way back within the process (L0).
			if a == s.hub && task.Restarts != 0 || task.Recovery != nil && task.Recovery.Level == "L1" {
				s.t.Fatalf("%s was restarted: %+v%s", task.ID, task.Recovery, s.tails())
			}
		}
	}
}

// comes waits until all that was written has come out of a sink, and checks it, line by line.
func (s *disksSite) comes(a *disksAgent, name string, line func(i int) string) {
	s.t.Helper()
	var got []string
	s.until("everything in "+name, func() (bool, string) {
		got = strings.SplitAfter(a.read(filepath.Join("data", "files", name)), "\n")
		got = got[:len(got)-1]
		return len(got) >= s.lines, fmt.Sprintf("%d of %d lines", len(got), s.lines)
	})
	if len(got) > s.lines {
		s.t.Fatalf("%s has %d lines, not %d", name, len(got), s.lines)
	}
	for i, l := range got {
		if want := line(i) + "\n"; l != want {
			s.t.Fatalf("line %d of %s is %q, not %q", i, name, l, want)
		}
	}
}
