package node_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// TestDamagedValue: the file of snapshots is whole, but values in it are not what was written. The snapshot is
// rejected once it has been tried; the task goes on from an older one, or the replica, and its log.
func TestDamagedValue(t *testing.T) {
	f := newFiles(t)
	dir := t.TempDir()
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	a.replicated("lines")
	a.stop()
	db, err := bolt.Open(filepath.Join(dir, "state.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("tasks")).ForEachBucket(func(task []byte) error {
			keys := tx.Bucket([]byte("tasks")).Bucket(task).Bucket([]byte("keys"))
			damaged := map[string][]byte{}
			err := keys.ForEach(func(k, v []byte) error {
				b := append([]byte{}, v...)
				b[len(b)-1] ^= 4
				damaged[string(k)] = b
				return nil
			})
			for k, v := range damaged {
				if err == nil {
					err = keys.Put([]byte(k), v)
				}
				changed++
			}
			return err
		})
	})
	if err == nil {
		err = db.Close()
	}
	if err != nil || changed == 0 {
		t.Fatalf("%d values damaged, %v", changed, err)
	}
	a = start(t, dir)
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, a1, b1, a2)
	a.replicated("lines")
	a.stop()
	a = start(t, dir) // and what was saved on top of it is as good
	f.write(t, "{\"k\":\"b\"}\n")
	f.wants(a, a1, b1, `3 a {"count":2}`, `4 b {"count":2}`)
}

// TestOldSnapshots: the file of snapshots is an old copy, beyond which the log has been given up. The task goes on from
// the replica.
func TestOldSnapshots(t *testing.T) {
	f := newFiles(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "state.db")
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	a.replicated("lines")
	a.stop()
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	a = start(t, dir)
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, a1, b1, a2)
	a.replicated("lines")
	a.stop()
	if err := os.WriteFile(file, old, 0o600); err != nil {
		t.Fatal(err)
	}
	a = start(t, dir)
	f.write(t, "{\"k\":\"b\"}\n")
	f.wants(a, a1, b1, a2, `4 b {"count":2}`)
	a.replicated("lines")
}

// TestDamagedWhileRunning: the file of snapshots is damaged under the agent that has it open. The agent begins anew by
// itself, with the file set aside.
func TestDamagedWhileRunning(t *testing.T) {
	f := newFiles(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "state.db")
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	a.replicated("lines")
	if n := damageManifests(t, file); n == 0 {
		t.Fatal("no manifest was found")
	}
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, a1, b1, a2)
	a.until("the file is set aside", func() (bool, string) {
		_, err := os.Stat(file + ".damaged-1")
		return err == nil, fmt.Sprint(err)
	})
	f.write(t, "{\"k\":\"b\"}\n")
	f.wants(a, a1, b1, a2, `4 b {"count":2}`)
	a.again()
	a.replicated("lines")
}

// damageManifests flips a bit in each manifest of a file of snapshots, in place.
func damageManifests(t *testing.T, file string) (n int) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	twin := filepath.Join(t.TempDir(), "twin.db")
	if err := os.WriteFile(twin, b, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(twin, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("tasks")).ForEachBucket(func(task []byte) error {
			return tx.Bucket([]byte("tasks")).Bucket(task).Bucket([]byte("parts")).ForEach(func(_, v []byte) error {
				at := bytes.Index(b, v)
				for ; at >= 0; at += 1 { // old pages have it too
					i := bytes.Index(b[at:], v)
					if i < 0 {
						break
					}
					at += i
					if _, err := f.WriteAt([]byte{v[0] ^ 0x40}, int64(at)); err != nil {
						return err
					}
					n++
				}
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
