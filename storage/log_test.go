package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openLog opens a log that is checked and closed when the test ends.
func openLog(t testing.TB, dir string, opt LogOptions) *Log {
	t.Helper()
	l, err := OpenLog(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mustStream(t testing.TB, l *Log, name string) *LogStream {
	t.Helper()
	s, err := l.Stream(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustAppend(t testing.TB, s *LogStream, kind dataflow.EntryKind, data []byte) abs.Position {
	t.Helper()
	pos, err := s.Append(kind, data)
	if err != nil {
		t.Fatal(err)
	}
	return pos
}

func mustSync(t testing.TB, l *Log) {
	t.Helper()
	if err := l.WaitSynced(context.Background(), l.Last()); err != nil {
		t.Fatal(err)
	}
}

func TestAppendCloseOpenFollow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := openLog(t, dir, LogOptions{})
	s := mustStream(t, l, "job/a")
	pos, err := s.Append(dataflow.EntryIngest, []byte("hel"), []byte("lo"))
	if err != nil || pos != 1 {
		t.Fatalf("append: %d, %v", pos, err)
	}
	mustSync(t, l)
	if l.Synced() != 1 || s.Synced() != 1 {
		t.Fatalf("synced %d", l.Synced())
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(dataflow.EntryIngest); !errors.Is(err, ErrClosed) {
		t.Fatalf("append after close: %v", err)
	}
	l = openLog(t, dir, LogOptions{})
	s = mustStream(t, l, "job/a")
	f, err := s.Follow(0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, ok, err := f.Next()
	if err != nil || !ok || e.Pos != 1 || e.Kind != dataflow.EntryIngest || string(e.Data) != "hello" {
		t.Fatalf("next: %+v, %v, %v", e, ok, err)
	}
	if pos, _ := s.Append(dataflow.EntryBarrier); pos != 2 {
		t.Fatalf("position %d after a clean close", pos)
	}
	mustSync(t, l)
	if err := l.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestAppendCopiesAndEntriesAreTheReadersOwn(t *testing.T) {
	l := openLog(t, t.TempDir(), LogOptions{})
	s := mustStream(t, l, "j/a")
	data := []byte("abc")
	mustAppend(t, s, dataflow.EntryIngest, data)
	copy(data, "xxx")
	for range 2 {
		got := readAll(t, l, "j/a", 0)
		if string(got[0].Data) != "abc" {
			t.Fatalf("entry is %q", got[0].Data)
		}
		copy(got[0].Data, "yyy")
	}
}

func TestPositionsStartBeyondWhatIsKnown(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, LogOptions{After: 700})
	if l.Synced() != 700 || l.Last() != 700 {
		t.Fatalf("synced %d, last %d", l.Synced(), l.Last())
	}
	if pos := mustAppend(t, mustStream(t, l, "j/a"), dataflow.EntryIngest, nil); pos != 701 {
		t.Fatalf("position %d", pos)
	}
	l.Close()
	l = openLog(t, dir, LogOptions{After: 5})
	if pos := mustAppend(t, mustStream(t, l, "j/a"), dataflow.EntryIngest, nil); pos != 702 {
		t.Fatalf("position %d", pos)
	}
}

// TestBudget fills a log: ingest entries stop first, then order entries, and control entries last;
// truncation makes room again.
func TestBudget(t *testing.T) {
	opt := LogOptions{SegmentSize: 4 << 10, Budget: 64 << 10}
	l := openLog(t, t.TempDir(), opt)
	s := mustStream(t, l, "j/a")
	fill := func(kind dataflow.EntryKind) (n int) {
		for {
			_, err := s.Append(kind, make([]byte, 100))
			if errors.Is(err, dataflow.ErrLogFull) {
				if l.Err() != nil || !strings.Contains(err.Error(), "j/a") {
					t.Fatalf("%v, state %v", err, l.Err())
				}
				return n
			}
			if err != nil {
				t.Fatal(err)
			}
			n++
			mustSync(t, l)
		}
	}
	kinds := []dataflow.EntryKind{dataflow.EntryIngest, dataflow.EntryOrder, dataflow.EntryBarrier}
	for _, k := range kinds {
		if fill(k) == 0 {
			t.Fatalf("no room for kind %d", k)
		}
		if u := l.Usage(); u.Bytes > u.Budget {
			t.Fatalf("%d bytes of %d", u.Bytes, u.Budget)
		}
	}
	if u := l.Usage(); u.Ingest != 0 {
		t.Fatalf("room for %d bytes of ingest", u.Ingest)
	}
	if err := s.Truncate(l.Last()); err != nil {
		t.Fatal(err)
	}
	waitSegments(t, l, 2)
	if fill(dataflow.EntryIngest) < 100 {
		t.Fatal("truncation gave too little back")
	}
}

// waitSegments waits until the log has at most n segments.
func waitSegments(t testing.TB, l *Log, n int) {
	t.Helper()
	told := make(chan struct{}, 1)
	defer l.Notify(func(abs.Position) { signal(told) })()
	for l.Usage().Segments > n {
		<-told
	}
}

// TestLaggingStreamPinsOnlyItsOwn: a stream that is never truncated keeps the segment with its entry,
// not those after it.
func TestLaggingStreamPinsOnlyItsOwn(t *testing.T) {
	dir := t.TempDir()
	opt := LogOptions{SegmentSize: 4 << 10, TailBytes: 1}
	l := openLog(t, dir, opt)
	lag, busy := mustStream(t, l, "j/lag"), mustStream(t, l, "j/busy")
	mustAppend(t, lag, dataflow.EntryIngest, []byte("kept"))
	for range 50 {
		mustAppend(t, busy, dataflow.EntryIngest, make([]byte, 1000))
		mustSync(t, l)
	}
	if n := l.Usage().Segments; n < 10 {
		t.Fatalf("%d segments", n)
	}
	if err := busy.Truncate(l.Last()); err != nil {
		t.Fatal(err)
	}
	waitSegments(t, l, 3)
	for range 2 {
		got := readAll(t, l, "j/lag", 0)
		if len(got) != 1 || string(got[0].Data) != "kept" {
			t.Fatalf("entries %v", got)
		}
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = openLog(t, dir, opt)
	}
	if _, err := mustStream(t, l, "j/busy").Follow(1); !errors.Is(err, ErrTruncated) {
		t.Fatalf("follow truncated entries: %v", err)
	}
}

func TestTruncatedFollowerFails(t *testing.T) {
	l := openLog(t, t.TempDir(), LogOptions{})
	s := mustStream(t, l, "j/a")
	f, err := s.Follow(0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	first := mustAppend(t, s, dataflow.EntryIngest, nil)
	last := mustAppend(t, s, dataflow.EntryIngest, nil)
	if err := s.Truncate(first); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Next(); !errors.Is(err, ErrTruncated) {
		t.Fatalf("next: %v", err)
	}
	if got := readAll(t, l, "j/a", first); len(got) != 1 || got[0].Pos != last {
		t.Fatalf("after the front: %v", got)
	}
	if err := s.Truncate(last + 1000); err != nil {
		t.Fatal(err)
	}
	if info := s.Info(); info.Front != last || info.Last != last {
		t.Fatalf("info %+v: a front beyond the last entry would hide later ones", info)
	}
}

func TestDropStream(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, LogOptions{})
	s := mustStream(t, l, "j/a")
	mustAppend(t, s, dataflow.EntryIngest, []byte("old"))
	f, err := s.Follow(0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(l.DropStream("j/a"), l.DropStream("j/none")); err != nil {
		t.Fatal(err)
	}
	<-f.Ready()
	if _, _, err := f.Next(); err == nil {
		t.Fatal("a follower of a dropped stream goes on")
	}
	if _, err := s.Append(dataflow.EntryIngest); err == nil {
		t.Fatal("a dropped stream takes entries")
	}
	mustAppend(t, mustStream(t, l, "j/a"), dataflow.EntryIngest, []byte("new"))
	for range 2 {
		if got := readAll(t, l, "j/a", 0); len(got) != 1 || string(got[0].Data) != "new" {
			t.Fatalf("entries %v", got)
		}
		if list := l.Streams(); len(list) != 1 || list[0].Name != "j/a" {
			t.Fatalf("streams %v", list)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = openLog(t, dir, LogOptions{})
	}
}

func TestNotifyAndWritten(t *testing.T) {
	l := openLog(t, t.TempDir(), LogOptions{})
	before := l.Written()
	got := make(chan abs.Position, 100)
	cancel := l.Notify(func(p abs.Position) { got <- p })
	s := mustStream(t, l, "j/a")
	pos := mustAppend(t, s, dataflow.EntryIngest, make([]byte, 1000))
	if p := <-got; p != pos || l.Synced() < p {
		t.Fatalf("told %d, synced %d, want %d", p, l.Synced(), pos)
	}
	if n := l.Written() - before; n < 1000 || n > 2000 {
		t.Errorf("%d bytes written", n)
	}
	cancel()
	mustAppend(t, s, dataflow.EntryIngest, nil)
	mustSync(t, l)
	if len(got) != 0 {
		t.Error("called after cancel")
	}
}

func TestReadyIsSignalled(t *testing.T) {
	l := openLog(t, t.TempDir(), LogOptions{})
	s := mustStream(t, l, "j/a")
	f, err := s.Follow(0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, ok, err := f.Next(); ok || err != nil {
		t.Fatal(ok, err)
	}
	mustAppend(t, s, dataflow.EntryIngest, nil)
	<-f.Ready()
	if _, ok, err := f.Next(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	l.Close()
	<-f.Ready()
	if _, _, err := f.Next(); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestLimitsOfEntriesAndNames(t *testing.T) {
	l := openLog(t, t.TempDir(), LogOptions{})
	s := mustStream(t, l, "j/a")
	mustAppend(t, s, dataflow.EntryControl, make([]byte, MaxEntry))
	if _, err := s.Append(dataflow.EntryControl, make([]byte, MaxEntry), []byte{0}); err == nil {
		t.Error("an entry over the limit was taken")
	}
	for _, name := range []string{"", "a\x00b", strings.Repeat("x", maxStreamName+1)} {
		if _, err := l.Stream(name); err == nil {
			t.Errorf("stream name of %d bytes was taken", len(name))
		}
	}
	mustSync(t, l)
	if got := readAll(t, l, "j/a", 0); len(got) != 1 || len(got[0].Data) != MaxEntry {
		t.Fatal("the largest entry does not come back")
	}
}

// TestFollowersAcrossMemoryAndDisk has writers and followers run side by side, with so little memory
// that followers fall behind to the disk and come back.
func TestFollowersAcrossMemoryAndDisk(t *testing.T) {
	const streams, entries = 4, 1500
	dir := t.TempDir()
	l := openLog(t, dir, LogOptions{SegmentSize: 16 << 10, TailBytes: 8 << 10, PendingBytes: 8 << 10})
	var wg sync.WaitGroup
	for i := range streams {
		s := mustStream(t, l, fmt.Sprint("j/", i))
		wg.Add(3)
		go func() {
			defer wg.Done()
			for n := range entries {
				data := binary.BigEndian.AppendUint32(nil, uint32(n))
				if _, err := s.Append(dataflow.EntryIngest, data, bytes.Repeat(data, n%50)); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		for slow := range 2 {
			go func() {
				defer wg.Done()
				followAll(t, s, entries, slow == 1)
			}()
		}
	}
	wg.Wait()
	mustSync(t, l)
	if err := l.Check(); err != nil {
		t.Fatal(err)
	}
	for i := range streams {
		if got := readAll(t, l, fmt.Sprint("j/", i), 0); len(got) != entries {
			t.Fatalf("%d entries at the end", len(got))
		}
	}
}

// followAll reads entries until it has all. A slow one waits each time until the log is far ahead.
func followAll(t *testing.T, s *LogStream, entries int, slow bool) {
	f, err := s.Follow(0)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	var last abs.Position
	for n := 0; n < entries; {
		e, ok, err := f.Next()
		if err != nil {
			t.Error(err)
			return
		}
		if !ok {
			<-f.Ready()
			continue
		}
		if want := uint32(n); e.Pos <= last || binary.BigEndian.Uint32(e.Data) != want || len(e.Data) != 4*(1+n%50) {
			t.Errorf("stream %s: entry %d after %d, want number %d", s.name, e.Pos, last, want)
			return
		}
		last = e.Pos
		n++
		if slow && n%100 == 0 {
			ahead := min(last+2000, abs.Position(4*entries))
			if err := s.log.WaitSynced(context.Background(), ahead); err != nil {
				t.Error(err)
				return
			}
		}
	}
}

// TestOneSyncForMany: entries of many tasks that gather during a sync share the next one.
func TestOneSyncForMany(t *testing.T) {
	c := newCutFS()
	l := openLog(t, "d", LogOptions{fs: c})
	s := mustStream(t, l, "j/a")
	mustAppend(t, s, dataflow.EntryIngest, nil)
	mustSync(t, l)
	release, entered := make(chan struct{}), make(chan struct{})
	syncs := 0
	c.mu.Lock()
	c.syncFail = func(string) bool {
		if syncs++; syncs == 1 {
			close(entered)
			<-release
		}
		return false
	}
	c.mu.Unlock()
	mustAppend(t, s, dataflow.EntryIngest, nil)
	<-entered
	for i := range 500 {
		mustAppend(t, mustStream(t, l, fmt.Sprint("j/", i%10)), dataflow.EntryIngest, nil)
	}
	close(release)
	mustSync(t, l)
	c.mu.Lock()
	defer c.mu.Unlock()
	if syncs != 2 {
		t.Errorf("%d syncs for 501 entries, want 2", syncs)
	}
	c.syncFail = nil
}

func BenchmarkAppendCommit(b *testing.B) {
	for _, size := range []int{200, 48 << 10} {
		b.Run(fmt.Sprint("wait/", size), func(b *testing.B) {
			l := openLog(b, b.TempDir(), LogOptions{Budget: 64 << 30})
			s := mustStream(b, l, "j/a")
			data := make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				mustAppend(b, s, dataflow.EntryIngest, data)
				mustSync(b, l)
				if err := s.Truncate(l.Last()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprint("stream/", size), func(b *testing.B) {
			l := openLog(b, b.TempDir(), LogOptions{Budget: 64 << 30})
			s := mustStream(b, l, "j/a")
			data := make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				pos := mustAppend(b, s, dataflow.EntryIngest, data)
				if err := s.Truncate(pos); err != nil {
					b.Fatal(err)
				}
			}
			mustSync(b, l)
		})
	}
}

func BenchmarkFollow(b *testing.B) {
	for _, tail := range []int{64 << 20, 1} {
		name := "memory"
		if tail == 1 {
			name = "disk"
		}
		b.Run(name, func(b *testing.B) {
			const size, entries = 1 << 10, 20_000
			l := openLog(b, b.TempDir(), LogOptions{TailBytes: tail})
			s := mustStream(b, l, "j/a")
			for range entries {
				mustAppend(b, s, dataflow.EntryIngest, make([]byte, size))
			}
			mustSync(b, l)
			b.SetBytes(size)
			f, err := s.Follow(0)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				_, ok, err := f.Next()
				if err != nil {
					b.Fatal(err)
				}
				if !ok {
					f.Close()
					if f, err = s.Follow(0); err != nil {
						b.Fatal(err)
					}
				}
			}
			f.Close()
		})
	}
}
