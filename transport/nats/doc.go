// Package nats is Weir's transport over NATS: the embedded server, the connection, the control plane
// (key-value buckets, object stores, the coordinator's lease) and the streams between tasks.
//
// Invariants:
//   - Nothing here trusts a stream position, a consumer's acknowledgement floor or a publish
//     acknowledgement for correctness. A stream is read from its start; loss shows as a [dataflow.Delivery]
//     with Reset, or as a jump in the numbers that the frames carry.
//   - No wait is silent: every pull has heartbeats that carry the consumer's last number, every
//     request has a time limit, and whatever ends a watch or a reading is returned or delivered.
//   - Nothing is published with a message id: the server's window for duplicates would swallow repeats.
//   - Nothing is buffered while the server is unreachable: a publish then fails at once.
//
// All subjects, streams and buckets begin with one prefix ([DefaultPrefix]):
//
//	<prefix>.s.<job>.<generation>.<task>.<channel>  frames, taken by the task's stream
//	<prefix>.g.<job>.<generation>.<channel>         grants, receiver to sender
//	<prefix>.a.<job>.<generation>.<task>            a sender asks a task for grants
//	<prefix>.call.<name>, <prefix>.say.<name>       calls and notices between agents
//	<prefix>-agents, -jobs, -checkpoints, -operators, -meta   key-value buckets
//	<prefix>-modules, -snapshots                    object stores
//
// Names of jobs, tasks and agents are encoded (see [Key]), so that every name is legal.
package nats
