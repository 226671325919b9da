package sim

import (
	"testing"
	"time"
)

// quick is a profile whose runs have few events, so that something can be broken after each of them.
func quick(p *profile) {
	p.messages, p.pace, p.storm, p.poison = 6, 20*time.Millisecond, 400*time.Millisecond, 0.1
	p.checkpoints.IntervalMs, p.checkpoints.MinPauseMs, p.checkpoints.TimeoutMs = 60, 0, 400
	p.sync, p.link, p.control, p.persist, p.turn = time.Millisecond, 2*time.Millisecond, 2*time.Millisecond, 5*time.Millisecond, 200*time.Microsecond
	p.laggard = ""
}

// TestEndAtEveryStep breaks one thing once, after each event of a run in which all inputs end and checkpoints
// go on over it. In the end a checkpoint counts in which all tasks have ended.
func TestEndAtEveryStep(t *testing.T) {
	if *flagSeed != 0 {
		return
	}
	for _, f := range []string{"kill", "power-all", "task", "term"} {
		t.Run(f, func(t *testing.T) {
			t.Parallel()
			opt := options{faults: []string{f}, adjust: func(p *profile) {
				quick(p)
				p.messages, p.ends, p.finishes, p.storm = 3, true, true, 600*time.Millisecond
			}}
			everyStep(t, topologyOf("merge"), opt)
		})
	}
}

// TestReplicationAtEveryStep changes the coordinator once, after each event of a run in which checkpoints count
// when they are replicated.
func TestReplicationAtEveryStep(t *testing.T) {
	if *flagSeed != 0 {
		return
	}
	opt := options{faults: []string{"term"}, adjust: func(p *profile) {
		quick(p)
		p.checkpoints.Replicate, p.checkpoints.ReplicaTimeoutMs = true, 1500
	}}
	everyStep(t, topologyOf("chain"), opt)
}
