package sim

import (
	"testing"
	"time"
)

// TestLoopRules wants that each rule of loops is needed: a seed that passes fails without it.
func TestLoopRules(t *testing.T) {
	crowded := func(p *profile) { p.window, p.padding, p.messages, p.batch = 1, 90_000, 40, 8 }
	busy := func(p *profile) { busy(p); p.pace = 40 * time.Millisecond }
	for _, c := range []struct {
		name   string
		topo   string
		rules  rules
		faults []string
		adjust func(*profile)
	}{
		{"credit charged on back edges", "loop", rules{creditOnBackEdges: true}, []string{"none"}, crowded},
		{"loop log not restored", "loop", rules{forgetLoopLog: true}, []string{"site"}, busy},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const seeds = 200 // the first few dozen suffice; more make room for changes of the simulator
			for seed := uint64(1); seed <= seeds; seed++ {
				opt := options{rules: c.rules, faults: c.faults, adjust: c.adjust}
				_, broken := simulate(topologyOf(c.topo), seed, opt)
				if broken == nil {
					continue
				}
				opt.rules = rules{}
				if _, err := simulate(topologyOf(c.topo), seed, opt); err == nil {
					t.Logf("seed %d finds it: %.200s", seed, broken)
					return
				}
			}
			t.Errorf("none of %d seeds finds that the rule is missing", seeds)
		})
	}
}
