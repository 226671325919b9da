// Package mutant shows that the simulator has teeth: each test leaves one rule out of the code itself, and
// wants a seed of the simulator that finds it and that passes with the rule.
//
//	go test -tags mutants ./dataflow/sim/mutant              all of them, some minutes
//	go test -tags mutants ./dataflow/sim/mutant -run /NAME -v
//	                                                         one, with what was found and how to see it
//
// Rules that can be left out without touching the code are in rule_test.go of the simulator; they run with
// every test. A rule is taken out here by replacing a piece of a file in an overlay of the build: the files
// stay as they are. If the code has changed and the piece is not there any more, the test says so.
package mutant
