package sim

import (
	"slices"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// What follows is about rules without which all would come right in the end, but later, or with more work: by the
// next epoch's barrier, by a timeout, by a question. Each is looked at where nothing else takes so long.

// Times within which things must have happened.
const (
	// toldOfAbort: a task must have heard that an epoch is over.
	toldOfAbort = 3 * time.Second
	// sentAgain: a frame that was refused must be on its way again. Its receiver, which knows nothing of it, would
	// ask for it after half a second at the earliest.
	sentAgain = 350 * time.Millisecond
	// restoredAnew: a task that replays must be at a part of its own that has become durable meanwhile.
	restoredAnew = 200 * time.Millisecond
	// readIn: a term must have read what there is of records.
	readIn = 2 * time.Second
	// lostRaces is how many epochs in a row a term may decide after another has begun: those that the new one was not
	// quick enough to take over.
	lostRaces = 2
)

// aligns is called at every tick of a task: none waits for an epoch long after it is over.
func (o *oracle) aligns(r *taskRun) {
	st := r.task.Status()
	if !o.w.profile.steady || r.agent().cut || st.State != "aligning" || o.running() {
		r.aligning = o.w.now
		return
	}
	if o.w.now-r.aligning > toldOfAbort {
		o.w.fail("%s has waited for channels %v for %v, and no epoch is running", r.r.t.id, st.Waiting, toldOfAbort)
	}
}

// running says whether an epoch is.
func (o *oracle) running() bool {
	epochs := o.w.kv.epochs()
	if len(epochs) == 0 {
		return false
	}
	v, _ := o.w.kv.record(epochs[len(epochs)-1])
	return v.Record.State == abs.Started
}

// decided: a term decides nothing any more once the one after it is at work.
func (o *oracle) decided(r abs.EpochRecord) {
	l := o.w.leading()
	switch {
	case l == nil || r.State != abs.Committed && r.State != abs.Aborted || !o.w.profile.steady:
	case r.Term >= l.term:
		l.lost = 0
	case o.w.now-l.began > readIn:
		if l.lost++; l.lost > lostRaces {
			o.w.fail("%v is %s by term %d, the last of %d in a row that term %d has not taken over", r.Epoch, r.State, r.Term, l.lost, l.term)
		}
	}
}

// refused: a frame that the stream does not take, and all that was sent behind it, is sent again soon.
func (o *oracle) refused(s *send, r *output) {
	h, _, err := frame.Decode(s.data)
	if err != nil || o.w.profile.refusals == 0 || r.consumed[s.c.index] > abs.Seq(h.First) {
		return
	}
	o.w.chaos.count("frame refused")
	channel := s.c.index
	var behind []abs.Seq
	at := map[abs.Seq]int{}
	for first, n := range r.sent[channel] {
		if first >= abs.Seq(h.First) {
			behind, at[first] = append(behind, first), n
		}
	}
	slices.Sort(behind)
	r.run.after(sentAgain, func() {
		for _, first := range behind {
			if r.consumed[channel] <= first && r.sent[channel][first] == at[first] {
				o.w.fail("channel %s: number %d, at or behind number %d that was refused, is not sent again within %v", s.c.id, first, h.First, sentAgain)
			}
		}
	})
}

// saved: a task that replays goes on from a part of its own that has become durable, and makes nothing again that it
// holds.
func (o *oracle) saved(r *runner, info dataflow.PartInfo) {
	run := r.run
	if run == nil || info.Local || run.level == "" || run.level == dataflow.LevelRewind || !o.w.profile.hasty {
		return
	}
	st, level := run.task.Status(), run.recoveries
	if st.State != "replaying" {
		return
	}
	o.w.chaos.count("part durable in a replay")
	run.after(restoredAnew, func() {
		if st := run.task.Status(); st.State == "replaying" && st.Pos < info.Pos && run.recoveries == level {
			o.w.fail("%s still replays at %d, %v after its part of %v at %d has become durable", r.t.id, st.Pos, restoredAnew, info.Epoch, info.Pos)
		}
	})
}

// furthest: a task that is not to make anything again for others is restored from the part furthest in its log.
func (o *oracle) furthest(r *taskRun, rec dataflow.Recovery) {
	if rec.Level == dataflow.LevelRewind || rec.Version == 0 {
		return
	}
	parts, err := store{r.agent().disk}.Parts(r.r.t.name())
	if err != nil {
		o.w.fail("%v", err)
	}
	i := slices.IndexFunc(parts, func(p dataflow.PartInfo) bool { return p.Version == rec.Version })
	for _, p := range parts {
		if i >= 0 && p.Generation == parts[i].Generation && p.Pos > parts[i].Pos {
			o.w.fail("%s is restored from version %d at %d, although version %d is at %d", r.r.t.id, rec.Version, parts[i].Pos, p.Version, p.Pos)
		}
	}
}

// refilled: nobody is rewound for what a loop log of the receiver holds. Where a head that replays waits for another
// channel as well, it asks for a back edge's items before it looks for them there.
func (o *oracle) refilled(r *taskRun, c *plannedChannel, n abs.Seq) {
	if !c.back || !o.w.profile.refills {
		return
	}
	o.w.chaos.count("back edge rewound")
	parts, err := store{o.w.agent(c.to.agent).disk}.Parts(c.to.name())
	if err != nil {
		o.w.fail("%v", err)
	}
	for _, p := range parts {
		rep, err := dataflow.ReportOf(p)
		if err != nil {
			o.w.fail("%v", err)
		}
		if p.Generation == o.w.gen && rep.Cut.Consumed[c.id] < n && n <= rep.Cut.Logged[c.id] {
			o.w.fail("%s is rewound for number %d of channel %s, which the loop log of %v of %s holds", r.r.t.id, n, c.id, p.Epoch, c.to.id)
		}
	}
}
