package wasmops

import "slices"

// builder assembles small modules for tests.
type builder struct {
	types   []signature
	imports []importedFunc
	funcs   []builtFunc
	exports []builtExport
	globals []byte // encoded entries
	nglobal int
	memory  []byte // encoded limits; nil: none
	table   []byte
	start   int // function index, -1: none
	data    []byte
	ndata   int
	elem    []byte
	tail    []section // appended as they are
}

type importedFunc struct {
	module, name string
	sig          signature
}

type builtFunc struct {
	name   string // exported under, if not empty
	sig    signature
	locals []byte // encoded runs; nil: none
	code   []byte // without end
}

type builtExport struct {
	name  string
	kind  byte
	index uint32
}

// minimal is a valid operator that does nothing.
func minimal() *builder {
	return (&builder{start: -1, memory: []byte{0, 2}}).
		export(exportMemory, kindMemory, 0).
		fn(exportMarker, sig(nil)).
		fn(exportAlloc, sig(args(i32), i32), 0x41, 0x80, 0x08). // 1024
		fn(exportInit, sig(nil, i32), 0x41, 0).
		fn(exportProcess, sig(args(i32, i32, i32, i32), i32), 0x41, 0)
}

func (b *builder) imp(name string) *builder {
	b.imports = append(b.imports, importedFunc{ImportModule, name, hostFunctions[ImportModule+"."+name]})
	return b
}

func (b *builder) impFrom(module, name string, s signature) *builder {
	b.imports = append(b.imports, importedFunc{module, name, s})
	return b
}

func (b *builder) export(name string, kind byte, index uint32) *builder {
	b.exports = append(b.exports, builtExport{name, kind, index})
	return b
}

func (b *builder) fn(name string, s signature, code ...byte) *builder {
	b.funcs = append(b.funcs, builtFunc{name: name, sig: s, code: code})
	return b
}

// body replaces the code of an exported function.
func (b *builder) body(name string, code ...byte) *builder {
	for i := range b.funcs {
		if b.funcs[i].name == name {
			b.funcs[i].code = code
		}
	}
	return b
}

// local adds a local to an exported function and returns its index.
func (b *builder) local(name string, typ byte) byte {
	for i := range b.funcs {
		if f := &b.funcs[i]; f.name == name {
			if f.locals == nil {
				f.locals = []byte{0}
			}
			f.locals[0]++
			f.locals = append(f.locals, 1, typ)
			return byte(len(f.sig.params)) + f.locals[0] - 1
		}
	}
	panic("no function " + name)
}

// without removes an exported function's export.
func (b *builder) without(name string) *builder {
	for i := range b.funcs {
		if b.funcs[i].name == name {
			b.funcs[i].name = ""
		}
	}
	b.exports = slices.DeleteFunc(b.exports, func(e builtExport) bool { return e.name == name })
	return b
}

// retype gives an exported function another type and body.
func (b *builder) retype(name string, s signature, code ...byte) *builder {
	for i := range b.funcs {
		if b.funcs[i].name == name {
			b.funcs[i].sig, b.funcs[i].code = s, code
		}
	}
	return b
}

// global adds a global; init is a constant expression without end.
func (b *builder) global(typ byte, mutable bool, init ...byte) *builder {
	mut := byte(0)
	if mutable {
		mut = 1
	}
	b.globals = append(append(append(b.globals, typ, mut), init...), 0x0b)
	b.nglobal++
	return b
}

func (b *builder) segment(entry ...byte) *builder {
	b.data = append(b.data, entry...)
	b.ndata++
	return b
}

func (b *builder) typeIndex(s signature) uint32 {
	for i, t := range b.types {
		if t.equal(s) {
			return uint32(i)
		}
	}
	b.types = append(b.types, s)
	return uint32(len(b.types) - 1)
}

func (b *builder) wasm() []byte {
	imports, funcs, code, exports := []byte{}, []byte{}, []byte{}, []byte{}
	for _, f := range b.imports {
		imports = append(appendName(appendName(imports, f.module), f.name), kindFunc)
		imports = appendU32(imports, b.typeIndex(f.sig))
	}
	n := uint32(0)
	for _, e := range b.exports {
		exports = appendU32(append(appendName(exports, e.name), e.kind), e.index)
		n++
	}
	for i, f := range b.funcs {
		funcs = appendU32(funcs, b.typeIndex(f.sig))
		locals := f.locals
		if locals == nil {
			locals = []byte{0}
		}
		body := append(append(slices.Clone(locals), f.code...), 0x0b)
		code = append(appendU32(code, uint32(len(body))), body...)
		if f.name != "" {
			exports = appendU32(append(appendName(exports, f.name), kindFunc), uint32(len(b.imports)+i))
			n++
		}
	}
	out := slices.Clone(moduleMagic)
	add := func(id byte, count int, body []byte) {
		if count > 0 {
			out = appendSection(out, id, append(appendU32(nil, uint32(count)), body...))
		}
	}
	add(secType, len(b.types), encodeTypes(b.types))
	add(secImport, len(b.imports), imports)
	add(secFunction, len(b.funcs), funcs)
	if b.table != nil {
		add(secTable, 1, b.table)
	}
	if b.memory != nil {
		add(secMemory, 1, b.memory)
	}
	add(secGlobal, b.nglobal, b.globals)
	add(secExport, int(n), exports)
	if b.start >= 0 {
		out = appendSection(out, secStart, appendU32(nil, uint32(b.start)))
	}
	if b.elem != nil {
		add(secElement, 1, b.elem)
	}
	if b.ndata > 0 {
		out = appendSection(out, secDataCount, appendU32(nil, uint32(b.ndata)))
	}
	add(secCode, len(b.funcs), code)
	add(secData, b.ndata, b.data)
	for _, s := range b.tail {
		out = appendSection(out, s.id, s.body)
	}
	return out
}
