// Package archtest has no code, only tests: of which package may import which, and of what the
// source of the deterministic parts must not contain, and that of the agent. Each failure names its reason.
package archtest
