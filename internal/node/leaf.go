package node

import (
	"context"
	"strings"
	"time"

	"github.com/weir-stream/weir/internal/api"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// JetStream domains: the control plane is in the hub's.
const (
	hubDomain  = "hub"
	leafPrefix = "leaf-"
)

// leafOptions completes the options of the embedded server of a hub that takes leaf nodes, or of one of
// those, and returns the domain in which the agent finds the control plane; empty: the server's own.
func leafOptions(server *wnats.ServerOptions, opt Options, name string) (domain string) {
	switch {
	case opt.Leaf != "":
		server.Domain, server.LeafURL = leafPrefix+name, opt.Leaf
		server.LeafUser = wnats.User{Name: opt.Auth.Leaf.User, Password: opt.Auth.Leaf.Password}
		return hubDomain
	case opt.LeafListen != "":
		server.Domain, server.LeafListen = hubDomain, opt.LeafListen
	}
	return ""
}

// leafLink is the agent's way to its hub.
func (a *Agent) leafLink() api.Link {
	l := api.Link{Kind: "leaf", Address: a.opt.Leaf, Up: true}
	if i := strings.LastIndexByte(l.Address, '@'); i >= 0 {
		l.Address = l.Address[i+1:]
	}
	if joined, err := a.server.LeafState(); !joined {
		l.Up = false
		if err != nil {
			l.Error = err.Error()
		}
	}
	return l
}

// ownTidyEvery is how often an agent with a server removes the streams that nobody needs any more. The coordinator
// sees those of its own server only.
const ownTidyEvery = time.Minute

// tidyOwnStreams removes them until the agent ends.
func (a *Agent) tidyOwnStreams() {
	for sleep(a.life, ownTidyEvery) {
		ctx, cancel := context.WithTimeout(a.life, ownTidyEvery)
		if err := a.tidyStreams(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("input streams of jobs that have ended not removed", "error", err)
		}
		cancel()
	}
}
