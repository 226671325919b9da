package node

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Pace of the account of what is written to disk: rates are over the last hour, or since the first reading. What is
// written at the start, once, is no rate.
const (
	meterEvery = 10 * time.Second
	meterFor   = 360 // readings
	meterLeast = time.Minute
)

// diskMeter remembers how much had been written when.
type diskMeter struct {
	mu       sync.Mutex
	readings []diskReading // ascending
}

// diskReading is what had been written by a time of the stopwatch.
type diskReading struct {
	at       time.Duration
	all, log int64
}

func (m *diskMeter) add(r diskReading) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.readings = append(m.readings, r); len(m.readings) > meterFor {
		m.readings = m.readings[1:]
	}
}

// perHour is how many bytes are written in an hour, in all and to the input log, from the oldest reading to now; 0 where
// that is too short a time to say.
func (m *diskMeter) perHour(now diskReading) (all, log float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.readings) == 0 || now.at-m.readings[0].at < meterLeast {
		return 0, 0
	}
	from := m.readings[0]
	hours := (now.at - from.at).Hours()
	return float64(now.all-from.all) / hours, float64(now.log-from.log) / hours
}

func (a *Agent) diskReading() diskReading {
	log := a.entries.Written()
	return diskReading{a.stopwatch(), log + a.store.Written() + a.copies.Written() + a.blobs.Written(), log}
}

// meterDisk takes readings until the agent ends.
func (a *Agent) meterDisk() {
	for sleep(a.life, meterEvery) {
		a.disk.add(a.diskReading())
	}
}

// hoursThatFit is for how long the log takes records if nothing of it is given up, as while the hub cannot be
// reached, at the rate at which it is written now. 0: nothing is written.
func hoursThatFit(room int64, perHour float64) float64 {
	if perHour < 1 {
		return 0
	}
	return float64(room) / perHour
}

// unsavedEvery is how often the log repeats that a task's snapshot is not saved: a try comes every 200 ms.
const unsavedEvery = time.Minute

// unsaved remembers whose snapshots could not be saved the last time, and why. The zero value is ready.
type unsaved struct {
	mu    sync.Mutex
	tasks map[string]unsavedPart
}

type unsavedPart struct {
	err  error
	said time.Duration // of the stopwatch, when it was logged
}

// note takes the result of a try, and says whether it is worth a line in the log.
func (u *unsaved) note(task string, err error, now time.Duration) (news bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before, failing := u.tasks[task]
	if err == nil {
		delete(u.tasks, task)
		return failing
	}
	if u.tasks == nil {
		u.tasks = map[string]unsavedPart{}
	}
	said := before.said
	if news = !failing || now-said >= unsavedEvery; news {
		said = now
	}
	u.tasks[task] = unsavedPart{err, said}
	return news
}

// notices tell of it, for the first task of those that run and how many there are.
func (u *unsaved) notices(running []*runner) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.tasks, func(task string, _ unsavedPart) bool {
		return !slices.ContainsFunc(running, func(r *runner) bool { return r.name == task })
	})
	if len(u.tasks) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(u.tasks))
	text := "snapshots: checkpoints wait, since they cannot be saved; it is tried again: " + u.tasks[names[0]].err.Error()
	if n := len(names) - 1; n > 0 {
		text += fmt.Sprintf(" (and of %d more tasks)", n)
	}
	return []string{text}
}
