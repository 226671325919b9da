package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// imageOfLog makes a log of some commits in some segments, not closed unless so asked, and returns
// its files and the model of it.
func imageOfLog(t *testing.T, closed bool) (map[string][]byte, *logModel) {
	t.Helper()
	c, m := newCutFS(), newLogModel()
	l, err := OpenLog("d", smallLog(c))
	if err != nil {
		t.Fatal(err)
	}
	pair := func(fill byte, size int) {
		for j := range 2 {
			if err := m.append(t, l, fmt.Sprintf("j/%d", j), bytes.Repeat([]byte{fill}, size)); err != nil {
				t.Fatal(err)
			}
		}
		if !m.sync(l, c) {
			t.Fatal("not synced")
		}
	}
	// A pair is one commit or two, as it happens. Three segments are filled in either case, the last
	// with no fewer than two commits.
	for i := range 10 {
		pair(byte('a'+i), 20+i*90)
	}
	for last, n := "", 0; n < 2; n++ {
		pair('z', 20)
		if now := lastSegment(c.image()); now != last {
			last, n = now, 0
		}
	}
	image := c.image()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if closed {
		image = c.image()
	}
	delete(image, "d/"+ballastName)
	return image, m
}

// TestEveryFlippedBit opens a log with one bit of one byte flipped, for every byte: either that is
// found, naming file and offset and changing nothing, or it hit only what nobody needs, or the last
// commit, of which it cannot be told that it had been synced.
func TestEveryFlippedBit(t *testing.T) {
	for _, closed := range []bool{false, true} {
		image, m := imageOfLog(t, closed)
		if len(image) < 3 {
			t.Fatalf("only %d files", len(image))
		}
		lastCommit := m.synced - 2
		lost := 0
		for name, content := range image {
			for i := range content {
				c := ofImage(image)
				c.names[name].data[i] ^= 1 << (i % 8)
				before := c.image()
				l, err := OpenLog("d", smallLog(c))
				if err != nil {
					if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "offset") {
						t.Fatalf("%s, byte %d: %v", name, i, err)
					}
					if !maps.EqualFunc(before, c.image(), bytes.Equal) {
						t.Fatalf("%s, byte %d: files were changed", name, i)
					}
					continue
				}
				for s, sm := range m.streams {
					got := readAll(t, l, s, 0)
					if n := len(got); n < len(sm.entries) {
						if closed || sm.entries[n].Pos <= lastCommit {
							t.Fatalf("%s, byte %d: entry %d of stream %s is lost without a word", name, i, sm.entries[n].Pos, s)
						}
						lost++
					}
					sameEntries(t, s, got, sm.entries[:len(got)])
				}
				l.Close()
			}
		}
		if !closed && lost == 0 {
			t.Error("no flip in the last commit was taken for a torn write: the test does not reach it")
		}
	}
}

// TestEveryTornEnd cuts the last segment at every length: what is whole stays.
func TestEveryTornEnd(t *testing.T) {
	image, m := imageOfLog(t, false)
	name := lastSegment(image)
	content := image[name]
	h, _ := headerLength(content)
	ends := map[int]bool{}
	for n := len(content); n >= 0; n-- {
		short := map[string][]byte{}
		for k, v := range image {
			short[k] = v
		}
		short[name] = content[:n]
		c := ofImage(short)
		l, err := OpenLog("d", smallLog(c))
		if n < h {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%d of %d bytes: header cut, %v", n, len(content), err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%d of %d bytes: %v", n, len(content), err)
		}
		total := 0
		for s, sm := range m.streams {
			got := readAll(t, l, s, 0)
			sameEntries(t, s, got, sm.entries[:len(got)])
			total += len(got)
		}
		ends[total] = true
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	if len(ends) < 3 {
		t.Errorf("only %d different ends", len(ends))
	}
}

func lastSegment(image map[string][]byte) string {
	last := ""
	for name := range image {
		if strings.HasSuffix(name, segmentSuffix) && name > last {
			last = name
		}
	}
	return last
}

func TestMissingSegmentIsFound(t *testing.T) {
	image, _ := imageOfLog(t, true)
	last := lastSegment(image)
	for name := range image {
		if name == last {
			continue
		}
		c := ofImage(image)
		delete(c.names, name)
		if _, err := OpenLog("d", smallLog(c)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestDiskFullAtEveryByte fills the disk at every byte. The log must stay, acknowledge nothing that is
// not durable, say why, and go on when there is room.
func TestDiskFullAtEveryByte(t *testing.T) {
	whole := newCutFS()
	fillScript(t, whole, newLogModel(), false)
	size := whole.used()
	for room := int64(600); room < size; room += 1 + size/700 {
		c, m := newCutFS(), newLogModel()
		c.room = room
		fillScript(t, c, m, true)
		l := m.again(t, c.after(nil), fmt.Sprint("room ", room))
		if m.synced != m.given {
			t.Fatalf("room %d: %d of %d", room, m.synced, m.given)
		}
		l.Close()
	}
}

func fillScript(t *testing.T, c *cutFS, m *logModel, full bool) {
	t.Helper()
	l, err := OpenLog("d", smallLog(c))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		err := m.append(t, l, fmt.Sprint("j/", i%2), make([]byte, 10+i*31))
		if full && errors.Is(err, dataflow.ErrLogFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !full && !m.sync(l, c) {
			t.Fatal("not synced")
		}
	}
	if full {
		c.waitFull(l)
		if durable := len(c.after(nil).image()); l.Synced() == m.given && durable == 0 {
			t.Fatal("all is durable on a full disk")
		}
		c.mu.Lock()
		c.room = 0
		c.mu.Unlock()
		if !m.sync(l, c) {
			t.Fatal("it does not go on with room")
		}
		if err := l.Err(); err != nil {
			t.Fatalf("it still says %v", err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// waitFull waits until the log has failed for want of room, or has written all.
func (c *cutFS) waitFull(l *Log) {
	for l.Err() == nil && l.Synced() < l.Last() {
		time.Sleep(50 * time.Microsecond) // polls; nothing depends on its length
	}
}

// TestReadOnlyDisk makes the disk one that can only be read at any place, with what goes on then: entries, a change of
// segment, space given back. Nothing is said to be durable that is not, the log says why, and it goes on when the disk
// can be written to again, also if the power goes first.
func TestReadOnlyDisk(t *testing.T) {
	for before := range 24 {
		c, m := newCutFS(), newLogModel()
		l, err := OpenLog("d", smallLog(c))
		if err != nil {
			t.Fatal(err)
		}
		entry := func(i int) {
			if err := m.append(t, l, fmt.Sprint("j/", i%2), make([]byte, 10+i*31)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range before {
			entry(i)
			if !m.sync(l, c) {
				t.Fatal("not synced")
			}
		}
		c.lock(true)
		durable := l.Synced()
		entry(before)
		if before > 3 {
			if err := m.truncate(l, "j/0", 3); err != nil {
				t.Fatal(err)
			}
		}
		c.waitFull(l)
		if err := l.Err(); !errors.Is(err, syscall.EROFS) {
			t.Fatalf("after %d entries the log says %v", before, err)
		}
		if l.Synced() != durable {
			t.Fatalf("after %d entries %d is durable, %d was", before, l.Synced(), durable)
		}
		if before%3 == 0 { // the power goes
			if err := l.Close(); !errors.Is(err, syscall.EROFS) {
				t.Fatalf("closing with entries that are not durable: %v", err)
			}
			m.again(t, c.after(nil), fmt.Sprint("the power goes before ", before)).Close()
			continue
		}
		c.lock(false)
		if !m.sync(l, c) || l.Err() != nil {
			t.Fatalf("after %d entries it does not go on: %v", before, l.Err())
		}
		m.check(t, l, c)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		m.again(t, c.after(nil), fmt.Sprint("before ", before)).Close()
	}
}

func TestFullDiskSaysWhyAndTakesNoMore(t *testing.T) {
	c := newCutFS()
	c.room = 3000
	opt := smallLog(c)
	opt.PendingBytes = 1000
	l, err := OpenLog("d", opt)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := mustStream(t, l, "j/a")
	for err == nil {
		_, err = s.Append(dataflow.EntryIngest, make([]byte, 400))
	}
	if !errors.Is(err, dataflow.ErrLogFull) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("append on a full disk: %v", err)
	}
	if err := l.Err(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("state is %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.WaitSynced(ctx, l.Last()); !errors.Is(err, context.Canceled) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("waiting on a full disk: %v", err)
	}
	if err := l.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("closing with entries that are not durable: %v", err)
	}
}

// TestTruncationFreesAFullDisk: on a disk without any room, giving entries up makes the log go on.
func TestTruncationFreesAFullDisk(t *testing.T) {
	c, m := newCutFS(), newLogModel()
	l, err := OpenLog("d", smallLog(c))
	if err != nil {
		t.Fatal(err)
	}
	for range 12 {
		if err := m.append(t, l, "j/a", make([]byte, 3000)); err != nil || !m.sync(l, c) {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	c.room = c.used() + 100
	c.mu.Unlock()
	upto := m.given
	for range 6 {
		if err := m.append(t, l, "j/a", make([]byte, 3000)); err != nil && !errors.Is(err, dataflow.ErrLogFull) {
			t.Fatal(err)
		}
	}
	c.waitFull(l)
	if l.Err() == nil {
		t.Fatal("the disk is not full")
	}
	if err := m.truncate(l, "j/a", upto); err != nil {
		t.Fatal(err)
	}
	if !m.sync(l, c) {
		t.Fatal("it does not go on")
	}
	m.check(t, l, c)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	m.again(t, c.after(nil), "after the disk was full").Close()
}

// TestOpenOnAFullDisk: a log must open without any room, for which it keeps some.
func TestOpenOnAFullDisk(t *testing.T) {
	c, m := newCutFS(), newLogModel()
	fillScript(t, c, m, false)
	c.room = c.used()
	m.again(t, c, "without room").Close()
}

// TestFailedSyncs lets syncs fail, losing what was written and damaging the block where it began. The
// log must write it all again elsewhere.
func TestFailedSyncs(t *testing.T) {
	for seed := range int64(200) {
		rng := rand.New(rand.NewSource(seed))
		c, m := newCutFS(), newLogModel()
		c.damage = true
		l, err := OpenLog("d", smallLog(c))
		if err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		c.syncFail = func(name string) bool {
			return strings.HasSuffix(name, segmentSuffix) && rng.Intn(4) == 0
		}
		c.mu.Unlock()
		for i := range 30 {
			if err := m.append(t, l, fmt.Sprint("j/", i%3), make([]byte, 5+i*i)); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 && !m.sync(l, c) {
				t.Fatal("not synced")
			}
		}
		if !m.sync(l, c) {
			t.Fatal("not synced")
		}
		m.check(t, l, c)
		c.mu.Lock()
		c.syncFail = nil
		c.mu.Unlock()
		l.Close()
		l = m.again(t, c.after(nil), fmt.Sprint("seed ", seed))
		if m.synced != m.given {
			t.Fatalf("seed %d: %d of %d", seed, m.synced, m.given)
		}
		l.Close()
	}
}

func TestNewerSegmentFormatIsRefused(t *testing.T) {
	image, _ := imageOfLog(t, true)
	image[lastSegment(image)][7] = segmentVersion + 1
	if _, err := OpenLog("d", smallLog(ofImage(image))); err == nil || !strings.Contains(err.Error(), "this build reads") {
		t.Fatal(err)
	}
}

func TestFollowerFindsDamageAtRest(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, LogOptions{SegmentSize: 4 << 10, TailBytes: 1})
	s := mustStream(t, l, "j/a")
	var last abs.Position
	for i := range 40 {
		pos, err := s.Append(dataflow.EntryIngest, bytes.Repeat([]byte{byte(i)}, 400))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.WaitSynced(context.Background(), pos); err != nil {
			t.Fatal(err)
		}
		last = pos
	}
	name := segmentName(dir, 1)
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 4
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := s.Follow(0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := 0; ; i++ {
		e, ok, err := f.Next()
		if err != nil {
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
				t.Fatal(err)
			}
			break
		}
		if !ok || e.Pos == last {
			t.Fatal("the damage was not found")
		}
		if !bytes.Equal(e.Data, bytes.Repeat([]byte{byte(i)}, 400)) {
			t.Fatalf("entry %d has wrong bytes", e.Pos)
		}
	}
	if err := l.Check(); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("check: %v", err)
	}
}

func FuzzSegment(f *testing.F) {
	c := newCutFS()
	l, err := OpenLog("d", LogOptions{fs: c})
	if err != nil {
		f.Fatal(err)
	}
	s, err := l.Stream("j/a")
	if err != nil {
		f.Fatal(err)
	}
	if _, err := s.Append(dataflow.EntryIngest, []byte("hello")); err != nil {
		f.Fatal(err)
	}
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	whole := c.image()["d/0000000000000001.seg"]
	f.Add(whole)
	f.Add(whole[:len(whole)-7])
	f.Add(commit{streams: []streamName{{1, "x"}}, fronts: []streamFront{{1, 5}}, removed: []uint64{3}}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := parseCommit(b); err == nil {
			if d, err := parseCommit(c.encode()); err != nil || fmt.Sprint(c) != fmt.Sprint(d) {
				t.Fatalf("%v is %v, %v when read again", c, d, err)
			}
		}
		if h, err := parseHeader(b); err == nil && !bytes.Equal(h.encode(), b) {
			t.Fatal("a header is another one when written again")
		}
		r := &segmentReader{name: "x", f: bytes.NewReader(b), end: int64(len(b)), next: 1}
		for {
			_, err := r.read()
			if errors.Is(err, io.EOF) || errors.Is(err, ErrCorrupt) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		l, err := OpenLog("d", LogOptions{fs: ofImage(map[string][]byte{"d/0000000000000001.seg": b}), retry: time.Millisecond})
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
