package dataflow

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

func newIngest(log *memoryLog, dead *drawer) *IngestLog {
	now := int64(0)
	return NewIngestLog("job/source", log, dead, func() int64 { now++; return now })
}

// TestIngestAcknowledgesWhatIsSynced: durable is called once the log is synced past the batch, in
// order, once.
func TestIngestAcknowledgesWhatIsSynced(t *testing.T) {
	log := &memoryLog{}
	g := newIngest(log, nil)
	var durable []int
	var at []abs.Position
	for i := range 4 {
		if i == 2 { // entries of others lie between
			if _, err := log.Append(EntryOrder, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Append(IngestBatch{Payload: numbered(i, 0), Count: 1}, func() { durable = append(durable, i) }); err != nil {
			t.Fatal(err)
		}
		at = append(at, log.Last())
	}
	for _, c := range []struct {
		synced abs.Position
		want   int
	}{{0, 0}, {at[0], 1}, {at[2] - 1, 2}, {at[1], 2}, {at[3], 4}, {at[3] + 9, 4}} {
		g.Synced(c.synced)
		mustEqual(t, "acknowledged", len(durable), c.want)
	}
	if !slices.Equal(durable, []int{0, 1, 2, 3}) {
		t.Fatalf("order %v", durable)
	}
	mustEqual(t, "records", g.Records(), 4)
}

// TestIngestCallsWithoutItsLock: a call may log more, or end the input.
func TestIngestCallsWithoutItsLock(t *testing.T) {
	log := &memoryLog{}
	g := newIngest(log, nil)
	called := false
	err := g.Append(IngestBatch{Count: 1}, func() {
		if err := g.Append(IngestBatch{Count: 1}, func() { called = true }); err != nil {
			t.Error(err)
		}
		if err := g.Barrier(1, true); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	g.Synced(1)
	mustEqual(t, "the second one", called, false)
	g.Synced(2)
	mustEqual(t, "the second one", called, true)
}

func TestIngestEntry(t *testing.T) {
	log := &memoryLog{}
	g := newIngest(log, nil)
	payload, ids := numbered(1, 0), []byte("\x01a")
	if err := g.Append(IngestBatch{Payload: payload, Count: 1, IDs: ids}, nil); err != nil {
		t.Fatal(err)
	}
	e, err := decodeIngest(log.entries[0].Data)
	if err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "kind", log.entries[0].Kind, EntryIngest)
	mustEqual(t, "stamp", e.stamp, 1)
	mustEqual(t, "count", e.count, 1)
	mustBytes(t, "ids", e.ids, ids)
	mustBytes(t, "payload", e.payload, payload)
}

// TestIngestFullLog: nothing is logged, nothing is ever acknowledged.
func TestIngestFullLog(t *testing.T) {
	log := &memoryLog{full: true}
	g := newIngest(log, nil)
	err := g.Append(IngestBatch{Count: 5}, func() { t.Error("acknowledged") })
	if !errors.Is(err, ErrLogFull) {
		t.Fatalf("got %v", err)
	}
	if err := g.Barrier(1, true); !errors.Is(err, ErrLogFull) {
		t.Fatalf("got %v", err)
	}
	g.Synced(99)
	mustEqual(t, "records", g.Records(), 0)
	log.full = false
	if err := g.Barrier(1, false); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "entries", len(log.entries), 1) // the barrier that found no room may come again
}

func TestIngestBarriers(t *testing.T) {
	log := &memoryLog{}
	g := newIngest(log, nil)
	barrier := func(epoch abs.Epoch, final bool) {
		t.Helper()
		if err := g.Barrier(epoch, final); err != nil {
			t.Fatal(err)
		}
	}
	appends := func() error { return g.Append(IngestBatch{Count: 1}, func() {}) }
	barrier(2, false)
	barrier(2, false)
	barrier(1, false)
	barrier(1, true) // an old one does not end the input either
	if err := appends(); err != nil {
		t.Fatal(err)
	}
	barrier(4, true)
	barrier(4, true)
	barrier(5, false)
	if err := appends(); !errors.Is(err, ErrClosed) {
		t.Fatalf("behind the final barrier: %v", err)
	}
	barrier(6, true) // the final epoch again, under another number
	g.Reopen()
	barrier(4, false)
	if err := appends(); err != nil {
		t.Fatal(err)
	}
	barrier(7, false)
	var got []string
	for _, e := range log.entries {
		if e.Kind == EntryIngest {
			got = append(got, "data")
			continue
		}
		b, err := decodeBarrier(e.Data)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(b.epoch, " ", b.final))
	}
	if want := []string{"epoch 2 false", "data", "epoch 4 true", "epoch 6 true", "data", "epoch 7 false"}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	mustEqual(t, "records", g.Records(), 2)
}

// TestIngestEnds: the cursor is that of the last batch logged, and nothing is logged behind the end.
func TestIngestEnds(t *testing.T) {
	log := &memoryLog{}
	g := newIngest(log, nil)
	batch := func(cursor string) error {
		return g.Append(IngestBatch{Count: 1, Cursor: []byte(cursor)}, func() {})
	}
	g.Resume(SourceState{Cursor: []byte("3")})
	mustBytes(t, "cursor of before", g.Cursor(), []byte("3"))
	for _, c := range []struct{ given, want string }{{"7", "7"}, {"", "7"}, {"9", "9"}} {
		if err := batch(c.given); err != nil {
			t.Fatal(err)
		}
		mustBytes(t, "cursor", g.Cursor(), []byte(c.want))
	}
	e, err := decodeIngest(log.entries[0].Data)
	if err != nil {
		t.Fatal(err)
	}
	mustBytes(t, "cursor in the log", e.cursor, []byte("7"))
	log.full = true
	if err := batch("10"); !errors.Is(err, ErrLogFull) {
		t.Fatalf("got %v", err)
	}
	mustBytes(t, "cursor of what was logged", g.Cursor(), []byte("9"))
	if err := g.End(); !errors.Is(err, ErrLogFull) {
		t.Fatalf("got %v", err)
	}
	log.full = false
	for range 2 {
		if err := g.End(); err != nil {
			t.Fatal(err)
		}
	}
	mustEqual(t, "ends in the log", log.kinds(EntryEnd), 1)
	g.Reopen()
	if err := batch("11"); !errors.Is(err, ErrClosed) {
		t.Fatalf("behind the end: %v", err)
	}
	if err := g.Barrier(1, false); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "barriers behind the end", log.kinds(EntryBarrier), 1)
	g.Resume(SourceState{Ended: true})
	if err := batch("12"); !errors.Is(err, ErrClosed) {
		t.Fatalf("behind an end of before: %v", err)
	}
}

func TestIngestDeadLetters(t *testing.T) {
	dead := &drawer{}
	g := newIngest(&memoryLog{}, dead)
	calls := 0
	for i := range 2 {
		rec := frame.Record{Key: []byte("k"), Value: numbered(i, 0)}
		if err := g.DeadLetter(rec, "too large", func() { calls++ }); err != nil {
			t.Fatal(err)
		}
	}
	mustEqual(t, "kept", len(dead.kept), 2)
	for key, reason := range dead.kept {
		mustEqual(t, "reason", reason, "too large")
		mustEqual(t, "task", strings.HasPrefix(key, "job/source "), true)
	}
	mustEqual(t, "acknowledged", calls, 2)
	mustEqual(t, "refused", g.Refused(), 2)
	dead.err = errors.New("disk full")
	if err := g.DeadLetter(frame.Record{}, "", func() { t.Error("acknowledged") }); !errors.Is(err, dead.err) {
		t.Fatalf("got %v", err)
	}
}
