package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/node"
)

// damage is what happens to a file.
type damage func(t *testing.T, path string)

// bytesOf makes a damage of what becomes of a file's bytes.
func bytesOf(f func(b []byte) []byte) damage {
	return func(t *testing.T, path string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, f(bytes.Clone(b)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

var (
	empty = bytesOf(func([]byte) []byte { return nil })
	// cut: to a length in the midst of what is in use. A database file has room at its end.
	cut = bytesOf(func(b []byte) []byte { return b[:min(len(b)*2/3, 18<<10)] })
	// headless: a write of zeros to the beginning.
	headless = bytesOf(func(b []byte) []byte { clear(b[:min(len(b), 8192)]); return b })
	// holed: zeros in the midst, in whole blocks.
	holed = bytesOf(func(b []byte) []byte { clear(b[12<<10 : 32<<10]); return b })
	// flipped: one bit in every 512 bytes.
	flipped = bytesOf(func(b []byte) []byte {
		for i := 20; i < len(b); i += 512 {
			b[i] ^= 4
		}
		return b
	})
	flippedOnce = bytesOf(func(b []byte) []byte { b[len(b)*2/3] ^= 16; return b })
)

// blocked: the file cannot be read, since a directory has its name.
func blocked(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
}

func gone(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// valueOf flips a bit in the first value that has this text in it, which leaves the file's structure whole.
func valueOf(text string) damage {
	return bytesOf(func(b []byte) []byte {
		for at := 0; ; {
			i := bytes.Index(b[at:], []byte(text))
			if i < 0 {
				return b
			}
			b[at+i] ^= 1
			at += i + 1
		}
	})
}

// TestDamagedFiles damages the files of the agents of one running job, one after the other. The doctor says what is
// wrong and changes nothing; the agent starts, sets aside what it cannot use, says so with its age, and goes on: from
// the replica if the snapshots are gone, or, if what its log alone knew is, by the job's policy. The sums are exact.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	s := newSite(t, "recovery: {replace: automatic}\n")
	s.mustApply(s.yaml)
	const snapshots, copies, log = "state.db", "local.db", "log/*.seg"
	items := map[string]string{snapshots: "snapshots", copies: "local copies", log: "log"}
	count := 0
	for _, c := range []struct {
		agent, file, how string
		do               damage
		level            string // by which the agent's task comes back
	}{
		{"hub", snapshots, "empty", empty, "L2"},
		{"hub", snapshots, "cut", cut, "L2"},
		{"hub", snapshots, "blocked", blocked, "L2"},
		{"g1", snapshots, "flipped", flipped, "L2"},
		{"g1", snapshots, "gone", gone, "L2"},
		{"g1", snapshots, "holed", holed, "L2"},
		{"hub", copies, "empty", empty, "L1"},
		{"hub", copies, "holed", holed, "L1"},
		{"g1", copies, "one value", valueOf(`"revision"`), "L1"},
		{"g1", copies, "blocked", blocked, "L1"},
		{"g1", log, "flipped once", flippedOnce, "L3"},
		{"g1", log, "blocked", blocked, "L3"},
		{"hub", log, "headless", headless, "L4"},
	} {
		what := fmt.Sprintf("%s of %s, %s", c.file, c.agent, c.how)
		task := map[string]string{"hub": "total/0", "g1": "text@g1"}[c.agent]
		dir := s.opts[c.agent].Data
		s.write("g1", "a")
		count++
		s.last("now", "a", count)
		s.replicated("lines")
		if c.level != "L3" && c.level != "L4" { // what follows the checkpoint is in the log alone
			s.write("g1", "a")
			count++
			s.last("now", "a", count)
		}
		s.stop(c.agent)
		if d := diagnose(t, dir); !d.Fine() {
			t.Fatalf("%s: before: %+v", what, d)
		}
		files, err := filepath.Glob(filepath.Join(dir, c.file))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", what, files, err)
		}
		c.do(t, files[len(files)-1])
		state := node.DiagnosedDamaged
		if c.how == "gone" {
			state = node.DiagnosedMissing
		}
		d := diagnose(t, dir)
		if got := item(t, d, items[c.file]); d.Fine() || got.State != state || got.Detail == "" || got.Advice == "" {
			t.Errorf("%s: the doctor says %+v", what, got)
		}
		s.write("g1", "a")
		count++
		s.start(c.agent)
		s.last("now", "a", count)
		r := s.recovered(task, c.level)
		if c.level == "L2" && !strings.Contains(r.Reason, "ago") {
			t.Errorf("%s: nothing is said of the age: %q", what, r.Reason)
		}
		status, err := s.agents[c.agent].client.Status(t.Context())
		if said := strings.Join(status.Notices, "\n"); err != nil || state == node.DiagnosedDamaged &&
			(!strings.Contains(said, ".damaged-") || !strings.Contains(said, "written 20")) {
			t.Errorf("%s: the agent says %q, %v", what, said, err)
		}
		if s.task(task).Restarts != 0 {
			t.Errorf("%s: %+v", what, s.task(task))
		}
	}
	s.replicated("lines")
	var want []string
	for i := range count {
		want = append(want, fmt.Sprintf("a%d", i+1))
	}
	s.onceByNumber("held", strings.Join(want, " "))
	for _, name := range []string{"hub", "g1"} {
		s.stop(name)
		d := diagnose(t, s.opts[name].Data)
		if !d.Fine() || item(t, d, "set aside").State != node.DiagnosedKept {
			t.Errorf("%s at the end: %+v", name, d)
		}
	}
}
