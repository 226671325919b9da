package wasmops

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// errEnd says that the binary ends within something.
var errEnd = errors.New("unexpected end")

// reader reads a WebAssembly binary. The first error sticks: all later reads return zero, so that
// callers check once per loop. Every read moves forward or fails, which bounds every loop over it.
type reader struct {
	b   []byte
	at  int
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.at = len(r.b)
}

func (r *reader) failf(format string, args ...any) { r.fail(fmt.Errorf(format, args...)) }

func (r *reader) more() bool { return r.err == nil && r.at < len(r.b) }

func (r *reader) byte() byte {
	if r.at >= len(r.b) {
		r.fail(errEnd)
		return 0
	}
	c := r.b[r.at]
	r.at++
	return c
}

// bytes returns the next n bytes, aliasing the binary.
func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.b)-r.at {
		r.fail(errEnd)
		return nil
	}
	b := r.b[r.at : r.at+n : r.at+n]
	r.at += n
	return b
}

// unsigned reads an unsigned LEB128 number of at most the given bits.
func (r *reader) unsigned(bits uint) uint64 {
	var v uint64
	for shift := uint(0); ; shift += 7 {
		c := r.byte()
		if shift >= bits || shift+7 > bits && c&0x7f>>(bits-shift) != 0 {
			r.failf("number of more than %d bits", bits)
			return 0
		}
		v |= uint64(c&0x7f) << shift
		if c&0x80 == 0 {
			return v
		}
	}
}

func (r *reader) u32() uint32 { return uint32(r.unsigned(32)) }

// skipSigned skips a signed LEB128 number of at most the given bits.
func (r *reader) skipSigned(bits uint) {
	for n := (bits + 6) / 7; n > 0; n-- {
		if r.byte()&0x80 == 0 {
			return
		}
	}
	r.failf("number of more than %d bits", bits)
}

// count reads the length of a vector whose elements take at least one byte each.
func (r *reader) count() int {
	n := r.u32()
	if uint64(n) > uint64(len(r.b)-r.at) {
		r.fail(errEnd)
		return 0
	}
	return int(n)
}

func (r *reader) name() string {
	b := r.bytes(r.count())
	if !utf8.Valid(b) {
		r.failf("name %q is not UTF-8", b)
	}
	return string(b)
}

// appendU32 appends an unsigned LEB128 number.
func appendU32(dst []byte, v uint32) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}

// appendSigned appends a signed LEB128 number.
func appendSigned(dst []byte, v int64) []byte {
	for v >= 0x40 || v < -0x40 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v)&0x7f)
}

func appendName(dst []byte, name string) []byte {
	return append(appendU32(dst, uint32(len(name))), name...)
}

func appendSection(dst []byte, id byte, body []byte) []byte {
	dst = appendU32(append(dst, id), uint32(len(body)))
	return append(dst, body...)
}
