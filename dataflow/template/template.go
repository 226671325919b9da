// Package template expands the small text templates of sinks: topics, payloads and lines.
//
// A placeholder is an opening brace, one or more letters a–z, and a closing brace: {key} {value}
// {time} {number} {channel} {topic}. {value.PATH} is a field of the JSON in the value; the path is one
// of gjson without white space, quotes and braces. A text stands there without its quotes, everything
// else as it is written. A placeholder with another name is an error. Every other brace is literal, so
// that JSON can be written as it is:
//
//	{"n":{number},"channel":"{channel}","v":{value},"machine":"{value.machine.id}"}
//
// There is no way to write the literal text of a placeholder. What is put in is not escaped: quotes
// around {value} in a JSON template are right for text without quotes, none are right for JSON.
package template

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/weir-stream/weir/dataflow/frame"
)

// TopicHeader is the name of the record header that holds the topic a record came in with, if that
// is not its key.
const TopicHeader = "topic"

// Fields is what a template can put in.
type Fields struct {
	Record  frame.Record
	Number  uint64 // the record's number on the sink's channel
	Channel string
}

// topic is where the record came in: its header, else its key.
func (f Fields) topic() []byte {
	if t := f.Record.Header(TopicHeader); t != nil {
		return t
	}
	return f.Record.Key
}

// Template is a compiled template. It is immutable; the zero value expands to nothing.
type Template struct {
	source string
	parts  []part
}

// part is literal text or, if field is not zero, one placeholder; literal is then the path, if it has one.
type part struct {
	literal string
	field   field
}

type field uint8

const (
	fieldKey field = iota + 1
	fieldValue
	fieldTime
	fieldNumber
	fieldChannel
	fieldTopic
	fieldPath
)

// valuePrefix begins a placeholder for a field of the value.
const valuePrefix = "value."

var fields = map[string]field{
	"key": fieldKey, "value": fieldValue, "time": fieldTime,
	"number": fieldNumber, "channel": fieldChannel, "topic": fieldTopic,
}

// Known lists the placeholders, for messages.
const Known = "{key} {value} {value.PATH} {time} {number} {channel} {topic}"

// Parse compiles a template. The error names an unknown placeholder and its place in bytes.
func Parse(source string) (Template, error) {
	t := Template{source: source}
	start := 0
	for at := 0; at < len(source); {
		name, ok := placeholder(source[at:])
		if !ok {
			at++
			continue
		}
		path, isPath := strings.CutPrefix(name, valuePrefix)
		f, known := fields[name]
		switch {
		case isPath:
			f = fieldPath
		case !known:
			return Template{}, fmt.Errorf("template %q: unknown placeholder {%s} at byte %d; known are %s", source, name, at, Known)
		default:
			path = ""
		}
		t.literal(source[start:at])
		t.parts = append(t.parts, part{path, f})
		at += len(name) + 2
		start = at
	}
	t.literal(source[start:])
	return t, nil
}

func (t *Template) literal(s string) {
	if s != "" {
		t.parts = append(t.parts, part{literal: s})
	}
}

// IsPath says whether a placeholder's name is that of a field of the value.
func IsPath(name string) bool {
	path, ok := strings.CutPrefix(name, valuePrefix)
	return ok && path != "" && !strings.ContainsFunc(path, func(c rune) bool { return c <= ' ' || strings.ContainsRune("\"{}", c) })
}

// placeholder reads a brace, letters a–z or the path of a field, and a closing brace at the beginning of s.
func placeholder(s string) (string, bool) {
	if s[0] != '{' {
		return "", false
	}
	if end := strings.IndexByte(s, '}'); end > 0 && IsPath(s[1:end]) {
		return s[1:end], true
	}
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z':
		case c == '}' && i > 1:
			return s[1:i], true
		default:
			return "", false
		}
	}
	return "", false
}

// String is the template's source.
func (t Template) String() string { return t.source }

// Append appends the expanded template to dst. Time is in milliseconds since 1970; {topic} is the
// record's topic header, else its key. A field that the value does not have, or has as null, expands to
// nothing; the error names the first one.
func (t Template) Append(dst []byte, f Fields) ([]byte, error) {
	var missing error
	for _, p := range t.parts {
		switch p.field {
		case 0:
			dst = append(dst, p.literal...)
		case fieldKey:
			dst = append(dst, f.Record.Key...)
		case fieldValue:
			dst = append(dst, f.Record.Value...)
		case fieldTime:
			dst = strconv.AppendInt(dst, f.Record.Time, 10)
		case fieldNumber:
			dst = strconv.AppendUint(dst, f.Number, 10)
		case fieldChannel:
			dst = append(dst, f.Channel...)
		case fieldTopic:
			dst = append(dst, f.topic()...)
		case fieldPath:
			text, err := fieldOf(f.Record.Value, p.literal)
			dst = append(dst, text...)
			if missing == nil {
				missing = err
			}
		}
	}
	return dst, missing
}

func fieldOf(value []byte, path string) (string, error) {
	if !gjson.ValidBytes(value) {
		return "", fmt.Errorf("the value is not JSON, so it has no field %q", path)
	}
	r := gjson.GetBytes(value, path)
	if !r.Exists() {
		return "", fmt.Errorf("the value has no field %q", path)
	}
	if r.Type == gjson.Null {
		return "", fmt.Errorf("the value's field %q is null", path)
	}
	if r.Type == gjson.Number {
		return r.Raw, nil // as it is written: no digit is lost
	}
	return r.String(), nil
}
