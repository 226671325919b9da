package api

import "time"

// Shadow is new versions of operators that run in the shadow of those that run: on the same input, and nothing of what
// they put out is used. What came of it is told by task.
type Shadow struct {
	Operators []string  `json:"operators"`
	Agents    []string  `json:"agents,omitempty"` // where; empty: wherever the operators run
	Started   time.Time `json:"started"`
}

// TaskShadow is what came of a version in the shadow of one of a task's operators, since the agent started or the
// version was applied. What the task replays is counted again.
type TaskShadow struct {
	Operator string `json:"operator"`
	Module   string `json:"module"`
	Digest   string `json:"digest"`
	// State is "preparing" (its module is being fetched, compiled and tried), "refused" (it is not run, for the Reason),
	// "waiting" (for a record), "starting", "comparing", or "resting": it failed, fell behind, or the task went back to a
	// snapshot, and it begins anew soon.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Since is when it first began, Begun when it last did, with what With says of the running version's state.
	Since  time.Time `json:"since,omitzero"`
	Begun  time.Time `json:"begun,omitzero"`
	Begins uint64    `json:"begins"`
	With   string    `json:"with,omitempty"`

	// Records are those that both versions took; Skipped those that only the running one did.
	Records uint64 `json:"records"`
	Skipped uint64 `json:"skipped"`
	// Equal and Different are records that the versions put out; one that only one of them did is different.
	Equal     uint64            `json:"equal"`
	Different uint64            `json:"different"`
	First     *ShadowDifference `json:"first_difference"` // null: there is none
	// Failed are calls on which it failed, and starts; Failure is the last reason.
	Failed  uint64 `json:"failed"`
	Failure string `json:"failure,omitempty"`
	// Behind is how often it fell so far behind the running version that it was given up.
	Behind uint64 `json:"behind"`
	// RefusedBoth and Mended are records that the running version refused: it did too, or took them.
	RefusedBoth uint64 `json:"refused_both"`
	Mended      uint64 `json:"mended"`
	// RunningUS and ShadowUS are microseconds per record.
	RunningUS float64 `json:"running_us"`
	ShadowUS  float64 `json:"shadow_us"`
}

// ShadowDifference is where two versions parted first. Texts are cut to some 60 bytes.
type ShadowDifference struct {
	// From and To are the records of the call that put it out, counted like Records; To is 0 if time made the call, after From
	// records.
	From   uint64    `json:"from"`
	To     uint64    `json:"to"`
	At     time.Time `json:"at,omitzero"` // clock of the call
	Output string    `json:"output"`
	Index  int       `json:"index"` // place among what the running version put out in that call, from 0
	Key    string    `json:"key"`
	// Part is what differs: "value", "key", "time" or "headers"; or "missing", "extra": the version in the shadow did not
	// put the record out, or only it did.
	Part    string `json:"part"`
	Running string `json:"running"`
	Shadow  string `json:"shadow"`
}
