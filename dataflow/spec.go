package dataflow

import (
	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// TaskSpec is one task of a job's physical plan, ready to run.
type TaskSpec struct {
	Job        string
	Generation abs.Generation
	ID         abs.TaskID
	Agent      string
	Mode       abs.Mode // of the aligner
	// Halt: the task stands still from its freeze until the epoch is over, as in the synchronous
	// snapshots that Carbone et al. 2015, section 7, compare with.
	Halt bool
	// Source marks a task whose input is its own log.
	Source bool
	// Entry is where records of a source go.
	Entry []Target
	// DedupeWindow is how many messages per key a source remembers by id; 0 for none.
	DedupeWindow int
	Inputs       []InChannel
	Ops          []OpSpec
	Edges        []EdgeSpec
	Sinks        []SinkSpec
	Time         EventTime
	// CutAhead: the source takes barriers where it stands, ahead of what its log holds unread, since sinks
	// of the job wait for checkpoints.
	CutAhead bool
}

// Name is the name of the task in its agent's log and stores.
func (s TaskSpec) Name() string { return s.Job + "/" + string(s.ID) }

// InChannel is a channel that a task receives on.
type InChannel struct {
	Channel
	Agent       string // the sending one
	Incarnation uint32
	Anew        bool // its sender begins with number 1 in this generation: its device was replaced
	Back        bool // a back edge: it closes a loop whose head the task is
	Loop        bool // the sender is in a loop with the task
	// PassDetached: while the sending agent is detached from checkpoints, event time does not wait for it either.
	PassDetached bool
	To           Target
}

// OutChannel is a channel that a task sends on.
type OutChannel struct {
	Channel
	To          abs.TaskID
	Incarnation uint32
	Anew        bool // it begins with number 1 in this generation: the task's device was replaced
	Back        bool // a back edge: it takes no credit, see loop.go
	// Spool: what the receiver cannot take for a while goes to disk, so that the task's other outputs go on. The
	// receiver is on another agent.
	Spool bool
}

// OpSpec is one operator of a chain. Targets of output i are Outputs[i]; they have higher indexes.
type OpSpec struct {
	Operator OperatorSpec
	Outputs  [][]Target
	Policy   ErrorPolicy
}

// ErrorPolicy is what becomes of a record on which an operator fails.
type ErrorPolicy string

// Policies.
const (
	PolicyDeadLetter ErrorPolicy = "dead_letter" // kept for inspection; the default
	PolicySkip       ErrorPolicy = "skip"        // counted
	PolicyFail       ErrorPolicy = "fail"        // the task stops
)

// TargetKind is what a target is an index of.
type TargetKind uint8

// Kinds of targets.
const (
	ToOp TargetKind = iota + 1
	ToEdge
	ToSink
)

// Rekey gives a record its new key. An error gives the record up.
type Rekey func(r frame.Record) ([]byte, error)

// Target is where records go next inside a task.
type Target struct {
	Kind  TargetKind
	Index int
	Input int   // of the operator
	Rekey Rekey // nil: the key stays
}

// EdgeSpec is a streamed edge: its channels in order of partition, and how a key is mapped to one.
type EdgeSpec struct {
	Channels  []OutChannel
	Partition func(key []byte) int // nil: a single channel
}

// SinkSpec is a sink of a task. Channel is the name under which its records are numbered.
type SinkSpec struct {
	Name    string
	Channel string
	// Checkpoint: items are handed over only when a checkpoint that contains them counts.
	Checkpoint bool
}
