package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/weir-stream/weir/dataflow"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// storeFormat is the version of the snapshot file's format.
const storeFormat = 1

// MaxStateKey is the longest key of state in bytes: with every byte escaped it still fits into a
// key of the file.
const MaxStateKey = 16_000

// ErrNoPart is wrapped by errors about a version that the store does not have as a usable part.
var ErrNoPart = errors.New("no usable part of that version")

// ErrNeedFull is wrapped by the error of Changes and WritePack when a full part lies between the
// two versions: the difference is not known, and the whole state has to be taken.
var ErrNeedFull = errors.New("a full part lies between the versions")

// Store keeps snapshots in a bbolt file; it implements [dataflow.SnapshotStore]. Its methods may be
// called from any goroutine; writes are one after the other. After an error that wraps [ErrCorrupt]
// from another call than Load, Changes or WritePack, which check values, it may refuse all further
// work: then closing and opening it sets the file aside.
type Store struct {
	db *database
}

var _ dataflow.SnapshotStore = (*Store)(nil)

// Buckets. Under tasks there is one for each task, with these in it.
var (
	bucketTasks   = []byte("tasks")
	bucketParts   = []byte("parts")   // version → manifest
	bucketKeys    = []byte("keys")    // the multi-version map
	bucketPacks   = []byte("packs")   // number of a large pack → values
	bucketSmall   = []byte("small")   // number of a small pack → values
	bucketLive    = []byte("live")    // number of a pack → its record
	bucketChanged = []byte("changed") // version → the keys that its part changed; not of full parts
	bucketInfo    = []byte("info")
	keyHighest    = []byte("highest") // version that was saved last
	keySwept      = []byte("swept")   // full part below which no keys are left
)

// OpenStore opens the snapshot file or makes it. A damaged file is set aside, reported, and replaced
// by a new one. The file's structure and the books of every task (its manifests, lists and records, which
// each Save and Drop needs) are verified at open, which reads all of it; values when they are loaded.
func OpenStore(path string) (*Store, *Damage, error) {
	db, damage, err := openDatabase(path, storeFormat, storeBooks)
	if err != nil {
		return nil, damage, err
	}
	return &Store{db: db}, damage, nil
}

// storeBooks makes the root of a new file, and verifies the books of one that is there: with a part of them damaged
// no later Save of any task would succeed, while a damaged value only makes its parts unusable.
var storeBooks = content{
	begin: func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket(bucketTasks)
		return err
	},
	verify: func(tx *bolt.Tx, db *database) error {
		s := &Store{db: db}
		root := tx.Bucket(bucketTasks)
		if root == nil {
			return s.corrupt("", errors.New("no bucket of tasks"))
		}
		return root.ForEach(func(name, _ []byte) error {
			t, err := s.task(tx, string(name))
			if err != nil {
				return err
			}
			if t == nil {
				return s.corrupt(string(name), errors.New("no bucket"))
			}
			return t.verifyBooks()
		})
	},
}

// verifyBooks checks everything about a task but its values. Errors wrap [ErrCorrupt].
func (t *taskView) verifyBooks() error {
	list, err := t.list()
	if err != nil {
		return err
	}
	for _, key := range [][]byte{keyHighest, keySwept} {
		if b := t.info.Get(key); b != nil && len(b) != versionSize {
			return t.store.corrupt(t.task, fmt.Errorf("%s has %d bytes", key, len(b)))
		}
	}
	if n := len(list); n > 0 && list[n-1].info.Version > t.number(keyHighest) {
		return t.store.corrupt(t.task, fmt.Errorf("version %d is above the highest, %d", list[n-1].info.Version, t.number(keyHighest)))
	}
	err = t.chang.ForEach(func(k, b []byte) error {
		err := eachKey(b, func([]byte) error { return nil })
		if err == nil && len(k) != versionSize {
			err = errors.New("malformed version")
		}
		if err != nil {
			return t.store.corrupt(t.task, fmt.Errorf("changed keys of version %x: %w", k, err))
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = t.keys.ForEach(func(k, stored []byte) error {
		prefix, _, err := splitKey(k)
		if err == nil {
			_, err = appendKey(nil, prefix)
		}
		if err == nil && len(stored) < valueHead {
			err = errors.New("too short")
		}
		if err != nil {
			return t.store.corrupt(t.task, fmt.Errorf("entry %x: %w", k, err))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return t.checkPacks()
}

// Close closes the file; running calls are waited for.
func (s *Store) Close() error { return s.db.close() }

// Written is how many bytes were written to the disk since the store was opened.
func (s *Store) Written() int64 { return s.db.written() }

func (s *Store) corrupt(task string, err error) error {
	return fmt.Errorf("%w: %s, task %s: %w", ErrCorrupt, s.db.path, task, err)
}

// taskView is one task's buckets within a transaction.
type taskView struct {
	store *Store
	task  string
	parts *bolt.Bucket
	keys  *bolt.Bucket
	packs *bolt.Bucket
	small *bolt.Bucket
	live  *bolt.Bucket
	chang *bolt.Bucket
	info  *bolt.Bucket
}

// task returns the task's buckets; nil if it has none.
func (s *Store) task(tx *bolt.Tx, task string) (*taskView, error) {
	root := tx.Bucket(bucketTasks)
	if root == nil {
		return nil, s.corrupt(task, errors.New("no bucket of tasks"))
	}
	b := root.Bucket([]byte(task))
	if b == nil {
		return nil, nil
	}
	v := &taskView{
		store: s, task: task, parts: b.Bucket(bucketParts), keys: b.Bucket(bucketKeys), packs: b.Bucket(bucketPacks),
		small: b.Bucket(bucketSmall), live: b.Bucket(bucketLive), chang: b.Bucket(bucketChanged), info: b.Bucket(bucketInfo),
	}
	for _, x := range []*bolt.Bucket{v.parts, v.keys, v.packs, v.small, v.live, v.chang, v.info} {
		if x == nil {
			return nil, s.corrupt(task, errors.New("a bucket is missing"))
		}
	}
	return v, nil
}

func (s *Store) makeTask(tx *bolt.Tx, task string) (*taskView, error) {
	b, err := tx.Bucket(bucketTasks).CreateBucketIfNotExists([]byte(task))
	if err != nil {
		return nil, err
	}
	for _, name := range [][]byte{bucketParts, bucketKeys, bucketPacks, bucketSmall, bucketLive, bucketChanged, bucketInfo} {
		if _, err := b.CreateBucketIfNotExists(name); err != nil {
			return nil, err
		}
	}
	return s.task(tx, task)
}

func versionKey(v dataflow.Version) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

func (t *taskView) number(key []byte) dataflow.Version {
	if b := t.info.Get(key); len(b) == 8 {
		return dataflow.Version(binary.BigEndian.Uint64(b))
	}
	return 0
}

// list reads all manifests by ascending version, the rejected ones too.
func (t *taskView) list() ([]part, error) {
	var list []part
	err := t.parts.ForEach(func(k, b []byte) error {
		p, err := parsePart(b)
		if err != nil || len(k) != 8 {
			return t.store.corrupt(t.task, fmt.Errorf("manifest %x: %w", k, err))
		}
		p.info.Task, p.info.Version = t.task, dataflow.Version(binary.BigEndian.Uint64(k))
		list = append(list, p)
		return nil
	})
	return list, err
}

func (t *taskView) put(p part) error {
	return t.parts.Put(versionKey(p.info.Version), appendPart(nil, p))
}

// sight is what of the map is seen at a version: nothing below the floor, nothing beyond the
// version, nothing rejected.
type sight struct {
	floor, upto dataflow.Version
	rejected    []hidden
}

// hidden are versions that are not seen: those after one, up to and including another.
type hidden struct{ after, upto dataflow.Version }

func (s sight) sees(v dataflow.Version) bool {
	return v >= s.floor && v <= s.upto && !slices.ContainsFunc(s.rejected, func(h hidden) bool { return v > h.after && v <= h.upto })
}

func sightOf(list []part, p part) sight {
	s := sight{floor: p.floor, upto: p.info.Version}
	for _, o := range list {
		if o.rejected && o.info.Version >= s.floor && o.info.Version <= s.upto {
			s.rejected = append(s.rejected, hidden{o.since, o.info.Version})
		}
	}
	return s
}

// find returns the usable part of a version.
func (t *taskView) find(list []part, v dataflow.Version) (part, error) {
	for _, p := range list {
		if p.info.Version == v && !p.rejected {
			return p, nil
		}
	}
	return part{}, fmt.Errorf("%s, task %s, version %d: %w", t.store.db.path, t.task, v, ErrNoPart)
}

func newest(list []part) (part, bool) {
	for _, p := range slices.Backward(list) {
		if !p.rejected {
			return p, true
		}
	}
	return part{}, false
}

// Save makes a part durable in one transaction, its manifest last. Versions must ascend. A part
// that is not full holds the changes since the newest usable part. Of two changes of one key the
// later counts.
func (s *Store) Save(info dataflow.PartInfo, changes []dataflow.Change) error {
	return s.SaveAll(Part{info, changes})
}

// Part is a part to be saved, as the arguments of [Store.Save].
type Part struct {
	Info    dataflow.PartInfo
	Changes []dataflow.Change
}

// SaveAll saves parts of different tasks in one transaction: all of them or, on an error, none. It
// costs little more than one, since a commit does.
func (s *Store) SaveAll(parts ...Part) error {
	sorted := make([][]keyed, len(parts))
	for i, p := range parts {
		if p.Info.Task == "" || p.Info.Version == 0 {
			return fmt.Errorf("save %s: a part needs a task and a version above 0", s.db.path)
		}
		var err error
		if sorted[i], err = sortChanges(p.Info.Version, p.Changes); err != nil {
			return fmt.Errorf("save %s, task %s, version %d: %w", s.db.path, p.Info.Task, p.Info.Version, err)
		}
	}
	var at dataflow.PartInfo
	err := s.db.update(func(tx *bolt.Tx) error {
		for i, p := range parts {
			at = p.Info
			t, err := s.makeTask(tx, p.Info.Task)
			if err != nil {
				return err
			}
			if err := t.save(p.Info, sorted[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("save %s, task %s, version %d: %w", s.db.path, at.Task, at.Version, err)
	}
	return nil
}

// keyed is a change with its key in the map.
type keyed struct {
	key   []byte
	value []byte
}

func (k keyed) prefix() []byte { return k.key[:len(k.key)-versionSize] }

func sortChanges(v dataflow.Version, changes []dataflow.Change) ([]keyed, error) {
	list := make([]keyed, 0, len(changes))
	for _, c := range changes {
		if len(c.Key) > MaxStateKey {
			return nil, fmt.Errorf("key of %d bytes in space %d, at most %d", len(c.Key), c.Space, MaxStateKey)
		}
		b := make([]byte, 0, len(c.Key)+len(c.Key)/2+3+versionSize)
		list = append(list, keyed{appendVersion(appendPrefix(b, c.Space, c.Key), v), c.Value})
	}
	slices.SortStableFunc(list, func(a, b keyed) int { return bytes.Compare(a.key, b.key) })
	out := list[:0]
	for i, k := range list {
		if i+1 == len(list) || !bytes.Equal(k.key, list[i+1].key) {
			out = append(out, k)
		}
	}
	return out, nil
}

func (t *taskView) save(info dataflow.PartInfo, changes []keyed) error {
	list, err := t.list()
	if err != nil {
		return err
	}
	if highest := t.number(keyHighest); info.Version <= highest {
		return fmt.Errorf("version %d has been saved before it", highest)
	}
	p := part{info: info, floor: info.Version}
	p.info.Bytes = 0
	for _, c := range changes {
		p.info.Bytes += int64(len(c.key) - versionSize + len(c.value))
	}
	var below *sight
	if !info.Full {
		base, ok := newest(list)
		if !ok {
			return errors.New("there is no part that the changes could build upon: the first must be full")
		}
		p.floor, p.count, p.sum = base.floor, base.count, base.sum
		sees := sightOf(list, base)
		below = &sees
	}
	if err := t.putChanges(&p, below, changes); err != nil {
		return err
	}
	if !info.Full {
		if err := t.chang.Put(versionKey(info.Version), encodeKeys(changes)); err != nil {
			return err
		}
	}
	if err := t.info.Put(keyHighest, versionKey(info.Version)); err != nil {
		return err
	}
	return t.put(p)
}

// putChanges writes the values and keeps count and sum of the state. The map may have old versions
// of the same keys; of a part that builds upon another, what they say is taken off the sum.
func (t *taskView) putChanges(p *part, below *sight, changes []keyed) error {
	t.keys.FillPercent = 0.9 // keys come in order: less is split, and less written
	w := &packer{t: t}
	for _, c := range changes {
		if len(c.value) >= packMin {
			w.room += len(c.value)
		}
	}
	c := t.keys.Cursor()
	for _, k := range changes {
		if p.info.Full && k.value == nil {
			continue // a full part hides what was there
		}
		if below != nil {
			_, old, found, err := t.newestIn(c, k.prefix(), *below)
			if err != nil {
				return err
			}
			if found && !isTombstone(old) {
				p.count--
				p.sum -= hashOf(old)
			}
		}
		stored, err := w.put(k.key, k.value)
		if err != nil {
			return err
		}
		if k.value != nil {
			p.count++
			p.sum += hashOf(stored)
		}
	}
	return w.flush()
}

// newestIn returns key and stored value of the newest version of a key that is seen.
func (t *taskView) newestIn(c *bolt.Cursor, prefix []byte, s sight) (key, stored []byte, found bool, err error) {
	k, b := c.Seek(appendVersion(slices.Clip(prefix), s.upto))
	for ; k != nil && bytes.HasPrefix(k, prefix) && len(k) == len(prefix)+versionSize; k, b = c.Next() {
		_, v, err := splitKey(k)
		if err != nil || len(b) < valueHead {
			return nil, nil, false, t.store.corrupt(t.task, fmt.Errorf("malformed entry %x", k))
		}
		if v < s.floor {
			break
		}
		if s.sees(v) {
			return k, b, true, nil
		}
	}
	return nil, nil, false, nil
}

func encodeKeys(changes []keyed) []byte {
	var b []byte
	for _, c := range changes {
		b = binary.AppendUvarint(b, uint64(len(c.prefix())))
		b = append(b, c.prefix()...)
	}
	return b
}

// eachKey visits the prefixes of an encoded list; they alias it.
func eachKey(b []byte, visit func(prefix []byte) error) error {
	f := &fields{b: b}
	for len(f.b) > 0 {
		prefix := f.bytes(f.count())
		if f.bad || len(prefix) < 3 {
			return errors.New("malformed list of keys")
		}
		if err := visit(prefix); err != nil {
			return err
		}
	}
	if f.bad {
		return errors.New("malformed list of keys")
	}
	return nil
}

// Parts lists the task's usable parts by ascending version.
func (s *Store) Parts(task string) ([]dataflow.PartInfo, error) {
	var infos []dataflow.PartInfo
	err := s.db.view(func(tx *bolt.Tx) error {
		t, err := s.task(tx, task)
		if t == nil {
			return err
		}
		list, err := t.list()
		infos = usable(list)
		return err
	})
	if err != nil {
		return nil, err
	}
	return infos, nil
}

// Highest is the highest version ever saved of a task, rejected and dropped ones included; 0 if there is none.
func (s *Store) Highest(task string) (v dataflow.Version, err error) {
	err = s.db.view(func(tx *bolt.Tx) error {
		t, err := s.task(tx, task)
		if t != nil {
			v = t.number(keyHighest)
		}
		return err
	})
	return v, err
}

// usable is what of the manifests counts.
func usable(list []part) (infos []dataflow.PartInfo) {
	for _, p := range list {
		if !p.rejected {
			infos = append(infos, p.info)
		}
	}
	return infos
}

// Rejected is a part that is never to be used again.
type Rejected struct {
	Info   dataflow.PartInfo
	Reason string
}

// Rejected lists the task's rejected parts by ascending version.
func (s *Store) Rejected(task string) ([]Rejected, error) {
	var out []Rejected
	err := s.db.view(func(tx *bolt.Tx) error {
		t, err := s.task(tx, task)
		if t == nil {
			return err
		}
		list, err := t.list()
		for _, p := range list {
			if p.rejected {
				out = append(out, Rejected{p.info, p.reason})
			}
		}
		return err
	})
	return out, err
}

// Tasks lists the tasks that the store knows.
func (s *Store) Tasks() ([]string, error) {
	var names []string
	err := s.db.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketTasks).ForEachBucket(func(k []byte) error {
			names = append(names, string(k))
			return nil
		})
	})
	return names, err
}

// Load visits the newest value of every key at a version, by space and key. Each value is checked
// before it is visited; whether all keys are there is known at the end: after an error, which wraps
// [ErrCorrupt], what was visited must not be used. visit must not call the store.
func (s *Store) Load(task string, v dataflow.Version, visit func(dataflow.Change) error) error {
	visit = shield(visit)
	return s.db.view(func(tx *bolt.Tx) error {
		t, list, err := s.open(tx, task, v)
		if err != nil {
			return err
		}
		p, err := t.find(list, v)
		if err != nil {
			return err
		}
		scan := t.scan(list, p)
		return scan.run(nil, math.MaxInt, visit)
	})
}

// open returns a task that must be there, and its manifests.
func (s *Store) open(tx *bolt.Tx, task string, v dataflow.Version) (*taskView, []part, error) {
	t, err := s.task(tx, task)
	if err != nil {
		return nil, nil, err
	}
	if t == nil {
		return nil, nil, fmt.Errorf("%s, task %s, version %d: %w", s.db.path, task, v, ErrNoPart)
	}
	list, err := t.list()
	return t, list, err
}

// scan walks the whole state of a part and counts what it sees.
type scan struct {
	t     *taskView
	r     valueReader
	p     part
	sight sight
	count uint64
	sum   uint64
	key   []byte
	next  []byte // where to go on; nil at the end
}

func (t *taskView) scan(list []part, p part) *scan {
	return &scan{t: t, r: valueReader{t: t}, p: p, sight: sightOf(list, p)}
}

// run visits values from a key on, until it has visited limit bytes or all, and then checks that
// these were all.
func (s *scan) run(from []byte, limit int, visit func(dataflow.Change) error) error {
	var done []byte // prefix whose newest version has been seen
	c := s.t.keys.Cursor()
	k, b := c.Seek(from)
	for ; k != nil; k, b = c.Next() {
		prefix, v, err := splitKey(k)
		if err != nil {
			return s.t.store.corrupt(s.t.task, fmt.Errorf("entry %x: %w", k, err))
		}
		if bytes.Equal(prefix, done) || !s.sight.sees(v) {
			continue
		}
		if limit <= 0 {
			if s.next = bytes.Clone(prefix); bytes.Compare(s.next, from) <= 0 {
				return s.t.store.corrupt(s.t.task, fmt.Errorf("entry %x comes after %x", k, from))
			}
			return nil
		}
		done = append(done[:0], prefix...)
		n, err := s.see(k, prefix, b, visit)
		if err != nil {
			return err
		}
		limit -= n
	}
	s.next = nil
	if s.count != s.p.count || s.sum != s.p.sum {
		return s.t.store.corrupt(s.t.task, fmt.Errorf("version %d has %d keys with sum %016x, its manifest says %d with sum %016x",
			s.p.info.Version, s.count, s.sum, s.p.count, s.p.sum))
	}
	return nil
}

func (s *scan) see(k, prefix, b []byte, visit func(dataflow.Change) error) (int, error) {
	value, hash, err := s.r.read(k, b)
	if err == nil {
		s.key, err = appendKey(s.key[:0], prefix)
	}
	if err != nil {
		return 0, s.t.store.corrupt(s.t.task, fmt.Errorf("entry %x: %w", k, err))
	}
	if value == nil {
		return 0, nil
	}
	s.count++
	s.sum += hash
	return len(k) + len(value), visit(dataflow.Change{Space: dataflow.Space(prefix[0]), Key: s.key, Value: value})
}

// Reject marks a version, and every part that builds upon it, as never to be used again. Rejecting
// a version that is not there, or again, does nothing.
func (s *Store) Reject(task string, v dataflow.Version, reason string) error {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return s.db.update(func(tx *bolt.Tx) error {
		t, err := s.task(tx, task)
		if t == nil {
			return err
		}
		list, err := t.list()
		if err != nil {
			return err
		}
		at := slices.IndexFunc(list, func(p part) bool { return p.info.Version == v })
		if at < 0 || list[at].rejected {
			return nil
		}
		// Of a part that was dropped there may be keys that only the rejected ones needed.
		before, _ := newest(list[:at])
		for _, p := range list[at:] {
			if p.rejected || p.floor > v {
				continue
			}
			p.rejected, p.reason, p.since = true, reason, before.info.Version
			if p.info.Version != v {
				p.reason = fmt.Sprintf("builds upon version %d: %s", v, reason)
			}
			if err := t.put(p); err != nil {
				return err
			}
		}
		return nil
	})
}

// DropTask forgets everything about a task.
func (s *Store) DropTask(task string) error {
	return s.db.update(func(tx *bolt.Tx) error {
		err := tx.Bucket(bucketTasks).DeleteBucket([]byte(task))
		if errors.Is(err, bolterrors.ErrBucketNotFound) {
			return nil
		}
		return err
	})
}

// Check verifies the file's structure, every manifest, and the whole state of every usable part.
func (s *Store) Check() error {
	if err := s.db.check(); err != nil {
		return err
	}
	tasks, err := s.Tasks()
	if err != nil {
		return err
	}
	for _, task := range tasks {
		var parts []dataflow.PartInfo
		err := s.db.view(func(tx *bolt.Tx) error {
			t, list, err := s.open(tx, task, 0)
			if err != nil {
				return err
			}
			parts = usable(list)
			return t.checkPacks()
		})
		if err != nil {
			return err
		}
		for _, p := range parts {
			if err := s.Load(task, p.Version, func(dataflow.Change) error { return nil }); err != nil {
				return err
			}
		}
	}
	return nil
}
