package main

import (
	"context"
	"fmt"

	"github.com/weir-stream/weir/internal/api"
)

type agentsCmds struct {
	List   agentsListCmd   `cmd:"" help:"List all agents."`
	Remove agentsRemoveCmd `cmd:"" help:"Take an agent that is gone for good out of the fleet; jobs that are applied again do without it."`
}

type agentsRemoveCmd struct {
	Name string `arg:"" placeholder:"NAME" help:"Name of the agent."`
	remote
}

// Run implements the command.
func (c agentsRemoveCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	if err := cl.RemoveAgent(ctx, c.Name); err != nil {
		return fmt.Errorf("remove agent %s: %w", c.Name, err)
	}
	_, err = fmt.Fprintf(p.stdout, "agent %s: removed; apply the jobs that ran on it again. What it had logged and not sent is given up with that, and its dead letters stay on it\n", c.Name)
	return err
}

type agentsListCmd struct {
	remote
	output
}

// Run implements the command.
func (c agentsListCmd) Run(ctx context.Context, p *program) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	agents, err := cl.Agents(ctx)
	if err != nil {
		return fmt.Errorf("list agents: %w", err)
	}
	if c.JSON {
		return p.printJSON(agents)
	}
	t := newTable("NAME", "STATE", "LABELS", "TASKS", "STARTS", "SEEN", "HTTP", "VERSION", "ROLE")
	for _, a := range agents {
		t.add(a.Name, a.State, labelText(a.Labels), a.Tasks, a.Starts, timeText(a.Seen), a.Addresses.HTTP, a.Version, role(a))
	}
	return t.print(p.stdout)
}

func role(a api.Agent) string {
	if a.Coordinator {
		return "coordinator"
	}
	return ""
}
