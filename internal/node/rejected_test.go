package node_test

import (
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
