package dataflow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// memoryLog is a log in memory. Nothing of it is synced unless a test says so; a crash loses the rest.
type memoryLog struct {
	mu      sync.Mutex
	entries []Entry
	last    abs.Position
	synced  abs.Position
	full    bool
	ready   []chan struct{}
}

func (l *memoryLog) Append(kind EntryKind, data ...[]byte) (abs.Position, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full {
		return 0, fmt.Errorf("test log: %w", ErrLogFull)
	}
	l.last++
	l.entries = append(l.entries, Entry{l.last, kind, slices.Concat(data...)})
	for _, r := range l.ready {
		wake(r)
	}
	return l.last, nil
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *memoryLog) Synced() abs.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.synced
}

func (l *memoryLog) ID() uint64 { return 1 }

func (l *memoryLog) Last() abs.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// sync makes the log durable up to a position, or whole; true if that is news.
func (l *memoryLog) sync(upto abs.Position) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.synced
	l.synced = max(was, min(upto, l.last))
	return l.synced > was
}

func (l *memoryLog) Truncate(abs.Position) error { return errors.New("the task truncates nothing") }

func (l *memoryLog) Follow(from abs.Position) (Follower, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := make(chan struct{}, 1)
	l.ready = append(l.ready, r)
	return &memoryFollower{l, from, r}, nil
}

// restart ends all readers and, after a power cut, loses what is not synced.
func (l *memoryLog) restart(powerCut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready = nil
	if powerCut {
		l.entries = slices.DeleteFunc(l.entries, func(e Entry) bool { return e.Pos > l.synced })
		l.last = l.synced
	}
}

func (l *memoryLog) kinds(kind EntryKind) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// entryOf is the position of the first entry of a kind.
func (l *memoryLog) entryOf(kind EntryKind) abs.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.Kind == kind {
			return e.Pos
		}
	}
	return 0
}

type memoryFollower struct {
	log   *memoryLog
	after abs.Position
	ready chan struct{}
}

func (f *memoryFollower) Next() (Entry, bool, error) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	for _, e := range f.log.entries {
		if e.Pos > f.after {
			f.after = e.Pos
			e.Data = slices.Clone(e.Data)
			return e, true, nil
		}
	}
	return Entry{}, false, nil
}

func (f *memoryFollower) Ready() <-chan struct{} { return f.ready }
func (f *memoryFollower) Close()                 {}

// drawer keeps dead letters.
type drawer struct {
	err      error
	kept     map[string]string // task and key → reason
	recs     []frame.Record
	replayed map[string]abs.Position // by task and key
}

func (d *drawer) Put(task, key string, rec frame.Record, reason string) error {
	if d.err != nil {
		return d.err
	}
	if d.kept == nil {
		d.kept = map[string]string{}
	}
	if _, has := d.kept[task+" "+key]; !has {
		d.recs = append(d.recs, frame.Record{Key: bytes.Clone(rec.Key), Value: bytes.Clone(rec.Value)})
	}
	d.kept[task+" "+key] = reason
	return nil
}

func (d *drawer) Replayed(task, key string, at abs.Position) error {
	if d.err != nil {
		return d.err
	}
	if d.replayed == nil {
		d.replayed = map[string]abs.Position{}
	}
	d.replayed[task+" "+key] = at
	return nil
}

func (d *drawer) ReplayedAt(task, key string) (abs.Position, error) {
	return d.replayed[task+" "+key], d.err
}

func (d *drawer) Unreplayed(task string, after abs.Position) error {
	maps.DeleteFunc(d.replayed, func(key string, at abs.Position) bool { return strings.HasPrefix(key, task+" ") && at > after })
	return nil
}

// partStore keeps parts in memory, by version.
type partStore struct {
	mu    sync.Mutex
	parts []PartInfo
	saved map[Version][]Change
}

func (s *partStore) Save(info PartInfo, changes []Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parts) > 0 && info.Version != s.parts[len(s.parts)-1].Version+1 {
		return fmt.Errorf("version %d behind version %d", info.Version, s.parts[len(s.parts)-1].Version)
	}
	s.parts = append(s.parts, info)
	s.saved[info.Version] = changes
	return nil
}

func (s *partStore) Parts(string) ([]PartInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.parts), nil
}

func (s *partStore) Load(_ string, v Version, visit func(Change) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := map[string]Change{}
	for _, p := range s.parts {
		if p.Version > v {
			break
		}
		if p.Full {
			clear(now)
		}
		for _, c := range s.saved[p.Version] {
			now[string(rune(c.Space))+string(c.Key)] = c
		}
	}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		c := now[key]
		if c.Value == nil {
			continue
		}
		lent := Change{c.Space, bytes.Clone(c.Key), bytes.Clone(c.Value)}
		if err := visit(lent); err != nil {
			return err
		}
		clear(lent.Key)
		clear(lent.Value)
	}
	return nil
}

func (s *partStore) Reject(string, Version, string) error { return errors.New("nothing is rejected") }

// counters make operators that count records per key: each record comes out as "key=count". A value
// of "bad" is a trap, after which the instance must not be used; "slow" is one in the first slow
// instances.
type counters struct{ made, slow int }

func (c *counters) New(_ context.Context, spec OperatorSpec, state StateReader) (Operator, error) {
	c.made++
	op := &counter{name: spec.Name, slow: c.made <= c.slow, counts: map[string]int{}, dirty: map[string]bool{}}
	if state == nil {
		return op, nil
	}
	return op, state(func(ch Change) error {
		n, err := strconv.Atoi(string(ch.Value))
		op.counts[string(ch.Key)] = n
		return err
	})
}

type counter struct {
	name   string
	counts map[string]int
	dirty  map[string]bool
	slow   bool
	lost   bool
}

func (c *counter) Process(b Batch, emit Emit) error {
	if c.lost {
		panic("an instance was used after its trap")
	}
	for rest := b.Payload; len(rest) > 0; {
		r, after, err := frame.Next(rest)
		if err != nil {
			return err
		}
		rest = after
		key := string(r.Key)
		c.counts[key]++ // before the trap: a restore must undo it
		c.dirty[key] = true
		if v := string(r.Value); v == "bad" || v == "slow" && c.slow {
			c.lost = true
			return &GuestError{c.name, "trap"}
		}
		out := frame.Record{Time: b.Stamp, Key: r.Key, Value: fmt.Appendf(nil, "%s=%d", key, c.counts[key])}
		if err := emit(0, frame.AppendRecord(nil, out), 1); err != nil {
			return err
		}
	}
	return nil
}

func (c *counter) Freeze(full bool) ([]Change, error) {
	var out []Change
	for key, n := range c.counts {
		if full || c.dirty[key] {
			out = append(out, Change{SpaceKeyed, []byte(key), strconv.AppendInt(nil, int64(n), 10)})
		}
	}
	clear(c.dirty)
	return out, nil
}

func (c *counter) Close() error { return nil }

// basket is a sink that takes all and hands over when the test says so.
type basket struct {
	mu    sync.Mutex
	items []string // "number value"
	last  abs.Seq
}

func (b *basket) Offer(items []SinkItem) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range items {
		b.items = append(b.items, fmt.Sprintf("%d %s", it.Number, it.Record.Value))
		b.last = it.Number
	}
	return len(items)
}

func (b *basket) Run(ctx context.Context, _ SinkEvents) error {
	<-ctx.Done()
	return nil
}

func (b *basket) got() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.items)
}

// wire is an output whose frames a test looks at.
type wire struct {
	mu     sync.Mutex
	frames [][]byte
	grants chan Grant
	asks   int
}

func (w *wire) Send(_ int, f []byte, done func(error)) {
	w.mu.Lock()
	w.frames = append(w.frames, bytes.Clone(f))
	w.mu.Unlock()
	done(nil)
}

func (w *wire) Grants() <-chan Grant { return w.grants }

func (w *wire) Ask() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asks++
}

func (w *wire) Close() {}

// items are the records and marks sent, by number.
func (w *wire) items(t *testing.T) map[uint64]string {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[uint64]string{}
	for _, b := range w.frames {
		h, payload, err := frame.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		values := []string{h.Kind.String()}
		if h.Kind == frame.Data {
			values = payloadValues(t, payload)
		}
		for i, v := range values {
			n := h.First + uint64(i)
			if was, again := out[n]; again && was != v {
				t.Fatalf("number %d was %q and is %q", n, was, v)
			}
			out[n] = v
		}
	}
	return out
}

// notes is an observer.
type notes struct {
	mu       sync.Mutex
	durable  []abs.Epoch
	recovery []Recovery
	caughtUp []Recovery
	drained  []abs.Epoch
	skipped  []abs.Epoch
	stirred  []struct{}
}

func (n *notes) PartDurable(r PartReport) { note(n, &n.durable, r.Info.Epoch) }
func (n *notes) PartSkipped(e abs.Epoch, _ string) {
	note(n, &n.skipped, e)
}
func (n *notes) Recovered(r Recovery) { note(n, &n.recovery, r) }
func (n *notes) CaughtUp(r Recovery)  { note(n, &n.caughtUp, r) }
func (n *notes) Drained(e abs.Epoch)  { note(n, &n.drained, e) }
func (n *notes) Stirred()             { note(n, &n.stirred, struct{}{}) }

func note[T any](n *notes, list *[]T, v T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*list = append(*list, v)
}
