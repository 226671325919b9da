// Package sdk holds the sources of the Go SDK, so that the agent can build operators on machines that have the
// go tool and no network.
package sdk

import "embed"

// Go is the SDK for Go, below the folder "go".
//
//go:embed go/*.go
var Go embed.FS
