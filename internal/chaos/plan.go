package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// kind is a fault.
type kind string

const (
	kill       kind = "kill"        // SIGKILL, and what was not fsynced is lost
	freeze     kind = "freeze"      // SIGSTOP, later SIGCONT
	cutNATS    kind = "cut NATS"    // the agent's link to the hub
	slowNATS   kind = "slow NATS"   //
	cutMQTT    kind = "cut MQTT"    // the links of all agents to a broker
	slowMQTT   kind = "slow MQTT"   //
	mosquitto  kind = "mosquitto"   // restart of the broker, which stores its sessions
	embedded   kind = "broker"      // kill of the agent that is a broker
	fullDisk   kind = "full disk"   //
	slowDisk   kind = "slow disk"   //
	clock      kind = "clock"       // the one that the agent reads is set back by an hour, later right again
	flip       kind = "flip"        // kill, and bits of the snapshots' file are other ones
	lostServer kind = "lost server" // kill of the hub, and what its NATS server had on disk is gone
	site       kind = "site"        // kill of all agents at once, and the same
)

// mix is how often each fault comes, of 100.
var mix = []struct {
	kind  kind
	share int
}{
	{kill, 23}, {freeze, 7}, {cutNATS, 14}, {slowNATS, 8}, {cutMQTT, 10}, {slowMQTT, 5}, {mosquitto, 4}, {embedded, 4},
	{fullDisk, 8}, {slowDisk, 5}, {clock, 3}, {flip, 5}, {lostServer, 2}, {site, 2},
}

// event is one fault of a plan.
type event struct {
	at    time.Duration // since the beginning
	lasts time.Duration
	kind  kind
	who   int // the agent's index; of the faults of MQTT the broker's
	seed  uint64
}

func (e event) String() string {
	return fmt.Sprintf("%s %d for %d ms", e.kind, e.who, e.lasts.Milliseconds())
}

// limits of a plan. The first faults come when all is in full flow, the last leave time to come back within the plan.
const (
	quietAtFirst = 3 * time.Second
	gapMin       = 300 * time.Millisecond
	gapMax       = 3500 * time.Millisecond
	// calm is how long an agent is left alone after its process was hit, at least.
	calm = 1500 * time.Millisecond
)

// plan says what happens in a run: the same seed and bounds give the same faults. brokers is how many there are, of
// which the first is mosquitto if there are two.
func plan(seed uint64, lasts time.Duration, agents, brokers int, disks bool) []event {
	r := rand.New(rand.NewPCG(seed, 1))
	between := func(min, max time.Duration) time.Duration { return min + time.Duration(r.Int64N(int64(max-min))) }
	free := map[string]time.Duration{} // until when something is taken
	all := make([]string, agents)
	for i := range all {
		all[i] = fmt.Sprint("process ", i)
	}
	var out []event
	for at := quietAtFirst; at < lasts; at += between(gapMin, gapMax) {
		e := event{at: at, seed: r.Uint64(), who: r.IntN(agents), lasts: between(50*time.Millisecond, 3*time.Second)}
		n := r.IntN(100)
		for _, m := range mix {
			if n -= m.share; n < 0 {
				e.kind = m.kind
				break
			}
		}
		var takes []string
		switch e.kind {
		case kill, freeze, flip:
			takes = []string{all[e.who]}
			if r.IntN(4) == 0 {
				e.lasts *= 4 // long enough to be missed
			}
		case cutNATS, slowNATS:
			e.who = 1 + r.IntN(agents-1) // the hub has its server in itself
			takes = []string{fmt.Sprint("nats ", e.who)}
			e.lasts *= 2
		case cutMQTT, slowMQTT:
			e.who = r.IntN(brokers)
			takes = []string{fmt.Sprint("mqtt ", e.who)}
		case mosquitto, embedded:
			e.who = brokers - 1
			if e.kind == mosquitto {
				e.who = 0
				if brokers < 2 {
					continue
				}
			}
			takes = []string{fmt.Sprint("broker ", e.who)}
			e.lasts /= 2
		case fullDisk, slowDisk:
			if !disks {
				continue
			}
			takes = []string{fmt.Sprint("disk ", e.who)}
			e.lasts *= 2
		case clock:
			takes = []string{fmt.Sprint("clock ", e.who)}
			e.lasts *= 2
		case lostServer:
			e.who = 0
			takes = all[:1]
		case site:
			e.who = 0
			takes = all
		}
		for _, what := range takes {
			e.at = max(e.at, free[what])
		}
		if e.at+e.lasts >= lasts {
			continue
		}
		for _, what := range takes {
			free[what] = e.at + e.lasts + calm
		}
		out = append(out, e)
	}
	slices.SortStableFunc(out, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	return out
}
