// Package mutant shows that the simulator has teeth: each test leaves one rule out of the code itself, and
// wants a seed of the simulator that finds it and that passes with the rule.
//
//	go test -tags mutants -timeout 90m ./dataflow/sim/mutant    all of them, half an hour
//	go test -tags mutants ./dataflow/sim/mutant -run /NAME -v   one, with what was found
//
// Rules that can be left out without touching the code are in rule_test.go of the simulator; they run with
// every test. A rule is taken out here by replacing a piece of a file in an overlay of the build: the files
// stay as they are. If the code has changed and a piece is not there any more, a test that is always run says so.
//
// What the simulator does not find, in 200 seeds each, and why it is there all the same:
//   - Tasks are told of an abort: the next epoch's barrier has the same effect. Where none comes, a channel
//     would stay blocked (scripts aligner-abort-*).
//   - Marks need no credit: a window always has room for four frames (outlet_test.go).
//   - Parts of agents whose barrier nobody waited for are not used: the check of numbers aborts what would be
//     wrong; so the epoch completes instead (script coordinator-unaligned).
//   - An agent is attached when its backlog is drained: else its receivers would wait for a barrier behind it.
//   - The part furthest in the log is restored, not the one written last: parts are saved in the order of the log.
//   - A coordinator takes an epoch over by a write of its own before it drives it: compare-and-set alone makes a
//     decision final; with it the term before cannot decide any more (script coordinator-stale-term).
//   - The first acknowledgement of a task holds: KV keeps the first as well.
//   - A frame that was refused is sent again with all behind it: the receiver would ask for them.
//   - A task that replays what counts no more is restored anew: its log says so, too, when it is cut.
//   - Gaps of a back edge are refilled from a loop log, and a full loop gives an epoch up (loop_test.go of
//     dataflow): the simulator's loops are too small for either.
package mutant
