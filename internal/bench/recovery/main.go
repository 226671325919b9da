// Recovery measures how long an agent takes to come back after SIGKILL: from the start of its process to the first
// output for a record that came afterwards, and until the latency is what it was.
//
//	go run ./internal/bench/recovery [-state 1,64,512] [-log 10s,1m] [-rate 2000]
//
// State is that of one operator, in MiB, of pages that do not compress; log is how long records have come since the
// newest snapshot. Records go on coming while the agent is down. A run prints the parts of the time: until the
// snapshot is restored, the replay with its rate against the rate at which records come, and the rest; what it takes
// besides the replay, and the processor time until the first new output.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
)

const jobFile = `name: recovery
checkpoint: {interval: 24h}
sources:
  in: {file: {path: "INPUT", follow: true}, key: {const: k}}
operators:
  bulk: {wasm: ./bulk.wasm, from: in, config: {bytes: "BYTES"}, limits: {memory: MEMORY}}
sinks:
  out: {file: {path: out.txt, line: "{value}"}, from: bulk}
`

const (
	patience = 10 * time.Minute
	down     = time.Second
	// normally is how many outputs tell what the latency is.
	normally = 2000
	// calm is how many outputs in a row must be as fast as before.
	calm = 200
)

func main() {
	states := flag.String("state", "1,64", "MiB of state, several with commas")
	logs := flag.String("log", "10s", "time since the newest snapshot, several with commas")
	rate := flag.Int("rate", 2000, "records a second")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *states, *logs, *rate); err != nil {
		fmt.Fprintln(os.Stderr, "recovery:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, states, logs string, rate int) error {
	dir, err := fleet.NewTempDir("weir-recovery-")
	if err != nil {
		return err
	}
	defer dir.Remove()
	agent, module := filepath.Join(dir.Path, "agent"), filepath.Join(dir.Path, "bulk.wasm")
	build := exec.CommandContext(ctx, "go", "build", "-o", agent, "github.com/weir-stream/weir/cmd/agent")
	guest := exec.CommandContext(ctx, "go", "build", "-buildmode=c-shared", "-o", module, "github.com/weir-stream/weir/internal/bench/recovery/bulk")
	guest.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	for _, cmd := range []*exec.Cmd{build, guest} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	fmt.Printf("%8s %8s %12s %10s %10s %12s %8s %10s %10s %10s %12s %12s\n",
		"state", "log", "first new", "restore", "replay", "replayed/s", "× live", "rest", "besides", "CPU", "p99 before", "as before")
	for _, log := range strings.Split(logs, ",") {
		lasts, err := time.ParseDuration(log)
		if err != nil {
			return err
		}
		for _, state := range strings.Split(states, ",") {
			mib, err := strconv.Atoi(state)
			if err != nil {
				return err
			}
			r := &trial{ctx: ctx, dir: filepath.Join(dir.Path, state+"-"+log), agent: agent, module: module, mib: mib, lasts: lasts, rate: rate}
			if err := r.run(); err != nil {
				return fmt.Errorf("%s MiB, log of %s: %w", state, log, err)
			}
		}
	}
	return nil
}

// trial is one kill.
type trial struct {
	ctx           context.Context
	dir           string
	agent, module string
	mib           int
	lasts         time.Duration
	rate          int

	a *fleet.Agent

	mu   sync.Mutex
	sent int64
}

// output is one record that came out.
type output struct {
	n       int64
	at      time.Time
	latency time.Duration
}

func (t *trial) run() error {
	if err := os.Mkdir(t.dir, 0o755); err != nil {
		return err
	}
	f := fleet.New(t.agent, t.dir)
	defer f.Kill()
	var err error
	if t.a, err = f.Add(fleet.Options{Name: "a"}); err != nil {
		return err
	}
	input := filepath.Join(t.dir, "in.txt")
	if err := os.WriteFile(input, nil, 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.ctx, patience+t.lasts)
	defer cancel()
	if err := f.Start(ctx); err != nil {
		return err
	}
	if err := t.apply(ctx, input); err != nil {
		return err
	}
	ended, feeding := context.WithCancel(ctx)
	var fed sync.WaitGroup
	defer fed.Wait()
	defer feeding()
	failed := make(chan error, 2)
	fed.Go(func() { failed <- t.feed(ended, input) })
	outputs := make(chan output, 1<<16)
	fed.Go(func() { failed <- t.follow(ended, outputs) })
	next := func() (output, error) {
		select {
		case o := <-outputs:
			return o, nil
		case err := <-failed:
			return output{}, errors.Join(err, errors.New("no more output"))
		case <-ctx.Done():
			return output{}, ctx.Err()
		}
	}
	if _, err := next(); err != nil {
		return err
	}
	if _, err := t.a.Client().CheckpointNow(ctx, "recovery", "", patience); err != nil {
		return err
	}
	var last output
	var usual []time.Duration
	for snapshot := time.Now(); time.Since(snapshot) < t.lasts; {
		if last, err = next(); err != nil {
			return err
		}
		if usual = append(usual, last.latency); len(usual) > normally {
			usual = usual[1:]
		}
	}
	t.a.Kill()
	for drained := false; !drained; { // what the process had written
		select {
		case last = <-outputs:
		case <-time.After(down):
			drained = true
		}
	}
	slices.Sort(usual)
	p99 := usual[len(usual)*99/100]
	t.mu.Lock()
	before := t.sent // records from here on have come after the kill, at the latest
	t.mu.Unlock()
	began := time.Now()
	if err := t.a.Start(); err != nil {
		return err
	}
	var first, normal, used time.Duration
	for quiet := 0; quiet < calm; {
		o, err := next()
		if err != nil {
			return err
		}
		if o.n <= before {
			continue
		}
		if first == 0 {
			first = o.at.Sub(began)
			if used, err = fleet.CPUTime(t.a.PID()); err != nil { // on a busy machine it says more than the clock
				return err
			}
		}
		if o.latency <= 2*p99 {
			quiet++
		} else {
			quiet = 0
		}
		normal = o.at.Sub(began)
	}
	restored, caught, replayed, err := t.said(began)
	if err != nil {
		return err
	}
	replay := caught - restored
	speed := float64(replayed) / replay.Seconds()
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	fmt.Printf("%4d MiB %8s %12s %10s %10s %12.0f %8.1f %10s %10s %10s %12s %12s\n", t.mib, t.lasts, ms(first), ms(restored), ms(replay),
		speed, speed/float64(t.rate), ms(first-caught), ms(first-replay), ms(used), ms(p99), ms(normal))
	return nil
}

func (t *trial) apply(ctx context.Context, input string) error {
	m, err := os.Open(t.module)
	if err != nil {
		return err
	}
	defer m.Close()
	pushed, err := t.a.Client().PushModule(ctx, m)
	if err != nil {
		return err
	}
	text := strings.NewReplacer("INPUT", input, "BYTES", strconv.Itoa(t.mib<<20), "MEMORY", fmt.Sprint(min(2*t.mib+32, 1024), "MiB")).Replace(jobFile)
	_, err = t.a.Client().ApplyJob(ctx, api.JobSource{File: "recovery.yaml", YAML: text, Modules: map[string]string{"./bulk.wasm": pushed.Digest}}, patience)
	return err
}

// feed appends records at the rate, whoever reads them.
func (t *trial) feed(ctx context.Context, input string) error {
	f, err := os.OpenFile(input, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var text []byte
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		due := int64(time.Since(began).Seconds() * float64(t.rate))
		text = text[:0]
		t.mu.Lock()
		for ; t.sent < due; t.sent++ {
			text = fmt.Appendf(text, `{"t":%d,"fill":"a reading has some more fields than that"}`+"\n", time.Now().UnixMicro())
		}
		t.mu.Unlock()
		if _, err := f.Write(text); err != nil {
			return err
		}
	}
}

// follow reads what comes out.
func (t *trial) follow(ctx context.Context, out chan<- output) error {
	name := filepath.Join(t.a.Dir, "files", "out.txt")
	var f *os.File
	for f == nil {
		var err error
		if f, err = os.Open(name); err != nil && !fleet.Sleep(ctx, 20*time.Millisecond) {
			return nil
		}
	}
	defer f.Close()
	var rest []byte
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		rest = append(rest, line...)
		if errors.Is(err, io.EOF) {
			if !fleet.Sleep(ctx, 2*time.Millisecond) {
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		var o output
		var micros int64
		if _, err := fmt.Sscanf(string(bytes.TrimSpace(rest)), `{"n":%d,"t":%d}`, &o.n, &micros); err != nil {
			return fmt.Errorf("line %q: %w", rest, err)
		}
		rest = rest[:0]
		o.at = time.Now()
		o.latency = o.at.Sub(time.UnixMicro(micros))
		select {
		case out <- o:
		case <-ctx.Done():
			return nil
		}
	}
}

var (
	saysTime     = regexp.MustCompile(`^time=(\S+) `)
	saysReplayed = regexp.MustCompile(` replayed=(\d+)`)
)

// said takes from the agent's log when the snapshot was restored and when it had caught up.
func (t *trial) said(began time.Time) (restored, caught time.Duration, replayed int64, err error) {
	text, err := os.ReadFile(filepath.Join(t.dir, "a.log"))
	if err != nil {
		return 0, 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		m := saysTime.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil || at.Before(began.Truncate(time.Millisecond)) {
			continue
		}
		switch {
		case strings.Contains(line, "msg=restored"):
			restored = at.Sub(began)
		case strings.Contains(line, `msg="caught up"`):
			caught = at.Sub(began)
			if n := saysReplayed.FindStringSubmatch(line); n != nil {
				replayed, _ = strconv.ParseInt(n[1], 10, 64)
			}
		}
	}
	if restored == 0 || caught == 0 {
		return 0, 0, 0, errors.New("the agent does not say that it came back")
	}
	return restored, caught, replayed, nil
}
