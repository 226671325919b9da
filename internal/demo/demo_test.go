package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/ledger"
)

// program builds the agent's binary.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/weir-stream/weir/cmd/agent").CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	return path
}

// TestDemo plays the whole demo with real processes, with fewer sensors and a shorter stream, then lets
// it be kept, kills an agent, and interrupts it.
func TestDemo(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	out := &output{lines: make(chan string, 1000)}
	ctx, interrupt := context.WithCancel(t.Context())
	s := script{program: program(t), keep: true, sensors: 60, every: 250 * time.Millisecond, stream: 1500 * time.Millisecond, down: 300 * time.Millisecond}
	ended := make(chan error, 1)
	go func() { ended <- play(ctx, s, out) }()
	deadline := time.After(5 * time.Minute)
	next := func(pattern string) string {
		t.Helper()
		re := regexp.MustCompile(pattern)
		for {
			select {
			case line := <-out.lines:
				if m := re.FindStringSubmatch(line); m != nil {
					return m[len(m)-1]
				}
			case err := <-ended:
				t.Fatalf("ended before a line like %s: %v\n%s", pattern, err, out)
			case <-deadline:
				t.Fatalf("no line like %s\n%s", pattern, out)
			}
		}
	}
	for _, pattern := range []string{
		`kill -9 gateway-1`, `first new output`, `kill -9 hub`, `first new output`, `sensors have stopped`,
		`^sent +[1-9]`, `^lost +0`, `^duplicated +0`, `^checkpoints +[1-9]`,
		`^hub +1 +1 +[0-9.]+ s +L1`, `^gateway-1 +1 +1 +[0-9.]+ s`, `^gateway-2 +0 +0 +-`, `^EXACT`,
	} {
		next(pattern)
	}
	pid := next(`kill -9 (\d+)  # gateway-2`)
	if out, err := exec.Command("sh", "-c", "kill -9 "+pid).CombinedOutput(); err != nil {
		t.Fatalf("kill: %v %s", err, out)
	}
	next(`gateway-2 runs as process`)
	interrupt()
	if err := <-ended; err != nil {
		t.Errorf("interrupted after an exact verdict: %v", err)
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if exec.Command("sh", "-c", "kill -0 "+pid).Run() == nil {
		t.Errorf("process %s is still there", pid)
	}
}

// output gives lines to the test and keeps all of it.
type output struct {
	lines chan string
	mu    sync.Mutex
	all   bytes.Buffer
	rest  string
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all.Write(b)
	parts := strings.Split(o.rest+string(b), "\n")
	for _, line := range parts[:len(parts)-1] {
		o.lines <- line
	}
	o.rest = parts[len(parts)-1]
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

// What ends before its verdict says so, tells what the agents said, and leaves nothing behind.
func TestDemoFails(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := t.TempDir()
	broken := filepath.Join(dir, "agent")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho this is the output\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := play(t.Context(), script{program: broken, sensors: 1, every: time.Second}, &out)
	if err == nil || !strings.Contains(err.Error(), "agent hub ended") || !strings.Contains(err.Error(), "this is the output") {
		t.Errorf("%v", err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if err := play(ctx, script{program: broken}, &out); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("%v", err)
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestVerdict(t *testing.T) {
	record := func(channel string, number, count, seq uint64) ledger.Record {
		return ledger.Record{Sensor: "s", Channel: channel, Number: number, Count: count, Seq: seq}
	}
	for _, k := range []struct {
		name  string
		note  func(*ledger.Ledger)
		diff  uint64
		exact bool
		has   string
	}{
		{name: "exact", note: func(l *ledger.Ledger) { l.Sent("s", 1); l.Seen(record("a", 1, 1, 1)) }, exact: true, has: "EXACT: every reading"},
		{name: "nothing sent", note: func(*ledger.Ledger) {}, has: "NOT EXACT"},
		{name: "lost", note: func(l *ledger.Ledger) { l.Sent("s", 1) }, has: "lost                     1"},
		{name: "twice", note: func(l *ledger.Ledger) { l.Sent("s", 1); l.Seen(record("a", 1, 1, 1)); l.Seen(record("b", 1, 1, 1)) }, has: "duplicated               1"},
		{name: "altered", note: func(l *ledger.Ledger) { l.Sent("s", 1); l.Seen(record("a", 1, 1, 1)); l.Seen(record("a", 1, 2, 1)) }, has: "altered                  1"},
		{name: "alien", note: func(l *ledger.Ledger) {
			l.Sent("s", 1)
			l.Seen(record("a", 1, 1, 1))
			l.SeenOther(errors.New("odd"))
		}, has: "not a record: odd"},
		{name: "repeated", note: func(l *ledger.Ledger) { l.Sent("s", 1); l.Seen(record("a", 1, 1, 1)); l.Seen(record("a", 1, 1, 1)) }, exact: true, has: "repeats on the last hop  1"},
		{name: "replay differs", note: func(l *ledger.Ledger) { l.Sent("s", 1); l.Seen(record("a", 1, 1, 1)) }, diff: 1, has: "NOT EXACT"},
	} {
		t.Run(k.name, func(t *testing.T) {
			l := ledger.New()
			k.note(l)
			o := outcome{verdict: l.Verdict(), agents: []agentOutcome{{name: "hub", differed: k.diff}}}
			if o.exact() != k.exact || !strings.Contains(o.table(), k.has) {
				t.Errorf("exact %v, want %v and %q in\n%s", o.exact(), k.exact, k.has, o.table())
			}
		})
	}
}
