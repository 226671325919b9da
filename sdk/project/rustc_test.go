//go:build rustc

package project

import "testing"

func TestRust(t *testing.T) {
	checkLanguage(t, Rust, sources{
		conformance: []string{"sdk/rust/conformance/lib.rs", "sdk/rust/conformance/no_std.rs"},
		included:    "sdk/rust/conformance/operator.rs", ewma: "examples/ewma/rust/lib.rs",
	}, Options{})
}

func init() {
	benchGuests = append(benchGuests, benchGuest{"rust", func(tb testing.TB) []byte { return buildOperator(tb, Rust, "sdk/rust/bench/lib.rs", Options{}) }})
	windowGuests = append(windowGuests, benchGuest{"rust", func(tb testing.TB) []byte {
		return buildOperator(tb, Rust, "examples/operators/window/rust/lib.rs", Options{})
	}})
}
