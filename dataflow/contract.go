// Package dataflow runs the tasks of a job. A task is a chain of operators run by one goroutine in
// steps; it is a deterministic state machine over its part of the agent's input log.
//
// Invariants:
//   - Output rule: nothing is handed over (no frame, no sink output, no acknowledgement, no durable
//     snapshot) before the log is synced past what caused it.
//   - A task restored from any of its snapshots that reads its log again produces equal items under
//     equal numbers.
//   - No item is processed twice and none is skipped: a receiver takes exactly the next number of a
//     channel.
//
// The contracts below are what a task needs of the outside; the adapters (storage, wasmops,
// transport) implement them and never import each other.
package dataflow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// EntryKind tells what a log entry holds.
type EntryKind uint8

// Kinds of log entries. Their encodings are in entry.go.
const (
	EntryIngest  EntryKind = iota + 1 // source task: a batch of records, whole
	EntryBarrier                      // source task: barrier of an epoch
	EntryOrder                        // streamed task: channel, first number, count
	EntryControl                      // any task: control item, whole
	EntryHanded                       // sink: handed over up to a number
	EntryReserve                      // output: may hand over up to a number without credit after a restart
	EntryGiveUp                       // a record given up: position of its entry, index
	EntryEnd                          // source task: the input has ended
	EntrySink                         // sink that resumes: may be sent up to a number, received by the other side up to one
	EntryCut                          // source task: an epoch's barrier was taken at an earlier position
	EntryMarked                       // source task: as EntryIngest, with marks
	EntryMarks                        // source task: the same without records
	EntryUpgrade                      // any task: from here on other versions of its operators
	EntrySpool                        // spool of an output: a frame that could not be handed over
	EntryTick                         // any task: a reading of the clock, where event time or timers need one
	EntryReplay                       // any task: a dead letter, whole, to be processed again
)

// Entry is one entry of a task's log. Data is the reader's own copy.
type Entry struct {
	Pos  abs.Position
	Kind EntryKind
	Data []byte
}

// ErrLogFull is returned by Log.Append when the agent's log has reached its budget: nothing was
// appended, and it may be tried again when space has come back.
var ErrLogFull = errors.New("input log has reached its budget")

// Log is one task's part of the agent's input log.
type Log interface {
	// ID tells the agent's log from any other: positions of another one mean nothing here.
	ID() uint64
	// Append adds an entry whose data is the concatenation of the slices and returns its position.
	// It copies and does not wait for the disk: the entry is durable once Synced reaches it.
	Append(kind EntryKind, data ...[]byte) (abs.Position, error)
	// Synced is the position up to which the agent's log is durable.
	Synced() abs.Position
	// Last is the position of the agent's last appended entry.
	Last() abs.Position
	// Follow reads this task's entries after from, in order, what is not yet synced included.
	// It fails if entries after from have been truncated.
	Follow(from abs.Position) (Follower, error)
	// Truncate gives up this task's entries up to and including upto.
	Truncate(upto abs.Position) error
}

// Follower reads a task's log. It is used by one goroutine.
type Follower interface {
	// Next returns the next entry; false when there is none now.
	Next() (Entry, bool, error)
	// Ready is signalled (capacity 1) when entries may have come since Next returned false.
	Ready() <-chan struct{}
	Close()
}

// Space is a kind of state in a snapshot.
type Space uint8

// Spaces of the multi-version map. Keys of operator state begin with the operator's place in its
// chain (2 bytes, big-endian), which the task adds and takes away.
const (
	SpaceMemory Space = iota + 1 // key: page number (4 bytes, big-endian), value: 4 KiB
	SpaceGlobal                  // globals, memory size, random position: small
	SpaceKeyed                   // keyed state
	SpaceTimer                   // what an operator knows of time: timers, watermark, when keys expire
	SpaceLoop                    // log of a loop head
	SpaceDedupe                  // ids that a source has seen
	SpaceOutbox                  // sink output not yet handed over at the cut
)

// Change is one changed key of a task's state. A nil value is a tombstone; an empty one is not.
type Change struct {
	Space Space
	Key   []byte
	Value []byte
}

// Version numbers a task's snapshots, from 1, without gaps in time order of being saved.
type Version uint64

// PartInfo describes a saved snapshot of one task.
type PartInfo struct {
	Task       string // job and task, as given to Save
	Version    Version
	Generation abs.Generation
	Epoch      abs.Epoch    // barrier's epoch; 0 for the initial state
	Local      bool         // taken alone between checkpoints: never part of one
	Pos        abs.Position // last log entry whose effect is contained
	Full       bool         // depends on no older version
	Bytes      int64        // of the changes
	Meta       []byte       // the task's own state, encoded
}

// SnapshotStore keeps snapshots in a multi-version map: a snapshot holds the changes since the
// version before it, or, if Full, the whole state.
type SnapshotStore interface {
	// Save makes a part durable, its manifest last, and returns when it is. A full part hides all
	// older keys of its task.
	Save(info PartInfo, changes []Change) error
	// Parts lists the task's usable parts by ascending version.
	Parts(task string) ([]PartInfo, error)
	// Load visits, in key order, the newest value of every key at that version. The slices are
	// borrowed until visit returns.
	Load(task string, v Version, visit func(Change) error) error
	// Reject marks a version as never to be used again.
	Reject(task string, v Version, reason string) error
}

// Batch is what an operator processes in one call.
type Batch struct {
	Input   int    // index of the operator's input
	Stamp   int64  // clock of the log entry, milliseconds since 1970
	Count   int    // number of records
	Payload []byte // records in frame encoding, borrowed until Process returns
}

// Emit takes records in frame encoding for one of the operator's outputs. Payload is borrowed until
// it returns.
type Emit func(output int, payload []byte, count int) error

// Operator is one instance of an operator, used by one goroutine, never from two.
type Operator interface {
	// Process runs one batch. A [GuestError] says that the instance is lost and must be closed.
	Process(b Batch, emit Emit) error
	// Freeze returns what changed since the last Freeze, or since it was made or restored, or, if
	// full, all of its state. The changes own their memory.
	Freeze(full bool) ([]Change, error)
	Close() error
}

// OperatorSpec says which operator to make. Outputs are its named outputs in index order.
type OperatorSpec struct {
	Name    string // in the job
	Task    string // job and task: seeds the guest's random numbers
	Module  string // as the job names it
	Digest  string // of the module
	Anew    uint64 // as in OpVersion
	Config  map[string]string
	Outputs []string
	Inputs  []string
	// Fresh: the state is that of another module or configuration. Only what is keyed is taken of it, by
	// an instance that is made like one without state; a native operator takes nothing.
	Fresh  bool
	Limits Limits
	// As is the name under which what the instance logs, counts and gauges is told; empty: Name. It is for one that runs
	// beside the operator itself.
	As string
	// NoEventTime: no source of the job makes watermarks. An operator that needs them may refuse to start.
	NoEventTime bool
}

// Limits bound what one instance of an operator may use; zero fields stand for the host's defaults. A
// limit that is lowered may fail what once passed: limits change with an entry of the log, or a generation.
type Limits struct {
	Memory  int64         // linear memory, bytes
	Time    time.Duration // per batch; counted, not measured, so that replay decides alike
	Output  int64         // output per batch, bytes
	State   int64         // keyed state, bytes of keys and values
	LogRate int64         // log lines per second of the operator's own clock
	Timers  int64         // timers that are set at one time
}

// StateReader visits saved state: every change once, values borrowed until visit returns.
type StateReader func(visit func(Change) error) error

// Operators makes operator instances. A nil state makes a fresh one.
type Operators interface {
	New(ctx context.Context, spec OperatorSpec, state StateReader) (Operator, error)
}

// GuestError is a failure of the operator's own code: a trap, a limit reached, a malformed output.
type GuestError struct {
	Operator string
	Reason   string
}

func (e *GuestError) Error() string { return fmt.Sprintf("operator %s: %s", e.Operator, e.Reason) }

// IngestBatch is what a source logs as one entry: records in frame encoding and, if the source
// names an id, one id per record (each a uvarint length and its bytes).
type IngestBatch struct {
	Payload []byte
	Count   int
	IDs     []byte
	// Cursor is where the source stands after the batch, in a form of its own: what a source that can
	// read its input again from any place, such as a file's offset, needs to go on from. It is state of
	// the source's operator, kept with the batch and in snapshots.
	Cursor []byte
	// Marks change what the source remembers. A batch may have marks and no records.
	Marks []Mark
}

// AppendID appends a record's id to those of an [IngestBatch]; an empty one is none.
func AppendID(ids []byte, id string) []byte {
	return append(binary.AppendUvarint(ids, uint64(len(id))), id...)
}

// Ingest is where a source puts what it receives.
type Ingest interface {
	// Append logs a batch and calls durable, from another goroutine, once it is on disk. It copies
	// the batch. [ErrLogFull] means that nothing was logged: do not acknowledge, try again later.
	Append(b IngestBatch, durable func()) error
	// Cursor is that of the last batch logged, nil if there is none.
	Cursor() []byte
	// Marks are those that the batches have left, the caller's own. It calls durable once all of them
	// are on disk, maybe before it returns.
	Marks(durable func()) map[uint64]uint64
	// End says that the input has ended: nothing is appended after it. It is logged like a batch.
	End() error
	// DeadLetter keeps a record that cannot be taken, with the reason, and calls durable likewise.
	DeadLetter(rec frame.Record, reason string, durable func()) error
}

// Source receives from outside until ctx ends.
type Source interface {
	Run(ctx context.Context, in Ingest) error
}

// SinkItem is one record for a sink, its number on the sink's channel, and the channel's name. The
// record owns its memory.
type SinkItem struct {
	Number  abs.Seq
	Channel string
	Record  frame.Record
	Past    Past
}

// Past is what the log says that an earlier life of a [ResumingSink] has done with an item.
type Past uint8

// Pasts of an item.
const (
	PastNone     Past = iota // it was never sent
	PastSent                 // it may have been sent
	PastReceived             // the other side has it, and may have been told that we know
)

// SinkEvents is called by a sink, from any goroutine; the calls return at once.
type SinkEvents interface {
	// Handed says that all items up to this number are where the sink's promise wants them.
	Handed(upto abs.Seq)
	// Ready says that Offer may take items again.
	Ready()
	// Received says, of a [ResumingSink], that the other side has all items up to this number.
	Received(upto abs.Seq)
}

// Sink hands records over to the outside, in order of their numbers.
type Sink interface {
	// Offer takes items from the front without blocking and returns how many it took. A sink
	// bounds what it holds. The slice is the caller's again afterwards; what the items refer to is not changed.
	Offer(items []SinkItem) int
	// Run delivers until ctx ends. Items that were taken and not handed over are then forgotten:
	// the task offers them again.
	Run(ctx context.Context, ev SinkEvents) error
}

// ResumingSink is a sink that after a restart goes on with each item where it was. Nothing is offered
// to it before the log holds, durably, that it may be sent; what an earlier life may have done with an
// item is in its Past.
type ResumingSink interface {
	Sink
	// Resumes says whether this one does.
	Resumes() bool
	// Logged says that the log holds durably that the other side has all items up to this number:
	// offered again after a restart they have [PastReceived]. It is called by the task's goroutine and
	// returns at once.
	Logged(received abs.Seq)
}

// Channel is one channel of a job's physical plan.
type Channel struct {
	ID    abs.ChannelID
	Index int // within the plan of its generation: the subject's last token
}

// Delivery is what an input stream gives to its task: a frame, or news of the stream.
type Delivery struct {
	Channel int    // plan index of the channel
	Seq     uint64 // place in the stream, for Purge
	Frame   []byte // stays as it is, for as long as the receiver keeps it; nobody changes it
	// Drained: everything that was in the stream when reading (re)started has been delivered.
	Drained bool
	// Reset: the stream was lost or is another one; reading starts again from its beginning.
	Reset bool
}

// Input is a task's input stream.
type Input interface {
	// Deliveries is closed when the input is closed. The queue is bounded; what is not taken stays
	// in the stream.
	Deliveries() <-chan Delivery
	// Reread starts again from the stream's beginning; Drained follows.
	Reread()
	// Purge removes a channel's frames up to and including the one at seq.
	Purge(ctx context.Context, channel int, seq uint64) error
	// Grant sends a grant to the channel's sender, at most once, best effort.
	Grant(g Grant)
	// Asked is signalled (capacity 1) when a sender asks for grants.
	Asked() <-chan struct{}
	Close()
}

// Grant is the one message from receiver to sender: absolute and idempotent, sent on change and
// repeated while idle.
type Grant struct {
	Channel     int    `json:"c"`
	Incarnation uint32 `json:"i"`
	// Next is the first number that the receiver lacks; Sum is its running checksum before it.
	Next abs.Seq   `json:"n"`
	Sum  frame.Sum `json:"s"`
	// Window is how many bytes beyond Next the sender may have under way (but always 4 frames).
	Window int `json:"w"`
	// Rewind: the receiver will not get Next from the stream; send from there again.
	Rewind bool `json:"r,omitempty"`
}

// Output sends on a task's output channels.
type Output interface {
	// Send publishes a frame without waiting. Done is called from another goroutine when the
	// stream has taken the frame or when it is not known to have; frame may be reused then.
	Send(channel int, frame []byte, done func(error))
	// Grants delivers grants of all channels; the newest of each is enough. Bounded; a grant that
	// finds no room is dropped, since it is repeated.
	Grants() <-chan Grant
	// Ask asks the channels' receivers for grants.
	Ask()
	Close()
}

// Streams opens the ends of channels. A task's stream belongs to (job, generation, task).
type Streams interface {
	OpenInput(ctx context.Context, job string, gen abs.Generation, task abs.TaskID, channels []int) (Input, error)
	OpenOutput(ctx context.Context, job string, gen abs.Generation, to map[int]abs.TaskID) (Output, error)
}
