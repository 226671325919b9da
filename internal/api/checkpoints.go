package api

import "time"

// States of a checkpoint.
const (
	CheckpointRunning    = "running"
	CheckpointComplete   = "complete"
	CheckpointReplicated = "replicated"
	CheckpointAborted    = "aborted"
)

// Checkpoint is one checkpoint of a job.
type Checkpoint struct {
	Job        string    `json:"job"`
	Epoch      uint64    `json:"epoch"`
	Generation uint32    `json:"generation"`
	State      string    `json:"state"`
	Started    time.Time `json:"started"`
	Parts      int       `json:"parts"`
	Bytes      int64     `json:"bytes"` // of the changes in its parts
	TookMS     float64   `json:"took_ms"`
	AlignMS    float64   `json:"align_ms"`
	FreezeMS   float64   `json:"freeze_ms"`
	PersistMS  float64   `json:"persist_ms"`
	// ReplicateMS is 0 until it is replicated.
	ReplicateMS float64 `json:"replicate_ms"`
	// Savepoint is its name, if it was asked for.
	Savepoint string `json:"savepoint,omitempty"`
	// Final: taken when the job was stopped and drained.
	Final bool `json:"final"`
	// Without are the agents that were away: their last parts stand for them.
	Without []string `json:"without,omitempty"`
	// Reason tells why it was aborted.
	Reason string `json:"reason,omitempty"`
}
