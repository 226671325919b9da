package template

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/frame"
)

func sample(t testing.TB) Fields {
	t.Helper()
	headers, ok := frame.AppendHeader(nil, TopicHeader, []byte("plant/a/7"))
	if !ok {
		t.Fatal("header refused")
	}
	return Fields{
		Record: frame.Record{Time: 1700000000123, Key: []byte("m7"), Headers: headers, Value: []byte(`{"x":1,"s":"t","o":{"b":true},"a":[4,5],"n":null}`)},
		Number: 42, Channel: "smooth@g1.out>alarms",
	}
}

func TestExpand(t *testing.T) {
	for _, c := range []struct{ source, want string }{
		{"", ""},
		{"plain", "plain"},
		{"{value}", `{"x":1,"s":"t","o":{"b":true},"a":[4,5],"n":null}`},
		{"alarms/{key}", "alarms/m7"},
		{"{topic}/{time}", "plant/a/7/1700000000123"},
		{`{"n":{number},"channel":"{channel}","v":{value}}`, `{"n":42,"channel":"smooth@g1.out>alarms","v":{"x":1,"s":"t","o":{"b":true},"a":[4,5],"n":null}}`},
		{"{{key}}", "{m7}"},
		{"{}{ key}{Key}{key1}{", "{}{ key}{Key}{key1}{"},
		{"{key", "{key"},
		{"{key{key}", "{keym7"},
		{"}{", "}{"},
		{"{value.x}", "1"},
		{"{value.s}/{value.o.b}/{value.a.1}/{value.o}", "t/true/5/{\"b\":true}"},
		{"{value.a.#(>4)}", "5"},
		{"{value.}{value. x}{value.x", "{value.}{value. x}{value.x"},
	} {
		tmpl, err := Parse(c.source)
		if err != nil {
			t.Errorf("%q: %v", c.source, err)
			continue
		}
		if got, err := tmpl.Append(nil, sample(t)); string(got) != c.want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", c.source, got, err, c.want)
		}
		if tmpl.String() != c.source {
			t.Errorf("source %q became %q", c.source, tmpl.String())
		}
	}
}

func TestTopicIsTheKeyWithoutAHeader(t *testing.T) {
	tmpl, err := Parse("{topic}")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tmpl.Append(nil, Fields{Record: frame.Record{Key: []byte("a/b")}}); string(got) != "a/b" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// No digit of a number is lost.
func TestNumbersAreAsTheyAreWritten(t *testing.T) {
	tmpl, err := Parse("{value.y}")
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range []string{"1234567890123456789.5", "0.1000000000000000055", "1.50", "1e400", "-0"} {
		if got, err := tmpl.Append(nil, Fields{Record: frame.Record{Value: []byte(`{"y": ` + number + `}`)}}); string(got) != number || err != nil {
			t.Errorf("%s: %q, %v", number, got, err)
		}
	}
}

// A field that is not there is named, and everything else expands.
func TestMissingFields(t *testing.T) {
	tmpl, err := Parse("a{value.y}b{value.z}c")
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		`{"x":1}`: `the value has no field "y"`, `{"y":null}`: `field "y" is null`, `{"y":1}`: `no field "z"`, "text": "not JSON", "": "not JSON",
	} {
		got, err := tmpl.Append(nil, Fields{Record: frame.Record{Value: []byte(value)}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(string(got), "a") || !strings.HasSuffix(string(got), "bc") {
			t.Errorf("%s: %q, %v", value, got, err)
		}
	}
}

func TestUnknownPlaceholderIsNamed(t *testing.T) {
	_, err := Parse("x/{keys}")
	if err == nil || !strings.Contains(err.Error(), "{keys} at byte 2") {
		t.Errorf("got %v", err)
	}
}

// Without a known placeholder, a template that parses is its own expansion.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"", "{key}", "{{", "{a", "{value}}", `{"n":{number}}`, "{value.x}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if err != nil {
			if !strings.Contains(err.Error(), "unknown placeholder") {
				t.Fatalf("%q: %v", source, err)
			}
			return
		}
		fields := sample(t)
		got, err := tmpl.Append(nil, fields)
		if strings.Contains(source, "{value.") {
			if err != nil && !strings.Contains(err.Error(), "no field") {
				t.Fatalf("%q: %v", source, err)
			}
			return
		}
		want := strings.NewReplacer("{key}", "m7", "{value}", string(fields.Record.Value), "{time}", "1700000000123", "{number}", "42",
			"{channel}", fields.Channel, "{topic}", "plant/a/7").Replace(source)
		if !bytes.Equal(got, []byte(want)) {
			t.Fatalf("%q: got %q, want %q", source, got, want)
		}
	})
}
