package job

import "slices"

// client is one MQTT client of a plan.
type client struct {
	what, agent, broker, id string
	topics                  []string
}

// checkBrokers looks at all MQTT clients together: those that would throw each other off a broker,
// those that get the same messages, and those that have no broker.
func (p *planner) checkBrokers() {
	var clients []client
	for _, t := range p.plan.Tasks {
		if t.Source != nil && t.Source.MQTT != nil {
			m := t.Source.MQTT
			clients = append(clients, client{"source " + t.Source.Name, t.Agent, p.broker(m.Broker, t.Agent), m.ClientID, m.Topics})
		}
		for _, s := range t.Sinks {
			if s.MQTT != nil {
				clients = append(clients, client{"sink " + s.Name, t.Agent, p.broker(s.MQTT.Broker, t.Agent), s.MQTT.ClientID, nil})
			}
		}
	}
	var noBroker []string
	for i, c := range clients {
		if c.broker == "" && !slices.Contains(noBroker, c.what) {
			noBroker = append(noBroker, c.what)
			p.fail("%s names no broker, and no agent has an MQTT listener; set mqtt.broker or start an agent with --mqtt-listen", c.what)
		}
		for _, other := range clients[:i] {
			p.checkPair(other, c)
		}
	}
}

func (p *planner) checkPair(a, b client) {
	if a.broker != b.broker || a.broker == "" {
		return
	}
	if a.id == b.id {
		p.fail("%s on %s and %s on %s have the same client_id %q on one broker, which lets only one in; put {agent} or {label.NAME} into it",
			a.what, a.agent, b.what, b.agent, a.id)
	}
	if a.what != b.what {
		return
	}
	for _, x := range a.topics {
		for _, y := range b.topics {
			if overlap(x, y) {
				p.warn("%s: agents %s and %s subscribe to the same messages on one broker (%s and %s), each gets all of them",
					a.what, a.agent, b.agent, x, y)
				return
			}
		}
	}
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
				p.fail("sink %s in task %s and %s write the same file %s on agent %s; put {task} into the path",
					s.Name, t.ID, other, s.File.Path, t.Agent)
				continue
			}
			writers[at] = "sink " + s.Name + " in task " + string(t.ID)
		}
	}
}
