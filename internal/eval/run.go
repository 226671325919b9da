//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/eval/graph"
	"github.com/weir-stream/weir/internal/fleet"
)

// Patience of a run. What is slow is measured, what stands still is an error.
const (
	startPatience = 3 * time.Minute
	stuckAfter    = time.Minute
	lookEvery     = 40 * time.Millisecond
	// warm is the share of records after which measuring begins: until then tasks start and buffers grow.
	warm = 0.1
)

// result is what one run has shown.
type result struct {
	section, arm string
	x            float64 // interval in ms, agents, or MiB of state
	round        int

	records  int
	seconds  float64 // for all records, from those after warm
	cpu      float64 // seconds of CPU of all agents for all records, likewise
	epochs   uint64  // committed in that time
	alignMS  float64 // medians over the epochs seen, of the slowest task each
	freezeMS float64
	persist  float64
	rssMiB   float64 // peak, all agents together
	repeats  int
	arrivals []arrival // with a collector
	killed   int64     // microseconds since 1970; 0: nothing was
}

// stage is a set of agents that run one job.
type stage struct {
	fleet  *fleet.Fleet
	agents []*fleet.Agent
	job    graph.Job
	polls  int
	phases map[uint64][3]float64
}

// sample is a look at a stage: how many records are through, and what was used until then.
type sample struct {
	at    time.Time
	done  float64
	cpu   time.Duration
	epoch uint64
}

// start starts agents and applies the job.
func (e *evaluation) start(ctx context.Context, dir string, job graph.Job) (*stage, error) {
	s := &stage{fleet: fleet.New(e.agent, dir), job: job, phases: map[uint64][3]float64{}}
	for i := range job.Agents {
		o := fleet.Options{Name: fmt.Sprintf("w%02d", i+1), Label: "role=worker"}
		if i > 0 {
			o.Hub = s.agents[0]
		}
		a, err := s.fleet.Add(o)
		if err != nil {
			return s, err
		}
		s.agents = append(s.agents, a)
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := s.agents[0].Start(); err != nil {
		return s, err
	}
	if err := s.agents[0].WaitReady(ctx); err != nil {
		return s, err
	}
	if err := s.fleetRest(ctx); err != nil {
		return s, err
	}
	f, err := os.Open(e.module)
	if err != nil {
		return s, err
	}
	defer f.Close()
	c := s.agents[0].Client()
	m, err := c.PushModule(ctx, f)
	if err != nil {
		return s, err
	}
	_, err = c.ApplyJob(ctx, api.JobSource{File: "eval.yaml", YAML: job.YAML(), Modules: map[string]string{graph.Module: m.Digest}}, startPatience)
	return s, err
}

// fleetRest starts the agents that join the first one, and waits until it knows them all.
func (s *stage) fleetRest(ctx context.Context) error {
	for _, a := range s.agents[1:] {
		if err := a.Start(); err != nil {
			return err
		}
	}
	for {
		list, err := s.agents[0].Client().Agents(ctx)
		if err == nil && len(list) == len(s.agents) {
			return nil
		}
		if !fleet.Sleep(ctx, lookEvery) {
			return fmt.Errorf("%d of %d agents have joined: %w", len(list), len(s.agents), errors.Join(err, ctx.Err()))
		}
	}
}

// look counts the records that are through, by what the agents say of their own tasks.
func (s *stage) look(ctx context.Context) (sample, error) {
	out := sample{at: time.Now()}
	for i, a := range s.agents {
		st, err := a.Client().Status(ctx)
		if err != nil {
			return out, err
		}
		for _, t := range st.Tasks {
			if strings.HasPrefix(t.ID, graph.Last+"/") || strings.HasPrefix(t.ID, graph.Last+"@") {
				out.done += float64(t.RecordsIn)
			}
		}
		cpu, err := fleet.CPUTime(a.PID())
		if err != nil {
			return out, err
		}
		out.cpu += cpu
		const seldom = 5 // asking for the job costs more
		if s.polls++; i == 0 && s.polls%seldom == 0 {
			j, err := a.Client().Job(ctx, s.job.Name)
			if err != nil {
				return out, err
			}
			s.phases[j.LastCompleteEpoch] = [3]float64{j.AlignMS, j.FreezeMS, j.PersistMS}
			if j.State == api.JobFailed {
				return out, fmt.Errorf("the job has failed: %s", j.Reason)
			}
		}
	}
	for e := range s.phases {
		out.epoch = max(out.epoch, e)
	}
	return out, nil
}

// through measures until all records are through.
func (s *stage) through(ctx context.Context, r *result) error {
	total := float64(s.job.Total())
	var all []sample
	moved := time.Now()
	for {
		now, err := s.look(ctx)
		if err != nil {
			return err
		}
		if now.done == 0 || len(all) > 0 && now.done < all[len(all)-1].done {
			now.done = s.finished(ctx, now.done)
		}
		if len(all) == 0 || now.done >= all[len(all)-1].done { // else some agent's tasks have ended, and count no more
			if len(all) == 0 || now.done > all[len(all)-1].done {
				moved = time.Now()
			}
			all = append(all, now)
		}
		if now.done >= total {
			break
		}
		if time.Since(moved) > stuckAfter {
			return fmt.Errorf("nothing has moved for %s at %.0f of %.0f records", stuckAfter, now.done, total)
		}
		if !fleet.Sleep(ctx, lookEvery*time.Duration(1+len(s.agents)/4)) {
			return ctx.Err()
		}
	}
	if all[len(all)-1].done > total {
		return fmt.Errorf("%.0f records are through, %.0f were made", all[len(all)-1].done, total)
	}
	begin, end := at(all, warm*total), all[len(all)-1]
	r.records = int(total)
	share := (end.done - begin.done) / total
	r.seconds = end.at.Sub(begin.at).Seconds() / share
	r.cpu = (end.cpu - begin.cpu).Seconds() / share
	return nil
}

// finished is how many records are through of which so many are counted: all, if the job has finished, whose tasks
// count no more. An agent that does not answer is asked at the next look.
func (s *stage) finished(ctx context.Context, counted float64) float64 {
	j, err := s.agents[0].Client().Job(ctx, s.job.Name)
	if err == nil && j.State == api.JobFinished {
		return float64(s.job.Total())
	}
	return counted
}

// at finds, between two looks, the moment at which so many records were through.
func at(all []sample, done float64) sample {
	i, _ := slices.BinarySearchFunc(all, done, func(s sample, d float64) int {
		if s.done < d {
			return -1
		}
		return 1
	})
	if i == 0 || i == len(all) {
		return all[min(i, len(all)-1)]
	}
	a, b := all[i-1], all[i]
	f := (done - a.done) / (b.done - a.done)
	return sample{
		at: a.at.Add(time.Duration(f * float64(b.at.Sub(a.at)))), done: done,
		cpu: a.cpu + time.Duration(f*float64(b.cpu-a.cpu)), epoch: a.epoch,
	}
}

// finish fills in what is known at the end.
func (s *stage) finish(ctx context.Context, r *result) error {
	j, err := s.agents[0].Client().Job(ctx, s.job.Name)
	if err != nil {
		return err
	}
	r.epochs = j.LastCompleteEpoch
	s.phases[j.LastCompleteEpoch] = [3]float64{j.AlignMS, j.FreezeMS, j.PersistMS}
	var phase [3][]float64
	for e, p := range s.phases {
		for i := range p {
			if e > 0 {
				phase[i] = append(phase[i], p[i])
			}
		}
	}
	r.alignMS, r.freezeMS, r.persist = median(phase[0]), median(phase[1]), median(phase[2])
	for _, a := range s.agents {
		most, err := fleet.Memory(a.PID(), "VmHWM")
		if err != nil {
			return err
		}
		r.rssMiB += float64(most) / (1 << 20)
	}
	return nil
}

// run measures one job on fresh agents.
func (e *evaluation) run(ctx context.Context, r result, job graph.Job, act func(ctx context.Context, s *stage, r *result) error) (result, error) {
	dir, err := os.MkdirTemp(e.work, "run-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	s, err := e.start(ctx, dir, job)
	defer s.fleet.Kill()
	if err == nil {
		err = act(ctx, s, &r)
	}
	if err == nil {
		err = s.finish(ctx, &r)
	}
	if err != nil {
		return r, fmt.Errorf("%s, %s at %g, round %d: %w\n%s", r.section, r.arm, r.x, r.round, err, s.fleet.Tails())
	}
	return r, nil
}

// measure measures how long the records of a job take.
func (e *evaluation) measure(ctx context.Context, r result, job graph.Job) (result, error) {
	return e.run(ctx, r, job, func(ctx context.Context, s *stage, r *result) error { return s.through(ctx, r) })
}

// collect runs a job at its rate until all records have come out, and notes when each did. kill says which
// agent is killed, after a third of the time, and started again a second later; 0: none.
func (e *evaluation) collect(ctx context.Context, r result, job graph.Job, kill int) (result, error) {
	c, err := newCollector()
	if err != nil {
		return r, err
	}
	job.Broker = c.broker()
	r, err = e.run(ctx, r, job, func(ctx context.Context, s *stage, r *result) error {
		if kill > 0 {
			if err := s.crash(ctx, c, s.agents[kill], r); err != nil {
				return err
			}
		}
		return c.until(ctx, job.Total())
	})
	if err == nil {
		err = c.exact(job.Agents*job.Sources, job.Total()/(job.Agents*job.Sources))
	}
	err = errors.Join(err, c.close()) // from here on nothing comes any more
	r.records, r.repeats, r.arrivals = job.Total(), c.repeats, c.arrivals
	return r, err
}

// crash kills an agent when a third of the records have come, and starts it a second later.
func (s *stage) crash(ctx context.Context, c *collector, a *fleet.Agent, r *result) error {
	if err := c.until(ctx, s.job.Total()/3); err != nil {
		return err
	}
	r.killed = time.Now().UnixMicro()
	a.Kill()
	if !fleet.Sleep(ctx, time.Second) {
		return ctx.Err()
	}
	return a.Start()
}

// until waits for so many records.
func (c *collector) until(ctx context.Context, n int) error {
	moved, before := time.Now(), -1
	for {
		have := c.count()
		if have >= n {
			return nil
		}
		if have != before {
			moved, before = time.Now(), have
		}
		if time.Since(moved) > stuckAfter {
			return fmt.Errorf("nothing has come for %s, %d of %d records are missing", stuckAfter, n-have, n)
		}
		if !fleet.Sleep(ctx, lookEvery) {
			return ctx.Err()
		}
	}
}
