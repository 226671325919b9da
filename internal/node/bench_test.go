package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const interval = 100 * time.Millisecond

// BenchmarkEpoch measures what checkpoints cost beside the data: 50 tasks on one agent, ten sources with
// four tasks each, an interval of 100 ms. An operation is an epoch; core-% is what ten of them a second
// take of a core. Idle: no data, an operation is an interval in which no epoch is due. Moving: one
// source gets a line per epoch, so that every task takes part in every epoch.
func BenchmarkEpoch(b *testing.B) {
	b.Run("idle", func(b *testing.B) {
		a, _ := startIdle(b, true)
		a.until("nothing changes", func() (bool, string) {
			j, err := a.client.Job(b.Context(), "idle")
			return err == nil && strings.HasPrefix(j.Waits, "nothing has changed"), fmt.Sprint(j.Waits, err)
		})
		b.ResetTimer()
		cpu := cpuTime(b)
		for range b.N {
			time.Sleep(interval)
		}
		report(b, cpuTime(b)-cpu, uint64(b.N))
	})
	for _, replicate := range []bool{true, false} {
		b.Run(fmt.Sprintf("moving/replicate=%v", replicate), func(b *testing.B) {
			a, in := startIdle(b, replicate)
			first := a.epoch(replicate)
			b.ResetTimer()
			cpu := cpuTime(b)
			epochs := uint64(0)
			for i := 0; i < b.N || epochs == 0; i++ {
				in.write(b, "x\n")
				time.Sleep(interval)
				if i >= b.N-1 {
					epochs = a.epoch(replicate) - first
				}
			}
			used := cpuTime(b) - cpu
			report(b, used, epochs)
			b.ReportMetric(float64(epochs)/b.Elapsed().Seconds(), "epochs/s")
		})
	}
}

func report(b *testing.B, used time.Duration, epochs uint64) {
	perEpoch := used.Seconds() / float64(epochs)
	b.ReportMetric(perEpoch*1000, "cpu-ms/epoch")
	b.ReportMetric(perEpoch*float64(time.Second/interval)*100, "core-%")
}

// startIdle starts an agent with a job of 50 tasks and returns the input of one of its sources.
func startIdle(b *testing.B, replicate bool) (*agent, files) {
	const sources, tasks = 10, 4
	dir := b.TempDir()
	var src, ops, sinks strings.Builder
	for i := range sources {
		path := filepath.Join(dir, fmt.Sprint("in", i))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			b.Fatal(err)
		}
		fmt.Fprintf(&src, "  s%d: {file: {path: %q, follow: true}}\n", i, path)
		fmt.Fprintf(&ops, "  c%d: {native: count, from: s%d, key_by: key, parallelism: %d}\n", i, i, tasks)
		fmt.Fprintf(&sinks, "  o%d: {file: {path: %q}, from: c%d}\n", i, filepath.Join(dir, fmt.Sprintf("out%d-{task}", i)), i)
	}
	a := start(b, b.TempDir())
	a.mustApply(fmt.Sprintf("name: idle\ncheckpoint: {interval: %s, min_pause: 0s, replicate: %v}\nsources:\n%soperators:\n%ssinks:\n%s",
		interval, replicate, &src, &ops, &sinks))
	return a, files{in: filepath.Join(dir, "in0")}
}

// epoch is the newest one that counts.
func (a *agent) epoch(replicate bool) uint64 {
	a.t.Helper()
	j, err := a.client.Job(a.t.Context(), "idle")
	if err != nil {
		a.t.Fatal(err)
	}
	if replicate {
		return j.LastReplicatedEpoch
	}
	return j.LastCompleteEpoch
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
