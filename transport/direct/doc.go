// Package direct hands frames from task to task within one process. A [Streams] is a [dataflow.Streams] whose
// streams are lists in memory: what a stream in memory on a server is, without the server.
//
// Invariants:
//   - A frame is in the stream, whole, before done says so, and stays until it is purged or the stream is lost, or, where
//     there is no room for another one, until its receiver has consumed it or has asked for what comes before it again.
//   - The stream has a copy of its own, which nobody changes: the sender may reuse its buffer at once, and the receiver
//     reads the same bytes as often as it rereads. That is the one copy of a hop. Its memory goes to the garbage
//     collector, not to a pool: a task may hold records of a frame that has been purged.
//   - A stream is there while one of its ends is open, so it outlives a task that is started anew as long as a
//     neighbour runs. If both ends are closed its contents are lost, as all are with the process: the senders
//     make them again, as they do when a server has lost a stream.
//   - Places in a stream are numbered from 1. An end that was closed keeps to the stream that it was opened on: a
//     late Purge removes nothing of another one.
package direct
