package api

import "time"

// Operator is one immutable version of an operator in the registry.
type Operator struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Digest  string    `json:"digest"` // "sha256:…"
	Bytes   int64     `json:"bytes"`
	Pushed  time.Time `json:"pushed"`
	Unused  bool      `json:"unused"` // no job needs it
	// UsedBy are the jobs that need its module: for what they run, or to go back to.
	UsedBy []string `json:"used_by,omitempty"`
	// Imports are the host functions that the module asks for.
	Imports []string `json:"imports"`
	// Globals is how many mutable globals the host captures; MemoryBytes is its initial memory.
	Globals     int   `json:"globals"`
	MemoryBytes int64 `json:"memory_bytes"`
	// Signatures is how many there are; agents with trusted keys look for one of theirs.
	Signatures int `json:"signatures"`
}

// Module is a module that was pushed without a name, under its digest.
type Module struct {
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`
}
