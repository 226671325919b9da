// Scale measures what an agent, a channel and a checkpoint cost the hub, and extrapolates.
//
//	go run ./internal/bench/scale [-gateways 1,10,50,100,200] [-parallel 1,2,4,8] [-intervals 2s,10s] [-window 1m]
//	    [-out dist/scale] [-to 10000] [-cores 2] [-profile N]
//
// The hub is a process of its own that runs an agent with the embedded NATS server, and coordinates. The gateways are
// agents too, whole ones with logs, snapshots and connections of their own, but all in one second process. A job has a
// source on every gateway, which follows a file, and one task that counts on the hub. Per number of gateways a fresh
// fleet is measured in four phases, each of which begins when the fleet has settled (all agents are up, the job's tasks
// run, nothing has changed since the last checkpoint, three checkpoints count), never after a pause:
//
//   - fleet: no job; what signs of life and watches cost.
//   - silent: the job runs and no line comes, so no checkpoint is due.
//   - a line per second and gateway, with checkpoints at the longer interval, and at the shorter.
//
// A checkpoint's cost is the slope between the last two; its duration is from its start until it counts. The second
// series has as many gateways as the middle one of the first, and more tasks on the hub, so more channels per gateway.
//
// CPU is the process's own, from the operating system. Messages and bytes are the NATS server's own counters: in is what
// clients publish, out what they are sent. The results are a Markdown report, with a line fitted through each
// figure, and a CSV file with a line per phase. -profile N also writes a CPU profile of the hub per phase at N gateways.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weir-stream/weir/internal/fleet"
)

// settings are those of the command line.
type settings struct {
	fleets    []int           // numbers of gateways
	spreads   []int           // numbers of tasks on the hub
	intervals []time.Duration // two
	window    time.Duration
	settle    int // checkpoints that have to count before a phase with data is measured
	out       string
	to        int     // agents to extrapolate to
	cores     float64 // of the hub that the extrapolation is for
	profile   int     // gateways at which profiles of the hub are written; 0: none
}

func main() {
	if role := roleOf(os.Args); role != nil {
		exit(role(os.Args[2:]))
		return
	}
	var s settings
	gateways := flag.String("gateways", "1,10,50,100,200", "numbers of gateways")
	parallel := flag.String("parallel", "1,2,4,8", "tasks on the hub in the second series; empty: there is none")
	intervals := flag.String("intervals", "2s,10s", "two intervals between checkpoints")
	flag.DurationVar(&s.window, "window", time.Minute, "how long each phase is measured, at least")
	flag.StringVar(&s.out, "out", "dist/scale", "directory of the results")
	flag.IntVar(&s.to, "to", 10000, "agents to extrapolate to")
	flag.Float64Var(&s.cores, "cores", 2, "cores of the hub that the extrapolation is for")
	flag.IntVar(&s.settle, "settle", 3, "checkpoints that have to count before a phase with data is measured")
	flag.IntVar(&s.profile, "profile", 0, "write CPU profiles of the hub with that many gateways")
	flag.Parse()
	var err error
	if s.fleets, err = numbers("-gateways", *gateways); err == nil && len(s.fleets) == 0 {
		err = errors.New("-gateways: name at least one number")
	}
	if err == nil {
		s.spreads, err = numbers("-parallel", *parallel)
	}
	if err == nil {
		s.intervals, err = twoIntervals(*intervals)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, s))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func numbers(name, list string) (out []int, err error) {
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %q is not a number from 1 on; write it like 1,10,50", name, s)
		}
		out = append(out, n)
	}
	return out, nil
}

func twoIntervals(list string) (out []time.Duration, err error) {
	for s := range strings.SplitSeq(list, ",") {
		d, err := time.ParseDuration(strings.TrimSpace(s))
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("-intervals: %q is not a duration; write them like 2s,10s", s)
		}
		out = append(out, d)
	}
	if len(out) != 2 || out[0] >= out[1] {
		return nil, fmt.Errorf("-intervals %s: two are needed, the shorter first, like 2s,10s", list)
	}
	return out, nil
}

// run measures both series. The results are written after each fleet, so that a run that is ended early has some.
func run(ctx context.Context, s settings) error {
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	var r results
	for _, n := range s.fleets {
		t, err := measure(ctx, s, n, 1)
		if err != nil {
			return fmt.Errorf("%d gateways: %w", n, err)
		}
		r.agents = append(r.agents, t)
		if err := r.write(s); err != nil {
			return err
		}
		fmt.Println(t)
	}
	middle := len(s.fleets) / 2
	for _, p := range s.spreads {
		t := r.agents[middle]
		if p > 1 {
			var err error
			if t, err = measure(ctx, s, s.fleets[middle], p); err != nil {
				return fmt.Errorf("%d gateways, %d tasks on the hub: %w", s.fleets[middle], p, err)
			}
			fmt.Println(t)
		}
		r.channels = append(r.channels, t)
		if err := r.write(s); err != nil {
			return err
		}
	}
	fmt.Printf("\n%s\nwritten to %s\n", r.markdown(s), s.out)
	return nil
}

func (r results) write(s settings) error {
	err := os.WriteFile(filepath.Join(s.out, "report.md"), []byte(r.markdown(s)), 0o644)
	return errors.Join(err, r.writeCSV(filepath.Join(s.out, "results.csv")))
}

// measure runs one fresh fleet.
func measure(ctx context.Context, s settings, gateways, parallel int) (trial, error) {
	dir, err := fleet.NewTempDir("weir-scale-")
	if err != nil {
		return trial{}, err
	}
	t := &site{settings: s, dir: dir.Path, trial: trial{gateways: gateways, parallel: parallel}}
	err = t.run(ctx)
	t.close()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, t.tails())
	}
	return t.trial, errors.Join(err, dir.Remove())
}
