package cli

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
)

// command is a command of the command line; the first is the program itself.
type command struct {
	path  string // as it is typed, with those it is below: "agent job show"
	help  string
	value reflect.Value // a pointer to its struct

	flags    []*field
	args     []*field
	commands []*command
	fallback *command // of commands, the one that takes what is no command's name
}

// name is the last word of the path.
func (c *command) name() string { return c.path[strings.LastIndexByte(c.path, ' ')+1:] }

// field is a flag or an argument.
type field struct {
	name, short string
	help        string
	placeholder string
	byDefault   string
	env         string
	enum        []string
	required    bool
	value       reflect.Value
	given       bool
}

// read makes a command of a struct. What is wrong with the tags is a mistake in the program: it panics.
func read(path, help string, value reflect.Value) *command {
	c := &command{path: path, help: help, value: value}
	c.fields(value.Elem())
	return c
}

func (c *command) fields(of reflect.Value) {
	for i := range of.NumField() {
		f, value := of.Type().Field(i), of.Field(i)
		_, isCommand := f.Tag.Lookup("cmd")
		switch {
		case f.Anonymous:
			c.fields(value)
		case isCommand:
			sub := read(c.path+" "+nameOf(f), f.Tag.Get("help"), value.Addr())
			c.commands = append(c.commands, sub)
			if f.Tag.Get("default") == "withargs" {
				c.fallback = sub
			}
		default:
			c.add(f, value)
		}
	}
}

// add makes a flag or an argument of a field.
func (c *command) add(f reflect.StructField, value reflect.Value) {
	if !settable(value) {
		panic(fmt.Sprintf("cli: %s: no value is read for field %s of type %s", c.path, f.Name, f.Type))
	}
	made := &field{
		name: nameOf(f), short: f.Tag.Get("short"), placeholder: f.Tag.Get("placeholder"),
		byDefault: f.Tag.Get("default"), env: f.Tag.Get("env"), value: value,
	}
	if enum := f.Tag.Get("enum"); enum != "" {
		made.enum = strings.Split(enum, ",")
	}
	made.help = strings.NewReplacer("${env}", made.env, "${default}", made.byDefault,
		"${enum}", strings.Join(made.enum, ", ")).Replace(f.Tag.Get("help"))
	if _, isArg := f.Tag.Lookup("arg"); isArg {
		_, optional := f.Tag.Lookup("optional")
		made.required = !optional
		c.args = append(c.args, made)
		return
	}
	_, made.required = f.Tag.Lookup("required")
	c.flags = append(c.flags, made)
}

// nameOf is what a field is called on the command line: MaxDelay is max-delay, JSON is json.
func nameOf(f reflect.StructField) string {
	if name := f.Tag.Get("name"); name != "" {
		return name
	}
	var b strings.Builder
	before := 'A'
	for _, r := range f.Name {
		if unicode.IsUpper(r) && !unicode.IsUpper(before) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
		before = r
	}
	return b.String()
}
