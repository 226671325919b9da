package abs

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Part is one task's part of a checkpoint, as its acknowledgement and the manifest carry it.
type Part struct {
	Epoch      Epoch       `json:"epoch"`      // its barrier's; below the manifest's for a part that was kept
	Generation Generation  `json:"generation"` // of the plan that it was taken under
	Version    uint64      `json:"version"`    // in the task's snapshot store
	Pos        Position    `json:"pos"`        // last log entry whose effect it contains
	Cut        Cut         `json:"cut"`
	Aligned    []ChannelID `json:"aligned,omitempty"` // from [Effects]
	Ended      bool        `json:"ended,omitempty"`   // the task has sent End on every output

	Bytes     int64 `json:"bytes,omitempty"`      // of the changes
	AlignMs   int64 `json:"align_ms,omitempty"`   // from the first barrier to the freeze
	FreezeUs  int64 `json:"freeze_us,omitempty"`  // the pause of the task
	PersistMs int64 `json:"persist_ms,omitempty"` // from the freeze to the disk

	// Packs are the objects that hold the part, oldest first; set once all are stored.
	Packs []string `json:"packs,omitempty"`
}

// EpochState is how far an epoch has come.
type EpochState string

// States of an epoch. Started leads to Committed or Aborted, Committed to Replicated; nothing leads
// back. Where a checkpoint counts only once replicated, a [Restart] aborts what is committed and has
// not come to count.
const (
	Started    EpochState = "started"
	Committed  EpochState = "committed"
	Aborted    EpochState = "aborted"
	Replicated EpochState = "replicated"
)

func (s EpochState) rank() int {
	return slices.Index([]EpochState{Started, Aborted, Committed, Replicated}, s)
}

// EpochRecord is the whole truth about one epoch of a job: one key in KV, changed by compare-and-set
// only. What agents do follows from it alone:
//
//   - started: sources on agents that are not detached append the barrier to their log; every task
//     takes what [Aligner.Lacks] says. Initial: no barrier; each task acknowledges the part that it
//     starts from, once that is durable. Final: sources read nothing after its barrier.
//   - aborted: tasks take what [Aligner.Lacks] says. Final: sources read on.
//   - committed: Parts is the manifest; agents store it locally before acting on it, and put the
//     parts into the object store if the job is replicated.
//   - replicated: as committed, with the packs of every part.
type EpochRecord struct {
	Epoch      Epoch      `json:"epoch"`
	Term       Term       `json:"term"` // of the coordinator that wrote it last
	Generation Generation `json:"generation"`
	State      EpochState `json:"state"`
	Initial    bool       `json:"initial,omitempty"`
	Final      bool       `json:"final,omitempty"`
	Savepoint  string     `json:"savepoint,omitempty"`
	Reason     string     `json:"reason,omitempty"` // why aborted
	// Fence: the record, which is aborted and of the next generation, ends its job's generation without a
	// drain. No epoch of that is started any more and none comes to count: the next begins from Base, the
	// newest that does.
	Fence bool  `json:"fence,omitempty"`
	Base  Epoch `json:"base,omitempty"`
	// Detached lists, sorted, the agents that are not waited for.
	Detached []string        `json:"detached,omitempty"`
	Parts    map[TaskID]Part `json:"parts,omitempty"`
	// StartedMs and EndedMs (of the commit or abort) are milliseconds of the coordinator's clock, for
	// display only.
	StartedMs int64 `json:"started_ms,omitempty"`
	EndedMs   int64 `json:"ended_ms,omitempty"`
	// ReplicatedMs likewise.
	ReplicatedMs int64 `json:"replicated_ms,omitempty"`
}

// Counts says whether the checkpoint counts: logs, streams and old snapshots may be truncated to it
// and checkpoint-mode sinks released.
func (r EpochRecord) Counts(replicate bool) bool {
	return r.State == Replicated || r.State == Committed && !replicate
}

// Manifest says whether the record holds the parts of a checkpoint.
func (r EpochRecord) Manifest() bool { return r.State == Committed || r.State == Replicated }

func (r EpochRecord) over() bool { return r.State != Started }

// Ack is a task's acknowledgement of an epoch: its part is durable, with its loop log, and so is
// everything that it sent before the cut. Once written it is never changed: of several for one task
// and epoch the first holds.
type Ack struct {
	Task       TaskID     `json:"task"`
	Epoch      Epoch      `json:"epoch"`      // of the record that it answers
	Generation Generation `json:"generation"` // of that record
	Part       Part       `json:"part"`
	// Failed, if not empty, says why there will be no part: the epoch is aborted. An initial epoch
	// is not: there a later acknowledgement replaces it.
	Failed string `json:"failed,omitempty"`
}

// ReplicaAck says that a part is in the object store.
type ReplicaAck struct {
	Task       TaskID     `json:"task"`
	Epoch      Epoch      `json:"epoch"`      // the part's own
	Generation Generation `json:"generation"` // the part's own
	Version    uint64     `json:"version"`    // the part's own
	Packs      []string   `json:"packs"`      // all that a restore of the part needs, oldest first
}

// Plan is what the algorithm needs to know of a job's physical plan.
type Plan struct {
	Generation Generation
	Tasks      []PlannedTask
	Channels   []PlannedChannel
}

// PlannedTask is a task of a plan.
type PlannedTask struct {
	ID     TaskID
	Agent  string
	Source bool // it begins with a source and is never rolled back by others
}

// PlannedChannel is a channel of a plan.
type PlannedChannel struct {
	ID       ChannelID
	From, To TaskID
	Back     bool
}

func (p Plan) task(id TaskID) (PlannedTask, bool) {
	i := slices.IndexFunc(p.Tasks, func(t PlannedTask) bool { return t.ID == id })
	if i < 0 {
		return PlannedTask{}, false
	}
	return p.Tasks[i], true
}

// Validate says what is wrong with a plan.
func (p Plan) Validate() error {
	if len(p.Tasks) == 0 {
		return fmt.Errorf("plan of generation %d has no tasks", p.Generation)
	}
	tasks := map[TaskID]bool{}
	for _, t := range p.Tasks {
		if tasks[t.ID] {
			return fmt.Errorf("plan of generation %d has task %q twice", p.Generation, t.ID)
		}
		tasks[t.ID] = true
	}
	channels := map[ChannelID]bool{}
	for _, c := range p.Channels {
		switch {
		case channels[c.ID]:
			return fmt.Errorf("plan of generation %d has channel %q twice", p.Generation, c.ID)
		case !tasks[c.From] || !tasks[c.To]:
			return fmt.Errorf("plan of generation %d: channel %q leads from %q to %q, which are not both tasks", p.Generation, c.ID, c.From, c.To)
		}
		channels[c.ID] = true
	}
	return nil
}

// Inputs lists a task's input channels in the order of the plan, for [NewAligner].
func (p Plan) Inputs(task TaskID) []Input {
	var in []Input
	for _, c := range p.Channels {
		if c.To == task {
			from, _ := p.task(c.From)
			in = append(in, Input{ID: c.ID, Agent: from.Agent, Back: c.Back})
		}
	}
	return in
}

// Gateway says whether an agent takes no data from other agents. Only such an agent can be detached:
// nothing that it does depends on what happened elsewhere meanwhile.
func (p Plan) Gateway(agent string) bool {
	hosts := false
	for _, t := range p.Tasks {
		hosts = hosts || t.Agent == agent
	}
	for _, c := range p.Channels {
		from, _ := p.task(c.From)
		to, _ := p.task(c.To)
		if to.Agent == agent && from.Agent != agent {
			return false
		}
	}
	return hosts
}

// Check compares the numbers of a checkpoint's parts and says which channel would lose or double
// items after a rollback to it: the receiver's part must hold at least the sender's cut, and exactly
// the cut where the sender is not a source, since only a source's log regenerates what lies beyond.
// Back edges are counted with their loop log. In at-least-once mode a receiver may always hold more.
func Check(p Plan, mode Mode, parts map[TaskID]Part) error {
	for _, t := range p.Tasks {
		if _, ok := parts[t.ID]; !ok {
			return fmt.Errorf("task %q has no part", t.ID)
		}
	}
	for _, c := range p.Channels {
		sent, held := parts[c.From].Cut.Sent[c.ID], parts[c.To].Cut.Consumed[c.ID]
		if c.Back {
			held = max(held, parts[c.To].Cut.Logged[c.ID])
		}
		if held < sent {
			return fmt.Errorf("channel %q: the part of %q ends at number %d, that of its sender %q at %d: items between would be lost", c.ID, c.To, held, c.From, sent)
		}
		if from, _ := p.task(c.From); held > sent && !from.Source && mode == ExactlyOnce {
			return fmt.Errorf("channel %q: the part of %q holds number %d, that of its sender %q ends at %d: items between could come twice", c.ID, c.To, held, c.From, sent)
		}
	}
	return nil
}

// Rebuild merges the records that agents have kept when KV was lost: for each epoch the copy of the
// highest term, then generation, then the furthest state. The answer is sorted by epoch. An epoch
// that is only known as started is over all the same, its acknowledgements being lost: it comes out
// as aborted.
func Rebuild(copies []EpochRecord) []EpochRecord {
	best := map[Epoch]EpochRecord{}
	for _, r := range copies {
		if b, seen := best[r.Epoch]; !seen || b.olderCopyThan(r) {
			best[r.Epoch] = r
		}
	}
	var out []EpochRecord
	for _, r := range best {
		if r.State == Started {
			r.State, r.Reason = Aborted, "the control plane was lost while it ran"
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b EpochRecord) int { return compareEpochs(a.Epoch, b.Epoch) })
	return out
}

func (r EpochRecord) olderCopyThan(o EpochRecord) bool {
	if r.Term != o.Term {
		return r.Term < o.Term
	}
	if r.Generation != o.Generation {
		return r.Generation < o.Generation
	}
	return r.State.rank() < o.State.rank()
}

func compareEpochs(a, b Epoch) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Lacks returns, in order, the control events that a task on an agent lacks of a record: what the
// task logs and then gives to Step. It is idempotent: asked again after those steps, it returns
// nothing. Ask when a record is seen or changes, in the order of epochs, of a task that has read its
// log to the end. For a source the barrier goes into the ingest log.
func (a *Aligner) Lacks(r EpochRecord, agent string) []Event {
	evs := a.membership(r)
	open := r.Epoch > a.finished || r.Epoch == a.logging
	switch {
	case r.Initial:
		if r.Epoch > a.finished {
			evs = append(evs, Event{Kind: OnFloor, Epoch: r.Epoch})
		}
	case r.over():
		if open && r.Epoch != 0 {
			evs = append(evs, Event{Kind: OnAbort, Epoch: r.Epoch})
		}
	case slices.Contains(r.Detached, agent):
	case r.Epoch > a.finished && r.Epoch > a.pending:
		evs = append(evs, Event{Kind: OnControlBarrier, Epoch: r.Epoch})
	}
	return evs
}

// membership is the difference between the agents that a record and this task do not wait for.
func (a *Aligner) membership(r EpochRecord) []Event {
	if r.Epoch < a.members {
		return nil
	}
	senders := map[string]bool{}
	for _, in := range a.inputs {
		senders[in.Agent] = true
	}
	var evs []Event
	for _, agent := range sorted(senders) {
		out := slices.Contains(r.Detached, agent)
		switch {
		case out && !a.detached[agent]:
			evs = append(evs, Event{Kind: OnDetach, Agent: agent, Epoch: r.Epoch})
		case !out && a.detached[agent]:
			evs = append(evs, Event{Kind: OnAttach, Agent: agent, Epoch: r.Epoch})
		}
	}
	return evs
}

// DecodeRecord reads a record from its JSON and refuses what no coordinator writes.
func DecodeRecord(raw []byte) (EpochRecord, error) {
	var r EpochRecord
	if err := json.Unmarshal(raw, &r); err != nil {
		return EpochRecord{}, fmt.Errorf("epoch record: %w", err)
	}
	switch {
	case r.State.rank() < 0:
		return EpochRecord{}, fmt.Errorf("epoch record: %v has the unknown state %q: it was written by a newer version", r.Epoch, r.State)
	case r.Manifest() && len(r.Parts) == 0:
		return EpochRecord{}, fmt.Errorf("epoch record: %v is %s without parts", r.Epoch, r.State)
	}
	return r, nil
}

// DecodeAck reads an acknowledgement from its JSON.
func DecodeAck(raw []byte) (Ack, error) {
	var a Ack
	if err := json.Unmarshal(raw, &a); err != nil {
		return Ack{}, fmt.Errorf("acknowledgement: %w", err)
	}
	if a.Task == "" {
		return Ack{}, fmt.Errorf("acknowledgement of %v names no task", a.Epoch)
	}
	return a, nil
}

// DecodeReplicaAck reads a replica acknowledgement from its JSON.
func DecodeReplicaAck(raw []byte) (ReplicaAck, error) {
	var a ReplicaAck
	if err := json.Unmarshal(raw, &a); err != nil {
		return ReplicaAck{}, fmt.Errorf("replica acknowledgement: %w", err)
	}
	if a.Task == "" || len(a.Packs) == 0 {
		return ReplicaAck{}, fmt.Errorf("replica acknowledgement of %v by task %q names no task or no packs", a.Epoch, a.Task)
	}
	return a, nil
}
