package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// columns is the width of the help.
const columns = 80

// usage is the help of a command.
func (c *command) usage() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s%s\n\n", c.path, c.synopsis())
	b.WriteString(wrap(c.help, columns) + "\n")
	if more, ok := c.value.Interface().(interface{ Help() string }); ok {
		for paragraph := range strings.SplitSeq(more.Help(), "\n\n") {
			b.WriteString("\n" + wrap(paragraph, columns) + "\n")
		}
	}
	var args, flags, commands []entry
	for _, f := range c.args {
		args = append(args, entry{f.argText(), f.help})
	}
	flags = append(flags, entry{"-h, --help", "Show this help."})
	for _, f := range c.flags {
		flags = append(flags, entry{f.flagText(), f.help})
	}
	_, program, _ := strings.Cut(c.path+" ", " ")
	for _, sub := range c.commands {
		commands = append(commands, entry{program + sub.name(), sub.help})
	}
	table(&b, "Arguments", args)
	table(&b, "Flags", flags)
	table(&b, "Commands", commands)
	if c.commands != nil {
		fmt.Fprintf(&b, "\n%s <command> --help says more.\n", c.path)
	}
	return b.String()
}

// synopsis is what follows the command's name: what must be given, and what may.
func (c *command) synopsis() string {
	if c.commands != nil {
		return " <command>"
	}
	text, choices := "", ""
	for _, f := range c.flags {
		if f.required {
			text += " --" + f.name + f.valueText()
		} else {
			choices = " [flags]"
		}
	}
	open := 0
	for _, f := range c.args {
		if f.required {
			text += " <" + f.name + ">"
			continue
		}
		text += " [<" + f.name + ">"
		open++
	}
	return text + strings.Repeat("]", open) + choices
}

func (f *field) argText() string {
	if f.required {
		return "<" + f.name + ">"
	}
	return "[<" + f.name + ">]"
}

func (f *field) flagText() string {
	text := "    --" + f.name + f.valueText()
	if f.short != "" {
		text = "-" + f.short + ", " + text[4:]
	}
	return text
}

// valueText is "=" and what stands for the flag's value.
func (f *field) valueText() string {
	switch _, isList := f.value.Interface().([]string); {
	case f.isBool():
		return ""
	case isList:
		return "=" + f.placeholder + ",..."
	case f.placeholder == "":
		return "=" + f.byDefault
	}
	return "=" + f.placeholder
}

// entry is a line of a table: a name and what it is.
type entry struct{ name, help string }

// table writes entries below a title, if there are any, with the names in a column of their own.
func table(b *strings.Builder, title string, entries []entry) {
	if entries == nil {
		return
	}
	width := 0
	for _, e := range entries {
		width = max(width, utf8.RuneCountInString(e.name))
	}
	left := 2 + width + 4
	fmt.Fprintf(b, "\n%s:\n", title)
	for _, e := range entries {
		help := strings.ReplaceAll(wrap(e.help, columns-left), "\n", "\n"+strings.Repeat(" ", left))
		b.WriteString(strings.TrimRight(fmt.Sprintf("  %-*s    %s", width, e.name, help), " ") + "\n")
	}
}

// wrap breaks a text into lines of at most so many characters, or of one word.
func wrap(text string, width int) string {
	var b strings.Builder
	line := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case line == 0:
		case line+1+n > width:
			b.WriteByte('\n')
			line = 0
		default:
			b.WriteByte(' ')
			line++
		}
		b.WriteString(word)
		line += n
	}
	return b.String()
}
