// Package cli reads a command line into structs, whose tags say what it may hold.
//
// The root is a pointer to a struct. A field with the tag cmd is a command, whose struct is read likewise: it has
// commands of its own, or flags and arguments. All other exported fields are flags, or arguments if they have the tag
// arg; embedded structs count as if their fields stood in their place. A command that has a method Help() string says
// more in its help. The tags:
//
//	cmd:""               the field is a command
//	arg:""               the field is an argument, in the order of the fields
//	name:"trial-time"    what it is called; otherwise its field's name: LogLevel is log-level
//	short:"o"            a flag's name of one letter
//	required:""          the flag must be given; arguments must, unless they are optional:""
//	default:"5s"         its value if it is not given; of a command, "withargs": what is no command's name goes to this one
//	env:"WEIR_SERVER"    the variable that comes before the default, unless it is empty
//	enum:"go,rust"       the values it may have
//	placeholder:"FILE"   what stands for its value in the help
//	help:"…"             what it does; ${env}, ${default} and ${enum} stand for those tags
//
// Values are strings, bool, int, uint64, time.Duration (or a pointer to one, nil if not given), lists of strings, which
// may be repeated and separated by commas, and maps of strings, K=V each time. Where nothing of a list is given it is nil.
//
// Flags and arguments may be mixed; a flag counts from where its command is named, and the last one wins. --flag=value
// and --flag value are the same, as are -o value and -ovalue; behind -- there are arguments alone.
//
// It is a package of the project's own for what it leaves out: a parser that finds methods by their names keeps the linker
// from dropping any exported method of the whole program, which was an eighth of the agent.
package cli
