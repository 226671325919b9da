package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestDir(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	first := d.Identity()
	if first.Name != "" || len(first.Instance) != 32 || d.Incarnation() != 1 || d.Path() != path {
		t.Fatalf("%+v, incarnation %d", first, d.Incarnation())
	}
	if err := d.SetName("gateway-1"); err != nil {
		t.Fatal(err)
	}
	_, err = OpenDir(path)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Fatalf("opened twice: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, err = OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if id := d.Identity(); id.Name != "gateway-1" || id.Instance != first.Instance || d.Incarnation() != 2 {
		t.Fatalf("%+v, incarnation %d", id, d.Incarnation())
	}
	seen := map[string]bool{}
	for _, p := range []string{d.LogPath(), d.StatePath(), d.CopiesPath(), d.BlobsPath()} {
		if filepath.Dir(p) != path || seen[p] {
			t.Errorf("path %s", p)
		}
		seen[p] = true
	}
}

func TestDirIsRefused(t *testing.T) {
	made := func(name, content string) string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	file := filepath.Join(made("x", ""), "x")
	for what, c := range map[string]struct{ dir, says string }{
		"newer format":      {made(formatName, "99\n"), "format version 99"},
		"no format":         {made(formatName, "?"), "format version"},
		"no identity":       {made(identityName, "{}"), identityName},
		"malformed":         {made(identityName, "{"), identityName},
		"worn out":          {made(identityName, `{"instance":"x","incarnation":4294967295}`), "2^32"},
		"a file":            {file, "not a directory"},
		"below a file":      {filepath.Join(file, "y"), "not a directory"},
		"lock is no file":   {lockless(t), "not writable"},
		"pseudo filesystem": {"/proc/self/fdinfo/x", "cannot be made"},
	} {
		d, err := OpenDir(c.dir)
		if err == nil {
			d.Close()
			t.Errorf("%s: opened", what)
			continue
		}
		if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.dir) {
			t.Errorf("%s: %v", what, err)
		}
		// A refused directory stays free.
		if what == "newer format" {
			if err := os.WriteFile(filepath.Join(c.dir, formatName), []byte("1"), 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := OpenDir(c.dir)
			if err != nil {
				t.Fatal(err)
			}
			d.Close()
		}
	}
}

// lockless is a directory where the lock file cannot be made.
func lockless(t *testing.T) string {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, lockName), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBlobs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blobs")
	b, err := OpenBlobs(dir)
	if err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("wasm"), 1000)
	names := []string{Digest(content), "ewma@1.2.0", "a/b c.tmp", ".hidden", "..", "Ä"}
	for _, n := range names {
		if ok, err := b.Has(n); ok || err != nil {
			t.Fatal(n, ok, err)
		}
		if err := b.PutBytes(n, []byte("old")); err != nil && !isDigest(n) {
			t.Fatal(err)
		}
		if err := b.Put(n, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "left"+tmpSuffix), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err = OpenBlobs(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "left"+tmpSuffix)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a temporary file is still there: %v", err)
	}
	list, err := b.List()
	if want := slices.Sorted(slices.Values(names)); err != nil || !slices.Equal(list, want) {
		t.Fatalf("%q, want %q, %v", list, want, err)
	}
	for _, n := range names {
		if got, err := b.Get(n); err != nil || !bytes.Equal(got, content) {
			t.Fatal(n, err)
		}
		r, size, err := b.Open(n)
		if err != nil || size != int64(len(content)) {
			t.Fatal(n, size, err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
			t.Fatal(n, err)
		}
		if err := errors.Join(r.Close(), b.Delete(n), b.Delete(n)); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Get(n); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(n, err)
		}
	}
}

func TestBlobContentIsChecked(t *testing.T) {
	dir := t.TempDir()
	b, err := OpenBlobs(dir)
	if err != nil {
		t.Fatal(err)
	}
	name := Digest([]byte("right"))
	if err := b.PutBytes(name, []byte("wrong")); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	if list, err := b.List(); len(list) > 0 || err != nil {
		t.Fatal(list, err)
	}
	if err := b.PutBytes(name, []byte("right")); err != nil {
		t.Fatal(err)
	}
	path, _ := b.fileOf(name)
	if err := os.WriteFile(path, []byte("rigHt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(name); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	if _, _, err := b.Open(name); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "sha256:", "sha256:zz", strings.ToUpper(name), "sha256:" + strings.ToUpper(name[7:]), strings.Repeat("x", 300)} {
		if bad == strings.ToUpper(name) {
			continue // no digest, a name like any other
		}
		if err := b.PutBytes(bad, nil); err == nil {
			t.Errorf("name %q was taken", bad)
		}
	}
}

// TestBlobsAcrossPowerCuts cuts the power in every call of a Put over an old blob: there is the old
// one or the new one, and the new one once Put has returned.
func TestBlobsAcrossPowerCuts(t *testing.T) {
	old, fresh := bytes.Repeat([]byte("o"), 5000), bytes.Repeat([]byte("n"), 7000)
	base := newCutFS()
	b, err := openBlobs("d", base)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.PutBytes("x", old); err != nil {
		t.Fatal(err)
	}
	seen := map[byte]bool{}
	for at := 1; at <= 8; at++ {
		for seed := range int64(10) {
			c := ofImage(base.image())
			c.cutAt = at
			b, err := openBlobs("d", c)
			if err != nil {
				t.Fatal(err)
			}
			err = b.PutBytes("x", fresh)
			b, openErr := openBlobs("d", c.after(rand.New(rand.NewSource(seed))))
			if openErr != nil {
				t.Fatal(openErr)
			}
			got, getErr := b.Get("x")
			if getErr != nil || !bytes.Equal(got, old) && !bytes.Equal(got, fresh) || err == nil && !bytes.Equal(got, fresh) {
				t.Fatalf("call %d, choice %d: %d bytes, %v, %v", at, seed, len(got), err, getErr)
			}
			seen[got[0]] = true
		}
	}
	if len(seen) != 2 {
		t.Error("the cuts did not leave both the old and the new one")
	}
}
