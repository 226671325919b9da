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
		Record: frame.Record{Time: 1700000000123, Key: []byte("m7"), Headers: headers, Value: []byte(`{"x":1}`)},
		Number: 42, Channel: "smooth@g1.out>alarms",
	}
}

func TestExpand(t *testing.T) {
	for _, c := range []struct{ source, want string }{
		{"", ""},
		{"plain", "plain"},
		{"{value}", `{"x":1}`},
		{"alarms/{key}", "alarms/m7"},
		{"{topic}/{time}", "plant/a/7/1700000000123"},
		{`{"n":{number},"channel":"{channel}","v":{value}}`, `{"n":42,"channel":"smooth@g1.out>alarms","v":{"x":1}}`},
		{"{{key}}", "{m7}"},
		{"{}{ key}{Key}{key1}{", "{}{ key}{Key}{key1}{"},
		{"{key", "{key"},
		{"{key{key}", "{keym7"},
		{"}{", "}{"},
	} {
		tmpl, err := Parse(c.source)
		if err != nil {
			t.Errorf("%q: %v", c.source, err)
			continue
		}
		if got := string(tmpl.Expand(sample(t))); got != c.want {
			t.Errorf("%q: got %q, want %q", c.source, got, c.want)
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
	if got := tmpl.Expand(Fields{Record: frame.Record{Key: []byte("a/b")}}); string(got) != "a/b" {
		t.Errorf("got %q", got)
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
	for _, s := range []string{"", "{key}", "{{", "{a", "{value}}", `{"n":{number}}`} {
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
		got := tmpl.Expand(fields)
		want := strings.NewReplacer("{key}", "m7", "{value}", `{"x":1}`, "{time}", "1700000000123", "{number}", "42",
			"{channel}", fields.Channel, "{topic}", "plant/a/7").Replace(source)
		if !bytes.Equal(got, []byte(want)) {
			t.Fatalf("%q: got %q, want %q", source, got, want)
		}
	})
}
