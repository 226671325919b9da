package api

import "time"

// Agent is one agent as the control plane knows it.
type Agent struct {
	Name    string            `json:"name"`
	Labels  map[string]string `json:"labels"`
	State   string            `json:"state"` // "up" or "down"
	Version string            `json:"version"`
	// Seen is when its presence was last renewed; zero if that is not known.
	Seen time.Time `json:"seen,omitzero"`
	// Started is when its process started.
	Started time.Time `json:"started"`
	// Starts counts the starts of its process on its data directory.
	Starts uint64 `json:"starts"`
	// Coordinator tells whether it holds the coordinator lease.
	Coordinator bool      `json:"coordinator"`
	Addresses   Addresses `json:"addresses"`
	Tasks       int       `json:"tasks"`
	// DeadLetters is how many of its dead letters have not been replayed, as it said in its last sign of life; nil if that
	// is not known.
	DeadLetters *uint64 `json:"dead_letters,omitempty"`
}

// Addresses are the listeners of an agent, as in its addresses.json; empty where it has none.
type Addresses struct {
	HTTP string `json:"http,omitempty"`
	NATS string `json:"nats,omitempty"`
	MQTT string `json:"mqtt,omitempty"`
	Leaf string `json:"leaf,omitempty"` // where leaf nodes join
}

// Up counts the agents that are up.
func Up(agents []Agent) int {
	up := 0
	for _, a := range agents {
		if a.State == "up" {
			up++
		}
	}
	return up
}

// Link is a connection of an agent to the outside: NATS, the hub of a leaf node, or an MQTT broker.
type Link struct {
	Kind string `json:"kind"` // "nats", "leaf" or "mqtt"
	// Name tells which one: the task of a source or sink, empty for the agent's own.
	Name    string `json:"name,omitempty"`
	Address string `json:"address"` // without credentials
	Up      bool   `json:"up"`
	// Since is when it came up or went down.
	Since time.Time `json:"since"`
	// Error is the last one, while it is down.
	Error string `json:"error,omitempty"`
}

// Store is what an agent keeps on disk.
type Store struct {
	Dir            string `json:"dir"`
	LogBytes       int64  `json:"log_bytes"`
	LogBudgetBytes int64  `json:"log_budget_bytes"`
	SnapshotBytes  int64  `json:"snapshot_bytes"`
	WrittenBytes   int64  `json:"written_bytes"` // since the process started
	// WrittenPerHour and LogPerHour are bytes in an hour, by the last hour or what there is of it: of all of the
	// agent's own files, and of its input log.
	WrittenPerHour float64 `json:"written_per_hour"`
	LogPerHour     float64 `json:"log_per_hour"`
	// LogHoursLeft is for how long the log takes records at that rate if nothing of it can be given up, as while
	// the hub cannot be reached. 0: nothing is written.
	LogHoursLeft    float64 `json:"log_hours_left"`
	DeadLetterBytes int64   `json:"dead_letter_bytes"`
}

// Status is one agent's own view: of itself, its links, and the tasks that run on it. It is had
// without NATS.
type Status struct {
	Agent Agent  `json:"agent"`
	Ready bool   `json:"ready"`
	Links []Link `json:"links"`
	Store Store  `json:"store"`
	Tasks []Task `json:"tasks"`
	// Notices are states that somebody should know of: a full log, a rejected snapshot, a device
	// clock that is far off.
	Notices []string `json:"notices"`
}
