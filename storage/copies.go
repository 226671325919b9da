package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
	bolt "go.etcd.io/bbolt"
)

const copiesFormat = 1

// Copies are an agent's own copies of what the control plane knows (jobs, plans, manifests), so that
// it can go on without it. They have a file of their own: a damaged snapshot file does not take the
// jobs with it, and a large snapshot does not make them wait. All is durable on return; values are
// checked when read.
type Copies struct {
	db *database
}

var bucketCopies = []byte("copies") // kind → bucket: key → checksum (8 bytes), value

// OpenCopies opens the file or makes it. A damaged one is set aside, reported, and replaced. If its
// structure is whole, and copies in it are damaged, the new file has the others.
func OpenCopies(path string) (*Copies, *Damage, error) {
	var whole []Copy
	db, damage, err := openDatabase(path, copiesFormat, content{
		begin: func(tx *bolt.Tx) error {
			if _, err := tx.CreateBucket(bucketCopies); err != nil {
				return err
			}
			for _, x := range whole {
				if err := putCopy(tx, x); err != nil {
					return err
				}
			}
			return nil
		},
		verify: func(tx *bolt.Tx, db *database) (err error) {
			whole, err = wholeCopies(tx, &Copies{db: db})
			return err
		},
	})
	if err != nil {
		return nil, damage, err
	}
	return &Copies{db: db}, damage, nil
}

// wholeCopies reads all copies and returns those that match their checksums; the error is about the others.
func wholeCopies(tx *bolt.Tx, c *Copies) (list []Copy, err error) {
	root := tx.Bucket(bucketCopies)
	if root == nil {
		return nil, fmt.Errorf("%w: %s has no bucket of copies", ErrCorrupt, c.db.path)
	}
	var bad []error
	err = root.ForEachBucket(func(kind []byte) error {
		return root.Bucket(kind).ForEach(func(k, stored []byte) error {
			v, err := c.parse(string(kind), k, stored)
			if err != nil {
				bad = append(bad, err)
				return nil
			}
			list = append(list, Copy{string(kind), string(k), cloneValue(v)})
			return nil
		})
	})
	return list, errors.Join(append(bad, err)...)
}

// Close closes the file.
func (c *Copies) Close() error { return c.db.close() }

// Written is how many bytes were written to the disk since it was opened.
func (c *Copies) Written() int64 { return c.db.written() }

// Copy is one copy. Kind and key must not be empty; a nil value deletes the copy.
type Copy struct {
	Kind, Key string
	Value     []byte
}

// Put stores a copy.
func (c *Copies) Put(kind, key string, value []byte) error {
	if value == nil {
		value = []byte{}
	}
	return c.PutAll(Copy{kind, key, value})
}

// Delete removes a copy, if it is there.
func (c *Copies) Delete(kind, key string) error { return c.PutAll(Copy{kind, key, nil}) }

// PutAll stores and deletes copies, all or none.
func (c *Copies) PutAll(list ...Copy) error {
	err := c.db.update(func(tx *bolt.Tx) error {
		for _, x := range list {
			if err := putCopy(tx, x); err != nil {
				return fmt.Errorf("copy %s/%s: %w", x.Kind, x.Key, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", c.db.path, err)
	}
	return nil
}

func putCopy(tx *bolt.Tx, x Copy) error {
	b, err := tx.Bucket(bucketCopies).CreateBucketIfNotExists([]byte(x.Kind))
	if err != nil {
		return err
	}
	if x.Value == nil {
		return b.Delete([]byte(x.Key))
	}
	stored := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(x.Value)), copySum(x.Kind, []byte(x.Key), x.Value))
	return b.Put([]byte(x.Key), append(stored, x.Value...))
}

func copySum(kind string, key, value []byte) uint64 {
	return xxh3.HashSeed(value, xxh3.HashSeed(key, xxh3.HashString(kind)))
}

// Get returns a copy; false if there is none.
func (c *Copies) Get(kind, key string) ([]byte, bool, error) {
	var value []byte
	found := false
	err := c.db.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketCopies).Bucket([]byte(kind))
		if b == nil {
			return nil
		}
		stored := b.Get([]byte(key))
		if stored == nil {
			return nil
		}
		found = true
		v, err := c.parse(kind, []byte(key), stored)
		value = cloneValue(v)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return value, found, nil
}

func (c *Copies) parse(kind string, key, stored []byte) ([]byte, error) {
	if len(stored) < 8 || binary.BigEndian.Uint64(stored) != copySum(kind, key, stored[8:]) {
		return nil, fmt.Errorf("%w: %s: copy %s/%s does not match its checksum", ErrCorrupt, c.db.path, kind, key)
	}
	return stored[8:], nil
}

// List visits all copies of a kind by key. The value is borrowed until visit returns, which must not
// write copies.
func (c *Copies) List(kind string, visit func(key string, value []byte) error) error {
	visitCopy := shield(func(x Copy) error { return visit(x.Key, x.Value) })
	return c.db.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketCopies).Bucket([]byte(kind))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, stored []byte) error {
			v, err := c.parse(kind, k, stored)
			if err != nil {
				return err
			}
			return visitCopy(Copy{kind, string(bytes.Clone(k)), v})
		})
	})
}

// Check verifies the file and every copy in it.
func (c *Copies) Check() error {
	if err := c.db.check(); err != nil {
		return err
	}
	return c.db.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketCopies).ForEachBucket(func(kind []byte) error {
			return tx.Bucket(bucketCopies).Bucket(kind).ForEach(func(k, stored []byte) error {
				_, err := c.parse(string(kind), k, stored)
				return err
			})
		})
	})
}
