//go:build rustc

package project

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weir-stream/weir/wasmops/optest"
)

// TestReadyMadeInRust runs the tables of the ready-made operators, which those in Go have been through, for those in Rust: once, and
// one case of three restored after every batch, too.
func TestReadyMadeInRust(t *testing.T) {
	sources, err := filepath.Glob("../../examples/operators/*/rust/lib.rs")
	if err != nil || len(sources) < 8 {
		t.Fatalf("%d operators, %v", len(sources), err)
	}
	for _, source := range sources {
		dir := filepath.Dir(filepath.Dir(source))
		t.Run(filepath.Base(dir), func(t *testing.T) {
			table, err := os.Open(filepath.Join(dir, "testdata", "cases.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			defer table.Close()
			cases, err := optest.ReadCases(table)
			if err != nil {
				t.Fatal(err)
			}
			wasm := buildOperator(t, Rust, "examples/operators/"+filepath.Base(dir)+"/rust/lib.rs", Options{})
			var some []optest.Case
			for i := 1; i < len(cases); i += 3 {
				some = append(some, cases[i])
			}
			if err := optest.RunCases(t.Context(), wasm, optest.Options{}, some); err != nil {
				t.Error(err)
			}
			if err := optest.RunCases(t.Context(), wasm, optest.Options{Once: true}, cases); err != nil {
				t.Error(err)
			}
		})
	}
}
