// Package graph makes the job of the evaluation of Carbone et al. 2015, section 7: six distinct operators
// behind the sources, three full shuffles, keyed aggregates and source offsets as state.
//
//	generator → map ⇒ aggregate → map ⇒ aggregate → map ⇒ aggregate
//
// A double arrow is a shuffle: each task sends to each. A map is chained to what feeds it and gives records
// other keys, so that none may stay where it is. The generator's offset is state, as are the tables of the
// aggregates.
package graph

import (
	"context"
	"embed"
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Job is how the graph is to run.
type Job struct {
	Name      string
	Mode      string        // of checkpoints, as in the job file
	Interval  time.Duration // of checkpoints
	Replicate bool
	// Agents carry the label role=worker. Each has Sources generators and, of every aggregate, Parallel tasks.
	Agents, Sources, Parallel int
	// Records are made in all, at Rate records a second in all; 0: without end, as fast as they are taken.
	Records, Rate int
	Keys          int // of each generator
	Size          int // bytes of a value
	// Memory is what the tasks of the second aggregate have as state besides, MiB in all; of it Hot MiB change
	// again and again.
	Memory, Hot int
	// Broker gets every record at the end, with channel and number, at QoS 1; none if empty. Records then
	// carry the time at which they were made.
	Broker string
}

// Module is the file of the operators' module, as the job names it.
const Module = "./operator.wasm"

// Last is the aggregate at the end: the records that its tasks have taken are those that are through.
const Last = "third"

// YAML is the job file.
func (j Job) YAML() string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\ncheckpoint: {interval: %s, min_pause: 0s, mode: %s, replicate: %t}\n", j.Name, j.Interval, j.Mode, j.Replicate)
	b.WriteString("sources:\n")
	var maps []string
	for i := range j.Sources {
		n := j.Agents * j.Sources
		fmt.Fprintf(&b, "  s%d: {generator: {records: %d, rate: %d, keys: %d, size: %d, seed: %d, stamp: %t}, on: {role: worker}}\n",
			i, (j.Records+n-1)/n, (j.Rate+n-1)/n, j.Keys, j.Size, i, j.Broker != "")
		maps = append(maps, fmt.Sprintf("spread%d", i))
	}
	b.WriteString("operators:\n")
	for i, name := range maps {
		fmt.Fprintf(&b, "  %s: {wasm: %s, from: s%d, config: {step: map, salt: \"1\"}}\n", name, Module, i)
	}
	from := "[" + strings.Join(maps, ", ") + "]"
	for i, name := range []string{"first", "second", Last} {
		emit := 1
		if name == Last && j.Broker == "" {
			emit = 0
		}
		fmt.Fprintf(&b, "  %s: {wasm: %s, from: %s, key_by: key, parallelism: %d, on: {role: worker}, limits: {memory: 1GiB, time: 1m},\n", name, Module, from, j.Agents*j.Parallel)
		memory, hot := 0, 0
		if i == 1 {
			memory, hot = j.Memory<<10/(j.Agents*j.Parallel), j.Hot<<10/(j.Agents*j.Parallel)
		}
		fmt.Fprintf(&b, "    config: {step: aggregate, slots: \"%d\", memory: \"%d\", hot: \"%d\", emit: \"%d\"}}\n", j.slots(), memory, hot, emit)
		if name != Last {
			fmt.Fprintf(&b, "  turn%d: {wasm: %s, from: %s, config: {step: map, salt: \"%d\"}}\n", i, Module, name, i+2)
		}
		from = fmt.Sprintf("turn%d", i)
	}
	if j.Broker != "" {
		fmt.Fprintf(&b, "sinks:\n  out: {mqtt: {broker: %q, topic: out, payload: \"{channel} {number} {value}\", qos: 1, in_flight: 1024}, from: %s}\n", j.Broker, Last)
	}
	return b.String()
}

// slots is the size of an aggregate's table: twice the keys that a task may get of all generators, which are
// the same keys, with room for keys that are spread unevenly.
func (j Job) slots() int {
	each := 2 * j.Keys / (j.Agents * j.Parallel)
	return max(1<<10, 1<<bits.Len(uint(each+each/4)))
}

// Total is how many records are made: Records, rounded up so that each generator makes as many.
func (j Job) Total() int {
	n := j.Agents * j.Sources
	return (j.Records + n - 1) / n * n
}

//go:embed operator
var files embed.FS

// Build makes the operators' module in dir, by clang if it is there, else by Go, and says in which language
// it was written. root is the checkout, which has the SDKs.
func Build(ctx context.Context, root, dir string) (path, language string, err error) {
	path = filepath.Join(dir, "operator.wasm")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-buildmode=c-shared", "-o", path, "./internal/eval/graph/operator")
	cmd.Dir, language = root, "Go"
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if clang, err := exec.LookPath("clang"); err == nil {
		source, err := files.ReadFile("operator/operator.c")
		if err != nil {
			return "", "", err
		}
		in := filepath.Join(dir, "operator.c")
		if err := os.WriteFile(in, source, 0o600); err != nil {
			return "", "", err
		}
		language = "C"
		cmd = exec.CommandContext(ctx, clang, "--target=wasm32", "-O3", "-mbulk-memory", "-nostdlib", "-fvisibility=hidden",
			"-I"+filepath.Join(root, "sdk", "c"), "-Wl,--no-entry", "-Wl,--stack-first", "-Wl,-S", "-o", path, in)
	}
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("build the operators in %s: %w\n%s", language, err, said)
	}
	return path, language, nil
}
