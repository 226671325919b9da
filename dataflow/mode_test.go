package dataflow

import (
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// TestModesDifferInWhatTheyHold brings the same items in every mode: a barrier on one channel, a record behind
// it, and the barrier on the other.
func TestModesDifferInWhatTheyHold(t *testing.T) {
	for _, c := range []struct {
		name             string
		mode             abs.Mode
		aligning, frozen string // what was sent while one barrier was missing, and after the freeze
		consumed         abs.Seq
	}{
		{"exactly once: the channel is blocked", abs.ExactlyOnce, "", "barrier", 1},
		{"at least once: nothing is", abs.AtLeastOnce, "a=1", "a=1", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnder(t)
			e.mode = c.mode
			e.open(nil)
			e.mark(0, frame.Barrier, 1)
			e.record(0, "a")
			mustEqual(t, "sent before the second barrier", e.sent(1), c.aligning)
			e.mark(1, frame.Barrier, 1)
			mustEqual(t, "epoch of the part", e.newest().Epoch, 1)
			mustEqual(t, "sent first", e.sent(1), c.frozen)
			r, err := ReportOf(*e.newest())
			e.must(err)
			mustEqual(t, "consumed at the cut", r.Cut.Consumed["a>m"], c.consumed)
		})
	}
}

// TestSynchronousTaskStandsStill: from its freeze on, until the epoch is over, whatever its end is.
func TestSynchronousTaskStandsStill(t *testing.T) {
	for _, end := range []abs.EpochState{abs.Committed, abs.Aborted} {
		e := newEnder(t)
		e.halt = true
		e.open(nil)
		e.started(1)
		e.mark(0, frame.Barrier, 1)
		e.mark(1, frame.Barrier, 1)
		mustEqual(t, "epoch of the part", e.newest().Epoch, 1)
		e.record(0, "a")
		e.record(1, "b")
		mustEqual(t, "sent while it stands still", e.sent(1)+e.sent(2), "barrier")
		e.task.Record(abs.EpochRecord{Epoch: 1, Generation: 1, State: end})
		e.task.Settle()
		e.work()
		mustEqual(t, "sent when the epoch is "+string(end), e.sent(2)+" "+e.sent(3), "a=1 b=1")
	}
}
