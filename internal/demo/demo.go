// Package demo shows Weir at work on one machine: three agents in processes of their own, simulated
// sensors over MQTT, operators built on the spot, a gateway and the hub killed in mid-stream, and a
// verdict on every reading.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-stream/weir/examples"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
)

// ErrInexact says that readings were lost or counted twice.
var ErrInexact = errors.New("the demo's counts are not exact")

// What the demo runs is an example.
const (
	jobName = "demo"
	jobPath = "demo/job.yaml" // among the examples' files
)

// Limits of the demo's patience. They are far above what is usual: a slow machine is no failure.
const (
	startPatience = time.Minute
	applyPatience = time.Minute
	// outputPatience is how long the first new output may take after a start.
	outputPatience = time.Minute
	// stuckAfter without any progress, what is missing will not come any more.
	stuckAfter  = 20 * time.Second
	askPatience = 5 * time.Second
	// quietFor is how long nothing new must have come before the verdict: a reading that is counted
	// twice may be the last thing to arrive.
	quietFor  = time.Second
	lookEvery = 50 * time.Millisecond
)

// script is what happens, and when.
type script struct {
	program string // the agent's binary
	keep    bool
	sensors int
	every   time.Duration // between two readings of a sensor
	stream  time.Duration // undisturbed, before the first kill and after each restart
	down    time.Duration // between a kill and the restart
}

// Run shows the demo and prints to out. It returns [ErrInexact] if a reading was lost or counted twice.
// keep leaves everything running after the verdict, until ctx ends. Nothing is left behind.
func Run(ctx context.Context, keep bool, out io.Writer) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the agent's own binary: %w", err)
	}
	return play(ctx, script{
		program: program, keep: keep, sensors: 200, every: time.Second, stream: 6 * time.Second, down: time.Second,
	}, out)
}

// play makes a stage in a directory of its own and clears it away afterwards.
func play(ctx context.Context, s script, out io.Writer) error {
	dir, err := fleet.NewTempDir("weir-demo-")
	if err != nil {
		return err
	}
	st := &stage{script: s, dir: dir.Path, fleet: fleet.New(s.program, dir.Path), book: newBook(), out: &printer{out: out, began: time.Now()}}
	err = st.run(ctx)
	switch {
	case ctx.Err() != nil:
		st.out.event("stopping everything")
		if err = st.verdict; !st.shown {
			err = errors.New("the demo was interrupted before its verdict")
		}
	case err != nil && !errors.Is(err, ErrInexact):
		err = fmt.Errorf("%w\n%s", err, st.fleet.Tails())
	}
	st.fleet.Kill()
	return errors.Join(err, dir.Remove())
}

// stage is everything that takes part.
type stage struct {
	script
	dir      string
	fleet    *fleet.Fleet
	hub      *fleet.Agent
	gateways []*fleet.Agent
	job      []byte // file
	field    *field
	book     *book
	out      *printer
	outages  []outage
	shown    bool  // the verdict was printed
	verdict  error // nil, or ErrInexact
}

// outage is one kill with its restart.
type outage struct {
	agent    *fleet.Agent
	recovery time.Duration // from the start of the new process to the first output for a new reading
	tasks    []api.Task    // how the agent's tasks came back
}

func (s *stage) run(ctx context.Context) error {
	if err := s.set(ctx); err != nil {
		return err
	}
	// Who watches and who sends end with the stage, in that order, and are waited for.
	watching, unwatch := context.WithCancel(ctx)
	w := newWatcher("tcp://"+s.hub.MQTT, "demo-watcher", "counts/+", s.book.seen)
	var others sync.WaitGroup
	others.Go(func() { w.run(watching) })
	defer others.Wait()
	defer unwatch()
	others.Go(func() { s.out.progress(watching, s.book) })
	select {
	case <-w.subscribed:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(startPatience):
		return errors.New("the broker did not take the subscription to the counts")
	}
	if err := s.apply(ctx); err != nil {
		return err
	}
	if err := s.perform(ctx); err != nil {
		return err
	}
	unwatch()
	others.Wait()
	if err := s.judge(ctx); err != nil {
		return err
	}
	if s.keep {
		return errors.Join(s.verdict, s.stay(ctx))
	}
	return s.verdict
}

// set starts the agents and builds the operators meanwhile.
func (s *stage) set(ctx context.Context) error {
	s.out.event("starting a hub and two gateways, building the operators")
	var err error
	if s.hub, err = s.fleet.Add(fleet.Options{Name: "hub", Label: "role=hub", MQTT: true}); err != nil {
		return err
	}
	for _, name := range []string{"gateway-1", "gateway-2"} {
		g, err := s.fleet.Add(fleet.Options{Name: name, Label: "role=gateway", Hub: s.hub})
		if err != nil {
			return err
		}
		s.gateways = append(s.gateways, g)
	}
	if s.job, err = examples.Files.ReadFile(jobPath); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.dir, "demo.yaml"), s.job, 0o644); err != nil {
		return err
	}
	g, build := errgroup.WithContext(ctx)
	for _, op := range []string{"parse", "count"} {
		g.Go(func() error { return examples.BuildOperator(build, "demo/"+op, filepath.Join(s.dir, op+".wasm")) })
	}
	starting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return errors.Join(s.fleet.Start(starting), g.Wait())
}

// apply pushes the operators and applies the job.
func (s *stage) apply(ctx context.Context) error {
	c := s.hub.Client()
	src := api.JobSource{File: "demo.yaml", YAML: string(s.job), Modules: map[string]string{}}
	for _, op := range []string{"parse.wasm", "count.wasm"} {
		f, err := os.Open(filepath.Join(s.dir, op))
		if err != nil {
			return err
		}
		m, err := c.PushModule(ctx, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("push %s: %w", op, err)
		}
		src.Modules["./"+op] = m.Digest
	}
	if err := s.awaitAgents(ctx); err != nil {
		return err
	}
	a, err := c.ApplyJob(ctx, src, applyPatience)
	if err != nil {
		return fmt.Errorf("apply the job: %w", err)
	}
	s.out.event("job %s runs: its operators were built in Go and pushed; generation %d", a.Job, a.Generation)
	return nil
}

// awaitAgents waits until the hub knows that all agents are up: a job is planned for those.
func (s *stage) awaitAgents(ctx context.Context) error {
	return until(ctx, startPatience, "all agents to be known to the hub", func(ctx context.Context) bool {
		list, err := s.hub.Client().Agents(ctx)
		return err == nil && api.Up(list) == len(s.fleet.Agents())
	})
}

// until asks again and again, until the answer is yes.
func until(ctx context.Context, patience time.Duration, what string, yes func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !yes(ctx) {
		if !fleet.Sleep(ctx, lookEvery) {
			return fmt.Errorf("waited %s for %s: %w", patience, what, ctx.Err())
		}
	}
	return nil
}

// perform lets the sensors send while agents are killed, then waits until all that they sent is counted.
func (s *stage) perform(ctx context.Context) error {
	names := []string{s.gateways[0].Name, s.gateways[1].Name}
	s.field = newField("tcp://"+s.hub.MQTT, names, s.sensors, s.every, s.book.sent)
	s.out.event("%d sensors send a reading every %s, at QoS 1", s.sensors, s.every)
	g, sending := errgroup.WithContext(ctx)
	g.Go(func() error { return s.field.run(sending) })
	g.Go(func() error {
		defer s.field.stop()
		return s.disturb(sending)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	return s.drain(ctx)
}

func (s *stage) disturb(ctx context.Context) error {
	if _, err := s.firstOutput(ctx, s.book.next(func(string) bool { return true })); err != nil {
		return err
	}
	victim := s.gateways[0]
	if err := s.kill(ctx, victim, s.field.of(victim.Name)); err != nil {
		return err
	}
	if err := s.kill(ctx, s.hub, func(string) bool { return true }); err != nil {
		return err
	}
	s.rest(ctx)
	return ctx.Err()
}

// rest lets the stream run for a while.
func (s *stage) rest(ctx context.Context) { fleet.Sleep(ctx, s.stream) }

// kill kills an agent in mid-stream, starts it again, and waits for the first output for a new reading
// of sensors that match.
func (s *stage) kill(ctx context.Context, a *fleet.Agent, match func(sensor string) bool) error {
	s.rest(ctx)
	s.out.event("kill -9 %s (process %d)", a.Name, a.PID())
	a.Kill()
	if !fleet.Sleep(ctx, s.down) {
		return ctx.Err()
	}
	next := s.book.next(match)
	if err := a.Start(); err != nil {
		return err
	}
	s.out.event("%s starts again on its directory", a.Name)
	came, err := s.firstOutput(ctx, next)
	if err != nil {
		return fmt.Errorf("after the restart of %s: %w", a.Name, err)
	}
	took := came.Sub(a.Started())
	s.out.event("first new output %.2f s after the start of the process", took.Seconds())
	s.outages = append(s.outages, outage{a, took, recovered(ctx, a)})
	return nil
}

// recovered asks an agent how its tasks came back, once they have.
func recovered(ctx context.Context, a *fleet.Agent) (tasks []api.Task) {
	// What is not known in time is missing in the table and nowhere else.
	_ = until(ctx, askPatience, "the recovery to be complete", func(ctx context.Context) bool {
		st, err := a.Client().Status(ctx)
		tasks = st.Tasks
		return err == nil && !slices.ContainsFunc(tasks, func(t api.Task) bool { return t.Recovery == nil || !t.Recovery.Done })
	})
	return tasks
}

func (s *stage) firstOutput(ctx context.Context, next <-chan time.Time) (time.Time, error) {
	t := time.NewTimer(outputPatience)
	defer t.Stop()
	select {
	case came := <-next:
		return came, nil
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	case <-t.C:
		return time.Time{}, fmt.Errorf("no new output within %s", outputPatience)
	}
}

// drain waits until everything that was sent is counted, or nothing moves any more.
func (s *stage) drain(ctx context.Context) error {
	s.out.event("the sensors have stopped; waiting for what is still on its way")
	for t := s.book.totals(); t.Counted < t.Sent; t = s.book.totals() {
		if s.book.quiet() > stuckAfter {
			s.out.event("nothing new for %s", stuckAfter)
			return nil
		}
		if !fleet.Sleep(ctx, lookEvery) {
			return ctx.Err()
		}
	}
	// A checkpoint that begins now comes after every reading at every task.
	if _, err := s.hub.Client().CheckpointNow(ctx, jobName, "", applyPatience); err != nil {
		return fmt.Errorf("last checkpoint: %w", err)
	}
	return until(ctx, stuckAfter, "the counts to come to rest", func(context.Context) bool { return s.book.quiet() > quietFor })
}
