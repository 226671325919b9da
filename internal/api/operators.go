package api

import (
	"regexp"
	"time"
)

// NamePattern is what names of agents, labels and operators may be: they become parts of paths, subjects and topics.
var NamePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`)

var versionPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.+-]{0,63}$`)

// CheckOperatorName refuses what cannot be the name and version of an operator.
func CheckOperatorName(name, version string) error {
	if !NamePattern.MatchString(name) || !versionPattern.MatchString(version) {
		return Invalid("names have up to 64 letters, digits, - and _; versions also . and +", "operator %s@%s cannot be named so", name, version)
	}
	return nil
}

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

// Upload is how much an agent has of a module that is uploaded in pieces:
//
//	GET   /api/v1/uploads/DIGEST                        how much there is
//	PATCH /api/v1/uploads/DIGEST?size=BYTES&offset=BYTES  more of it, as the body
//	PUT   /api/v1/operators/NAME/VERSION?digest=DIGEST  register it, once it is complete
//	POST  /api/v1/modules?digest=DIGEST                 or keep it without a name
//
// Bytes that are there already are skipped; ones that would leave a gap are refused (416). What came of a request that
// breaks off stays, across a restart of the agent, for up to a day; it may give way to others. Several may send one module at the same time.
type Upload struct {
	Digest   string `json:"digest"` // "sha256:…"
	Bytes    int64  `json:"bytes"`  // from the beginning on
	Complete bool   `json:"complete"`
}

// Module is a module that was pushed without a name, under its digest.
type Module struct {
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`
}
