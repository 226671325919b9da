// Package abs is Asynchronous Barrier Snapshotting (Carbone et al. 2015, listings 1 and 2) as pure
// state machines: the aligner of a task, the coordinator of a job, and the choice of what to restore.
//
// Nothing here has a clock, randomness, a goroutine, a context or I/O: an event goes in, a value
// that says what to do comes out, and its field comments say what must be durable before what. Time
// is a number that the caller passes in. Only the standard library is imported; a test enforces it.
//
// # Driving an aligner
//
// The goroutine of a task owns it. Every item that is a barrier or an end, and every control event,
// is first counted and put into the task's order log, then given to [Aligner.Step], and its [Effects]
// are carried out before the next item. Items of a channel for which [Aligner.Blocked] holds are set
// aside. Replay of the log gives the same events again and so the same effects. When the agent sees an
// [EpochRecord], the task asks [Aligner.Lacks] and takes what it answers.
//
// # Driving a coordinator
//
// Whoever holds the job's lease makes one with [NewCoordinator] from what KV holds and a term higher
// than any before, gives it every [Notice] and a [Tick] several times a second, and performs the
// [Write] of its [Actions], answering with [Written] or [Unwritten]. All of its state that matters is
// in the records; it may be dropped at any moment.
package abs

import "fmt"

// Epoch is the number of a barrier. It is a counter, never a clock; 0 is the initial state.
type Epoch uint64

// Generation is the number of a job's physical plan.
type Generation uint32

// Term is the number of a coordinator's lease. A higher one wins.
type Term uint64

// TaskID names a task within its job: "smooth@g1" for a task that is there once per agent,
// "fleet/0" for one of several in parallel. It is the same in every generation.
type TaskID string

// ChannelID names a channel within its job, the same in every generation: "smooth@g1.out>fleet/0".
type ChannelID string

// Seq is the number of an item on its channel; the first is 1.
type Seq uint64

// Position is a place in an agent's input log; 0 is before the first entry.
type Position uint64

// Cut is what a part says of its channels at the barrier: the highest number sent on every output
// and consumed on every input, the barrier included.
type Cut struct {
	Sent     map[ChannelID]Seq `json:"sent,omitempty"`
	Consumed map[ChannelID]Seq `json:"consumed,omitempty"`
	// Logged, in a loop head, is the highest number that the part's loop log holds of each back edge,
	// the barrier that came round included.
	Logged map[ChannelID]Seq `json:"logged,omitempty"`
}

func (e Epoch) String() string { return fmt.Sprintf("epoch %d", uint64(e)) }
