package main

import (
	"context"
	"log/slog"

	"github.com/weir-stream/weir/internal/node"
)

type runCmd struct {
	Data       string            `required:"" placeholder:"DIR" help:"The agent's directory; made if missing."`
	Name       string            `placeholder:"NAME" help:"The agent's name (default: the one it had, else the host's)."`
	Replace    string            `placeholder:"NAME" help:"On an empty directory: take the name of an agent whose device was lost, and its tasks, from their newest replicated snapshots; what only the old device knew is lost. Refused if no such agent is known, or it is up."`
	Label      map[string]string `placeholder:"K=V" help:"A label that jobs select agents by; may be repeated."`
	NATS       string            `name:"nats" placeholder:"URL" help:"Use the NATS server of a hub and run none."`
	Leaf       string            `name:"leaf" placeholder:"URL" help:"Join the embedded NATS server to a hub as a leaf node."`
	LeafListen string            `name:"leaf-listen" placeholder:"ADDR" help:"Where the embedded NATS server takes leaf nodes (default: it takes none)."`
	NATSListen string            `name:"nats-listen" placeholder:"ADDR" help:"Where the embedded NATS server listens (default 127.0.0.1:4222)."`
	MQTTListen string            `name:"mqtt-listen" placeholder:"ADDR|off" help:"Where its MQTT listener listens (default 127.0.0.1:1883)."`
	HTTP       string            `name:"http" placeholder:"ADDR" help:"Where API and metrics listen (default 127.0.0.1:8080)."`
	Config     string            `placeholder:"FILE" help:"YAML file with auth.nats, auth.leaf, auth.mqtt, auth.http: user and password_file each; trusted_keys."`
	LogLevel   string            `enum:"debug,info,warn,error" default:"info" help:"What is logged: debug, info, warn or error."`
}

// Help is what `agent run --help` says besides the flags.
func (runCmd) Help() string {
	return `With nothing but --data the agent is broker, engine and API in one process, for this machine only.
Port 0 picks a free port; the addresses are printed and written to DIR/addresses.json.
Listening wider than this machine asks for a password, which the --config file names.`
}

// Run implements the command.
func (c runCmd) Run(ctx context.Context, p *program) error {
	opt, err := c.options()
	if err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return usage("", "--log-level: %w", err)
	}
	log := slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: level}))
	return p.parts.run(ctx, opt, log)
}

func (c runCmd) options() (node.Options, error) {
	auth, keys, err := loadConfig(c.Config)
	if err != nil {
		return node.Options{}, err
	}
	opt := node.Options{
		TrustedKeys: keys,
		Data:        c.Data,
		Name:        c.Name,
		Replace:     c.Replace,
		Labels:      c.Label,
		NATS:        c.NATS,
		Leaf:        c.Leaf,
		LeafListen:  c.LeafListen,
		NATSListen:  c.NATSListen,
		MQTTListen:  c.MQTTListen,
		HTTP:        c.HTTP,
		Auth:        auth,
		Version:     versionText(),
	}
	if err := opt.Validate(); err != nil {
		return opt, usage("agent run --help shows how it is used", "%w", err)
	}
	return opt, nil
}
