package cli

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
)

// Error is a command line that cannot be right.
type Error struct {
	Command string // how far the command was understood: "agent job"
	Reason  string
}

// Error says what is wrong and what there is instead.
func (e *Error) Error() string { return e.Reason }

// Parsed is what a command line asks for: a command, or help.
type Parsed struct {
	Command any    // a pointer to the command's struct, filled in
	Help    string // not empty: it is to be shown, and no command run
}

// Parse reads args, the words behind the program's name, into the struct that root points to. Errors are of type *[Error].
// It panics if the structs' tags are wrong.
func Parse(program, about string, root any, args []string) (Parsed, error) {
	p := parser{at: read(program, about, reflect.ValueOf(root))}
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		var err error
		switch {
		case p.argsOnly || word == "-" || !strings.HasPrefix(word, "-"):
			err = p.word(word)
		case word == "--":
			p.argsOnly = true
		case word == "-h" || word == "--help":
			return Parsed{Help: p.at.usage()}, nil
		default:
			args, err = p.flag(word, args)
		}
		if err != nil {
			return Parsed{}, err
		}
	}
	if err := p.finish(); err != nil {
		return Parsed{}, err
	}
	return Parsed{Command: p.at.value.Interface()}, nil
}

// parser goes down the commands as words name them.
type parser struct {
	at       *command
	taken    int  // how many arguments at has
	argsOnly bool // -- was there
}

func (p *parser) failed(format string, args ...any) error {
	return &Error{Command: p.at.path, Reason: fmt.Sprintf(format, args...)}
}

// word takes a word that is no flag: a command's name or an argument.
func (p *parser) word(word string) error {
	for _, c := range p.at.commands {
		if c.name() == word && !p.argsOnly {
			p.at = c
			return nil
		}
	}
	if p.at.fallback != nil {
		p.at = p.at.fallback
		return p.word(word)
	}
	if len(p.at.commands) > 0 {
		return p.failed("unknown command %s; %s", word, p.at.instead(word))
	}
	if p.taken == len(p.at.args) {
		return p.failed("unexpected argument %s", word)
	}
	f := p.at.args[p.taken]
	p.taken++
	return p.set(f, "<"+f.name+">", word)
}

// flag takes a flag, and its value from rest if it does not bring it along; it returns what is left of rest.
func (p *parser) flag(word string, rest []string) ([]string, error) {
	f, shown, value, has := p.at.find(word)
	if f == nil && p.at.fallback != nil {
		p.at = p.at.fallback
		f, shown, value, has = p.at.find(word)
	}
	switch {
	case f == nil:
		hint := ""
		if near := nearest(shown, p.at.flagNames()); near != "" {
			hint = "; did you mean " + near + "?"
		}
		return nil, p.failed("unknown flag %s%s", shown, hint)
	case has:
	case f.isBool():
		value = "true"
	case len(rest) == 0:
		return nil, p.failed("%s needs a value", shown)
	case len(rest[0]) > 1 && rest[0][0] == '-':
		return nil, p.failed("%s needs a value; one that begins with a dash is written --%s=%s", shown, f.name, rest[0])
	default:
		value, rest = rest[0], rest[1:]
	}
	return rest, p.set(f, shown, value)
}

// find is the flag that a word names, how the word names it, and the value that comes with it.
func (c *command) find(word string) (f *field, shown, value string, has bool) {
	if !strings.HasPrefix(word, "--") {
		shown = word[:2]
		value = strings.TrimPrefix(word[2:], "=")
		i := slices.IndexFunc(c.flags, func(f *field) bool { return f.short == shown[1:] })
		if i < 0 {
			return nil, word, "", false
		}
		return c.flags[i], shown, value, len(word) > 2
	}
	shown, value, has = strings.Cut(word, "=")
	i := slices.IndexFunc(c.flags, func(f *field) bool { return "--"+f.name == shown })
	if i < 0 {
		return nil, shown, "", false
	}
	return c.flags[i], shown, value, has
}

func (p *parser) set(f *field, shown, value string) error {
	if err := f.set(value); err != nil {
		return p.failed("%s: %v", shown, err)
	}
	f.given = true
	return nil
}

// finish fills in what was not given.
func (p *parser) finish() error {
	if p.at.fallback != nil {
		p.at = p.at.fallback
	}
	if len(p.at.commands) > 0 {
		return p.failed("a command is missing: %s", oneOf(p.at.commandNames()))
	}
	var missing []string
	for _, f := range slices.Concat(p.at.flags, p.at.args) {
		if f.given {
			continue
		}
		switch value := os.Getenv(f.env); {
		case f.env != "" && value != "":
			if err := p.set(f, f.env, value); err != nil {
				return err
			}
		case f.byDefault != "":
			if err := f.set(f.byDefault); err != nil {
				panic(fmt.Sprintf("cli: %s: the default of %s: %v", p.at.path, f.name, err))
			}
		case f.required && slices.Contains(p.at.args, f):
			missing = append(missing, "<"+f.name+">")
		case f.required:
			missing = append(missing, "--"+f.name+f.valueText())
		}
	}
	if missing != nil {
		return p.failed("missing: %s", strings.Join(missing, " "))
	}
	return nil
}

func (c *command) commandNames() []string {
	var names []string
	for _, sub := range c.commands {
		names = append(names, sub.name())
	}
	return names
}

func (c *command) flagNames() []string {
	names := []string{"--help"}
	for _, f := range c.flags {
		names = append(names, "--"+f.name)
	}
	return names
}

// instead says which command may have been meant by a word.
func (c *command) instead(word string) string {
	if near := nearest(word, c.commandNames()); near != "" {
		return "did you mean " + near + "?"
	}
	return "there are " + strings.Join(c.commandNames(), ", ")
}

// nearest is the name that is fewest changes of a letter away from a word, if a slip of the hand could have made them.
func nearest(word string, names []string) string {
	best, least := "", max(1, len(word)/3)+1
	for _, name := range names {
		if d := distance(word, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is how many letters must be put in, taken out or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := corner
			if a[i] != b[j] {
				replaced++
			}
			corner = row[j+1]
			row[j+1] = min(replaced, row[j]+1, corner+1)
		}
	}
	return row[len(b)]
}
