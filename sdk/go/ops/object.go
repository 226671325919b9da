package ops

import (
	"errors"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

// Assignment is a field of an object and the expression that makes it.
type Assignment struct {
	Name string
	Expr *Expr
}

// maxAssignments bounds the fields of an object.
const maxAssignments = 64

// ParseAssignments reads "name = expression; name = expression". A name may also be in quotes, as texts are.
func ParseAssignments(text string) ([]Assignment, error) {
	var all []Assignment
	p := parser{text: text}
	for {
		a := Assignment{Name: p.field()}
		if p.space(); !p.take("=") {
			p.fail("=")
		}
		p.or(0)
		if p.wrong == "" {
			a.Expr = &Expr{code: p.code, stack: make([]Value, 0, len(p.code))}
			all, p.code = append(all, a), nil
			if len(all) > maxAssignments {
				p.stop("too many assignments")
			}
		}
		if p.take(";") {
			if p.space(); p.at < len(text) {
				continue
			}
		}
		if p.at < len(text) {
			p.fail("an operator or ;")
		}
		if p.wrong != "" {
			return nil, errors.New("at byte " + strconv.Itoa(p.at) + ": " + p.wrong)
		}
		return all, nil
	}
}

// field reads a name.
func (p *parser) field() string {
	p.space()
	start := p.at
	if start < len(p.text) && (p.text[start] == '"' || p.text[start] == '\'') {
		if p.quoted(p.text[start]); p.wrong != "" {
			return ""
		}
		name := string(p.code[0].v.Text)
		p.code = nil
		return name
	}
	for p.at < len(p.text) && isName(p.text[p.at]) {
		p.at++
	}
	if p.at == start {
		p.fail("the name of a field")
	}
	return p.text[start:p.at]
}

// AppendObject appends a JSON object with the assignments. With keep, the fields of the record's value that are not
// assigned come first, if it is an object.
func AppendObject(dst []byte, r weir.Record, set []Assignment, keep bool, decimals int) []byte {
	separator := byte('{')
	if keep {
		weir.JSONFields(r.Value, func(name, raw []byte) {
			for i := range set {
				if set[i].Name == string(name) {
					return
				}
			}
			dst = append(append(append(append(dst, separator, '"'), name...), '"', ':'), raw...)
			separator = ','
		})
	}
	for _, a := range set {
		dst = append(weir.AppendJSONString(append(dst, separator), a.Name), ':')
		dst = a.Expr.Eval(r).AppendJSON(dst, decimals)
		separator = ','
	}
	return append(dst, '}')
}
