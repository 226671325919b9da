// Command agent is Weir: an agent that runs dataflow jobs, and the commands to work with a fleet of
// them. Everything is wired together here and in internal/node, and nowhere else.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(realMain()) }

func realMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal asks for a clean stop; a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	p := program{stdout: os.Stdout, stderr: os.Stderr, parts: wired()}
	return p.main(ctx, os.Args[1:])
}
