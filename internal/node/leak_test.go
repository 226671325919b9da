package node_test

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// leak makes TestLeakingOperator take 10 million records to 32 MiB, again and again.
var leak = flag.Bool("leak", false, "TestLeakingOperator: 10 million records through a guest that may have 32 MiB")

// leakBase is the memory of a leaking guest before its first record.
const leakBase = 4 << 16

// leaking passes its records on and never frees the bytes that each of them takes. What it has taken is at 1024; pages
// are filled, so that snapshots hold them.
func leaking(each int32) []byte {
	const reason = "out of memory: each record keeps some of it"
	g := wasmtest.NewGuest().Import("weir", "fail", "ii:").Data(32, reason)
	taken := wasmtest.Code(wasmtest.I32(1024), []byte{0x28, 2, 0})
	g.Body("weir_process", wasmtest.Code(
		wasmtest.I32(1024), taken, []byte{0x20, 3}, wasmtest.I32(each), []byte{0x6c, 0x6a, 0x36, 2, 0}, // taken += count * each
		[]byte{0x02, 0x40, 0x03, 0x40},
		taken, wasmtest.I32(leakBase), []byte{0x6a, 0x3f, 0}, wasmtest.I32(16), []byte{0x74, 0x4d, 0x0d, 1}, // until it fits
		wasmtest.I32(1), []byte{0x40, 0, 0x22, 4}, wasmtest.I32(-1), []byte{0x46, 0x04, 0x40},
		wasmtest.Call(2, 32, int32(len(reason))), wasmtest.Trap, []byte{0x0b},
		[]byte{0x20, 4}, wasmtest.I32(16), []byte{0x74}, wasmtest.I32(7), wasmtest.I32(1<<16), []byte{0xfc, 0x0b, 0, 0x0c, 0, 0x0b, 0x0b},
		wasmtest.Pass, wasmtest.OK)...)
	return g.Locals("weir_process", 1, 1, 0x7f).Wasm()
}

// TestLeakingOperator: an operator that leaks reaches its limit. From then on each record becomes a dead letter that says why,
// until the operator begins with fresh variables; the dead letters are then replayed. Each record comes out
// once, and the agent's memory stays within bounds, however often that happens.
func TestLeakingOperator(t *testing.T) {
	limit, each, passes, over := 5<<16, 64, 4, 10
	if *leak {
		limit, each, passes, over = 32<<20, 16, 5, 10
	}
	fits := (limit - leakBase) / each // records
	a := start(t, t.TempDir())
	if _, err := a.client.PushOperator(t.Context(), "leak", "1", bytes.NewReader(leaking(int32(each)))); err != nil {
		t.Fatal(err)
	}
	f := newFiles(t)
	yaml := func(pass int) string {
		return fmt.Sprintf(`name: lines
checkpoint: {interval: 200ms}
sources:
  text: {file: {path: %q, follow: true}, key: {const: k}}
operators:
  leak: {wasm: leak@1, from: text, config: {pass: "%d"}, limits: {memory: %d}}
sinks:
  out: {file: {path: %q, line: "{value}"}, from: leak}
`, f.in, pass, limit, f.out)
	}
	a.mustApply(yaml(0))
	var peak, written, out int
	write := func(n int) {
		var lines []byte
		for range n {
			lines = append(strconv.AppendInt(lines, int64(written), 10), '\n')
			written++
		}
		f.write(t, string(lines))
	}
	lines := lineCounter{file: f.out}
	// through waits until so many records have come out and the others are dead letters.
	through := func(outs, letters int) {
		t.Helper()
		a.until(fmt.Sprintf("%d records are out and %d are dead letters", outs, letters), func() (bool, string) {
			peak = max(peak, resident(t))
			j, err := a.client.Job(t.Context(), "lines")
			n := lines.count(t)
			return n >= outs && j.DeadLetters >= uint64(letters), fmt.Sprint(n, j.DeadLetters, err)
		})
		j, err := a.client.Job(t.Context(), "lines")
		if n := lines.count(t); n != outs || j.DeadLetters != uint64(letters) {
			t.Fatalf("%d records are out, %d dead letters, %v; want %d and %d", n, j.DeadLetters, err, outs, letters)
		}
	}
	through(0, 0)
	before := resident(t)
	for pass := range passes {
		if pass > 0 {
			if _, err := a.upgrade(yaml(pass), &api.Trial{Off: true}, "leak"); err != nil {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		for left := fits; left > 0; left -= min(left, 500_000) {
			n := min(left, 500_000)
			write(n)
			out += n
			through(out, pass*over)
		}
		full := time.Now()
		write(over)
		through(out, (pass+1)*over)
		t.Logf("pass %d: %d records in %s, then %d dead letters in %s; %d MiB resident", pass+1, fits, full.Sub(begun).Round(time.Millisecond),
			over, time.Since(full).Round(time.Millisecond), resident(t)>>20)
	}
	letters, err := a.letters("lines", 1000)
	if err != nil || len(letters) != passes*over {
		t.Fatalf("%d dead letters, %v", len(letters), err)
	}
	for _, l := range letters {
		if !strings.Contains(l.Reason, "out of memory") || l.Operator != "leak" {
			t.Fatalf("a dead letter of %q says %q", l.Operator, l.Reason)
		}
	}
	if _, err := a.upgrade(yaml(passes), &api.Trial{Off: true}, "leak"); err != nil {
		t.Fatal(err)
	}
	for left := 1; left > 0; {
		done, err := a.client.ReplayDeadLetters(t.Context(), "lines", api.Replay{}, patience)
		if err != nil || len(done.Skipped) > 0 {
			t.Fatalf("replayed: %+v, %v", done, err)
		}
		left = done.Left
	}
	through(written, passes*over)
	f.eachOnce(t, written)
	t.Logf("%d records, each once; %d MiB resident before, %d at most", written, before>>20, peak>>20)
	// The guest's memory, what it is compared with, a second instance, and what is being saved of it.
	if most := before + 8*limit + 128<<20; peak > most {
		t.Errorf("%d bytes are resident at most, %d before the first record", peak, before)
	}
}

// lineCounter counts the lines of a file that grows, and keeps nothing of them.
type lineCounter struct {
	file  string
	at    int64
	lines int
}

func (c *lineCounter) count(t testing.TB) int {
	t.Helper()
	file, err := os.Open(c.file)
	if os.IsNotExist(err) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := file.ReadAt(buf, c.at)
		c.at += int64(n)
		c.lines += bytes.Count(buf[:n], []byte("\n"))
		if err == io.EOF {
			return c.lines
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// eachOnce wants the numbers below n in the output, each in one line.
func (f files) eachOnce(t testing.TB, n int) {
	t.Helper()
	file, err := os.Open(f.out)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	seen := make([]bool, n)
	for in := bufio.NewScanner(file); in.Scan(); {
		i, err := strconv.Atoi(in.Text())
		if err != nil || i < 0 || i >= n || seen[i] {
			t.Fatalf("the output has %q, or has it twice: %v", in.Text(), err)
		}
		seen[i] = true
	}
	for i, there := range seen {
		if !there {
			t.Fatalf("%d has not come out", i)
		}
	}
}

// resident is the memory of this process, in bytes.
func resident(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, err := strconv.Atoi(strings.TrimSpace(rest[:strings.Index(rest, "kB")]))
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
