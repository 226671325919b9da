package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weir-stream/weir/dataflow"
	bolt "go.etcd.io/bbolt"
)

// diffBatch is how many bytes of changes are copied in one read transaction: a transaction that
// lasts as long as its reader would keep pages from being reused and, where the file grows, make
// Save wait.
const diffBatch = 4 << 20

// Changes visits, by space and key, the newest value at upto of each key that changed after since,
// and a tombstone for each that is gone. With since 0 it visits the whole state. Both versions must
// be usable parts and stay so meanwhile. It fails with [ErrNeedFull] if the difference is not known.
// The slices are borrowed until visit returns; after an error what was visited must not be used.
func (s *Store) Changes(task string, since, upto dataflow.Version, visit func(dataflow.Change) error) error {
	_, err := s.changes(task, since, upto, visit)
	return err
}

func (s *Store) changes(task string, since, upto dataflow.Version, visit func(dataflow.Change) error) (dataflow.PartInfo, error) {
	d := &diff{s: s, task: task, since: since, upto: upto}
	if err := d.begin(); err != nil {
		return d.part.info, err
	}
	for done := false; !done; {
		var batch []dataflow.Change
		err := s.db.view(func(tx *bolt.Tx) (err error) {
			batch, done, err = d.next(tx)
			return err
		})
		if err != nil {
			return d.part.info, err
		}
		for _, c := range batch {
			if err := visit(c); err != nil {
				return d.part.info, err
			}
		}
	}
	return d.part.info, nil
}

// diff is a walk over the changes between two parts in several transactions.
type diff struct {
	s           *Store
	task        string
	since, upto dataflow.Version
	part        part     // upto's
	keys        [][]byte // prefixes still to be visited, if since is not 0
	scan        *scan    // otherwise
}

// begin reads the part and gathers the keys that may have changed.
func (d *diff) begin() error {
	return d.s.db.view(func(tx *bolt.Tx) error {
		t, list, err := d.parts(tx)
		if err != nil || d.since == 0 {
			return err
		}
		if d.part.floor > d.since {
			return fmt.Errorf("%s, task %s, changes from version %d to %d: %w", d.s.db.path, d.task, d.since, d.upto, ErrNeedFull)
		}
		sees := sightOf(list, d.part)
		c := t.chang.Cursor()
		for k, b := c.Seek(versionKey(d.since + 1)); k != nil && bytes.Compare(k, versionKey(d.upto)) <= 0; k, b = c.Next() {
			if !sees.sees(dataflow.Version(binary.BigEndian.Uint64(k))) {
				continue
			}
			err := eachKey(bytes.Clone(b), func(prefix []byte) error {
				d.keys = append(d.keys, prefix)
				return nil
			})
			if err != nil {
				return d.s.corrupt(d.task, err)
			}
		}
		slices.SortFunc(d.keys, bytes.Compare)
		d.keys = slices.CompactFunc(d.keys, bytes.Equal)
		return nil
	})
}

// parts finds the two parts in a transaction.
func (d *diff) parts(tx *bolt.Tx) (*taskView, []part, error) {
	t, list, err := d.s.open(tx, d.task, d.upto)
	if err != nil {
		return nil, nil, err
	}
	if d.since >= d.upto {
		return nil, nil, fmt.Errorf("%s, task %s: changes from version %d to %d: it must be a later one", d.s.db.path, d.task, d.since, d.upto)
	}
	if d.since != 0 {
		if _, err := t.find(list, d.since); err != nil {
			return nil, nil, err
		}
	}
	d.part, err = t.find(list, d.upto)
	return t, list, err
}

// next copies the next changes; done says that there are no more.
func (d *diff) next(tx *bolt.Tx) (batch []dataflow.Change, done bool, err error) {
	t, list, err := d.parts(tx)
	if err != nil {
		return nil, false, err
	}
	if d.since != 0 {
		batch, err = d.nextChanged(t, sightOf(list, d.part))
		return batch, len(d.keys) == 0, err
	}
	before := d.scan
	d.scan = t.scan(list, d.part)
	var from []byte
	if before != nil {
		d.scan.count, d.scan.sum, from = before.count, before.sum, before.next
	}
	err = d.scan.run(from, diffBatch, func(c dataflow.Change) error {
		batch = append(batch, dataflow.Change{Space: c.Space, Key: bytes.Clone(c.Key), Value: cloneValue(c.Value)})
		return nil
	})
	return batch, d.scan.next == nil, err
}

func (d *diff) nextChanged(t *taskView, sees sight) ([]dataflow.Change, error) {
	var batch []dataflow.Change
	c, r := t.keys.Cursor(), &valueReader{t: t}
	size := 0
	for len(d.keys) > 0 && size < diffBatch {
		prefix := d.keys[0]
		d.keys = d.keys[1:]
		change, err := t.changeOf(c, r, prefix, sees)
		if err != nil {
			return nil, err
		}
		batch = append(batch, change)
		size += len(prefix) + len(change.Value)
	}
	return batch, nil
}

// changeOf is what a key has at a version; a tombstone if it is not there.
func (t *taskView) changeOf(c *bolt.Cursor, r *valueReader, prefix []byte, sees sight) (dataflow.Change, error) {
	key, err := appendKey(nil, prefix)
	if err != nil {
		return dataflow.Change{}, t.store.corrupt(t.task, err)
	}
	change := dataflow.Change{Space: dataflow.Space(prefix[0]), Key: key}
	full, stored, found, err := t.newestIn(c, prefix, sees)
	if err != nil || !found {
		return change, err
	}
	value, _, err := r.read(full, stored)
	if err != nil {
		return change, t.store.corrupt(t.task, fmt.Errorf("entry %x: %w", full, err))
	}
	change.Value = cloneValue(value)
	return change, nil
}

// cloneValue copies a value; an empty one stays apart from a tombstone.
func cloneValue(v []byte) []byte {
	if v == nil {
		return nil
	}
	return append(make([]byte, 0, len(v)), v...)
}
