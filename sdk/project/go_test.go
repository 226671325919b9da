//go:build !clang && !rustc && !asc && !tinygo

package project

import "testing"

// TestGo is not run again with the other languages. The kit is run by abitest, and ewma with the examples.
func TestGo(t *testing.T) { checkLanguage(t, Go, sources{}, Options{}) }
