package job

import (
	"net"
	"net/url"
	"slices"
	"strings"
)

// client is one MQTT client of a plan.
type client struct {
	what, agent, broker, id string
	topics                  []string // of a source
	publishes               string   // template of a sink's topic
}

// checkBrokers looks at all MQTT clients together: those that have no broker, those that would throw
// each other off one, and those that get the same messages.
func (p *planner) checkBrokers() {
	clients := p.clients()
	byID := map[[2]string]client{}
	bySource := map[[2]string][]client{}
	var lacking []string
	for _, c := range clients {
		if c.broker == "" {
			if !slices.Contains(lacking, c.what) {
				lacking = append(lacking, c.what)
				p.fail("%s names no broker, and agent %s reaches no MQTT listener of an agent; set mqtt.broker, or start the hub with --mqtt-listen ADDR", c.what, c.agent)
			}
			continue
		}
		at := [2]string{c.broker, c.id}
		if other, taken := byID[at]; taken {
			p.fail("%s on %s and %s on %s have the same client_id %q on one broker, which lets only one in; put {agent} or {label.NAME} into it",
				other.what, other.agent, c.what, c.agent, c.id)
			continue
		}
		byID[at] = c
		if c.topics != nil {
			source := [2]string{c.what, c.broker}
			bySource[source] = append(bySource[source], c)
		}
	}
	p.warnShared(clients)
	p.warnForgetful(clients)
	p.warnFeeds(clients)
	for _, c := range clients {
		source := [2]string{c.what, c.broker}
		p.warnOverlap(bySource[source])
		delete(bySource, source)
	}
}

// warnShared says which sources would wait for ever: an agent's listener grants shared subscriptions and
// delivers nothing on them.
func (p *planner) warnShared(clients []client) {
	warned := map[string]bool{}
	for _, c := range clients {
		shared := slices.IndexFunc(c.topics, func(t string) bool { return strings.HasPrefix(t, "$share/") })
		if shared < 0 || warned[c.what] {
			continue
		}
		if owner := p.listens(c.broker, c.agent); owner != "" {
			warned[c.what] = true
			p.warn("%s: %s is the listener of agent %s, which accepts shared subscriptions such as %s and delivers nothing; use a broker that has them",
				c.what, c.broker, owner, c.topics[shared])
		}
	}
}

// warnFeeds says which sinks publish what a source of the job takes in again: on purpose or not, it may have no end.
func (p *planner) warnFeeds(clients []client) {
	warned := map[[2]string]bool{}
	for _, sink := range clients {
		for _, source := range clients {
			at := slices.IndexFunc(source.topics, func(filter string) bool {
				return feeds(sink.publishes, filter) && (!strings.HasPrefix(sink.publishes, "{topic}") || p.g.leads(source.what, sink.what))
			})
			if sink.publishes == "" || sink.broker != source.broker || at < 0 || warned[[2]string{sink.what, source.what}] {
				continue
			}
			warned[[2]string{sink.what, source.what}] = true
			p.warn("%s publishes on %s, which %s takes in again (%s)", sink.what, sink.publishes, source.what, source.topics[at])
		}
	}
}

// feeds says whether all topics that a template gives match a filter, as far as it shows: a placeholder stands for one
// level that is not known, and {topic} for a topic that matches the filter.
func feeds(publishes, filter string) bool {
	x, y := strings.Split(publishes, "/"), strings.Split(filter, "/")
	if y[0] == "$share" && len(y) > 2 {
		y = y[2:]
	}
	if x[0] == "{topic}" {
		return len(x) == 1 || y[len(y)-1] == "#"
	}
	for i := range x {
		switch {
		case i == len(y):
			return false
		case y[i] == "#":
			return true
		case y[i] != "+" && (y[i] != x[i] || strings.ContainsAny(x[i], "{}")):
			return false
		}
	}
	return len(x) == len(y) || len(x)+1 == len(y) && y[len(x)] == "#"
}

// warnForgetful says which sources and sinks ask for QoS 2 of a broker that cannot give it: an agent's listener forgets
// the packet identifiers of what it sends, and when it is killed what is being released to it. It notes them for
// the promises.
func (p *planner) warnForgetful(clients []client) {
	check := func(what, broker, trouble string) {
		at := slices.IndexFunc(clients, func(c client) bool {
			return c.what == what && (broker == "" || p.listens(c.broker, c.agent) != "")
		})
		if at < 0 {
			return
		}
		p.forgetful[what] = true
		whose := "its broker is the agents' own"
		if broker != "" {
			whose = clients[at].broker + " is the listener of agent " + p.listens(clients[at].broker, clients[at].agent)
		}
		p.warn("%s: %s, which %s", what, whose, trouble)
	}
	for _, s := range p.g.File.Sources {
		if s.MQTT != nil && s.MQTT.QoS == 2 && s.ID == "" {
			check("source "+s.Name, s.MQTT.Broker, "may send a message again as a new one, at QoS 2 too; name an id")
		}
	}
	for _, s := range p.g.File.Sinks {
		if s.MQTT != nil && s.MQTT.QoS == 2 {
			check("sink "+s.Name, s.MQTT.Broker,
				"may lose a message of QoS 2 when that agent is killed; use qos: 1, with {channel} and {number} in the payload to tell repeats")
		}
	}
}

// listens returns the agent whose listener an agent reaches under a broker's URL; empty: none that is known.
func (p *planner) listens(broker, from string) string {
	u, err := url.Parse(broker)
	if err != nil {
		return ""
	}
	for _, a := range p.agents {
		host, port, err := net.SplitHostPort(a.MQTTAddr)
		if err != nil || port != u.Port() {
			continue
		}
		here := a.Name == from || len(p.agents) == 1
		ip := net.ParseIP(host)
		everywhere := ip != nil && ip.IsUnspecified()
		if host == u.Hostname() && (here || !loopback(host)) || here && loopback(u.Hostname()) && (loopback(host) || everywhere) {
			return a.Name
		}
	}
	return ""
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (p *planner) clients() []client {
	var clients []client
	for _, t := range p.plan.Tasks {
		if t.Source != nil && t.Source.MQTT != nil {
			m := t.Source.MQTT
			clients = append(clients, client{"source " + t.Source.Name, t.Agent, p.broker(m.Broker, t.Agent), m.ClientID, m.Topics, ""})
		}
		for _, s := range t.Sinks {
			if s.MQTT != nil {
				clients = append(clients, client{"sink " + s.Name, t.Agent, p.broker(s.MQTT.Broker, t.Agent), s.MQTT.ClientID, nil, s.MQTT.Topic})
			}
		}
	}
	return clients
}

// warnOverlap says once which agents of a source get the same messages from one broker.
func (p *planner) warnOverlap(clients []client) {
	var same []string
	example := ""
	for i, c := range clients {
		for j, other := range clients {
			topic, both := c.shares(other)
			if i == j || !both {
				continue
			}
			same = append(same, c.agent)
			if example == "" {
				example = topic
			}
			break
		}
	}
	if len(same) > 0 {
		p.warn("%s: agents %s subscribe to the same messages on one broker (such as %s); each gets all of them",
			clients[0].what, list(same), example)
	}
}

// shares returns a topic of the client that some topic of the other overlaps. Shared subscriptions
// divide messages and do not count.
func (c client) shares(other client) (string, bool) {
	for _, x := range c.topics {
		for _, y := range other.topics {
			if !strings.HasPrefix(x, "$share/") && !strings.HasPrefix(y, "$share/") && overlap(x, y) {
				return x, true
			}
		}
	}
	return "", false
}

// broker names the broker that a client of an agent reaches: the one given, the agent's own, or its
// hub's, which is known here only if a single agent has a listener.
func (p *planner) broker(given, agent string) string {
	if given != "" {
		return given
	}
	var listening []string
	for _, a := range p.agents {
		if !a.MQTTListen {
			continue
		}
		if a.Name == agent {
			return "agent " + agent
		}
		if a.MQTTLeaf {
			continue
		}
		listening = append(listening, a.Name)
	}
	switch len(listening) {
	case 0:
		return ""
	case 1:
		return "agent " + listening[0]
	}
	return "hub"
}

// checkFiles refuses two sinks that would write one file of an agent.
func (p *planner) checkFiles() {
	writers := map[[2]string]string{}
	for _, t := range p.plan.Tasks {
		for _, s := range t.Sinks {
			if s.File == nil {
				continue
			}
			at := [2]string{t.Agent, s.File.Path}
			if other, taken := writers[at]; taken {
				p.fail("sink %s in task %s and %s write the same file %s on agent %s; give each its own, with {task} in the path where tasks are parallel",
					s.Name, t.ID, other, s.File.Path, t.Agent)
				continue
			}
			writers[at] = "sink " + s.Name + " in task " + string(t.ID)
		}
	}
}
