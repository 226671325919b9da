package dataflow

import (
	"testing"

	"github.com/weir-stream/weir/abs"
)

// TestInboxMakesRoom: what lies in the stream behind the task's number goes when there is too much of
// it, and what lies beyond a gap when nothing else is left.
func TestInboxMakesRoom(t *testing.T) {
	at := func(seqs ...uint64) (all []place) {
		for _, s := range seqs {
			all = append(all, place{seq: 100 + s, last: abs.Seq(s), size: 10})
		}
		return all
	}
	for _, c := range []struct {
		name    string
		places  []place
		next    abs.Seq
		held    int // frames
		dropped bool
		want    uint64
		left    int
	}{
		{"room", at(1, 2, 3), 4, 0, false, 0, 3},
		{"all consumed", at(1, 2, 3, 4), 5, 0, false, 104, 0},
		{"some held", at(1, 2, 3, 4), 3, 2, false, 102, 2},
		{"the first is held", at(1, 2, 3, 4), 1, 4, false, 0, 4},
		{"a gap", at(1, 6, 7, 8), 2, 0, false, 108, 0},
		{"a gap behind what is held", at(1, 2, 7, 8), 2, 1, false, 101, 3},
		{"dropped for want of memory", at(1, 2, 3, 4), 3, 0, true, 102, 2},
	} {
		in := &inChannel{places: c.places, next: c.next, held: make([]heldFrame, c.held), dropped: c.dropped}
		mustEqual(t, c.name+": purged up to", in.excess(3, 1000), c.want)
		mustEqual(t, c.name+": places left", len(in.places), c.left)
	}
	large := &inChannel{places: at(1, 2, 3), next: 3, held: make([]heldFrame, 1)}
	mustEqual(t, "room for the bytes", large.excess(3, 30), 0)
	mustEqual(t, "no room for the bytes", large.excess(3, 29), 102)
	failed := &inChannel{places: at(1), next: 2, owed: 99}
	mustEqual(t, "asked for again", failed.excess(3, 1000), 99)
	mustEqual(t, "once", failed.excess(3, 1000), 0)
}

// TestPurgeOfFormerStream: a purge that fails since the stream has been begun anew owes nothing to the new one,
// whose sequences are others.
func TestPurgeOfFormerStream(t *testing.T) {
	c := &inChannel{}
	task := &Task{inbox: &inbox{chans: []*inChannel{c}, byIndex: map[int]*inChannel{0: c}}}
	c.box = task.inbox
	purge := func(fails func()) uint64 {
		task.Unpurged(0, 54, task.inbox.restarts)
		fails()
		for _, f := range task.mail.take() {
			f()
		}
		return c.owed
	}
	mustEqual(t, "owed", purge(func() {}), 54)
	mustEqual(t, "owed by another stream", purge(func() { task.inbox.restart() }), 0)
}
