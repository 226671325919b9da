//go:build linux

// Eval reproduces the evaluation of Carbone et al. 2015 with Weir, and measures what it left out:
//
//	go run ./internal/eval [-short | -full] [-sections LIST] [-rounds N] [-out DIR] [-work DIR]
//
// Agents are processes of their own on this machine; the job is that of package graph. A run starts fresh
// agents, and runs of different arms alternate, so that what else the machine does meets all of them alike: what
// counts are ratios to the run without snapshots of the same round. Modes of the job file are the arms: none,
// exactly_once (asynchronous barrier snapshots), at_least_once, and synchronous, which halts all sources, drains
// and saves, as the paper's baseline does.
//
//	interval    run time and CPU against the snapshot interval (figure 6 of the paper)
//	state       the same with 25 MB changed per epoch, and latency against the size of the state
//	agents      run time and CPU against the number of agents at 3 s (figure 7); records are fixed
//	latency     of records below saturation
//	crash       output while an agent is killed; each record must come out exactly once
//	throughput  records per second, by record size, on disk and on tmpfs
//
// It writes results.csv, every run; report.md, medians and spread, with the machine; and plots as SVG and PNG.
// It needs Go; clang and wasm-ld if the operators are to be in C and not in Go. Linux only: CPU time is from
// /proc.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weir-stream/weir/internal/eval/graph"
)

// scale is how much is measured.
type scale struct {
	rounds    int
	seconds   float64 // that a run without snapshots is to take
	intervals []time.Duration
	agents    []int
	states    []int // MiB
	rate      int   // records a second for latencies
	duration  time.Duration
	arms      []string
	latency   []time.Duration // intervals
}

// Modes of the job file.
const (
	none         = "none"
	exactlyOnce  = "exactly_once"
	atLeastOnce  = "at_least_once"
	synchronous  = "synchronous"
	paperAgents  = 3 * time.Second // the interval of the paper's second figure
	defaultKeys  = 10_000
	defaultBytes = 50
)

func ms(n ...int) []time.Duration {
	var out []time.Duration
	for _, v := range n {
		out = append(out, time.Duration(v)*time.Millisecond)
	}
	return out
}

var (
	short = scale{rounds: 1, seconds: 2, intervals: ms(1000, 100), agents: []int{1, 2}, states: []int{1, 16}, rate: 1000,
		duration: 4 * time.Second, arms: []string{exactlyOnce, synchronous}, latency: ms(100)}
	usual = scale{rounds: 2, seconds: 4, intervals: ms(3000, 1000, 500, 300, 200, 100, 50), agents: []int{1, 2, 4, 8}, states: []int{1, 16, 64, 256},
		rate: 2000, duration: 8 * time.Second, arms: []string{exactlyOnce, synchronous}, latency: ms(1000, 100)}
	full = scale{rounds: 5, seconds: 12, intervals: ms(3000, 1000, 500, 300, 200, 100, 50), agents: []int{1, 2, 4, 8, 16}, states: []int{1, 16, 64, 256, 512},
		rate: 2000, duration: 30 * time.Second, arms: []string{exactlyOnce, atLeastOnce, synchronous}, latency: ms(3000, 1000, 300, 100)}
)

var sections = []string{"interval", "state", "agents", "latency", "crash", "throughput"}

// evaluation is what all runs share.
type evaluation struct {
	scale
	agent, module, language string
	work, tmpfs             string // where agents keep their directories
	out                     string
	records                 int // of a run, so that it takes about scale.seconds
	results                 []result
	parallel                int
}

func main() {
	isShort := flag.Bool("short", false, "a minute or two: whether everything works")
	isFull := flag.Bool("full", false, "an hour: small spread")
	list := flag.String("sections", strings.Join(sections, ","), "what to measure")
	rounds := flag.Int("rounds", 0, "runs of each arm; 0: by the scale")
	out := flag.String("out", "dist/eval", "directory of the results")
	work := flag.String("work", "", "directory of the agents; a temporary one if empty")
	tmpfs := flag.String("tmpfs", "/dev/shm", "directory in memory; left out if it is not there")
	parallel := flag.Int("parallel", 2, "tasks of each operator, and sources, on one agent")
	flag.Parse()
	if flag.NArg() > 0 || *rounds < 0 || *parallel < 1 || *isShort && *isFull {
		flag.Usage()
		os.Exit(2)
	}
	s := usual
	switch {
	case *isShort:
		s = short
	case *isFull:
		s = full
	}
	if *rounds > 0 {
		s.rounds = *rounds
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	e := &evaluation{scale: s, work: *work, tmpfs: *tmpfs, out: *out, parallel: *parallel}
	if err := e.all(ctx, strings.Split(*list, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "eval:", err)
		os.Exit(1)
	}
}

func (e *evaluation) all(ctx context.Context, wanted []string) (err error) {
	for _, w := range wanted {
		if !slices.Contains(sections, w) {
			return fmt.Errorf("no section %q; there are %s", w, strings.Join(sections, ", "))
		}
	}
	if e.work, err = os.MkdirTemp(e.work, "weir-eval-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(e.work)) }()
	if err := os.MkdirAll(e.out, 0o755); err != nil {
		return err
	}
	if err := e.build(ctx); err != nil {
		return err
	}
	before := e.describe()
	if err := e.calibrate(ctx); err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"interval", e.intervalSection}, {"state", e.stateSection}, {"agents", e.agentsSection}, {"latency", e.latencySection},
		{"crash", e.crashSection}, {"throughput", e.throughputSection},
	} {
		if !slices.Contains(wanted, s.name) {
			continue
		}
		if err := s.run(ctx); err != nil {
			return err
		}
		if err := e.report(before); err != nil { // what there is, should a later section fail
			return err
		}
	}
	return nil
}

// build makes the agent and the operators.
func (e *evaluation) build(ctx context.Context) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/weir-stream/weir").Output()
	if err != nil {
		return fmt.Errorf("find the checkout: run it there: %w", err)
	}
	dir := strings.TrimSpace(string(root))
	e.agent = filepath.Join(e.work, "agent")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", e.agent, "./cmd/agent")
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the agent: %w\n%s", err, said)
	}
	e.module, e.language, err = graph.Build(ctx, dir, e.work)
	return err
}

// job is the graph as far as all sections agree.
func (e *evaluation) job(mode string, interval time.Duration, agents int) graph.Job {
	return graph.Job{
		Name: "eval", Mode: mode, Interval: interval, Agents: agents, Sources: e.parallel, Parallel: e.parallel,
		Records: e.records, Keys: defaultKeys, Size: defaultBytes,
	}
}

// calibrate finds how many records a run is to have.
func (e *evaluation) calibrate(ctx context.Context) error {
	const few = 300_000
	// maxRecords keeps the log of a run that takes no snapshots within the agent's budget, 1 GiB.
	const maxRecords = 7_000_000
	e.records = few
	for range 2 {
		r, err := e.measure(ctx, result{section: "calibrate", arm: none}, e.job(none, time.Second, 1))
		if err != nil {
			return err
		}
		e.records = int(min(max(e.seconds*float64(r.records)/r.seconds, few), maxRecords)) / 1000 * 1000
	}
	fmt.Printf("%d records of %d bytes take about %g s on one agent\n", e.records, defaultBytes, e.seconds)
	return nil
}

// config is one kind of run of a section.
type config struct {
	arm string
	x   float64
	job graph.Job
	run func(ctx context.Context, r result, job graph.Job) (result, error)
}

// interleave runs all configurations once per round, each round beginning with another one.
func (e *evaluation) interleave(ctx context.Context, section string, configs []config) error {
	for round := range e.rounds {
		shift := round * len(configs) / e.rounds
		for i := range configs {
			c := configs[(i+shift)%len(configs)]
			run := c.run
			if run == nil {
				run = e.measure
			}
			r, err := run(ctx, result{section: section, arm: c.arm, x: c.x, round: round}, c.job)
			if err != nil {
				return err
			}
			e.results = append(e.results, r)
			fmt.Println(r.line())
		}
	}
	return nil
}

func (e *evaluation) intervalSection(ctx context.Context) error {
	return e.interleave(ctx, "interval", e.atIntervals(0))
}

// atIntervals are the arms at all intervals, with so many MiB that change again and again.
func (e *evaluation) atIntervals(hot int) []config {
	configs := []config{{arm: none, job: e.job(none, time.Second, 1)}}
	for _, every := range e.intervals {
		for _, arm := range e.arms {
			configs = append(configs, config{arm: arm, x: float64(every.Milliseconds()), job: e.job(arm, every, 1)})
		}
	}
	for i := range configs {
		configs[i].job.Memory, configs[i].job.Hot = hot, hot
	}
	return configs
}

func (e *evaluation) agentsSection(ctx context.Context) error {
	var configs []config
	for _, n := range e.agents {
		for _, arm := range []string{none, exactlyOnce} {
			c := config{arm: arm, x: float64(n), job: e.job(arm, paperAgents, n)}
			c.job.Sources = 1
			configs = append(configs, c)
		}
	}
	return e.interleave(ctx, "agents", configs)
}

// slow is a job below saturation.
func (e *evaluation) slow(mode string, interval time.Duration) graph.Job {
	j := e.job(mode, interval, 1)
	j.Sources, j.Rate, j.Records = 1, e.rate, e.rate*int(e.duration/time.Second)
	return j
}

func (e *evaluation) alive(ctx context.Context, r result, job graph.Job) (result, error) {
	return e.collect(ctx, r, job, 0)
}

func (e *evaluation) latencySection(ctx context.Context) error {
	configs := []config{{arm: none, job: e.slow(none, time.Second), run: e.alive}}
	for _, every := range e.latency {
		for _, arm := range e.arms {
			configs = append(configs, config{arm: arm, x: float64(every.Milliseconds()), job: e.slow(arm, every), run: e.alive})
		}
	}
	return e.interleave(ctx, "latency", configs)
}

func (e *evaluation) stateSection(ctx context.Context) error {
	const hot = 24 // MiB: with the tables some 25 MB an epoch
	var few []config
	for _, c := range e.atIntervals(hot) {
		if c.x == 0 || c.x == 1000 || c.x == 100 {
			few = append(few, c)
		}
	}
	if err := e.interleave(ctx, "changed", few); err != nil {
		return err
	}
	var configs []config
	for _, mib := range e.states {
		for _, arm := range []string{none, exactlyOnce, synchronous} {
			c := config{arm: arm, x: float64(mib), job: e.slow(arm, time.Second), run: e.alive}
			c.job.Memory, c.job.Hot = mib, 1
			configs = append(configs, c)
		}
	}
	return e.interleave(ctx, "state", configs)
}

func (e *evaluation) crashSection(ctx context.Context) error {
	var configs []config
	for _, arm := range []string{none, exactlyOnce} {
		c := config{arm: arm, job: e.job(arm, time.Second, 2), run: func(ctx context.Context, r result, job graph.Job) (result, error) {
			return e.collect(ctx, r, job, 1)
		}}
		c.job.Sources, c.job.Parallel, c.job.Rate = 1, 1, e.rate
		c.job.Records = e.rate * int(3*e.duration/2/time.Second)
		configs = append(configs, c)
	}
	return e.interleave(ctx, "crash", configs)
}

func (e *evaluation) throughputSection(ctx context.Context) error {
	var configs []config
	for _, size := range []int{50, 200} {
		for _, arm := range []string{none, exactlyOnce} {
			job := e.job(arm, paperAgents, 1)
			job.Size, job.Records = size, job.Records*50/size
			configs = append(configs, config{arm: arm + " on disk", x: float64(size), job: job})
			if st, err := os.Stat(e.tmpfs); err == nil && st.IsDir() {
				configs = append(configs, config{arm: arm + " on tmpfs", x: float64(size), job: job, run: e.inMemory})
			}
		}
	}
	return e.interleave(ctx, "throughput", configs)
}

// inMemory measures with the agents' directories on tmpfs.
func (e *evaluation) inMemory(ctx context.Context, r result, job graph.Job) (result, error) {
	dir, err := os.MkdirTemp(e.tmpfs, "weir-eval-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	there := *e
	there.work = dir
	return there.measure(ctx, r, job)
}
