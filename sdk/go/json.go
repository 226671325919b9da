package weir

import (
	"strconv"
	"unicode/utf8"
	"unsafe"
)

// JSONField returns the raw JSON of a field of an object, without allocating; false if value is not
// an object or has no such field before its first error. Names are compared byte by byte: names
// written with escapes are not found. It does not look into nested objects, and what comes after the field is
// not checked.
func JSONField(value []byte, name string) ([]byte, bool) {
	s := jsonScanner{b: value}
	if !s.take('{') {
		return nil, false
	}
	for {
		key, ok := s.value()
		if !ok || key[0] != '"' || !s.take(':') {
			return nil, false
		}
		field, ok := s.value()
		if !ok {
			return nil, false
		}
		found := string(key[1:len(key)-1]) == name
		if found && s.take('}') {
			return field, true
		}
		if !s.take(',') {
			return nil, false
		}
		if found {
			return field, true
		}
	}
}

// JSONNumber returns a number field of an object; false if there is none or it is not a number.
func JSONNumber(value []byte, name string) (float64, bool) {
	raw, ok := JSONField(value, name)
	if !ok {
		return 0, false
	}
	return ParseNumber(raw)
}

// ParseNumber reads a decimal number, as in JSON: the nearest double, as the SDK of every language reads
// it. False if b is something else, or too large for a double.
func ParseNumber(b []byte) (float64, bool) {
	for _, c := range b { // ParseFloat also takes hexadecimal, infinities and underscores
		if (c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' {
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(b), len(b)), 64) // does not keep the string
	return f, err == nil
}

// AppendFixed appends a number rounded to so many decimals (0 to 9), half away from zero, without zeros
// at the end: the same text in the SDK of every language. What cannot be written so, because it is
// infinite, not a number, or v times 10 to the power of decimals is 2^63 or more, becomes null.
func AppendFixed(dst []byte, v float64, decimals int) []byte {
	if decimals < 0 || decimals > 9 {
		panic("weir.AppendFixed: 0 to 9 decimals")
	}
	p := uint64(1)
	for range decimals {
		p *= 10
	}
	x := v * float64(p)
	if !(x < 1<<63 && x > -1<<63) {
		return append(dst, "null"...)
	}
	i := int64(x)
	switch off := x - float64(i); {
	case off >= 0.5:
		i++
	case off <= -0.5:
		i--
	}
	u := uint64(i)
	if i < 0 {
		dst, u = append(dst, '-'), -u
	}
	dst = strconv.AppendUint(dst, u/p, 10)
	if u %= p; u > 0 {
		dst = append(dst, '.')
	}
	for u > 0 {
		p /= 10
		dst = append(dst, '0'+byte(u/p))
		u %= p
	}
	return dst
}

// jsonScanner walks over JSON text.
type jsonScanner struct {
	b  []byte
	at int
}

func (s *jsonScanner) space() {
	for s.at < len(s.b) {
		switch s.b[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// take skips space and c.
func (s *jsonScanner) take(c byte) bool {
	s.space()
	if s.at >= len(s.b) || s.b[s.at] != c {
		return false
	}
	s.at++
	return true
}

// value skips space and one value and returns its text, which is not empty. Objects and arrays are
// taken by their brackets alone.
func (s *jsonScanner) value() ([]byte, bool) {
	s.space()
	start := s.at
	if s.at >= len(s.b) {
		return nil, false
	}
	ok := false
	switch s.b[s.at] {
	case '"':
		ok = s.string()
	case '{', '[':
		ok = s.nested()
	default:
		ok = s.scalar()
	}
	return s.b[start:s.at], ok
}

// string skips a string that begins here.
func (s *jsonScanner) string() bool {
	for s.at++; s.at < len(s.b); s.at++ {
		switch s.b[s.at] {
		case '\\':
			s.at++
		case '"':
			s.at++
			return true
		}
	}
	s.at = len(s.b)
	return false
}

// nested skips an object or array that begins here.
func (s *jsonScanner) nested() bool {
	depth := 0
	for s.at < len(s.b) {
		switch s.b[s.at] {
		case '"':
			if !s.string() {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		s.at++
		if depth == 0 {
			return true
		}
	}
	return false
}

// scalar skips a number, true, false or null.
func (s *jsonScanner) scalar() bool {
	start := s.at
	for s.at < len(s.b) {
		c := s.b[s.at]
		if c != '-' && c != '+' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != 'E' {
			break
		}
		s.at++
	}
	return s.at > start
}

// AppendJSONString appends s as a JSON string. Bytes that are not UTF-8 become the replacement character.
func AppendJSONString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range s { // an invalid byte is read as the replacement character
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', byte(c))
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = utf8.AppendRune(dst, c)
		}
	}
	return append(dst, '"')
}
