// Package wasmops runs the operators of a job as WebAssembly modules.
//
// Invariants:
//   - A module has no state that a snapshot lacks: linear memory, mutable globals, keyed state, its
//     clock and the position of its random numbers are captured; modules that could keep state
//     anywhere else (tables, dropped segments, reference globals) are refused by [Prepare].
//   - Snapshots are taken at rest, between calls. A restored instance goes on byte for byte like the
//     one it was taken from; no guest code runs while it is restored.
//   - A call either succeeds and all its output is well-formed, or nothing of it was handed on and the
//     instance is lost.
//   - A call ends: what a guest executes is counted, as is the depth of its calls, and it is stopped at
//     an instruction that is the same in every replay (meter.go). Its memory, output, state, log lines
//     and counters are bounded (limits.go).
//   - Results are the same bits on every machine: NaNs are canonical.
//   - A guest reaches nothing but its memory and the imports in abi.go: no file, network, environment,
//     real clock or real randomness.
//
// An [Instance] belongs to one goroutine. A [Host] may be used from many.
package wasmops
