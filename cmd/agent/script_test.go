package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// script runs a test script in a directory of its own. A script is lines, then files ("-- NAME --" and
// what follows), which are laid into the directory. The lines:
//
//	exits CODE agent ARGS...   runs the command line; it must exit with CODE
//	stdout|stderr 'REGEX'      what it printed must match; with "! " before it, must not
//	cmp stdout NAME            what it printed is that file (UPDATE=1 writes it into the script)
//	grep 'REGEX' NAME          the file must match
//	exists NAME                the file must exist; with "! " before it, must not
//	cp FROM TO, mkdir NAME, env NAME=VALUE
type script struct {
	t    *testing.T
	file string
	text string
	vars *strings.Replacer

	files          map[string]string
	stdout, stderr bytes.Buffer
	updated        bool
}

type mainFunc func(stdout, stderr io.Writer, args []string) int

var fileMark = regexp.MustCompile(`(?m)^-- (\S+) --\n`)

func (s *script) run(main mainFunc) {
	lines := s.unpack()
	for i, line := range lines {
		line = strings.TrimSpace(s.vars.Replace(line))
		if line == "" || line[0] == '#' {
			continue
		}
		if err := s.step(line, main); err != nil {
			s.t.Errorf("%s:%d: %s: %v\nstdout:\n%sstderr:\n%s", filepath.Base(s.file), i+1, line, err, &s.stdout, &s.stderr)
		}
	}
	if s.updated {
		s.write(lines)
	}
}

// unpack lays the script's files into a new directory, enters it, and returns the lines.
func (s *script) unpack() []string {
	s.files = map[string]string{}
	s.t.Chdir(s.t.TempDir())
	marks := fileMark.FindAllStringSubmatchIndex(s.text, -1)
	end := len(s.text)
	for i := len(marks) - 1; i >= 0; i-- {
		m := marks[i]
		s.files[s.text[m[2]:m[3]]] = s.text[m[1]:end]
		end = m[0]
	}
	for name, content := range s.files {
		s.must(os.MkdirAll(filepath.Dir(name), 0o755))
		s.must(os.WriteFile(name, []byte(content), 0o644))
	}
	return strings.Split(s.text[:end], "\n")
}

func (s *script) must(err error) {
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) step(line string, main mainFunc) error {
	not := strings.HasPrefix(line, "! ")
	word, rest, _ := strings.Cut(strings.TrimPrefix(line, "! "), " ")
	args := strings.Fields(rest)
	switch word {
	case "exits":
		s.stdout.Reset()
		s.stderr.Reset()
		if code := fmt.Sprint(main(&s.stdout, &s.stderr, args[2:])); code != args[0] {
			return fmt.Errorf("exited with %s", code)
		}
		return nil
	case "stdout":
		return match(s.stdout.String(), rest, not)
	case "stderr":
		return match(s.stderr.String(), rest, not)
	case "grep":
		data, err := os.ReadFile(args[len(args)-1])
		s.must(err)
		return match(string(data), strings.Join(args[:len(args)-1], " "), not)
	case "cmp":
		return s.compare(args[1])
	case "exists":
		if _, err := os.Stat(rest); (err != nil) != not {
			return fmt.Errorf("exists: %v", err == nil)
		}
		return nil
	case "cp":
		data, err := os.ReadFile(args[0])
		s.must(err)
		return os.WriteFile(args[1], data, 0o644)
	case "mkdir":
		return os.Mkdir(rest, 0o755)
	case "env":
		name, value, _ := strings.Cut(rest, "=")
		s.t.Setenv(name, value)
		return nil
	}
	return fmt.Errorf("unknown line")
}

func match(text, pattern string, not bool) error {
	re, err := regexp.Compile("(?m)" + strings.Trim(pattern, "'"))
	if err != nil {
		return err
	}
	if re.MatchString(text) == not {
		return fmt.Errorf("matches: %v", !not)
	}
	return nil
}

func (s *script) compare(name string) error {
	if s.stdout.String() == s.files[name] {
		return nil
	}
	if os.Getenv("UPDATE") == "" {
		return fmt.Errorf("differs from\n%s", s.files[name])
	}
	s.files[name], s.updated = s.stdout.String(), true
	return nil
}

// write puts updated files back into the script, in their order.
func (s *script) write(lines []string) {
	text := strings.Join(lines, "\n")
	for _, m := range fileMark.FindAllStringSubmatch(s.text, -1) {
		text += m[0] + s.files[m[1]]
	}
	s.must(os.WriteFile(s.file, []byte(text), 0o644))
}
