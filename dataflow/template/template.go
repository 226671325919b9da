// Package template expands the small text templates of sinks: topics, payloads and lines.
//
// A placeholder is an opening brace, one or more letters a–z, and a closing brace: {key} {value}
// {time} {number} {channel} {topic}. A placeholder with another name is an error. Every other brace
// is literal, so that JSON can be written as it is:
//
//	{"n":{number},"channel":"{channel}","v":{value}}
//
// There is no way to write the literal text of a placeholder. What is put in is not escaped: quotes
// around {value} in a JSON template are right for text without quotes, none are right for JSON.
package template

import (
	"fmt"
	"strconv"

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

// part is literal text or, if field is not zero, one placeholder.
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
)

var fields = map[string]field{
	"key": fieldKey, "value": fieldValue, "time": fieldTime,
	"number": fieldNumber, "channel": fieldChannel, "topic": fieldTopic,
}

// Known lists the placeholders, for messages.
const Known = "{key} {value} {time} {number} {channel} {topic}"

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
		f, known := fields[name]
		if !known {
			return Template{}, fmt.Errorf("template %q: unknown placeholder {%s} at byte %d; known are %s", source, name, at, Known)
		}
		t.literal(source[start:at])
		t.parts = append(t.parts, part{field: f})
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

// placeholder reads a brace, letters a–z and a closing brace at the beginning of s.
func placeholder(s string) (string, bool) {
	if s[0] != '{' {
		return "", false
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
// record's topic header, else its key.
func (t Template) Append(dst []byte, f Fields) []byte {
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
		}
	}
	return dst
}

// Expand is Append to a new slice.
func (t Template) Expand(f Fields) []byte { return t.Append(nil, f) }
