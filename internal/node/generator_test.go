package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const generatorJob = `name: load
checkpoint: {interval: 100ms, min_pause: 0s}
sources: {made: {generator: {records: 30000, keys: 5, seed: 3}}}
operators: {count: {native: count, from: made, key_by: key, parallelism: 2}}
sinks: {out: {file: {path: "out-{task}.txt", line: "{key} {value.count}"}, from: count}}
`

// TestGenerator: what a generator makes counts once, over a restart of the agent in its midst.
func TestGenerator(t *testing.T) {
	dir := t.TempDir()
	counts := func() map[string]int { // the highest of each key
		most := map[string]int{}
		paths, err := filepath.Glob(filepath.Join(dir, "files", "out-*.txt"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			whole := data[:strings.LastIndexByte(string(data), '\n')+1]
			for line := range strings.Lines(string(whole)) {
				key, count, _ := strings.Cut(strings.TrimSpace(line), " ")
				n, err := strconv.Atoi(count)
				if err != nil {
					t.Fatalf("%s has the line %q", path, line)
				}
				most[key] = max(most[key], n)
			}
		}
		return most
	}
	total := func() (n int) {
		for _, c := range counts() {
			n += c
		}
		return n
	}
	a := start(t, dir)
	a.mustApply(generatorJob)
	a.until("some have come out", func() (bool, string) { return total() > 0, "none" })
	a.stop()
	a = start(t, dir)
	a.state("load", "finished")
	a.until("all have come out", func() (bool, string) { return total() >= 30000, fmt.Sprint(counts()) })
	a.stop()
	if got := counts(); total() != 30000 || len(got) != 5 {
		t.Errorf("counts of keys are %v, together %d", got, total())
	}
}
