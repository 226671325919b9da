package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

type line struct {
	Say     say     `cmd:"" help:"Say something."`
	Letters letters `cmd:"" help:"Letters to friends."`
}

type friend struct {
	Friend string `arg:"" help:"Who it is for."`
}

type where struct {
	Place string `env:"CLI_TEST_PLACE" default:"home" placeholder:"PLACE" help:"Where (${env}, default ${default})."`
}

type say struct {
	friend
	Words   string            `arg:"" optional:"" default:"hello" help:"What is said (${default})."`
	Out     string            `short:"o" placeholder:"FILE" help:"Where it goes."`
	Loud    bool              `help:"Shout."`
	Lang    string            `required:"" enum:"en,de" placeholder:"LANG" help:"Language: ${enum}."`
	Times   int               `default:"1" help:"How often."`
	Seed    uint64            `placeholder:"N" help:"Of the dice."`
	Lasts   time.Duration     `default:"5s" help:"How long."`
	MaxWait *time.Duration    `placeholder:"D" help:"How long at most."`
	Tags    []string          `name:"tag" placeholder:"TAG" help:"Some tags."`
	Set     map[string]string `placeholder:"K=V" help:"Some settings."`
	where
}

func (say) Help() string {
	return "It says so\nin one line.\n\nAnd in the next."
}

type letters struct {
	Show letterShow `cmd:"" default:"withargs" help:"Show those to a friend."`
	Send letterSend `cmd:"" help:"Send one."`
}

type letterShow struct {
	friend
	JSON bool `help:"As JSON."`
}

type letterSend struct{ friend }

func words(s string) []string { return strings.Fields(s) }

// told is what a command was told, in one line.
func told(command any) string {
	switch c := command.(type) {
	case *say:
		wait := "-"
		if c.MaxWait != nil {
			wait = c.MaxWait.String()
		}
		return fmt.Sprintf("say %s|%s|%s|%v|%s|%d|%d|%s|%s|%q|%v|%s", c.Friend, c.Words, c.Out, c.Loud, c.Lang, c.Times, c.Seed, c.Lasts, wait, c.Tags, c.Set, c.Place)
	case *letterShow:
		return fmt.Sprintf("show %s|%v", c.Friend, c.JSON)
	case *letterSend:
		return "send " + c.Friend
	}
	return fmt.Sprintf("%T", command)
}

func TestParse(t *testing.T) {
	for _, k := range []struct{ line, want string }{
		{"say --lang=de ann", "say ann|hello||false|de|1|0|5s|-|[]|map[]|home"},
		{"say ann hi --lang de --loud", "say ann|hi||true|de|1|0|5s|-|[]|map[]|home"},
		{"say --loud=false --lang en ann -o f", "say ann|hello|f|false|en|1|0|5s|-|[]|map[]|home"},
		{"say --lang en ann -of --times 3 --times=-2", "say ann|hello|f|false|en|-2|0|5s|-|[]|map[]|home"},
		{"say --lang en ann -o=f --seed 18446744073709551615", "say ann|hello|f|false|en|1|18446744073709551615|5s|-|[]|map[]|home"},
		{"say --lang en ann --lasts 2m --max-wait=0s --place=", "say ann|hello||false|en|1|0|2m0s|0s|[]|map[]|"},
		{"say --lang en ann --tag a,b --tag c --set a=1,2 --set=b=c=d", `say ann|hello||false|en|1|0|5s|-|["a" "b" "c"]|map[a:1,2 b:c=d]|home`},
		{"say --lang en -- --loud -h", "say --loud|-h||false|en|1|0|5s|-|[]|map[]|home"},
		{"say --lang en - --out -", "say -|hello|-|false|en|1|0|5s|-|[]|map[]|home"},
		{"letters ann", "show ann|false"},
		{"letters --json ann", "show ann|true"},
		{"letters show show", "show show|false"},
		{"letters -- send", "show send|false"},
		{"letters send ann", "send ann"},
	} {
		parsed, err := Parse("post", "", &line{}, words(k.line))
		if err != nil {
			t.Errorf("%s: %v", k.line, err)
			continue
		}
		if got := told(parsed.Command); got != k.want || parsed.Help != "" {
			t.Errorf("%s:\n got %s\nwant %s", k.line, got, k.want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	for _, k := range []struct{ env, line, want string }{
		{"school", "say ann --lang=en", "school"},
		{"school", "say ann --lang=en --place work", "work"},
		{"", "say ann --lang=en", "home"},
	} {
		t.Setenv("CLI_TEST_PLACE", k.env)
		parsed, err := Parse("post", "", &line{}, words(k.line))
		if err != nil {
			t.Fatal(err)
		}
		if got := parsed.Command.(*say).Place; got != k.want {
			t.Errorf("%s with %q: %s, not %s", k.line, k.env, got, k.want)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, k := range []struct{ line, command, want string }{
		{"", "post", "a command is missing: say or letters"},
		{"sing", "post", "unknown command sing; there are say, letters"},
		{"leters ann", "post", "unknown command leters; did you mean letters?"},
		{"--loud", "post", "unknown flag --loud"},
		{"say", "post say", "missing: --lang=LANG <friend>"},
		{"say ann", "post say", "missing: --lang=LANG"},
		{"say a b c", "post say", "unexpected argument c"},
		{"say ann --lnag en", "post say", "unknown flag --lnag; did you mean --lang?"},
		{"say ann --frequency=5", "post say", "unknown flag --frequency"},
		{"say ann -x5", "post say", "unknown flag -x5"},
		{"say ann -ü", "post say", "unknown flag -ü"},
		{"say ann --lang", "post say", "--lang needs a value"},
		{"say ann -o --lang=en", "post say", "-o needs a value; one that begins with a dash is written --out=--lang=en"},
		{"say ann --lang=fr", "post say", `--lang: "fr" is none of en or de`},
		{"say ann --loud=very", "post say", `--loud: "very" is neither true nor false`},
		{"say ann --times=x", "post say", `--times: "x" is not a whole number`},
		{"say ann --seed=-1", "post say", `--seed: "-1" is not a whole number from 0`},
		{"say ann --lasts 5", "post say", `--lasts: "5" is not a duration such as 90s or 5m`},
		{"say ann --max-wait x", "post say", `--max-wait: "x" is not a duration such as 90s or 5m`},
		{"say ann --set x", "post say", `--set: "x" is not of the form K=V`},
		{"say ann --set =x", "post say", `--set: "=x" is not of the form K=V`},
		{"letters", "post letters show", "missing: <friend>"},
		{"letters --jsn ann", "post letters show", "unknown flag --jsn; did you mean --json?"},
	} {
		parsed, err := Parse("post", "", &line{}, words(k.line))
		var wrong *Error
		if !errors.As(err, &wrong) {
			t.Errorf("%s: no error, but %s", k.line, told(parsed.Command))
			continue
		}
		if wrong.Error() != k.want || wrong.Command != k.command {
			t.Errorf("%s: %s: %v\nwant %s: %s", k.line, wrong.Command, wrong, k.command, k.want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, k := range []struct{ line, want string }{
		{"--help", `Usage: post <command>

Has to do with words.

Flags:
  -h, --help    Show this help.

Commands:
  say        Say something.
  letters    Letters to friends.

post <command> --help says more.
`},
		{"letters -h", `Usage: post letters <command>

Letters to friends.

Flags:
  -h, --help    Show this help.

Commands:
  letters show    Show those to a friend.
  letters send    Send one.

post letters <command> --help says more.
`},
		{"say ann --help", `Usage: post say --lang=LANG <friend> [<words>] [flags]

Say something.

It says so in one line.

And in the next.

Arguments:
  <friend>     Who it is for.
  [<words>]    What is said (hello).

Flags:
  -h, --help           Show this help.
  -o, --out=FILE       Where it goes.
      --loud           Shout.
      --lang=LANG      Language: en, de.
      --times=1        How often.
      --seed=N         Of the dice.
      --lasts=5s       How long.
      --max-wait=D     How long at most.
      --tag=TAG,...    Some tags.
      --set=K=V        Some settings.
      --place=PLACE    Where (CLI_TEST_PLACE, default home).
`},
	} {
		parsed, err := Parse("post", "Has to do with words.", &line{}, words(k.line))
		if err != nil {
			t.Errorf("%s: %v", k.line, err)
			continue
		}
		if parsed.Help != k.want {
			t.Errorf("%s:\n%s\nwant\n%s", k.line, parsed.Help, k.want)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, k := range []struct{ text, want string }{
		{"", ""},
		{"one", "one"},
		{"one two  three\nfour", "one two\nthree\nfour"},
		{"four fiv four five", "four fiv\nfour\nfive"},
		{"a-word-that-is-long so", "a-word-that-is-long\nso"},
		{"üüü ööö äää", "üüü ööö\näää"},
	} {
		if got := wrap(k.text, 8); got != k.want {
			t.Errorf("%q: %q, not %q", k.text, got, k.want)
		}
	}
}

// Mistakes in the structs are the program's own, and come out when it starts.
func TestWrongTags(t *testing.T) {
	for name, root := range map[string]any{
		"a type that is not read": &struct{ Ratio float32 }{},
		"a field of no use":       &struct{ hidden string }{},
		"a default that is none": &struct {
			Lasts time.Duration `default:"soon"`
		}{},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			_, _ = Parse("post", "", root, nil)
		}()
	}
}
