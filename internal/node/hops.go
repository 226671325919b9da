package node

import (
	"context"
	"maps"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
)

// hops opens the channels of one plan: those between tasks of one agent within the process, the others through NATS.
// Which is which follows from the plan, in which placement is fixed, so both ends of a channel agree.
type hops struct {
	within, across dataflow.Streams
	direct         map[abs.TaskID]bool // tasks all of whose input channels are within
}

var _ dataflow.Streams = hops{}

func newHops(p *job.Physical, within, across dataflow.Streams) hops {
	agents := map[abs.TaskID]string{}
	h := hops{within, across, map[abs.TaskID]bool{}}
	for _, t := range p.Tasks {
		agents[t.ID] = t.Agent
		h.direct[t.ID] = true
	}
	for _, c := range p.Channels {
		if agents[c.From] != agents[c.To] {
			h.direct[c.To] = false
		}
	}
	return h
}

// maxWithin bounds the frames of all streams within the process, in bytes, where the memory does not.
const maxWithin = 1 << 30

// withinBytes is that bound for an agent that may have so much memory, in bytes, 0 if that is not known: an eighth of it,
// since garbage that is not collected yet takes as much again. Where jobs make more between two checkpoints, what was
// consumed goes before the next one counts: a task that is started anew has its senders make it again.
func withinBytes(memory int64) int {
	if memory == 0 {
		return maxWithin
	}
	return int(min(memory/8, maxWithin))
}

// OpenInput implements [dataflow.Streams].
func (h hops) OpenInput(ctx context.Context, job string, gen abs.Generation, task abs.TaskID, channels []int) (dataflow.Input, error) {
	if h.direct[task] {
		return h.within.OpenInput(ctx, job, gen, task, channels)
	}
	return h.across.OpenInput(ctx, job, gen, task, channels)
}

// OpenOutput implements [dataflow.Streams].
func (h hops) OpenOutput(ctx context.Context, job string, gen abs.Generation, to map[int]abs.TaskID) (dataflow.Output, error) {
	within, across := map[int]abs.TaskID{}, map[int]abs.TaskID{}
	for channel, task := range to {
		if h.direct[task] {
			within[channel] = task
		} else {
			across[channel] = task
		}
	}
	if len(within) == 0 {
		return h.across.OpenOutput(ctx, job, gen, across)
	}
	in, err := h.within.OpenOutput(ctx, job, gen, within)
	if err != nil || len(across) == 0 {
		return in, err
	}
	out, err := h.across.OpenOutput(ctx, job, gen, across)
	if err != nil {
		in.Close()
		return nil, err
	}
	f := &fork{byChannel: map[int]dataflow.Output{}, outputs: []dataflow.Output{in, out}, grants: make(chan dataflow.Grant), done: make(chan struct{})}
	for channel := range maps.Keys(within) {
		f.byChannel[channel] = in
	}
	for channel := range maps.Keys(across) {
		f.byChannel[channel] = out
	}
	f.ctx, f.stop = context.WithCancel(context.Background())
	go f.run()
	return f, nil
}

// fork is an output some of whose channels are within the process. Its goroutine, for which Close waits, passes on
// grants of both kinds.
type fork struct {
	byChannel map[int]dataflow.Output
	outputs   []dataflow.Output
	grants    chan dataflow.Grant
	ctx       context.Context // until Close
	stop      context.CancelFunc
	done      chan struct{}
}

func (f *fork) Send(channel int, frame []byte, done func(error)) {
	f.byChannel[channel].Send(channel, frame, done)
}

func (f *fork) Grants() <-chan dataflow.Grant { return f.grants }

func (f *fork) Ask() {
	for _, o := range f.outputs {
		o.Ask()
	}
}

func (f *fork) Close() {
	f.stop()
	<-f.done
	for _, o := range f.outputs {
		o.Close()
	}
}

// run holds one grant at a time: what comes meanwhile is kept, the newest of each channel, where it comes from.
func (f *fork) run() {
	defer close(f.done)
	for {
		var g dataflow.Grant
		select {
		case g = <-f.outputs[0].Grants():
		case g = <-f.outputs[1].Grants():
		case <-f.ctx.Done():
			return
		}
		select {
		case f.grants <- g:
		case <-f.ctx.Done():
			return
		}
	}
}
