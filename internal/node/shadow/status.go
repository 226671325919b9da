package shadow

import "time"

// State says what the new version is doing.
type State string

// States of a version in the shadow. Those before Waiting are for whoever brings it here to tell.
const (
	Preparing State = "preparing" // its module is being fetched, compiled and tried
	Refused   State = "refused"   // it is not run, for the reason given
	Waiting   State = "waiting"   // it begins with the next call of the operator
	Starting  State = "starting"  // its instance is being made
	Comparing State = "comparing"
	// Resting: it failed, fell behind, or the task went back to a snapshot, and it begins anew with a call of the
	// operator as soon as it may.
	Resting State = "resting"
)

// Status is what came of a version in the shadow since the process started or the version was wanted. What the task
// replays is counted again.
type Status struct {
	Wanted
	State  State
	Reason string // of Preparing and Refused
	// Since is when it first began; Begins is how often it has begun, Begun when it did last.
	Since, Begun time.Time
	Begins       uint64
	With         string // what it began with last

	Records uint64 // that both versions took
	// Equal and Different are records that the versions put out: in the order of an output, with key, value, event time
	// and headers. One that only one of them has put out is different.
	Equal, Different uint64
	First            *Difference // nil: none
	Failed           uint64      // calls of the new version that failed, and starts
	Failure          string      // the last one
	Skipped          uint64      // records that only the running version took
	Behind           uint64      // how often the new one fell too far behind
	// RefusedBoth and Mended are records that the running version refused: the new one did too, or took them.
	RefusedBoth, Mended uint64

	OldPerRecord, NewPerRecord time.Duration
}

// Difference is where two versions parted first. Texts are cut to some 60 bytes.
type Difference struct {
	// From and To are the records of the call that put it out, counted like Status.Records; To is 0 if time made the call.
	From, To uint64
	At       time.Time // clock of the call
	Output   string
	Index    int    // place among what the running version put out in that call, from 0
	Key      string // of the record
	// Part is what differs: "value", "key", "time" or "headers"; or "missing", "extra": the new version did not put the
	// record out, or only it did.
	Part     string
	Old, New string
}
