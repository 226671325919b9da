package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
)

// A committed checkpoint must do for a restore of everybody: every task starts from its part, sources
// read on in their logs, streams are empty, and what streamed tasks had logged is gone. The order of
// what follows is another one, its sums are the same.

// restoreFrom builds a world that goes on from a checkpoint of a run that is over.
func restoreFrom(c *checkpoint, opt options) *world {
	from := c.from
	w := newWorld(from.topo, from.seed, options{rules: opt.rules, trace: opt.trace, faults: []string{"none"}})
	w.profile = from.profile // a calm one
	w.profile.streamFrames = 1 << 16
	w.calm = true
	w.oracle.restore = c
	w.outside.messages = from.outside.messages
	for _, e := range from.kv.epochs() {
		v, _ := from.kv.record(e)
		if e > c.record.Epoch { // it is as if the later ones had not been
			v.Record.State, v.Record.Parts = abs.Aborted, nil
		}
		w.kv.records[e] = versioned{encode(v.Record), v.Revision}
	}
	for t, u := range from.upgrades {
		w.upgrades[t] = u
	}
	w.kv.revision, w.terms = from.kv.revision, from.terms+len(from.leaders)
	for _, t := range w.topo.tasks {
		w.restoreTask(c, t)
	}
	return w
}

// restoreTask puts the task's part, and of a source the log after it, on the task's disk.
func (w *world) restoreTask(c *checkpoint, t *plannedTask) {
	old, d := c.from.agent(t.agent).disk, w.agent(t.agent).disk
	d.last, d.synced = old.last, old.last
	d.copies[c.record.Epoch] = c.record
	part := c.parts[t.id]
	d.parts[t.name()] = &partList{list: []*savedPart{part}, highest: part.info.Version}
	l := d.log(t)
	if t.source {
		for _, e := range old.log(t).all {
			if e.Pos > part.info.Pos {
				e.Data = bytes.Clone(e.Data)
				l.entries = append(l.entries, e)
			}
		}
	}
	for key, rec := range old.dead {
		var log, pos abs.Position
		place, mine := strings.CutPrefix(key, t.name()+" ")
		if _, err := fmt.Sscanf(place, "%x-%d-", &log, &pos); mine && err == nil && pos <= part.info.Pos {
			d.dead[key] = rec
			if at, again := old.replayed[key]; again && at <= part.info.Pos {
				d.replayed[key] = at
			}
		}
	}
	if t.sink {
		c.handed[string(t.id)+">out"] = rollBackSink(part)
	}
}

// rollBackSink makes a part forget what its sink has handed over beyond its cut, if it was taken in a
// replay: under those numbers there will be other items. It returns how far the sink has handed over.
func rollBackSink(p *savedPart) abs.Seq {
	meta := metaOf(p.info.Meta)
	sink := meta["sinks"].(map[string]any)["out"].(map[string]any)
	next, handed := number(sink["next"]), number(sink["handed"])
	if handed < next {
		return abs.Seq(handed)
	}
	sink["handed"], sink["handed_sum"] = next-1, sink["sum"]
	p.info.Meta = encodeMeta(meta)
	return abs.Seq(next - 1)
}

// metaOf reads a part's own state without losing digits of its checksums.
func metaOf(encoded []byte) map[string]any {
	d := json.NewDecoder(bytes.NewReader(encoded))
	d.UseNumber()
	var meta map[string]any
	if err := d.Decode(&meta); err != nil {
		panic(err)
	}
	return meta
}

func encodeMeta(meta map[string]any) []byte {
	b, err := json.Marshal(meta)
	if err != nil {
		panic(err)
	}
	return b
}

func number(v any) uint64 {
	n, err := strconv.ParseUint(v.(json.Number).String(), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// restoreOne restores the job from one of the checkpoints that a run has committed.
func restoreOne(w *world, opt options) error {
	c := w.oracle.commits[w.rng.IntN(len(w.oracle.commits))]
	r := restoreFrom(c, opt)
	r.trace("RESTORE from %v", c.record.Epoch)
	err := r.run()
	w.count += r.count
	w.now += r.now
	w.chaos.count("job restored from a checkpoint")
	if err != nil {
		return fmt.Errorf("restored from %v: %w", c.record.Epoch, err)
	}
	return nil
}

// calmPace is the pace of a world in which nothing goes wrong.
func calmPace(p *profile) {
	p.grantLoss, p.ackLoss, p.writeLoss, p.refusals, p.laggard = 0, 0, 0, 0, ""
	p.sync, p.link, p.control, p.persist = time.Millisecond, time.Millisecond, time.Millisecond, 2*time.Millisecond
}
