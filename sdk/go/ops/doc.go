// Package ops is a library of building blocks for operators: windows, aggregates, joins and filters. The crate
// in sdk/rust has the same in its module ops; both give the same bytes for the same records.
//
// A block is a struct that an operator holds and calls from its Process and OnTimer functions. Each keeps
// its state where its Store says:
//
//   - [Keyed]: in the host, by key. It may exceed memory, follows its keys when a job is rescaled, and is kept when
//     a new version of the operator takes over. Each access is a call of the host. This is what the ready-made
//     modules in examples/operators do.
//   - [NewMemory]: in the program's variables. Faster, and captured with the rest of memory.
//
// [IntervalJoin] always uses keyed state. [Aggregate], [Sketch], [Expr] and [Reading] hold no state of their own: what they
// accumulate is in the bytes that they are given.
//
// All blocks depend on records, configuration and watermarks alone. Results come out ordered by time, then
// by key, and a block never iterates over a map.
//
// Event times are milliseconds since 1970, durations milliseconds.
package ops
