package abs

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the output of the scripts into testdata")

// A script is a sequence of commands, each one or more lines, then a line "----", then the output
// up to an empty line. Lines that start with # before a command are comments. The file name's first
// word says which bench runs it: aligner, coordinator, restore or backedge.

type command struct {
	name string
	args []string // words of the first line that are not key=value
	opts map[string]string
	body []string // the lines that follow
}

type bench interface {
	run(c command) string
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in testdata: %v", err)
	}
	benches := map[string]func() bench{
		"aligner":     func() bench { return &alignerBench{} },
		"coordinator": func() bench { return &coordinatorBench{} },
		"restore":     func() bench { return &restoreBench{} },
		"backedge":    func() bench { return backedgeBench{} },
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		kind, _, _ := strings.Cut(name, "-")
		t.Run(name, func(t *testing.T) {
			if benches[kind] == nil {
				t.Fatalf("no bench %q", kind)
			}
			runScript(t, file, benches[kind]())
		})
	}
}

func runScript(t *testing.T, file string, b bench) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	for i := 0; i < len(lines); {
		if lines[i] == "" || strings.HasPrefix(lines[i], "#") {
			out.WriteString(lines[i] + "\n")
			i++
			continue
		}
		start := i
		for i < len(lines) && lines[i] != "----" {
			out.WriteString(lines[i] + "\n")
			i++
		}
		if i == len(lines) {
			t.Fatalf("%s:%d: command without ----", file, start+1)
		}
		cmd := parseCommand(lines[start:i])
		i++
		var want []string
		for ; i < len(lines) && lines[i] != ""; i++ {
			want = append(want, lines[i])
		}
		got := strings.TrimRight(b.run(cmd), "\n")
		out.WriteString("----\n")
		if got != "" {
			out.WriteString(got + "\n")
		}
		if !*update && got != strings.Join(want, "\n") {
			t.Errorf("%s:%d: %s\ngot:\n%s\nwant:\n%s", file, start+1, lines[start], got, strings.Join(want, "\n"))
		}
	}
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func parseCommand(lines []string) command {
	words := strings.Fields(lines[0])
	c := command{name: words[0], opts: map[string]string{}, body: lines[1:]}
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			c.opts[k] = v
			continue
		}
		c.args = append(c.args, w)
	}
	return c
}

func (c command) arg(i int) string {
	if i >= len(c.args) {
		panic(fmt.Sprintf("script: %s needs an argument %d", c.name, i+1))
	}
	return c.args[i]
}

func (c command) num(i int) uint64 { return number(c.arg(i)) }

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("script: %q is not a number", s))
	}
	return n
}

func (c command) has(flag string) bool {
	for _, a := range c.args {
		if a == flag {
			return true
		}
	}
	return false
}

// words splits a comma-separated option; nil if absent or empty.
func (c command) words(key string) []string {
	if c.opts[key] == "" {
		return nil
	}
	return strings.Split(c.opts[key], ",")
}

// seqs parses "c1:5,c2:7".
func (c command) seqs(key string) map[ChannelID]Seq {
	out := map[ChannelID]Seq{}
	for _, w := range c.words(key) {
		ch, n, _ := strings.Cut(w, ":")
		out[ChannelID(ch)] = Seq(number(n))
	}
	return out
}

func channels(words []string) []ChannelID {
	var out []ChannelID
	for _, w := range words {
		out = append(out, ChannelID(w))
	}
	return out
}

func join[T ~string](list []T) string {
	if len(list) == 0 {
		return "-"
	}
	words := make([]string, len(list))
	for i, w := range list {
		words[i] = string(w)
	}
	return strings.Join(words, ",")
}

// caught runs f and returns its panic as text, empty if it does not panic.
func caught(f func()) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprint(r)
		}
	}()
	f()
	return ""
}
