package wasmops

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero/api"

	"github.com/weir-stream/weir/dataflow"
)

// TestPrepareRefuses names the reason for every module that must not run.
func TestPrepareRefuses(t *testing.T) {
	in := func(code ...byte) []byte { return minimal().body(exportInit, append(code, 0x41, 0)...).wasm() }
	withTable := func(code ...byte) []byte {
		b := minimal().body(exportInit, append(code, 0x41, 0)...)
		b.table = []byte{0x70, 0, 10}
		return b.wasm()
	}
	table := func(entry ...byte) []byte { b := minimal(); b.table = entry; return b.wasm() }
	memory := func(limits ...byte) []byte { b := minimal(); b.memory = limits; return b.wasm() }
	tail := func(id byte, body ...byte) []byte {
		b := minimal()
		b.tail = []section{{id, body}}
		return b.wasm()
	}
	i32zero := []byte{0x41, 0, 0x41, 0, 0x41, 0}
	for name, test := range map[string]struct {
		wasm []byte
		want string
	}{
		"nothing":          {nil, "not a WebAssembly module"},
		"text":             {[]byte("(module)"), "not a WebAssembly module"},
		"component":        {append(slices.Clone(componentMagic), 1, 2, 3), "component, not a core module: build for wasm32-wasip1"},
		"version":          {[]byte("\x00asm\x02\x00\x00\x00"), "unknown version"},
		"empty":            {moduleMagic, "lacks the exports memory, weir_abi_v1, weir_alloc, weir_init, weir_process"},
		"large":            {append(slices.Clone(moduleMagic), make([]byte, DefaultModuleLimit)...), "at most 33554432"},
		"truncated":        {minimal().wasm()[:40], "section at byte"},
		"repeated section": {tail(secType, 0), "out of order"},
		"unknown section":  {tail(99), "unknown"},
		"tags":             {tail(secTag, 1, 0, 0), "exceptions"},
		"no memory export": {minimal().without(exportMemory).wasm(), "lacks the exports memory:"},
		"missing exports":  {minimal().without(exportAlloc).without(exportProcess).wasm(), "lacks the exports weir_alloc, weir_process: it is not a Weir operator"},
		"wrong type":       {minimal().retype(exportAlloc, sig(args(i64), i32), 0x41, 0).wasm(), "weir_alloc has type (i64) -> (i32), must be (i32) -> (i32)"},
		"wrong optional":   {minimal().fn(exportInitialize, sig(nil, i32), 0x41, 0).wasm(), "_initialize has type () -> (i32)"},
		"not a function":   {minimal().without(exportInit).export(exportInit, kindMemory, 0).wasm(), "weir_init is not a function"},
		"unknown imports": {minimal().impFrom("env", "abort", sig(nil)).impFrom("weir", "steal", sig(nil)).wasm(),
			"imports what the host does not have: env.abort, weir.steal"},
		"import type": {minimal().impFrom("weir", "emit", sig(nil)).wasm(), "imports weir.emit with another type than (i32, i32, i32, i32) -> ()"},
		"several memories": {func() []byte {
			b := minimal()
			b.memory = nil
			b.tail = nil
			return insertSection(b.wasm(), secMemory, 2, 0, 1, 0, 1)
		}(), "more than one memory"},
		"shared memory":     {memory(3, 1, 2), "threads"},
		"memory64":          {memory(4, 1), "64-bit"},
		"memory too large":  {memory(0, 0x81, 0x80, 1), "1073807360 bytes of memory to start, at most 1073741824"},
		"huge table":        {table(0x70, 0, 0xff, 0xff, 0xff, 0x3f), "table of"},
		"table expression":  {table(0x40, 0, 0x70, 0, 1, 0xd0, 0x70, 0x0b), "references"},
		"mutable funcref":   {minimal().global(0x70, true, 0xd0, 0x70).wasm(), "global 0 is a mutable reference"},
		"mutable externref": {minimal().global(i32, false, 0x41, 1).global(0x6f, true, 0xd0, 0x6f).wasm(), "global 1 is a mutable reference"},
		"mutable vector":    {minimal().global(0x7b, true, append([]byte{0xfd, 12}, make([]byte, 16)...)...).wasm(), "mutable vector"},
		"reserved global":   {minimal().fn("weir_g7", sig(nil)).wasm(), `"weir_g7" is reserved`},
		"reserved start":    {minimal().fn("weir_start", sig(nil)).wasm(), `"weir_start" is reserved`},
		"export twice":      {minimal().fn(exportInit, sig(nil, i32), 0x41, 0).wasm(), "is there twice"},
		"table.set":         {withTable(0x41, 0, 0xd0, 0x70, 0x26, 0), "changes a table"},
		"table.grow":        {withTable(0xd0, 0x70, 0x41, 1, 0xfc, 15, 0, 0x1a), "changes a table"},
		"table.fill":        {withTable(0x41, 0, 0xd0, 0x70, 0x41, 1, 0xfc, 17, 0), "changes a table"},
		"table.copy":        {withTable(append(i32zero, 0xfc, 14, 0, 0)...), "changes a table"},
		"table.init":        {withTable(append(i32zero, 0xfc, 12, 0, 0)...), "changes a table"},
		"elem.drop":         {withTable(0xfc, 13, 0), "drops a segment"},
		"data.drop":         {in(0xfc, 9, 0), "drops a segment"},
		"atomics":           {in(0xfe, 3, 0), "threads"},
		"throw":             {in(0x08, 0), "exceptions"},
		"try_table":         {in(0x1f, 0x40, 0, 0x0b), "exceptions"},
		"tail call":         {in(0x12, 0), "tail calls"},
		"struct.new":        {in(0xfb, 0, 0), "garbage-collected"},
		"relaxed SIMD":      {in(0xfd, 0x80, 2), "relaxed SIMD"},
		"unknown opcode":    {in(0x27), "unknown instruction 0x27"},
		"unknown 0xfc":      {in(0xfc, 30), "unknown instruction"},
		"other memory":      {in(0x41, 0, 0x28, 0x42, 1, 0, 0x1a), "more than one memory"},
	} {
		_, err := Prepare(test.wasm)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one that says %q", name, err, test.want)
		}
	}
}

// insertSection puts a section in front of the exports.
func insertSection(wasm []byte, id byte, body ...byte) []byte {
	r := &reader{b: wasm, at: len(moduleMagic)}
	for {
		at := r.at
		if r.byte() == secExport {
			return slices.Concat(wasm[:at], appendSection(nil, id, body), wasm[at:])
		}
		r.bytes(int(r.u32()))
	}
}

// TestPrepareAccepts runs modules whose features are unusual but can be captured.
func TestPrepareAccepts(t *testing.T) {
	withElem := minimal()
	withElem.table = []byte{0x70, 0, 2}
	withElem.elem = []byte{0, 0x41, 0, 0x0b, 1, 0}
	withName := minimal()
	withName.tail = []section{{secCustom, appendName(nil, ".debug_info")}, {secCustom, append(appendName(nil, "name"), 0, 2, 1, 'm')}}
	longIndex := minimal().body(exportInit, 0x10, 0x80, 0x80, 0x80, 0x80, 0x00, 0x41, 0)
	for name, b := range map[string]*builder{
		"minimal": minimal(), "table": withElem, "custom sections": withName, "padded numbers": longIndex,
		"initialize":       minimal().fn(exportInitialize, sig(nil)),
		"unknown exports":  minimal().fn("weir_later", sig(nil)).fn("cabi_realloc", sig(nil)),
		"constant globals": minimal().global(0x70, false, 0xd0, 0x70).global(i64, false, 0x42, 0x7f),
		"passive data":     minimal().segment(1, 2, 'h', 'i').body(exportInit, 0x41, 8, 0x41, 0, 0x41, 2, 0xfc, 8, 0, 0, 0x41, 0),
		"vectors":          minimal().body(exportInit, append(append([]byte{0xfd, 12}, make([]byte, 16)...), 0xfd, 21, 0, 0x1a, 0x41, 0)...),
		"branches":         minimal().body(exportInit, 0x02, 0x40, 0x41, 0, 0x0e, 0, 0, 0x0b, 0x02, 0x7f, 0x41, 0, 0x0b),
	} {
		h := newHost(t, Options{})
		if _, err := h.Check(context.Background(), b.wasm()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRewriteExportsMutableGlobals checks the prepared module against the engine's own parser.
func TestRewriteExportsMutableGlobals(t *testing.T) {
	b := minimal().global(i32, true, 0x41, 7).global(i32, false, 0x41, 1).global(i64, true, 0x42, 9).global(api.ValueTypeF64, true, 0x44, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f)
	b.fn("", sig(nil), 0x41, 42, 0x24, 0) // start: global 0 = 42
	b.start = len(b.funcs) - 1
	m, err := Prepare(b.wasm())
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"weir_g0", "weir_g2", "weir_g3"}; !slices.Equal(m.globals, want) || !m.start {
		t.Errorf("globals %v, start %v", m.globals, m.start)
	}
	h := newHost(t, Options{})
	compiled, err := h.compile(context.Background(), m)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := h.rt.InstantiateModule(context.Background(), compiled, moduleConfig())
	if err != nil {
		t.Fatal(err)
	}
	if v := mod.ExportedGlobal("weir_g0").Get(); v != 7 {
		t.Errorf("global 0 is %d: the start function has run by itself", v)
	}
	if _, err := mod.ExportedFunction(reservedStart).Call(context.Background()); err != nil {
		t.Fatal(err)
	}
	if v := mod.ExportedGlobal("weir_g0").Get(); v != 42 {
		t.Errorf("global 0 is %d after the start function", v)
	}
	for _, name := range m.globals {
		if _, ok := mod.ExportedGlobal(name).(api.MutableGlobal); !ok {
			t.Errorf("%s cannot be set", name)
		}
	}
}

func TestRewriteDropsCustomSectionsButNames(t *testing.T) {
	b := minimal()
	b.tail = []section{{secCustom, append(appendName(nil, ".debug_info"), make([]byte, 5000)...)}, {secCustom, append(appendName(nil, "name"), 0, 2, 1, 'm')}}
	m, err := Prepare(b.wasm())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(m.code, []byte(".debug_info")) || !bytes.Contains(m.code, []byte("\x04name")) {
		t.Errorf("custom sections of %d bytes of code", len(m.code))
	}
	if m.Digest != Digest(b.wasm()) || m.Size != len(b.wasm()) || m.MinMemory != 2*wasmPage {
		t.Errorf("module %s of %d bytes with memory of %d", m.Digest, m.Size, m.MinMemory)
	}
}

// TestCheckRefusesInvalidCode checks that what Prepare lets pass is validated whole.
func TestCheckRefusesInvalidCode(t *testing.T) {
	h := newHost(t, Options{})
	if _, err := h.Check(context.Background(), minimal().body(exportInit, 0x42, 0).wasm()); err == nil || !strings.Contains(err.Error(), "is not valid") {
		t.Errorf("a function that returns another type: %v", err)
	}
}

func TestLimitsAreOptions(t *testing.T) {
	wasm := minimal().wasm()
	h := newHost(t, Options{ModuleLimit: 10})
	if _, err := h.Check(context.Background(), wasm); err == nil || !strings.Contains(err.Error(), "at most 10") {
		t.Errorf("module limit: %v", err)
	}
	h = newHost(t, Options{MemoryLimit: wasmPage, Modules: shelf(wasm)})
	spec := dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm)}
	if _, err := h.New(context.Background(), spec, nil); err == nil || !strings.Contains(err.Error(), "needs 131072 bytes of memory to start, its limit is 65536") {
		t.Errorf("memory limit: %v", err)
	}
	spec.Limits.Memory = 2 * wasmPage
	in := newInstance(t, h, spec, nil)
	closeInstance(t, in)
	if _, err := NewHost(context.Background(), Options{MemoryLimit: 5}); err == nil {
		t.Error("a memory limit of 5 bytes is taken")
	}
}

func FuzzDecodeGlobals(f *testing.F) {
	f.Add([]byte{globalVersion, 0})
	f.Add(append([]byte{globalVersion, 1, 'd'}, make([]byte, 44)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeGlobals(b)
		if err == nil && len(b) != 2+len(s.digest)+44+8*len(s.globals) {
			t.Errorf("%d globals in %d bytes", len(s.globals), len(b))
		}
	})
}
