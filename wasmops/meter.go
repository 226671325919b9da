package wasmops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/tetratelabs/wazero/api"
)

// Metering: a prepared module counts what it executes and how deep its calls are nested, and traps at
// an instruction when either budget is used up. The counters are two globals of the prepared module
// that the host sets before each call; they are no state, and snapshots lack them.
//
// # Fuel
//
// The unit of fuel is one instruction, roughly: see [weigh]. No path through a function executes more
// than it has paid for, but for a rest below [chargeAt]:
//
//   - At its entry a function pays for the longest way out of it that passes no other payment.
//   - At its header a loop pays for the longest way back to it that passes none.
//   - Where more than chargeAt comes together in between, it is paid there.
//   - Bulk memory instructions pay by their length, host functions by what they do.
//
// The budget is compared at entries, at headers and at bulk instructions: between two of these lies no
// more than one function's straight code. What a call pays is a function of the module's bytes, its
// state and its input; the machine, the load and the clock have no part in it.
//
// What a record was given up for is in the task's log, so replay does not meter it again. What passed
// once must pass again: a later version of this file may charge less for the same code, never more.
// TestFuelIsPinned holds it to that.
//
// # Cost
//
// go test ./wasmops -run XXX -bench Metering compares with no way to stop a guest and with the engine's
// own, WithCloseOnContextDone. The least of 25 runs each on a shared amd64 machine: operators in Go take
// no more than 1.04 times the time without, a loop over bytes as long, a recursive function 1.1 times, a chain of
// float operations 1.5 times (for its NaNs). The engine's way takes 2.6 to 3.4 times for Go, 13 to 16
// times for the loops, and less than without for the recursive function. By the interpreter, on a busy machine,
// metering took 1.2 to 1.7 times, and 4 for the floats. A Go module grows by 7 %.
//
// # Depth
//
// A function that can call itself, by whatever way, pays for its frame at its entry and is paid back at
// its end. Otherwise the engine's own limit would decide, which depends on the machine and lets a
// guest take 126 MB.
//
// # Floats
//
// Which NaN an operation makes is up to the machine: 0/0 has its sign set on amd64 and not on arm64.
// The results of all operations that may make one are replaced by the canonical NaN if they are one, so
// that state and output are the same bits everywhere.

// chargeAt is the fuel that may come together on a straight path before it is paid.
const chargeAt = 64

// bulkShift is the logarithm of the bytes that a bulk instruction moves for one unit.
const bulkShift = 5

// Weights of instructions in fuel, about 0.1 ns each on a desktop machine; all others weigh 1.
const (
	weighCall     = 4
	weighHostCall = 256
	weighDivide   = 8
	weighGrow     = 4096
	// weighJump is the least that an entry or a round of a loop costs: the counter itself takes time.
	weighJump = 8
)

// Fuel that host functions take, besides weighHostCall and what bytes cost that are copied.
const (
	fuelState        = 1000 // changing or searching keyed state
	fuelScan         = 2    // a byte found
	fuelLine         = 1000 // a line to the log, a counter
	fuelRandom       = 2    // a byte
	fuelSubscription = 100
)

// weigh is what executing an instruction costs. Instructions that only give structure cost nothing.
func weigh(op byte) int {
	switch op {
	case 0x00, 0x01, 0x02, 0x03, 0x05, 0x0b, 0x0f, 0x1a: // unreachable, nop, block, loop, else, end, return, drop
		return 0
	case 0x10, 0x11:
		return weighCall
	case 0x40:
		return weighGrow
	}
	if op >= 0x6d && op <= 0x70 || op >= 0x7f && op <= 0x82 || op == 0x95 || op == 0xa3 {
		return weighDivide
	}
	return 1
}

// label is an open block of the function being rewritten.
type label struct {
	op     byte // block, loop, if, else; 0: the function's own
	header int  // loop: where its charge is in the output, -1 if it is never reached
	begin  int  // pending where it begins
	most   int  // the most that is pending on a branch to it; -1: there is none
	dead   bool // no path leads to it
}

// meter rewrites one function's body.
type meter struct {
	fuel, depth uint32 // indexes of the globals

	out     []byte
	labels  []label
	pending int  // the most that any path to here has not paid
	dead    bool // no path leads here

	locals uint32 // parameters and locals of the function as given
	extra  []api.ValueType
	spare  [5]int // extra locals by kind, 0: none yet, else 1 + place in extra

	deep bool // the function pays for its frame
}

// Kinds of extra locals.
const (
	spareI32 = iota
	spareF32
	spareF64
	spareV128
)

var spareTypes = [...]api.ValueType{i32, api.ValueTypeF32, api.ValueTypeF64, 0x7b}

// temp is the index of a local of our own, put into the output by the caller.
func (m *meter) temp(kind int) uint32 {
	if m.spare[kind] == 0 {
		m.extra = append(m.extra, spareTypes[kind])
		m.spare[kind] = len(m.extra)
	}
	return m.locals + uint32(m.spare[kind]-1)
}

func (m *meter) op(op byte, index uint32) { m.out = appendU32(append(m.out, op), index) }

// constantSize is the encoded size of a charge that is filled in later.
const constantSize = 3

// subtract takes an amount, filled in later, from a counter and returns where the amount is.
func (m *meter) subtract(counter uint32) (at int) {
	m.op(0x23, counter)
	m.out = append(m.out, 0x42)
	at = len(m.out)
	m.out = append(m.out, make([]byte, constantSize)...)
	m.out = append(m.out, 0x7d)
	m.op(0x24, counter)
	return at
}

// fill writes the amount of a charge, padded.
func (m *meter) fill(at, amount int) {
	amount = max(-1<<20, min(amount, 1<<20-1))
	m.out[at], m.out[at+1], m.out[at+2] = byte(amount)|0x80, byte(amount>>7)|0x80, byte(amount>>14)&0x7f
}

// check traps if a budget is used up.
func (m *meter) check(both bool) {
	m.op(0x23, m.fuel)
	if both {
		m.op(0x23, m.depth)
		m.out = append(m.out, 0x84) // i64.or: negative if one of them is
	}
	m.out = append(m.out, 0x42, 0, 0x53, 0x04, 0x40, 0x00, 0x0b) // i64.const 0, lt_s, if, unreachable, end
}

// pay pays what is pending.
func (m *meter) pay() {
	m.fill(m.subtract(m.fuel), m.pending)
	m.pending = 0
}

// branch notes a jump to a label.
func (m *meter) branch(r *reader, depth uint32) {
	if uint64(depth) >= uint64(len(m.labels)) {
		r.failf("branches out of %d blocks, it is in %d", depth, len(m.labels))
		return
	}
	if !m.dead {
		l := &m.labels[len(m.labels)-1-int(depth)]
		l.most = max(l.most, m.pending)
	}
}

// body rewrites the instructions of a function. The labels hold the function's own at the bottom.
func (m *meter) body(r *reader, hostFuncs uint32) {
	m.labels = append(m.labels, label{most: -1})
	for r.err == nil && len(m.labels) > 0 {
		from := r.at
		op := r.byte()
		operand := r.at
		r.immediates(op)
		if r.err != nil {
			return
		}
		m.instruction(r, op, r.b[from:r.at], &reader{b: r.b[:r.at], at: operand}, hostFuncs)
	}
	if r.more() {
		r.failf("goes on behind its end")
	}
}

// instruction puts out one instruction with what must be around it. Arg reads its immediates.
func (m *meter) instruction(r *reader, op byte, raw []byte, arg *reader, hostFuncs uint32) {
	if !m.dead {
		weight := weigh(op)
		if op == 0x10 && (&reader{b: arg.b, at: arg.at}).u32() < hostFuncs {
			weight = weighHostCall
		}
		if m.pending += weight; m.pending >= chargeAt {
			m.pay()
		}
	}
	switch op {
	case 0x02, 0x04: // block, if
		m.out = append(m.out, raw...)
		m.labels = append(m.labels, label{op: op, begin: m.pending, most: -1, dead: m.dead})
		return
	case 0x03: // loop
		m.out = append(m.out, raw...)
		l := label{op: op, header: -1, begin: m.pending, most: -1, dead: m.dead}
		if !m.dead {
			l.header = m.subtract(m.fuel)
			m.check(false)
		}
		m.labels = append(m.labels, l)
		return
	case 0x05: // else
		l := &m.labels[len(m.labels)-1]
		if l.op != 0x04 {
			r.failf("has an else without an if")
			return
		}
		if !m.dead {
			l.most = max(l.most, m.pending)
		}
		l.op, m.pending, m.dead = op, l.begin, l.dead
	case 0x0b:
		m.end()
		if len(m.labels) == 0 {
			return
		}
	case 0x0c, 0x0d: // br, br_if
		m.branch(r, arg.u32())
		m.dead = m.dead || op == 0x0c
	case 0x0e:
		for n := arg.count(); n >= 0 && r.err == nil; n-- {
			m.branch(r, arg.u32())
		}
		m.dead = true
	case 0x0f:
		m.branch(r, uint32(len(m.labels)-1))
		m.dead = true
		if m.deep { // the frame is paid back at the end
			m.op(0x0c, uint32(len(m.labels)-1))
			return
		}
	case 0x00:
		m.dead = true
	case 0xfc:
		m.bulk(arg.u32())
	}
	m.out = append(m.out, raw...)
	if !m.dead {
		m.canonical(op, arg)
	}
}

// end closes the innermost block. The function's own end is put out by [module.meter].
func (m *meter) end() {
	last := len(m.labels) - 1
	l := m.labels[last]
	m.labels = m.labels[:last]
	if l.op == 0x03 {
		if !l.dead {
			m.fill(l.header, max(weighJump, l.most-l.begin))
		}
		return
	}
	if l.op == 0x04 && !l.dead { // without an else: a way leads past it
		l.most = max(l.most, l.begin)
	}
	if !m.dead {
		l.most = max(l.most, m.pending)
	}
	m.pending, m.dead = max(l.most, 0), l.most < 0
}

// bulk pays for a bulk memory instruction by its length, which is on top of the stack.
func (m *meter) bulk(op uint32) {
	if m.dead || op != 8 && op != 10 && op != 11 {
		return
	}
	n := m.temp(spareI32)
	m.op(0x22, n)
	m.op(0x23, m.fuel)
	m.op(0x20, n)
	m.out = append(m.out, 0xad, 0x42, bulkShift, 0x88, 0x7d) // i64.extend_i32_u, i64.const, shr_u, sub
	m.op(0x24, m.fuel)
	m.check(false)
}

// canonical replaces a NaN that an instruction may have made by the canonical one.
func (m *meter) canonical(op byte, arg *reader) {
	switch {
	case op >= 0x8d && op <= 0x97, op == 0xb6: // f32: ceil to max without copysign; f32.demote_f64
		m.replace(spareF32, binary.LittleEndian.AppendUint32([]byte{0x43}, canonicalF32), []byte{0x5b}, 0x1b)
	case op >= 0x9b && op <= 0xa5, op == 0xbb: // f64
		m.replace(spareF64, binary.LittleEndian.AppendUint64([]byte{0x44}, canonicalF64), []byte{0x61}, 0x1b)
	case op == 0xfd:
		switch v := arg.u32(); {
		case v >= 0x67 && v <= 0x6a, v == 0x5e, v >= 0xe3 && v <= 0xe9: // f32x4
			c := binary.LittleEndian.AppendUint32(nil, canonicalF32)
			m.replace(spareV128, append([]byte{0xfd, 12}, slices.Repeat(c, 4)...), []byte{0xfd, 0x41}, 0xfd, 0x52)
		case v == 0x74, v == 0x75, v == 0x7a, v == 0x94, v == 0x5f, v >= 0xef && v <= 0xf5: // f64x2
			c := binary.LittleEndian.AppendUint64(nil, canonicalF64)
			m.replace(spareV128, append([]byte{0xfd, 12}, slices.Repeat(c, 2)...), []byte{0xfd, 0x47}, 0xfd, 0x52)
		}
	}
}

// The canonical NaNs of the specification.
const (
	canonicalF32 = 0x7fc00000
	canonicalF64 = 0x7ff8000000000000
)

// replace chooses the value on the stack where it equals itself, else the constant.
func (m *meter) replace(kind int, constant, equal []byte, choose ...byte) {
	t := m.temp(kind)
	m.op(0x22, t)
	m.out = append(m.out, constant...)
	m.op(0x20, t)
	m.op(0x20, t)
	m.out = append(append(m.out, equal...), choose...)
}

// frameSize estimates the bytes that a call of a function takes on the engine's stack: its variables,
// and the values of its expressions that do not fit into registers.
func frameSize(locals uint32, size int) int { return 96 + 8*int(locals) + size/2 }

// function is what a first look at a function's body has found.
type function struct {
	body     []byte // aliases the binary
	callees  []uint32
	indirect bool // calls through a table
	loops    bool
}

// leaf says that a call of the function is short: it needs no check of its own.
func (f *function) leaf() bool {
	const short = 512
	return !f.loops && !f.indirect && len(f.callees) == 0 && len(f.body) <= short
}

// recursive says which functions can call themselves. A call through a table may lead anywhere.
func recursive(funcs []function, imported int) []bool {
	deep := make([]bool, len(funcs))
	callers := make([][]int32, len(funcs))
	var next []int32
	for i := range funcs {
		for _, c := range funcs[i].callees {
			if at := int(c) - imported; at >= 0 && at < len(funcs) {
				callers[at] = append(callers[at], int32(i))
			}
		}
		if funcs[i].indirect {
			deep[i] = true
			next = append(next, int32(i))
		}
	}
	for len(next) > 0 { // all from which a call through a table can be reached
		at := next[len(next)-1]
		next = next[:len(next)-1]
		for _, c := range callers[at] {
			if !deep[c] {
				deep[c] = true
				next = append(next, c)
			}
		}
	}
	// The rest call each other directly: what cannot be taken away from the end of the calls, function
	// by function, is in a cycle or leads to one. That is enough: it is an upper bound.
	open := make([]int, len(funcs))
	for i := range funcs {
		for _, c := range funcs[i].callees {
			if at := int(c) - imported; at >= 0 && at < len(funcs) {
				open[i]++
			}
		}
		if open[i] == 0 && !deep[i] {
			next = append(next, int32(i))
		}
	}
	flat := make([]bool, len(funcs))
	for len(next) > 0 {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		flat[at] = true
		for _, c := range callers[at] {
			if open[c]--; open[c] == 0 && !deep[c] {
				next = append(next, c)
			}
		}
	}
	for i := range deep {
		deep[i] = deep[i] || !flat[i]
	}
	return deep
}

// meter rewrites the code section. Types that it needs are added to those of the module.
func (b *module) meter() ([]byte, error) {
	imported := len(b.imports)
	deep := recursive(b.code, imported)
	out := appendU32(nil, uint32(len(b.code)))
	m := meter{fuel: uint32(len(b.globals)), depth: uint32(len(b.globals)) + 1}
	for i := range b.code {
		body, err := b.meterFunction(&m, imported+i, deep[i])
		if err != nil {
			return nil, fmt.Errorf("module refused: function %d %w", imported+i, err)
		}
		out = append(appendU32(out, uint32(len(body))), body...)
	}
	return out, nil
}

func (b *module) meterFunction(m *meter, index int, deep bool) ([]byte, error) {
	typ, ok := b.functionType(uint32(index))
	if !ok {
		return nil, errors.New("has no type")
	}
	f := &b.code[index-len(b.imports)]
	r := &reader{b: f.body}
	runs, locals := r.count(), uint32(len(typ.params))
	from := r.at
	for range runs {
		locals += r.u32()
		r.valueType()
	}
	declared := f.body[from:r.at]
	*m = meter{fuel: m.fuel, depth: m.depth, out: m.out[:0], labels: m.labels[:0], extra: m.extra[:0], locals: locals, deep: deep}
	frame := 0
	if deep {
		frame = frameSize(locals, len(f.body))
		m.fill(m.subtract(m.depth), frame)
	}
	entry := m.subtract(m.fuel)
	if !f.leaf() {
		m.check(deep)
	}
	if deep {
		m.out = append(append(m.out, 0x02), b.resultType(typ)...)
	}
	m.body(r, uint32(len(b.imports)))
	if r.err != nil {
		return nil, r.err
	}
	m.fill(entry, max(weighJump, m.pending))
	if deep {
		m.out = append(m.out, 0x0b)
		m.fill(m.subtract(m.depth), -frame)
	}
	m.out = append(m.out, 0x0b)
	body := append(appendU32(nil, uint32(runs+len(m.extra))), declared...)
	for _, t := range m.extra {
		body = append(body, 1, t)
	}
	return append(body, m.out...), nil
}

// resultType is the type of a block that takes nothing and gives the results of a function.
func (b *module) resultType(typ signature) []byte {
	switch len(typ.results) {
	case 0:
		return []byte{0x40}
	case 1:
		return []byte{typ.results[0]}
	}
	want := sig(nil, typ.results...)
	at := slices.IndexFunc(b.types, want.equal)
	if at < 0 {
		at = len(b.types)
		b.types = append(b.types, want)
	}
	return appendSigned(nil, int64(at))
}
