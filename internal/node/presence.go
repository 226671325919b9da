package node

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/weir-stream/weir/abs"
)

// forgetPeer forgets an agent that was taken out of the fleet.
func (a *Agent) forgetPeer(name string) error {
	a.peers.remove(name)
	a.keepLetters()
	if err := a.copies.Put(copyGone, name, nil); err != nil {
		return err
	}
	return a.copies.Delete(copyAgent, name)
}

// peers are the other agents: who they are, and when they were last heard of.
type peers struct {
	mu     sync.Mutex
	recs   map[string]agentRecord
	heard  map[string]sign
	before map[string]logged // of the log that an agent had before the one it has
	// letters is what was heard of dead letters, by agent and, the newest last, directory; unkept are the agents of
	// which it was heard since it was stored.
	letters map[string][]heardLetters
	unkept  map[string]bool
	gone    map[string]bool // taken out of the fleet, and not back
}

// sign is an agent's sign of life.
type sign struct {
	Name string `json:"name"`
	// Ask is the coordinator's, if it is on this agent.
	Ask ask `json:"ask,omitzero"`
	// Drained is the ask that the agent has answered: what it had logged when it heard it is with its receivers.
	Drained ask `json:"drained,omitzero"`
	// Quiet has, by job, the epoch since which none of the agent's tasks of the job has changed.
	Quiet map[string]abs.Epoch `json:"quiet,omitempty"`
	// Failed lists the jobs of which a task here has stopped for good: they need not wait for this agent.
	Failed []string `json:"failed,omitempty"`
	// Lost has those of them of which a task here has lost its log or its snapshots, and Differs those of
	// which one has found that replay differs, or a gap that cannot be refilled, with the generation.
	Lost    map[string]abs.Generation `json:"lost,omitempty"`
	Differs map[string]abs.Generation `json:"differs,omitempty"`
	// Takeover: the agent was started in the place of another one, so that what is lost may be given up.
	Takeover bool `json:"takeover,omitempty"`
	// Logged is how far the agent's sources have come.
	Logged logged `json:"logged,omitzero"`
	// Dir is the agent's directory, and Letters how many dead letters are in it that were not replayed, by job.
	Dir     string            `json:"dir,omitempty"`
	Letters map[string]uint64 `json:"letters,omitempty"`

	at time.Time
}

// ask is what a coordinator says to have every agent look how far it has brought its backlog, each time one has come
// back. Signs of life from before, late as they may arrive, cannot answer it.
type ask struct {
	Term abs.Term `json:"term"`
	N    uint64   `json:"n"`
}

// answers says whether an agent that has answered one has answered the other.
func (q ask) answers(other ask) bool { return q.Term == other.Term && q.N >= other.N }

func (p *peers) init() {
	p.recs, p.heard, p.before = map[string]agentRecord{}, map[string]sign{}, map[string]logged{}
	p.letters, p.unkept = map[string][]heardLetters{}, map[string]bool{}
}

func (p *peers) put(rec agentRecord) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recs[rec.Name] = rec
	delete(p.gone, rec.Name)
}

func (p *peers) remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.recs, name)
	delete(p.heard, name)
	delete(p.before, name)
	if p.gone == nil {
		p.gone = map[string]bool{}
	}
	p.gone[name] = true
}

// takenOut says that an agent was taken out of the fleet, and not only that it has not joined this control plane yet.
func (p *peers) takenOut(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone[name]
}

func (p *peers) hear(s sign) {
	s.at = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keepLogged(&s)
	p.keepLetters(s)
	p.heard[s.Name] = s
}

func (p *peers) alive(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.heard[name].at) < goneAfter
}

func (p *peers) seen(name string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard[name].at
}

// drained says whether an agent has brought its backlog to its receivers since it was asked.
func (p *peers) drained(name string, since ask) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard[name].Drained.answers(since)
}

// quietSince is the epoch since which an agent's tasks of a job have not changed; 0: they may have.
func (p *peers) quietSince(name, job string) abs.Epoch {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard[name].Quiet[job]
}

// heardOf is what an agent has heard of another one.
type heardOf struct {
	AgoMS int64 `json:"ago_ms"` // since its last sign of life; below 0: there was none
	// Before is how far it had come in the log that it had before the one it has, and BeforeAgoMS how long ago that
	// was heard.
	Before      logged `json:"before,omitzero"`
	BeforeAgoMS int64  `json:"before_ago_ms,omitempty"`
	// Letters are what was heard of its dead letters.
	Letters []heardLetters `json:"letters,omitempty"`
}

// heardOf tells of those of the agents of which this one has heard, itself or from others, also of those that are taken out.
func (p *peers) heardOf(names []string) map[string]heardOf {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]heardOf{}
	for _, name := range names {
		s, lived := p.heard[name]
		before, replaced := p.before[name]
		h := heardOf{AgoMS: -1, Letters: p.letters[name]}
		if lived {
			h.AgoMS = time.Since(s.at).Milliseconds()
		}
		if replaced {
			h.Before, h.BeforeAgoMS = before, time.Since(before.at).Milliseconds()
		}
		if lived || replaced || len(h.Letters) > 0 {
			out[name] = h
		}
	}
	return out
}

// learn takes what another agent has heard.
func (p *peers) learn(heard map[string]heardOf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ago := func(ms int64) time.Time { return time.Now().Add(-time.Duration(ms) * time.Millisecond) }
	for name, h := range heard {
		s := p.heard[name]
		if at := ago(h.AgoMS); h.AgoMS >= 0 && at.After(s.at) {
			s.Name, s.at = name, at
			p.heard[name] = s
		}
		if h.Before.at = ago(h.BeforeAgoMS); h.Before.Log != 0 && h.Before.at.After(p.before[name].at) {
			p.before[name] = h.Before
		}
		p.learnLetters(name, h.Letters)
	}
}

// takesPart says whether an agent lives and runs all of its tasks of a job.
func (p *peers) takesPart(name, job string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.heard[name]
	return time.Since(s.at) < goneAfter && !slices.Contains(s.Failed, job)
}

// answered notes that an agent has answered a call.
func (p *peers) answered(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.heard[name]
	s.Name, s.at = name, time.Now()
	p.heard[name] = s
}

func (p *peers) get(name string) (agentRecord, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rec, ok := p.recs[name]
	return rec, ok
}

func (p *peers) list() []agentRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []agentRecord
	for _, rec := range p.recs {
		out = append(out, rec)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// What signs of life are said under. All of them under the first, which is heard by whoever coordinates and by agents
// with a server that is no leaf node's, which most people ask. If every agent heard it, the server's work would grow with the square of the
// fleet. The others hear the second, which has the signs of those few: which agents with a server live, and what the
// coordinator asks. What else they want to know they ask the coordinator.
const (
	saysAlive = "alive"
	saysFew   = "alive-few"
)

// hearsAll says whether the agent hears all others even while it does not coordinate. A leaf node's server is there for
// its own device.
func (a *Agent) hearsAll() bool { return a.opt.Embedded() && a.opt.Leaf == "" }

// hear takes signs of life until stop is called.
func (a *Agent) hear(said string) (stop func(), err error) {
	return a.conn.Listen(said, func(m []byte) {
		var s sign
		if json.Unmarshal(m, &s) == nil {
			a.peers.hear(s)
			a.takeAsk(s.Ask)
		}
	})
}

// keepAlive tells the others that this agent lives, and hears the same of them. Nothing of it is stored.
func (a *Agent) keepAlive() {
	hears := saysFew
	if a.hearsAll() {
		hears = saysAlive
	}
	stop, err := a.hear(hears)
	if err != nil {
		a.log.Error("other agents cannot be heard", "error", err)
		return
	}
	defer stop()
	full := false
	for {
		full = a.tellLogState(full)
		s := sign{Name: a.name, Ask: a.leader.asks(), Quiet: a.quiet(), Failed: a.failedJobs()}
		a.takeAsk(s.Ask)
		s.Drained = a.drained()
		s.Lost, s.Differs, s.Takeover = a.failedIn((*runner).lost), a.failedIn((*runner).differs), a.takesOver()
		s.Logged = a.logged()
		s.Dir, s.Letters = a.dir.Identity().Instance, a.dead.unreplayed()
		a.peers.hear(s)
		a.conn.Say(saysAlive, mustJSON(s))
		if a.hearsAll() || s.Ask != (ask{}) {
			a.conn.Say(saysFew, mustJSON(s))
		}
		a.keepLetters()
		if !a.rest(s) {
			return
		}
	}
}

// rest waits until the next sign of life is due: early if there is something to ask or to answer, the last one said
// that a job is quiet, and it is so no more, or a task has stopped for good since. False: the agent ends.
func (a *Agent) rest(last sign) bool {
	t := time.NewTimer(aliveEvery)
	defer t.Stop()
	for {
		select {
		case <-a.life.Done():
			return false
		case <-t.C:
			return true
		case <-a.asked:
			return true
		case <-a.stirred:
			if !slices.Equal(last.Failed, a.failedJobs()) {
				return true
			}
			now := a.quiet()
			for job, since := range last.Quiet {
				if now[job] != since {
					return true
				}
			}
		}
	}
}

// quiet lists the jobs none of whose tasks here has changed since one epoch, with that epoch.
func (a *Agent) quiet() map[string]abs.Epoch {
	out := map[string]abs.Epoch{}
	for _, h := range a.hosted() {
		if e := h.quiet(); e != 0 {
			out[h.name] = e
		}
	}
	return out
}

// failedJobs lists the jobs of which a task here has stopped for good.
func (a *Agent) failedJobs() (names []string) {
	for _, h := range a.hosted() {
		if slices.ContainsFunc(h.tasks(), (*runner).failed) {
			names = append(names, h.name)
		}
	}
	slices.Sort(names)
	return names
}

// failed says whether the task has stopped for good.
func (r *runner) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state == stateFailed
}

// quiet is the epoch since which none of the job's tasks here has changed; 0: there is none.
func (h *hostedJob) quiet() abs.Epoch {
	var since abs.Epoch
	for i, r := range h.tasks() {
		r.mu.Lock()
		task := r.running
		r.mu.Unlock()
		if task == nil {
			return 0
		}
		e := task.Quiet()
		if e == 0 || i > 0 && e != since {
			return 0
		}
		since = e
	}
	return since
}

// tellLogState says once when the log cannot be written, and once when it can again.
func (a *Agent) tellLogState(was bool) bool {
	err := a.entries.Err()
	switch {
	case err != nil && !was:
		a.log.Error("the input log cannot be written: sources acknowledge nothing until it can", "error", err)
	case err == nil && was:
		a.log.Info("the input log can be written again")
	}
	return err != nil
}

// takeAsk notes what a coordinator asks, unless what it asked before is still to be answered: where somebody always
// comes back nobody would ever be through.
func (a *Agent) takeAsk(q ask) {
	a.askMu.Lock()
	defer a.askMu.Unlock()
	a.askedIn = max(a.askedIn, q.Term)
	if q.Term < a.ask.Term || a.ask.answers(q) || q.Term == a.ask.Term && a.behind(a.mark) {
		return
	}
	a.ask, a.mark = q, a.entries.Last()
	signal(a.asked)
}

// highestAsk is the highest term of which an ask was heard.
func (a *Agent) highestAsk() abs.Term {
	a.askMu.Lock()
	defer a.askMu.Unlock()
	return a.askedIn
}

// forgetAsk lets the next ask be taken, whatever its term. One that the lost control plane's coordinator still says may
// come after that; who has heard it coordinates in a higher term only.
func (a *Agent) forgetAsk() {
	a.askMu.Lock()
	defer a.askMu.Unlock()
	a.ask = ask{}
}

// drained is the ask that has been answered; zero while there is none.
func (a *Agent) drained() ask {
	a.askMu.Lock()
	defer a.askMu.Unlock()
	if a.behind(a.mark) {
		return ask{}
	}
	return a.ask
}

// behind says whether some task here that has not stopped for good has not yet brought to its receivers what the log
// has up to a position.
func (a *Agent) behind(mark abs.Position) bool {
	for _, h := range a.hosted() {
		for _, r := range h.tasks() {
			if !r.failed() && r.entries.Info().Last > 0 && !r.handedOver(min(mark, r.entries.Info().Last)) && !r.beginsAnew() {
				return true
			}
		}
	}
	return false
}

// beginsAnew says whether the task's device was replaced and its generation has no checkpoint yet. Its log is new, and
// what little is in it, such as the numbers that it reserves, is passed only after that checkpoint; which does not
// come about without the agent, for the part that it had is of channels that have begun again.
func (r *runner) beginsAnew() bool {
	select {
	case <-r.commit:
		return false
	default:
		return r.task.Replaced
	}
}

// handedOver says whether receivers have consumed all that came of the log up to a position.
func (r *runner) handedOver(pos abs.Position) bool {
	r.mu.Lock()
	task := r.running
	r.mu.Unlock()
	return task != nil && task.Status().HandedOver >= pos
}

// hubMQTT is the MQTT listener that an agent with an embedded server announces: by name the first that
// lives, else the first. One that listens on its own machine, or everywhere, is reached where this
// agent reaches its NATS server.
func (a *Agent) hubMQTT() string {
	found := ""
	for _, rec := range a.peers.list() {
		if rec.MQTT != "" && (found == "" || a.peers.alive(rec.Name)) {
			found = rec.MQTT
			if a.peers.alive(rec.Name) {
				break
			}
		}
	}
	host, port, err := net.SplitHostPort(found)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		if u, err := url.Parse(strings.Split(a.opt.NATS, ",")[0]); err == nil && u.Hostname() != "" {
			host = u.Hostname()
		}
	}
	return net.JoinHostPort(host, port)
}

// loadPeers brings back the copies of other agents' records.
func (a *Agent) loadPeers() error {
	if err := a.loadLetters(); err != nil {
		return err
	}
	if err := a.copies.List(copyGone, func(name string, _ []byte) error {
		a.peers.remove(name)
		return nil
	}); err != nil {
		return err
	}
	return a.copies.List(copyAgent, func(key string, value []byte) error {
		var rec agentRecord
		if err := json.Unmarshal(value, &rec); err != nil {
			return fmt.Errorf("copy of agent %s: %w", key, err)
		}
		a.peers.put(rec)
		return nil
	})
}
