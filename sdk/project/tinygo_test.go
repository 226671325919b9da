//go:build tinygo

package project

import "testing"

func TestTinyGo(t *testing.T) {
	checkLanguage(t, Go, sources{conformance: []string{"sdk/go/conformance/main.go"}, ewma: "examples/ewma/main.go"}, Options{TinyGo: true})
}
