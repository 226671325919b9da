package wasmops

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/weir-stream/weir/dataflow"
)

// Instructions that the tests below are made of.
func i32c(v int32) []byte { return constant(0x41, int64(v)) } // i32.const
func i64c(v int64) []byte { return constant(0x42, v) }        // i64.const

// constant is an instruction with a number in signed LEB128.
func constant(opcode byte, v int64) []byte {
	out := []byte{opcode}
	for {
		b := byte(v & 0x7f)
		v >>= 7
		if v == 0 && b&0x40 == 0 || v == -1 && b&0x40 != 0 {
			return append(out, b)
		}
		out = append(out, b|0x80)
	}
}

// callWith calls a function with constants.
func callWith(f byte, params ...int32) []byte {
	var out []byte
	for _, p := range params {
		out = append(out, i32c(p)...)
	}
	return append(out, 0x10, f)
}

func cat(parts ...[]byte) []byte { return slices.Concat(parts...) }

var (
	drop = []byte{0x1a}
	ok   = []byte{0x41, 0}
)

func runHostile(t *testing.T, opt Options, b *builder, outputs ...string) error {
	t.Helper()
	wasm := b.wasm()
	opt.Modules = shelf(wasm)
	h := newHost(t, opt)
	op, err := h.New(context.Background(), dataflow.OperatorSpec{
		Name: "hostile", Task: "t", Digest: Digest(wasm), Outputs: outputs,
	}, nil)
	if err != nil {
		return err
	}
	defer op.Close()
	return op.Process(batch(1, "abc"), func(int, []byte, int) error {
		t.Error("a hostile guest's output was handed on")
		return nil
	})
}

// TestHostileGuests checks that every wrong pointer, length, count and index ends the guest, with a
// reason, and nothing else.
func TestHostileGuests(t *testing.T) {
	process := func(imports []string, code ...byte) *builder {
		b := minimal()
		for _, name := range imports {
			b.imp(name)
		}
		return b.body(exportProcess, code...)
	}
	emit := func(params ...int32) *builder { return process([]string{"emit"}, cat(callWith(0, params...), ok)...) }
	open := cat(callWith(1, 0, 3), drop, ok) // opens output "out", whose name is data at 0
	withOut := func(b *builder) *builder {
		return b.imp("output_open").body(exportInit, open...).segment(0, 0x41, 0, 0x0b, 3, 'o', 'u', 't')
	}
	record := binary.LittleEndian.AppendUint32(nil, 12)
	record = append(record, make([]byte, 12)...)
	withRecord := func(b *builder) *builder {
		return withOut(b).segment(append([]byte{0, 0x41, 16, 0x0b, 16}, record...)...)
	}
	loop := []byte{0x03, 0x40}
	tests := map[string]struct {
		b    *builder
		want string
	}{
		"emit beyond memory":    {withOut(emit(0, 0x1ff00, 0x1000, 1)), "are not in its memory of 131072 bytes"},
		"emit negative pointer": {withOut(emit(0, -1, 16, 1)), "emit: 16 bytes at 4294967295 are not in its memory"},
		"emit negative length":  {withOut(emit(0, 16, -1, 1)), "output of more than 8388608 bytes"},
		"emit wrong output":     {withOut(emit(1, 16, 16, 1)), "emit to output 1, the job uses 1"},
		"emit negative output":  {withOut(emit(-1, 16, 16, 1)), "emit to output 4294967295"},
		"emit count too high":   {withRecord(emit(0, 16, 16, 2)), "output out has 1 records, emit said 2"},
		"emit count negative":   {withRecord(emit(0, 16, 16, -1)), "emit said 4294967295"},
		"emit half a record":    {withRecord(emit(0, 16, 15, 1)), "malformed after 0 records"},
		"emit nothing as one":   {withRecord(emit(0, 16, 0, 1)), "has 0 records, emit said 1"},
		"emit good, then bad":   {withRecord(process([]string{"emit"}, cat(callWith(0, 0, 16, 16, 1), callWith(0, 0, 17, 16, 1), ok)...)), "malformed"},
		"emit for ever":         {withRecord(process([]string{"emit"}, cat(loop, callWith(0, 0, 16, 0, 0), []byte{0x0c, 0, 0x0b}, ok)...)), "more than 4096 calls of emit"},
		"emit during init":      {minimal().imp("emit").body(exportInit, cat(callWith(0, 0, 0, 0, 0), ok)...), "emit is called outside of weir_process"},
		"open after init":       {process([]string{"output_open"}, cat(callWith(0, 0, 3), drop, ok)...), "opened outside of weir_init"},
		"open for ever":         {minimal().imp("output_open").body(exportInit, cat(loop, callWith(0, 0, 1), drop, []byte{0x0c, 0, 0x0b}, ok)...), "more than 64 outputs"},
		"open with a long name": {minimal().imp("output_open").body(exportInit, cat(callWith(0, 0, 5000), drop, ok)...), "name of an output of 5000 bytes, at most 256"},
		"config beyond memory":  {process([]string{"config_get"}, cat(callWith(0, 0x7fffffff, 1, 0, 0), drop, ok)...), "configuration key: 1 bytes"},
		"state key beyond":      {process([]string{"state_get"}, cat(callWith(0, -10, 20, 0, 0), drop, ok)...), "state key: 20 bytes at 4294967286"},
		"state key empty":       {process([]string{"state_put"}, cat(callWith(0, 0, 0, 0, 0), ok)...), "state key is empty"},
		"state key long":        {process([]string{"state_delete"}, cat(callWith(0, 0, 5000), drop, ok)...), "state key of 5000 bytes, at most 4096"},
		"state value long":      {process([]string{"state_put"}, cat(callWith(0, 0, 1, 0, -1), ok)...), "state value of 4294967295 bytes, at most 1048576"},
		"state value beyond":    {process([]string{"state_put"}, cat(callWith(0, 0, 1, 0x1fff0, 100), ok)...), "state value: 100 bytes"},
		"state answer beyond":   {process([]string{"state_put", "state_get"}, cat(callWith(0, 0, 1, 0, 1), callWith(1, 0, 1, -1, 100), drop, ok)...), "state value: 100 bytes at"},
		"scan answer beyond":    {process([]string{"state_scan"}, cat(callWith(0, 0, 0, 0, 0, -1, 100), drop, ok)...), "scan: 100 bytes"},
		"log beyond":            {process([]string{"log"}, cat(callWith(0, 1, -1, 10), ok)...), "log: 10 bytes"},
		"fail beyond":           {process([]string{"fail"}, cat(callWith(0, -1, 10), ok)...), "fail: 10 bytes"},
		"status":                {process(nil, i32c(7)...), "weir_process returned status 7"},
		"unreachable":           {process(nil, 0), "trapped: wasm error: unreachable"},
		"load beyond":           {process(nil, cat(i32c(-1), []byte{0x28, 2, 0})...), "out of bounds memory access"},
		"division by zero":      {process(nil, cat(i32c(1), i32c(0), []byte{0x6d})...), "integer divide by zero"},
		"endless recursion":     {process(nil, cat([]byte{0x20, 0, 0x20, 1, 0x20, 2, 0x20, 3, 0x10, 3})...), "stack overflow"},
		"bad alloc":             {minimal().body(exportAlloc, i32c(-5)...), "weir_alloc(65536) returned 4294967291, which is not in its memory"},
		"no alloc":              {minimal().body(exportAlloc, i32c(0)...), "weir_alloc has no memory for a batch of 65536 bytes"},
		"trap in alloc":         {minimal().body(exportAlloc, 0), "unreachable"},
		"trap in init":          {minimal().body(exportInit, 0), "unreachable"},
		"trap in initialize":    {minimal().fn(exportInitialize, sig(nil), 0), "unreachable"},
		"status of init":        {minimal().body(exportInit, i32c(2)...), "weir_init returned status 2"},
		"data segment beyond":   {minimal().segment(append(cat([]byte{0}, i32c(0x1ffff), []byte{0x0b}), 2, 1, 1)...), "out of bounds memory access"},
		"exit":                  {minimal().impFrom(WASIModule, "proc_exit", sig(args(i32))).body(exportProcess, cat(callWith(0, 0), ok)...), "exited with code 0"},
		"negative counter name": {process([]string{"counter_add"}, cat(i32c(0), i32c(-1), []byte{0x42, 1, 0x10, 0}, ok)...), "name of a counter of 4294967295 bytes"},
		"start function traps":  {func() *builder { b := minimal().fn("", sig(nil), 0); b.start = len(b.funcs) - 1; return b }(), "unreachable"},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		for _, interpreter := range []bool{false, true} {
			test := tests[name]
			var outputs []string
			if strings.HasPrefix(name, "emit") && name != "emit during init" {
				outputs = []string{"out"}
			}
			err := runHostile(t, Options{Interpreter: interpreter}, clone(test.b), outputs...)
			var guest *dataflow.GuestError
			if !errors.As(err, &guest) || !strings.Contains(guest.Reason, test.want) {
				t.Errorf("%s (interpreter %v): error %v, want one that says %q", name, interpreter, err, test.want)
			}
		}
	}
}

// clone keeps the type table of a builder from growing across runs.
func clone(b *builder) *builder {
	c := *b
	c.types = nil
	return &c
}

// TestWASITypes compares the types of our WASI functions with those of the engine's own.
func TestWASITypes(t *testing.T) {
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer rt.Close(ctx)
	compiled, err := wasi_snapshot_preview1.NewBuilder(rt).Compile(ctx)
	if err != nil {
		t.Fatal(err)
	}
	theirs := compiled.ExportedFunctions()
	for name, def := range theirs {
		ours, there := hostFunctions[WASIModule+"."+name]
		if want := sig(def.ParamTypes(), def.ResultTypes()...); !there || !ours.equal(want) {
			t.Errorf("%s has type %s, want %s", name, ours, want)
		}
	}
	ours := 0
	for _, f := range wasiFunctions() {
		if ours++; theirs[f.name] == nil {
			t.Errorf("%s is not a WASI function", f.name)
		}
	}
	if ours != len(theirs) {
		t.Errorf("%d functions, want %d", ours, len(theirs))
	}
}

// TestWASICallsAreSafe calls every WASI function with pointers outside of memory and numbers that no descriptor has.
func TestWASICallsAreSafe(t *testing.T) {
	for _, f := range wasiFunctions() {
		if f.name == "proc_exit" {
			continue
		}
		for _, v := range []int32{0, 1, 2, 3, 1024, 0x1fff0, -1, -0x80000000} {
			var code []byte
			for _, p := range f.sig.params {
				if p == i64 {
					code = append(code, 0x42, 0x7f)
				} else {
					code = append(code, i32c(v)...)
				}
			}
			b := minimal().impFrom(WASIModule, f.name, f.sig).body(exportProcess, cat(code, []byte{0x10, 0}, drop, ok)...)
			err := runHostile(t, Options{Interpreter: true}, b)
			var guest *dataflow.GuestError
			if err != nil && !errors.As(err, &guest) {
				t.Errorf("%s(%d…): %v", f.name, v, err)
			}
		}
	}
}

// TestRestoreOverwritesDataSegments checks that memory is what the snapshot says even where the
// module's own data would be, that the start function does not run again, and that globals come back.
func TestRestoreOverwritesDataSegments(t *testing.T) {
	b := minimal().imp("counter_add").global(i32, true, 0x41, 7).global(i64, true, 0x42, 9)
	const at = 70_000 // alone in its page, which is zero, and so not in a snapshot, once it is cleared
	b.segment(cat([]byte{0}, i32c(at), []byte{0x0b, 3, 'a', 'b', 'c'})...)
	// start: counts "abc", so that a second run would be seen
	b.fn("", sig(nil), cat(i32c(at), i32c(3), []byte{0x42, 1, 0x10, 0})...)
	b.start = len(b.funcs) // one import comes first
	// process: clears the data, adds to the globals, grows the memory by a page
	b.body(exportProcess, cat(
		i32c(at), i32c(0), []byte{0x36, 2, 0},
		[]byte{0x23, 0, 0x41, 1, 0x6a, 0x24, 0},
		[]byte{0x23, 1, 0x42, 2, 0x7c, 0x24, 1},
		[]byte{0x41, 1, 0x40, 0, 0x1a}, ok)...)
	wasm := b.wasm()
	var e ear
	h := newHost(t, Options{Modules: shelf(wasm), Observer: &e})
	spec := dataflow.OperatorSpec{Name: "o", Task: "t", Digest: Digest(wasm)}
	in := newInstance(t, h, spec, nil)
	var store memoryStore
	for i := range 3 {
		if _, err := process(in, batch(1, "x")); err != nil {
			t.Fatal(err)
		}
		changes, err := in.Freeze(i == 0)
		if err != nil {
			t.Fatal(err)
		}
		store.save(changes)
		closeInstance(t, in)
		in = newInstance(t, h, spec, store.read)
	}
	defer closeInstance(t, in)
	if e.counts["o.abc"] != 1 {
		t.Errorf("start function ran %d times", e.counts["o.abc"])
	}
	if v, _ := in.mod.Memory().ReadUint32Le(at); v != 0 {
		t.Errorf("data segment is back: %#x", v)
	}
	if size := in.mod.Memory().Size(); size != 5*wasmPage {
		t.Errorf("memory of %d bytes, want 5 pages", size)
	}
	if a, b := in.globals[0].Get(), in.globals[1].Get(); a != 10 || b != 15 {
		t.Errorf("globals %d and %d, want 10 and 15", a, b)
	}
}

// TestZeroedPageIsTombstone checks that a page that becomes zero again is so after a restore.
func TestZeroedPageIsTombstone(t *testing.T) {
	// process: toggles the word at 8192 between 0 and -1
	b := minimal().body(exportProcess, cat(i32c(8192), i32c(8192), []byte{0x28, 2, 0}, i32c(-1), []byte{0x73, 0x36, 2, 0}, ok)...)
	wasm := b.wasm()
	h := newHost(t, Options{Modules: shelf(wasm)})
	spec := dataflow.OperatorSpec{Name: "o", Task: "t", Digest: Digest(wasm)}
	in := newInstance(t, h, spec, nil)
	defer closeInstance(t, in)
	page := func(full bool) (value []byte, there bool) {
		t.Helper()
		changes, err := in.Freeze(full)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			if c.Space == dataflow.SpaceMemory && binary.BigEndian.Uint32(c.Key) == 2 {
				return c.Value, true
			}
		}
		return nil, false
	}
	step := func() {
		t.Helper()
		if _, err := process(in, batch(1)); err != nil {
			t.Fatal(err)
		}
	}
	step()
	if v, there := page(false); !there || len(v) != pageSize || v[0] != 0xff {
		t.Errorf("changed page: %v %d bytes", there, len(v))
	}
	step()
	if v, there := page(false); !there || v != nil {
		t.Errorf("zeroed page: %v %d bytes, want a tombstone", there, len(v))
	}
	step()
	page(false)
	step()
	if _, there := page(true); there {
		t.Error("a full freeze holds a zero page")
	}
	if _, there := page(false); there {
		t.Error("a zero page counts as changed after a full freeze left it out")
	}
	step()
	if v, _ := page(false); len(v) != pageSize {
		t.Error("a page that changed after a full freeze is missing")
	}
}
