package dataflow

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// device is what outlives a process: a log, snapshots and dead letters. Its methods are called in a
// synctest bubble, where Wait returns once the task has nothing more to do.
type device struct {
	t     *testing.T
	spec  TaskSpec
	log   *memoryLog
	store *partStore
	dead  *drawer
	now   int64
	base  *PartInfo // of the generation before
	floor abs.Epoch
	spool *memorySpool

	bounds Bounds
}

// process is one run of the task on a device.
type process struct {
	*device
	task   *Task
	ingest *IngestLog
	ops    *counters
	sink   *basket
	wire   *wire
	notes  *notes
	ticks  chan struct{}
	synced chan struct{}
	cancel context.CancelFunc
	done   chan error
}

// sourceSpec is a source with a counter whose output goes to a sink and to a channel.
func sourceSpec(policy ErrorPolicy) TaskSpec {
	return TaskSpec{
		Job: "job", Generation: 1, ID: "count@g1", Agent: "g1", Source: true,
		Entry: []Target{{Kind: ToOp}},
		Ops: []OpSpec{{
			Operator: OperatorSpec{Name: "count", Outputs: []string{"out"}, Inputs: []string{"in"}},
			Outputs:  [][]Target{{{Kind: ToSink}, {Kind: ToEdge}}}, Policy: policy,
		}},
		Edges: []EdgeSpec{{Channels: []OutChannel{{Channel: Channel{ID: "count@g1>sum", Index: 0}, To: "sum", Incarnation: 1}}}},
		Sinks: []SinkSpec{{Name: "alarms", Channel: "alarms@g1"}},
	}
}

func newDevice(t *testing.T, spec TaskSpec) *device {
	return &device{t: t, spec: spec, log: &memoryLog{}, store: &partStore{saved: map[Version][]Change{}}, dead: &drawer{}, now: 1000}
}

// start runs the task; its receiver has everything still to come.
func (d *device) start() *process { return d.startWith(&counters{}) }

func (d *device) startWith(ops *counters) *process {
	p := d.startMaking(ops)
	p.ops = ops
	return p
}

func (d *device) startMaking(ops Operators) *process {
	p := &process{
		device: d, sink: &basket{}, notes: &notes{},
		wire:  &wire{grants: make(chan Grant, 8)},
		ticks: make(chan struct{}), synced: make(chan struct{}, 1), done: make(chan error, 1),
	}
	clock := func() int64 { return d.now }
	p.ingest = NewIngestLog(d.spec.Name(), d.log, d.dead, clock)
	p.task = NewTask(d.spec, Env{
		Log: d.log, Store: d.store, Operators: ops, Output: p.wire, Sinks: d.sinks(p), Dead: d.dead, Observer: p.notes,
		Save:  func(info PartInfo, changes []Change, done func(error)) { done(d.store.Save(info, changes)) },
		Clock: clock, Stopwatch: func() time.Duration { return 0 }, Ticks: p.ticks, Synced: p.synced,
		Base: d.base, BaseHere: d.base != nil, Floor: d.floor,
	})
	ctx, cancel := context.WithCancel(d.t.Context())
	p.cancel = cancel
	go func() { p.done <- p.task.Run(ctx) }()
	p.grant(Grant{Next: 1})
	return p
}

// sinks are a basket for the last sink of the spec, and for those before it one that nobody looks into.
func (d *device) sinks(p *process) []Sink {
	var out []Sink
	for range len(d.spec.Sinks) - 1 {
		out = append(out, &basket{})
	}
	return append(out, p.sink)
}

func (p *process) grant(g Grant) {
	g.Incarnation, g.Window = 1, grantWindow
	p.wire.grants <- g
	synctest.Wait()
}

// receive logs a batch of "key" or "key:value" records.
func (p *process) receive(records ...string) {
	p.t.Helper()
	var b IngestBatch
	for _, r := range records {
		key, value, _ := strings.Cut(r, ":")
		b.Payload = frame.AppendRecord(b.Payload, frame.Record{Key: []byte(key), Value: []byte(value)})
		b.Count++
	}
	p.now++
	if err := p.ingest.Append(b, func() {}); err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait()
}

func (p *process) barrier(epoch abs.Epoch) {
	p.t.Helper()
	if err := p.ingest.Barrier(epoch, false); err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait()
}

// sync makes the log durable, and what the task adds to it on that.
func (p *process) sync() {
	for p.log.sync(1 << 40) {
		p.synced <- struct{}{}
		synctest.Wait()
	}
}

// handed says that the sink has handed over up to a number.
func (p *process) handed(upto abs.Seq) {
	p.task.SinkEvents(0).Handed(upto)
	synctest.Wait()
}

// stop ends the process; a power cut loses what is not synced.
func (p *process) stop(powerCut bool) {
	p.t.Helper()
	p.cancel()
	if err := <-p.done; err != nil {
		p.t.Fatal(err)
	}
	p.log.restart(powerCut)
}

func (p *process) wants(what string, items ...string) {
	p.t.Helper()
	if got := p.sink.got(); !slices.Equal(got, items) {
		p.t.Fatalf("%s: sink got %q, want %q", what, got, items)
	}
}

func (p *process) sent() string {
	p.t.Helper()
	items := p.wire.items(p.t)
	var out []string
	for _, n := range slices.Sorted(maps.Keys(items)) {
		if int(n) != len(out)+1 {
			p.t.Fatalf("numbers sent: %v", items)
		}
		out = append(out, items[n])
	}
	return strings.Join(out, " ")
}

func bubble(t *testing.T, policy ErrorPolicy, test func(d *device)) {
	synctest.Test(t, func(t *testing.T) { test(newDevice(t, sourceSpec(policy))) })
}

// TestTaskGivesUpTheRecordThatTraps: it is kept as a dead letter, all others count once, and replay
// decides the same under equal numbers.
func TestTaskGivesUpTheRecordThatTraps(t *testing.T) {
	bubble(t, "", func(d *device) {
		p := d.start()
		p.receive("a", "b")
		p.receive("a", "b:bad", "b", "a", "c:bad")
		p.receive("b", "c")
		p.sync()
		want := []string{"1 a=1", "2 b=1", "3 a=2", "4 b=2", "5 a=3", "6 b=3", "7 c=1"}
		p.wants("whole", want...)
		mustEqual(d.t, "sent", p.sent(), "a=1 b=1 a=2 b=2 a=3 b=3 c=1")
		mustEqual(d.t, "dead letters", len(d.dead.recs), 2)
		for i, key := range []string{"b", "c"} {
			mustBytes(d.t, "key of a dead letter", d.dead.recs[i].Key, []byte(key))
			mustBytes(d.t, "value of a dead letter", d.dead.recs[i].Value, []byte("bad"))
		}
		for key, reason := range d.dead.kept {
			mustEqual(d.t, "task", strings.HasPrefix(key, "job/count@g1 "), true)
			mustEqual(d.t, "reason names the operator", strings.Contains(reason, "operator count: trap"), true)
		}
		mustEqual(d.t, "given up", p.task.Status().GivenUp, 2)
		mustEqual(d.t, "entries of that", d.log.kinds(EntryGiveUp), 2)
		for _, r := range p.notes.recovery[:1] {
			mustEqual(d.t, "level", r.Level, "L0")
		}
		p.stop(false)

		p = d.start() // the sink has confirmed nothing: it gets the same again
		p.sync()
		p.wants("made again", want...)
		mustEqual(d.t, "sent again", p.sent(), "a=1 b=1 a=2 b=2 a=3 b=3 c=1")
		mustEqual(d.t, "dead letters after replay", len(d.dead.recs), 2)
		mustEqual(d.t, "instances", p.ops.made, 1) // replay met no trap
		mustEqual(d.t, "level", p.notes.recovery[0].Level, "L1")
		mustEqual(d.t, "replayed", p.notes.caughtUp[0].Replayed, 9)
		p.receive("a")
		p.sync()
		p.wants("further", append(want, "8 a=4")...)
		p.stop(false)
	})
}

// TestTaskGiveUpIsDurableBeforeWhatFollows: a record given up because of a time limit may pass the next
// time; nothing that was made without it may have left when the log does not say so for good.
func TestTaskGiveUpIsDurableBeforeWhatFollows(t *testing.T) {
	bubble(t, "", func(d *device) {
		p := d.startWith(&counters{slow: 2}) // the batch, and then the record alone
		p.sync()
		p.receive("a", "a:slow", "b")
		mustEqual(d.t, "entries of given-up records", d.log.kinds(EntryGiveUp), 1)
		d.log.sync(d.log.Last() - 1)
		p.synced <- struct{}{}
		synctest.Wait()
		if got := p.sink.got(); len(got) > 1 { // what came before the record may leave
			d.t.Fatalf("left without the log saying so: %q", got)
		}
		left := p.sink.got()
		p.stop(true)

		p = d.start()
		p.sync()
		p.wants("after the power cut", "1 a=1", "2 a=2", "3 b=1")
		for i, item := range left {
			mustEqual(d.t, "item that had left", p.sink.got()[i], item)
		}
		mustEqual(d.t, "dead letters", len(d.dead.recs), 0)
		p.stop(false)
	})
}

func TestTaskPolicies(t *testing.T) {
	t.Run("skip", func(t *testing.T) {
		bubble(t, PolicySkip, func(d *device) {
			p := d.start()
			p.receive("a", "a:bad", "a")
			p.sync()
			p.wants("skipped", "1 a=1", "2 a=2")
			mustEqual(d.t, "dead letters", len(d.dead.recs), 0)
			mustEqual(d.t, "given up", p.task.Status().GivenUp, 1)
			p.stop(false)
		})
	})
	t.Run("fail", func(t *testing.T) {
		bubble(t, PolicyFail, func(d *device) {
			p := d.start()
			p.receive("a")
			p.receive("a", "a:bad", "a")
			synctest.Wait()
			if err := <-p.done; err == nil || !strings.Contains(err.Error(), "count") || !strings.Contains(err.Error(), "policy") {
				d.t.Fatalf("got %v", err)
			}
			mustEqual(d.t, "entries of given-up records", d.log.kinds(EntryGiveUp), 0)
			mustEqual(d.t, "dead letters", len(d.dead.recs), 0)
			p.cancel()
		})
	})
	t.Run("dead letters cannot be kept", func(t *testing.T) {
		bubble(t, PolicyDeadLetter, func(d *device) {
			d.dead.err = errors.New("disk full")
			p := d.start()
			p.receive("a:bad")
			mustEqual(d.t, "entries of given-up records", d.log.kinds(EntryGiveUp), 1)
			p.sync()
			if err := <-p.done; !errors.Is(err, d.dead.err) {
				d.t.Fatalf("got %v", err)
			}
			p.cancel()
			d.dead.err = nil
			d.log.restart(true)

			p = d.start()
			mustEqual(d.t, "dead letters that replay has kept", len(d.dead.recs), 1)
			mustEqual(d.t, "instances", p.ops.made, 1)
			p.stop(false)
		})
	})
	t.Run("power cut before the log is synced", func(t *testing.T) {
		bubble(t, PolicyDeadLetter, func(d *device) {
			p := d.start()
			p.sync()
			p.receive("a:bad", "a")
			p.receive("a")
			mustEqual(d.t, "dead letters", len(d.dead.recs), 0)
			d.log.sync(d.log.entryOf(EntryGiveUp) - 1) // all but the entry that gives the record up
			p.synced <- struct{}{}
			synctest.Wait()
			mustEqual(d.t, "dead letters", len(d.dead.recs), 0)
			p.wants("before it is sure that the record is given up")
			p.sync()
			mustEqual(d.t, "dead letters", len(d.dead.recs), 1)
			p.wants("after", "1 a=1", "2 a=2")
			p.stop(false)
		})
	})
}

// TestTaskRestoredFromABarrier: whatever is restored at a barrier goes on as if nothing had been.
func TestTaskRestoredFromABarrier(t *testing.T) {
	want := []string{"1 a=1", "2 b=1", "3 a=2", "4 b=2", "5 c=1", "6 a=3", "7 c=2"}
	const sent = "a=1 b=1 a=2 barrier b=2 c=1 barrier a=3 c=2"
	before := func(p *process) {
		p.receive("a", "b", "a")
		p.barrier(1)
		p.receive("b", "c")
		p.barrier(2)
	}
	after := func(p *process) {
		p.receive("a", "c")
		p.sync()
	}
	bubble(t, "", func(d *device) {
		p := d.start()
		before(p)
		after(p)
		p.wants("whole", want...)
		mustEqual(d.t, "sent", p.sent(), sent)
		if !slices.Equal(p.notes.durable, []abs.Epoch{0, 1, 2}) {
			d.t.Fatalf("durable parts of epochs %v", p.notes.durable)
		}
		for i, info := range d.store.parts {
			mustEqual(d.t, "full", info.Full, i == 0)
		}
		mustEqual(d.t, "keys in the last part", len(d.store.saved[3]), 2) // b and c
		p.stop(false)
	})
	t.Run("handed over", func(t *testing.T) {
		bubble(t, "", func(d *device) {
			p := d.start()
			before(p)
			p.sync()
			p.handed(5)
			p.sync()
			p.stop(true)

			p = d.start()
			mustEqual(d.t, "epoch", p.notes.recovery[0].Epoch, 2)
			mustEqual(d.t, "replayed", p.notes.caughtUp[0].Replayed, 0)
			p.grant(Grant{Next: 8, Sum: sumOf(d.t, p, nil)})
			after(p)
			p.wants("from the barrier", want[5:]...)
			items := p.wire.items(d.t)
			mustEqual(d.t, "sent", items[8]+" "+items[9], "a=3 c=2")
			p.stop(false)
		})
	})
	t.Run("not handed over", func(t *testing.T) {
		bubble(t, "", func(d *device) {
			p := d.start()
			before(p)
			p.sync()
			p.handed(2)
			p.sync()
			p.stop(true)

			p = d.start() // the part's outbox has 3 to 5, of which the log says nothing
			after(p)
			p.wants("from the outbox", want[2:]...)
			p.stop(false)
		})
	})
	t.Run("a receiver that lost all", func(t *testing.T) {
		bubble(t, "", func(d *device) {
			p := d.start()
			before(p)
			p.sync()
			p.grant(Grant{Next: 8, Sum: sumOf(d.t, p, nil)})
			p.wire.frames = nil
			p.grant(Grant{Next: 1, Rewind: true})
			mustEqual(d.t, "restored at once", len(p.notes.recovery), 0)
			for range lackTicks {
				p.ticks <- struct{}{}
			}
			p.grant(Grant{Next: 1, Rewind: true})
			after(p)
			mustEqual(d.t, "sent again", p.sent(), sent)
			p.wants("the sink, which lost nothing", want...)
			mustEqual(d.t, "level", p.notes.recovery[0].Level, "rewind")
			p.barrier(3)
			p.sync()
			mustEqual(d.t, "full part behind a rewind", d.store.parts[len(d.store.parts)-1].Full, true)
			p.stop(false)
		})
	})
}

// sumOf is the running checksum behind everything sent so far, or behind what a test made up.
func sumOf(t *testing.T, p *process, instead []byte) frame.Sum {
	t.Helper()
	if instead != nil {
		return frame.Sum(0).Add(instead)
	}
	o := p.task.outs[0]
	return o.sum
}

// TestTaskOutputRule: as long as the log is not synced, nothing leaves, and a power cut takes back
// nothing that anybody has seen.
func TestTaskOutputRule(t *testing.T) {
	bubble(t, "", func(d *device) {
		p := d.start()
		p.sync() // the initial part and the reservation
		p.receive("a", "b")
		p.barrier(1)
		p.receive("a")
		p.wants("nothing synced")
		mustEqual(d.t, "sent", p.sent(), "")
		mustEqual(d.t, "parts", len(d.store.parts), 1)
		d.log.sync(d.log.Last() - 1)
		p.synced <- struct{}{}
		synctest.Wait()
		p.wants("synced up to the barrier", "1 a=1", "2 b=1")
		mustEqual(d.t, "sent", p.sent(), "a=1 b=1 barrier")
		mustEqual(d.t, "parts", len(d.store.parts), 2)
		p.stop(true)

		p = d.start()
		p.receive("c")
		p.sync()
		p.wants("after the power cut", "1 a=1", "2 b=1", "3 c=1")
		mustEqual(d.t, "sent", p.wire.items(d.t)[4], "c=1")
		p.stop(false)
	})
}

// TestTaskReportsADifference: a receiver that has something else under the same numbers.
func TestTaskReportsADifference(t *testing.T) {
	bubble(t, "", func(d *device) {
		p := d.start()
		p.receive("a")
		p.sync()
		p.wire.grants <- Grant{Next: 2, Sum: sumOf(d.t, p, []byte("something else")), Incarnation: 1}
		var diff *DiffError
		if err := <-p.done; !errors.As(err, &diff) || diff.Channel != "count@g1>sum" || diff.Number != 1 {
			d.t.Fatalf("got %v", err)
		}
		p.cancel()
	})
}

// TestTaskDropsRepeatsByID over a restart: what was remembered is part of the snapshot.
func TestTaskDropsRepeatsByID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := sourceSpec("")
		spec.DedupeWindow = 8
		d := newDevice(t, spec)
		receive := func(p *process, ids ...string) {
			t.Helper()
			var b IngestBatch
			for _, id := range ids {
				b.Payload = frame.AppendRecord(b.Payload, frame.Record{Key: []byte("k"), Value: []byte("v")})
				b.IDs = append(append(b.IDs, byte(len(id))), id...)
				b.Count++
			}
			if err := p.ingest.Append(b, func() {}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		p := d.start()
		receive(p, "1", "2", "1")
		receive(p, "2", "2")
		p.barrier(1)
		receive(p, "3", "1", "4")
		p.sync()
		p.wants("first run", "1 k=1", "2 k=2", "3 k=3", "4 k=4")
		mustEqual(t, "repeats", p.task.Status().Repeats, 4)
		p.handed(2)
		p.sync()
		p.stop(true)

		p = d.start()
		receive(p, "2", "4", "", "5", "")
		p.sync()
		p.wants("second run", "3 k=3", "4 k=4", "5 k=5", "6 k=6", "7 k=7")
		p.stop(false)
	})
}

// A generation that begins from an older one's part: what was logged behind the part counts, and what
// a sink has handed over is not offered again.
func TestTaskNewGenerationGoesOnBehindTheOldPart(t *testing.T) {
	bubble(t, "", func(d *device) {
		p := d.start()
		p.receive("a", "b")
		if err := p.ingest.Barrier(1, true); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.sync()
		p.handed(2)
		p.sync()
		p.stop(false)

		// Restarted before the final epoch is over: the task knows that its source was to stop.
		p = d.start()
		mustEqual(t, "final epoch that the log tells of", p.task.Source().Final, abs.Epoch(1))
		p.receive("a") // by a source that was not told
		p.sync()
		p.wants("after the restart", "3 a=2")
		mustEqual(t, "final epoch once the source went on", p.restarted().Final, abs.Epoch(0))
		p.stop(false)

		d.spec.Generation, d.floor, d.base = 2, 1, &d.store.parts[len(d.store.parts)-1]
		d.spec.Sinks = append([]SinkSpec{{Name: "other", Channel: "other@g1"}}, d.spec.Sinks...)
		d.spec.Ops[0].Outputs[0][0].Index = 1
		p = d.startWith(&counters{})
		p.receive("b")
		p.sync()
		p.wants("in the next generation", "3 a=2", "4 b=2")
		p.stop(false)
	})
}

// restarted is what a process started now would know of its source.
func (p *process) restarted() SourceState {
	p.t.Helper()
	t := NewTask(p.spec, p.task.env)
	if err := t.Open(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	defer t.Close()
	return t.Source()
}
