package wasmops

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// used runs a batch of records of one byte each and returns the fuel that it took.
func used(t *testing.T, opt Options, wasm []byte, spec dataflow.OperatorSpec, records int) int64 {
	t.Helper()
	opt.Modules = shelf(wasm)
	h := newHost(t, opt)
	spec.Name, spec.Digest = "o", Digest(wasm)
	in := newInstance(t, h, spec, nil)
	defer closeInstance(t, in)
	if _, err := process(in, batch(1, strings.Split(strings.Repeat("x", records), "")...)); err != nil {
		t.Fatal(err)
	}
	return in.limits.batch(records) - int64(in.fuel.Get())
}

// TestFuelIsPinned holds what some guests take: a higher figure would give up, in replay, records that
// have passed. A lower one may be put in its place.
func TestFuelIsPinned(t *testing.T) {
	for name, test := range map[string]struct {
		wasm []byte
		want int64
	}{
		"nothing":   {minimal().wasm(), 8},
		"checksum":  {checksumGuest().wasm(), 780},
		"fibonacci": {fibonacciGuest().wasm(), 415_937},
		"floats":    {floatGuest().wasm(), 1_100_017},
		"pass":      {wasmtest.NewGuest().Body("weir_process", wasmtest.Code(wasmtest.Pass, wasmtest.OK)...).Wasm(), 268},
		"fill":      {minimal().body(exportProcess, cat(i32c(0), i32c(0), i32c(0x10000), []byte{0xfc, 11, 0}, ok)...).wasm(), 2056},
		"grow":      {minimal().body(exportProcess, cat(i32c(1), []byte{0x40, 0}, drop, ok)...).wasm(), 4105},
		"state":     {minimal().imp("state_put").body(exportProcess, cat(callWith(0, 0, 100, 0, 1000), ok)...).wasm(), 2368},
	} {
		for _, interpreter := range []bool{false, true} {
			spec := dataflow.OperatorSpec{}
			if name == "pass" {
				spec.Outputs = []string{"out"}
			}
			if got := used(t, Options{Interpreter: interpreter}, test.wasm, spec, 3); got != test.want {
				t.Errorf("%s (interpreter %v): %d, want %d", name, interpreter, got, test.want)
			}
		}
	}
}

// TestFuelFollowsRecords: a batch may use more than one record, so that fast guests need not be given up
// for large batches, and a guest that needs its limit for each record fails in a batch of many.
func TestFuelFollowsRecords(t *testing.T) {
	l, err := (Options{}).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	limits, err := l.limits(dataflow.Limits{Time: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if one, many := limits.batch(1), limits.batch(501); one != limits.perMillisecond*2000 || many != 6*one {
		t.Errorf("%d for one record, %d for 501", one, many)
	}
	if limits.start() < limits.batch(1) {
		t.Error("less for the start than for a record")
	}
}

// TestEndlessLoopEndsAtOneInstruction: the state in which a guest is stopped is the same each time, by
// either engine if both have the same fuel.
func TestEndlessLoopEndsAtOneInstruction(t *testing.T) {
	// counts rounds in memory at 16
	loop := wasmtest.Loop(wasmtest.Code(wasmtest.I32(16), wasmtest.I32(16), []byte{0x28, 2, 0}, wasmtest.I32(1), []byte{0x6a, 0x36, 2, 0})...)
	wasm := wasmtest.NewGuest().Body("weir_process", wasmtest.Code(loop, wasmtest.OK)...).Wasm()
	var rounds []uint32
	for _, engine := range []struct {
		interpreter bool
		limit       time.Duration
	}{{false, time.Millisecond}, {false, time.Millisecond}, {true, interpreted * time.Millisecond}} {
		h := newHost(t, Options{Modules: shelf(wasm), Interpreter: engine.interpreter})
		in := newInstance(t, h, dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm), Outputs: []string{"out"}, Limits: dataflow.Limits{Time: engine.limit}}, nil)
		_, err := process(in, batch(1, "x"))
		if err == nil || !strings.Contains(err.Error(), "ran longer than its limit of") {
			t.Errorf("error %v", err)
		}
		n, _ := in.mod.Memory().ReadUint32Le(16)
		rounds = append(rounds, n)
		closeInstance(t, in)
	}
	if rounds[0] == 0 || rounds[0] != rounds[1] || compiles && rounds[0] != rounds[2] {
		t.Errorf("ended after %d rounds", rounds)
	}
}

// TestRecursionIsBounded: what nested calls take of the host's memory is far below what the engine
// itself allows, whatever the size of a frame.
func TestRecursionIsBounded(t *testing.T) {
	for _, locals := range []int{0, 10, 1000} {
		g := wasmtest.NewGuest()
		self := g.Next()
		// keeps its locals over the call: local i = param + i; call itself; sum
		code := []byte{}
		for i := range locals {
			code = append(code, wasmtest.Code([]byte{0x20, 0}, wasmtest.I32(int32(i)), appendU32([]byte{0x6a, 0x21}, uint32(i+1)))...)
		}
		code = append(code, 0x20, 0, 0x10, self)
		for i := range locals {
			code = append(code, appendU32([]byte{0x20}, uint32(i+1))...)
			code = append(code, 0x6a)
		}
		g.Func("f", "i:i", code...).Locals("f", appendU32([]byte{1}, uint32(locals))...)
		g.Locals("f", append(appendU32([]byte{1}, uint32(locals)), i32)...)
		g.Body("weir_process", wasmtest.Code(wasmtest.Call(self, 1), wasmtest.Drop, wasmtest.OK)...)
		wasm := g.Wasm()
		h := newHost(t, Options{Modules: shelf(wasm)})
		in := newInstance(t, h, dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm), Outputs: []string{"out"}}, nil)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := process(in, batch(1, "x"))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "stack overflow") {
			t.Errorf("%d locals: error %v", locals, err)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20 {
			t.Errorf("%d locals: %d bytes allocated for the stack", locals, grown)
		}
		closeInstance(t, in)
	}
}

// TestReturnsPayBackFrames: a recursive function that returns in every way there is can be called for
// ever.
func TestReturnsPayBackFrames(t *testing.T) {
	g := wasmtest.NewGuest()
	self := g.Next()
	// f(n): n == 0 ? return 1 : n & 1 ? br out with f(n-1) : f(n-1); two results would need a type of its own
	g.Func("f", "i:i", wasmtest.Code(
		[]byte{0x20, 0, 0x45, 0x04, 0x40, 0x41, 1, 0x0f, 0x0b},
		[]byte{0x20, 0, 0x41, 1, 0x71, 0x04, 0x40, 0x20, 0, 0x41, 1, 0x6b, 0x10, self, 0x0c, 1, 0x0b},
		[]byte{0x20, 0, 0x41, 1, 0x6b, 0x10, self})...)
	g.Func("two", "i:ii", 0x20, 0, 0x45, 0x04, 0x40, 0x41, 1, 0x41, 2, 0x0f, 0x0b, 0x20, 0, 0x41, 1, 0x6b, 0x10, self+1)
	// 10,000 times f(20), two(20)
	i := byte(4)
	g.Locals("weir_process", 1, 1, i32)
	g.Body("weir_process", wasmtest.Code(wasmtest.I32(10_000), []byte{0x21, i, 0x03, 0x40},
		wasmtest.Call(self, 20), wasmtest.Drop, wasmtest.Call(self+1, 20), wasmtest.Drop, wasmtest.Drop,
		[]byte{0x20, i, 0x41, 1, 0x6b, 0x22, i, 0x0d, 0, 0x0b}, wasmtest.Pass, wasmtest.OK)...)
	wasm := g.Wasm()
	for _, interpreter := range []bool{false, true} {
		h := newHost(t, Options{Modules: shelf(wasm), Interpreter: interpreter})
		in := newInstance(t, h, dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm), Outputs: []string{"out"}}, nil)
		if _, err := process(in, batch(1, "x")); err != nil {
			t.Errorf("interpreter %v: %v", interpreter, err)
		}
		if left := in.depth.Get(); left != maxFrames {
			t.Errorf("interpreter %v: %d of %d left", interpreter, left, maxFrames)
		}
		closeInstance(t, in)
	}
}

// TestNaNsAreCanonical runs all float instructions that may make a NaN with operands that do, and reads
// the bits: they must not be those that the machine happens to make.
func TestNaNsAreCanonical(t *testing.T) {
	f32 := func(bits uint32) []byte { return binary.LittleEndian.AppendUint32([]byte{0x43}, bits) }
	f64 := func(bits uint64) []byte { return binary.LittleEndian.AppendUint64([]byte{0x44}, bits) }
	const nan32, nan64 = 0xffc12345, 0xfff8123456789abc // negative, with a payload
	inf64, inf32 := math.Float64bits(math.Inf(1)), math.Float32bits(float32(math.Inf(1)))
	type test struct {
		code []byte
		wide bool
	}
	var tests []test
	for op := byte(0x8d); op <= 0x91; op++ {
		tests = append(tests, test{append(f32(nan32), op), false}, test{append(f64(nan64), op+0x0e), true})
	}
	for op := byte(0x92); op <= 0x97; op++ {
		tests = append(tests, test{cat(f32(nan32), f32(0x3f800000), []byte{op}), false}, test{cat(f64(0), f64(nan64), []byte{op + 0x0e}), true})
	}
	tests = append(tests,
		test{append(f32(0xbf800000), 0x91), false},                                  // sqrt(-1)
		test{cat(f64(0), f64(0), []byte{0xa3}), true},                               // 0/0
		test{cat(f64(inf64), f64(inf64), []byte{0xa1}), true},                       // inf-inf
		test{cat(f32(inf32), f32(0), []byte{0x94}), false},                          // inf*0
		test{append(f64(nan64), 0xb6), false}, test{append(f32(nan32), 0xbb), true}, // demote, promote
	)
	vector := func(wide bool, lane []byte) []byte { // splat
		if wide {
			return append(lane, 0xfd, 20)
		}
		return append(lane, 0xfd, 19)
	}
	lane := func(code []byte, wide bool) test { // the first lane
		if wide {
			return test{append(code, 0xfd, 33, 0), true}
		}
		return test{append(code, 0xfd, 31, 0), false}
	}
	simd := func(op uint32) []byte { return appendU32([]byte{0xfd}, op) }
	for _, op := range []uint32{0x67, 0x68, 0x69, 0x6a, 0xe3} {
		tests = append(tests, lane(cat(vector(false, f32(nan32)), simd(op)), false))
	}
	for _, op := range []uint32{0x74, 0x75, 0x7a, 0x94, 0xef} {
		tests = append(tests, lane(cat(vector(true, f64(nan64)), simd(op)), true))
	}
	for op := uint32(0xe4); op <= 0xe9; op++ {
		tests = append(tests, lane(cat(vector(false, f32(nan32)), vector(false, f32(0)), simd(op)), false),
			lane(cat(vector(true, f64(nan64)), vector(true, f64(0)), simd(op+0x0c)), true))
	}
	tests = append(tests, lane(cat(vector(true, f64(nan64)), simd(0x5e)), false), lane(cat(vector(false, f32(nan32)), simd(0x5f)), true))
	for i, test := range tests {
		store := []byte{0x38, 2, 0}
		if test.wide {
			store = []byte{0x39, 3, 0}
		}
		wasm := minimal().body(exportProcess, cat(i32c(64), test.code, store, ok)...).wasm()
		for _, interpreter := range []bool{false, true} {
			h := newHost(t, Options{Modules: shelf(wasm), Interpreter: interpreter})
			in := newInstance(t, h, dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm)}, nil)
			if _, err := process(in, batch(1, "x")); err != nil {
				t.Fatalf("test %d: %v", i, err)
			}
			narrow, _ := in.mod.Memory().ReadUint32Le(64)
			wide, _ := in.mod.Memory().ReadUint64Le(64)
			if test.wide && wide != canonicalF64 || !test.wide && narrow != canonicalF32 {
				t.Errorf("test %d, % x (interpreter %v): %#x", i, test.code, interpreter, wide)
			}
			closeInstance(t, in)
		}
	}
	// What is only moved keeps its bits.
	wasm := minimal().body(exportProcess, cat(i32c(64), f64(nan64), []byte{0x39, 3, 0}, ok)...).wasm()
	h := newHost(t, Options{Modules: shelf(wasm)})
	in := newInstance(t, h, dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm)}, nil)
	defer closeInstance(t, in)
	if _, err := process(in, batch(1, "x")); err != nil {
		t.Fatal(err)
	}
	if bits, _ := in.mod.Memory().ReadUint64Le(64); bits != nan64 {
		t.Errorf("a stored NaN is %#x", bits)
	}
}

// TestLimitsOfAnOperator checks each limit that a job can set.
func TestLimitsOfAnOperator(t *testing.T) {
	put := minimal().imp("state_put").body(exportProcess, cat(callWith(0, 0, 10, 0, 1000), ok)...).wasm()
	logs := minimal().imp("log").body(exportProcess, cat(callWith(0, 1, 0, 3), callWith(0, 1, 0, 3), ok)...).segment(0, 0x41, 0, 0x0b, 3, 'o', 'u', 't').wasm()
	pass := wasmtest.NewGuest().Body("weir_process", wasmtest.Code(wasmtest.Pass, wasmtest.OK)...).Wasm()
	run := func(wasm []byte, l dataflow.Limits, e Observer, outputs ...string) error {
		h := newHost(t, Options{Modules: shelf(wasm), Observer: e})
		in, err := h.newInstance(context.Background(), dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm), Outputs: outputs, Limits: l}, nil)
		if err != nil {
			return err
		}
		defer closeInstance(t, in)
		_, err = process(in, batch(1, strings.Repeat("x", 100)))
		return err
	}
	for _, test := range []struct {
		name    string
		wasm    []byte
		limits  dataflow.Limits
		outputs []string
		want    string
	}{
		{"state", put, dataflow.Limits{State: 1010 + keyOverhead}, nil, ""},
		{"too little state", put, dataflow.Limits{State: 1009 + keyOverhead}, nil, "keyed state of more than 1073 bytes (limits.state)"},
		{"output", pass, dataflow.Limits{Output: 117}, []string{"out"}, ""},
		{"too little output", pass, dataflow.Limits{Output: 116}, []string{"out"}, "output of more than 116 bytes for one batch (limits.output)"},
		{"memory", pass, dataflow.Limits{Memory: 4 * wasmPage}, []string{"out"}, ""},
		{"too little memory", pass, dataflow.Limits{Memory: 3 * wasmPage}, []string{"out"}, "needs 262144 bytes of memory to start, its limit is 196608 (limits.memory)"},
		{"absurd", pass, dataflow.Limits{Memory: 1}, nil, "is not between"},
		{"negative", pass, dataflow.Limits{Time: -1}, nil, "is not between"},
	} {
		err := run(test.wasm, test.limits, nil, test.outputs...)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	var e ear
	if err := run(logs, dataflow.Limits{LogRate: 1}, &e); err != nil || len(e.lines) != 2 {
		t.Errorf("%v, %d lines", err, len(e.lines))
	}
}

// TestLoweredMemoryLimitKeepsWhatIsThere: an operator whose limit is lowered is restored, and cannot grow.
func TestLoweredMemoryLimitKeepsWhatIsThere(t *testing.T) {
	// grows by a page with each batch, marks it, and fails if it cannot
	wasm := wasmtest.NewGuest().Body("weir_process", wasmtest.Code(
		wasmtest.I32(1), []byte{0x40, 0, 0x41, 16, 0x74, 0x41, 1, 0x36, 2, 0}, wasmtest.OK)...).Wasm()
	h := newHost(t, Options{Modules: shelf(wasm)})
	spec := dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm), Outputs: []string{"out"}}
	in := newInstance(t, h, spec, nil)
	for range 3 {
		if _, err := process(in, batch(1, "x")); err != nil {
			t.Fatal(err)
		}
	}
	changes, err := in.Freeze(true)
	closeInstance(t, in)
	if err != nil {
		t.Fatal(err)
	}
	var store memoryStore
	store.save(changes)
	spec.Limits.Memory = 5 * wasmPage
	in = newInstance(t, h, spec, store.read)
	defer closeInstance(t, in)
	if size := in.mod.Memory().Size(); size != 7*wasmPage {
		t.Errorf("memory of %d bytes", size)
	}
	var guest *dataflow.GuestError
	if _, err := process(in, batch(1, "x")); !errors.As(err, &guest) {
		t.Errorf("it grew on: %v", err)
	}
}

// TestLeakingGuest: a guest that never frees fails when its memory is used up; what it had before is
// restored as often as is needed, and the host's memory does not grow with the records.
func TestLeakingGuest(t *testing.T) {
	// takes a page for each batch and traps if there is none
	wasm := wasmtest.NewGuest().Body("weir_process", wasmtest.Code(
		wasmtest.I32(1), []byte{0x40, 0}, wasmtest.I32(-1), []byte{0x46, 0x04, 0x40, 0x00, 0x0b}, wasmtest.Pass, wasmtest.OK)...).Wasm()
	h := newHost(t, Options{Modules: shelf(wasm)})
	spec := dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm), Outputs: []string{"out"}, Limits: dataflow.Limits{Memory: 4 << 20}}
	in := newInstance(t, h, spec, nil)
	defer func() { closeInstance(t, in) }()
	var store memoryStore
	passed, failed := 0, 0
	for n := range 90 {
		lines, err := process(in, batch(int64(n), "x"))
		if err == nil {
			passed += len(lines)
			changes, err := in.Freeze(false)
			if err != nil {
				t.Fatal(err)
			}
			store.save(changes)
			continue
		}
		guestOnly(t, err)
		failed++
		closeInstance(t, in)
		in = newInstance(t, h, spec, store.read)
	}
	if passed != 60 || failed != 30 { // 64 pages, 4 from the start
		t.Errorf("%d records passed, %d failed", passed, failed)
	}
}

// TestGauges: a gauge shows the last value; its names count with those of counters.
func TestGauges(t *testing.T) {
	set := cat(i32c(0), i32c(3), binary.LittleEndian.AppendUint64([]byte{0x44}, math.Float64bits(2.5)), []byte{0x10, 0})
	var e ear
	b := minimal().imp("gauge_set").segment(0, 0x41, 0, 0x0b, 3, 'l', 'a', 'g').body(exportProcess, cat(set, ok)...)
	if err := runHostile(t, Options{Observer: &e}, b); err != nil || len(e.lines) != 1 || e.lines[0] != "hostile.lag = 2.5" {
		t.Errorf("%v, %q", err, e.lines)
	}
	wild := cat(i32c(-1), i32c(3), binary.LittleEndian.AppendUint64([]byte{0x44}, 0), []byte{0x10, 0})
	if err := runHostile(t, Options{}, minimal().imp("gauge_set").body(exportProcess, cat(wild, ok)...)); err == nil || !strings.Contains(err.Error(), "name of a gauge") {
		t.Errorf("error %v", err)
	}
}

// TestPreparedTwiceIsRefused: what was prepared is no module to prepare.
func TestPreparedTwiceIsRefused(t *testing.T) {
	m, err := Prepare(minimal().wasm())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(m.code); err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("error %v", err)
	}
}
