package sim

import (
	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// rules are those left out: each field is one rule that is not kept.
type rules struct {
	handOverUnsynced  bool // outputs leave before the log is synced past their cause
	forgetOrder       bool // order entries are not logged
	ackBeforeStored   bool // a frame counts as handed over before the stream has it
	purgeByPosition   bool // a purge takes all frames up to a place in the stream
	creditOnBackEdges bool // back edges take credit
	forgetLoopLog     bool // what was in a loop at the cut is not restored
	blindWrites       bool // epochs are written without compare-and-set
}

// forgets says whether entries of a kind are not stored.
func (r rules) forgets(kind dataflow.EntryKind) bool {
	return r.forgetOrder && kind == dataflow.EntryOrder
}

// restored is a part's own state as a task finds it.
func (r rules) restored(meta []byte) []byte { return meta }

// saved is a part's own state as it is saved.
func (r rules) saved(_ *runner, meta []byte) []byte { return meta }

// deliver is what reaches the task.
func (r rules) deliver(_ *input, d dataflow.Delivery) dataflow.Delivery { return d }

// plan is what the coordinator knows of the job.
func (r rules) plan(t *topology) abs.Plan { return t.plan() }
