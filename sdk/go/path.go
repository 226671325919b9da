package weir

import (
	"errors"
	"strconv"
)

// Path says where in a JSON text a value is: the names of fields and the indexes of elements that lead to it, from
// outside to inside. The empty path is the whole text.
type Path []string

// maxPath bounds the parts of a path.
const maxPath = 32

// ParsePath reads a path as it is written in a configuration: parts with dots between them, as in
// "motor.phases.0.current". A part that is a whole number is an element of an array, counted from 0, or a field of
// that name. A backslash takes the next byte as it is: "a\.b" is one field. "" is the empty path.
func ParsePath(text string) (Path, error) {
	if text == "" {
		return nil, nil
	}
	var p Path
	var part []byte
	for i := 0; i <= len(text); i++ {
		switch {
		case i == len(text) || text[i] == '.':
			if len(part) == 0 {
				return nil, errors.New("path " + strconv.Quote(text) + " has an empty part")
			}
			if len(p) == maxPath {
				return nil, errors.New("path " + strconv.Quote(text) + " has more than " + strconv.Itoa(maxPath) + " parts")
			}
			p, part = append(p, string(part)), part[:0]
		case text[i] == '\\' && i+1 < len(text):
			i++
			part = append(part, text[i])
		default:
			part = append(part, text[i])
		}
	}
	return p, nil
}

// Find returns the raw JSON of the value that the path leads to, without allocating; false if there is none
// before the text's first error. Names are compared byte by byte, as [JSONField] does.
func (p Path) Find(value []byte) ([]byte, bool) {
	s := jsonScanner{b: value}
	if len(p) == 0 {
		return s.value()
	}
	s.space()
	v := value[s.at:]
	for _, part := range p {
		ok := false
		if len(v) > 0 && v[0] == '[' {
			v, ok = jsonElement(v, part)
		} else {
			v, ok = JSONField(v, part)
		}
		if !ok {
			return nil, false
		}
	}
	return v, true
}

// Number returns the number that the path leads to; false if there is none or it is not a number.
func (p Path) Number(value []byte) (float64, bool) {
	raw, ok := p.Find(value)
	if !ok {
		return 0, false
	}
	return ParseNumber(raw)
}

// JSONFields visits the fields of an object in order, with their names as they are written, up to its first error.
func JSONFields(value []byte, visit func(name, raw []byte)) {
	s := jsonScanner{b: value}
	if !s.take('{') {
		return
	}
	for {
		name, ok := s.value()
		if !ok || name[0] != '"' || !s.take(':') {
			return
		}
		raw, ok := s.value()
		if !ok {
			return
		}
		visit(name[1:len(name)-1], raw)
		if !s.take(',') {
			return
		}
	}
}

// jsonElement returns an element of an array; part is its index, counted from 0.
func jsonElement(array []byte, part string) ([]byte, bool) {
	index := 0
	for i := range len(part) {
		if part[i] < '0' || part[i] > '9' || index > MaxRecord {
			return nil, false
		}
		index = index*10 + int(part[i]-'0')
	}
	s := jsonScanner{b: array}
	if !s.take('[') {
		return nil, false
	}
	for ; ; index-- {
		v, ok := s.value()
		if !ok {
			return nil, false
		}
		if index == 0 {
			return v, s.take(',') || s.take(']')
		}
		if !s.take(',') {
			return nil, false
		}
	}
}
