package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-stream/weir/internal/api"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// Dead letters are on the device that gave the records up, and nowhere else. So that it is known how many went with a
// device, agents tell in their signs of life how many they have, and of which directory; a job's record names the
// directories that have had its tasks. Who applies the job finds that one of them is no more, and notes in the
// job's next record what was heard of its letters.

// heardLetters is what was last heard of the dead letters in one directory of an agent.
type heardLetters struct {
	Dir   string            `json:"dir"` // [storage.Identity.Instance]
	AtMS  int64             `json:"at_ms"`
	Count map[string]uint64 `json:"count,omitempty"` // by job: those that were not replayed
}

// maxHeardDirs bounds of how many directories of one agent letters are remembered: the newest.
const maxHeardDirs = 4

// lostLetters is an entry of a job's record.
type lostLetters struct {
	Dir string `json:"dir"`
	api.LostLetters
}

// maxLostLetters bounds the entries of a job's record; beyond it the oldest are added up.
const maxLostLetters = 64

// keepLetters remembers what a sign of life says of dead letters. The caller holds the lock.
func (p *peers) keepLetters(s sign) {
	if s.Dir == "" {
		return
	}
	now := heardLetters{s.Dir, s.at.UnixMilli(), s.Letters}
	list := slices.DeleteFunc(slices.Clone(p.letters[s.Name]), func(h heardLetters) bool { return h.Dir == s.Dir })
	list = append(list, now)
	p.letters[s.Name] = list[max(0, len(list)-maxHeardDirs):]
	p.unkept[s.Name] = true
}

// learnLetters takes what another agent has heard of an agent's dead letters, unless it was heard later here: who
// coordinates only now has not heard all. The caller holds the lock.
func (p *peers) learnLetters(agent string, heard []heardLetters) {
	list := slices.Clone(p.letters[agent])
	for _, h := range heard {
		i := slices.IndexFunc(list, func(l heardLetters) bool { return l.Dir == h.Dir })
		switch {
		case i < 0:
			list = append(list, h)
		case list[i].AtMS < h.AtMS:
			list[i] = h
		}
	}
	slices.SortStableFunc(list, func(a, b heardLetters) int { return cmp.Compare(a.AtMS, b.AtMS) })
	p.letters[agent] = list[max(0, len(list)-maxHeardDirs):]
}

// lettersIn is what was heard of the letters in a directory of an agent; of the newest but the one that it has now if it
// is not known which.
func (p *peers) lettersIn(agent, dir, now string) (heardLetters, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range slices.Backward(p.letters[agent]) {
		if h.Dir == dir || dir == "" && h.Dir != now {
			return h, true
		}
	}
	return heardLetters{}, false
}

// lettersNow is what was heard last of an agent's letters.
func (p *peers) lettersNow(agent string) (heardLetters, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.letters[agent]
	if len(list) == 0 {
		return heardLetters{}, false
	}
	return list[len(list)-1], true
}

// deadLetters is how many dead letters an agent has that were not replayed, by what was heard last; nil: nothing was.
func (p *peers) deadLetters(agent string) *uint64 {
	h, ok := p.lettersNow(agent)
	if !ok {
		return nil
	}
	var sum uint64
	for _, n := range h.Count {
		sum += n
	}
	return &sum
}

// keepLetters stores what was heard of the letters of agents that have fallen silent, so that it is known after a
// restart of this agent. Of those that speak it is heard again.
func (a *Agent) keepLetters() {
	a.dropLetters()
	a.peers.mu.Lock()
	silent := map[string][]heardLetters{}
	for name := range a.peers.unkept {
		if time.Since(a.peers.heard[name].at) >= goneAfter {
			silent[name] = a.peers.letters[name]
		}
	}
	a.peers.mu.Unlock()
	for name, list := range silent {
		if err := a.putCopy(copyLetters, name, list); err != nil {
			a.log.Warn("what was heard of an agent's dead letters is not kept; trying again", "agent", name, "error", err)
			continue
		}
		a.peers.mu.Lock()
		if time.Since(a.peers.heard[name].at) >= goneAfter {
			delete(a.peers.unkept, name)
		}
		a.peers.mu.Unlock()
	}
}

// dropLetters forgets what was heard of agents that were taken out of the fleet once no job asks for it any more: each
// has noted what was lost, or is deleted.
func (a *Agent) dropLetters() {
	select {
	case <-a.ready: // all jobs that are known here are loaded
	default:
		return
	}
	asked := map[string]bool{}
	for _, h := range a.hosted() {
		if rec := h.record(); rec.State != jobDeleted {
			for agent := range rec.dirs() {
				asked[agent] = true
			}
		}
	}
	for _, name := range a.peers.needless(asked) {
		if err := a.copies.Delete(copyLetters, name); err != nil {
			a.log.Warn("what was heard of an agent's dead letters is not forgotten; trying again", "agent", name, "error", err)
			continue
		}
		a.peers.mu.Lock()
		delete(a.peers.letters, name)
		delete(a.peers.unkept, name)
		a.peers.mu.Unlock()
	}
}

// needless are the agents that were taken out of the fleet of whose letters something is remembered, and that nobody asks for.
func (p *peers) needless(asked map[string]bool) (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.letters {
		if p.gone[name] && !asked[name] {
			names = append(names, name)
		}
	}
	return names
}

// loadLetters brings back what was kept. A damaged copy is as if nothing had been heard.
func (a *Agent) loadLetters() error {
	return a.copies.List(copyLetters, func(agent string, value []byte) error {
		var list []heardLetters
		if err := json.Unmarshal(value, &list); err != nil {
			a.log.Warn("what was heard of an agent's dead letters cannot be read", "agent", agent, "error", err)
			return nil
		}
		a.peers.mu.Lock()
		a.peers.letters[agent] = list
		a.peers.mu.Unlock()
		return nil
	})
}

// directories are those of the agents of the fleet, as each has announced its own.
func (a *Agent) directories(ctx context.Context) (map[string]string, error) {
	entries, err := a.conn.KV(wnats.Agents).List(ctx, "")
	if err != nil {
		return nil, controlPlaneAway(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		var rec agentRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			return nil, fmt.Errorf("record of an agent, %s: %w", e.Key, err)
		}
		out[rec.Name] = rec.Instance
	}
	return out, nil
}

// noteLetters notes in the record of a job's next generation which directories have had its tasks, and what is known of
// the dead letters in those that are no more: another device has the agent's name, or the agent was taken out of
// the fleet. Replaced are the agents of which the caller says so.
func (a *Agent) noteLetters(ctx context.Context, next *jobRecord, old jobRecord, replaced []string) error {
	now, err := a.directories(ctx)
	if err != nil {
		return err
	}
	next.Dirs = map[string]string{}
	// A directory that was given up may be back.
	lost := slices.DeleteFunc(slices.Clone(old.LostLetters), func(l lostLetters) bool {
		back := l.Dir != "" && now[l.Agent] == l.Dir
		if back {
			next.Dirs[l.Agent] = l.Dir
		}
		return back
	})
	for _, agent := range next.Plan.Agents() {
		next.Dirs[agent] = now[agent]
	}
	dirs := old.dirs()
	for _, agent := range slices.Sorted(maps.Keys(dirs)) {
		was, here := dirs[agent], now[agent]
		if here == "" && !a.removed(agent) {
			here = was // it is away, and has not joined this control plane yet
		}
		if here != "" {
			next.Dirs[agent] = here // what letters it has it keeps, whether it still has tasks or not
		}
		// Records of versions before this one do not name directories.
		if here != was && (was != "" || here == "" || slices.Contains(replaced, agent)) {
			if err := a.mustHear(ctx, agent); err != nil {
				return err
			}
			lost = append(lost, a.lettersLost(*next, agent, was, here))
		}
	}
	next.LostLetters = boundLetters(lost)
	return nil
}

// lettersLost is what is known of the letters in a directory of an agent that now has another one, or none.
func (a *Agent) lettersLost(rec jobRecord, agent, dir, now string) lostLetters {
	l := lostLetters{dir, api.LostLetters{Agent: agent, Generation: uint32(rec.Generation), At: millis(a.now())}}
	heard := "never"
	if h, ok := a.peers.lettersIn(agent, dir, now); ok {
		l.Letters, l.Heard = h.Count[rec.Name], millis(h.AtMS)
		heard = l.Heard.Format(time.RFC3339)
	}
	a.log.Warn("dead letters are lost with a device, as far as they were heard of", "job", rec.Name, "agent", agent, "letters", l.Letters, "heard of", heard)
	return l
}

// dirs are the agents that have had the job's tasks, each with its directory, if that was noted.
func (r jobRecord) dirs() map[string]string {
	out := maps.Clone(r.Dirs)
	if out == nil {
		out = map[string]string{}
	}
	if r.Plan != nil {
		for _, agent := range r.Plan.Agents() {
			out[agent] = r.Dirs[agent]
		}
	}
	return out
}

// boundLetters adds up the oldest entries where there are too many.
func boundLetters(list []lostLetters) []lostLetters {
	for len(list) > maxLostLetters {
		sum := list[1]
		sum.Dir, sum.Agent, sum.Letters = "", "", sum.Letters+list[0].Letters
		if list[0].Heard.IsZero() {
			sum.Heard = time.Time{}
		}
		list = append([]lostLetters{sum}, list[2:]...)
	}
	return list
}

// showLostLetters is what a job's record says, for people and programs.
func (r jobRecord) showLostLetters() (out []api.LostLetters) {
	for _, l := range r.LostLetters {
		out = append(out, l.LostLetters)
	}
	return out
}
