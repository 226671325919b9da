package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// fault is one kind of thing that goes wrong. It returns false if it finds nothing to break.
type fault struct {
	name   string
	weight int
	strike func(c *chaos) bool
}

var faults = []fault{
	{"kill", 6, func(c *chaos) bool { return c.endProcess(c.anyAgent(), false) }},
	{"power", 6, func(c *chaos) bool { return c.endProcess(c.anyAgent(), true) }},
	{"kill-all", 1, func(c *chaos) bool { return c.endAll(false) }},
	{"power-all", 2, func(c *chaos) bool { return c.endAll(true) }},
	{"tail", 4, (*chaos).loseTail},
	{"empty", 2, func(c *chaos) bool { return c.emptyStream(c.anyStream()) }},
	{"site", 1, (*chaos).loseSite},
	{"cut", 4, (*chaos).cutOff},
	{"term", 4, (*chaos).newTerm},
	{"slow", 3, (*chaos).slowDisk},
	{"save", 3, func(c *chaos) bool { c.failSaves = 1 + c.w.rng.IntN(2); return true }},
	{"full", 2, (*chaos).fillLog},
	{"trap", 3, (*chaos).setTrap},
	{"task", 3, (*chaos).failTask},
	{"upgrade", 3, (*chaos).upgrade},
	{"replay", 6, (*chaos).replay},
}

// namedFaults strike when they are named only.
var namedFaults = []fault{
	{"abort", 1, (*chaos).abort},
	{"gateway", 1, (*chaos).cutGateway},
	{"limit", 1, (*chaos).setLimit},
	{"twice", 1, (*chaos).acknowledgeTwice},
	{"back", 1, (*chaos).loseBack},
}

var errDisk = errors.New("the disk does not take it")

// chaos is what goes wrong, and what has.
type chaos struct {
	w         *world
	table     []fault
	total     int // of weights
	counts    map[string]int
	trap      map[string]bool // operators that trap on their next record, once
	limits    map[string]*limit
	passed    map[string]map[uint32]bool // what operators have taken
	failSaves int
	started   map[string]bool // versions that have failed to start once, by task and digest
	slowUntil map[string]time.Duration
	at        int // the only strike is after this event; 0: by chance
	calmSince time.Duration
}

func newChaos(w *world, opt options) *chaos {
	c := &chaos{w: w, counts: map[string]int{}, trap: map[string]bool{}, limits: map[string]*limit{}, passed: map[string]map[uint32]bool{}, started: map[string]bool{}, slowUntil: map[string]time.Duration{}, at: opt.at}
	for _, f := range slices.Concat(faults, namedFaults) {
		if len(opt.faults) == 0 && !isNamed(f) || slices.Contains(opt.faults, f.name) {
			c.table = append(c.table, f)
			c.total += f.weight
		}
	}
	return c
}

func (c *chaos) count(what string) { c.counts[what]++ }

// strike may break something between two events.
func (c *chaos) strike() {
	switch {
	case c.w.calm || c.total == 0 || c.at != 0 && c.w.count != c.at || c.at == 0 && c.w.rng.Float64() >= c.w.profile.strikes:
		return
	}
	n := c.w.rng.IntN(c.total)
	for _, f := range c.table {
		if n -= f.weight; n < 0 {
			c.w.trace("FAULT %s", f.name)
			if f.strike(c) {
				c.count(f.name)
			}
			return
		}
	}
}

// watch ends the bad time, and the run when there is nothing left to do.
func (c *chaos) watch() {
	c.w.after(50*time.Millisecond, c.watch)
	if !c.w.calm {
		if c.w.now > c.w.profile.storm && c.w.allPublished() {
			c.heal()
		}
		return
	}
	if c.w.oracle.finished() {
		c.w.settled = true
		return
	}
	if c.w.now-c.calmSince > patience {
		c.w.fail("no progress in %v without faults: %s", patience, c.w.stuck())
	}
}

func (w *world) allPublished() bool {
	for _, b := range w.brokers {
		if b.published < len(b.messages) {
			return false
		}
	}
	return true
}

// heal makes everything work from now on.
func (c *chaos) heal() {
	w := c.w
	w.trace("CALM")
	w.calm, w.calmAt, c.calmSince = true, w.count, w.now
	calmPace(&w.profile)
	c.failSaves = 0
	clear(c.slowUntil)
	for id := range c.trap {
		c.trap[id] = false
	}
	clear(c.limits)
	for _, a := range w.agents {
		a.disk.fullUntil = 0
		a.boot()
		a.setCut(false)
	}
}

func (c *chaos) anyAgent() *agent { return c.w.agents[c.w.rng.IntN(len(c.w.agents))] }

func (c *chaos) anyTask() *plannedTask { return c.w.topo.tasks[c.w.rng.IntN(len(c.w.topo.tasks))] }

func (c *chaos) anyStream() *stream {
	for {
		if t := c.anyTask(); !t.source {
			return c.w.streams[t.id]
		}
	}
}

// endProcess ends an agent's process and starts it again some time later.
func (c *chaos) endProcess(a *agent, power bool) bool {
	if a.proc == nil {
		return false
	}
	c.w.trace("%s ends, power cut: %v", a.name, power)
	a.end(power)
	c.w.after(c.w.some([]time.Duration{time.Millisecond, 300 * time.Millisecond, 2 * time.Second}[c.w.rng.IntN(3)]), a.boot)
	return true
}

// setTrap makes an operator trap on the next record that it takes, live or in replay. Once per operator:
// a record that fails again and again is given up.
func (c *chaos) setTrap() bool {
	id := string(c.anyTask().id)
	if _, before := c.trap[id]; before {
		return false
	}
	c.trap[id] = true
	return true
}

// setLimit makes an operator trap twice on the record that it takes next for the first time, so that it is given
// up; in a replay it would not. Not in loops: it is not known how often the record would have gone round.
func (c *chaos) setLimit() bool {
	id := string(c.anyTask().id)
	if _, before := c.limits[id]; before {
		return false
	}
	c.pass(id, 0)
	c.limits[id] = &limit{left: 2, passed: c.passed[id]}
	return true
}

// pass notes that an operator has taken a record.
func (c *chaos) pass(operator string, id uint32) {
	if c.passed[operator] == nil {
		c.passed[operator] = map[uint32]bool{}
	}
	c.passed[operator][id] = true
}

// limit is what a record runs into.
type limit struct {
	id     uint32 // of the record, 0: the next
	left   int    // so many times
	passed map[uint32]bool
}

// reached says whether a record runs into a limit now.
func (l *limit) reached(id uint32) bool {
	if l == nil || l.left == 0 || l.id != 0 && l.id != id || l.passed[id] {
		return false
	}
	l.id = id
	l.left--
	return true
}

func (c *chaos) endAll(power bool) bool {
	if c.w.profile.narrows {
		c.w.profile.window, c.w.profile.bounds = 1, dataflow.Bounds{Frames: 1, Unsent: 1}
	}
	struck := false
	for _, a := range c.w.agents {
		struck = c.endProcess(a, power) || struck
	}
	return struck
}

func (c *chaos) loseTail() bool {
	s := c.anyStream()
	if len(s.frames) == 0 {
		return false
	}
	s.loseTail(c.w.rng.IntN(len(s.frames)))
	c.w.trace("stream of %s loses its tail: %s", s.t.id, s)
	return true
}

func (c *chaos) emptyStream(s *stream) bool {
	if !s.exists {
		return false
	}
	s.empty()
	c.w.trace("stream of %s is lost", s.t.id)
	if c.w.one(2) {
		s.ensure() // somebody has made it again already
	}
	return true
}

func (c *chaos) loseSite() bool {
	c.endAll(true)
	for _, t := range c.w.topo.tasks {
		if !t.source {
			c.emptyStream(c.w.streams[t.id])
		}
	}
	return true
}

// loseBack loses what is in streams of back edges, and all that the heads' receivers outside the loop have in memory
// and in their streams: they go back to what they have saved.
func (c *chaos) loseBack() bool {
	for _, back := range c.w.topo.channels {
		if !back.back {
			continue
		}
		c.w.streams[back.to.id].loseChannel(back.index)
		for _, edge := range back.to.edges {
			for _, out := range edge {
				if !out.loop && c.endProcess(c.w.agent(out.to.agent), true) {
					c.emptyStream(c.w.streams[out.to.id])
				}
			}
		}
	}
	return true
}

func isNamed(f fault) bool {
	return slices.ContainsFunc(namedFaults, func(n fault) bool { return n.name == f.name })
}

// aborted is why a task gives an epoch up that a fault wants to be given up.
const aborted = "a fault wants it"

// abort lets the running epoch be given up.
func (c *chaos) abort() bool {
	epochs := c.w.kv.epochs()
	if len(epochs) == 0 {
		return false
	}
	v, _ := c.w.kv.record(epochs[len(epochs)-1])
	if v.Record.State != abs.Started || v.Record.Initial {
		return false
	}
	t := c.anyTask()
	if _, answered := c.w.kv.acks[ackID{v.Record.Epoch, t.id}]; answered {
		return false
	}
	c.w.kv.putAck(abs.Ack{Task: t.id, Epoch: v.Record.Epoch, Generation: c.w.gen, Failed: aborted})
	return true
}

// twice is why a task gives an epoch up of which it has given its part.
const twice = "a second acknowledgement"

// acknowledgeTwice brings a coordinator another acknowledgement of a task that has given one, past the KV, which
// keeps the first by itself.
func (c *chaos) acknowledgeTwice() bool {
	l := c.w.leading()
	if l == nil || l.host.cut || l.acks == 0 || l.acks < len(c.w.kv.ackLog) {
		return false
	}
	first := c.w.kv.acks[c.w.kv.ackLog[l.acks-1]].ack
	v, _ := c.w.kv.record(first.Epoch)
	if v.Record.State != abs.Started || v.Record.Initial || first.Failed != "" {
		return false
	}
	l.step(abs.Ack{Task: first.Task, Epoch: first.Epoch, Generation: first.Generation, Failed: twice})
	return true
}

// cutGateway cuts a gateway off for longer than an epoch may take. It is not one that coordinates: another would take the
// lease over then, which the fault "term" stands for.
func (c *chaos) cutGateway() bool {
	a := c.anyAgent()
	if l := c.w.leading(); l != nil && l.host == a {
		return false
	}
	return c.w.topo.plan(c.w.gen).Gateway(a.name) && c.cutAgent(a, 20*time.Second)
}

func (c *chaos) cutOff() bool {
	return c.cutAgent(c.anyAgent(), 50*time.Millisecond, time.Second, 4*time.Second)
}

// cutAgent cuts an agent off for about one of the times.
func (c *chaos) cutAgent(a *agent, times ...time.Duration) bool {
	if a.cut {
		return false
	}
	a.setCut(true)
	c.w.after(c.w.some(times[c.w.rng.IntN(len(times))]), func() { a.setCut(false) })
	return true
}

// newTerm takes the lease from a coordinator that does not notice.
func (c *chaos) newTerm() bool {
	n := len(c.w.leaders)
	c.w.newTerm()
	return len(c.w.leaders) > n
}

func (c *chaos) slowDisk() bool {
	c.slowUntil[c.anyAgent().name] = c.w.now + 2*time.Second
	return true
}

func (c *chaos) persistTime(a *agent) time.Duration {
	d := c.w.some(c.w.profile.persist)
	if c.w.now < c.slowUntil[a.name] {
		d += time.Second
	}
	return d
}

func (c *chaos) saveError() error {
	if c.failSaves == 0 {
		return nil
	}
	c.failSaves--
	return errDisk
}

func (c *chaos) fillLog() bool {
	c.anyAgent().disk.fullUntil = c.w.now + c.w.some(time.Second)
	return true
}

// failTask ends one task alone, as a failed adapter does.
func (c *chaos) failTask() bool {
	t := c.anyTask()
	r := c.w.agent(t.agent).runner(t)
	if r == nil || r.run == nil {
		return false
	}
	c.w.trace("%s fails", t.id)
	r.restart()
	return true
}
