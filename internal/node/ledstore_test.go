package node

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/storage"
)

// lastFrame keeps the header of the last frame that was sent; unheard hears nothing.
type (
	lastFrame struct{ frame.Header }
	unheard   struct{}
)

func (l *lastFrame) Send(_ int, b []byte, done func(error)) {
	h, _, err := frame.Decode(b)
	l.Header = h
	done(err)
}
func (*lastFrame) Grants() <-chan dataflow.Grant { return nil }
func (*lastFrame) Ask()                          {}
func (*lastFrame) Close()                        {}

func (unheard) PartDurable(dataflow.PartReport) {}
func (unheard) PartSkipped(abs.Epoch, string)   {}
func (unheard) Recovered(dataflow.Recovery)     {}
func (unheard) CaughtUp(dataflow.Recovery)      {}
func (unheard) Drained(abs.Epoch)               {}
func (unheard) Stirred()                        {}

// TestGapBehindTheLog: a receiver asks for numbers that only a snapshot could make again that lies before the log. The
// snapshot is still there, since snapshots are dropped some at a time; without it the task ends with a gap, which
// lets the job go back to a checkpoint, and not with an error of its log, upon which it would be started anew for ever.
func TestGapBehindTheLog(t *testing.T) {
	dir := t.TempDir()
	log, err := storage.OpenLog(filepath.Join(dir, "log"), storage.LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	store, _, err := storage.OpenStore(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	entries, err := log.Stream("j/text@g")
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	clock := func() int64 { return 1000 }
	spec := dataflow.TaskSpec{
		Job: "j", Generation: 1, ID: "text@g", Agent: "g", Source: true, Entry: []dataflow.Target{{Kind: dataflow.ToEdge}},
		Edges: []dataflow.EdgeSpec{{Channels: []dataflow.OutChannel{{Channel: dataflow.Channel{ID: "text@g>sum"}, To: "sum", Incarnation: 1}}}},
	}
	sent := &lastFrame{}
	task := dataflow.NewTask(spec, dataflow.Env{
		Log: entries, Store: ledStore{store, entries, 1}, Output: sent, Observer: unheard{},
		Save: func(info dataflow.PartInfo, changes []dataflow.Change, done func(error)) {
			done(store.Save(info, changes))
		},
		Clock: clock, Stopwatch: func() time.Duration { return 0 },
	})
	t.Cleanup(func() { must(task.Close()) })
	must(task.Open(t.Context()))
	ingest := dataflow.NewIngestLog("j/text@g", entries, nil, clock)
	synced := make(chan struct{}, 1)
	t.Cleanup(log.Notify(func(abs.Position) { signal(synced) }))
	settle := func() {
		t.Helper()
		for log.Synced() < log.Last() {
			<-synced
		}
		for again := true; again; {
			task.Settle()
			must(task.HandOver())
			again, err = task.Step(t.Context())
			must(err)
		}
		task.Settle()
		must(task.HandOver())
	}
	settle()
	must(task.TakeGrant(t.Context(), dataflow.Grant{Incarnation: 1, Next: 1, Window: 1 << 20}))
	must(ingest.Append(dataflow.IngestBatch{Payload: frame.AppendRecord(nil, frame.Record{Value: []byte("a")}), Count: 1}, func() {}))
	must(ingest.Barrier(1, false))
	settle()
	must(task.TakeGrant(t.Context(), dataflow.Grant{Incarnation: 1, Next: abs.Seq(sent.Last()) + 1, Sum: sent.After, Window: 1 << 20}))
	parts, err := store.Parts("j/text@g")
	if err != nil || len(parts) != 2 {
		t.Fatalf("%d snapshots, %v", len(parts), err)
	}
	must(entries.Truncate(parts[1].Pos))
	if led, err := (ledStore{store, entries, 1}).Parts("j/text@g"); err != nil || len(led) != 1 || led[0].Version != parts[1].Version {
		t.Fatalf("the log leads on from %+v, %v", led, err)
	}
	if led, err := (ledStore{store, entries, 2}).Parts("j/text@g"); err != nil || len(led) != 2 {
		t.Fatalf("to the next generation all are shown, not %+v, %v", led, err)
	}
	var asked error
	for range 1000 {
		if asked = task.TakeGrant(t.Context(), dataflow.Grant{Incarnation: 1, Next: 1, Rewind: true}); asked != nil {
			break
		}
		task.Tick()
	}
	if !errors.Is(asked, dataflow.ErrGap) || !permanent(asked) {
		t.Errorf("it ends with %v", asked)
	}
	must(ingest.Append(dataflow.IngestBatch{Payload: frame.AppendRecord(nil, frame.Record{Value: []byte("b")}), Count: 1}, func() {}))
	must(log.WaitSynced(t.Context(), log.Last()))
	must(entries.Truncate(entries.Info().Last))
	if led, err := (ledStore{store, entries, 1}).Parts("j/text@g"); err == nil || len(led) > 0 {
		t.Errorf("where the log leads on from none, a task is told of %+v, %v", led, err)
	}
}
