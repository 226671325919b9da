package job

import "strings"

// promises says, for every source, the state and every sink, how often a record counts. Forgetful are
// those of QoS 2, such as "source x", whose broker is the one inside an agent.
func promises(g *Graph, forgetful map[string]bool) []Promise {
	var all []Promise
	for _, s := range g.File.Sources {
		all = append(all, sourcePromise(s, forgetful["source "+s.Name]))
	}
	all = append(all, statePromise(g.File.Checkpoint))
	for _, s := range g.File.Sinks {
		all = append(all, sinkPromise(s, forgetful["sink "+s.Name]))
	}
	return all
}

func sourcePromise(s Source, forgetful bool) Promise {
	p := Promise{Of: "source " + s.Name}
	switch {
	case s.File != nil:
		p.Level, p.Reason = Exactly, "a file can be read again: its offset is logged with the lines"
	case s.Generator != nil:
		p.Level, p.Reason = Exactly, "what it makes is a function of a number, which is logged with the records"
	case s.MQTT == nil:
		panic("job: source " + s.Name + " of no kind")
	case s.MQTT.QoS == 0:
		p.Level, p.Reason = AtMost, "at QoS 0 the broker keeps nothing for a source that is away or slow"
	case s.ID != "":
		p.Level, p.Reason = Exactly, "acknowledged once on disk; repeats are dropped by id "+s.ID
	case s.MQTT.QoS == 1:
		p.Level, p.Reason = AtLeast, "acknowledged once on disk; at QoS 1 the broker may send a copy, which counts as a new record; an id would drop it"
	case forgetful:
		p.Level, p.Reason = AtLeast, "acknowledged once on disk; the broker inside an agent may send a message again as a new one after a lost connection or its restart, which an id would drop"
	default:
		p.Level, p.Reason = Exactly, "on disk together with its packet identifier before it is acknowledged, and until it is released: what the broker sends again is recognised, across kills too"
	}
	if s.MQTT != nil && s.MQTT.WhenFull == ShedOldest {
		p.Reason += "; while the log is full the oldest messages are shed and counted"
		switch p.Level {
		case Exactly:
			p.Level = AtMost
		case AtLeast:
			p.Level = Unsure
		}
	}
	return p
}

func statePromise(c Checkpoint) Promise {
	p := Promise{Of: "state", Level: Exactly, Reason: "every logged record is in operator state once, across kills and power cuts"}
	if c.Mode == AtLeastOnce {
		p.Level, p.Reason = AtLeast, "barriers are not aligned: after a return to a checkpoint a record may count again"
	}
	if !c.Replicate {
		p.Reason += "; without replication a device that is lost takes its state with it"
	}
	return p
}

func sinkPromise(s Sink, forgetful bool) Promise {
	p := Promise{Of: "sink " + s.Name}
	template := ""
	switch {
	case s.MQTT != nil:
		template = s.MQTT.Topic + s.MQTT.Payload
		p.Level, p.Reason = AtLeast, "what was published and not yet acknowledged is published again after a cut or a kill"
		if s.MQTT.QoS == 0 {
			p.Level, p.Reason = Unsure, "at QoS 0 the broker acknowledges nothing, so a message may be lost on the way or sent again"
		}
		if s.MQTT.QoS == 2 && forgetful {
			p.Level, p.Reason = AtMost, "the broker inside an agent loses what is being released to it at QoS 2 when that agent is killed; QoS 1 loses nothing"
		} else if s.MQTT.QoS == 2 {
			p.Level, p.Reason = Exactly, "each message's handshake goes on where a cut or a kill has left it, as long as the broker keeps its session"
		}
	case s.File != nil:
		template = s.File.Line
		p.Level, p.Reason = AtLeast, "lines written and not yet noted as such are written again after a kill"
	case s.Log != nil:
		p.Level, p.Reason = AtLeast, "records logged and not yet noted as such are logged again after a kill"
	}
	if s.Commit == AtCheckpoint {
		p.Reason += "; handed over when a checkpoint counts that contains it"
	}
	if strings.Contains(template, "{number}") && strings.Contains(template, "{channel}") {
		p.Reason += "; a repeat has the same channel and number, so a reader can drop it"
	}
	return p
}
