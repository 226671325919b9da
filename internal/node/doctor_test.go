package node_test

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-stream/weir/internal/node"
)

// content is every file of a directory.
func content(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		out[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// diagnose looks at a directory and makes sure that this changes nothing.
func diagnose(t *testing.T, dir string) *node.Diagnosis {
	t.Helper()
	before := content(t, dir)
	d, err := node.Diagnose(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(before, content(t, dir), bytes.Equal) {
		t.Fatal("the directory was changed")
	}
	return d
}

func item(t *testing.T, d *node.Diagnosis, name string) node.DiagnosedItem {
	t.Helper()
	for _, i := range d.Items {
		if i.Name == name {
			return i
		}
	}
	t.Fatalf("nothing is said of %s: %+v", name, d.Items)
	return node.DiagnosedItem{}
}

func TestDiagnose(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	dir := t.TempDir()
	a := start(t, dir)
	if _, err := node.Diagnose(dir); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Fatalf("of an agent that runs: %v", err)
	}
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, a1)
	a.replicated("lines")
	f.write(t, "{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	a.stop()

	d := diagnose(t, dir)
	if !d.Fine() || d.Agent != "a" || d.Starts != 1 || len(d.Tasks) != 1 || d.Tasks[0].Job != "lines" || d.Tasks[0].Epoch == 0 {
		t.Fatalf("an agent that is well: %+v", d)
	}
	if _, err := node.Diagnose(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no directory of an agent") {
		t.Fatalf("an empty directory: %v", err)
	}

	whole := content(t, dir)
	segments, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("segments of the log: %v, %v", segments, err)
	}
	for _, c := range []struct {
		name, file, state string
		damage            func([]byte) []byte // nil: the file is removed
		task              string              // its state then
	}{
		{"log", segments[0], node.DiagnosedDamaged, func(b []byte) []byte { b[20] ^= 1; return b }, node.DiagnosedMissing},
		{"snapshots", filepath.Join(dir, "state.db"), node.DiagnosedDamaged, func(b []byte) []byte { clear(b[:8192]); return b }, node.DiagnosedMissing},
		{"snapshots", filepath.Join(dir, "state.db"), node.DiagnosedDamaged, func(b []byte) []byte { return b[:5000] }, node.DiagnosedMissing},
		{"snapshots", filepath.Join(dir, "state.db"), node.DiagnosedMissing, nil, node.DiagnosedMissing},
		{"local copies", filepath.Join(dir, "local.db"), node.DiagnosedDamaged, func([]byte) []byte { return nil }, ""},
		{"identity", filepath.Join(dir, "identity.json"), node.DiagnosedDamaged, func([]byte) []byte { return []byte("{}") }, ""},
		{"identity", filepath.Join(dir, "format"), node.DiagnosedFailed, func([]byte) []byte { return []byte("99\n") }, ""},
	} {
		if c.damage == nil {
			err = os.Remove(c.file)
		} else {
			err = os.WriteFile(c.file, c.damage(bytes.Clone(whole[c.file])), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		d := diagnose(t, dir)
		got := item(t, d, c.name)
		if d.Fine() || got.State != c.state || got.Detail == "" || got.Advice == "" && got.State != node.DiagnosedFailed {
			t.Errorf("%s, %s: %+v", c.name, c.file, got)
		}
		if c.task != "" && (len(d.Tasks) != 1 || d.Tasks[0].State != c.task || d.Tasks[0].Advice == "") {
			t.Errorf("%s, %s: tasks are %+v", c.name, c.file, d.Tasks)
		}
		if err := os.WriteFile(c.file, whole[c.file], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if d := diagnose(t, dir); !d.Fine() {
		t.Fatalf("all is as it was: %+v", d)
	}

	// A pipe in place of a file is damage, and not waited for.
	state := filepath.Join(dir, "state.db")
	if err := errors.Join(os.Remove(state), syscall.Mkfifo(state, 0o600)); err != nil {
		t.Fatal(err)
	}
	if d, err := node.Diagnose(dir); err != nil || item(t, d, "snapshots").State != node.DiagnosedDamaged {
		t.Fatalf("with a pipe: %+v, %v", d, err)
	}
	if err := errors.Join(os.Remove(state), os.WriteFile(state, whole[state], 0o600)); err != nil {
		t.Fatal(err)
	}

	// A file that an agent has set aside is told of, and is nothing wrong.
	if err := os.WriteFile(filepath.Join(dir, "state.db.damaged-1"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := diagnose(t, dir); !d.Fine() || item(t, d, "set aside").State != node.DiagnosedKept {
		t.Fatalf("with a file set aside: %+v", d)
	}
}
