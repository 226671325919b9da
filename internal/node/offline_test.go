package node_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
	"github.com/weir-stream/weir/internal/trial"
)

// uplink is a way to a NATS server that can be cut.
type uplink struct {
	l      net.Listener
	mu     sync.Mutex
	target string
	down   bool
	conns  []net.Conn
}

func newUplink(t *testing.T, target string) *uplink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &uplink{l: l, target: target}
	t.Cleanup(func() { l.Close(); u.set(true, "") })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			u.carry(c)
		}
	}()
	return u
}

func (u *uplink) url() string { return "nats://" + u.l.Addr().String() }

func (u *uplink) carry(c net.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.down {
		c.Close()
		return
	}
	far, err := net.Dial("tcp", u.target)
	if err != nil {
		c.Close()
		return
	}
	u.conns = append(u.conns, c, far)
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // ends with either connection
		to.Close()
		from.Close()
	}
	go pipe(far, c)
	go pipe(c, far)
}

// set cuts the way, or opens it, to another place if one is given.
func (u *uplink) set(down bool, target string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.down = down
	if target != "" {
		u.target = target
	}
	for _, c := range u.conns {
		c.Close()
	}
	u.conns = nil
}

const offlineJob = `name: offline
checkpoint: {interval: 200ms, timeout: 2s, detach_after: 1s}
sources:
  text: {file: {path: %q, follow: true}, key: {json: k}, on: {role: gateway}}
operators:
  total: {native: count, from: text, on: {role: hub}}
sinks:
  near: {file: {path: %q, line: "{value}"}, from: text}
  far: {file: {path: %q, line: "{number} {value}"}, from: total}
`

// leafJob has a channel between two tasks of the gateway, too.
const leafJob = `name: offline
checkpoint: {interval: 200ms, timeout: 2s, detach_after: 1s}
sources:
  text: {file: {path: %q, follow: true}, key: {json: k}, on: {role: gateway}}
  more: {file: {path: %q, follow: true}, key: {json: k}, on: {role: gateway}}
operators:
  each: {native: count, from: [text, more]}
  total: {native: count, from: each, on: {role: hub}}
sinks:
  near: {file: {path: %q, line: "{value}"}, from: each}
  far: {file: {path: %q, line: "{number} {value}"}, from: total}
`

// offlineSite is a hub and a gateway that reaches it by an uplink. What the gateway's file says comes out
// of a sink on the gateway, and, counted, of one on the hub.
type offlineSite struct {
	t           *testing.T
	leaf        bool // the gateway has a server of its own, which is a leaf node of the hub's
	hub, gate   *agent
	hubDir, dir string
	up          *uplink
	in          files
	near, far   string
	lines       int
}

func newOfflineSite(t *testing.T, leaf bool) *offlineSite {
	return newOfflineSiteAt(t, leaf, t.TempDir())
}

// newOfflineSiteAt has the hub's directory somewhere.
func newOfflineSiteAt(t *testing.T, leaf bool, hubDir string) *offlineSite {
	s := &offlineSite{t: t, leaf: leaf, hubDir: hubDir, dir: t.TempDir(), in: newFiles(t)}
	s.near, s.far = filepath.Join(t.TempDir(), "near"), filepath.Join(t.TempDir(), "far")
	s.bootHub()
	s.up = newUplink(t, s.hub.at.NATS)
	if leaf {
		s.up.set(false, s.hub.at.Leaf)
	}
	s.boot()
	s.hub.until("both agents are there", func() (bool, string) {
		list, err := s.hub.client.Agents(t.Context())
		return err == nil && api.Up(list) == 2, fmt.Sprint(list, err)
	})
	if leaf {
		empty := newFiles(t)
		s.hub.mustApply(fmt.Sprintf(leafJob, s.in.in, empty.in, s.near, s.far))
	} else {
		s.hub.mustApply(fmt.Sprintf(offlineJob, s.in.in, s.near, s.far))
	}
	return s
}

func (s *offlineSite) bootHub() {
	opt := node.Options{Data: s.hubDir, Name: "hub", NATSListen: "127.0.0.1:0", Labels: map[string]string{"role": "hub"}}
	if s.leaf {
		opt.LeafListen, opt.Auth.NATS = "127.0.0.1:0", node.Credential{User: "fleet", Password: "secret"}
	}
	s.hub = startWith(s.t, opt)
}

func (s *offlineSite) boot() {
	opt := node.Options{Data: s.dir, Name: "gate", NATS: s.up.url(), Labels: map[string]string{"role": "gateway"}}
	if s.leaf {
		opt.NATS, opt.Leaf, opt.NATSListen, opt.MQTTListen = "", s.up.url(), "127.0.0.1:0", "127.0.0.1:0"
		opt.Auth.Leaf = node.Credential{User: "fleet", Password: "secret"}
	}
	s.gate = startWith(s.t, opt)
}

// write appends so many lines to the gateway's file.
func (s *offlineSite) write(n int) {
	s.t.Helper()
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "{\"k\":\"a\",\"n\":%d,\"text\":%q}\n", s.lines, strings.Repeat("x", 80))
		s.lines++
	}
	s.in.write(s.t, b.String())
}

// comes waits until all that was written has come out of a sink, and checks it, line by line.
func (s *offlineSite) comes(a *agent, path string, line func(i int) string) {
	s.t.Helper()
	var got []string
	a.until("everything has come out of "+filepath.Base(path), func() (bool, string) {
		b, err := os.ReadFile(path)
		got = strings.SplitAfter(string(b), "\n")
		got = got[:len(got)-1]
		return len(got) >= s.lines, fmt.Sprintf("%d of %d lines, %v", len(got), s.lines, err)
	})
	if len(got) > s.lines {
		s.t.Fatalf("%s has %d lines, not %d", path, len(got), s.lines)
	}
	for i, l := range got {
		if want := line(i) + "\n"; l != want {
			s.t.Fatalf("line %d of %s is %q, not %q", i, path, l, want)
		}
	}
}

func (s *offlineSite) comesNear() {
	s.t.Helper()
	if s.leaf {
		s.comes(s.gate, s.near, func(i int) string { return fmt.Sprintf("{\"count\":%d}", i+1) })
		return
	}
	s.comes(s.gate, s.near, func(i int) string {
		return fmt.Sprintf("{\"k\":\"a\",\"n\":%d,\"text\":%q}", i, strings.Repeat("x", 80))
	})
}

func (s *offlineSite) comesFar() {
	s.t.Helper()
	s.comes(s.hub, s.far, func(i int) string { return fmt.Sprintf("%d {\"count\":%d}", i+1, i+1) })
}

// spooled is how many items wait on the gateway's disk.
func (s *offlineSite) spooled() (n uint64) {
	s.t.Helper()
	st, err := s.gate.client.Status(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, task := range st.Tasks {
		n += task.Spooled
	}
	return n
}

// TestLocalSinkWithDeadUplink: a task has a sink on its device and an output to a hub that cannot be
// reached. The sink goes on, over restarts of the device, and when the hub is there again it gets all that it
// lacks, in order, and no task of it is restarted.
func TestLocalSinkWithDeadUplink(t *testing.T) { newOfflineSite(t, false).nights() }

// TestLeafNodeWithDeadUplink: the same of a gateway with a server of its own. A channel between two tasks of the
// gateway goes on as well.
func TestLeafNodeWithDeadUplink(t *testing.T) { newOfflineSite(t, true).nights() }

func (s *offlineSite) nights() {
	s.write(100)
	s.comesNear()
	s.comesFar()
	s.up.set(true, "")
	many := 20_000 // far more than an output holds in memory
	if s.leaf {
		many = 50_000 // of counts, which are small
	}
	s.write(many)
	s.comesNear()
	s.gate.until("what is not sent is on disk", func() (bool, string) {
		n := s.spooled()
		return n > uint64(many)/3, fmt.Sprint(n, " items are")
	})
	for range 2 {
		s.gate.stop()
		s.write(5_000)
		s.boot()
		s.write(5_000)
		s.comesNear()
	}
	s.up.set(false, "")
	s.write(100)
	s.comesNear()
	s.comesFar()
	s.gate.until("nothing is left on disk to be sent", func() (bool, string) {
		n := s.spooled()
		return n == 0, fmt.Sprint(n, " items are")
	})
	s.nothingRestarted()
}

// TestWaitedForWhenDrained: checkpoints go on without a gateway that is away. When it is back they wait for it again
// once what it kept is with its receivers, and no sooner: until then its barriers would hold up everybody else.
func TestWaitedForWhenDrained(t *testing.T) {
	t.Parallel()
	s := newOfflineSite(t, false)
	s.write(100)
	s.comesFar()
	s.up.set(true, "")
	without := func() (away []string, known bool) {
		j, err := s.hub.client.Job(t.Context(), "offline")
		if err != nil {
			t.Fatal(err)
		}
		return j.Without, j.Running != nil || j.Waits != ""
	}
	s.hub.until("checkpoints go on without the gateway", func() (bool, string) {
		away, _ := without()
		return len(away) == 1 && away[0] == "gate", fmt.Sprint("without ", away)
	})
	s.write(5_000)
	s.comesNear()
	narrow, err := trial.NewProxy(s.hub.at.NATS)
	if err != nil {
		t.Fatal(err)
	}
	defer narrow.Close()
	go narrow.Run()
	narrow.Slow(0, 100<<10) // the backlog takes some seconds
	s.up.set(false, narrow.Addr())
	s.hub.until("the gateway is waited for again", func() (bool, string) {
		away, known := without()
		return known && len(away) == 0, fmt.Sprint("without ", away)
	})
	s.up.set(true, "") // what it has not handed over by now does not come
	s.hub.until("all that it kept has come", func() (bool, string) {
		got, err := os.ReadFile(s.far)
		n := strings.Count(string(got), "\n")
		return err == nil && n >= s.lines, fmt.Sprintf("%d of %d records, %v", n, s.lines, err)
	})
	s.up.set(false, narrow.Addr())
	s.nothingRestarted()
}

// nothingRestarted checks that no task was.
func (s *offlineSite) nothingRestarted() {
	s.t.Helper()
	j, err := s.hub.client.Job(s.t.Context(), "offline")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, task := range j.Tasks {
		if task.Restarts != 0 {
			s.t.Errorf("%s was restarted: %s", task.ID, task.Reason)
		}
	}
}

// TestLeafNodesOwnListener: a source without a broker is planned on a leaf node, which has a listener of its own; for
// other agents it has none.
func TestLeafNodesOwnListener(t *testing.T) {
	s := newOfflineSite(t, true)
	for role, want := range map[string]string{"gateway": "", "hub": "agent hub reaches no MQTT listener"} {
		yaml := fmt.Sprintf("name: own\nsources: {s: {mqtt: {topics: [t]}, on: {role: %s}}}\nsinks: {l: {log: {}, from: s}}\n", role)
		_, err := s.hub.client.PlanJob(t.Context(), api.JobSource{File: "own.yaml", YAML: yaml})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("on %s: %v, want %q", role, err, want)
		}
	}
}
