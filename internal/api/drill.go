package api

// Kinds of drills.
const (
	DrillKill      = "kill"
	DrillPowerCut  = "power-cut"
	DrillLinkFlap  = "link-flap"
	DrillDiskFull  = "disk-full"
	DrillClockBack = "clock-back"
)

// Drill is something that goes wrong, which an agent can do to itself and to nothing else.
type Drill struct {
	Kind string `json:"kind"`
	// Does says what happens to the agent and what does not, for people.
	Does string `json:"does"`
	// Ends tells whether the agent's process ends, so that something must start it again.
	Ends bool `json:"ends"`
}

// DrillOrder asks an agent for a drill.
type DrillOrder struct {
	Kind string `json:"kind"`
	// Seconds is how long it lasts, 1 to [MaxDrillSeconds]; it means nothing where the process ends.
	Seconds int `json:"seconds"`
	// Sure must be true: what follows disturbs the agent's work.
	Sure bool `json:"sure"`
}

// MaxDrillSeconds bounds a drill: it shows how an agent comes back, not how it lives without.
const MaxDrillSeconds = 300

// DrillBegun is a drill under way.
type DrillBegun struct {
	Drill
	Agent   string `json:"agent"`
	PID     int    `json:"pid"`
	Starts  uint64 `json:"starts"` // of the agent's process, this one included
	Seconds int    `json:"seconds"`
	// Supervised tells whether the process was started by a service manager that it knows (systemd).
	Supervised bool `json:"supervised"`
}

// CheckpointDetail is one checkpoint with what it says of every channel.
type CheckpointDetail struct {
	Checkpoint
	Channels []ChannelCut `json:"channels"` // by ID
	// Kept are tasks, by ID, whose parts are older ones: their agents were away.
	Kept []string `json:"kept"`
}

// ChannelCut is how far the two ends of a channel had come when each of them took its part. Numbers count records
// and marks, from 1.
type ChannelCut struct {
	ID       string `json:"id"`
	From     string `json:"from"`
	To       string `json:"to"`
	Source   bool   `json:"source"` // From begins with a source, which nobody rolls back: To may have come further
	Back     bool   `json:"back"`   // it closes a loop: To has what follows its part in the part's log
	Sent     uint64 `json:"sent"`
	Consumed uint64 `json:"consumed"` // of a back edge: or logged
}
