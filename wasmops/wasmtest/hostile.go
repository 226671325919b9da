package wasmtest

import (
	"bytes"
	"slices"
	"strings"
)

// Ends says how a guest ends.
type Ends uint8

// Ends of guests.
const (
	Refused Ends = iota // at upload
	Starts              // when it is started
	Records             // each record fails
	Fine                // it does no harm: its records pass
)

// Hostile is a guest that tries to do harm, and what must come of it.
type Hostile struct {
	Name   string
	Wasm   []byte
	Ends   Ends
	Reason string // part of what is said; empty for those that are fine
}

// HostileLimits are the limits under which the guests are to be run: memory in bytes, time in
// milliseconds, keyed state in bytes.
var HostileLimits = struct{ Memory, Time, State int64 }{1 << 20, 20, 256 << 10}

// HostileGuests are all.
func HostileGuests() []Hostile {
	return slices.Concat(refusedGuests(), failingStarts(), failingRecords(), harmlessGuests())
}

func refusedGuests() []Hostile {
	whole := NewGuest().Wasm()
	in := func(code ...byte) []byte { return NewGuest().Body("weir_init", Code(code, OK)...).Wasm() }
	memory := func(limits ...byte) []byte { g := NewGuest(); g.Memory = limits; return g.Wasm() }
	table := func(limits ...byte) *Guest { g := NewGuest(); g.Table = limits; return g }
	many := func(n int, entry ...byte) []byte { return bytes.Repeat(entry, n) }
	return []Hostile{
		{"text", []byte("(module)"), Refused, "not a WebAssembly module"},
		{"a component", append([]byte("\x00asm\x0d\x00\x01\x00"), 1, 2, 3), Refused, "a WebAssembly component"},
		{"half a module", whole[:len(whole)/2], Refused, "corrupt module"},
		{"no process", NewGuest().Without("weir_process").Wasm(), Refused, "lacks the exports weir_process"},
		{"no memory", func() []byte { g := NewGuest(); g.exports = nil; return g.Wasm() }(), Refused, "lacks the exports memory"},
		{"alloc of another type", NewGuest().Sig("weir_alloc", "I:i").Wasm(), Refused, "export weir_alloc has type"},
		{"init is a memory", NewGuest().Without("weir_init").Export("weir_init", 2, 0).Wasm(), Refused, "weir_init is not a function"},
		{"an export twice", NewGuest().Func("weir_init", initSig, OK...).Wasm(), Refused, "is there twice"},
		{"reserved names", NewGuest().Func("weir_fuel", ":").Wasm(), Refused, `"weir_fuel" is reserved`},
		{"two memories", insert(whole, 5, 2, 0, 1, 0, 1), Refused, "more than one memory"},
		{"shared memory", memory(3, 1, 2), Refused, "threads"},
		{"64-bit memory", memory(4, 1), Refused, "64-bit"},
		{"memory of 2 GiB", memory(Code([]byte{0}, number(32768))...), Refused, "bytes of memory to start"},
		{"atomic instructions", in(0xfe, 3, 0), Refused, "threads"},
		{"exceptions", in(0x08, 0), Refused, "exceptions"},
		{"tail calls for ever", in(0x12, 4), Refused, "tail calls"},
		{"relaxed vectors", in(0xfd, 0x80, 2), Refused, "relaxed SIMD"},
		{"a table that changes", table(0x70, 0, 4).Body("weir_init", Code(I32(0), []byte{0xd0, 0x70, 0x26, 0}, OK)...).Wasm(), Refused, "changes a table"},
		{"a huge table", table(Code([]byte{0x70, 0}, number(1<<28))...).Wasm(), Refused, "table of"},
		{"many tables", insert(whole, 4, Code(number(100), many(100, 0x70, 0, 1))...), Refused, "more than 16 tables"},
		{"a reference that changes", NewGuest().Global(0x6f, 1, 0xd0, 0x6f, 0x0b).Wasm(), Refused, "mutable reference"},
		{"many globals", insert(whole, 6, Code(number(20_000), many(20_000, 0x7f, 1, 0x41, 0, 0x0b))...), Refused, "20000 globals"},
		{"many functions", insert(whole, 3, Code(number(200_000), many(200_000, 0))...), Refused, "functions, at most"},
		{"unknown imports", NewGuest().Import("env", "steal", ":").Wasm(), Refused, "does not have: env.steal"},
		{"an import of another type", NewGuest().Import("weir", "log", "I:").Wasm(), Refused, "with another type"},
		{"imported memory", insert(whole, 2, Code([]byte{1}, name("env"), name("memory"), []byte{2, 0, 1})...), Refused, "not a function"},
		{"a number of sections that is absurd", insert(whole, 1, 0xff, 0xff, 0xff, 0xff, 0x0f), Refused, "unexpected end"},
		{"100,000 locals", NewGuest().Locals("weir_init", Code([]byte{1}, number(100_000), []byte{0x7e})...).Wasm(), Refused, "has 100000 locals"},
		{"four billion locals", NewGuest().Locals("weir_init", Code([]byte{2}, number(int64(1<<32-1)), []byte{0x7e}, number(int64(1<<32-1)), []byte{0x7e})...).Wasm(), Refused, "locals, at most"},
		{"a table of branches", in(Code([]byte{0x02, 0x40, 0x41, 0, 0x0e}, number(100_000), many(100_001, 0), []byte{0x0b})...), Refused, "too long to compile"},
		{"blocks in blocks", in(Code(many(30_000, 0x02, 0x40), many(30_000, 0x0b))...), Refused, "too long to compile"},
		{"a huge function", in(many(1<<20, 0x01)...), Refused, "bytes, at most"},
		{"code of a wrong type", NewGuest().Body("weir_init", I64(0)...).Wasm(), Refused, "not valid"},
		{"code without an end", NewGuest().Body("weir_init", 0x02, 0x40).Wasm(), Refused, "refused"},
		{"a start function with parameters", func() []byte { g := NewGuest(); g.Start = 3; return g.Wasm() }(), Refused, "start function 3"},
		{"an else of nothing", in(0x05), Refused, "else without an if"},
		{"a branch out of the function", in(0x0c, 9), Refused, "branches out of 9 blocks"},
	}
}

// insert puts a section in the place of another, or where it belongs.
func insert(wasm []byte, id byte, body ...byte) []byte {
	order := "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0c\x0a\x0b"
	place := func(id byte) int { return strings.IndexByte(order, id) }
	added := Code([]byte{id}, number(len(body)), body)
	for at := 8; at < len(wasm); {
		size, n := 0, 0
		for shift := 0; ; shift += 7 {
			n++
			c := wasm[at+n]
			size |= int(c&0x7f) << shift
			if c < 0x80 {
				break
			}
		}
		next := at + 1 + n + size
		switch {
		case wasm[at] == id:
			return Code(wasm[:at], added, wasm[next:])
		case place(wasm[at]) > place(id):
			return Code(wasm[:at], added, wasm[at:])
		}
		at = next
	}
	return append(slices.Clone(wasm), added...)
}

func failingStarts() []Hostile {
	init := func(code ...byte) []byte { return NewGuest().Body("weir_init", code...).Wasm() }
	start := func(code ...byte) []byte {
		g := NewGuest()
		g.Start = int(g.Next())
		return g.Func("", ":", code...).Wasm()
	}
	exit := NewGuest().Import("wasi_snapshot_preview1", "proc_exit", "i:")
	return []Hostile{
		{"trap in start", start(Trap...), Starts, "unreachable"},
		{"endless start", start(Loop()...), Starts, "an endless loop"},
		{"endless initialize", NewGuest().Func("_initialize", ":", Loop()...).Wasm(), Starts, "an endless loop"},
		{"endless init", init(Code(Loop(), OK)...), Starts, "an endless loop"},
		{"init opens for ever", init(Code(Loop(Code(Call(outputOpen, 0, 3), Drop)...), OK)...), Starts, "more than 64 outputs"},
		{"init says no", init(I32(7)...), Starts, "status 7"},
		{"init opens nothing", init(OK...), Starts, `has no output "out"`},
		{"init emits", init(Code(Call(emit, 0, 0, 0, 0), OK)...), Starts, "outside of weir_process"},
		{"init exits", exit.Body("weir_init", Code(Call(2, 0), OK)...).Wasm(), Starts, "exited with code 0"},
		{"data beyond memory", NewGuest().Data(0x3fffe, "out").Wasm(), Starts, "out of bounds"},
		{"memory above its limit", func() []byte { g := NewGuest(); g.Memory = []byte{0, 17}; return g.Wasm() }(), Starts, "limits.memory"},
	}
}

func failingRecords() []Hostile {
	body := func(code ...byte) []byte { return NewGuest().Body("weir_process", Code(code, OK)...).Wasm() }
	alloc := func(code ...byte) []byte { return NewGuest().Body("weir_alloc", code...).Wasm() }
	calls := func(module, name, sig string, code ...byte) []byte { // the import is function 2
		return NewGuest().Import(module, name, sig).Body("weir_process", Code(code, OK)...).Wasm()
	}
	weir := func(name, sig string, code ...byte) []byte { return calls("weir", name, sig, code...) }
	wasi := func(name, sig string, code ...byte) []byte {
		return calls("wasi_snapshot_preview1", name, sig, Code(code, Drop)...)
	}
	const self = 5 // weir_process, behind two imports
	again := []byte{0x20, 0, 0x20, 1, 0x20, 2, 0x20, 3}
	indirect := NewGuest().Body("weir_process", Code(again, I32(0), []byte{0x11, 5, 0})...)
	indirect.Table, indirect.Elem = []byte{0x70, 0, 1}, []byte{0, 0x41, 0, 0x0b, 1, self}
	// next adds 1 to the word at 16, so that no two names or keys are alike
	next := Code(I32(16), I32(16), []byte{0x28, 2, 0}, I32(1), []byte{0x6a, 0x36, 2, 0})
	twice := Code(again, []byte{0x10, self, 0x1a}, again, []byte{0x10, self, 0x1a})
	deep := NewGuest()
	walk := deep.Next() // calls itself twice, down to 0
	deep.Func("", "i:", Code([]byte{0x20, 0, 0x04, 0x40}, bytes.Repeat(Code([]byte{0x20, 0}, I32(1), []byte{0x6b, 0x10, walk}), 2), []byte{0x0b})...)
	return []Hostile{
		{"trap", body(Trap...), Records, "unreachable"},
		{"division by zero", body(Code(I32(1), I32(0), []byte{0x6d}, Drop)...), Records, "divide by zero"},
		{"load beyond memory", body(Code(I32(-1), []byte{0x28, 2, 0}, Drop)...), Records, "out of bounds"},
		{"fill beyond memory", body(Code(I32(1), I32(0), I32(-1), []byte{0xfc, 11, 0})...), Records, ""},
		{"status", body(Code(I32(9), []byte{0x0f})...), Records, "status 9"},
		{"output, then status", body(Code(Pass, I32(9), []byte{0x0f})...), Records, "status 9"},
		{"output, then trap", body(Code(Pass, Trap)...), Records, "unreachable"},
		{"endless recursion", body(Code(again, []byte{0x10, self, 0x0f})...), Records, "stack overflow"},
		{"endless recursion through a table", indirect.Wasm(), Records, "stack overflow"},
		{"recursion in two", body(twice...), Records, "stack overflow"},
		{"exponential recursion", deep.Body("weir_process", Code(Call(walk, 60), OK)...).Wasm(), Records, "an endless loop"},
		{"endless loop", body(Loop()...), Records, "an endless loop"},
		{"endless loop that stores", body(Loop(next...)...), Records, "an endless loop"},
		{"endless loop of branches", body(Code([]byte{0x03, 0x40, 0x02, 0x40, 0x41, 0, 0x0e, 1, 0, 1, 0x0b, 0x0c, 0, 0x0b})...), Records, "an endless loop"},
		{"endless loop that fills", body(Loop(Code(I32(0), I32(0), I32(0x3ffff), []byte{0xfc, 11, 0})...)...), Records, "an endless loop"},
		{"endless loop that copies", body(Loop(Code(I32(0), I32(1), I32(0x3fff0), []byte{0xfc, 10, 0, 0})...)...), Records, "an endless loop"},
		{"endless loop that grows", body(Loop(Code(I32(1), []byte{0x40, 0}, Drop)...)...), Records, "an endless loop"},
		{"endless loop of calls", weir("clock_ms", ":I", Loop(0x10, 2, 0x1a)...), Records, "an endless loop"},
		{"endless alloc", alloc(Code(Loop(), I32(0))...), Records, "an endless loop"},
		{"alloc gives nothing", alloc(I32(0)...), Records, "no memory for a batch"},
		{"alloc beyond memory", alloc(I32(0x3fff0)...), Records, "not in its memory"},
		{"alloc gives -1", alloc(I32(-1)...), Records, "not in its memory"},
		{"alloc traps", alloc(Trap...), Records, "unreachable"},
		{"out of memory", body(Code(Loop(Code(I32(1), []byte{0x40, 0}, I32(-1), []byte{0x46, 0x04, 0x40, 0x00, 0x0b})...))...), Records, "unreachable"},
		{"emit beyond memory", body(Call(emit, 0, 0x3ff00, 0x1000, 1)...), Records, "not in its memory"},
		{"emit at -1", body(Call(emit, 0, -1, 16, 1)...), Records, "not in its memory"},
		{"emit of -1 bytes", body(Call(emit, 0, 16, -1, 1)...), Records, "limits.output"},
		{"emit to another output", body(Call(emit, 7, 16, 16, 1)...), Records, "emit to output 7"},
		{"emit of too many", body([]byte{0x41, 0, 0x20, 1, 0x20, 2, 0x41, 0x7f, 0x10, emit}...), Records, "emit said 4294967295"},
		{"emit of a piece", body([]byte{0x41, 0, 0x20, 1, 0x20, 2, 0x41, 1, 0x6b, 0x20, 3, 0x10, emit}...), Records, "malformed"},
		{"emit of noise", body(Code(I32(16), I32(-1), []byte{0x36, 2, 0}, Call(emit, 0, 16, 64, 1))...), Records, "malformed"},
		{"emit for ever", body(Loop(Pass...)...), Records, "more than 4096 calls of emit"},
		{"output flood", body(Loop(Call(emit, 0, 0, 0x3ffff, 0)...)...), Records, "limits.output"},
		{"emitted, then overwritten", body(Code(Pass, []byte{0x20, 1}, I32(-1), []byte{0x36, 2, 0})...), Records, "malformed"},
		{"log for ever", weir("log", "iii:", Loop(Call(2, 3, 0, 3)...)...), Records, "an endless loop"},
		{"log beyond memory", weir("log", "iii:", Call(2, 3, -8, 100)...), Records, "not in its memory"},
		{"log of -1 bytes", weir("log", "iii:", Call(2, -1, 0x3fff0, -1)...), Records, "not in its memory"},
		{"counter flood", weir("counter_add", "iiI:", Loop(Code(next, I32(16), I32(4), I64(1), []byte{0x10, 2})...)...), Records, "more than 64 counters"},
		{"counter for ever", weir("counter_add", "iiI:", Loop(Code(I32(0), I32(3), I64(1), []byte{0x10, 2})...)...), Records, "an endless loop"},
		{"counter beyond memory", weir("counter_add", "iiI:", Code(I32(-1), I32(3), I64(1), []byte{0x10, 2})...), Records, "not in its memory"},
		{"state flood", weir("state_put", "iiii:", Loop(Code(next, Call(2, 16, 4, 0, 0x4000))...)...), Records, "limits.state"},
		{"state of one key for ever", weir("state_put", "iiii:", Loop(Call(2, 16, 4, 0, 0x4000)...)...), Records, "an endless loop"},
		{"state key of -1 bytes", weir("state_put", "iiii:", Call(2, 0, -1, 0, 1)...), Records, "state key of"},
		{"state value of -1 bytes", weir("state_put", "iiii:", Call(2, 0, 1, 0, -1)...), Records, "state value of"},
		{"state answer beyond memory", NewGuest().Import("weir", "state_get", "iiii:i").Import("weir", "state_put", "iiii:").
			Body("weir_process", Code(Call(3, 0, 1, 0, 1), Call(2, 0, 1, -1, -1), Drop, OK)...).Wasm(), Records, "state value"},
		{"scan into -1 bytes", weir("state_scan", "iiiiii:i", Code(Call(2, 0, 0, 0, 0, 16, -1), Drop)...), Records, "scan:"},
		{"scan for ever", NewGuest().Import("weir", "state_scan", "iiiiii:i").Import("weir", "state_put", "iiii:").
			Body("weir_process", Code(Call(3, 0, 1, 0, 0x4000), Loop(Code(Call(2, 0, 0, 0, 0, 16, 0x8000), Drop)...), OK)...).Wasm(), Records, "an endless loop"},
		{"configuration beyond memory", weir("config_get", "iiii:i", Code(Call(2, -1, 8, 0, 0), Drop)...), Records, "configuration key"},
		{"open while it runs", body(Code(Call(outputOpen, 0, 3), Drop)...), Records, "outside of weir_init"},
		{"random for ever", wasi("random_get", "ii:i", Code(Loop(Code(Call(2, 0, 0x3ffff), Drop)...), OK)...), Records, "an endless loop"},
		{"writes for ever", wasi("fd_write", "iiii:i", Code(I32(32), I32(0), []byte{0x36, 2, 0}, I32(36), I32(0x3ffff), []byte{0x36, 2, 0},
			Loop(Code(Call(2, 1, 32, 1, 64), Drop)...), OK)...), Records, "an endless loop"},
		{"sleeps for ever", wasi("poll_oneoff", "iiii:i", Code(I32(1024+24), I64(1<<62), []byte{0x37, 3, 0}, Call(2, 1024, 2048, 1, 4096))...), Records, "100 years ahead"},
		{"exits", NewGuest().Import("wasi_snapshot_preview1", "proc_exit", "i:").Body("weir_process", Code(Call(2, 3), OK)...).Wasm(), Records, "exited with code 3"},
		{"fails with a wild reason", weir("fail", "ii:", Code(Call(2, -1, 100), I32(1), []byte{0x0f})...), Records, "fail:"},
	}
}

func harmlessGuests() []Hostile {
	pass := func(g *Guest, code ...byte) []byte { return g.Body("weir_process", Code(code, Pass, OK)...).Wasm() }
	grown := Code([]byte{0x02, 0x40}, Loop(Code(I32(1), []byte{0x40, 0}, I32(-1), []byte{0x46, 0x0d, 1})...), []byte{0x0b})
	log := NewGuest().Import("weir", "log", "iii:")
	overlap := NewGuest().Body("weir_alloc", I32(1)...)
	names := NewGuest().Func("weir_future", ":").Func("weir_g", ":").Func("malloc", "i:i", I32(0)...)
	return []Hostile{
		{"grows to its limit", pass(NewGuest(), grown...), Fine, ""},
		{"logs a lot", pass(log, bytes.Repeat(Call(2, 2, 0, 3), 300)...), Fine, ""},
		{"takes batches at an odd address, over its own data", pass(overlap), Fine, ""},
		{"exports names of the future", pass(names), Fine, ""},
		{"waits by reading the clock", pass(NewGuest().Import("weir", "clock_ms", ":I"), Code([]byte{0x10, 2}, Drop)...), Fine, ""},
	}
}
