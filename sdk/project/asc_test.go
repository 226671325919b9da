//go:build asc

package project

import (
	"os"
	"path/filepath"
	"testing"
)

// TestAssemblyScript needs the compiler: npm ci in sdk/assemblyscript.
func TestAssemblyScript(t *testing.T) {
	bin, err := filepath.Abs("../assemblyscript/node_modules/.bin")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	checkLanguage(t, AssemblyScript, sources{
		conformance: []string{"sdk/assemblyscript/conformance/index.ts"}, ewma: "examples/ewma/assemblyscript/index.ts",
	}, Options{})
}
