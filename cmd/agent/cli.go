package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/cli"
)

// Exit codes.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2 // used wrongly: arguments, a job file or a module that cannot be right
)

// commands is the command line. Each command has its own file or shares one with its siblings.
type commands struct {
	Run        runCmd         `cmd:"" help:"Run an agent."`
	Demo       demoCmd        `cmd:"" help:"Show the whole on this machine: three agents, 200 sensors, two kills, a verdict."`
	Operator   operatorCmds   `cmd:"" help:"Write, build, test, push and list operators."`
	Job        jobCmds        `cmd:"" help:"Check, apply, show and stop jobs."`
	Checkpoint checkpointCmds `cmd:"" help:"List, take, export and import checkpoints."`
	Agents     agentsCmds     `cmd:"" help:"List the agents of the fleet, remove one."`
	Status     statusCmd      `cmd:"" help:"Show one agent: its links, its store, its tasks."`
	Doctor     doctorCmd      `cmd:"" help:"Look at the directory of an agent that does not run, and say what is wrong with it."`
	Drill      drillCmd       `cmd:"" help:"Let something go wrong at a running agent, and judge a job's counts."`
	Version    versionCmd     `cmd:"" help:"Print the version."`
}

// remote is shared by the commands that talk to a running agent.
type remote struct {
	Server string `env:"WEIR_SERVER" default:"http://127.0.0.1:8080" placeholder:"URL" help:"Agent to talk to; a user and password go into the URL (${env}, default ${default})."`
}

func (r remote) client() (*api.Client, error) { return api.NewClient(r.Server) }

// output is shared by the commands that print what was asked for.
type output struct {
	JSON bool `help:"Print JSON."`
}

// program is one run of the command line.
type program struct {
	stdout, stderr io.Writer
	parts          parts
}

// runner is a command that can be run: each without commands of its own.
type runner interface {
	Run(ctx context.Context, p *program) error
}

// main runs the command in args and returns the exit code.
func (p *program) main(ctx context.Context, args []string) int {
	parsed, err := cli.Parse("agent", "Weir runs dataflow jobs on fleets of edge devices and counts nothing twice.", &commands{}, args)
	var wrong *cli.Error
	switch {
	case errors.As(err, &wrong):
		return p.fail(usage(wrong.Command+" --help shows how it is used", "%w", err))
	case err != nil:
		return p.fail(err)
	case parsed.Help != "":
		_, err = io.WriteString(p.stdout, parsed.Help)
		return p.fail(err)
	}
	return p.fail(parsed.Command.(runner).Run(ctx, p))
}

// usageError is an error of whoever called the command.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usage(hint, format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...), hint}
}

// fail prints an error, each line of it on its own, then what to do, and returns the exit code.
func (p *program) fail(err error) int {
	if err == nil {
		return exitFine
	}
	for line := range strings.SplitSeq(strings.TrimRight(err.Error(), "\n"), "\n") {
		fmt.Fprintf(p.stderr, "agent: %s\n", line)
	}
	code, hint := exitFailed, ""
	var u *usageError
	var a *api.Error
	switch {
	case errors.As(err, &u):
		code, hint = exitUsage, u.hint
	case errors.As(err, &a):
		hint = a.Hint
		if api.IsInvalid(a) {
			code = exitUsage
		}
	}
	if hint != "" {
		fmt.Fprintf(p.stderr, "  %s\n", strings.ReplaceAll(hint, "\n", "\n  "))
	}
	return code
}
