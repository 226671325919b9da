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
//   - Marks need no credit. A mark takes effect when its receiver comes to it, behind all that was sent before, and
//     what a receiver has taken is no longer under way: at the latest then there is credit. Behind records that wait
//     for credit it waits with them. What is gained is one way of a grant per channel when exactly the mark is next
//     (outlet_test.go).
//   - The part furthest in the log is restored, not the one written last. The two differ only if an epoch was not
//     frozen for want of room, a part between checkpoints was written after it, and a rewind then comes past that
//     epoch's barrier and writes its part. Either does for a restore; the wrong one makes the replay longer. The
//     oracle would see it (furthest in timely_test.go), but no run has come there.
package mutant
