package wasmops

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tetratelabs/wazero/api"
)

// Module is a module that has been checked and rewritten: all its state can be captured. It is
// immutable.
type Module struct {
	// Digest names the module as it was given: "sha256:" and 64 hexadecimal digits.
	Digest string
	// Size is the module's size in bytes as it was given.
	Size int
	// MinMemory is the linear memory it starts with, in bytes.
	MinMemory int64
	// Imports are the host functions that it asks for, as "module.name", in the module's order.
	Imports []string
	// Timed: it asks for something of event time or of timers.
	Timed bool

	code       []byte   // rewritten binary
	globals    []string // export names of the mutable globals, in index order
	initialize bool     // exports _initialize
	start      bool     // had a start function, now exported as weir_start
	migrateOut bool     // exports weir_migrate_out
	migrateIn  bool     // exports weir_migrate_in
}

// Globals is the number of mutable globals that a snapshot captures.
func (m *Module) Globals() int { return len(m.globals) }

// Digest returns the name of a module: "sha256:" and the hash of its bytes in hexadecimal digits.
func Digest(wasm []byte) string {
	sum := sha256.Sum256(wasm)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Prepare checks a module against the ABI and the limits [DefaultModuleLimit] and
// [MaxMemoryLimit], and rewrites it so that every mutable global is exported, the start function, which
// would run on each restore, is an export too, and what it executes is counted (see meter.go). The error says why a module is refused
// and what to do. Instructions are checked only as far as snapshots need; [Host.Check] validates whole.
func Prepare(wasm []byte) (*Module, error) {
	return prepare(wasm, Options{ModuleLimit: DefaultModuleLimit})
}

func prepare(wasm []byte, opt Options) (*Module, error) {
	if len(wasm) > opt.ModuleLimit {
		return nil, fmt.Errorf("module of %d bytes, at most %d: strip symbols and debug sections", len(wasm), opt.ModuleLimit)
	}
	if err := checkMagic(wasm); err != nil {
		return nil, err
	}
	b := module{measure: opt.measure, exports: map[string]export{}, start: -1}
	if err := b.parse(wasm); err != nil {
		return nil, err
	}
	if err := b.checkExports(); err != nil {
		return nil, err
	}
	code, globals, err := b.rewrite()
	if err != nil {
		return nil, err
	}
	_, initialize := b.exports[exportInitialize]
	_, migrateOut := b.exports[exportMigrateOut]
	_, migrateIn := b.exports[exportMigrateIn]
	return &Module{
		Digest: Digest(wasm), Size: len(wasm), MinMemory: b.minMemory, Imports: b.imports,
		Timed: b.timed(),
		code:  code, globals: globals, initialize: initialize, start: b.start >= 0, migrateOut: migrateOut, migrateIn: migrateIn,
	}, nil
}

// timed says whether the module asks for something of time.
func (b *module) timed() bool {
	for _, name := range []string{exportTimer, exportWatermark, exportEnd} {
		if _, there := b.exports[name]; there {
			return true
		}
	}
	return slices.ContainsFunc([]string{"watermark", "timer_set", "timer_clear", "state_put_until"}, func(name string) bool {
		return slices.Contains(b.imports, ImportModule+"."+name)
	})
}

var (
	moduleMagic    = []byte("\x00asm\x01\x00\x00\x00")
	componentMagic = []byte("\x00asm\x0d\x00\x01\x00")
)

func checkMagic(wasm []byte) error {
	switch {
	case bytes.HasPrefix(wasm, moduleMagic):
		return nil
	case bytes.HasPrefix(wasm, componentMagic):
		return fmt.Errorf("a WebAssembly component, not a core module: build for wasm32-wasip1, not wasip2")
	case bytes.HasPrefix(wasm, moduleMagic[:4]):
		return fmt.Errorf("a WebAssembly binary of an unknown version (bytes % x)", wasm[4:min(8, len(wasm))])
	}
	return fmt.Errorf("not a WebAssembly module: does not begin with the bytes %q", moduleMagic[:4])
}

// section is one section of the binary; body aliases it.
type section struct {
	id   byte
	body []byte
}

type export struct {
	kind  byte
	index uint32
}

// Kinds of imports and exports.
const (
	kindFunc = iota
	kindTable
	kindMemory
	kindGlobal
	kindTag
)

type global struct {
	typ     byte
	mutable bool
}

// module is what has been read of a module.
type module struct {
	measure measure

	sections  []section
	types     []signature
	funcs     []uint32 // type of each function, imports first
	imports   []string
	tables    int
	memories  int
	minMemory int64
	globals   []global
	exports   map[string]export
	start     int64 // function index, -1: none
	code      []function
}

// Section codes, in the order in which they must come.
const (
	secCustom = iota
	secType
	secImport
	secFunction
	secTable
	secMemory
	secGlobal
	secExport
	secStart
	secElement
	secCode
	secData
	secDataCount
	secTag
)

// sectionPlace orders sections: the data count stands before the code.
var sectionPlace = map[byte]int{
	secType: 1, secImport: 2, secFunction: 3, secTable: 4, secMemory: 5, secGlobal: 6, secExport: 7,
	secStart: 8, secElement: 9, secDataCount: 10, secCode: 11, secData: 12,
}

func (b *module) parse(wasm []byte) error {
	r := &reader{b: wasm, at: len(moduleMagic)}
	place := 0
	for r.more() {
		id, at := r.byte(), r.at-1
		body := r.bytes(int(r.u32()))
		if r.err != nil {
			return fmt.Errorf("corrupt module: section at byte %d: %w", at, r.err)
		}
		if id == secTag {
			return fmt.Errorf("module %w", errExcept)
		}
		if id != secCustom {
			p, known := sectionPlace[id]
			if !known || p <= place {
				return fmt.Errorf("corrupt module: section %d at byte %d is unknown, repeated or out of order", id, at)
			}
			place = p
		}
		if err := b.section(id, body); err != nil {
			return err
		}
		b.sections = append(b.sections, section{id, body})
	}
	return r.err
}

// section reads one section. Element and data segments are left to the compiler: what they hold is
// applied at instantiation and never changes.
func (b *module) section(id byte, body []byte) error {
	r := &reader{b: body}
	switch id {
	case secType:
		b.readTypes(r)
	case secImport:
		if err := b.readImports(r); err != nil {
			return err
		}
	case secFunction:
		for n := r.most("functions", maxFunctions); n > 0 && r.err == nil; n-- {
			b.funcs = append(b.funcs, r.u32())
		}
	case secTable:
		b.readTables(r)
	case secMemory:
		b.readMemories(r)
	case secGlobal:
		b.readGlobals(r)
	case secExport:
		b.readExports(r)
	case secStart:
		b.start = int64(r.u32())
	case secCode:
		return b.readCode(r)
	default:
		return nil
	}
	if r.err == nil && r.at < len(r.b) {
		r.failf("%d bytes too many", len(r.b)-r.at)
	}
	if r.err != nil {
		return fmt.Errorf("module refused, section %d: %w", id, r.err)
	}
	return nil
}

// most reads the length of a vector that has a limit.
func (r *reader) most(what string, limit int) int {
	n := r.count()
	if n > limit && r.err == nil {
		r.failf("%d %s, at most %d", n, what, limit)
	}
	return n
}

func (b *module) readTypes(r *reader) {
	for n := r.most("types", maxTypes); n > 0 && r.err == nil; n-- {
		if form := r.byte(); form != 0x60 && r.err == nil {
			r.failf("type of form %#02x: %w", form, errGC)
			return
		}
		b.types = append(b.types, signature{params: r.valueTypes(), results: r.valueTypes()})
	}
}

func (r *reader) valueTypes() []api.ValueType {
	n := r.most("parameters or results", maxParams)
	if r.err != nil {
		return nil
	}
	types := make([]api.ValueType, 0, n)
	for ; n > 0 && r.err == nil; n-- {
		types = append(types, r.valueType())
	}
	return types
}

func (b *module) readImports(r *reader) error {
	var unknown []string
	for n := r.most("imports", maxImports); n > 0 && r.err == nil; n-- {
		name := r.name() + "." + r.name()
		kind := r.byte()
		if r.err != nil {
			break
		}
		if kind != kindFunc {
			return fmt.Errorf("module imports %s, which is not a function: the host gives functions only", name)
		}
		typ := r.u32()
		b.funcs, b.imports = append(b.funcs, typ), append(b.imports, name)
		want, known := hostFunctions[name]
		switch {
		case r.err != nil:
		case !known:
			unknown = append(unknown, name)
		case int(typ) >= len(b.types) || !want.equal(b.types[typ]):
			return fmt.Errorf("module imports %s with another type than %s", name, want)
		}
	}
	if r.err == nil && len(unknown) > 0 {
		return fmt.Errorf("module imports what the host does not have: %s", strings.Join(unknown, ", "))
	}
	return nil
}

func (b *module) readTables(r *reader) {
	for n := r.count(); n > 0 && r.err == nil; n-- {
		if r.more() && r.b[r.at] == 0x40 {
			r.failf("table with an initial expression: %w", errGC)
			return
		}
		r.valueType()
		if elements, _ := r.limits(); elements > maxTableElements {
			r.failf("table of %d elements, at most %d", elements, maxTableElements)
		}
		if b.tables++; b.tables > maxTables {
			r.failf("more than %d tables", maxTables)
		}
	}
}

func (b *module) readMemories(r *reader) {
	for n := r.count(); n > 0 && r.err == nil; n-- {
		pages, _ := r.limits()
		if b.memories++; b.memories > 1 {
			r.fail(errMultiMem)
		}
		b.minMemory = int64(pages) * wasmPage
		if b.minMemory > MaxMemoryLimit && r.err == nil {
			r.failf("module needs %d bytes of memory to start, at most %d", b.minMemory, int64(MaxMemoryLimit))
		}
	}
}

// limits reads the limits of a memory or table.
func (r *reader) limits() (least uint32, most int64) {
	flags := r.byte()
	switch {
	case r.err != nil:
		return 0, 0
	case flags&0x02 != 0:
		r.failf("shared memory: %w", errThreads)
	case flags&0x04 != 0:
		r.failf("64-bit memory or table; build for wasm32")
	case flags > 1:
		r.failf("unknown limits %#02x", flags)
	}
	least, most = r.u32(), -1
	if flags == 1 {
		most = int64(r.u32())
	}
	return least, most
}

func (b *module) readGlobals(r *reader) {
	for n := r.most("globals", maxGlobals); n > 0 && r.err == nil; n-- {
		g := global{typ: r.valueType()}
		mut := r.byte()
		walkConst(r)
		switch {
		case r.err != nil:
		case mut > 1:
			r.failf("global with mutability %d", mut)
		case mut == 1 && (g.typ == 0x6f || g.typ == 0x70):
			r.failf("global %d is a mutable reference, which a snapshot does not capture", len(b.globals))
		case mut == 1 && g.typ == 0x7b:
			r.failf("global %d is a mutable vector, which a snapshot does not capture", len(b.globals))
		}
		g.mutable = mut == 1
		b.globals = append(b.globals, g)
	}
}

func (b *module) readExports(r *reader) {
	for n := r.most("exports", maxExports); n > 0 && r.err == nil; n-- {
		name := r.name()
		e := export{kind: r.byte(), index: r.u32()}
		_, twice := b.exports[name]
		switch {
		case r.err != nil:
		case twice:
			r.failf("export %q is there twice", name)
		case name == reservedStart, name == reservedFuel, name == reservedDepth, isGlobalName(name):
			r.failf("export name %q is reserved", name)
		case e.kind == kindTag:
			r.fail(errExcept)
		}
		b.exports[name] = e
	}
}

func isGlobalName(name string) bool {
	n, ok := strings.CutPrefix(name, reservedGlobal)
	if !ok {
		return false
	}
	_, err := strconv.ParseUint(n, 10, 32)
	return err == nil
}

func (b *module) readCode(r *reader) error {
	imported := len(b.imports)
	for i, n := 0, r.count(); i < n && r.err == nil; i++ {
		body := &reader{b: r.bytes(int(r.u32()))}
		if r.err != nil {
			break
		}
		if len(body.b) > maxFunction {
			return fmt.Errorf("module refused: function %d has %d bytes, at most %d", imported+i, len(body.b), maxFunction)
		}
		b.code = append(b.code, walkFunction(body))
		if body.err != nil {
			return fmt.Errorf("module refused: function %d %w", imported+i, body.err)
		}
	}
	if r.err == nil && r.at < len(r.b) {
		r.failf("%d bytes too many", len(r.b)-r.at)
	}
	if r.err != nil {
		return fmt.Errorf("corrupt module: code: %w", r.err)
	}
	return nil
}

// functionType is the type of a function, false if there is no such function.
func (b *module) functionType(index uint32) (signature, bool) {
	if uint64(index) >= uint64(len(b.funcs)) || uint64(b.funcs[index]) >= uint64(len(b.types)) {
		return signature{}, false
	}
	return b.types[b.funcs[index]], true
}

func (b *module) checkExports() error {
	var missing []string
	if e, ok := b.exports[exportMemory]; !ok || e.kind != kindMemory {
		missing = append(missing, exportMemory)
	}
	for _, want := range guestExports {
		e, ok := b.exports[want.name]
		if !ok && !want.optional {
			missing = append(missing, want.name)
		}
		if !ok {
			continue
		}
		have, ok := b.functionType(e.index)
		if e.kind != kindFunc || !ok {
			return fmt.Errorf("export %s is not a function", want.name)
		}
		if !have.equal(want.sig) {
			return fmt.Errorf("export %s has type %s, must be %s", want.name, have, want.sig)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("module lacks the exports %s: it is not a Weir operator, or was built as a command and not as a reactor (Go: -buildmode=c-shared)",
			strings.Join(missing, ", "))
	}
	if b.start >= 0 {
		if t, ok := b.functionType(uint32(b.start)); !ok || !t.equal(sig(nil)) {
			return fmt.Errorf("corrupt module: start function %d", b.start)
		}
	}
	return nil
}

// rewrite returns the module metered, with its mutable globals and its start function exported,
// without its start section and without custom sections other than the names of functions.
func (b *module) rewrite() (code []byte, globals []string, err error) {
	given := len(b.types)
	bodies, err := b.meter()
	if err != nil {
		return nil, nil, err
	}
	var added []byte
	count := uint32(len(b.exports))
	export := func(name string, kind byte, index int) {
		added = appendU32(append(appendName(added, name), kind), uint32(index))
		count++
	}
	for i, g := range b.globals {
		if g.mutable {
			name := reservedGlobal + strconv.Itoa(i)
			globals = append(globals, name)
			export(name, kindGlobal, i)
		}
	}
	export(reservedFuel, kindGlobal, len(b.globals))
	export(reservedDepth, kindGlobal, len(b.globals)+1)
	if b.start >= 0 {
		export(reservedStart, kindFunc, int(b.start))
	}
	code = slices.Clone(moduleMagic)
	hasGlobals := len(b.globals) > 0
	for _, s := range b.sections {
		switch {
		case s.id == secStart:
		case s.id == secCustom && (&reader{b: s.body}).name() != "name":
		case s.id == secType:
			code = appendSection(code, secType, extend(s.body, uint32(len(b.types)), encodeTypes(b.types[given:])))
		case s.id == secGlobal && hasGlobals:
			code = appendSection(code, secGlobal, extend(s.body, uint32(len(b.globals)+2), counters))
		case s.id == secGlobal:
		case s.id == secExport:
			if !hasGlobals {
				code = appendSection(code, secGlobal, append(appendU32(nil, 2), counters...))
			}
			code = appendSection(code, secExport, extend(s.body, count, added))
		case s.id == secCode && b.measure == metered:
			code = appendSection(code, secCode, bodies)
		default:
			code = appendSection(code, s.id, s.body)
		}
	}
	return code, globals, nil
}

// counters are the two globals of metering: mutable i64, 0 at first.
var counters = []byte{i64, 1, 0x42, 0, 0x0b, i64, 1, 0x42, 0, 0x0b}

// extend returns a section that is a vector with a new count and more elements at its end.
func extend(vector []byte, count uint32, more []byte) []byte {
	r := &reader{b: vector}
	r.count()
	return append(append(appendU32(nil, count), vector[r.at:]...), more...)
}

func encodeTypes(types []signature) []byte {
	var out []byte
	for _, t := range types {
		out = append(out, 0x60)
		for _, list := range [][]api.ValueType{t.params, t.results} {
			out = append(appendU32(out, uint32(len(list))), list...)
		}
	}
	return out
}
