package sim

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

var (
	flagSeed   = flag.Uint64("sim.seed", 0, "run this seed only (TestSeed)")
	flagSeeds  = flag.Uint64("sim.seeds", 20, "seeds per topology")
	flagTopo   = flag.String("sim.topo", "", "run this topology only")
	flagFaults = flag.String("sim.faults", "", "kinds of faults, with commas between; empty: all")
)

// options say how a run differs from the usual.
type options struct {
	rules  rules
	faults []string
	at     int // strike once, after this event; 0: by chance
	adjust func(*profile)
	trace  func(string)
}

func optionsOfFlags() options {
	var o options
	if *flagFaults != "" {
		o.faults = strings.Split(*flagFaults, ",")
	}
	return o
}

// simulate runs one seed, and then restores the whole job from its checkpoints.
func simulate(topo *topology, seed uint64, opt options) (*world, error) {
	w := newWorld(topo, seed, opt)
	if err := w.run(); err != nil {
		return w, err
	}
	return w, restoreOne(w, opt)
}

// TestSeed replays one seed with its trace.
func TestSeed(t *testing.T) {
	if *flagSeed == 0 {
		return
	}
	topo := topologyOf(*flagTopo)
	if topo == nil {
		t.Fatalf("no topology %q", *flagTopo)
	}
	opt := optionsOfFlags()
	opt.trace = func(line string) { fmt.Println(line) }
	w, err := simulate(topo, *flagSeed, opt)
	t.Logf("%d events, %v, %v", w.count, w.now, w.chaos.counts)
	if err != nil {
		t.Fatal(err)
	}
}

// TestSeeds runs many seeds of every topology with every kind of fault.
func TestSeeds(t *testing.T) {
	if *flagSeed != 0 {
		return
	}
	for _, topo := range topologies {
		if *flagTopo != "" && topo.name != *flagTopo {
			continue
		}
		t.Run(topo.name, func(t *testing.T) {
			t.Parallel()
			total, events := map[string]int{}, 0
			for seed := uint64(1); seed <= *flagSeeds; seed++ {
				w, err := simulate(topo, seed, optionsOfFlags())
				if err != nil {
					t.Errorf("seed %d: %v\nreplay: go test ./dataflow/sim -run TestSeed -sim.seed=%d -sim.topo=%s -v", seed, err, seed, topo.name)
				}
				events += w.count
				for what, n := range w.chaos.counts {
					total[what] += n
				}
			}
			t.Logf("%d events, %v", events, total)
		})
	}
}
