package node

import (
	"sync"
	"time"
)

// steadyRate is how fast a steady clock goes while the wall clock is behind it, in tenths: timers are late by a tenth
// then, and after an hour back both agree again in ten.
const steadyRate = 9

// steadyClock is a clock for what a task logs. It is the wall clock, except that it never goes back, nor stands still
// while that one is behind what it has said, or behind what the task's log says: a task's own clock, which is that of
// its log, cannot go back, so that else its windows and timers would wait until the wall clock has come to that time
// again. What a task computes follows from its log all the same.
type steadyClock struct {
	wall      func() int64 // milliseconds since 1970
	stopwatch func() time.Duration

	mu     sync.Mutex
	last   int64 // the highest that was said, or is in the log
	behind bool  // the wall clock is; the rest counts then
	from   int64
	at     time.Duration // of the stopwatch, when the clock said from
}

// now is the time in milliseconds since 1970.
func (c *steadyClock) now() int64 {
	wall, watch := c.wall(), c.stopwatch()
	c.mu.Lock()
	defer c.mu.Unlock()
	if wall >= c.last {
		c.last, c.behind = wall, false
		return wall
	}
	if !c.behind {
		c.behind, c.from, c.at = true, c.last, watch
	}
	c.last = max(c.last, c.from+(watch-c.at).Milliseconds()*steadyRate/10)
	return c.last
}

// raise tells the clock of a time that is in the task's log.
func (c *steadyClock) raise(stamp int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stamp > c.last {
		c.last, c.behind = stamp, false
	}
}

// steadyClocks are those of the agent's tasks, by name: they outlast a generation. The zero value is ready.
type steadyClocks struct {
	mu     sync.Mutex
	clocks map[string]*steadyClock
}

// of is the clock of a task.
func (s *steadyClocks) of(a *Agent, task string) *steadyClock {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clocks == nil {
		s.clocks = map[string]*steadyClock{}
	}
	c := s.clocks[task]
	if c == nil {
		c = &steadyClock{wall: a.now, stopwatch: a.stopwatch}
		s.clocks[task] = c
	}
	return c
}

// forget drops the clock of a task whose job was deleted.
func (s *steadyClocks) forget(task string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clocks, task)
}
