package job

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-stream/weir/abs"
)

// Plan places a graph on the agents known. Modules maps each `wasm` of the file to its module's
// digest. A previous plan, if there is one, keeps parallel tasks on the agents where they are and
// outputs at their indexes. The result depends on nothing else, nor on the order of agents.
//
// The error joins everything that stands in the way: selectors without a match, missing labels,
// missing digests.
func Plan(g *Graph, agents []Agent, modules map[string]string, gen abs.Generation, previous *Physical) (*Physical, error) {
	p := &planner{
		g: g, modules: modules, previous: previous,
		instances: make([][]instance, len(g.Nodes)),
		chained:   make([]bool, len(g.Nodes)),
		forgetful: map[string]bool{},
		plan: &Physical{
			Job: g.File.Name, Generation: gen, KeyGroups: KeyGroups, Checkpoint: g.File.Checkpoint, Recovery: g.File.Recovery,
			Warnings: slices.Clone(g.Warnings),
		},
	}
	p.agents = slices.SortedFunc(slices.Values(agents), func(a, b Agent) int { return cmp.Compare(a.Name, b.Name) })
	if err := p.checkAgents(); err != nil {
		return nil, err
	}
	order := g.order()
	for _, n := range order {
		p.settle(n)
	}
	p.checkModules()
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	for _, n := range order {
		if p.heads(n) {
			p.tasks(n)
		}
	}
	p.connect()
	p.plan.markLoops()
	p.checkBrokers()
	p.checkFiles()
	p.plan.Promises = promises(g, p.forgetful)
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return p.plan, nil
}

// instance is a node on an agent.
type instance struct {
	name  string // "smooth@g1", "fleet/0"
	agent int    // in planner.agents
	task  int    // in Physical.Tasks, once made
	op    int    // in Task.Ops; -1 for a source
}

type planner struct {
	g        *Graph
	agents   []Agent // by name
	modules  map[string]string
	previous *Physical
	// instances of each source and operator; those of nodes with the same placement correspond.
	instances [][]instance
	chained   []bool          // by node
	forgetful map[string]bool // "source NAME" or "sink NAME" of QoS 2 whose broker is the one inside an agent
	// streams remembers where channels start until all tasks are there.
	streams []stream
	plan    *Physical
	errs    []error
}

// stream is an edge from one instance that leaves its task. Target is its place in the plan.
type stream struct {
	edge     Edge
	instance int
	target   func() *Target
}

func (p *planner) fail(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

func (p *planner) warn(format string, args ...any) {
	p.plan.Warnings = append(p.plan.Warnings, fmt.Sprintf(format, args...))
}

func (p *planner) checkAgents() error {
	if len(p.agents) == 0 {
		return errors.New("no agent is known to place the job on; start one with agent run")
	}
	for i, a := range p.agents {
		switch {
		case a.Name == "":
			return errors.New("an agent has no name")
		case i > 0 && p.agents[i-1].Name == a.Name:
			return fmt.Errorf("two agents have the name %s", a.Name)
		}
	}
	return nil
}

// checkModules wants a digest for every module, so that the plan says exactly what runs.
func (p *planner) checkModules() {
	for _, o := range p.g.File.Operators {
		if p.digest(o) != "" {
			continue
		}
		if o.IsPath() {
			p.fail("operator %s: module %s was not given along with the job", o.Name, o.WASM)
			continue
		}
		name, version, _ := strings.Cut(o.WASM, "@")
		p.fail("operator %s: module %s is not registered; push it with agent operator push FILE.wasm --name %s --version %s",
			o.Name, o.WASM, name, version)
	}
}

// digest names what an operator runs, exactly.
func (p *planner) digest(o Operator) string {
	if o.IsNative() {
		return o.WASM
	}
	return p.modules[o.WASM]
}

// settle makes a node's instances and decides whether it is chained.
func (p *planner) settle(n int) {
	node := p.g.Nodes[n]
	switch {
	case node.Kind == SinkNode:
		return
	case node.Place.Root == n && node.Place.PerAgent:
		for _, a := range p.matching(n) {
			p.instances[n] = append(p.instances[n], instance{name: node.Name + "@" + p.agents[a].Name, agent: a})
		}
	case node.Place.Root == n:
		p.instances[n] = p.spread(n, p.matching(n))
	default:
		for i, like := range p.instances[node.Place.Root] {
			name := node.Name + "/" + strconv.Itoa(i)
			if node.Place.PerAgent {
				name = node.Name + "@" + p.agents[like.agent].Name
			}
			p.instances[n] = append(p.instances[n], instance{name: name, agent: like.agent})
		}
	}
	p.chained[n] = node.Kind == OperatorNode && p.chains(n)
}

// matching returns the agents that a node's labels select.
func (p *planner) matching(n int) []int {
	node := p.g.Nodes[n]
	var found []int
	for i, a := range p.agents {
		if matches(node.Place.On, a.Labels) {
			found = append(found, i)
		}
	}
	if len(found) == 0 {
		var known []string
		for _, a := range p.agents {
			known = append(known, describeAgent(a))
		}
		p.fail("%s %s: no agent matches on %s; there are %s", node.Kind, node.Name, node.Place.On, list(known))
	}
	return found
}

func matches(on Labels, labels map[string]string) bool {
	for k, v := range on {
		if got, has := labels[k]; !has || got != v {
			return false
		}
	}
	return true
}

func describeAgent(a Agent) string {
	if len(a.Labels) == 0 {
		return a.Name + " (no labels)"
	}
	return a.Name + " (" + Labels(a.Labels).String() + ")"
}

// spread distributes parallel tasks over agents: where they were, if that agent still matches, else
// round-robin in order of name.
func (p *planner) spread(n int, on []int) []instance {
	if len(on) == 0 {
		return nil
	}
	node := p.g.Nodes[n]
	made := make([]instance, node.Place.Tasks)
	for i := range made {
		made[i] = instance{name: node.Name + "/" + strconv.Itoa(i), agent: on[i%len(on)]}
		if p.previous == nil {
			continue
		}
		if t := p.previous.Task(abs.TaskID(made[i].name)); t != nil {
			if a := slices.IndexFunc(on, func(a int) bool { return p.agents[a].Name == t.Agent }); a >= 0 {
				made[i].agent = on[a]
			}
		}
	}
	return made
}

// chains tells whether an operator runs in the task of its input. The head of a loop never does: it has
// an input from outside and one from inside.
func (p *planner) chains(n int) bool {
	edges := p.g.in(n)
	if len(edges) != 1 {
		return false
	}
	e := edges[0]
	from, to := p.instances[e.From], p.instances[n]
	single := len(from) == 1 && len(to) == 1 && from[0].agent == to[0].agent
	return single || p.straight(e)
}

// straight tells whether an edge leads from each instance to the one beside it. By key it does only
// if nothing divides the keys: once per agent.
func (p *planner) straight(e Edge) bool {
	return straightPlaces(p.g.Nodes[e.From].Place, p.g.Nodes[e.To].Place, e.KeyBy)
}

func straightPlaces(from, to Placement, key KeyRule) bool {
	return from.Root == to.Root && (key.IsZero() || to.PerAgent || to.Tasks == 1)
}

// heads tells whether a node is at the head of tasks.
func (p *planner) heads(n int) bool {
	return p.g.Nodes[n].Kind == SourceNode || p.g.Nodes[n].Kind == OperatorNode && !p.chained[n]
}

// tasks makes the tasks that a node is the head of, each with its whole chain.
func (p *planner) tasks(n int) {
	for i, in := range p.instances[n] {
		t := len(p.plan.Tasks)
		p.plan.Tasks = append(p.plan.Tasks, Task{ID: abs.TaskID(in.name), Agent: p.agents[in.agent].Name})
		b := &chain{p: p, task: t, index: i, agent: p.agents[in.agent]}
		if p.g.Nodes[n].Kind == SourceNode {
			b.source(n)
		} else {
			b.op(n)
		}
	}
}

// chain builds one task.
type chain struct {
	p     *planner
	task  int
	index int // of the instances
	agent Agent
}

func (c *chain) t() *Task { return &c.p.plan.Tasks[c.task] }

func (c *chain) source(n int) {
	p := c.p
	in := &p.instances[n][c.index]
	in.task, in.op = c.task, -1
	s := p.g.File.Sources[p.g.Nodes[n].Index]
	c.t().Source = &SourceTask{
		Name: s.Name, MQTT: c.mqttSource(s), File: c.fileSource(s), Generator: s.Generator, Key: s.Key, ID: s.ID, IDWindow: s.IDWindow, Time: s.Time, EventTime: p.g.eventTime(s),
	}
	targets := c.targets(n, MainOutput, func() *[]Target { return &c.t().Source.Targets })
	c.t().Source.Targets = targets
}

// op adds an operator and, before its siblings, all that is chained behind it.
func (c *chain) op(n int) int {
	p := c.p
	o := p.g.operator(n)
	at := len(c.t().Ops)
	in := &p.instances[n][c.index]
	in.task, in.op = c.task, at
	op := Op{Name: o.Name, Module: o.WASM, Digest: p.digest(*o), Config: o.Config, OnError: o.OnError, Limits: o.Limits}
	for _, ref := range o.From {
		op.Inputs = append(op.Inputs, ref.String())
	}
	for _, name := range p.outputs(n) {
		op.Outputs = append(op.Outputs, OutputPort{Name: name})
	}
	c.t().Ops = append(c.t().Ops, op)
	for i, port := range op.Outputs {
		targets := c.targets(n, port.Name, func() *[]Target { return &c.t().Ops[at].Outputs[i].Targets })
		c.t().Ops[at].Outputs[i].Targets = targets
	}
	return at
}

// outputs lists an operator's outputs: those of the previous plan keep their indexes, for a guest's
// saved memory may hold them.
func (p *planner) outputs(n int) []string {
	names := p.g.Nodes[n].Outputs
	if p.previous == nil {
		return names
	}
	for _, t := range p.previous.Tasks {
		i := slices.IndexFunc(t.Ops, func(o Op) bool { return o.Name == p.g.Nodes[n].Name })
		if i < 0 {
			continue
		}
		var kept []string
		for _, port := range t.Ops[i].Outputs {
			kept = append(kept, port.Name)
		}
		for _, name := range names {
			if !slices.Contains(kept, name) {
				kept = append(kept, name)
			}
		}
		return kept
	}
	return names
}

// targets adds to the task what takes an output's records and returns how to get there. Where finds
// the result in the plan once it is stored.
func (c *chain) targets(n int, output string, where func() *[]Target) []Target {
	var targets []Target
	for _, e := range c.p.g.out(n, output) {
		switch {
		case c.p.g.Nodes[e.To].Kind == SinkNode:
			targets = append(targets, Target{Kind: ToSink, Index: c.sink(e)})
		case c.p.chained[e.To]:
			targets = append(targets, Target{Kind: ToOp, Index: c.op(e.To), Input: e.Input, KeyBy: c.p.rekey(e)})
		default:
			at := len(targets)
			targets = append(targets, Target{Kind: ToStream, Input: e.Input, KeyBy: c.p.rekey(e)})
			c.p.streams = append(c.p.streams, stream{e, c.index, func() *Target { return &(*where())[at] }})
		}
	}
	return targets
}

// rekey is the rule by which records change their key on an edge: none where they have that key.
func (p *planner) rekey(e Edge) KeyRule {
	if e.KeyBy.Kind == KeyKeep {
		return KeyRule{}
	}
	if from := p.g.Nodes[e.From]; from.Kind == SourceNode && p.g.File.Sources[from.Index].Key == e.KeyBy {
		return KeyRule{}
	}
	return e.KeyBy
}

// sink returns the sink's place in the task; outputs of one task share it, and its numbers.
func (c *chain) sink(e Edge) int {
	s := c.p.g.File.Sinks[c.p.g.Nodes[e.To].Index]
	if at := slices.IndexFunc(c.t().Sinks, func(made SinkTask) bool { return made.Name == s.Name }); at >= 0 {
		return at
	}
	channel := string(c.t().ID) + ">" + s.Name
	c.t().Sinks = append(c.t().Sinks, SinkTask{
		Name: s.Name, Channel: abs.ChannelID(channel), Commit: s.Commit,
		MQTT: c.mqttSink(s, channel), Log: s.Log, File: c.fileSink(s),
	})
	return len(c.t().Sinks) - 1
}

func (c *chain) expand(what, field, s string) string {
	out, err := expand(s, c.agent, pathWord(string(c.t().ID)))
	if err != nil {
		c.p.fail("%s, %s: %w", what, field, err)
	}
	return out
}

func (c *chain) mqttSource(s Source) *MQTTSource {
	if s.MQTT == nil {
		return nil
	}
	m, what := *s.MQTT, "source "+s.Name
	m.ClientID = c.clientID(what, m.ClientID, string(c.t().ID))
	m.Topics = nil
	for _, topic := range s.MQTT.Topics {
		full := c.expand(what, "topics", topic)
		if err := checkFilter(full); err != nil {
			c.p.fail("%s: topic %q on agent %s: %w", what, full, c.t().Agent, err)
		}
		m.Topics = append(m.Topics, full)
	}
	return &m
}

func (c *chain) mqttSink(s Sink, channel string) *MQTTSink {
	if s.MQTT == nil {
		return nil
	}
	m, what := *s.MQTT, "sink "+s.Name
	m.ClientID = c.clientID(what, m.ClientID, channel)
	m.Topic, m.Payload = c.expand(what, "topic", m.Topic), c.expand(what, "payload", m.Payload)
	if err := checkTopic(m.Topic); err != nil {
		c.p.fail("%s: topic %q on agent %s: %w", what, m.Topic, c.t().Agent, err)
	}
	return &m
}

func (c *chain) fileSource(s Source) *FileSource {
	if s.File == nil {
		return nil
	}
	return &FileSource{Path: c.expand("source "+s.Name, "path", s.File.Path), Follow: s.File.Follow}
}

func (c *chain) fileSink(s Sink) *FileSink {
	if s.File == nil {
		return nil
	}
	what := "sink " + s.Name
	return &FileSink{Path: c.expand(what, "path", s.File.Path), Line: c.expand(what, "line", s.File.Line)}
}

// clientID is the one given or one made of the job and what the client is for; the hash keeps names
// apart that look the same once odd characters are gone. It is the same in every generation, for a
// broker keeps a session under it.
func (c *chain) clientID(what, given, of string) string {
	if given != "" {
		return c.expand(what, "client_id", given)
	}
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\x00%s", c.p.plan.Job, of)
	return fmt.Sprintf("weir-%s-%s-%08x", c.p.plan.Job, pathWord(of), h.Sum32())
}

// pathWord makes a name fit for file names and client ids.
func pathWord(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && (isWord(string(r), "-_.")) {
			return r
		}
		return '-'
	}, s)
}

// connect makes the channels, in order of sending task, operator and output.
func (p *planner) connect() {
	slices.SortStableFunc(p.streams, func(a, b stream) int {
		x, y := p.instances[a.edge.From][a.instance], p.instances[b.edge.From][b.instance]
		return cmp.Or(cmp.Compare(x.task, y.task), cmp.Compare(x.op, y.op))
	})
	for _, s := range p.streams {
		from := p.instances[s.edge.From][s.instance]
		to := p.instances[s.edge.To]
		if p.straight(s.edge) {
			to = to[s.instance : s.instance+1]
		}
		target := s.target()
		for partition, receiver := range to {
			target.Channels = append(target.Channels, p.channel(from, receiver, s.edge, partition, len(to)))
		}
	}
}

func (p *planner) channel(from, to instance, e Edge, partition, of int) int {
	index := len(p.plan.Channels)
	receiver := &p.plan.Tasks[to.task]
	p.plan.Channels = append(p.plan.Channels, Channel{
		Index: index,
		ID:    abs.ChannelID(fmt.Sprintf("%s.%s>%s.%d", from.name, e.Output, to.name, e.Input)),
		From:  p.plan.Tasks[from.task].ID, To: receiver.ID, Partition: partition, Of: of, Back: e.Back,
	})
	receiver.Inputs = append(receiver.Inputs, Input{Channel: index, Op: to.op, Input: e.Input})
	return index
}
