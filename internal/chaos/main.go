// Chaos runs jobs on several agents in processes of their own while everything goes wrong that a plan, made from a
// seed, says: SIGKILL with the loss of all that was not fsynced, SIGSTOP, cut and slow links, restarts of brokers and
// of the NATS server, full and slow disks, clocks that jump, damaged snapshots, the loss of the server's files, the loss of power on
// the whole site. The jobs are a chain, two shuffles of what four gateways send, a loop, and windows of event time with
// late readings. At the end what every sink gave must be what a model computes from the readings that were sent.
//
//	go run ./internal/chaos [-duration 5m] [-round 4m] [-seed N] [-disk auto|forget|plain] [-keep]
//
// A run is a series of rounds, each on a fresh site with a seed of its own, which is printed; WEIR_CHAOS_SEED, or
// -seed, repeats what chance decided in the round that printed it. The timing of the processes stays their own.
//
// With -reboots N the trial is another one: a hub and N gateways, one of which is killed and started again every five
// seconds, the hub once a minute. No other agent's task may restart, the output of the others may not pause, and the
// sums are exact. (The hub's NATS server holds the input streams in memory: after its reboot senders may have to make
// again what it had not kept, which is counted as a rewind.)
//
// With -disk forget each agent has its directory on a file system of this program's (FUSE), which knows what has been
// fsynced: a kill is a power cut, in which each file loses all unsynced writes, or all behind some moment with the
// last one torn, or some pages; or none; and each directory names that were made, moved or removed without an fsync of
// it. (Below nats/ names are durable with any fsync, as on a journaling file system, on which that server counts.) It
// needs root and /dev/fuse. With -disk plain a kill is a kill only, and disks are neither full nor slow. auto takes
// what is there and says so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// options are those of the command line.
type options struct {
	duration, round time.Duration
	seed            uint64
	disk            string
	keep            bool
	reboots         int
}

// inside is set in the process that has mounts of its own.
const inside = "WEIR_CHAOS_INSIDE"

func main() {
	if err := realMain(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func realMain() error {
	var o options
	flag.DurationVar(&o.duration, "duration", 5*time.Minute, "how long faults come, in all rounds together")
	flag.DurationVar(&o.round, "round", 4*time.Minute, "how long they come in one round at most")
	flag.Uint64Var(&o.seed, "seed", seedOfEnvironment(), "of the first round; 0: any")
	flag.StringVar(&o.disk, "disk", "auto", "forget, plain, or auto")
	flag.BoolVar(&o.keep, "keep", false, "leave the directory of a round that went well too")
	flag.IntVar(&o.reboots, "reboots", 0, "instead: one hub and so many gateways, of which one is always being rebooted")
	flag.Parse()
	if flag.NArg() > 0 || o.duration <= 0 || o.round <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	if o.disk != "plain" && os.Getenv(inside) == "" {
		return again(o)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, o)
}

func seedOfEnvironment() uint64 {
	n, _ := strconv.ParseUint(os.Getenv("WEIR_CHAOS_SEED"), 10, 64)
	return n
}

// again runs this program again with mounts of its own, which end with it however it ends.
func again(o options) error {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=yes")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	ignore := make(chan os.Signal, 1) // the other one has it too and ends in its own time
	signal.Notify(ignore, os.Interrupt)
	err := cmd.Start()
	if errors.Is(err, syscall.EPERM) && o.disk == "auto" {
		fmt.Println("no mounts of its own: disks are plain ones, a kill loses nothing that was written, no disk is full or slow")
		o.disk = "plain"
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return run(ctx, o)
	}
	if err != nil {
		return fmt.Errorf("-disk forget needs mounts of its own: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		os.Exit(max(1, cmd.ProcessState.ExitCode()))
	}
	return nil
}

// rebootAll plays reboots once.
func rebootAll(ctx context.Context, dir string, built program, o options) error {
	seed := o.seed
	if seed == 0 {
		seed = uint64(rand.Uint32()) + 1
	}
	fmt.Printf("--- reboots of %d gateways: seed %d, %s (repeat it with WEIR_CHAOS_SEED=%d make reboots GATEWAYS=%d DURATION=%s)\n", o.reboots, seed, o.duration, seed, o.reboots, o.duration)
	where := filepath.Join(dir, fmt.Sprint(seed))
	if err := reboots(ctx, where, built, o, o.reboots, seed); err != nil {
		return fmt.Errorf("reboots with seed %d: %w\nleft to be looked at: %s", seed, err, where)
	}
	fmt.Println("--- all sums are exact, and nobody restarted who was not rebooted")
	return os.RemoveAll(dir)
}

// run plays rounds until the time is over or one has failed.
func run(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "weir-chaos-")
	if err != nil {
		return err
	}
	built, err := build(ctx, dir)
	if err != nil {
		return err
	}
	seed := o.seed
	if o.reboots > 0 {
		return rebootAll(ctx, dir, built, o)
	}
	rounds := max(1, int((o.duration+o.round-1)/o.round))
	for n := range rounds {
		if seed == 0 {
			seed = uint64(rand.Uint32()) + 1
		}
		lasts := min(o.round, o.duration-time.Duration(n)*o.round)
		fmt.Printf("--- round %d of %d: seed %d, %s (repeat it with WEIR_CHAOS_SEED=%d make chaos DURATION=%s)\n", n+1, rounds, seed, lasts, seed, lasts)
		began := time.Now()
		where := filepath.Join(dir, fmt.Sprint(seed))
		if err := play(ctx, where, built, o, seed, lasts); err != nil {
			return fmt.Errorf("round with seed %d: %w\nleft to be looked at: %s", seed, err, where)
		}
		fmt.Printf("--- round with seed %d is exact, after %.0f s\n", seed, time.Since(began).Seconds())
		if !o.keep {
			if err := os.RemoveAll(where); err != nil {
				return err
			}
		}
		seed = 0
	}
	if o.keep {
		fmt.Println("left to be looked at:", dir)
		return nil
	}
	return os.RemoveAll(dir)
}
