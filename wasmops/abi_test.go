package wasmops

import (
	"os"
	"strings"
	"testing"
)

// TestDocumentNamesTheABI: docs/abi.md has a row for every export and every import of abi.go.
func TestDocumentNamesTheABI(t *testing.T) {
	doc, err := os.ReadFile("../docs/abi.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{exportMemory}
	for _, e := range guestExports {
		names = append(names, e.name)
	}
	for _, f := range weirFunctions() {
		names = append(names, f.name)
	}
	for _, name := range names {
		if !strings.Contains(string(doc), "\n| `"+name+"` | ") {
			t.Errorf("docs/abi.md has no row for %s", name)
		}
	}
}
