package dataflow

import (
	"testing"
	"testing/synctest"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// letter is the dead letter of a key's record, as it was kept.
func (d *device) letter(key string) Letter {
	d.t.Helper()
	return Letter{Key: key, Replayed: d.dead.replayed["job/count@g1 "+key], Record: frame.AppendRecord(nil, frame.Record{Key: []byte("b"), Value: []byte("slow")})}
}

// TestDeadLetterIsReplayedOnce: asked for twice, with the process ending at each moment, it is processed once for
// each time that it is marked, and in replay at the same place.
func TestDeadLetterIsReplayedOnce(t *testing.T) {
	bubble(t, "", func(d *device) {
		p := d.startWith(&counters{slow: 1 << 20}) // every instance refuses it
		p.receive("a", "b:slow")
		p.sync()
		p.wants("refused", "1 a=1")
		key := "1-2-1" // log 1, its second entry, the second record
		if d.dead.kept["job/count@g1 "+key] == "" {
			t.Fatalf("kept: %v", d.dead.kept)
		}
		p.task.Replay(d.letter(key), d.letter(key))
		synctest.Wait()
		p.sync()
		mustEqual(t, "entries", d.log.kinds(EntryReplay), 1)
		mustEqual(t, "refused again", len(d.dead.kept), 2)
		mustEqual(t, "marked", len(d.dead.replayed), 1)
		p.stop(false)

		p = d.startWith(&counters{})
		p.receive("c")
		p.task.Replay(d.letter(key))
		synctest.Wait() // logged, and lost with the power
		mustEqual(t, "not marked before the log is synced", d.dead.replayed["job/count@g1 "+key], d.log.entryOf(EntryReplay))
		p.stop(true)
		p = d.startWith(&counters{})
		p.task.Replay(d.letter(key))
		p.receive("b")
		p.sync()
		got := p.sink.got()
		mustEqual(t, "replayed", got[len(got)-2], "2 b=1")
		mustEqual(t, "and what came after it", got[len(got)-1], "3 b=2")
		at := d.dead.replayed["job/count@g1 "+key]
		p.stop(false)
		p = d.startWith(&counters{})
		p.sync()
		mustEqual(t, "marked in replay as before", d.dead.replayed["job/count@g1 "+key], at)
		if err := p.task.CanReplay(key); err != nil {
			t.Error(err)
		}
		for _, none := range []string{"in-1-2-3", "out-c-1", "", "1-1-x", "1-1-1@count", "1-1-1@other.0", "1-1-1@count.9", "1-1-1@count.-1", "1-2-1073741824"} {
			if err := p.task.CanReplay(none); err == nil {
				t.Errorf("a letter %q can be replayed", none)
			}
		}
		p.stop(false)
	})
}

// TestLetterBehindTheFinalBarrier: it is left to the next generation, unless this one goes on.
func TestLetterBehindTheFinalBarrier(t *testing.T) {
	drained := func(d *device) *process {
		p := d.startWith(&counters{slow: 1 << 20})
		p.receive("a", "b:slow")
		p.sync()
		p.stop(false)
		p = d.startWith(&counters{})
		if err := p.ingest.Barrier(1, true); err != nil {
			d.t.Fatal(err)
		}
		if _, err := d.log.Append(EntryReplay, replayEntry{5, d.letter("1-2-1")}.encode()); err != nil {
			d.t.Fatal(err)
		}
		synctest.Wait()
		p.sync()
		p.wants("behind the final barrier", "1 a=1")
		mustEqual(d.t, "marked", len(d.dead.replayed), 0)
		mustEqual(d.t, "state", p.restarted().Final, abs.Epoch(1))
		return p
	}
	for name, on := range map[string]struct {
		move func(p *process) *process
		want []string
	}{
		"records": {func(p *process) *process { p.ingest.Reopen(); p.receive("b"); return p }, []string{"1 a=1", "2 b=1", "3 b=2"}},
		"barrier": {func(p *process) *process { p.ingest.Reopen(); p.barrier(2); return p }, []string{"1 a=1", "2 b=1"}},
		"end": {func(p *process) *process {
			if err := p.ingest.End(); err != nil {
				p.t.Fatal(err)
			}
			synctest.Wait()
			return p
		}, []string{"1 a=1", "2 b=1"}},
		"next generation": {func(p *process) *process {
			p.handed(1)
			p.sync()
			p.stop(false)
			p.spec.Generation, p.floor, p.base = 2, 1, &p.store.parts[len(p.store.parts)-1]
			return p.startWith(&counters{})
		}, []string{"2 b=1"}},
	} {
		bubble(t, "", func(d *device) {
			p := on.move(drained(d))
			if name != "next generation" {
				p.wants(name+": before the log is synced", "1 a=1")
			}
			p.sync()
			p.wants(name, on.want...)
			mustEqual(d.t, name+": marked at", d.dead.replayed["job/count@g1 1-2-1"], d.log.entryOf(EntryReplay))
			p.stop(false)
		})
	}
}

// TestLetterBehindTheEnd has no effect.
func TestLetterBehindTheEnd(t *testing.T) {
	bubble(t, "", func(d *device) {
		p := d.startWith(&counters{slow: 1 << 20})
		p.receive("a", "b:slow")
		p.sync()
		if err := p.ingest.End(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.log.Append(EntryReplay, replayEntry{5, d.letter("1-2-1")}.encode()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.task.Replay(d.letter("1-2-1"))
		p.ticks <- struct{}{}
		p.sync()
		p.wants("behind the end", "1 a=1")
		mustEqual(t, "marked", len(d.dead.replayed), 0)
		mustEqual(t, "entries", d.log.kinds(EntryReplay), 1)
		mustEqual(t, "ended", p.task.Status().Ended, true)
		p.stop(false)
	})
}

// TestLetterReplayedMeanwhile: who asks for what another one has asked for gets nothing.
func TestLetterReplayedMeanwhile(t *testing.T) {
	bubble(t, "", func(d *device) {
		p := d.startWith(&counters{slow: 1 << 20})
		p.receive("a", "b:slow")
		p.sync()
		asked := d.letter("1-2-1")
		p.task.Replay(asked)
		synctest.Wait()
		p.sync()
		mustEqual(t, "marked", len(d.dead.replayed), 1)
		p.task.Replay(asked)
		synctest.Wait()
		p.sync()
		mustEqual(t, "entries", d.log.kinds(EntryReplay), 1)
		p.task.Replay(d.letter("1-2-1"))
		synctest.Wait()
		p.sync()
		mustEqual(t, "entries when it is wanted again", d.log.kinds(EntryReplay), 2)
		p.stop(false)
	})
}

func TestReplayEntryIsChecked(t *testing.T) {
	rec := frame.AppendRecord(nil, frame.Record{Key: []byte("k"), Value: []byte("v")})
	e := replayEntry{77, Letter{Key: "1-2-3", Record: rec}}
	got, err := decodeReplay(e.encode())
	if err != nil || got.stamp != 77 || got.Key != "1-2-3" {
		t.Fatalf("%+v, %v", got, err)
	}
	whole := e.encode()
	for n := range whole {
		if _, err := decodeReplay(whole[:n]); err == nil {
			t.Errorf("cut at %d it is taken", n)
		}
	}
	if _, err := decodeReplay(append(whole, rec...)); err == nil {
		t.Error("two records are taken")
	}
}
