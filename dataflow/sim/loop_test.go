package sim

import (
	"testing"
	"time"
)

// TestLoopRules wants that each rule of loops is needed: a seed that passes fails without it.
func TestLoopRules(t *testing.T) {
	busy := func(p *profile) { busy(p); p.pace = 40 * time.Millisecond }
	for _, c := range []struct {
		name   string
		topo   *topology
		rules  rules
		faults []string
		adjust func(*profile)
	}{
		{"credit charged on back edges", burst, rules{creditOnBackEdges: true}, []string{"none"}, crowded},
		{"loop log not restored", topologyOf("loop"), rules{forgetLoopLog: true}, []string{"site"}, busy},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const seeds = 200 // the first few dozen suffice; more make room for changes of the simulator
			for seed := uint64(1); seed <= seeds; seed++ {
				opt := options{rules: c.rules, faults: c.faults, adjust: c.adjust}
				_, broken := simulate(c.topo, seed, opt)
				if broken == nil {
					continue
				}
				opt.rules = rules{}
				if _, err := simulate(c.topo, seed, opt); err == nil {
					t.Logf("seed %d finds it: %.200s", seed, broken)
					return
				}
			}
			t.Errorf("none of %d seeds finds that the rule is missing", seeds)
		})
	}
}

// TestLoopThatIsRefilled runs a loop whose head makes again what a receiver outside the loop lacks, while what came by
// the back edge is gone from its stream: a part of its own may hold it.
func TestLoopThatIsRefilled(t *testing.T) {
	const seeds = 100
	for seed := uint64(1); seed <= seeds; seed++ {
		if _, err := simulate(forked, seed, options{faults: []string{"back", "slow"}, adjust: sparse}); err != nil {
			t.Errorf("seed %d: %.2000s", seed, err)
		}
	}
}

// TestLoopThatMultiplies runs a loop in which records double each time they go round, with four frames as
// the whole credit and records that fill them: more than credit allows is in the loop at once.
func TestLoopThatMultiplies(t *testing.T) {
	const seeds = 12
	for seed := uint64(1); seed <= seeds; seed++ {
		opt := options{
			faults: []string{"kill", "power", "tail", "empty", "task"},
			adjust: func(p *profile) { p.window, p.padding, p.messages, p.batch, p.poison = 1, 90_000, 30, 8, 0 },
		}
		if _, err := simulate(burst, seed, opt); err != nil {
			t.Errorf("seed %d: %.2000s", seed, err)
		}
	}
}
