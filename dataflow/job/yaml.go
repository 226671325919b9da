package job

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// maxFile bounds a job file in bytes, enough for some 600 operators. The time of the YAML parser
	// grows with the square of it on hostile files: seconds at this size, minutes at four times.
	maxFile = 64 << 10
	// maxNesting bounds how deep brackets and lists may nest on a line, for the same reason.
	maxNesting = 32
)

// reader walks a YAML tree and gathers what is wrong with it.
type reader struct {
	file string
	errs Errors
}

func (r *reader) fail(at Pos, hint, format string, args ...any) {
	r.errs = append(r.errs, &Error{File: r.file, Pos: at, Text: fmt.Sprintf(format, args...), Hint: hint})
}

// err returns what was gathered, sorted by position.
func (r *reader) err() error {
	if len(r.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(r.errs, func(a, b *Error) int {
		if a.Pos.Line != b.Pos.Line {
			return a.Pos.Line - b.Pos.Line
		}
		return a.Pos.Column - b.Pos.Column
	})
	return r.errs
}

// document parses data into the file's only document.
func (r *reader) document(data []byte) ast.Node {
	start := Pos{1, 1}
	if len(data) > maxFile {
		r.fail(start, fmt.Sprintf("at most %d", maxFile), "job file of %d bytes", len(data))
		return nil
	}
	f, err := r.parse(data)
	switch {
	case err != nil:
		r.syntax(err)
		return nil
	case f == nil:
		return nil
	case len(f.Docs) > 1:
		r.fail(nodePos(f.Docs[1]), "write one job to a file", "second document in the file")
		return nil
	case len(f.Docs) == 0 || f.Docs[0].Body == nil || f.Docs[0].Body.Type() == ast.NullType || f.Docs[0].Body.Type() == ast.CommentType:
		r.fail(start, "needed are name and sources", "the job file is empty")
		return nil
	}
	return f.Docs[0].Body
}

// parse turns a panic of the YAML parser, which some malformed files cause, into an error.
func (r *reader) parse(data []byte) (f *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			f, err = nil, fmt.Errorf("malformed YAML (%v)", p)
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if at, deep := nestedTooDeep(tokens); deep {
		r.fail(at, fmt.Sprintf("at most %d levels", maxNesting), "nested too deep")
		return nil, nil
	}
	// Duplicate keys are found by object, which reports them beside other errors.
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// nestedTooDeep looks at what nests without taking a line of its own.
func nestedTooDeep(tokens token.Tokens) (Pos, bool) {
	brackets, marks, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, marks = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets++
		case token.SequenceEndType, token.MappingEndType:
			brackets--
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType:
			marks++
		}
		if brackets > maxNesting || marks > maxNesting {
			return tokenPos(t), true
		}
	}
	return Pos{}, false
}

func (r *reader) syntax(err error) {
	at, text := Pos{1, 1}, err.Error()
	if y, ok := err.(yaml.Error); ok {
		at, text = tokenPos(y.GetToken()), y.GetMessage()
	}
	r.fail(at, "", "not YAML: %s", text)
}

func tokenPos(t *token.Token) Pos {
	if t == nil || t.Position == nil {
		return Pos{1, 1}
	}
	return Pos{t.Position.Line, t.Position.Column}
}

func nodePos(n ast.Node) Pos {
	switch v := n.(type) {
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			return tokenPos(v.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return tokenPos(v.Key.GetToken())
	case *ast.DocumentNode:
		if v.Body != nil {
			return nodePos(v.Body)
		}
		return tokenPos(v.Start)
	}
	return tokenPos(n.GetToken())
}

// describe names what stands in the file, for messages.
func describe(n ast.Node) string {
	switch v := n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		if len(v.Values) == 0 {
			return "an empty list"
		}
		return "a list"
	case *ast.StringNode:
		return "the string " + strconv.Quote(v.Value)
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "the number " + n.GetToken().Value
	case *ast.BoolNode:
		return "the truth value " + n.GetToken().Value
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "an anchor or alias"
	case *ast.TagNode:
		return "a tag"
	}
	return "something else"
}

// field is one key of a mapping.
type field struct {
	name string
	at   Pos // of the key
	node ast.Node
}

// object is a mapping whose keys have been checked.
type object struct {
	what    string // for messages: "source readings"
	at      Pos
	fields  []field
	unknown bool // some keys were not allowed
}

func (o *object) get(name string) (field, bool) {
	for _, f := range o.fields {
		if f.name == name {
			return f, true
		}
	}
	return field{}, false
}

// shape is what may stand in a mapping: one of the kinds, if there are any, and keys. The zero shape
// allows any keys.
type shape struct{ kinds, keys []string }

func (s shape) allows(key string) bool {
	return s.isOpen() || slices.Contains(s.kinds, key) || slices.Contains(s.keys, key)
}

func (s shape) isOpen() bool { return len(s.kinds)+len(s.keys) == 0 }

// hint says what is allowed instead of got, which may be empty.
func (s shape) hint(got string) string {
	if s.isOpen() {
		return ""
	}
	known := "keys: " + list(s.keys)
	if len(s.kinds) > 0 {
		known = "kinds: " + list(s.kinds) + "; other " + known
	}
	if near := nearest(got, slices.Concat(s.kinds, s.keys)); got != "" && near != "" {
		return "did you mean " + near + "? " + known
	}
	return known
}

// object reads a mapping of keys that are all known; without any, all are.
func (r *reader) object(n ast.Node, at Pos, what string, keys ...string) (*object, bool) {
	return r.shaped(n, at, what, shape{keys: keys})
}

func (r *reader) shaped(n ast.Node, at Pos, what string, allowed shape) (*object, bool) {
	var pairs []*ast.MappingValueNode
	switch v := n.(type) {
	case *ast.MappingNode:
		pairs = v.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{v}
	default:
		if n != nil && n.Type() != ast.NullType {
			at = nodePos(n)
		}
		r.fail(at, allowed.hint(""), "%s must be a mapping, found %s", what, describe(n))
		return nil, false
	}
	o := &object{what: what, at: at}
	for _, pair := range pairs {
		r.addField(o, pair, allowed)
	}
	return o, true
}

func (r *reader) addField(o *object, pair *ast.MappingValueNode, allowed shape) {
	at := tokenPos(pair.Key.GetToken())
	key, ok := pair.Key.(*ast.StringNode)
	if !ok {
		r.fail(at, "quote it if it is meant as one", "key in %s must be a string", o.what)
		return
	}
	if !allowed.allows(key.Value) {
		o.unknown = true
		r.fail(at, allowed.hint(key.Value), "unknown key %q in %s", key.Value, o.what)
		return
	}
	if first, twice := o.get(key.Value); twice {
		r.fail(at, fmt.Sprintf("the first is in line %d", first.at.Line), "key %q is there twice in %s", key.Value, o.what)
		return
	}
	o.fields = append(o.fields, field{key.Value, at, pair.Value})
}

func (r *reader) wrongType(f field, o *object, want, hint string) {
	at := f.at
	if f.node != nil && f.node.Type() != ast.NullType {
		at = nodePos(f.node)
	}
	r.fail(at, hint, "%s of %s must be %s, found %s", f.name, o.what, want, describe(f.node))
}

// str reads an optional string; it is empty where the key is missing or wrong.
func (r *reader) str(o *object, name string) (string, Pos, bool) {
	f, ok := o.get(name)
	if !ok {
		return "", o.at, false
	}
	s, ok := text(f.node)
	if !ok {
		hint := ""
		if _, scalar := scalarText(f.node); scalar {
			hint = "quote it"
		}
		r.wrongType(f, o, "a string", hint)
		return "", f.at, false
	}
	return s, nodePos(f.node), true
}

// filled reads an optional string that must not be empty.
func (r *reader) filled(o *object, name string) (string, Pos, bool) {
	s, at, ok := r.str(o, name)
	if ok && s == "" {
		r.fail(at, "leave the key out if it is not wanted", "%s of %s is empty", name, o.what)
		return "", at, false
	}
	return s, at, ok
}

// needed reads a string that must be there and not be empty. When it is missing an error is added.
func (r *reader) needed(o *object, name, hint string) (string, Pos, bool) {
	f, ok := o.get(name)
	if !ok {
		r.fail(o.at, hint, "%s has no %s", o.what, name)
		return "", o.at, false
	}
	s, at, ok := r.str(o, name)
	if ok && s == "" {
		r.fail(at, hint, "%s of %s is empty", name, o.what)
		return "", f.at, false
	}
	return s, at, ok
}

// choice reads a string that must be one of a few; the first is the default.
func (r *reader) choice(o *object, name string, allowed ...string) string {
	s, at, ok := r.str(o, name)
	if !ok {
		return allowed[0]
	}
	if !slices.Contains(allowed, s) {
		r.fail(at, suggest(s, allowed), "%s of %s is %q", name, o.what, s)
		return allowed[0]
	}
	return s
}

func (r *reader) integer(o *object, name string, lowest, highest, missing int) (int, Pos) {
	f, ok := o.get(name)
	if !ok {
		return missing, o.at
	}
	v, isInt := f.node.(*ast.IntegerNode)
	if !isInt {
		r.wrongType(f, o, "a whole number", fmt.Sprintf("%d to %d", lowest, highest))
		return missing, f.at
	}
	n, err := strconv.Atoi(v.GetToken().Value)
	if err != nil || n < lowest || n > highest {
		r.fail(nodePos(v), fmt.Sprintf("it is a whole number from %d to %d", lowest, highest),
			"%s of %s is %s", name, o.what, v.GetToken().Value)
		return missing, f.at
	}
	return n, nodePos(v)
}

func (r *reader) boolean(o *object, name string, missing bool) bool {
	f, ok := o.get(name)
	if !ok {
		return missing
	}
	v, isBool := f.node.(*ast.BoolNode)
	if !isBool {
		r.wrongType(f, o, "true or false", "")
		return missing
	}
	return v.Value
}

// texts reads a mapping of names to scalars; numbers and truth values are taken as they are written. Where names are
// allowed, others are refused.
func (r *reader) texts(o *object, name string, allowed ...string) (m map[string]string, at map[string]Pos) {
	f, ok := o.get(name)
	if !ok {
		return nil, nil
	}
	sub, ok := r.object(f.node, f.at, name+" of "+o.what, allowed...)
	if !ok {
		return nil, nil
	}
	m, at = make(map[string]string, len(sub.fields)), map[string]Pos{}
	for _, v := range sub.fields {
		s, ok := scalarText(v.node)
		if !ok {
			r.wrongType(v, sub, "a string, a number or a truth value", "")
			continue
		}
		m[v.name], at[v.name] = s, v.at
	}
	return m, at
}

func text(n ast.Node) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		return v.Value.Value, true
	}
	return "", false
}

func scalarText(n ast.Node) (string, bool) {
	if s, ok := text(n); ok {
		return s, true
	}
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return strings.TrimSpace(n.GetToken().Value), true
	}
	return "", false
}
