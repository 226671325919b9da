package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Values of a page's size do not sit well in a B+tree of pages: four times their size is written for
// each. So values from packMin on go together into packs, and the map has a reference. A pack is
// small enough that rewriting its neighbours in the tree's leaf costs little. It goes when nothing
// in it is needed, and what is left in it moves when that is less than a quarter.
const (
	packMin = 512      // bytes of a value that is packed
	packMax = 64 << 10 // bytes of a pack, but for one that holds a single larger value
	// packLarge is from which size on a pack lies in another bucket than smaller ones: a leaf of the tree
	// has up to four packs, and whoever writes or removes a small one writes its neighbours again.
	packLarge = 24 << 10
	// largePack marks the numbers of large packs.
	largePack = 1 << 63
	// repackBatch is how many packs one transaction of Drop empties: 1 MiB at most.
	repackBatch = 64
)

const (
	refLen       = 16 // bytes of a reference: pack (8), offset (4), length (4)
	packRecordAt = 12 // bytes of a pack's record before its keys: live values, live bytes, all bytes (4 each)
)

// packRecord says what of a pack is needed, and which keys may refer to it.
type packRecord struct {
	values, bytes, total uint32
	keys                 []byte // each a uvarint length and the key in the map
}

func (p packRecord) encode() []byte {
	b := binary.BigEndian.AppendUint32(nil, p.values)
	b = binary.BigEndian.AppendUint32(b, p.bytes)
	b = binary.BigEndian.AppendUint32(b, p.total)
	return append(b, p.keys...)
}

func parsePackRecord(b []byte) (packRecord, error) {
	if len(b) < packRecordAt {
		return packRecord{}, errors.New("malformed record of a pack")
	}
	return packRecord{
		binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), b[packRecordAt:],
	}, nil
}

func (p packRecord) sparse() bool { return p.bytes < p.total/4 }

// reference is where a packed value is.
type reference struct {
	pack        uint64
	off, length uint32
}

func parseReference(stored []byte) (reference, bool) {
	if len(stored) != valueHead+refLen || stored[8] != flagPacked {
		return reference{}, false
	}
	b := stored[valueHead:]
	return reference{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}, true
}

// isTombstone and hashOf read a stored value whose head has been checked to be there.
func isTombstone(stored []byte) bool { return stored[8] == flagTombstone }

func hashOf(stored []byte) uint64 { return binary.BigEndian.Uint64(stored) }

// packsOf is the bucket that has a pack.
func (t *taskView) packsOf(pack uint64) *bolt.Bucket {
	if pack&largePack != 0 {
		return t.packs
	}
	return t.small
}

// getPack, putPack and deletePack work on a pack's content.
func (t *taskView) getPack(pack uint64) []byte { return t.packsOf(pack).Get(packKey(pack)) }

func (t *taskView) putPack(pack uint64, b []byte) error { return t.packsOf(pack).Put(packKey(pack), b) }

// deletePack removes a pack and its record.
func (t *taskView) deletePack(pack uint64) error {
	return errors.Join(t.packsOf(pack).Delete(packKey(pack)), t.live.Delete(packKey(pack)))
}

func packKey(pack uint64) []byte { return binary.BigEndian.AppendUint64(nil, pack) }

// packer writes values of one transaction, in order of their keys.
type packer struct {
	t    *taskView
	id   uint64
	buf  []byte
	rec  packRecord
	room int // bytes of values still to come, at most: what a new pack needs
}

// put stores a value under a key of the map and returns what is stored there.
func (w *packer) put(key, value []byte) ([]byte, error) {
	if len(value) < packMin {
		stored := appendValue(make([]byte, 0, valueHead+len(value)), key, value)
		return stored, w.t.keys.Put(key, stored)
	}
	if len(w.buf)+len(value) > packMax {
		if err := w.flush(); err != nil {
			return nil, err
		}
	}
	if w.buf == nil {
		id, err := w.t.packs.NextSequence()
		if err != nil {
			return nil, err
		}
		size := max(len(value), min(packMax, w.room))
		if size >= packLarge {
			id |= largePack
		}
		w.id, w.buf = id, make([]byte, 0, size)
	}
	stored := binary.BigEndian.AppendUint64(make([]byte, 0, valueHead+refLen), valueHash(key, flagValue, value))
	stored = append(stored, flagPacked)
	stored = binary.BigEndian.AppendUint64(stored, w.id)
	stored = binary.BigEndian.AppendUint32(stored, uint32(len(w.buf)))
	stored = binary.BigEndian.AppendUint32(stored, uint32(len(value)))
	w.buf = append(w.buf, value...)
	w.rec.values++
	w.rec.bytes += uint32(len(value))
	w.rec.keys = binary.AppendUvarint(w.rec.keys, uint64(len(key)))
	w.rec.keys = append(w.rec.keys, key...)
	return stored, w.t.keys.Put(key, stored)
}

func (w *packer) flush() error {
	if w.buf == nil {
		return nil
	}
	w.rec.total = w.rec.bytes
	if err := w.t.putPack(w.id, w.buf); err != nil {
		return err
	}
	err := w.t.live.Put(packKey(w.id), w.rec.encode())
	w.room -= len(w.buf)
	w.buf, w.rec = nil, packRecord{}
	return err
}

// valueReader fetches values in one transaction and remembers the pack used last.
type valueReader struct {
	t    *taskView
	id   uint64
	pack []byte
}

// read returns the checked value that is stored for a key of the map; nil for a tombstone.
func (r *valueReader) read(key, stored []byte) (value []byte, hash uint64, err error) {
	ref, packed := parseReference(stored)
	if !packed {
		return parseValue(key, stored)
	}
	if r.pack == nil || r.id != ref.pack {
		r.id, r.pack = ref.pack, r.t.getPack(ref.pack)
	}
	end := uint64(ref.off) + uint64(ref.length)
	if end > uint64(len(r.pack)) {
		return nil, 0, fmt.Errorf("pack %d has %d bytes, not %d", ref.pack, len(r.pack), end)
	}
	value = r.pack[ref.off:end:end]
	if hash = hashOf(stored); hash != valueHash(key, flagValue, value) {
		return nil, 0, errors.New("value does not match its checksum")
	}
	return value, hash, nil
}

// release takes removed values out of their packs, and removes the packs that are empty.
func (t *taskView) release(removed []reference) error {
	less := map[uint64]packRecord{}
	for _, ref := range removed {
		p := less[ref.pack]
		p.values++
		p.bytes += ref.length
		less[ref.pack] = p
	}
	for pack, p := range less {
		rec, err := parsePackRecord(t.live.Get(packKey(pack)))
		if err != nil || rec.values < p.values || rec.bytes < p.bytes {
			return t.store.corrupt(t.task, fmt.Errorf("pack %d: more was removed than it had (%v)", pack, err))
		}
		rec.values -= p.values
		rec.bytes -= p.bytes
		if rec.values > 0 {
			err = t.live.Put(packKey(pack), rec.encode())
		} else {
			err = t.deletePack(pack)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// repack empties packs of which little is needed.
func (s *Store) repack(task string) error {
	for {
		var ids []uint64
		err := s.db.view(func(tx *bolt.Tx) error {
			t, _, err := s.open(tx, task, 0)
			if err != nil {
				return err
			}
			c := t.live.Cursor()
			for k, b := c.First(); k != nil && len(ids) < repackBatch; k, b = c.Next() {
				rec, err := parsePackRecord(b)
				if err != nil || len(k) != 8 {
					return s.corrupt(task, fmt.Errorf("pack %x: %w", k, errors.Join(err, errors.New("malformed"))))
				}
				if rec.sparse() {
					ids = append(ids, binary.BigEndian.Uint64(k))
				}
			}
			return nil
		})
		if err != nil || len(ids) == 0 {
			return err
		}
		err = s.db.update(func(tx *bolt.Tx) error {
			t, _, err := s.open(tx, task, 0)
			if err != nil {
				return err
			}
			return t.repack(ids)
		})
		if err != nil {
			return err
		}
	}
}

func (t *taskView) repack(ids []uint64) error {
	w := &packer{t: t, room: packMax}
	r := &valueReader{t: t}
	for _, id := range ids {
		rec, err := parsePackRecord(bytes.Clone(t.live.Get(packKey(id))))
		if err != nil {
			continue // gone meanwhile
		}
		// What is left is copied: the pack may be moved while others are written.
		err = eachKey(rec.keys, func(key []byte) error {
			stored := bytes.Clone(t.keys.Get(key))
			if ref, ok := parseReference(stored); !ok || ref.pack != id {
				return nil
			}
			value, _, err := r.read(key, stored)
			if err != nil {
				return t.store.corrupt(t.task, fmt.Errorf("entry %x: %w", key, err))
			}
			w.room = packMax
			_, err = w.put(key, bytes.Clone(value))
			return err
		})
		if err == nil {
			err = t.deletePack(id)
		}
		if err != nil {
			return err
		}
		r.pack = nil
	}
	return w.flush()
}

// checkPacks verifies that the packs' records say what the map says.
func (t *taskView) checkPacks() error {
	want := map[uint64]packRecord{}
	err := t.keys.ForEach(func(k, stored []byte) error {
		if ref, ok := parseReference(stored); ok {
			p := want[ref.pack]
			p.values++
			p.bytes += ref.length
			want[ref.pack] = p
		}
		return nil
	})
	if err != nil {
		return err
	}
	n := 0
	err = t.live.ForEach(func(k, b []byte) error {
		rec, err := parsePackRecord(b)
		id := binary.BigEndian.Uint64(k)
		p := want[id]
		if err != nil || rec.values != p.values || rec.bytes != p.bytes || int(rec.total) != len(t.getPack(id)) {
			return t.store.corrupt(t.task, fmt.Errorf("pack %x has %d values of %d bytes, its record says %d of %d", k, p.values, p.bytes, rec.values, rec.bytes))
		}
		n++
		return nil
	})
	if err == nil && n != len(want) {
		err = t.store.corrupt(t.task, fmt.Errorf("%d packs have a record, %d are referred to", n, len(want)))
	}
	return err
}
