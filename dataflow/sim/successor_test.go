package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// A device is gone for good, with its log, and another takes its place: the job goes on from a checkpoint
// in its next generation, in which the new device's channels begin with number 1. What only the old log
// held is lost, and nothing else. The old device is not gone, though: it goes on writing, as a zombie.

// successor is what the next generation must know of the one before.
type successor struct {
	agent  string // its device is another one
	base   map[*plannedTask]dataflow.PartInfo
	lost   map[uint32]bool // records that only the lost log held, or had already given away
	ghosts []stored        // what the old device sends
	same   bool            // the zombie writes under the new generation: only its incarnation is lower
}

// loses says that a record need not come out.
func (s *successor) loses(id uint32) bool { return s != nil && s.lost[id] }

// replaced says whether a task's device is another one than in the generation before.
func (w *world) replaced(t *plannedTask) bool { return w.next != nil && t.agent == w.next.agent }

// incarnation is that of a channel's writer.
func (w *world) incarnation(c *plannedChannel) uint32 {
	if w.next != nil && w.next.same && w.replaced(c.from) {
		return 2
	}
	return 1
}

// replaceable lists the agents that host sources alone: only those can be replaced.
func (tp *topology) replaceable() []string {
	return slices.DeleteFunc(tp.agents(), func(agent string) bool {
		return slices.ContainsFunc(tp.tasks, func(t *plannedTask) bool { return t.agent == agent && !t.source })
	})
}

// succeed builds the world of the next generation.
func succeed(c *checkpoint, agent string, same bool, opt options) *world {
	w := restoreFrom(c, opt)
	w.outside.messages = slices.Clone(w.outside.messages)
	w.gen, w.next = 2, &successor{agent: agent, same: same, base: map[*plannedTask]dataflow.PartInfo{}, lost: map[uint32]bool{}}
	for _, t := range w.topo.tasks {
		w.next.base[t] = c.parts[t.id].info
		if w.replaced(t) {
			w.next.lose(w, t, c)
		}
	}
	for _, f := range c.from.oracle.frames {
		if w.replaced(w.topo.channels[f.channel].from) {
			w.next.ghosts = append(w.next.ghosts, f)
		}
	}
	return w
}

// lose takes the task's log away.
func (s *successor) lose(w *world, t *plannedTask, c *checkpoint) {
	d := w.agent(t.agent).disk
	d.last, d.synced, d.id = 0, 0, 2
	d.log(t).entries = nil
	for _, m := range w.outside.messages {
		if m.from == t {
			s.lost[m.id] = true
		}
	}
	for _, e := range c.from.agent(t.agent).disk.log(t).all {
		if e.Pos > c.parts[t.id].info.Pos || e.Kind != dataflow.EntryIngest {
			continue
		}
		for _, id := range idsOf(e) {
			delete(s.lost, id)
		}
	}
}

// idsOf lists the records of an ingest entry: behind a stamp and a count are the ids that broker.hand gave.
func idsOf(e dataflow.Entry) (ids []uint32) {
	b := e.Data[8:]
	_, n := binary.Uvarint(b)
	b = b[n:]
	size, n := binary.Uvarint(b)
	for b = b[n:][:size]; len(b) > 0; b = b[5:] {
		ids = append(ids, binary.LittleEndian.Uint32(b[1:]))
	}
	return ids
}

// haunt lets the old device write something now and then.
func (w *world) haunt(left int) {
	if left == 0 || len(w.next.ghosts) == 0 {
		return
	}
	w.after(w.some(2*time.Millisecond), func() {
		w.haunt(left - 1)
		f := w.next.ghosts[w.rng.IntN(len(w.next.ghosts))]
		data := bytes.Clone(f.data)
		if w.next.same {
			h, payload, err := frame.Decode(data)
			if err != nil {
				w.fail("%v", err)
			}
			h.Generation = uint32(w.gen)
			frame.PutHeader(data, h, len(payload))
		}
		c := w.topo.channels[f.channel]
		if w.streams[c.to.id].put(f.channel, data) == nil {
			w.chaos.count("frame of a zombie")
		}
	})
}

// TestSuccessorSeeds replaces a device whose old copy lives on.
func TestSuccessorSeeds(t *testing.T) {
	if *flagSeed != 0 {
		return
	}
	for _, name := range []string{"chain", "merge", "shuffle", "fanin", "loop"} {
		if *flagTopo != "" && name != *flagTopo {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			total := map[string]int{}
			for seed := *flagFirst; seed < *flagFirst+(*flagSeeds+3)/4; seed++ {
				opt := optionsOfFlags()
				if *flagSeeds == 1 {
					opt.trace = func(line string) { fmt.Println(line) }
				}
				w, err := simulateSuccessor(topologyOf(name), seed, opt)
				if err != nil {
					t.Errorf("seed %d: %v\nreplay: go test ./dataflow/sim -run TestSuccessorSeeds -sim.first=%d -sim.seeds=1 -sim.topo=%s -v", seed, err, seed, name)
					if *flagStop {
						return
					}
				}
				for what, n := range w.chaos.counts {
					total[what] += n
				}
			}
			t.Logf("%v", total)
		})
	}
}

// simulateSuccessor runs a seed, and from one of its checkpoints the next generation.
func simulateSuccessor(topo *topology, seed uint64, opt options) (*world, error) {
	adjust := opt.adjust
	opt.adjust = func(p *profile) {
		if adjust != nil {
			adjust(p)
		}
		p.ends, p.revises = false, true
	}
	w := newWorld(topo, seed, opt)
	w.oracle.keepsFrames = true
	if err := w.run(); err != nil {
		return w, err
	}
	agents := topo.replaceable()
	c := w.oracle.commits[w.rng.IntN(len(w.oracle.commits))]
	n := succeed(c, agents[w.rng.IntN(len(agents))], w.one(2), opt)
	err := n.run()
	if err != nil {
		err = fmt.Errorf("next generation, from %v, without %s: %w", c.record.Epoch, n.next.agent, err)
	}
	n.chaos.counts["record that only the lost log held"] += len(n.next.lost)
	return n, err
}

// givenUp: while checkpoints count when they are replicated, nothing is given up that one needs which goes on
// from the newest replicated checkpoint, as it must be when a device is gone.
func (o *oracle) givenUp(t *plannedTask, part abs.Part) {
	if !o.w.profile.checkpoints.Replicate || o.restore != nil {
		return
	}
	var newest abs.Part
	for _, e := range o.w.kv.epochs() {
		if v, _ := o.w.kv.record(e); v.Record.State == abs.Replicated {
			newest = v.Record.Parts[t.id]
		}
	}
	if part.Version > newest.Version {
		o.w.fail("%s gives up what lies before part %d, of the newest replicated checkpoint it is part %d", t.id, part.Version, newest.Version)
	}
}

// released notes what sinks that commit with checkpoints may hand over.
func (o *oracle) released(r abs.EpochRecord) {
	for _, t := range o.w.topo.tasks {
		if !t.sink {
			continue
		}
		for _, p := range (store{o.w.agent(t.agent).disk}).of(t.name()).list {
			if uint64(p.info.Version) == r.Parts[t.id].Version {
				sink := metaOf(p.info.Meta)["sinks"].(map[string]any)["out"].(map[string]any)
				o.releases[string(t.id)+">out"] = max(o.releases[string(t.id)+">out"], abs.Seq(number(sink["next"])-1))
			}
		}
	}
}
