// Package sdk holds the sources of the SDKs, so that the agent can write and build operators on machines that
// have a language's compiler and no network.
package sdk

import "embed"

// Go is the SDK for Go, below the folder "go".
//
//go:embed go/*.go go/migrate/*.go go/ops/*.go
var Go embed.FS

// Others are the SDKs for C, Rust and AssemblyScript. Each is one file, in Rust with a library in a
// second one; for AssemblyScript there is also which compiler it is built with.
//
//go:embed c/weir.h rust/src/weir.rs rust/src/ops.rs
//go:embed assemblyscript/assembly/weir.ts assemblyscript/package.json assemblyscript/package-lock.json
var Others embed.FS
