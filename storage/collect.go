package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/weir-stream/weir/dataflow"
	bolt "go.etcd.io/bbolt"
)

// collectBatch is how many keys one transaction of Drop looks at, so that a Save waits for it no
// longer than some milliseconds.
const collectBatch = 4096

// Drop forgets all of a task's parts but these and removes what no remaining part needs. Versions
// that the task does not have as usable parts are an error, and nothing is done. The newest usable
// part is kept in any case: the next increment builds upon it. If much has to be looked at, the parts
// are forgotten in the first of several transactions; after a power cut in between, the next Drop
// goes on.
func (s *Store) Drop(task string, keep []dataflow.Version) error {
	return s.DropAll(Kept{task, keep})
}

// Kept says which parts of a task are to be kept.
type Kept struct {
	Task     string
	Versions []dataflow.Version
}

// DropAll is Drop for several tasks: what is little work shares one transaction. An error about one task
// means that nothing is done for any, unless much had to be looked at.
func (s *Store) DropAll(keep ...Kept) error {
	much := map[string]dropWork{}
	err := s.db.update(func(tx *bolt.Tx) error {
		looked := 0
		for _, k := range keep {
			work, err := s.forget(tx, k.Task, k.Versions)
			if err != nil {
				return err
			}
			looked += len(work.prefixes)
			if looked > collectBatch || work.sweep {
				much[k.Task] = work
				continue
			}
			if err := s.collect(tx, k.Task, work.prefixes); err != nil {
				return err
			}
			if err := s.finishDrop(tx, k.Task, work); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, k := range keep {
		if work, ok := much[k.Task]; ok {
			if err := s.collectMuch(k.Task, work); err != nil {
				return err
			}
		}
		if err := s.repack(k.Task); err != nil {
			return err
		}
	}
	return nil
}

// dropWork says what a Drop has to look at.
type dropWork struct {
	changed  []dataflow.Version // that have a list of changed keys
	prefixes [][]byte           // on these lists
	sweep    bool               // all keys
	gone     []dataflow.Version // rejected parts to be forgotten at the end
	oldest   dataflow.Version   // that is kept
	floor    dataflow.Version   // of the oldest
}

func (s *Store) forget(tx *bolt.Tx, task string, keep []dataflow.Version) (dropWork, error) {
	var w dropWork
	t, list, err := s.open(tx, task, 0)
	if err != nil {
		return w, err
	}
	for _, v := range keep {
		if _, err := t.find(list, v); err != nil {
			return w, fmt.Errorf("drop all but %v: %w", keep, err)
		}
	}
	last, _ := newest(list)
	for _, p := range list {
		v := p.info.Version
		kept := slices.Contains(keep, v) || v == last.info.Version
		switch {
		case p.rejected:
			w.gone = append(w.gone, v)
			w.sweep = true // not all of its keys need be listed
		case !kept:
			if err := t.parts.Delete(versionKey(v)); err != nil {
				return w, err
			}
		case w.oldest == 0:
			w.oldest, w.floor = v, p.floor
		}
	}
	w.sweep = w.sweep || t.number(keySwept) < w.floor
	return w, t.chang.ForEach(func(k, b []byte) error {
		w.changed = append(w.changed, dataflow.Version(binary.BigEndian.Uint64(k)))
		return eachKey(bytes.Clone(b), func(prefix []byte) error {
			w.prefixes = append(w.prefixes, prefix)
			return nil
		})
	})
}

// collectMuch does the rest of a Drop in several transactions.
func (s *Store) collectMuch(task string, w dropWork) error {
	for batch := range slices.Chunk(w.prefixes, collectBatch) {
		err := s.db.update(func(tx *bolt.Tx) error { return s.collect(tx, task, batch) })
		if err != nil {
			return err
		}
	}
	if w.sweep {
		if err := s.collectAll(task); err != nil {
			return err
		}
	}
	return s.db.update(func(tx *bolt.Tx) error { return s.finishDrop(tx, task, w) })
}

// collect looks at some keys.
func (s *Store) collect(tx *bolt.Tx, task string, prefixes [][]byte) error {
	g, err := s.collector(tx, task)
	if err != nil {
		return err
	}
	slices.SortFunc(prefixes, bytes.Compare)
	for _, prefix := range slices.CompactFunc(prefixes, bytes.Equal) {
		if _, err := g.key(prefix); err != nil {
			return err
		}
	}
	return g.remove()
}

// collectAll looks at all keys.
func (s *Store) collectAll(task string) error {
	var from []byte
	for done := false; !done; {
		err := s.db.update(func(tx *bolt.Tx) error {
			g, err := s.collector(tx, task)
			if err != nil {
				return err
			}
			k, _ := g.c.Seek(from)
			for n := 0; k != nil && n < collectBatch; n++ {
				prefix, _, err := splitKey(k)
				if err != nil {
					return s.corrupt(task, fmt.Errorf("entry %x: %w", k, err))
				}
				before := bytes.Clone(k)
				if k, err = g.key(before[:len(prefix)]); err != nil {
					return err
				}
				if k != nil && bytes.Compare(k, before) <= 0 {
					return s.corrupt(task, fmt.Errorf("entry %x comes after %x", k, before))
				}
			}
			from, done = bytes.Clone(k), k == nil
			return g.remove()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// collector finds the versions of keys that no usable part sees.
type collector struct {
	t       *taskView
	c       *bolt.Cursor
	sights  []sight
	garbage [][]byte
	packed  []reference // of the garbage
}

func (s *Store) collector(tx *bolt.Tx, task string) (*collector, error) {
	t, list, err := s.open(tx, task, 0)
	if err != nil {
		return nil, err
	}
	g := &collector{t: t, c: t.keys.Cursor()}
	for _, p := range list {
		if !p.rejected {
			g.sights = append(g.sights, sightOf(list, p))
		}
	}
	return g, nil
}

// key looks at all versions of one key, newest first, and returns the map's next key.
func (g *collector) key(prefix []byte) ([]byte, error) {
	type version struct {
		key, stored []byte
		v           dataflow.Version
		needed      bool
	}
	var list []version
	k, stored := g.c.Seek(prefix)
	for ; k != nil && bytes.HasPrefix(k, prefix) && len(k) == len(prefix)+versionSize; k, stored = g.c.Next() {
		_, v, err := splitKey(k)
		if err != nil || len(stored) < valueHead {
			return nil, g.t.store.corrupt(g.t.task, fmt.Errorf("malformed entry %x", k))
		}
		list = append(list, version{key: bytes.Clone(k), stored: stored, v: v})
	}
	for _, s := range g.sights {
		for i := range list {
			if s.sees(list[i].v) {
				list[i].needed = true
				break
			}
		}
	}
	// A tombstone with nothing below it says no more than its absence.
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].needed && !isTombstone(list[i].stored) {
			break
		}
		list[i].needed = false
	}
	for _, x := range list {
		if x.needed {
			continue
		}
		g.garbage = append(g.garbage, x.key)
		if ref, ok := parseReference(x.stored); ok {
			g.packed = append(g.packed, ref)
		}
	}
	return k, nil
}

// remove deletes what was found: only now, since deleting moves a cursor.
func (g *collector) remove() error {
	for _, k := range g.garbage {
		if err := g.t.keys.Delete(k); err != nil {
			return err
		}
	}
	return g.t.release(g.packed)
}

// finishDrop forgets what was needed to find the garbage.
func (s *Store) finishDrop(tx *bolt.Tx, task string, w dropWork) error {
	t, _, err := s.open(tx, task, 0)
	if err != nil {
		return err
	}
	for _, v := range w.gone {
		if err := errors.Join(t.parts.Delete(versionKey(v)), t.chang.Delete(versionKey(v))); err != nil {
			return err
		}
	}
	for _, v := range w.changed {
		if v <= w.oldest {
			if err := t.chang.Delete(versionKey(v)); err != nil {
				return err
			}
		}
	}
	if t.number(keySwept) < w.floor {
		return t.info.Put(keySwept, versionKey(w.floor))
	}
	return nil
}
