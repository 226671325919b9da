package sim

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

var (
	flagSeed   = flag.Uint64("sim.seed", 0, "run this seed only (TestSeed)")
	flagFirst  = flag.Uint64("sim.first", 1, "the first of them")
	flagSeeds  = flag.Uint64("sim.seeds", 50, "seeds per topology")
	flagStride = flag.Int("sim.stride", 23, "TestEveryStep strikes after every so manieth event")
	flagTopo   = flag.String("sim.topo", "", "run this topology only")
	flagFaults = flag.String("sim.faults", "", "kinds of faults, with commas between; empty: all")
	flagWorld  = flag.String("sim.profile", "", "a profile by name: "+strings.Join(slices.Sorted(maps.Keys(profiles)), ", "))
	flagStop   = flag.Bool("sim.stop", false, "end at the first seed that fails")
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
	if *flagWorld != "" {
		o.adjust = profiles[*flagWorld]
		if o.adjust == nil {
			panic("no profile " + *flagWorld)
		}
	}
	for _, c := range ruleCases {
		if c.name == *flagRule {
			o.rules, o.faults, o.adjust = c.rules, c.faults, c.adjust
		}
	}
	return o
}

// replay is the command that runs a seed again, with its trace.
func replay(topo string, seed uint64, more string) string {
	return fmt.Sprintf("go test ./dataflow/sim -run TestSeed -sim.seed=%d -sim.topo=%s%s -v", seed, topo, more)
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
		return // TestSeeds runs them all
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

// TestSameSeedSameRun is what makes a failure worth having.
func TestSameSeedSameRun(t *testing.T) {
	if *flagSeed != 0 {
		return
	}
	for _, topo := range topologies {
		var runs [2][]string
		for i := range runs {
			opt := options{trace: func(line string) { runs[i] = append(runs[i], line) }}
			if _, err := simulate(topo, 3, opt); err != nil {
				t.Fatalf("%s: %v", topo.name, err)
			}
		}
		for i, line := range runs[0] {
			if i >= len(runs[1]) || line != runs[1][i] {
				t.Fatalf("%s: line %d was %q the first time", topo.name, i, line)
			}
		}
	}
}

// TestEveryStep breaks one thing once, after each of the events of a short run in turn.
func TestEveryStep(t *testing.T) {
	if *flagSeed != 0 {
		return
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for _, name := range []string{"chain", "device", "loop"} {
				everyStep(t, topologyOf(name), options{faults: []string{f.name}, adjust: quick})
			}
		})
	}
}

func everyStep(t *testing.T, topo *topology, opt options) {
	seed := lively(t, topo, opt)
	for opt.at = 1; ; opt.at += *flagStride {
		w, err := simulate(topo, seed, opt)
		if err != nil {
			t.Errorf("%s after event %d of seed %d of %s: %v", opt.faults[0], opt.at, seed, topo.name, err)
			return
		}
		if w.calmAt < opt.at {
			t.Logf("%s: %d steps", topo.name, w.calmAt)
			return
		}
	}
}

// lively is a seed in whose run checkpoints and records begin soon enough to meet the fault.
func lively(t *testing.T, topo *topology, opt options) uint64 {
	const enough, tries = 400, 50
	opt.faults = []string{"none"}
	for seed := uint64(1); seed <= tries; seed++ {
		if w, err := simulate(topo, seed, opt); err == nil && w.calmAt >= enough {
			return seed
		}
	}
	t.Fatalf("%s: none of %d seeds has %d steps", topo.name, tries, enough)
	return 0
}

// TestSeeds runs many seeds of every topology with every kind of fault.
func TestSeeds(t *testing.T) {
	if *flagSeed != 0 {
		return
	}
	for _, topo := range slices.Concat(topologies, specialTopologies) {
		if *flagTopo == "" && slices.Contains(specialTopologies, topo) || *flagTopo != "" && topo.name != *flagTopo {
			continue
		}
		t.Run(topo.name, func(t *testing.T) {
			t.Parallel()
			total, events := map[string]int{}, 0
			for seed := *flagFirst; seed < *flagFirst+*flagSeeds; seed++ {
				w, err := simulate(topo, seed, optionsOfFlags())
				if err != nil {
					more := ""
					if *flagFaults != "" {
						more = " -sim.faults=" + *flagFaults
					}
					if *flagWorld != "" {
						more += " -sim.profile=" + *flagWorld
					}
					t.Errorf("seed %d: %v\nreplay: %s", seed, err, replay(topo.name, seed, more))
					if *flagStop {
						return
					}
				}
				events += w.count
				for what, n := range w.chaos.counts {
					total[what] += n
				}
			}
			t.Logf("%d seeds, %d events, %v", *flagSeeds, events, total)
		})
	}
}
