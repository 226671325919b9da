// Package optest runs an operator on recorded input and compares what comes out with what is wanted:
// at several batch sizes, once whole and once snapshotted and restored into a new instance after every
// batch.
package optest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/weir-stream/weir/dataflow/frame"
)

// MainOutput is the output of a line that names none.
const MainOutput = "out"

// Line is one record in the JSON lines format: one object a line,
//
//	{"output":"alerts","key":"m7","time":1700000000000,"headers":{"topic":"a/b"},"value":{"v":1.5}}
//
// Input, of records to process, is the index of the operator's input, 0 to 63: {"input":1,…}.
// Two kinds of lines of the input move time instead: {"watermark":1700000000000} moves the watermark, and
// {"clock":1700000000000} the clock, which fires timers of processing time; neither goes back. After the last
// line the input ends.
//
// All fields may be left out. Key and header values are strings, or {"base64":"…"} if they are not
// UTF-8. Value is a string, whose text is the record's value, or {"base64":"…"}, or any other JSON, which
// is passed on compactly. Time is in milliseconds since 1970. Output is used of what is wanted.
type Line struct {
	Kind   LineKind // but for a record, only Record.Time is used
	Output string
	Input  int
	Record frame.Record
}

// LineKind is what a line is.
type LineKind uint8

// Kinds of lines.
const (
	RecordLine LineKind = iota
	WatermarkLine
	ClockLine
)

// rawLine is a line before its fields are read.
type rawLine struct {
	Output  string          `json:"output"`
	Input   int             `json:"input"`
	Key     json.RawMessage `json:"key"`
	Time    int64           `json:"time"`
	Headers json.RawMessage `json:"headers"`
	Value   json.RawMessage `json:"value"`

	Watermark *int64 `json:"watermark"`
	Clock     *int64 `json:"clock"`
}

// move reads a line that moves time; false if it is a record.
func (l rawLine) move() (Line, bool, error) {
	if l.Watermark == nil && l.Clock == nil {
		return Line{}, false, nil
	}
	if l.Watermark != nil && l.Clock != nil || l.Output != "" || l.Input != 0 || l.Key != nil || l.Time != 0 || l.Headers != nil || l.Value != nil {
		return Line{}, true, errors.New("a line that moves the watermark or the clock has nothing else")
	}
	if l.Clock != nil {
		return Line{Kind: ClockLine, Record: frame.Record{Time: *l.Clock}}, true, nil
	}
	return Line{Kind: WatermarkLine, Record: frame.Record{Time: *l.Watermark}}, true, nil
}

// maxLine bounds a line in bytes: the largest record, each byte written as \u0000.
const maxLine = 6*frame.MaxRecord + 64<<10

// maxInputs bounds the inputs of an operator under test.
const maxInputs = 64

// ReadLines reads all lines. Empty ones are passed over. An error names the line, counted from 1.
func ReadLines(r io.Reader) ([]Line, error) {
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, maxLine)
	var lines []Line
	n := 0
	for scan.Scan() {
		n++
		text := bytes.TrimSpace(scan.Bytes())
		if len(text) == 0 {
			continue
		}
		line, err := ParseLine(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		lines = append(lines, line)
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	return lines, nil
}

// ParseLine reads one line. The record owns its memory.
func ParseLine(text []byte) (Line, error) {
	var raw rawLine
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&raw); err != nil {
		return Line{}, err
	}
	if _, err := d.Token(); err != io.EOF {
		return Line{}, errors.New("more than one JSON value")
	}
	if line, moves, err := raw.move(); moves {
		return line, err
	}
	line := Line{Output: raw.Output, Input: raw.Input, Record: frame.Record{Time: raw.Time}}
	if line.Input < 0 || line.Input >= maxInputs {
		return Line{}, fmt.Errorf("input %d: 0 to %d", line.Input, maxInputs-1)
	}
	if line.Output == "" {
		line.Output = MainOutput
	}
	var err error
	if line.Record.Key, err = parseString(raw.Key); err != nil {
		return Line{}, fmt.Errorf("key: %w", err)
	}
	if line.Record.Headers, err = parseHeaders(raw.Headers); err != nil {
		return Line{}, fmt.Errorf("headers: %w", err)
	}
	if line.Record.Value, err = parseValue(raw.Value); err != nil {
		return Line{}, fmt.Errorf("value: %w", err)
	}
	return line, line.Record.Check()
}

// binaryText is how bytes that are not text are written.
type binaryText struct {
	Base64 *[]byte `json:"base64"`
}

// parseBinary reads {"base64":"…"}; false if raw is something else.
func parseBinary(raw []byte) ([]byte, bool, error) {
	var fields map[string]json.RawMessage
	if len(raw) == 0 || raw[0] != '{' || json.Unmarshal(raw, &fields) != nil || len(fields) != 1 || fields["base64"] == nil {
		return nil, false, nil
	}
	var b binaryText
	if err := json.Unmarshal(raw, &b); err != nil || b.Base64 == nil {
		return nil, false, fmt.Errorf("%s is not a base64 string", fields["base64"])
	}
	return *b.Base64, true, nil
}

func parseString(raw []byte) ([]byte, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	if b, ok, err := parseBinary(raw); ok || err != nil {
		return b, err
	}
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return nil, fmt.Errorf(`%s is neither a string nor {"base64":"…"}`, raw)
	}
	return []byte(*s), nil
}

func parseValue(raw []byte) ([]byte, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	if raw[0] == '"' {
		return parseString(raw)
	}
	if b, ok, err := parseBinary(raw); ok || err != nil {
		return b, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

// parseHeaders reads an object in the order in which it is written.
func parseHeaders(raw []byte) ([]byte, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("%s is not an object", raw)
	}
	var headers []byte
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		name := t.(string) // the decoder lets nothing else stand there
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		v, err := parseString(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		var ok bool
		if headers, ok = frame.AppendHeader(headers, name, v); !ok {
			return nil, fmt.Errorf("%s: name of %d or value of %d bytes is too long", name, len(name), len(v))
		}
	}
	return headers, nil
}

// AppendLine appends the line and a newline. [ParseLine] reads it back as it was, if its header block
// is well-formed.
func AppendLine(dst []byte, l Line) []byte {
	switch l.Kind {
	case WatermarkLine:
		return fmt.Appendf(dst, "{\"watermark\":%d}\n", l.Record.Time)
	case ClockLine:
		return fmt.Appendf(dst, "{\"clock\":%d}\n", l.Record.Time)
	}
	dst = append(dst, '{')
	if l.Output != "" && l.Output != MainOutput {
		dst = append(appendText(append(dst, `"output":`...), []byte(l.Output)), ',')
	}
	if l.Input != 0 {
		dst = fmt.Appendf(dst, `"input":%d,`, l.Input)
	}
	dst = appendText(append(dst, `"key":`...), l.Record.Key)
	dst = fmt.Appendf(dst, `,"time":%d`, l.Record.Time)
	if len(l.Record.Headers) > 0 {
		dst = appendHeaders(append(dst, `,"headers":{`...), l.Record.Headers)
		dst = append(dst, '}')
	}
	dst = appendValue(append(dst, `,"value":`...), l.Record.Value)
	return append(dst, "}\n"...)
}

func appendHeaders(dst, block []byte) []byte {
	for first := true; len(block) >= 3; first = false {
		n, v := int(block[0]), int(block[1])|int(block[2])<<8
		if 3+n+v > len(block) {
			break
		}
		if !first {
			dst = append(dst, ',')
		}
		dst = append(appendJSON(dst, string(block[3:3+n])), ':')
		dst = appendText(dst, block[3+n:3+n+v])
		block = block[3+n+v:]
	}
	return dst
}

// appendText appends a JSON string, or base64 if b is not UTF-8.
func appendText(dst, b []byte) []byte {
	if utf8.Valid(b) {
		return appendJSON(dst, string(b))
	}
	return append(appendJSON(append(dst, `{"base64":`...), b), '}')
}

// appendValue appends what [ParseLine] turns into b: b itself if it is compact JSON that is passed on
// as it is, else a string or base64.
func appendValue(dst, b []byte) []byte {
	if isCompact(b) {
		if _, looksBinary, err := parseBinary(b); !looksBinary && err == nil {
			return append(dst, b...)
		}
	}
	return appendText(dst, b)
}

func isCompact(b []byte) bool {
	if len(b) == 0 || b[0] == '"' || !utf8.Valid(b) {
		return false
	}
	var compact bytes.Buffer
	return json.Compact(&compact, b) == nil && slices.Equal(compact.Bytes(), b)
}

// appendJSON appends a string or bytes as JSON, without escapes for HTML.
func appendJSON(dst []byte, v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // strings and bytes always encode
		panic(err)
	}
	return append(dst, bytes.TrimRight(b.Bytes(), "\n")...)
}
