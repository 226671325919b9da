package wasmtest

import (
	"slices"
	"strings"
)

// Guest assembles small modules, right and wrong ones, byte by byte.
type Guest struct {
	Memory []byte // encoded limits; nil: none
	Table  []byte // encoded type and limits; nil: none
	Elem   []byte // one encoded segment; nil: none
	Start  int    // index of a function, -1: none

	types   []string
	imports []guestFunc
	funcs   []guestFunc
	exports []guestExport
	globals [][]byte
	data    [][]byte
	tail    []byte // sections as they are
}

type guestFunc struct {
	module, name string // of an export: name, may be empty
	sig          string
	locals       []byte // encoded
	code         []byte // without its end
}

type guestExport struct {
	name  string
	kind  byte
	index uint32
}

// Signatures are parameters, a colon and results: i for i32, I for i64, f for f32, F for f64.
const (
	allocSig   = "i:i"
	initSig    = ":i"
	processSig = "iiii:i"
)

// Indexes of the imports of every guest.
const (
	outputOpen = iota
	emit
)

// NewGuest returns an operator that opens the output "out", whose name is at 0, has two pages of memory,
// takes batches at 65536 and emits nothing.
func NewGuest() *Guest {
	g := &Guest{Memory: []byte{0, 4}, Start: -1}
	g.Import("weir", "output_open", "ii:i").Import("weir", "emit", "iiii:")
	g.Export("memory", 2, 0)
	g.Func("weir_abi_v1", ":")
	g.Func("weir_alloc", allocSig, I32(65536)...)
	g.Func("weir_init", initSig, Code(Call(outputOpen, 0, 3), Drop, OK)...)
	g.Func("weir_process", processSig, OK...)
	return g.Data(0, "out")
}

// Import adds an imported function. All imports come before the first code that calls anything.
func (g *Guest) Import(module, name, sig string) *Guest {
	g.imports = append(g.imports, guestFunc{module: module, name: name, sig: sig})
	return g
}

// Export adds an export of a kind: 0 function, 1 table, 2 memory, 3 global.
func (g *Guest) Export(name string, kind byte, index uint32) *Guest {
	g.exports = append(g.exports, guestExport{name, kind, index})
	return g
}

// Func adds a function, exported unless its name is empty. Code lacks its end.
func (g *Guest) Func(name, sig string, code ...byte) *Guest {
	g.funcs = append(g.funcs, guestFunc{name: name, sig: sig, locals: []byte{0}, code: code})
	return g
}

// Next is the index of the function that is added next.
func (g *Guest) Next() byte { return byte(len(g.imports) + len(g.funcs)) }

// Body replaces the code of an exported function.
func (g *Guest) Body(name string, code ...byte) *Guest {
	g.find(name).code = code
	return g
}

// Locals sets the encoded locals of an exported function.
func (g *Guest) Locals(name string, locals ...byte) *Guest {
	g.find(name).locals = locals
	return g
}

// Sig replaces the signature of an exported function.
func (g *Guest) Sig(name, sig string) *Guest {
	g.find(name).sig = sig
	return g
}

// Without takes away an export.
func (g *Guest) Without(name string) *Guest {
	g.find(name).name = ""
	return g
}

func (g *Guest) find(name string) *guestFunc {
	i := slices.IndexFunc(g.funcs, func(f guestFunc) bool { return f.name == name })
	return &g.funcs[i]
}

// Global adds an encoded global: type, mutability, initial expression with its end.
func (g *Guest) Global(entry ...byte) *Guest {
	g.globals = append(g.globals, entry)
	return g
}

// Data adds an active segment.
func (g *Guest) Data(at int32, bytes string) *Guest {
	entry := Code([]byte{0}, I32(at), []byte{0x0b}, number(len(bytes)), []byte(bytes))
	g.data = append(g.data, entry)
	return g
}

// Section adds a section behind all others, right or not.
func (g *Guest) Section(id byte, body ...byte) *Guest {
	g.tail = append(append(append(g.tail, id), number(len(body))...), body...)
	return g
}

func (g *Guest) typeIndex(sig string) int {
	i := slices.Index(g.types, sig)
	if i < 0 {
		i = len(g.types)
		g.types = append(g.types, sig)
	}
	return i
}

var typeCodes = map[rune]byte{'i': 0x7f, 'I': 0x7e, 'f': 0x7d, 'F': 0x7c}

// Wasm returns the module.
func (g *Guest) Wasm() []byte {
	var imports, funcs, code, exports, types [][]byte
	for _, f := range g.imports {
		imports = append(imports, Code(name(f.module), name(f.name), []byte{0}, number(g.typeIndex(f.sig))))
	}
	for _, e := range g.exports {
		exports = append(exports, Code(name(e.name), []byte{e.kind}, number(int(e.index))))
	}
	for i, f := range g.funcs {
		funcs = append(funcs, number(g.typeIndex(f.sig)))
		body := Code(f.locals, f.code, []byte{0x0b})
		code = append(code, Code(number(len(body)), body))
		if f.name != "" {
			exports = append(exports, Code(name(f.name), []byte{0}, number(len(g.imports)+i)))
		}
	}
	for _, sig := range g.types {
		params, results, _ := strings.Cut(sig, ":")
		entry := []byte{0x60}
		for _, list := range []string{params, results} {
			entry = append(entry, number(len(list))...)
			for _, t := range list {
				entry = append(entry, typeCodes[t])
			}
		}
		types = append(types, entry)
	}
	one := func(entry []byte) [][]byte {
		if entry == nil {
			return nil
		}
		return [][]byte{entry}
	}
	out := []byte("\x00asm\x01\x00\x00\x00")
	vector := func(id byte, entries [][]byte) {
		if len(entries) > 0 {
			body := Code(append([][]byte{number(len(entries))}, entries...)...)
			out = append(append(append(out, id), number(len(body))...), body...)
		}
	}
	vector(1, types)
	vector(2, imports)
	vector(3, funcs)
	vector(4, one(g.Table))
	vector(5, one(g.Memory))
	vector(6, g.globals)
	vector(7, exports)
	if g.Start >= 0 {
		body := number(g.Start)
		out = append(append(append(out, 8), number(len(body))...), body...)
	}
	vector(9, one(g.Elem))
	vector(10, code)
	vector(11, g.data)
	return append(out, g.tail...)
}

// number is an unsigned LEB128 number.
func number[T int | int64](v T) (out []byte) {
	for v >= 0x80 {
		out = append(out, byte(v)|0x80)
		v >>= 7
	}
	return append(out, byte(v))
}

func name(s string) []byte { return append(number(len(s)), s...) }

// Code joins pieces of code.
func Code(parts ...[]byte) []byte { return slices.Concat(parts...) }

// I32 is i32.const.
func I32(v int32) []byte { return signed(0x41, int64(v)) }

// I64 is i64.const.
func I64(v int64) []byte { return signed(0x42, v) }

func signed(op byte, v int64) []byte {
	out := []byte{op}
	for v >= 0x40 || v < -0x40 {
		out = append(out, byte(v)|0x80)
		v >>= 7
	}
	return append(out, byte(v)&0x7f)
}

// Call calls a function with constants.
func Call(f byte, params ...int32) (out []byte) {
	for _, p := range params {
		out = append(out, I32(p)...)
	}
	return append(out, 0x10, f)
}

// Loop repeats its body for ever.
func Loop(body ...byte) []byte { return Code([]byte{0x03, 0x40}, body, []byte{0x0c, 0, 0x0b}) }

// Pieces of code.
var (
	Drop = []byte{0x1a}
	OK   = []byte{0x41, 0} // status 0
	Trap = []byte{0x00}
	// Pass emits the batch as it is: emit(0, ptr, len, count).
	Pass = []byte{0x41, 0, 0x20, 1, 0x20, 2, 0x20, 3, 0x10, emit}
)
