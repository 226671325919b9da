package main

import (
	"context"
	"fmt"

	"github.com/weir-stream/weir/internal/api"
)

type agentsCmds struct {
	List agentsListCmd `cmd:"" help:"List all agents."`
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
