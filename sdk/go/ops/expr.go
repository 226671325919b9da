package ops

import (
	"bytes"
	"errors"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

// Expr is an expression over a record, such as
//
//	temp > 80 && (status == "on" || motor.phases.0.current * 1.8 >= limit)
//
// From what binds least to what binds most: ||, &&, one of == != < <= > >=, + and -, * and /, ! and - before a
// value, parentheses. There are numbers, texts in " or ' (a backslash takes the next byte as it is), true, false, null,
// abs(x), min(x, y), max(x, y), and
//
//	name.name.0     a field of the JSON in the value, see [weir.ParsePath]; `a-b.c` in backquotes if its name is
//	                not letters, digits and _; null if it is not there
//	$value          the value: JSON, or a text
//	$key $time      the record's key, a text, and its event time in milliseconds
//	$topic          the MQTT topic that it came with
//
// Texts are compared byte by byte, as they are written in the JSON. Values of different kinds are not equal
// and have no order. Arithmetic on what is not a number, or that does not give one, gives null; && || and ! take what
// is not true as false.
type Expr struct {
	code  []op
	stack []Value
}

// Kind is the kind of a [Value].
type Kind byte

// Kinds of values.
const (
	Null Kind = iota
	Bool
	Number
	Text
	Other // an object or array
)

// Value is what an expression comes to. It is borrowed from the record and the expression.
type Value struct {
	Kind   Kind
	Number float64 // of a Bool 0 or 1
	Text   []byte  // of a Text, as it is written in JSON
	raw    []byte  // the JSON that it comes from, nil if it comes from none
}

// op is one step of an expression: it takes its operands from the stack and leaves its result there.
type op struct {
	do   byte // l: value; p: path; v k t T: $value, $key, $time, $topic; an operator; n: minus; a m M: functions
	v    Value
	path weir.Path
}

// Bounds of an expression.
const (
	maxExpr  = 256 // steps
	maxDepth = 32  // nested parts
)

// ParseExpr reads an expression. The error says where it is wrong, in bytes from 0.
func ParseExpr(text string) (*Expr, error) {
	p := parser{text: text}
	p.or(0)
	if p.space(); p.wrong == "" && p.at < len(text) {
		p.fail("an operator")
	}
	if p.wrong != "" {
		return nil, errors.New("at byte " + strconv.Itoa(p.at) + ": " + p.wrong)
	}
	return &Expr{code: p.code, stack: make([]Value, 0, len(p.code))}, nil
}

// parser turns the text into steps, each after its operands.
type parser struct {
	text  string
	at    int
	code  []op
	wrong string
}

func (p *parser) fail(expected string) { p.stop("expected " + expected) }

func (p *parser) stop(why string) {
	if p.wrong == "" {
		p.wrong = why
	}
}

func (p *parser) emit(o op) {
	if p.code = append(p.code, o); len(p.code) > maxExpr {
		p.stop("the expression is too long")
	}
}

func (p *parser) space() {
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\t' || p.text[p.at] == '\n') {
		p.at++
	}
}

// take skips space and a token.
func (p *parser) take(token string) bool {
	p.space()
	if p.wrong != "" || len(p.text)-p.at < len(token) || p.text[p.at:p.at+len(token)] != token {
		return false
	}
	p.at += len(token)
	return true
}

func (p *parser) or(depth int) {
	if depth > maxDepth {
		p.stop("too many nested parts")
		return
	}
	for p.and(depth); p.take("||"); {
		p.and(depth)
		p.emit(op{do: '|'})
	}
}

func (p *parser) and(depth int) {
	for p.compare(depth); p.take("&&"); {
		p.compare(depth)
		p.emit(op{do: '&'})
	}
}

func (p *parser) compare(depth int) {
	p.sum(depth)
	for _, c := range [...]struct {
		token string
		do    byte
	}{{"==", '='}, {"!=", '#'}, {"<=", '{'}, {">=", '}'}, {"<", '<'}, {">", '>'}} {
		if p.take(c.token) {
			p.sum(depth)
			p.emit(op{do: c.do})
			return
		}
	}
}

func (p *parser) sum(depth int) {
	p.product(depth)
	for {
		switch {
		case p.take("+"):
			p.product(depth)
			p.emit(op{do: '+'})
		case p.take("-"):
			p.product(depth)
			p.emit(op{do: '-'})
		default:
			return
		}
	}
}

func (p *parser) product(depth int) {
	p.unary(depth)
	for {
		switch {
		case p.take("*"):
			p.unary(depth)
			p.emit(op{do: '*'})
		case p.take("/"):
			p.unary(depth)
			p.emit(op{do: '/'})
		default:
			return
		}
	}
}

func (p *parser) unary(depth int) {
	switch {
	case depth > maxDepth:
		p.stop("too many nested parts")
	case p.take("!"):
		p.unary(depth + 1)
		p.emit(op{do: '!'})
	case p.take("-"):
		p.unary(depth + 1)
		p.emit(op{do: 'n'})
	case p.take("("):
		p.or(depth + 1)
		p.want(")")
	default:
		p.primary(depth)
	}
}

func (p *parser) want(token string) {
	if !p.take(token) {
		p.fail(token)
	}
}

func (p *parser) primary(depth int) {
	p.space()
	start := p.at
	if p.wrong != "" || start == len(p.text) {
		p.fail("a value")
		return
	}
	switch c := p.text[start]; {
	case c == '"' || c == '\'' || c == '`':
		p.quoted(c)
	case c >= '0' && c <= '9':
		p.number()
	case isName(c) || c == '$':
		for p.at++; p.at < len(p.text) && (isName(p.text[p.at]) || p.text[p.at] == '.'); {
			p.at++
		}
		p.name(p.text[start:p.at], depth)
	default:
		p.fail("a value")
	}
}

func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80
}

func (p *parser) quoted(quote byte) {
	var text []byte
	for p.at++; p.at < len(p.text) && p.text[p.at] != quote; p.at++ {
		if p.text[p.at] == '\\' && p.at+1 < len(p.text) {
			if p.at++; quote == '`' {
				text = append(text, '\\') // paths know it themselves
			}
		}
		text = append(text, p.text[p.at])
	}
	if p.at == len(p.text) {
		p.fail(string(quote))
		return
	}
	p.at++
	if quote == '`' {
		p.path(string(text))
	} else {
		p.emit(op{do: 'l', v: Value{Kind: Text, Text: text}})
	}
}

func (p *parser) number() {
	start := p.at
	for p.at < len(p.text) {
		c := p.text[p.at]
		sign := (c == '+' || c == '-') && (p.text[p.at-1]|0x20) == 'e' && p.at > start
		if (c < '0' || c > '9') && c != '.' && c|0x20 != 'e' && !sign {
			break
		}
		p.at++
	}
	v, ok := weir.ParseNumber([]byte(p.text[start:p.at]))
	if !ok {
		p.at = start
		p.fail("a number")
		return
	}
	p.emit(op{do: 'l', v: Value{Kind: Number, Number: v}})
}

func (p *parser) name(name string, depth int) {
	switch name {
	case "true":
		p.emit(op{do: 'l', v: truth(true)})
	case "false":
		p.emit(op{do: 'l', v: truth(false)})
	case "null":
		p.emit(op{do: 'l'})
	case "$value":
		p.emit(op{do: 'v'})
	case "$key":
		p.emit(op{do: 'k'})
	case "$time":
		p.emit(op{do: 't'})
	case "$topic":
		p.emit(op{do: 'T'})
	default:
		switch {
		case name[0] == '$':
			p.at -= len(name)
			p.fail("$value, $key, $time or $topic")
		case p.take("("):
			p.call(name, depth)
		default:
			p.path(name)
		}
	}
}

func (p *parser) call(name string, depth int) {
	do := byte(0)
	switch name {
	case "abs":
		do = 'a'
	case "min":
		do = 'm'
	case "max":
		do = 'M'
	default:
		p.fail("abs, min or max before a parenthesis")
		return
	}
	p.or(depth + 1)
	if do != 'a' {
		p.want(",")
		p.or(depth + 1)
	}
	p.want(")")
	p.emit(op{do: do})
}

func (p *parser) path(text string) {
	path, err := weir.ParsePath(text)
	if err != nil || len(path) == 0 {
		p.fail("a path such as v or motor.phases.0.current")
		return
	}
	p.emit(op{do: 'p', path: path})
}

func truth(b bool) Value {
	v := Value{Kind: Bool}
	if b {
		v.Number = 1
	}
	return v
}

// True says whether the value is true.
func (v Value) True() bool { return v.Kind == Bool && v.Number == 1 }

// Eval computes the expression for a record.
func (e *Expr) Eval(r weir.Record) Value {
	s := e.stack[:0]
	for i := range e.code {
		o := &e.code[i]
		switch o.do {
		case 'l':
			s = append(s, o.v)
		case 'p':
			raw, _ := o.path.Find(r.Value)
			s = append(s, valueOfJSON(raw))
		case 'v':
			s = append(s, valueOfText(r.Value))
		case 'k':
			s = append(s, Value{Kind: Text, Text: r.Key})
		case 't':
			s = append(s, Value{Kind: Number, Number: float64(r.Time)})
		case 'T':
			s = append(s, topicOf(r))
		case '!', 'n', 'a':
			s[len(s)-1] = unary(o.do, s[len(s)-1])
		default:
			s[len(s)-2] = binary2(o.do, &s[len(s)-2], &s[len(s)-1])
			s = s[:len(s)-1]
		}
	}
	e.stack = s
	return s[0]
}

func topicOf(r weir.Record) Value {
	topic := r.Header("topic")
	if topic == nil {
		return Value{}
	}
	return Value{Kind: Text, Text: topic}
}

func valueOfText(text []byte) Value {
	if raw, ok := jsonValue(text); ok {
		return valueOfJSON(raw)
	}
	return Value{Kind: Text, Text: text}
}

func valueOfJSON(raw []byte) Value {
	if len(raw) == 0 {
		return Value{}
	}
	switch raw[0] {
	case '"':
		return Value{Kind: Text, Text: raw[1 : len(raw)-1], raw: raw}
	case '{', '[':
		return Value{Kind: Other, raw: raw}
	}
	switch string(raw) {
	case "true":
		return truth(true)
	case "false":
		return truth(false)
	}
	n, ok := weir.ParseNumber(raw)
	if !ok {
		return Value{}
	}
	return Value{Kind: Number, Number: n, raw: raw}
}

func number(v float64) Value {
	if v-v != 0 { // infinite, or not a number
		return Value{}
	}
	return Value{Kind: Number, Number: v}
}

func unary(do byte, v Value) Value {
	switch {
	case do == '!':
		return truth(!v.True())
	case v.Kind != Number:
		return Value{}
	case do == 'n':
		return number(-v.Number)
	case v.Number < 0:
		return number(-v.Number)
	}
	return number(v.Number)
}

func binary2(do byte, a, b *Value) Value {
	switch do {
	case '|':
		return truth(a.True() || b.True())
	case '&':
		return truth(a.True() && b.True())
	case '=':
		return truth(equal(a, b))
	case '#':
		return truth(!equal(a, b))
	case '<':
		return truth(less(a, b))
	case '>':
		return truth(less(b, a))
	case '{':
		return truth(less(a, b) || ordered(a) && equal(a, b))
	case '}':
		return truth(less(b, a) || ordered(a) && equal(a, b))
	}
	if a.Kind != Number || b.Kind != Number {
		return Value{}
	}
	x, y := a.Number, b.Number
	switch do {
	case '+':
		return number(x + y)
	case '-':
		return number(x - y)
	case '*':
		return number(x * y)
	case '/':
		return number(x / y)
	case 'm':
		if y < x {
			x = y
		}
	case 'M':
		if y > x {
			x = y
		}
	}
	return number(x)
}

func ordered(v *Value) bool { return v.Kind == Number || v.Kind == Text }

func equal(a, b *Value) bool {
	if a.Kind != b.Kind {
		return false
	}
	switch a.Kind {
	case Bool, Number:
		return a.Number == b.Number
	case Text:
		return bytes.Equal(a.Text, b.Text)
	case Other:
		return bytes.Equal(a.raw, b.raw)
	}
	return true
}

func less(a, b *Value) bool {
	switch {
	case a.Kind == Number && b.Kind == Number:
		return a.Number < b.Number
	case a.Kind == Text && b.Kind == Text:
		return bytes.Compare(a.Text, b.Text) < 0
	}
	return false
}

// AppendJSON appends the value as JSON: as it was in the record if it comes from there, else a number with so many
// decimals (0 to 9).
func (v Value) AppendJSON(dst []byte, decimals int) []byte {
	switch {
	case len(v.raw) > 0:
		return append(dst, v.raw...)
	case v.Kind == Text:
		return weir.AppendJSONString(dst, string(v.Text))
	case v.Kind == Number:
		return weir.AppendFixed(dst, v.Number, decimals)
	case v.Kind == Bool && v.True():
		return append(dst, "true"...)
	case v.Kind == Bool:
		return append(dst, "false"...)
	}
	return append(dst, "null"...)
}

// AppendText appends the value as a text without quotes.
func (v Value) AppendText(dst []byte, decimals int) []byte {
	if v.Kind == Text {
		return append(dst, v.Text...)
	}
	return v.AppendJSON(dst, decimals)
}
