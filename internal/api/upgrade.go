package api

import "time"

// Trial says how an upgrade is to prove itself.
type Trial struct {
	// Canary chooses the agents that have the new version first: a number of them, or a label as K=V; empty: all
	// have it at once.
	Canary string `json:"canary,omitempty"`
	// Records and TimeMS are how many records the new version must have taken, and for how long, without more
	// failures than before; 0: the defaults.
	Records uint64 `json:"records,omitempty"`
	TimeMS  int64  `json:"time_ms,omitempty"`
	// Failures are tolerated beyond the rate of the versions before.
	Failures uint64 `json:"failures,omitempty"`
	// Off: there is no trial and no roll-back.
	Off bool `json:"off,omitempty"`
}

// States of an upgrade.
const (
	UpgradeTrial      = "trial"       // all agents have it, and it may be rolled back
	UpgradeCanary     = "canary"      // some agents have it
	UpgradeDone       = "done"        // it has proved itself, or had no trial
	UpgradeRolledBack = "rolled back" // the versions before it are back
	// ShadowDropped: there was no upgrade, but versions in the shadow, which have ended.
	ShadowDropped = "dropped"
)

// Upgrade is the newest upgrade of a job's operators since its generation began.
type Upgrade struct {
	// Number grows with each, roll-backs too.
	Number uint64 `json:"number"`
	State  string `json:"state"`
	// Operators are those that changed.
	Operators []string `json:"operators"`
	// Reason says why the last trial ended as it did.
	Reason string `json:"reason,omitempty"`

	// While it is on trial: the agents of a canary, how many tasks are concerned and have taken it, what came of
	// their records since, how many failures are allowed for so many, and what is needed.
	Agents      []string  `json:"agents,omitempty"`
	Tasks       int       `json:"tasks,omitempty"`
	Taken       int       `json:"taken,omitempty"`
	Records     uint64    `json:"records,omitempty"`
	Failed      uint64    `json:"failed,omitempty"`
	Allowed     uint64    `json:"allowed,omitempty"`
	NeedRecords uint64    `json:"need_records,omitempty"`
	NeedMS      float64   `json:"need_ms,omitempty"`
	Started     time.Time `json:"started,omitzero"`
	Ended       time.Time `json:"ended,omitzero"`
}

// TaskUpgrade is where a task is with upgrades.
type TaskUpgrade struct {
	Wanted uint64 `json:"wanted"` // what the job's record wants of this task
	Number uint64 `json:"number"` // what it has taken
	// Refused says why it was not taken: the task goes on with the versions before.
	Refused string `json:"refused,omitempty"`
	// Waits says why it is not taken yet.
	Waits string `json:"waits,omitempty"`
	// Records and Failed are of the versions that run, the others of those before.
	Records       uint64            `json:"records"`
	Failed        uint64            `json:"failed"`
	RecordsBefore uint64            `json:"records_before"`
	FailedBefore  uint64            `json:"failed_before"`
	Operators     []OperatorVersion `json:"operators,omitempty"`
}

// OperatorVersion is what runs of an operator.
type OperatorVersion struct {
	Name   string `json:"name"`
	Module string `json:"module"`
	Digest string `json:"digest"`
}

// Replay chooses dead letters of a job that are to be processed again.
type Replay struct {
	IDs      []string `json:"ids,omitempty"`      // empty: all
	Operator string   `json:"operator,omitempty"` // that refused them; empty: any
	// Again: also those that were replayed before.
	Again bool `json:"again,omitempty"`
}

// Replayed is what became of dead letters that were to be processed again. One that is refused again is another
// dead letter.
type Replayed struct {
	Replayed []string        `json:"replayed"` // IDs
	Skipped  []SkippedLetter `json:"skipped"`
	// Left is how many more are to be replayed: ask again.
	Left int `json:"left,omitempty"`
	// Unanswered are agents whose dead letters were not replayed, since they did not answer.
	Unanswered []Unanswered `json:"unanswered"`
}

// SkippedLetter is a dead letter that was not replayed.
type SkippedLetter struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}
