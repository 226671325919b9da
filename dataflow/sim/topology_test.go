package sim

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// jobName and generation are the same in all runs.
const (
	jobName    = "job"
	generation = abs.Generation(1)
)

// topologies as text: tasks are name@agent, with a star a source, with an exclamation mark one that
// has a sink. a>b is an edge, a>b,c one that is split by key.
var topologies = []*topology{
	parseTopology("chain", "s@gate* m@hub k@far! s>m m>k"),
	parseTopology("merge", "a@gate1* b@gate2* m@hub k@far! a>m b>m m>k"),
	parseTopology("diamond", "s@gate* p@left q@right m@hub! s>p s>q p>m q>m"),
	parseTopology("shuffle", "a@gate1* b@gate2* c@left d@right e@left! f@far! a>c,d b>c,d c>e,f d>e,f"),
	parseTopology("fanin", "a@g1* b@g1* c@g2* d@g3* e@g4* f@g4* g@g5* h@g6* m@hub! a>m b>m c>m d>m e>m f>m g>m h>m"),
	parseTopology("device", "a@gate* b@gate* m@gate c@other* k@hub! a>m b>m m>k c>k"),
	parseTopology("local", "a@box* b@box* m@box k@box! a>m b>m m>k"),
}

func topologyOf(name string) *topology {
	for _, t := range topologies {
		if t.name == name {
			return t
		}
	}
	return nil
}

// topology is a job's physical plan.
type topology struct {
	name     string
	tasks    []*plannedTask
	channels []*plannedChannel
}

type plannedTask struct {
	id     abs.TaskID
	agent  string
	source bool
	sink   bool
	level  int // longest way from a source
	in     []*plannedChannel
	edges  [][]*plannedChannel
}

type plannedChannel struct {
	id       abs.ChannelID
	index    int
	from, to *plannedTask
}

func parseTopology(name, text string) *topology {
	tp := &topology{name: name}
	for _, word := range strings.Fields(text) {
		if id, at, ok := strings.Cut(word, "@"); ok {
			t := &plannedTask{id: abs.TaskID(id)}
			at, t.source = strings.CutSuffix(at, "*")
			t.agent, t.sink = strings.CutSuffix(at, "!")
			tp.tasks = append(tp.tasks, t)
			continue
		}
		from, to, _ := strings.Cut(word, ">")
		tp.edge(tp.task(from), strings.Split(to, ","))
	}
	return tp
}

func (tp *topology) edge(from *plannedTask, to []string) {
	var edge []*plannedChannel
	for _, name := range to {
		t := tp.task(name)
		c := &plannedChannel{id: abs.ChannelID(string(from.id) + ">" + name), index: len(tp.channels), from: from, to: t}
		tp.channels = append(tp.channels, c)
		t.in = append(t.in, c)
		t.level = max(t.level, from.level+1)
		edge = append(edge, c)
	}
	from.edges = append(from.edges, edge)
}

func (tp *topology) task(id string) *plannedTask {
	for _, t := range tp.tasks {
		if string(t.id) == id {
			return t
		}
	}
	panic(fmt.Sprintf("topology %s has no task %q", tp.name, id))
}

func (tp *topology) agents() []string {
	var names []string
	for _, t := range tp.tasks {
		if !slices.Contains(names, t.agent) {
			names = append(names, t.agent)
		}
	}
	return names
}

// paths is how many copies of a source's record reach sinks.
func (t *plannedTask) paths() int {
	n := 0
	if t.sink {
		n++
	}
	for _, e := range t.edges {
		n += e[0].to.paths()
	}
	return n
}

func (tp *topology) plan() abs.Plan {
	p := abs.Plan{Generation: generation}
	for _, t := range tp.tasks {
		p.Tasks = append(p.Tasks, abs.PlannedTask{ID: t.id, Agent: t.agent, Source: t.source})
	}
	for _, c := range tp.channels {
		p.Channels = append(p.Channels, abs.PlannedChannel{ID: c.id, From: c.from.id, To: c.to.id})
	}
	return p
}

func (t *plannedTask) name() string { return jobName + "/" + string(t.id) }

// spec is the task as it runs: one operator between its inputs and its outputs.
func (t *plannedTask) spec(dedupe int) dataflow.TaskSpec {
	s := dataflow.TaskSpec{Job: jobName, Generation: generation, ID: t.id, Agent: t.agent, Source: t.source}
	if t.source {
		s.Entry, s.DedupeWindow = []dataflow.Target{{Kind: dataflow.ToOp}}, dedupe
	}
	for _, c := range t.in {
		s.Inputs = append(s.Inputs, dataflow.InChannel{
			Channel: dataflow.Channel{ID: c.id, Index: c.index}, Agent: c.from.agent, Incarnation: 1,
			To: dataflow.Target{Kind: dataflow.ToOp},
		})
	}
	var targets []dataflow.Target
	for i, edge := range t.edges {
		var e dataflow.EdgeSpec
		for _, c := range edge {
			e.Channels = append(e.Channels, dataflow.OutChannel{
				Channel: dataflow.Channel{ID: c.id, Index: c.index}, To: c.to.id, Incarnation: 1,
			})
		}
		if n := len(edge); n > 1 {
			e.Partition = func(key []byte) int { return int(hashOf(key) % uint64(n)) }
		}
		s.Edges = append(s.Edges, e)
		targets = append(targets, dataflow.Target{Kind: dataflow.ToEdge, Index: i})
	}
	if t.sink {
		s.Sinks = []dataflow.SinkSpec{{Name: "out", Channel: string(t.id) + ">out"}}
		targets = append(targets, dataflow.Target{Kind: dataflow.ToSink})
	}
	s.Ops = []dataflow.OpSpec{{
		Operator: dataflow.OperatorSpec{Name: string(t.id), Task: t.name(), Outputs: []string{"out"}, Inputs: []string{"in"}},
		Outputs:  [][]dataflow.Target{targets},
	}}
	return s
}

func hashOf(parts ...[]byte) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write(p) // never fails
	}
	return h.Sum64()
}
