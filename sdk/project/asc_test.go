//go:build asc

package project

import (
	"os"
	"path/filepath"
	"testing"
)

// TestAssemblyScript needs the compiler: npm ci in sdk/assemblyscript.
func TestAssemblyScript(t *testing.T) {
	setPath(t)
	checkLanguage(t, AssemblyScript, sources{
		conformance: []string{"sdk/assemblyscript/conformance/index.ts"}, ewma: "examples/ewma/assemblyscript/index.ts",
	}, Options{})
}

func setPath(tb testing.TB) {
	tb.Helper()
	bin, err := filepath.Abs("../assemblyscript/node_modules/.bin")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func init() {
	migrants = append(migrants, benchGuest{"assemblyscript", func(tb testing.TB) []byte {
		setPath(tb)
		return buildOperator(tb, AssemblyScript, "sdk/assemblyscript/conformance/index.ts", Options{})
	}})
	benchGuests = append(benchGuests, benchGuest{"assemblyscript", func(tb testing.TB) []byte {
		setPath(tb)
		return buildOperator(tb, AssemblyScript, "sdk/assemblyscript/bench/index.ts", Options{})
	}})
}
