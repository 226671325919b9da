package main

import "context"

type demoCmd struct {
	Keep bool `help:"Leave everything running afterwards, until interrupted."`
}

// Run implements the command.
func (c demoCmd) Run(ctx context.Context, p *program) error {
	return p.parts.demo(ctx, c.Keep, p.stdout)
}
