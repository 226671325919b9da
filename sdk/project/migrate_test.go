package project

import (
	"slices"
	"testing"

	"github.com/weir-stream/weir/wasmops"
	"github.com/weir-stream/weir/wasmops/abitest"
)

// migrants are the conformance operators of the languages that are built.
var migrants = []benchGuest{{"go", func(tb testing.TB) []byte { return buildOperator(tb, Go, "sdk/go/conformance/main.go", Options{}) }}}

// TestVariablesMigrate upgrades an operator to another module in the same language and in each other one. With another
// language, Go to Go is not tested again.
func TestVariablesMigrate(t *testing.T) {
	cache := t.TempDir()
	modules := map[string][]byte{}
	for _, m := range migrants {
		modules[m.name] = m.build(t)
	}
	for _, old := range migrants {
		for _, next := range migrants {
			if old.name == "go" && next.name == "go" && len(migrants) > 1 {
				continue
			}
			t.Run(old.name+" to "+next.name, func(t *testing.T) {
				another := slices.Concat(modules[next.name], []byte("\x00\x05\x04next")) // a custom section makes it another module
				if wasmops.Digest(another) == wasmops.Digest(modules[old.name]) {
					t.Fatal("the next version is the old one")
				}
				if err := abitest.Migrate(t.Context(), modules[old.name], another, abitest.Options{CacheDir: cache}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
