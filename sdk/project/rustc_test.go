//go:build rustc

package project

import (
	"path/filepath"
	"testing"
)

func TestRust(t *testing.T) {
	checkLanguage(t, Rust, sources{
		conformance: []string{"sdk/rust/conformance/lib.rs", "sdk/rust/conformance/no_std.rs"},
		included:    "sdk/rust/conformance/operator.rs", ewma: "examples/ewma/rust/lib.rs",
	}, Options{})
}

func init() {
	migrants = append(migrants, benchGuest{"rust", rustConformance})
	benchGuests = append(benchGuests, benchGuest{"rust", func(tb testing.TB) []byte { return buildOperator(tb, Rust, "sdk/rust/bench/lib.rs", Options{}) }})
	windowGuests = append(windowGuests, benchGuest{"rust", func(tb testing.TB) []byte {
		return buildOperator(tb, Rust, "examples/operators/window/rust/lib.rs", Options{})
	}})
}

// rustConformance builds the conformance operator, which is of two files.
func rustConformance(tb testing.TB) []byte {
	tb.Helper()
	dir := newProject(tb, Rust)
	put(tb, "sdk/rust/conformance/lib.rs", filepath.Join(dir, "src", "lib.rs"))
	put(tb, "sdk/rust/conformance/operator.rs", filepath.Join(dir, "src", "operator.rs"))
	return build(tb, dir, Options{})
}
