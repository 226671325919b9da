package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// logModel is what a log must hold.
type logModel struct {
	streams map[string]*streamModel
	given   abs.Position // highest position given out
	synced  abs.Position // highest known to be durable
}

type streamModel struct {
	entries []dataflow.Entry // beyond front
	front   abs.Position
	dropped bool
}

func newLogModel() *logModel { return &logModel{streams: map[string]*streamModel{}} }

func (m *logModel) stream(name string) *streamModel {
	s := m.streams[name]
	if s == nil {
		s = &streamModel{}
		m.streams[name] = s
	}
	return s
}

func (m *logModel) append(t *testing.T, l *Log, name string, data []byte) error {
	t.Helper()
	s, err := l.Stream(name)
	if err != nil {
		return err
	}
	half := len(data) / 2
	pos, err := s.Append(dataflow.EntryIngest, data[:half], data[half:])
	if err != nil {
		return err
	}
	if pos <= m.given {
		t.Fatalf("position %d given out again, %d has been", pos, m.given)
	}
	m.given = pos
	sm := m.stream(name)
	sm.entries = append(sm.entries, dataflow.Entry{Pos: pos, Kind: dataflow.EntryIngest, Data: slices.Clone(data)})
	return nil
}

func (m *logModel) truncate(l *Log, name string, upto abs.Position) error {
	s, err := l.Stream(name)
	if err != nil {
		return err
	}
	sm := m.stream(name)
	if len(sm.entries) > 0 {
		upto = min(upto, sm.entries[len(sm.entries)-1].Pos)
		sm.front = max(sm.front, upto)
		sm.entries = slices.DeleteFunc(sm.entries, func(e dataflow.Entry) bool { return e.Pos <= upto })
	}
	return s.Truncate(upto)
}

// again opens the log on what a disk has, and compares it.
func (m *logModel) again(t *testing.T, c *cutFS, when string) *Log {
	t.Helper()
	l, err := OpenLog("d", smallLog(c))
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if err := m.reopened(t, l); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	return l
}

// reopened compares a log with the model after a power cut: all that was synced must be there, and
// of the rest the first part in order of position, at most. The model then is what was found.
func (m *logModel) reopened(t *testing.T, l *Log) error {
	t.Helper()
	if l.Last() < m.synced {
		t.Fatalf("log ends at %d, %d was durable", l.Last(), m.synced)
	}
	found := map[string][]dataflow.Entry{}
	top := m.synced
	for name, sm := range m.streams {
		if sm.dropped {
			if err := l.DropStream(name); err != nil {
				t.Fatal(err)
			}
			continue
		}
		list, err := readEntries(l, name, sm.front)
		if errors.Is(err, errCut) {
			return err
		}
		if err != nil {
			t.Fatal(err)
		}
		found[name] = list
		if n := len(found[name]); n > 0 {
			top = max(top, found[name][n-1].Pos)
		}
	}
	for name, sm := range m.streams {
		if sm.dropped {
			continue
		}
		sm.entries = slices.DeleteFunc(sm.entries, func(e dataflow.Entry) bool { return e.Pos > top })
		sameEntries(t, name, found[name], sm.entries)
	}
	m.synced = top
	return nil
}

func readAll(t *testing.T, l *Log, name string, from abs.Position) []dataflow.Entry {
	t.Helper()
	list, err := readEntries(l, name, from)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func readEntries(l *Log, name string, from abs.Position) ([]dataflow.Entry, error) {
	s, err := l.Stream(name)
	if err != nil {
		return nil, err
	}
	f, err := s.Follow(from)
	if err != nil {
		return nil, fmt.Errorf("follow %s from %d: %w", name, from, err)
	}
	defer f.Close()
	var list []dataflow.Entry
	for {
		e, ok, err := f.Next()
		if err != nil {
			return nil, fmt.Errorf("stream %s after %d: %w", name, from, err)
		}
		if !ok {
			return list, nil
		}
		list = append(list, e)
	}
}

func sameEntries(t *testing.T, name string, got, want []dataflow.Entry) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Fatalf("stream %s: %d entries, want %d: %d is missing", name, len(got), len(want), want[i].Pos)
		case i >= len(want):
			t.Fatalf("stream %s: %d entries, want %d: %d is too many", name, len(got), len(want), got[i].Pos)
		case got[i].Pos != want[i].Pos || got[i].Kind != want[i].Kind || string(got[i].Data) != string(want[i].Data):
			t.Fatalf("stream %s: entry %d: got position %d with %d bytes, want %d with %d", name, i, got[i].Pos, len(got[i].Data), want[i].Pos, len(want[i].Data))
		}
	}
}

// sync waits until all is durable; false if it cannot be.
func (m *logModel) sync(l *Log, c *cutFS) bool {
	ctx, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, func() {})
	defer stop()
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.WaitSynced(ctx, m.given) }()
	for {
		select {
		case err := <-done:
			m.synced = max(m.synced, l.Synced())
			return err == nil
		case <-time.After(time.Millisecond):
			if c.isCut() {
				cancel()
			}
		}
	}
}

func (c *cutFS) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func smallLog(c *cutFS) LogOptions {
	return LogOptions{SegmentSize: 4 << 10, Budget: 1 << 20, PendingBytes: 64 << 10, TailBytes: 8 << 10, fs: c, retry: time.Millisecond}
}

// script is a fixed sequence that appends, rotates, truncates, drops and closes.
func script(t *testing.T, c *cutFS, m *logModel) {
	l, err := OpenLog("d", smallLog(c))
	if err != nil {
		if !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		return
	}
	defer l.Close()
	defer func() { m.synced = max(m.synced, l.Synced()) }()
	for i := range 24 {
		for j := range 3 {
			name := fmt.Sprintf("job/%d", (i+j)%3)
			if m.append(t, l, name, []byte(fmt.Sprintf("%d-%d-%0*d", i, j, 40*(i%9), i))) != nil {
				return
			}
		}
		if !m.sync(l, c) {
			return
		}
		switch {
		case i == 10:
			m.stream("job/2").dropped = true
			if l.DropStream("job/2") != nil {
				return
			}
			delete(m.streams, "job/2")
			m.streams["gone"] = &streamModel{dropped: true}
		case i%5 == 4:
			if m.truncate(l, "job/0", m.given-6) != nil || m.truncate(l, "job/1", m.given-2) != nil {
				return
			}
		}
	}
}

// TestPowerCutAtEveryCall cuts the power in every single call that changes something, with nothing,
// and with two random choices of what was not synced, on the disk.
func TestPowerCutAtEveryCall(t *testing.T) {
	whole := newCutFS()
	script(t, whole, newLogModel())
	total := whole.ops
	if total < 60 {
		t.Fatalf("the script makes only %d calls", total)
	}
	for at := 1; at <= total; at++ {
		for seed := range 3 {
			c, m := newCutFS(), newLogModel()
			c.cutAt = at
			script(t, c, m)
			var rng *rand.Rand
			if seed > 0 {
				rng = rand.New(rand.NewSource(int64(at*10 + seed)))
			}
			next := c.after(rng)
			l, err := OpenLog("d", smallLog(next))
			if err != nil {
				t.Fatalf("call %d, choice %d: %v", at, seed, err)
			}
			delete(m.streams, "job/2") // its dropping may or may not have been durable
			if err := m.reopened(t, l); err != nil {
				t.Fatal(err)
			}
			if err := l.Check(); err != nil {
				t.Fatalf("call %d, choice %d: %v", at, seed, err)
			}
			if err := m.append(t, l, "job/0", []byte("on")); err != nil || !m.sync(l, next) {
				t.Fatalf("call %d, choice %d: goes not on: %v", at, seed, err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRandomPowerCuts lives through many power cuts on one log.
func TestRandomPowerCuts(t *testing.T) {
	for seed := range int64(60) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { randomCuts(t, seed) })
	}
}

func randomCuts(t *testing.T, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	c, m := newCutFS(), newLogModel()
	for life := range 12 {
		if life%3 != 2 {
			c.cutAt = c.ops + 1 + rng.Intn(80)
		}
		if rng.Intn(3) == 0 {
			own := rand.New(rand.NewSource(rng.Int63())) // the committer's
			c.syncFail = func(string) bool { return own.Intn(12) == 0 }
		}
		l, err := OpenLog("d", smallLog(c))
		if err != nil {
			if !errors.Is(err, errCut) && c.syncFail == nil {
				t.Fatalf("life %d: %v", life, err)
			}
		} else {
			whole := m.reopened(t, l) == nil
			if whole {
				randomLife(t, rng, l, c, m)
			}
			clean := l.Close() == nil
			if whole { // else the model still has what the cut before has taken
				m.synced = max(m.synced, l.Synced())
			}
			if clean && m.synced < m.given {
				t.Fatalf("life %d: closed without error at %d of %d", life, m.synced, m.given)
			}
		}
		c = c.after(rng)
	}
}

func randomLife(t *testing.T, rng *rand.Rand, l *Log, c *cutFS, m *logModel) {
	for range 60 {
		name := fmt.Sprintf("job/%d", rng.Intn(4))
		switch rng.Intn(10) {
		case 0:
			if !m.sync(l, c) {
				return
			}
		case 1:
			if m.given > 0 && m.truncate(l, name, m.given-abs.Position(rng.Intn(20))%m.given) != nil {
				return
			}
		case 2:
			if rng.Intn(4) == 0 && !c.isCut() {
				m.check(t, l, c)
			}
		default:
			data := make([]byte, rng.Intn(1<<rng.Intn(12)))
			rng.Read(data)
			if err := m.append(t, l, name, data); err != nil && !errors.Is(err, dataflow.ErrLogFull) {
				return
			}
		}
	}
}

// check compares a running log with the model.
func (m *logModel) check(t *testing.T, l *Log, c *cutFS) {
	t.Helper()
	for name, sm := range m.streams {
		got, err := readEntries(l, name, sm.front)
		if errors.Is(err, errCut) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		sameEntries(t, name, got, sm.entries)
	}
}
