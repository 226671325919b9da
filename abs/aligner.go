package abs

import (
	"fmt"
	"maps"
	"slices"
)

// Mode is what a task does with an input whose barrier is ahead of the others.
type Mode uint8

const (
	// ExactlyOnce blocks it, so that a snapshot holds exactly the items before the cut.
	ExactlyOnce Mode = iota
	// AtLeastOnce goes on reading: a snapshot may hold items from after the cut, which come again after a rollback.
	AtLeastOnce
)

// Input is one input channel of a task.
type Input struct {
	ID    ChannelID
	Agent string // the agent that the sending task runs on
	Back  bool   // a back edge, see [BackEdges]
}

// EventKind tells what has reached a task.
type EventKind uint8

// Kinds of events. Every one is an entry of the task's log before [Aligner.Step] sees it.
const (
	// OnBarrier: the barrier of Epoch was taken from Channel and is counted there as an item.
	OnBarrier EventKind = iota + 1
	// OnControlBarrier: Epoch has started. It completes at once in a task that has nothing to wait
	// for (a source; all forward inputs detached or ended). Any task may be given it at any time,
	// more than once: elsewhere it only opens the epoch.
	OnControlBarrier
	// OnAbort: Epoch and all before it are over: aborted, or committed without this task's part. A
	// part of it that is frozen already belongs to no checkpoint; its changes must still reach the
	// next version.
	OnAbort
	// OnEnd: Channel has ended; nothing follows on it.
	OnEnd
	// OnDetach: Agent is not waited for any more. Epoch is that of the record that says so.
	OnDetach
	// OnAttach: Agent is waited for again, from the next epoch that opens here. Epoch as in OnDetach.
	OnAttach
	// OnFloor: epochs up to Epoch lie before this generation; their barriers are items like others.
	OnFloor
)

var eventNames = [...]string{"?", "barrier", "control", "abort", "end", "detach", "attach", "floor"}

func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

// Event is one thing that reaches a task's aligner.
type Event struct {
	Kind    EventKind `json:"k"`
	Epoch   Epoch     `json:"e,omitempty"`
	Channel ChannelID `json:"c,omitempty"` // OnBarrier, OnEnd
	Agent   string    `json:"a,omitempty"` // OnDetach, OnAttach
}

// Effects is what a task must do after one event, in the order of the fields.
type Effects struct {
	// Aborted is the pending epoch that was given up (0: none): by OnAbort, OnFloor, or by a newer
	// barrier on an open channel, in which case Superseded is set.
	Aborted    Epoch
	Superseded bool
	// DropLog: give up the loop log of this epoch; its part will never be complete.
	DropLog Epoch
	// Freeze (0: none): freeze the task's state now, before any further item is processed, then send
	// the barrier of this epoch on every output. The state holds exactly the effects of the items up
	// to the cut; take [Aligner.State] and the numbers after Step has returned. The numbers of the
	// part include the barrier on every input and on every output.
	Freeze Epoch
	// Aligned goes with Freeze: the forward channels whose barrier of the epoch, or end, lies before
	// the cut, sorted. The part's acknowledgement carries it.
	Aligned []ChannelID
	// StartLog goes with Freeze in a loop head: from now on items of back edges for which
	// [Aligner.Logging] holds are processed and appended to the loop log, which belongs to the part.
	// Such a part is complete, and may be acknowledged, only after StopLog of the same epoch.
	StartLog Epoch
	// StopLog: the loop log of this epoch is complete.
	StopLog Epoch
	// Blocked: this channel is blocked from now on: take nothing from it.
	Blocked ChannelID
	// Unblocked: these channels, sorted, are open again: what was set aside of them comes next, in
	// the order of the stream.
	Unblocked []ChannelID
	// Ignored: the barrier changed nothing; it is counted as an item of its channel. A source sends
	// it on nevertheless, since its outputs must have equal numbers whenever its log is read.
	Ignored bool
}

// State is the aligner's part of a snapshot. All lists are sorted.
type State struct {
	Finished   Epoch       `json:"finished,omitempty"`    // highest epoch that is over for this task: frozen or given up
	Pending    Epoch       `json:"pending,omitempty"`     // epoch being aligned, 0: none
	Waiting    []ChannelID `json:"waiting,omitempty"`     // forward channels that Pending waits for
	Delivered  []ChannelID `json:"delivered,omitempty"`   // channels that have delivered Pending; blocked if exactly once
	Ended      []ChannelID `json:"ended,omitempty"`       // channels that have ended
	Detached   []string    `json:"detached,omitempty"`    // agents that are not waited for
	Members    Epoch       `json:"members,omitempty"`     // highest epoch whose record set Detached
	Logging    Epoch       `json:"logging,omitempty"`     // epoch whose loop log is open, 0: none
	LogWaiting []ChannelID `json:"log_waiting,omitempty"` // back edges that Logging waits for
}

// Aligner is the algorithm within one task (listing 1; with back edges listing 2). A source has one
// without channels. It belongs to the goroutine of its task.
type Aligner struct {
	mode   Mode
	inputs map[ChannelID]Input

	finished   Epoch
	pending    Epoch
	waiting    map[ChannelID]bool
	delivered  map[ChannelID]bool
	ended      map[ChannelID]bool
	detached   map[string]bool
	members    Epoch
	logging    Epoch
	logWaiting map[ChannelID]bool

	ignored uint64
}

// NewAligner returns the aligner of a task that has seen nothing yet. It panics if a channel is
// given twice.
func NewAligner(channels []Input, mode Mode) *Aligner {
	a := &Aligner{
		mode: mode, inputs: map[ChannelID]Input{},
		waiting: map[ChannelID]bool{}, delivered: map[ChannelID]bool{}, ended: map[ChannelID]bool{},
		detached: map[string]bool{}, logWaiting: map[ChannelID]bool{},
	}
	for _, in := range channels {
		if _, twice := a.inputs[in.ID]; twice {
			panic(fmt.Sprintf("abs: channel %q given twice to an aligner", in.ID))
		}
		a.inputs[in.ID] = in
	}
	return a
}

// RestoreAligner returns an aligner that goes on exactly where the one that gave the state was. It
// fails if the state does not fit the channels: it is then of another task or another plan.
func RestoreAligner(channels []Input, mode Mode, s State) (*Aligner, error) {
	a := NewAligner(channels, mode)
	a.finished, a.pending, a.members, a.logging = s.Finished, s.Pending, s.Members, s.Logging
	for _, list := range []struct {
		to   map[ChannelID]bool
		from []ChannelID
	}{{a.waiting, s.Waiting}, {a.delivered, s.Delivered}, {a.ended, s.Ended}, {a.logWaiting, s.LogWaiting}} {
		for _, ch := range list.from {
			if _, known := a.inputs[ch]; !known {
				return nil, fmt.Errorf("restore aligner: the state names channel %q, which the task does not have: it belongs to another plan", ch)
			}
			list.to[ch] = true
		}
	}
	for _, agent := range s.Detached {
		a.detached[agent] = true
	}
	if err := a.consistent(); err != nil {
		return nil, fmt.Errorf("restore aligner: %w", err)
	}
	return a, nil
}

func (a *Aligner) consistent() error {
	switch {
	case a.pending == 0 && len(a.waiting)+len(a.delivered) > 0:
		return fmt.Errorf("channels are waited for or blocked, but no epoch is pending")
	case a.pending != 0 && len(a.waiting) == 0:
		return fmt.Errorf("%v is pending, but no channel is waited for", a.pending)
	case a.pending != 0 && a.pending <= a.finished:
		return fmt.Errorf("%v is pending, but %v is finished", a.pending, a.finished)
	case (a.logging == 0) != (len(a.logWaiting) == 0):
		return fmt.Errorf("loop log of %v waits for %d back edges", a.logging, len(a.logWaiting))
	}
	for ch := range a.waiting {
		if a.delivered[ch] || a.inputs[ch].Back {
			return fmt.Errorf("channel %q cannot be waited for", ch)
		}
	}
	for ch := range a.logWaiting {
		if !a.inputs[ch].Back {
			return fmt.Errorf("forward channel %q cannot be in a loop log", ch)
		}
	}
	return nil
}

// State returns what a snapshot taken now must hold.
func (a *Aligner) State() State {
	return State{
		Finished: a.finished, Pending: a.pending, Members: a.members, Logging: a.logging,
		Waiting: sorted(a.waiting), Delivered: sorted(a.delivered), Ended: sorted(a.ended),
		Detached: sorted(a.detached), LogWaiting: sorted(a.logWaiting),
	}
}

// Pending is the epoch being aligned, 0 if none.
func (a *Aligner) Pending() Epoch { return a.pending }

// Finished is the highest epoch that is over for this task: frozen or given up.
func (a *Aligner) Finished() Epoch { return a.finished }

// Blocked says whether nothing may be taken from a channel now.
func (a *Aligner) Blocked(ch ChannelID) bool { return a.mode == ExactlyOnce && a.delivered[ch] }

// Detached says whether the channels of an agent are not waited for.
func (a *Aligner) Detached(agent string) bool { return a.detached[agent] }

// Logging is the epoch to whose loop log the next item of a back edge belongs, 0 if to none.
func (a *Aligner) Logging(ch ChannelID) Epoch {
	if a.logWaiting[ch] {
		return a.logging
	}
	return 0
}

// Waiting lists, sorted, the channels that hold up the pending epoch.
func (a *Aligner) Waiting() []ChannelID { return sorted(a.waiting) }

// Ended says whether all forward inputs have ended; false for a task that has none.
func (a *Aligner) Ended() bool {
	forward := 0
	for id, in := range a.inputs {
		if in.Back {
			continue
		}
		forward++
		if !a.ended[id] {
			return false
		}
	}
	return forward > 0
}

// Ignored is how many barriers changed nothing since this aligner was made or restored.
func (a *Aligner) Ignored() uint64 { return a.ignored }

// Step takes one event. It panics on what cannot be while the invariants hold: an unknown channel,
// an item from a blocked channel (it stays set aside) or from one that has ended.
func (a *Aligner) Step(ev Event) Effects {
	var fx Effects
	before := a.blocked()
	switch ev.Kind {
	case OnBarrier:
		a.barrier(ev, &fx)
	case OnControlBarrier:
		a.controlBarrier(ev.Epoch, &fx)
	case OnAbort, OnFloor:
		a.finish(ev.Epoch, &fx)
	case OnEnd:
		a.mustBeOpen(ev)
		a.ended[ev.Channel] = true
		a.stopWaiting(&fx, ev.Channel)
	case OnDetach:
		a.detach(ev, &fx)
	case OnAttach:
		delete(a.detached, ev.Agent)
		a.members = max(a.members, ev.Epoch)
	default:
		panic(fmt.Sprintf("abs: aligner given an event of kind %d", ev.Kind))
	}
	a.compareBlocked(before, &fx)
	if fx.Ignored {
		a.ignored++
	}
	return fx
}

func (a *Aligner) barrier(ev Event, fx *Effects) {
	a.mustBeOpen(ev)
	if a.inputs[ev.Channel].Back {
		a.barrierRound(ev, fx)
		return
	}
	a.deliver(ev, fx)
}

func (a *Aligner) deliver(ev Event, fx *Effects) {
	if !a.open(ev.Epoch, fx) {
		return
	}
	if a.delivered[ev.Channel] { // at least once: the same barrier a second time
		fx.Ignored = true
		return
	}
	a.delivered[ev.Channel] = true
	delete(a.waiting, ev.Channel)
	a.freezeIfAligned(fx)
}

// barrierRound takes a barrier from a back edge. As a rule it has gone round the loop. Where a loop has
// several heads, another one may have frozen first, and its barrier comes before this head's own: what lies
// behind it belongs behind this head's cut, too, and must wait; nothing is left to log of that edge.
func (a *Aligner) barrierRound(ev Event, fx *Effects) {
	if ev.Epoch > a.finished {
		a.deliver(ev, fx)
		return
	}
	if ev.Epoch != a.logging || !a.logWaiting[ev.Channel] {
		fx.Ignored = true
		return
	}
	delete(a.logWaiting, ev.Channel)
	a.stopLogIfRound(fx)
}

func (a *Aligner) controlBarrier(n Epoch, fx *Effects) {
	if a.open(n, fx) {
		a.freezeIfAligned(fx)
	}
}

// open makes n the pending epoch unless it is over already. A newer one supersedes.
func (a *Aligner) open(n Epoch, fx *Effects) bool {
	if n <= a.finished || n < a.pending {
		fx.Ignored = true
		return false
	}
	if n == a.pending {
		return true
	}
	if a.pending != 0 {
		fx.Superseded = true
		a.giveUp(fx)
	}
	a.pending = n
	for id, in := range a.inputs {
		if !in.Back && a.waitedFor(in) {
			a.waiting[id] = true
		}
	}
	return true
}

func (a *Aligner) waitedFor(in Input) bool { return !a.ended[in.ID] && !a.detached[in.Agent] }

// giveUp ends the pending epoch without a snapshot.
func (a *Aligner) giveUp(fx *Effects) {
	fx.Aborted = a.pending
	a.finished = max(a.finished, a.pending)
	a.pending = 0
	clear(a.waiting)
	clear(a.delivered)
}

// finish ends every epoch up to n.
func (a *Aligner) finish(n Epoch, fx *Effects) {
	if a.pending != 0 && a.pending <= n {
		a.giveUp(fx)
	}
	a.dropLog(n, fx)
	a.finished = max(a.finished, n)
}

// dropLog gives up an open loop log of an epoch up to n.
func (a *Aligner) dropLog(n Epoch, fx *Effects) {
	if a.logging != 0 && a.logging <= n {
		fx.DropLog, a.logging = a.logging, 0
		clear(a.logWaiting)
	}
}

func (a *Aligner) detach(ev Event, fx *Effects) {
	a.detached[ev.Agent] = true
	a.members = max(a.members, ev.Epoch)
	var of []ChannelID
	for id, in := range a.inputs {
		if in.Agent == ev.Agent {
			of = append(of, id)
		}
	}
	a.stopWaiting(fx, of...)
}

// stopWaiting completes what only these channels held up.
func (a *Aligner) stopWaiting(fx *Effects, channels ...ChannelID) {
	for _, ch := range channels {
		delete(a.waiting, ch)
		delete(a.logWaiting, ch)
	}
	a.stopLogIfRound(fx)
	a.freezeIfAligned(fx)
}

func (a *Aligner) freezeIfAligned(fx *Effects) {
	if a.pending == 0 || len(a.waiting) > 0 {
		return
	}
	n := a.pending
	fx.Freeze, fx.Aligned = n, a.aligned()
	a.finished, a.pending = n, 0
	a.dropLog(n, fx) // of an older epoch: it was over before this one started
	a.startLog(n, fx)
	clear(a.delivered)
}

// aligned lists the forward channels that have delivered the pending epoch or have ended.
func (a *Aligner) aligned() []ChannelID {
	of := maps.Clone(a.delivered)
	maps.Copy(of, a.ended)
	maps.DeleteFunc(of, func(id ChannelID, _ bool) bool { return a.inputs[id].Back })
	return sorted(of)
}

func (a *Aligner) startLog(n Epoch, fx *Effects) {
	for id, in := range a.inputs {
		if in.Back && a.waitedFor(in) && !a.delivered[id] {
			a.logWaiting[id] = true
		}
	}
	if len(a.logWaiting) > 0 {
		a.logging, fx.StartLog = n, n
	}
}

func (a *Aligner) stopLogIfRound(fx *Effects) {
	if a.logging != 0 && len(a.logWaiting) == 0 {
		fx.StopLog, a.logging = a.logging, 0
	}
}

func (a *Aligner) mustBeOpen(ev Event) {
	_, known := a.inputs[ev.Channel]
	switch {
	case !known:
		panic(fmt.Sprintf("abs: %v %d on channel %q, which the task does not have", ev.Kind, ev.Epoch, ev.Channel))
	case a.Blocked(ev.Channel):
		panic(fmt.Sprintf("abs: %v %d taken from channel %q, which is blocked for %v: it must stay set aside", ev.Kind, ev.Epoch, ev.Channel, a.pending))
	case a.ended[ev.Channel]:
		panic(fmt.Sprintf("abs: %v %d on channel %q after its end", ev.Kind, ev.Epoch, ev.Channel))
	}
}

func (a *Aligner) blocked() map[ChannelID]bool {
	if a.mode != ExactlyOnce {
		return nil
	}
	return maps.Clone(a.delivered)
}

// compareBlocked says which channels an event has blocked and which it has opened.
func (a *Aligner) compareBlocked(before map[ChannelID]bool, fx *Effects) {
	for ch := range a.blocked() {
		if before[ch] {
			delete(before, ch)
			continue
		}
		fx.Blocked = ch
	}
	fx.Unblocked = sorted(before)
}

func sorted[K ~string](set map[K]bool) []K {
	if len(set) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(set))
}

func setOf[K ~string](seq func(yield func(K) bool)) map[K]bool {
	out := map[K]bool{}
	for k := range seq {
		out[k] = true
	}
	return out
}
