package sim

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

var errTruncated = errors.New("entries have been truncated")

// disk is what an agent has left after its process has ended: the log up to what was synced, or a
// little more, saved parts, copies of manifests, dead letters.
type disk struct {
	w        *world
	agent    string
	id       uint64 // of the log
	last     abs.Position
	synced   abs.Position
	logs     map[string]*taskLog
	spools   map[string]*taskLog // by task and channel
	parts    map[string]*partList
	copies   map[abs.Epoch]abs.EpochRecord
	dead     map[string][]byte
	letters  map[string][]byte // the same whole
	replayed map[string]abs.Position

	syncing   bool
	fullUntil time.Duration // the log takes no ingest and order entries
}

func newDisk(w *world, agent string) *disk {
	return &disk{
		w: w, agent: agent, id: 1, logs: map[string]*taskLog{}, spools: map[string]*taskLog{}, parts: map[string]*partList{},
		copies: map[abs.Epoch]abs.EpochRecord{}, dead: map[string][]byte{}, letters: map[string][]byte{}, replayed: map[string]abs.Position{},
	}
}

// taskLog is one task's part of the agent's log. It implements [dataflow.Log].
type taskLog struct {
	d       *disk
	task    *plannedTask
	entries []dataflow.Entry // ascending; those up to durable are gone from the disk too
	all     []dataflow.Entry // the same with all that was ever given up, for restores from old checkpoints
	front   abs.Position     // given up to here
	durable abs.Position     // and still so after a power cut
}

func (d *disk) log(t *plannedTask) *taskLog {
	l := d.logs[t.name()]
	if l == nil {
		l = &taskLog{d: d, task: t}
		d.logs[t.name()] = l
	}
	return l
}

// spool is the log of what a channel could not hand over; nil if there is none and it is not to be made.
func (d *disk) spool(t *plannedTask, c dataflow.Channel, create bool) (dataflow.Spool, error) {
	name := t.name() + " " + string(c.ID)
	l := d.spools[name]
	if l == nil && create {
		l = &taskLog{d: d, task: t}
		d.spools[name] = l
	}
	if l == nil {
		return nil, nil
	}
	d.w.chaos.count("spools opened")
	return l, nil
}

// Front implements [dataflow.Spool].
func (l *taskLog) Front() abs.Position { return l.front }

func (l *taskLog) Append(kind dataflow.EntryKind, data ...[]byte) (abs.Position, error) {
	if l.d.w.now < l.d.fullUntil && (kind == dataflow.EntryIngest || kind == dataflow.EntryOrder || kind == dataflow.EntrySpool) {
		return 0, dataflow.ErrLogFull
	}
	l.d.last++
	e := dataflow.Entry{Pos: l.d.last, Kind: kind, Data: bytes.Join(data, nil)}
	if !l.d.w.rules.forgets(kind) {
		l.entries = append(l.entries, e)
		l.all = append(l.all, e)
	}
	l.d.commit()
	l.d.w.agent(l.d.agent).wake(l.task)
	return e.Pos, nil
}

func (l *taskLog) Synced() abs.Position {
	if l.d.w.rules.handOverUnsynced {
		return l.d.last
	}
	return l.d.synced
}

func (l *taskLog) ID() uint64 { return l.d.id }

func (l *taskLog) Last() abs.Position { return l.d.last }

func (l *taskLog) Truncate(upto abs.Position) error {
	if n := len(l.entries); n > 0 {
		l.front = max(l.front, min(upto, l.entries[n-1].Pos))
	}
	return nil
}

func (l *taskLog) Follow(from abs.Position) (dataflow.Follower, error) {
	f := &follower{l: l, after: from}
	return f, f.check()
}

// lastEntry is the position of the task's last entry, or up to where they were given up.
func (l *taskLog) lastEntry() abs.Position {
	if n := len(l.entries); n > 0 {
		return max(l.front, l.entries[n-1].Pos)
	}
	return l.front
}

// kept is how many entries have not been given up.
func (l *taskLog) kept() int { return len(l.entries) - l.index(l.front) }

// index is that of the first entry after a position.
func (l *taskLog) index(after abs.Position) int {
	return sort.Search(len(l.entries), func(i int) bool { return l.entries[i].Pos > after })
}

type follower struct {
	l     *taskLog
	after abs.Position
}

func (f *follower) check() error {
	if f.after < f.l.front {
		return fmt.Errorf("log of %s read after %d: %w up to %d", f.l.task.id, f.after, errTruncated, f.l.front)
	}
	return nil
}

func (f *follower) Next() (dataflow.Entry, bool, error) {
	if err := f.check(); err != nil {
		return dataflow.Entry{}, false, err
	}
	i := f.l.index(f.after)
	if i == len(f.l.entries) {
		return dataflow.Entry{}, false, nil
	}
	e := f.l.entries[i]
	f.after = e.Pos
	e.Data = bytes.Clone(e.Data)
	return e, true, nil
}

func (f *follower) Ready() <-chan struct{} { return nil }
func (f *follower) Close()                 {}

// commit begins a group commit if none is running.
func (d *disk) commit() {
	proc := d.w.agent(d.agent).proc
	if d.syncing || proc == nil || d.synced == d.last {
		return
	}
	d.syncing = true
	proc.after(d.w.some(300*time.Microsecond), func() {
		upto := d.last
		proc.after(d.w.some(d.w.profile.sync), func() {
			d.syncing = false
			d.synced = upto
			for _, l := range d.logs {
				l.forget()
			}
			for _, l := range d.spools {
				l.forget()
			}
			proc.synced()
			d.commit()
		})
	})
}

// forget makes it durable that entries were given up.
func (l *taskLog) forget() {
	l.durable = l.front
	l.entries = l.entries[l.index(l.durable):]
}

// crash leaves what survives: of what was not synced some prefix, of what was given up perhaps more.
func (d *disk) crash(power bool) {
	d.syncing, d.fullUntil = false, 0
	keep := d.synced
	if n := uint64(d.last - d.synced); n > 0 && (!power || d.w.one(2)) {
		keep += abs.Position(d.w.rng.Uint64N(n + 1))
	}
	d.w.trace("disk of %s: log was %d, synced %d, keeps %d", d.agent, d.last, d.synced, keep)
	d.last, d.synced = keep, keep
	for _, t := range d.w.topo.tasks { // in a fixed order
		if l := d.logs[t.name()]; l != nil {
			l.crash(keep)
		}
	}
	for _, name := range slices.Sorted(mapKeys(d.spools)) {
		d.spools[name].crash(keep)
	}
}

func (l *taskLog) crash(keep abs.Position) {
	beyond := func(e dataflow.Entry) bool { return e.Pos > keep }
	l.entries = slices.DeleteFunc(l.entries, beyond)
	l.all = slices.DeleteFunc(l.all, beyond)
	if l.d.w.one(2) {
		l.front = l.durable
	}
}

// partList is one task's snapshots. It implements the task's side of [dataflow.SnapshotStore].
type partList struct {
	list    []*savedPart // ascending
	highest dataflow.Version
}

type savedPart struct {
	info    dataflow.PartInfo
	changes []dataflow.Change
	dropped bool // kept for the sake of later ones
}

// store is the disk's side that [dataflow.Env] wants.
type store struct{ d *disk }

func (s store) of(task string) *partList {
	p := s.d.parts[task]
	if p == nil {
		p = &partList{}
		s.d.parts[task] = p
	}
	return p
}

func (s store) Save(info dataflow.PartInfo, changes []dataflow.Change) error {
	p := s.of(info.Task)
	if info.Version <= p.highest {
		return fmt.Errorf("save version %d of %s: version %d has been saved before it", info.Version, info.Task, p.highest)
	}
	if !info.Full && len(p.list) == 0 {
		return fmt.Errorf("save version %d of %s: the first must be full", info.Version, info.Task)
	}
	own := &savedPart{info: info}
	own.info.Meta = bytes.Clone(info.Meta)
	for _, c := range changes {
		own.changes = append(own.changes, dataflow.Change{Space: c.Space, Key: bytes.Clone(c.Key), Value: bytes.Clone(c.Value)})
	}
	p.list = append(p.list, own)
	p.highest = info.Version
	return nil
}

func (s store) Parts(task string) ([]dataflow.PartInfo, error) {
	var out []dataflow.PartInfo
	for _, p := range s.of(task).list {
		if !p.dropped {
			info := p.info
			info.Meta = s.d.w.rules.restored(info.Meta)
			out = append(out, info)
		}
	}
	return out, nil
}

func (s store) Load(task string, v dataflow.Version, visit func(dataflow.Change) error) error {
	state, err := s.state(task, v)
	if err != nil {
		return err
	}
	for _, c := range state {
		if s.d.w.rules.forgetLoopLog && c.Space == dataflow.SpaceLoop {
			continue
		}
		borrowed := dataflow.Change{Space: c.Space, Key: bytes.Clone(c.Key), Value: bytes.Clone(c.Value)}
		if err := visit(borrowed); err != nil {
			return err
		}
		clear(borrowed.Key)
		clear(borrowed.Value)
	}
	return nil
}

// state is the whole state at a version, in key order.
func (s store) state(task string, v dataflow.Version) ([]dataflow.Change, error) {
	newest := map[string]dataflow.Change{}
	found := false
	for _, p := range s.of(task).list {
		if p.info.Version > v {
			break
		}
		if p.info.Full {
			clear(newest)
		}
		for _, c := range p.changes {
			newest[string(byte(c.Space))+string(c.Key)] = c
		}
		found = p.info.Version == v && !p.dropped
	}
	if !found {
		return nil, fmt.Errorf("task %s has no usable part of version %d", task, v)
	}
	var keys []string
	for k, c := range newest {
		if c.Value != nil {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	var out []dataflow.Change
	for _, k := range keys {
		out = append(out, newest[k])
	}
	return out, nil
}

func (s store) Reject(string, dataflow.Version, string) error {
	return errors.New("nothing rejects parts")
}

// drop hides the parts below a version, and forgets those that no other builds upon.
func (s store) drop(task string, below uint64) {
	p := s.of(task)
	floor := 0 // the last full part at or before the first that is not dropped
	for i, o := range p.list {
		if o.info.Full {
			floor = i
		}
		if uint64(o.info.Version) >= below {
			break
		}
		o.dropped = true
	}
	p.list = p.list[floor:]
}

// deadLetters implements [dataflow.DeadLetters].
type deadLetters struct{ d *disk }

func (l deadLetters) Put(task, key string, rec frame.Record, _ string) error {
	value := givenUp(rec)
	l.d.w.trace("dead letter of %s: %s, record %d", task, key, decodeValue(value).id)
	l.d.dead[task+" "+key] = bytes.Clone(value)
	if rec.Header(dataflow.DueHeader) == nil { // a call of time cannot be replayed
		l.d.letters[task+" "+key] = frame.AppendRecord(nil, rec)
	}
	return nil
}

func (l deadLetters) Replayed(task, key string, at abs.Position) error {
	l.d.w.trace("dead letter of %s: %s is replayed at %d", task, key, at)
	if was, is := l.d.replayed[task+" "+key]; is && was != at && l.d.w.oracle.restore == nil {
		l.d.w.fail("dead letter %s of %s is replayed at %d and at %d", key, task, was, at)
	}
	l.d.replayed[task+" "+key] = at
	return nil
}

func (l deadLetters) ReplayedAt(task, key string) (abs.Position, error) {
	return l.d.replayed[task+" "+key], nil
}

func (l deadLetters) Unreplayed(task string, after abs.Position) error {
	for key, at := range l.d.replayed {
		if strings.HasPrefix(key, task+" ") && at > after {
			delete(l.d.replayed, key)
		}
	}
	return nil
}
