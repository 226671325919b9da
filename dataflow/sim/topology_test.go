package sim

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// jobName is the same in all runs.
const jobName = "job"

// topologies as text: tasks are name@agent, with a star a source, with an exclamation mark one that
// has a sink. a>b is an edge, a>b,c one that is split by key, a^b a back edge.
var topologies = []*topology{
	parseTopology("chain", "s@gate* m@hub k@far! s>m m>k"),
	parseTopology("merge", "a@gate1* b@gate2* m@hub k@far! a>m b>m m>k"),
	parseTopology("diamond", "s@gate* p@left q@right m@hub! s>p s>q p>m q>m"),
	parseTopology("shuffle", "a@gate1* b@gate2* c@left d@right e@left! f@far! a>c,d b>c,d c>e,f d>e,f"),
	parseTopology("fanin", "a@g1* b@g1* c@g2* d@g3* e@g4* f@g4* g@g5* h@g6* m@hub! a>m b>m c>m d>m e>m f>m g>m h>m"),
	parseTopology("device", "a@gate* b@gate* m@gate c@other* k@hub! a>m b>m m>k c>k"),
	parseTopology("local", "a@box* b@box* m@box k@box! a>m b>m m>k"),
	parseTopology("loop", "s@gate* h@hub b@far k@out! s>h h>b b^h b>k"),
	parseTopology("loops", "s@gate* h@hub b@left i@left c@right k@out! s>h h>b b^h b>i i>c c^i c>k"),
	parseTopology("nested", "s@gate* h@hub i@left b@right k@out! s>h h>i i>b b^i b^h b>k"),
	parseTopology("itself", "s@gate* t@gate* h@hub i@hub k@out! s>h,i t>h,i h^h,i i^h,i h>k i>k"),
	spooling(parseTopology("uplink", "a@gate* b@gate! h@hub! k@far! a>b a>h b>h h>k")),
	parseTopology("side", "s@gate1* t@gate2* h@hub b@left k@out! s>h t>b h>b b^h b>k"),
	withTime("clock", "s@gate* m@hub k@far! s>m m>k"),
	withTime("clocks", "a@gate1* b@gate2* c@left d@right e@left! f@far! a>c,d b>c,d c>e,f d>e,f"),
	withTime("clockdevice", "a@gate* b@gate* m@gate c@other* k@hub! a>m b>m m>k c>k"),
	withTime("clockloop", "s@gate1* t@gate2* h@hub b@left k@out! s>h t>b h>b b^h b>k"),
}

// withTime is a topology with event time.
func withTime(name, text string) *topology {
	tp := parseTopology(name, text)
	tp.timed = true
	return tp
}

// burst is a loop at whose end every record that goes round is doubled. It is for runs without poison
// and traps: it is not known how many copies a record that was given up would have become.
var burst = func() *topology {
	tp := parseTopology("burst", "s@gate* h@hub b@far k@out! s>h h>b b^h b>k")
	tp.doubles = true
	return tp
}()

// burstSide is such a loop into whose body records come from outside, too.
var burstSide = func() *topology {
	tp := parseTopology("burstside", "s@gate1* t@gate2* h@hub b@left k@out! s>h t>b h>b b^h b>k")
	tp.doubles = true
	return tp
}()

// forked is a loop whose head has a receiver outside it, too: a record comes there each time it goes round.
var forked = func() *topology {
	tp := parseTopology("forked", "s@gate* h@hub b@far x@left! k@out! s>h h>b h>x b^h b>k")
	tp.forks = true
	return tp
}()

// specialTopologies are run when they are named only.
var specialTopologies = []*topology{burst, burstSide, forked}

// spooling makes a topology one whose outputs to other agents overflow to spools, and soon.
func spooling(tp *topology) *topology {
	tp.spools = true
	for _, t := range tp.tasks {
		t.spools = true
	}
	return tp
}

func topologyOf(name string) *topology {
	for _, t := range slices.Concat(topologies, specialTopologies) {
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
	timed    bool // it has event time, and operators with timers
	doubles  bool // a record that goes round becomes two
	forks    bool // it comes out once more each time it goes round
	spools   bool // outputs to other agents have spools
}

// copies is how often a message reaches sinks.
func (tp *topology) copies(m message) int {
	n := m.from.paths()
	if tp.doubles {
		n <<= rounds(m.id)
	}
	if tp.forks {
		n += rounds(m.id)
	}
	return n
}

// rounds is how often a record goes round a loop with one back edge.
func rounds(id uint32) int { return int(id % 4) }

type plannedTask struct {
	id     abs.TaskID
	agent  string
	source bool
	sink   bool
	spools bool
	level  int // longest way from a source
	in     []*plannedChannel
	edges  [][]*plannedChannel // those that leave no loop come last
	backs  int                 // how many of edges are back edges
}

type plannedChannel struct {
	id       abs.ChannelID
	index    int
	from, to *plannedTask
	back     bool
	loop     bool // to leads to from
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
		from, to, forward := strings.Cut(word, ">")
		if !forward {
			from, to, _ = strings.Cut(word, "^")
		}
		tp.edge(tp.task(from), strings.Split(to, ","), !forward)
	}
	for _, t := range tp.tasks {
		slices.SortStableFunc(t.edges, func(a, b []*plannedChannel) int { return cmp.Compare(rank(a[0].back), rank(b[0].back)) })
	}
	for _, c := range tp.channels {
		c.loop = c.to.leadsTo(c.from, map[*plannedTask]bool{})
	}
	return tp
}

func rank(last bool) int {
	if last {
		return 1
	}
	return 0
}

// leadsTo says whether a record of the task can reach another.
func (t *plannedTask) leadsTo(other *plannedTask, seen map[*plannedTask]bool) bool {
	if t == other {
		return true
	}
	seen[t] = true
	for _, e := range t.edges {
		for _, c := range e {
			if !seen[c.to] && c.to.leadsTo(other, seen) {
				return true
			}
		}
	}
	return false
}

// forward are the edges by which records leave for good, or go on to the rest of the loop.
func (t *plannedTask) forward() [][]*plannedChannel { return t.edges[:len(t.edges)-t.backs] }

func (tp *topology) edge(from *plannedTask, to []string, back bool) {
	var edge []*plannedChannel
	if back {
		from.backs++
	}
	for _, name := range to {
		t := tp.task(name)
		c := &plannedChannel{id: abs.ChannelID(string(from.id) + ">" + name), index: len(tp.channels), from: from, to: t, back: back}
		tp.channels = append(tp.channels, c)
		t.in = append(t.in, c)
		if !back {
			t.level = max(t.level, from.level+1)
		}
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
	for _, e := range t.forward() {
		n += e[0].to.paths()
	}
	return n
}

func (tp *topology) plan(gen abs.Generation) abs.Plan {
	p := abs.Plan{Generation: gen}
	for _, t := range tp.tasks {
		p.Tasks = append(p.Tasks, abs.PlannedTask{ID: t.id, Agent: t.agent, Source: t.source})
	}
	for _, c := range tp.channels {
		p.Channels = append(p.Channels, abs.PlannedChannel{ID: c.id, From: c.from.id, To: c.to.id, Back: c.back})
	}
	return p
}

func (t *plannedTask) name() string { return jobName + "/" + string(t.id) }

// spec is the task as it runs: one operator between its inputs and its outputs.
func (t *plannedTask) spec(w *world) dataflow.TaskSpec {
	s := dataflow.TaskSpec{Job: jobName, Generation: w.gen, ID: t.id, Agent: t.agent, Source: t.source, CutAhead: w.profile.holds}
	if w.topo.timed && t.source {
		s.Time = dataflow.EventTime{Watermarks: true, MaxDelay: timeDelay, Idle: timeIdle, MaxAhead: timeAhead}
	}
	if t.source {
		s.Entry, s.DedupeWindow = []dataflow.Target{{Kind: dataflow.ToOp}}, w.profile.dedupe
	}
	for _, c := range t.in {
		s.Inputs = append(s.Inputs, dataflow.InChannel{
			Channel: dataflow.Channel{ID: c.id, Index: c.index}, Agent: c.from.agent, Incarnation: w.incarnation(c), Anew: w.replaced(c.from),
			To: dataflow.Target{Kind: dataflow.ToOp}, Back: c.back, Loop: c.loop,
		})
	}
	outputs := []string{"out"}
	targets := make([][]dataflow.Target, 1+t.backs)
	for i, edge := range t.edges {
		var e dataflow.EdgeSpec
		for _, c := range edge {
			e.Channels = append(e.Channels, dataflow.OutChannel{
				Channel: dataflow.Channel{ID: c.id, Index: c.index}, To: c.to.id, Incarnation: w.incarnation(c), Anew: w.replaced(c.from), Back: c.back && !w.rules.creditOnBackEdges,
				Spool: t.spools && t.agent != c.to.agent,
			})
		}
		if n := len(edge); n > 1 {
			e.Partition = func(key []byte) int { return int(hashOf(key) % uint64(n)) }
		}
		s.Edges = append(s.Edges, e)
		output := 0
		if edge[0].back {
			output = len(outputs)
			outputs = append(outputs, fmt.Sprintf("again%d", output))
		}
		targets[output] = append(targets[output], dataflow.Target{Kind: dataflow.ToEdge, Index: i})
	}
	if t.sink {
		s.Sinks = []dataflow.SinkSpec{{Name: "out", Channel: string(t.id) + ">out", Checkpoint: w.profile.holds}}
		targets[0] = append(targets[0], dataflow.Target{Kind: dataflow.ToSink})
	}
	s.Ops = []dataflow.OpSpec{{
		Operator: dataflow.OperatorSpec{Name: string(t.id), Task: t.name(), Outputs: outputs, Inputs: []string{"in"}},
		Outputs:  targets,
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

// mayAbort says whether an epoch may be given up for that reason in a steady world: because a fault wanted it,
// the one before did, or its part is of an agent that went away, because a loop in which records multiply is full, or a
// gateway was away whose tasks are not all sources.
func (tp *topology) mayAbort(reason string) bool {
	fed := slices.ContainsFunc(tp.tasks, func(t *plannedTask) bool { return !t.source && tp.plan(1).Gateway(t.agent) })
	return strings.HasSuffix(reason, aborted) || strings.HasSuffix(reason, "not durable yet") || strings.Contains(reason, "was not replicated before its agent was gone") ||
		tp.doubles && (strings.Contains(reason, "the loop is full") || strings.Contains(reason, "came round the loop during")) || fed && strings.HasPrefix(reason, "channel ")
}
