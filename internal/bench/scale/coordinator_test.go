//go:build linux

package main

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
)

// BenchmarkCoordinator measures what the coordinator computes in a fleet of so many gateways that each feed one task on
// the hub, without server and disk. Epoch: a checkpoint from its start until it counts. Presence: it is told of every
// agent that it lives and is not quiet, as when a term begins.
func BenchmarkCoordinator(b *testing.B) {
	for _, n := range []int{100, 200, 1000, 2000} {
		b.Run(fmt.Sprintf("epoch/%d", n), func(b *testing.B) {
			f := newCoordinated(b, n)
			cpu := cpuTime(b)
			for b.Loop() {
				f.epoch(b)
			}
			b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
		b.Run(fmt.Sprintf("presence/%d", n), func(b *testing.B) {
			f := newCoordinated(b, n)
			cpu := cpuTime(b)
			for b.Loop() {
				for _, t := range f.plan.Tasks {
					f.step(abs.AgentBack{Agent: t.Agent})
					f.step(abs.AgentQuiet{Agent: t.Agent})
				}
			}
			b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// coordinated is a coordinator whose writes succeed and whose tasks do what it wants.
type coordinated struct {
	plan     abs.Plan
	coord    *abs.Coordinator
	now      int64
	revision uint64
	newest   abs.EpochRecord
}

func newCoordinated(b *testing.B, gateways int) *coordinated {
	const hub = "count-0"
	f := &coordinated{plan: abs.Plan{Generation: 1, Tasks: []abs.PlannedTask{{ID: hub, Agent: "hub"}}}}
	for i := range gateways {
		t := abs.PlannedTask{ID: abs.TaskID("in@" + gatewayName(i)), Agent: gatewayName(i), Source: true}
		f.plan.Tasks = append(f.plan.Tasks, t)
		f.plan.Channels = append(f.plan.Channels, abs.PlannedChannel{ID: abs.ChannelID(t.ID) + "-" + hub, From: t.ID, To: hub})
	}
	var err error
	f.coord, err = abs.NewCoordinator(abs.Config{IntervalMs: 1000, TimeoutMs: 1e9, ReplicaTimeoutMs: 1e9, Replicate: true}, f.plan, 1, abs.Recovered{})
	if err != nil {
		b.Fatal(err)
	}
	f.epoch(b) // the initial one
	return f
}

func (f *coordinated) step(n abs.Notice) {
	for act := f.coord.Step(n, f.now); act.Write != nil; {
		f.newest = act.Write.Record
		f.revision++
		act = f.coord.Step(abs.Written{Revision: f.revision}, f.now)
	}
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

// epoch goes through one checkpoint.
func (f *coordinated) epoch(b *testing.B) {
	f.now += 1000
	f.step(abs.Tick{})
	e := f.newest.Epoch
	part := func(t abs.PlannedTask) abs.Part {
		p := abs.Part{Epoch: e, Generation: 1, Version: uint64(e) + 1, Cut: abs.Cut{Sent: map[abs.ChannelID]abs.Seq{}, Consumed: map[abs.ChannelID]abs.Seq{}}}
		for _, c := range f.plan.Channels {
			switch t.ID {
			case c.From:
				p.Cut.Sent[c.ID] = abs.Seq(e)
			case c.To:
				p.Cut.Consumed[c.ID] = abs.Seq(e)
				p.Aligned = append(p.Aligned, c.ID)
			}
		}
		return p
	}
	for _, t := range f.plan.Tasks {
		f.step(abs.Ack{Task: t.ID, Epoch: e, Generation: 1, Part: part(t)})
	}
	for _, t := range f.plan.Tasks {
		f.step(abs.ReplicaAck{Task: t.ID, Epoch: e, Generation: 1, Version: uint64(e) + 1, Packs: []string{"p"}})
	}
	if f.newest.Epoch != e || f.newest.State != abs.Replicated {
		b.Fatalf("epoch %d is %s: %s", f.newest.Epoch, f.newest.State, f.newest.Reason)
	}
}
