package node

import (
	"sync"
	"time"
)

// Pace of the account of what is written to disk: rates are over the last hour, or since the start.
const (
	meterEvery = 10 * time.Second
	meterFor   = 360 // readings
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

// perHour is how many bytes are written in an hour, in all and to the input log, from the oldest reading to now.
func (m *diskMeter) perHour(now diskReading) (all, log float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var from diskReading
	if len(m.readings) > 0 {
		from = m.readings[0]
	}
	hours := (now.at - from.at).Hours()
	if hours <= 0 {
		return 0, 0
	}
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
