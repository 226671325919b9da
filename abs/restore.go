package abs

import (
	"cmp"
	"fmt"
	"slices"
)

// PartSummary is what the choice of a restore point needs to know of a saved part.
type PartSummary struct {
	Version    uint64
	Generation Generation
	Pos        Position // last log entry whose effect it contains
	Cut        Cut
	Rejected   bool // it did not load, or its replay differed
}

// Ask is a task's question from where to restore.
type Ask struct {
	Generation Generation // a streamed task's parts of others do not count: they are not on its path
	Source     bool       // the task is a source: others never roll it back, older generations count
	// Truncated: the task's log entries up to here are gone; a part before it cannot be followed.
	Truncated Position
	// Damaged: the log cannot be followed to its end (entries beyond Truncated are missing too).
	Damaged bool
	// Needs is, for each output that must be sent again, the first number that its receiver lacks;
	// empty for a restart of the task alone.
	Needs map[ChannelID]Seq
	// ReplicaTried: the object store has been asked and its parts, if any, are among these.
	ReplicaTried bool
}

// DecisionKind tells how a task is restored.
type DecisionKind uint8

// Kinds of decisions.
const (
	// RestorePart: from the part of that version, then by the log. Nobody else notices (L0, L1).
	RestorePart DecisionKind = iota + 1
	// FetchReplica: no usable part here; import what the object store has and ask again (L2).
	FetchReplica
	// NewIncarnation: a source whose log does not lead on from any part: it takes a new incarnation
	// from the part of that version (0: from nothing), and what only the log knew is counted as lost (L3).
	NewIncarnation
	// RollbackAll: all streamed tasks of the job restart from the last counting checkpoint (L4).
	RollbackAll
)

func (k DecisionKind) String() string {
	switch k {
	case RestorePart:
		return "restore part"
	case FetchReplica:
		return "fetch replica"
	case NewIncarnation:
		return "new incarnation"
	case RollbackAll:
		return "roll back all"
	}
	return fmt.Sprintf("decision(%d)", uint8(k))
}

// Decision is the answer to an [Ask].
type Decision struct {
	Kind    DecisionKind
	Version uint64 // RestorePart, NewIncarnation
	Why     string // for RestorePart empty
}

// Choose picks the part to restore: the one furthest in the log that is not rejected, that the log
// leads on from, and from which every needed number is generated again (its last sent number lies
// below it). Furthest in the log, not written last: a restart may save an older state again later.
func Choose(parts []PartSummary, ask Ask) Decision {
	usable := ours(parts, ask.Generation, ask.Source)
	follow := slices.DeleteFunc(slices.Clone(usable), func(p PartSummary) bool { return ask.Damaged || p.Pos < ask.Truncated })
	serve := slices.DeleteFunc(slices.Clone(follow), func(p PartSummary) bool { return !p.serves(ask.Needs) })
	if len(serve) > 0 {
		return Decision{Kind: RestorePart, Version: furthest(serve).Version}
	}
	why := reason(len(usable), len(follow), ask)
	switch {
	case !ask.Damaged && !ask.ReplicaTried:
		return Decision{Kind: FetchReplica, Why: why}
	case len(follow) > 0 || !ask.Source: // the task itself could go on, but not serve the gap
		return Decision{Kind: RollbackAll, Why: why}
	case !ask.ReplicaTried && len(usable) == 0:
		return Decision{Kind: FetchReplica, Why: why}
	case len(usable) > 0:
		return Decision{Kind: NewIncarnation, Version: furthest(usable).Version, Why: why}
	}
	return Decision{Kind: NewIncarnation, Why: why}
}

// Refill finds the part whose loop log holds item n of a back edge, so that a gap there is filled
// without restoring the sender: the one furthest in the log.
func Refill(parts []PartSummary, gen Generation, back ChannelID, n Seq) (version uint64, ok bool) {
	with := slices.DeleteFunc(ours(parts, gen, false), func(p PartSummary) bool {
		return n <= p.Cut.Consumed[back] || n > p.Cut.Logged[back]
	})
	if len(with) == 0 {
		return 0, false
	}
	return furthest(with).Version, true
}

func ours(parts []PartSummary, gen Generation, older bool) []PartSummary {
	return slices.DeleteFunc(slices.Clone(parts), func(p PartSummary) bool {
		return p.Rejected || p.Generation > gen || p.Generation < gen && !older
	})
}

func (p PartSummary) serves(needs map[ChannelID]Seq) bool {
	for ch, n := range needs {
		if p.Cut.Sent[ch] >= n {
			return false
		}
	}
	return true
}

func furthest(parts []PartSummary) PartSummary {
	return slices.MaxFunc(parts, func(a, b PartSummary) int {
		return cmp.Or(cmp.Compare(a.Pos, b.Pos), cmp.Compare(a.Version, b.Version))
	})
}

func reason(usable, follow int, ask Ask) string {
	switch {
	case usable == 0:
		return fmt.Sprintf("no usable part of generation %d", ask.Generation)
	case ask.Damaged:
		return fmt.Sprintf("the log is damaged after entry %d", ask.Truncated)
	case follow == 0:
		return fmt.Sprintf("the log is gone up to entry %d, past every part", ask.Truncated)
	}
	return "every part that the log leads on from already contains a number that a receiver lacks"
}
