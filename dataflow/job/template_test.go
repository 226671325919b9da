package job

import (
	"slices"
	"testing"
)

func TestTopicFiltersOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a/b", "a", false},
		{"+", "a", true}, {"+/b", "a/+", true}, {"+/b", "a/c", false},
		{"#", "a/b", true}, {"a/#", "a", true}, {"a/#", "ab", false}, {"a/#", "a/b/c", true},
		{"a/+/c", "a/b", false}, {"a/+/#", "a/b", true}, {"a//c", "a/+/c", true},
		{"#", "$SYS/x", false}, {"$SYS/#", "$SYS/x", true}, {"+/x", "$SYS/x", false},
	} {
		if got := overlap(c.a, c.b); got != c.want {
			t.Errorf("%s and %s: %v", c.a, c.b, got)
		}
		if got := overlap(c.b, c.a); got != c.want {
			t.Errorf("%s and %s: %v", c.b, c.a, got)
		}
	}
}

func TestPlaceholders(t *testing.T) {
	for s, want := range map[string][]string{
		"":                        nil,
		"{}":                      nil,
		"{key}":                   {"key"},
		`{"n":{number},"v":{}}`:   {"number"},
		"{ key }{Key}{key":        nil,
		"{{key}}":                 {"key"},
		"{label.line-1}{label.}":  {"label.line-1"},
		"a}{b}{c{d}":              {"b", "d"},
		"{agent}/{label.a.b}/{x}": {"agent", "label.a.b", "x"},
	} {
		var got []string
		eachPlaceholder(s, func(name string, start, end int) {
			if s[start:end] != "{"+name+"}" {
				t.Errorf("%s: %q stands at %d–%d", s, name, start, end)
			}
			got = append(got, name)
		})
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", s, got, want)
		}
	}
}

func TestExpand(t *testing.T) {
	a := Agent{Name: "g1", Labels: map[string]string{"line": "a/b"}}
	got, err := expand(`x{agent}/{label.line}{{task}}{key}{`, a, "fleet-0")
	if want := `xg1/a/b{fleet-0}{key}{`; got != want || err != nil {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

func FuzzPlaceholders(f *testing.F) {
	f.Add(`{"n":{number},"a":"{agent}{label.x}"}`)
	f.Fuzz(func(t *testing.T, s string) {
		got, err := expand(s, Agent{Name: "{agent}", Labels: map[string]string{}}, "t")
		var names []string
		eachPlaceholder(s, func(name string, _, _ int) { names = append(names, name) })
		if len(names) == 0 && (got != s || err != nil) {
			t.Errorf("%q became %q, %v", s, got, err)
		}
	})
}
