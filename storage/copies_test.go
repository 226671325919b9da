package storage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

func openCopies(t *testing.T, path string) *Copies {
	t.Helper()
	c, damage, err := OpenCopies(path)
	if err != nil || damage != nil {
		t.Fatal(err, damage)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestCopies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "local.db")
	c := openCopies(t, path)
	err := errors.Join(
		c.Put("job", "a", []byte("1")), c.Put("job", "b", []byte("2")), c.Put("job", "empty", nil),
		c.PutAll(Copy{"job", "b", []byte("3")}, Copy{"manifest", "a/1", []byte("m")}, Copy{"job", "a", nil}),
		c.Delete("none", "none"),
	)
	if err != nil {
		t.Fatal(err)
	}
	if c.Written() == 0 {
		t.Error("nothing was written")
	}
	for range 2 {
		v, ok, err := c.Get("job", "b")
		if string(v) != "3" || !ok || err != nil {
			t.Fatal(v, ok, err)
		}
		if v, ok, err := c.Get("job", "empty"); v == nil || len(v) > 0 || !ok || err != nil {
			t.Fatal(v, ok, err)
		}
		for _, kind := range []string{"job", "none"} {
			if _, ok, err := c.Get(kind, "a"); ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		var got []string
		err = c.List("job", func(k string, v []byte) error {
			got = append(got, k+"="+string(v))
			return nil
		})
		if want := []string{"b=3", "empty="}; err != nil || !slices.Equal(got, want) {
			t.Fatal(got, err)
		}
		if err := errors.Join(c.Check(), c.Close()); err != nil {
			t.Fatal(err)
		}
		c = openCopies(t, path)
	}
	if c.PutAll(Copy{"job", "x", []byte("1")}, Copy{"job", "", []byte("2")}) == nil {
		t.Fatal("a copy without key was stored")
	}
	if _, ok, _ := c.Get("job", "x"); ok {
		t.Fatal("half of a failed PutAll was stored")
	}
}

func TestDamagedCopyIsFound(t *testing.T) {
	c := openCopies(t, filepath.Join(t.TempDir(), "local.db"))
	if err := c.Put("job", "a", []byte("value")); err != nil {
		t.Fatal(err)
	}
	err := c.db.update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketCopies).Bucket([]byte("job"))
		stored := slices.Clone(b.Get([]byte("a")))
		stored[len(stored)-1] ^= 1
		return b.Put([]byte("a"), stored)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Get("job", "a"); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if err := c.List("job", func(string, []byte) error { return nil }); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if err := c.Check(); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func TestDamagedCopiesAreSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "local.db")
	if err := os.WriteFile(path, make([]byte, 9000), 0o600); err != nil {
		t.Fatal(err)
	}
	c, damage, err := OpenCopies(path)
	if err != nil || damage == nil {
		t.Fatal(damage, err)
	}
	defer c.Close()
	if err := c.Put("a", "b", nil); err != nil {
		t.Fatal(err)
	}
}

// TestWholeCopiesAreKept: of a file in which one copy is damaged, the others stay, and so does the file.
func TestWholeCopiesAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "local.db")
	c := openCopies(t, path)
	for _, key := range []string{"a", "b", "c"} {
		for _, kind := range []string{"job", "epoch"} {
			if err := c.Put(kind, key, []byte("value of "+kind+" "+key)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; ; at++ { // older pages have it too
		i := bytes.Index(b[at:], []byte("value of job b"))
		if i < 0 {
			break
		}
		at += i
		b[at] ^= 1
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	c, damage, err := OpenCopies(path)
	if err != nil || damage == nil || !errors.Is(damage, ErrCorrupt) || !strings.Contains(damage.Error(), "job/b") {
		t.Fatalf("%v, %v", damage, err)
	}
	defer c.Close()
	var got []string
	for _, kind := range []string{"job", "epoch"} {
		err := c.List(kind, func(key string, value []byte) error {
			got = append(got, kind+key+"="+string(value))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"joba=value of job a", "jobc=value of job c", "epocha=value of epoch a", "epochb=value of epoch b", "epochc=value of epoch c"}
	if !slices.Equal(got, want) {
		t.Errorf("there are %q", got)
	}
	if kept, err := os.ReadFile(damage.SetAside); err != nil || !bytes.Equal(kept, b) {
		t.Errorf("what was set aside is another file: %v", err)
	}
}
