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
		needs   int // items that replay takes at once
		want    uint64
		left    int
	}{
		{"room", at(1, 2, 3), 4, 0, false, 0, 0, 3},
		{"all consumed", at(1, 2, 3, 4), 5, 0, false, 0, 104, 0},
		{"some held", at(1, 2, 3, 4), 3, 2, false, 0, 102, 2},
		{"the first is held", at(1, 2, 3, 4), 1, 4, false, 0, 0, 4},
		{"a gap", at(1, 6, 7, 8), 2, 0, false, 0, 108, 0},
		{"a gap behind what is held", at(1, 2, 7, 8), 2, 1, false, 0, 101, 3},
		{"a gap within what replay takes", at(1, 2, 7, 8), 2, 1, false, 2, 108, 0},
		{"dropped for want of memory", at(1, 2, 3, 4), 3, 0, true, 0, 102, 2},
	} {
		box := newInbox(1, make([]InChannel, 1))
		box.behind = 3
		in := box.chans[0]
		in.next, in.tail, in.held, in.dropped, in.want = c.next, c.next+abs.Seq(c.held), make([]heldFrame, c.held), c.dropped, c.needs
		for _, p := range c.places {
			in.keep(p)
		}
		mustEqual(t, c.name+": purged up to", in.excess(false), c.want)
		mustEqual(t, c.name+": places left", len(in.places), c.left)
		mustEqual(t, c.name+": bytes left", box.stored, 10*c.left)
	}
	failed := newInbox(1, make([]InChannel, 1)).chans[0]
	failed.owed = 99
	mustEqual(t, "asked for again", failed.excess(false), 99)
	mustEqual(t, "once", failed.excess(false), 0)
}

// TestInboxMakesRoomForBytes: a channel may take most of the stream while the others take little. When all together
// take too much, those make room that have more than their share.
func TestInboxMakesRoomForBytes(t *testing.T) {
	box := newInbox(1, make([]InChannel, 3))
	box.most = 60
	big, even, small := box.chans[0], box.chans[1], box.chans[2]
	keep := func(c *inChannel, upto abs.Seq) {
		for n := abs.Seq(len(c.places)) + 1; n <= upto; n++ {
			c.keep(place{seq: 100*uint64(c.Index) + uint64(n), last: n, size: 10})
		}
		c.next, c.tail, c.held = upto, upto+1, make([]heldFrame, 1) // the last one is held
	}
	keep(big, 4)
	keep(even, 2)
	mustEqual(t, "room", [3]uint64{big.excess(false), even.excess(false), small.excess(false)}, [3]uint64{})
	keep(small, 1)
	mustEqual(t, "no room: within its share", [2]uint64{small.excess(false), even.excess(false)}, [2]uint64{})
	mustEqual(t, "no room: beyond its share", big.excess(false), 3)
	mustEqual(t, "bytes left", box.stored, 40)
	mustEqual(t, "room again", big.excess(false), 0)
	box.restart()
	mustEqual(t, "nothing is left", [3]int{box.stored, big.stored, len(even.places)}, [3]int{})
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

// TestInboxKeepsMoreInReplay: what was taken may be needed again, so that it goes only when the stream is nearly full.
func TestInboxKeepsMoreInReplay(t *testing.T) {
	box := newInbox(1, make([]InChannel, 1))
	box.behind = 4
	in := box.chans[0]
	keep := func(n int) {
		for range n {
			in.keep(place{seq: uint64(len(in.places)) + 1, last: abs.Seq(len(in.places)) + 1, count: 1, size: 10})
		}
		in.next = abs.Seq(len(in.places)) + 1
	}
	keep(7)
	mustEqual(t, "room", in.excess(true), 0)
	keep(1)
	mustEqual(t, "no room", in.excess(true), 8)
	keep(5)
	mustEqual(t, "live", in.excess(false), 5)
	box.behind, box.most = 100, 40
	keep(7)
	mustEqual(t, "room for bytes", in.excess(true), 0)
	keep(1)
	mustEqual(t, "no room for bytes", in.excess(true), 8)
}

// TestTaskRelievesAReplayThatStands: the server may have less room than the stream may take, and then nothing comes any
// more until some is made.
func TestTaskRelievesAReplayThatStands(t *testing.T) {
	box := newInbox(1, make([]InChannel, 1))
	box.behind = 4
	in := box.chans[0]
	for n := range abs.Seq(6) {
		in.keep(place{seq: uint64(n) + 1, last: n + 1, count: 1, size: 10})
	}
	in.next, in.tail = 7, 7
	var purged uint64
	task := &Task{inbox: box, replaying: true, pos: 9, env: Env{Relieve: func(_ int, seq uint64, _ func(error)) { purged = seq }}}
	for task.tick = 1; task.tick <= standTicks; task.tick++ {
		task.relieve()
		mustEqual(t, "purged while it may move", purged, 0)
	}
	task.pos++ // it has moved
	task.relieve()
	mustEqual(t, "purged when it has moved", purged, 0)
	task.tick += standTicks
	task.relieve()
	mustEqual(t, "purged when it stands", purged, 6)
}
