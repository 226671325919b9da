package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-stream/weir/abs"
)

// NodeKind tells what a node of the graph is.
type NodeKind string

// Kinds of nodes.
const (
	SourceNode   NodeKind = "source"
	OperatorNode NodeKind = "operator"
	SinkNode     NodeKind = "sink"
)

// Graph is a job's logical graph.
type Graph struct {
	File *File
	// Nodes are the sources, the operators and the sinks, each in the order of the file.
	Nodes []Node
	// Edges are in order of receiver and input.
	Edges    []Edge
	Warnings []string
}

// Node is a source, an operator or a sink.
type Node struct {
	Kind  NodeKind
	Name  string
	Index int // in the file's section
	Place Placement
	// Outputs are the names by which others take records, MainOutput first, the rest sorted. A sink
	// has none.
	Outputs []string
}

// Placement says where a node runs, whatever agents there are.
type Placement struct {
	// Root is the node that the placement is taken over from: nodes with the same root run side by
	// side, instance by instance. It is the node's own index where it says itself where it runs.
	Root     int
	On       Labels
	PerAgent bool
	Tasks    int // number of tasks where it is not once per agent
}

// Edge leads from an output to an input.
type Edge struct {
	From, To int // nodes
	Output   string
	Input    int // index in the receiver's `from`
	KeyBy    KeyRule
	Back     bool // it closes a loop: the receiver is the loop's head, see [abs.BackEdges]
}

// Build makes the graph of a checked file and finds out where its nodes run. The error is an
// [Errors]: a loop that no source feeds, or an operator of which it cannot be said where it runs.
func Build(f *File) (*Graph, error) {
	g := &Graph{File: f}
	byName := g.addNodes()
	g.addEdges(byName)
	r := &reader{file: f.Path}
	if g.refuseUnfed(r); r.err() != nil {
		return nil, r.err()
	}
	g.markBackEdges()
	for _, n := range g.order() {
		g.place(r, n)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	g.checkBackEdges(r)
	if err := r.err(); err != nil {
		return nil, err
	}
	g.warnUnused()
	return g, nil
}

func (g *Graph) addNodes() map[string]int {
	byName := map[string]int{}
	add := func(kind NodeKind, name string, index int) {
		byName[name] = len(g.Nodes)
		n := Node{Kind: kind, Name: name, Index: index}
		if kind != SinkNode {
			n.Outputs = []string{MainOutput}
		}
		g.Nodes = append(g.Nodes, n)
	}
	for i, s := range g.File.Sources {
		add(SourceNode, s.Name, i)
	}
	for i, o := range g.File.Operators {
		add(OperatorNode, o.Name, i)
	}
	for i, s := range g.File.Sinks {
		add(SinkNode, s.Name, i)
	}
	return byName
}

func (g *Graph) addEdges(byName map[string]int) {
	for to := range g.Nodes {
		var key KeyRule
		if g.Nodes[to].Kind == OperatorNode {
			key = g.operator(to).KeyBy
		}
		for input, ref := range g.from(to) {
			from, known := byName[ref.Node]
			if !known || g.Nodes[from].Kind == SinkNode {
				panic(fmt.Sprintf("job: %s takes %s, which Parse should have refused", g.Nodes[to].Name, ref))
			}
			n := &g.Nodes[from]
			if !slices.Contains(n.Outputs, ref.Output) {
				n.Outputs = append(n.Outputs, ref.Output)
				slices.Sort(n.Outputs[1:])
			}
			g.Edges = append(g.Edges, Edge{From: from, To: to, Output: ref.Output, Input: input, KeyBy: key})
		}
	}
}

func (g *Graph) operator(n int) *Operator { return &g.File.Operators[g.Nodes[n].Index] }

func (g *Graph) from(n int) []Ref {
	switch node := g.Nodes[n]; node.Kind {
	case OperatorNode:
		return g.File.Operators[node.Index].From
	case SinkNode:
		return g.File.Sinks[node.Index].From
	}
	return nil
}

// in returns the edges that lead to a node, by input, back edges included.
func (g *Graph) in(n int) []Edge {
	var edges []Edge
	for _, e := range g.Edges {
		if e.To == n {
			edges = append(edges, e)
		}
	}
	return edges
}

// out returns the edges that lead from an output of a node, in order of receiver and input.
func (g *Graph) out(n int, output string) []Edge {
	var edges []Edge
	for _, e := range g.Edges {
		if e.From == n && e.Output == output {
			edges = append(edges, e)
		}
	}
	return edges
}

// order returns the nodes such that each comes after what it takes records from, but for back edges;
// among those that could be next, the first one of the file.
func (g *Graph) order() []int {
	waits := make([]int, len(g.Nodes))
	for _, e := range g.Edges {
		if !e.Back {
			waits[e.To]++
		}
	}
	var order []int
	for len(order) < len(g.Nodes) {
		next := slices.Index(waits, 0)
		if next < 0 {
			panic("job: a graph without its back edges has a cycle")
		}
		waits[next] = -1
		order = append(order, next)
		for _, e := range g.Edges {
			if e.From == next && !e.Back {
				waits[e.To]--
			}
		}
	}
	return order
}

// markBackEdges finds the edges that close loops. The search starts at the sources, in the order of
// the file, so that a loop's head is the operator by which records come in.
func (g *Graph) markBackEdges() {
	successors := make([][]int, len(g.Nodes))
	edges := make([][]int, len(g.Nodes)) // beside them: the indexes in Edges
	for i, e := range g.Edges {
		successors[e.From] = append(successors[e.From], e.To)
		edges[e.From] = append(edges[e.From], i)
	}
	for _, b := range abs.BackEdges(successors) {
		g.Edges[edges[b.From][b.Nth]].Back = true
	}
}

// checkBackEdges wants that every back edge says which of its head's tasks a record goes to.
func (g *Graph) checkBackEdges(r *reader) {
	for _, e := range g.Edges {
		from, to := g.Nodes[e.From].Place, g.Nodes[e.To].Place
		if !e.Back || straightPlaces(from, to, e.KeyBy) || !to.PerAgent && (to.Tasks == 1 || !e.KeyBy.IsZero()) {
			continue
		}
		op, body := g.operator(e.To), g.Nodes[e.From].Name
		hint := "key_by: key sends each record to the task that has its key"
		if to.PerAgent {
			hint = "run " + body + " where " + op.Name + " runs, or give " + op.Name + " its own on or parallelism"
		}
		r.fail(op.Pos, hint, "operator %s gets records back from %s, which runs %s, and nothing says which of its tasks they go to",
			op.Name, body, from)
	}
}

// refuseUnfed reports the first loop, in the order of the file, that no source leads to.
func (g *Graph) refuseUnfed(r *reader) {
	fed := g.fed()
	if !slices.Contains(fed, false) {
		return
	}
	cycle := g.cycle(fed)
	names := make([]string, 0, len(cycle)+1)
	for _, n := range cycle {
		names = append(names, g.Nodes[n].Name)
	}
	names = append(names, names[0])
	r.fail(g.operator(cycle[0]).Pos, "let one of them take records from a source or from an operator outside the loop as well",
		"no source feeds the loop %s", strings.Join(names, " → "))
}

// fed says of every node whether a source leads to it.
func (g *Graph) fed() []bool {
	fed := make([]bool, len(g.Nodes))
	var next []int
	reach := func(n int) {
		if !fed[n] {
			fed[n] = true
			next = append(next, n)
		}
	}
	for n := range g.File.Sources {
		reach(n) // sources are the first nodes
	}
	for len(next) > 0 {
		n := next[0]
		next = next[1:]
		for _, e := range g.Edges {
			if e.From == n {
				reach(e.To)
			}
		}
	}
	return fed
}

// cycle finds one among the nodes that are not to be skipped, by depth-first search in the order of the file.
func (g *Graph) cycle(skip []bool) []int {
	const unseen, open, done = 0, 1, 2
	state := make([]int, len(g.Nodes))
	var path []int
	var visit func(n int) []int
	visit = func(n int) []int {
		state[n] = open
		path = append(path, n)
		for _, e := range g.Edges {
			if e.From != n || state[e.To] == done || skip[e.To] {
				continue
			}
			if state[e.To] == open {
				return path[slices.Index(path, e.To):]
			}
			if c := visit(e.To); c != nil {
				return c
			}
		}
		state[n] = done
		path = path[:len(path)-1]
		return nil
	}
	for n := range g.Nodes {
		if state[n] == unseen && !skip[n] {
			if c := visit(n); c != nil {
				return c
			}
		}
	}
	panic("job: nodes that no source feeds, and no cycle among them")
}

// place decides where a node runs; what it takes records from has been placed.
func (g *Graph) place(r *reader, n int) {
	switch g.Nodes[n].Kind {
	case SourceNode:
		g.Nodes[n].Place = g.placeSource(n)
	case OperatorNode:
		g.Nodes[n].Place = g.placeOperator(r, n)
	case SinkNode:
		// A sink has an instance in each task that feeds it.
		g.Nodes[n].Place = Placement{Root: n}
	}
}

// placeSource lets sources with the same labels run side by side, so that an operator can take both.
func (g *Graph) placeSource(n int) Placement {
	on := g.File.Sources[g.Nodes[n].Index].On
	for i, other := range g.File.Sources[:g.Nodes[n].Index] {
		if maps.Equal(on, other.On) {
			// Sources are the first nodes, in the order of the file.
			return Placement{Root: i, On: on, PerAgent: true}
		}
	}
	return Placement{Root: n, On: on, PerAgent: true}
}

func (g *Graph) placeOperator(r *reader, n int) Placement {
	op := g.operator(n)
	edges := slices.DeleteFunc(g.in(n), func(e Edge) bool { return e.Back })
	base := g.Nodes[edges[0].From].Place
	same := true
	for _, e := range edges[1:] {
		same = same && g.Nodes[e.From].Place.Root == base.Root
	}
	elsewhere := op.On != nil && !(same && maps.Equal(op.On, base.On))
	tasks := op.Parallelism
	switch {
	case !elsewhere && !same && op.On == nil:
		r.fail(op.Pos, "say with on where it runs, or give its inputs the same place",
			"operator %s has inputs that run in different places: %s", op.Name, g.places(edges))
		return base
	case !elsewhere && tasks == 0, !elsewhere && !base.PerAgent && tasks == base.Tasks:
		return base
	case tasks == 0:
		tasks = 1
	}
	if tasks > 1 && op.KeyBy.IsZero() {
		r.fail(op.Pos, "key_by: key divides them by the key they have",
			"operator %s has parallelism %d and no key_by that says how records are divided", op.Name, tasks)
	}
	on := base.On
	if elsewhere {
		on = op.On
	}
	return Placement{Root: n, On: on, Tasks: tasks}
}

func (g *Graph) places(edges []Edge) string {
	var s []string
	for _, e := range edges {
		s = append(s, g.Nodes[e.From].Name+" "+g.Nodes[e.From].Place.String())
	}
	return list(s)
}

func (p Placement) String() string {
	on := "any agent"
	if len(p.On) > 0 {
		on = p.On.String()
	}
	if p.PerAgent {
		return "once per agent (" + on + ")"
	}
	return fmt.Sprintf("in parallel %d (%s)", p.Tasks, on)
}

func (l Labels) String() string {
	pairs := make([]string, 0, len(l))
	for _, k := range sortedKeys(l) {
		pairs = append(pairs, k+"="+l[k])
	}
	return strings.Join(pairs, ",")
}

// leads says whether records of a node may come to another one. Nodes are named with their kinds.
func (g *Graph) leads(from, to string) bool {
	seen := map[int]bool{}
	var visit func(n int) bool
	visit = func(n int) bool {
		if seen[n] {
			return false
		}
		seen[n] = true
		return g.Nodes[n].String() == to || slices.ContainsFunc(g.Edges, func(e Edge) bool { return e.From == n && visit(e.To) })
	}
	at := slices.IndexFunc(g.Nodes, func(n Node) bool { return n.String() == from })
	return at >= 0 && visit(at)
}

func (n Node) String() string { return fmt.Sprintf("%s %s", n.Kind, n.Name) }

func (g *Graph) warnUnused() {
	for n, node := range g.Nodes {
		if node.Kind == SinkNode || slices.ContainsFunc(g.Edges, func(e Edge) bool { return e.From == n }) {
			continue
		}
		g.Warnings = append(g.Warnings, node.String()+": nothing takes its records, they are dropped")
	}
}
