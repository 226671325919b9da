package mutant

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../.."

// mutant is a rule left out of the code, and where the simulator finds that.
type mutant struct {
	name     string
	file     string // of the module
	old, new string // the piece that is replaced; it is there once
	test     string // of the simulator; empty: TestSeeds
	topo     string
	args     string // further flags of the simulator
}

// text is the file's, which has the piece that is replaced.
func (m mutant) text() (string, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%s has the piece that is to be replaced %d times: the table must follow the code", m.file, n)
	}
	return string(text), nil
}

// TestPieces: the table fits the code, so that the long tests, which run by themselves, find something to replace.
func TestPieces(t *testing.T) {
	for _, m := range mutants {
		if _, err := m.text(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
