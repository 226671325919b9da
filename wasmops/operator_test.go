package wasmops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// cacheDir keeps compiled modules for the life of the test process.
var cacheDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "wasmops")
	if err != nil {
		panic(err)
	}
	cacheDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// library is a set of modules by digest.
type library map[string][]byte

func (l library) Open(digest string) ([]byte, error) {
	if wasm, ok := l[digest]; ok {
		return wasm, nil
	}
	return nil, os.ErrNotExist
}

func shelf(modules ...[]byte) library {
	l := library{}
	for _, wasm := range modules {
		l[Digest(wasm)] = wasm
	}
	return l
}

func newHost(t testing.TB, opt Options) *Host {
	t.Helper()
	if opt.CacheDir == "" && !opt.Interpreter {
		opt.CacheDir = cacheDir
	}
	h, err := NewHost(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h
}

func newInstance(t testing.TB, h *Host, spec dataflow.OperatorSpec, state dataflow.StateReader) *Instance {
	t.Helper()
	op, err := h.New(context.Background(), spec, state)
	if err != nil {
		t.Fatal(err)
	}
	return op.(*Instance)
}

func closeInstance(t testing.TB, in *Instance) {
	t.Helper()
	if err := in.Close(); err != nil {
		t.Error(err)
	}
}

func torture(t testing.TB, mode string) dataflow.OperatorSpec {
	t.Helper()
	return dataflow.OperatorSpec{
		Name: "torture", Task: "job/torture@g1", Digest: Digest(tortureModule(t)),
		Config: map[string]string{"mode": mode}, Outputs: []string{"out"}, Inputs: []string{"in"},
	}
}

func tortureModule(t testing.TB) []byte { return wasmtest.Bytes(t, "testdata/torture") }

// batch makes a batch of records with the given values.
func batch(stamp int64, values ...string) dataflow.Batch {
	b := dataflow.Batch{Stamp: stamp, Count: len(values)}
	for i, v := range values {
		b.Payload = frame.AppendRecord(b.Payload, frame.Record{Time: stamp + int64(i), Key: []byte("k"), Value: []byte(v)})
	}
	return b
}

// process runs a batch and returns what came out as lines.
func process(in *Instance, b dataflow.Batch) ([]string, error) {
	var lines []string
	err := in.Process(b, func(output int, payload []byte, count int) error {
		for rest := payload; len(rest) > 0; count-- {
			var r frame.Record
			var err error
			if r, rest, err = frame.Next(rest); err != nil {
				return err
			}
			lines = append(lines, fmt.Sprintf("%s %s %d %q", in.spec.Outputs[output], r.Key, r.Time, r.Value))
		}
		if count != 0 {
			return fmt.Errorf("%d records too few", count)
		}
		return nil
	})
	return lines, err
}

// memoryStore is a snapshot store of one operator: the newest value of every key.
type memoryStore struct {
	values map[string]dataflow.Change
}

func storeKey(c dataflow.Change) string { return string([]byte{byte(c.Space)}) + string(c.Key) }

func (m *memoryStore) save(changes []dataflow.Change) {
	if m.values == nil {
		m.values = map[string]dataflow.Change{}
	}
	for _, c := range changes {
		if m.values[storeKey(c)] = c; c.Value == nil {
			delete(m.values, storeKey(c))
		}
	}
}

func (m *memoryStore) read(visit func(dataflow.Change) error) error {
	var keys []string
	for k := range m.values {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		c := m.values[k]
		lent := dataflow.Change{Space: c.Space, Key: bytes.Clone(c.Key), Value: append([]byte{}, c.Value...)}
		if err := visit(lent); err != nil {
			return err
		}
		for i := range lent.Value {
			lent.Value[i] = 0xdb
		}
	}
	return nil
}

// equalState compares full snapshots and says where they differ.
func equalState(a, b []dataflow.Change) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d and %d keys", len(a), len(b))
	}
	for i := range a {
		if a[i].Space != b[i].Space || !bytes.Equal(a[i].Key, b[i].Key) || !bytes.Equal(a[i].Value, b[i].Value) {
			return fmt.Errorf("space %d key %x and space %d key %x", a[i].Space, a[i].Key, b[i].Space, b[i].Key)
		}
	}
	return nil
}

// script is the input of the tests that compare runs.
func script(n int) []dataflow.Batch {
	batches := make([]dataflow.Batch, n)
	for i := range batches {
		values := make([]string, i%4)
		for j := range values {
			values[j] = strings.Repeat("v", (i*3+j)%11)
		}
		batches[i] = batch(1_700_000_000_000+int64(i*i), values...)
	}
	return batches
}

// TestRestoredGoesOnByteForByte is the heart of the matter: an instance that is replaced, after
// every batch, by one restored from its snapshots puts out the same and ends in the same state.
func TestRestoredGoesOnByteForByte(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	for _, mode := range []string{"count", "grow", "churn", "goroutines", "timer", "clock", "spin", "random", "side", "dirty"} {
		t.Run(mode, func(t *testing.T) {
			spec := torture(t, mode)
			spec.Outputs = []string{"out", "side"}
			spec.Config["bytes"] = "300000"
			compareRuns(t, h, spec, script(24))
		})
	}
}

func compareRuns(t *testing.T, h *Host, spec dataflow.OperatorSpec, batches []dataflow.Batch) {
	t.Helper()
	whole, restored := newInstance(t, h, spec, nil), newInstance(t, h, spec, nil)
	defer func() { closeInstance(t, whole); closeInstance(t, restored) }()
	var store memoryStore
	some := 0
	for i, b := range batches {
		want, err := process(whole, b)
		if err != nil {
			t.Fatal(err)
		}
		have, err := process(restored, b)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(have, want) {
			t.Fatalf("batch %d: restored puts out\n%q\nwhole\n%q", i, have, want)
		}
		some += len(want)
		copied, err := restored.Copy() // beside the snapshots, and changes nothing of them
		if err != nil {
			t.Fatal(err)
		}
		if all, err := whole.Copy(); err != nil || equalState(copied, all) != nil {
			t.Fatalf("batch %d: copies of the restored and the whole differ: %v, %v", i, err, equalState(copied, all))
		}
		changes, err := restored.Freeze(false)
		if err != nil {
			t.Fatal(err)
		}
		store.save(changes)
		closeInstance(t, restored)
		restored = newInstance(t, h, spec, store.read)
		if changes, err := restored.Freeze(false); err != nil || len(changes) != 0 {
			t.Fatalf("batch %d: %d changes right after a restore, %v", i, len(changes), err)
		}
	}
	if some == 0 && spec.Config["mode"] != "dirty" {
		t.Fatal("nothing came out")
	}
	compareStates(t, whole, restored, &store, h)
}

// compareStates compares full snapshots of both instances, and what the store has.
func compareStates(t *testing.T, whole, restored *Instance, store *memoryStore, h *Host) {
	t.Helper()
	copied, err := whole.Copy()
	if err != nil {
		t.Fatal(err)
	}
	want, err := whole.Freeze(true)
	if err != nil {
		t.Fatal(err)
	}
	if err := equalState(copied, want); err != nil {
		t.Errorf("a copy differs from a full snapshot: %v", err)
	}
	have, err := restored.Freeze(true)
	if err != nil {
		t.Fatal(err)
	}
	if err := equalState(have, want); err != nil {
		t.Errorf("state of the restored and the whole differs: %v", err)
	}
	var full memoryStore
	full.save(want)
	if len(full.values) != len(store.values) {
		t.Errorf("changes add up to %d keys, a full snapshot has %d", len(store.values), len(full.values))
	}
	for k, c := range full.values {
		if !bytes.Equal(store.values[k].Value, c.Value) {
			t.Errorf("changes add up to another value of space %d key %x", c.Space, c.Key)
		}
	}
}

func TestFreezeReturnsOnlyChanges(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	spec := torture(t, "dirty")
	spec.Config["bytes"] = "1048576"
	in := newInstance(t, h, spec, nil)
	defer closeInstance(t, in)
	count := func(full bool) int {
		t.Helper()
		changes, err := in.Freeze(full)
		if err != nil {
			t.Fatal(err)
		}
		return len(changes)
	}
	if n := count(false); n < 50 {
		t.Errorf("the first freeze of a fresh instance returned %d changes, not its state", n)
	}
	if n := count(false); n != 0 {
		t.Errorf("%d changes without a call", n)
	}
	if _, err := process(in, batch(1, "x")); err != nil {
		t.Fatal(err)
	}
	if n := count(false); n < 256 || n > 300 {
		t.Errorf("%d changes after touching 256 pages", n)
	}
	if n := count(true); n < 300 {
		t.Errorf("%d changes in a full freeze", n)
	}
	if n := count(false); n != 0 {
		t.Errorf("%d changes after a full freeze", n)
	}
}

func TestFreezeOwnsItsMemory(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	in := newInstance(t, h, torture(t, "keyed"), nil)
	defer closeInstance(t, in)
	if _, err := process(in, batch(1, "+a=1")); err != nil {
		t.Fatal(err)
	}
	changes, err := in.Freeze(true)
	if err != nil {
		t.Fatal(err)
	}
	before := make([]dataflow.Change, len(changes))
	for i, c := range changes {
		before[i] = dataflow.Change{Space: c.Space, Key: bytes.Clone(c.Key), Value: bytes.Clone(c.Value)}
	}
	if _, err := process(in, batch(2, "+a=2 +b=3")); err != nil {
		t.Fatal(err)
	}
	if err := equalState(before, changes); err != nil {
		t.Errorf("frozen state changed with a later call: %v", err)
	}
}

func TestKeyedStateIsFrozenAndRestored(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	spec := torture(t, "keyed")
	long := "x" + strings.Repeat("y", 20000)
	batches := []dataflow.Batch{
		batch(1, "+b=2 +a=1 +c=", "?a ?z"), batch(2, "-b -b +ab="+long, "*a ?ab"), batch(3, "*", "+b=again"), batch(4, "* -a ?a", "*a *c"),
	}
	compareRuns(t, h, spec, batches)

	in := newInstance(t, h, spec, nil)
	defer closeInstance(t, in)
	var all []string
	for _, b := range batches[:2] {
		lines, err := process(in, b)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, lines...)
	}
	want := []string{`get a: "1" true`, `get z: "" false`, "delete b: true", "delete b: false", fmt.Sprintf("scan a: a=1 ab=%d", len(long))}
	for i, w := range want {
		if i >= len(all) || !strings.Contains(strings.ReplaceAll(all[i], `\"`, `"`), w) {
			t.Errorf("line %d: have %.100q, want %q", i, all[min(i, len(all)-1)], w)
		}
	}
	in.Freeze(false)
	if _, err := process(in, batch(3, "-c +d=4")); err != nil {
		t.Fatal(err)
	}
	changes, err := in.Freeze(false)
	if err != nil {
		t.Fatal(err)
	}
	var keyed []string
	for _, c := range changes {
		if c.Space == dataflow.SpaceKeyed {
			keyed = append(keyed, fmt.Sprintf("%s=%s %v", c.Key, c.Value, c.Value == nil))
		}
	}
	if want := []string{"c= true", "d=4 false"}; !slices.Equal(keyed, want) {
		t.Errorf("changes of the keyed state %q, want %q", keyed, want)
	}
}

// TestFreshInstanceInheritsKeyedState: of the state of another module or configuration, what is keyed stays
// and what is in variables does not.
func TestFreshInstanceInheritsKeyedState(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	after := func(mode string, b dataflow.Batch) dataflow.StateReader {
		in := newInstance(t, h, torture(t, mode), nil)
		defer closeInstance(t, in)
		if _, err := process(in, b); err != nil {
			t.Fatal(err)
		}
		return snapshot(t, in)
	}
	fresh := func(mode string, state dataflow.StateReader, b dataflow.Batch) []string {
		spec := torture(t, mode)
		spec.Fresh, spec.Config["also"] = true, "changed"
		in := newInstance(t, h, spec, state)
		defer closeInstance(t, in)
		lines, err := process(in, b)
		if err != nil {
			t.Fatal(err)
		}
		changes, err := in.Freeze(false)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(changes, func(c dataflow.Change) bool { return c.Space == dataflow.SpaceMemory }) {
			t.Error("no memory in its first snapshot")
		}
		return lines
	}
	if got := fresh("keyed", after("keyed", batch(1, "+a=1 +b=2 -b")), batch(2, "?a ?b")); len(got) != 2 || !strings.Contains(got[0], "1") || !strings.Contains(got[1], "false") {
		t.Errorf("keyed state: %q", got)
	}
	one := fresh("count", after("keyed", batch(1, "+a=1")), batch(2, "x"))
	two := fresh("count", after("count", batch(1, "x", "x", "x")), batch(2, "x"))
	if len(one) != 1 || !slices.Equal(one, two) {
		t.Errorf("variables: %q, and after three records of another configuration %q", one, two)
	}
}

// TestClock checks what a guest sees of time.
func TestClock(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	in := newInstance(t, h, torture(t, "clock"), nil)
	defer closeInstance(t, in)
	stamps := []int64{1_700_000_000_000, 1_700_000_000_500, 1_600_000_000_000, 1 << 62}
	want := []int64{1_700_000_000_000, 1_700_000_000_500, 1_700_000_000_500, maxStamp}
	last := int64(0)
	for i, stamp := range stamps {
		var now, nano int64
		lines, err := process(in, batch(stamp, "x"))
		if err != nil {
			t.Fatal(err)
		}
		text := lines[0][strings.Index(lines[0], `"`)+1:]
		if _, err := fmt.Sscan(text, &now, &nano); err != nil {
			t.Fatal(err)
		}
		if now != want[i] {
			t.Errorf("stamp %d: clock shows %d, want %d", stamp, now, want[i])
		}
		if nano <= last || nano < now*1e6 || nano > now*1e6+1e6 {
			t.Errorf("stamp %d: WASI clock shows %d after %d", stamp, nano, last)
		}
		last = nano
	}
}

// TestRandomNumbersDifferByTask checks that the seed is that of job, task and operator.
func TestRandomNumbersDifferByTask(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	run := func(task, name string) string {
		spec := torture(t, "random")
		spec.Task, spec.Name = task, name
		in := newInstance(t, h, spec, nil)
		defer closeInstance(t, in)
		lines, err := process(in, batch(1, "x", "x"))
		if err != nil {
			t.Fatal(err)
		}
		if lines[0][:20] == lines[1][:20] && lines[0][10:] == lines[1][10:] {
			t.Errorf("the same number twice: %q", lines)
		}
		return strings.Join(lines, "\n")
	}
	a, again, task, name := run("t1", "a"), run("t1", "a"), run("t2", "a"), run("t1", "b")
	if a != again {
		t.Errorf("runs of one operator differ:\n%s\n%s", a, again)
	}
	if a == task || a == name {
		t.Errorf("runs of different operators are equal:\n%s\n%s\n%s", a, task, name)
	}
}

func TestGuestHasNoWorld(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	in := newInstance(t, h, torture(t, "world"), nil)
	defer closeInstance(t, in)
	lines, err := process(in, batch(1, "x"))
	if err != nil {
		t.Fatal(err)
	}
	if want := `out k 1 "args 0 env 0 open true list true read 0 EOF write true"`; lines[0] != want {
		t.Errorf("guest sees\n%s, want\n%s", lines[0], want)
	}
}

// TestGuestFailures checks that each way to fail gives a GuestError with a reason to act on, that nothing
// was emitted, and that the instance is lost.
func TestGuestFailures(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t)), KeyedLimit: 8 << 20, MemoryLimit: 32 << 20})
	for mode, reason := range map[string]string{
		"panic":     "panic: reading bad is impossible",
		"nil":       "panic: assignment to entry in nil map",
		"error":     "cannot use bad",
		"exit":      "exited with code 3",
		"memory":    "out of memory",
		"recursion": "out of memory",
		"flood":     "output of more than 8388608 bytes for one batch",
		"large":     "record of 262161 bytes",
		"fill":      "keyed state of more than 8388608 bytes",
		"counters":  "more than 64 counters",
		"deadlock":  "all goroutines are asleep",
		"doze":      "more than 100 years ahead",
	} {
		t.Run(mode, func(t *testing.T) {
			in := newInstance(t, h, torture(t, mode), nil)
			defer closeInstance(t, in)
			lines, err := process(in, batch(1, "bad"))
			var guest *dataflow.GuestError
			if !errors.As(err, &guest) || guest.Operator != "torture" || !strings.Contains(guest.Reason, reason) {
				t.Fatalf("error %v, want one that says %q", err, reason)
			}
			if len(guest.Reason) > maxReason+10 {
				t.Errorf("reason of %d bytes", len(guest.Reason))
			}
			if len(lines) > 0 {
				t.Errorf("a failed batch put out %q", lines)
			}
			if _, err := process(in, batch(1, "x")); err == nil || errors.As(err, &guest) {
				t.Errorf("a lost instance still runs: %v", err)
			}
			if _, err := in.Freeze(true); err == nil {
				t.Error("a lost instance can be frozen")
			}
		})
	}
}

func TestFailuresAtStart(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	for mode, reason := range map[string]string{
		"refuse": "config limit: must be set", "initpanic": "panic: cannot start", "what": `config mode: unknown "what"`,
	} {
		_, err := h.New(context.Background(), torture(t, mode), nil)
		var guest *dataflow.GuestError
		if !errors.As(err, &guest) || !strings.Contains(guest.Reason, reason) {
			t.Errorf("%s: error %v, want one that says %q", mode, err, reason)
		}
	}
	spec := torture(t, "count")
	spec.Outputs = []string{"out", "alrts"}
	if _, err := h.New(context.Background(), spec, nil); err == nil || !strings.Contains(err.Error(), `has no output "alrts" that the job reads; it has: out, side`) {
		t.Errorf("unknown output: %v", err)
	}
	spec.Digest = "sha256:none"
	if _, err := h.New(context.Background(), spec, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("unknown module: %v", err)
	}
}

// TestUnusedOutputIsDropped checks that what nobody reads is not handed over.
func TestUnusedOutputIsDropped(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	spec := torture(t, "side")
	for _, outputs := range [][]string{{"out"}, {"side"}, {"side", "out"}} {
		spec.Outputs = outputs
		in := newInstance(t, h, spec, nil)
		lines, err := process(in, batch(1, "a", "b", "c"))
		closeInstance(t, in)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(lines, "\n")
		for _, output := range []string{"out", "side"} {
			if slices.Contains(outputs, output) != strings.Contains(text, output+" k") {
				t.Errorf("outputs %v: have %q", outputs, lines)
			}
		}
	}
}

// ear keeps what guests say.
type ear struct {
	lines   []string
	dropped int
	counts  map[string]int64
}

func (e *ear) Log(task, operator string, level LogLevel, text string) {
	e.lines = append(e.lines, fmt.Sprintf("%s %s %s %s", task, operator, level, text))
}
func (e *ear) LogDropped(_, _ string, lines int) { e.dropped += lines }
func (e *ear) Gauge(_, operator, gauge string, value float64) {
	e.lines = append(e.lines, fmt.Sprintf("%s.%s = %v", operator, gauge, value))
}
func (e *ear) Count(_, operator, counter string, delta int64) {
	if e.counts == nil {
		e.counts = map[string]int64{}
	}
	e.counts[operator+"."+counter] += delta
}

func TestLogsAndCounters(t *testing.T) {
	var e ear
	h := newHost(t, Options{Modules: shelf(tortureModule(t)), Observer: &e})
	in := newInstance(t, h, torture(t, "log"), nil)
	defer closeInstance(t, in)
	if _, err := process(in, batch(1_700_000_000_000, "7")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"job/torture@g1 torture warn reading 7", "job/torture@g1 torture info printed 7"}; !slices.Equal(e.lines[:2], want) {
		t.Errorf("logged %q, want %q", e.lines[:2], want)
	}
	const burst = logBurst * DefaultLogRate
	if len(e.lines) != burst || e.dropped != 202-burst {
		t.Errorf("%d lines logged and %d dropped, want %d and %d", len(e.lines), e.dropped, burst, 202-burst)
	}
	if e.counts["torture.readings"] != 2 {
		t.Errorf("counters %v", e.counts)
	}
	if _, err := process(in, batch(1_700_000_002_000, "8")); err != nil {
		t.Fatal(err)
	}
	if len(e.lines) != burst+2*DefaultLogRate {
		t.Errorf("%d lines after two seconds, want %d", len(e.lines), burst+2*DefaultLogRate)
	}

	e = ear{}
	spec := torture(t, "log")
	spec.As = "other"
	beside := newInstance(t, h, spec, nil)
	defer closeInstance(t, beside)
	if _, err := process(beside, batch(1_700_000_000_000, "7")); err != nil {
		t.Fatal(err)
	}
	if e.lines[0] != "job/torture@g1 other warn reading 7" || e.counts["other.readings"] != 2 || e.counts["torture.readings"] != 0 {
		t.Errorf("under another name: logged %q, counted %v", e.lines[0], e.counts)
	}
}

func TestConfigIsPassed(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	spec := torture(t, "words")
	spec.Config["words"] = strings.Repeat("word ", 5000)
	in := newInstance(t, h, spec, nil)
	defer closeInstance(t, in)
	lines, err := process(in, batch(1, "x"))
	if err != nil || lines[0] != `out k 1 "5000"` {
		t.Errorf("%v %q", err, lines)
	}
}

// TestBatchesOfAllSizes checks that the guest's buffer is asked for again when a batch needs more.
func TestBatchesOfAllSizes(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	in := newInstance(t, h, torture(t, "echo"), nil)
	defer closeInstance(t, in)
	for _, size := range []int{0, 1, 100, 60_000, 70_000, 200_000, 50, 250_000} {
		value := strings.Repeat("v", size)
		for _, n := range []int{0, 1, 3} {
			b := batch(5, slices.Repeat([]string{value}, n)...)
			var got []byte
			if err := in.Process(b, func(_ int, payload []byte, _ int) error {
				got = append(got, payload...)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, b.Payload) {
				t.Errorf("%d records of %d bytes: %d bytes came back, want %d", n, size, len(got), len(b.Payload))
			}
		}
	}
	if err := in.Process(dataflow.Batch{Payload: make([]byte, maxInput+1)}, nil); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a batch above the limit: %v", err)
	}
}

func TestErrorOfEmitIsReturned(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t))})
	in := newInstance(t, h, torture(t, "echo"), nil)
	defer closeInstance(t, in)
	broken := errors.New("queue is closed")
	if err := in.Process(batch(1, "x"), func(int, []byte, int) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

// TestRestoreRefusesForeignState checks the errors for state that is not of this operator.
func TestRestoreRefusesForeignState(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t), minimal().wasm())})
	spec := torture(t, "count")
	in := newInstance(t, h, spec, nil)
	changes, err := in.Freeze(true)
	closeInstance(t, in)
	if err != nil {
		t.Fatal(err)
	}
	var store memoryStore
	store.save(changes)
	with := func(c dataflow.Change) dataflow.StateReader {
		s := memoryStore{}
		s.save(changes)
		s.save([]dataflow.Change{c})
		return s.read
	}
	other := spec
	other.Digest = Digest(minimal().wasm())
	page := make([]byte, pageSize)
	for name, test := range map[string]struct {
		spec  dataflow.OperatorSpec
		state dataflow.StateReader
		want  string
	}{
		"other module": {other, store.read, "it is of module " + spec.Digest},
		"empty":        {spec, (&memoryStore{}).read, "it has no globals"},
		"short page":   {spec, with(dataflow.Change{Space: dataflow.SpaceMemory, Key: []byte{0, 0, 0, 1}, Value: page[1:]}), "value of 4095 bytes"},
		"far page":     {spec, with(dataflow.Change{Space: dataflow.SpaceMemory, Key: []byte{0xff, 0, 0, 1}, Value: page}), "memory of"},
		"other space":  {spec, with(dataflow.Change{Space: dataflow.SpaceLoop, Key: []byte("x"), Value: []byte{}}), "unknown key"},
		"odd timer":    {spec, with(dataflow.Change{Space: dataflow.SpaceTimer, Key: []byte("x"), Value: []byte{}}), "timer of 1 bytes"},
		"expiry alone": {spec, with(dataflow.Change{Space: dataflow.SpaceTimer, Key: appendTimer(nil, timerExpiry, 5, []byte("k")), Value: []byte{}}), `key "k" expires, and is not there`},
		"version":      {spec, with(dataflow.Change{Space: dataflow.SpaceGlobal, Key: []byte(globalKey), Value: []byte{9, 0}}), "version 9"},
		"truncated":    {spec, with(dataflow.Change{Space: dataflow.SpaceGlobal, Key: []byte(globalKey), Value: []byte{1, 5, 1}}), "globals of 3 bytes"},
		"read error":   {spec, func(func(dataflow.Change) error) error { return os.ErrPermission }, "permission"},
	} {
		op, err := h.New(context.Background(), test.spec, test.state)
		if !errors.Is(err, errState) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one that says %q", name, err, test.want)
		}
		if op != nil {
			t.Errorf("%s: an operator came back", name)
		}
	}
}

// TestInterpreter runs one module without the compiler.
func TestInterpreter(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(tortureModule(t)), Interpreter: true})
	compareRuns(t, h, torture(t, "count"), script(4))
}

// TestEnginesAgree restores the state of a compiled instance into an interpreted one.
func TestEnginesAgree(t *testing.T) {
	compiled := newHost(t, Options{Modules: shelf(tortureModule(t))})
	interpreted := newHost(t, Options{Modules: shelf(tortureModule(t)), Interpreter: true})
	a := newInstance(t, compiled, torture(t, "churn"), nil)
	defer closeInstance(t, a)
	for _, b := range script(6) {
		if _, err := process(a, b); err != nil {
			t.Fatal(err)
		}
	}
	changes, err := a.Freeze(true)
	if err != nil {
		t.Fatal(err)
	}
	var store memoryStore
	store.save(changes)
	b := newInstance(t, interpreted, torture(t, "churn"), store.read)
	defer closeInstance(t, b)
	for i, batch := range script(6) {
		want, err := process(a, batch)
		if err != nil {
			t.Fatal(err)
		}
		have, err := process(b, batch)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(have, want) {
			t.Fatalf("batch %d: interpreted %q, compiled %q", i, have, want)
		}
	}
}
