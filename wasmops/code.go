package wasmops

import (
	"errors"
	"fmt"
)

// Reasons for refusing an instruction.
var (
	errTables   = errors.New("changes a table at run time, which a snapshot does not capture; build without the reference-types table instructions")
	errDrop     = errors.New("drops a segment at run time, which a snapshot does not capture; build without passive segments (no shared memory)")
	errThreads  = errors.New("uses threads (atomic instructions); build without them")
	errExcept   = errors.New("uses WebAssembly exceptions; build without them")
	errTailCall = errors.New("uses tail calls; build without them")
	errGC       = errors.New("uses garbage-collected or typed references; build without them")
	errRelaxed  = errors.New("uses relaxed SIMD, whose results differ between machines; build without it")
	errMultiMem = errors.New("uses more than one memory")
)

// walkFunction reads the instructions of one function body and fails on those whose effects a
// snapshot would miss. It checks structure only as far as it must; the compiler validates the rest.
func walkFunction(r *reader) function {
	f := function{body: r.b}
	locals := uint64(0)
	for n := r.count(); n > 0 && r.err == nil; n-- { // runs of locals
		locals += uint64(r.u32())
		r.valueType()
	}
	if locals > maxLocals && r.err == nil {
		r.failf("has %d locals, at most %d", locals, maxLocals)
	}
	last, branches, loops := byte(0), 0, 0
	for r.more() {
		last = r.byte()
		operand := r.at
		r.immediates(last)
		switch last {
		case 0x02, 0x03, 0x04, 0x0c, 0x0d:
			branches++
			if last == 0x03 {
				loops++
			}
		case 0x0e:
			branches += (&reader{b: r.b, at: operand}).count()
		case 0x10:
			f.callees = append(f.callees, (&reader{b: r.b, at: operand}).u32())
		case 0x11:
			f.indirect = true
		}
		if r.err == nil && (branches > maxBranches || loops > maxLoops || uint64(branches)*locals > maxWeb) {
			r.failf("has %d loops, %d branches and %d locals or more, which would take too long to compile; at most %d, %d, and %d for branches times locals: split it",
				loops, branches, locals, maxLoops, maxBranches, maxWeb)
		}
	}
	f.loops = loops > 0
	if r.err == nil && last != 0x0b {
		r.failf("function body without an end")
	}
	return f
}

// walkConst reads a constant expression up to its end.
func walkConst(r *reader) {
	for r.err == nil {
		op := r.byte()
		if op == 0x0b {
			return
		}
		r.immediates(op)
	}
}

// valueType reads a value type and returns its code.
func (r *reader) valueType() byte {
	switch t := r.byte(); t {
	case 0x7f, 0x7e, 0x7d, 0x7c, 0x7b, 0x70, 0x6f:
		return t
	case 0x69, 0x68, 0x74:
		r.fail(errExcept)
	default:
		if r.err == nil {
			r.fail(fmt.Errorf("value type %#02x: %w", t, errGC))
		}
	}
	return 0
}

func (r *reader) memarg() {
	if r.u32()&0x40 != 0 {
		r.fail(errMultiMem)
	}
	r.u32()
}

func (r *reader) blockType() {
	if !r.more() {
		r.fail(errEnd)
		return
	}
	switch c := r.b[r.at]; {
	case c == 0x40:
		r.at++
	case c&0xc0 == 0x40: // a negative number of one byte is a value type
		r.valueType()
	default:
		r.skipSigned(33)
	}
}

// immediates reads what follows an opcode. Codes are those of the specification, section 5.4.
func (r *reader) immediates(op byte) {
	switch {
	case op >= 0x45 && op <= 0xc4, op == 0xd1: // numeric; ref.is_null
	case op == 0x00, op == 0x01, op == 0x05, op == 0x0b, op == 0x0f, op == 0x1a, op == 0x1b:
	case op >= 0x02 && op <= 0x04: // block, loop, if
		r.blockType()
	case op >= 0x06 && op <= 0x0a, op == 0x18, op == 0x19, op == 0x1f:
		r.fail(errExcept)
	case op == 0x0e: // br_table
		for n := r.count(); n >= 0 && r.err == nil; n-- {
			r.u32()
		}
	case op == 0x0c, op == 0x0d, op == 0x10, op >= 0x20 && op <= 0x25, op == 0xd2:
		r.u32()
	case op == 0x11: // call_indirect
		r.u32()
		r.u32()
	case op == 0x12, op == 0x13, op == 0x15:
		r.fail(errTailCall)
	case op == 0x1c: // select with types
		for n := r.count(); n > 0 && r.err == nil; n-- {
			r.valueType()
		}
	case op == 0x26: // table.set
		r.fail(errTables)
	case op >= 0x28 && op <= 0x3e:
		r.memarg()
	case op == 0x3f, op == 0x40: // memory.size, memory.grow
		r.memoryIndex()
	case op == 0x41:
		r.skipSigned(32)
	case op == 0x42:
		r.skipSigned(64)
	case op == 0x43:
		r.bytes(4)
	case op == 0x44:
		r.bytes(8)
	case op == 0xd0: // ref.null
		r.valueType()
	case op == 0xfc:
		r.bulk(r.u32())
	case op == 0xfd:
		r.simd(r.u32())
	case op == 0xfe:
		r.fail(errThreads)
	case op == 0x14, op >= 0xd3 && op <= 0xd6, op == 0xfb:
		r.fail(errGC)
	default:
		r.failf("unknown instruction %#02x", op)
	}
}

func (r *reader) memoryIndex() {
	if r.u32() != 0 {
		r.fail(errMultiMem)
	}
}

func (r *reader) bulk(op uint32) {
	switch op {
	case 0, 1, 2, 3, 4, 5, 6, 7: // saturating conversions
	case 8: // memory.init: segments are never dropped, so they are constants
		r.u32()
		r.memoryIndex()
	case 9, 13: // data.drop, elem.drop
		r.fail(errDrop)
	case 10: // memory.copy
		r.memoryIndex()
		r.memoryIndex()
	case 11: // memory.fill
		r.memoryIndex()
	case 12, 14, 15, 17: // table.init, copy, grow, fill
		r.fail(errTables)
	case 16: // table.size
		r.u32()
	default:
		r.failf("unknown instruction 0xfc %d", op)
	}
}

func (r *reader) simd(op uint32) {
	switch {
	case op <= 11, op == 92, op == 93:
		r.memarg()
	case op == 12, op == 13: // v128.const, shuffle
		r.bytes(16)
	case op >= 21 && op <= 34: // lanes
		r.byte()
	case op >= 84 && op <= 91: // loads and stores of a lane
		r.memarg()
		r.byte()
	case op <= 255:
	case op <= 275:
		r.fail(errRelaxed)
	default:
		r.failf("unknown instruction 0xfd %d", op)
	}
}
