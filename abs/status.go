package abs

import (
	"fmt"
)

// Status is what is worth showing of a job's checkpoints.
type Status struct {
	Running    *EpochRecord // the epoch in flight
	Missing    []TaskID     // whom it waits for
	Failed     []string     // what tasks reported for it
	Committed  *EpochRecord // the newest manifest
	Replicated *EpochRecord // the newest replicated one
	Counting   *EpochRecord // the newest that counts
	Detached   []string
	Failures   int    // epochs aborted in a row
	Failing    bool   // more than are tolerated
	Holding    string // why no epoch starts now, empty while one runs or starts
	IntervalMs int64  // as stretched
	Stopped    bool
}

// Status returns a view that shares nothing that changes.
func (c *Coordinator) Status() Status {
	s := Status{
		Detached: sorted(c.detached), Failures: c.failures, Failing: c.failures > c.cfg.TolerateFailures,
		IntervalMs: c.intervalMs(), Stopped: c.stopped(),
	}
	if !c.any {
		return s
	}
	for _, v := range c.records {
		s.note(v.Record, c.cfg.Replicate)
	}
	if s.Running == nil {
		s.Holding = c.holds()
		return s
	}
	s.Missing = c.missing(*s.Running, s.Running.Detached)
	for _, id := range s.Missing {
		if a := c.acks[s.Running.Epoch][id]; a.Failed != "" {
			s.Failed = append(s.Failed, fmt.Sprintf("task %q: %s", id, a.Failed))
		}
	}
	return s
}

func (s *Status) note(r EpochRecord, replicate bool) {
	newer := func(of **EpochRecord, applies bool) {
		if applies && (*of == nil || (*of).Epoch < r.Epoch) {
			*of = &r
		}
	}
	newer(&s.Running, r.State == Started)
	newer(&s.Committed, r.Manifest())
	newer(&s.Replicated, r.State == Replicated)
	newer(&s.Counting, r.Counts(replicate))
}

// Needed is the oldest epoch whose record and acknowledgements the next term needs; those before it,
// savepoints excepted, may be deleted.
func (c *Coordinator) Needed() Epoch {
	if !c.any {
		return 0
	}
	oldest := c.oldest()
	for _, e := range c.awaiting() {
		for id, p := range c.records[e].Record.Parts {
			if len(c.packsOf(id, p)) == 0 {
				oldest = min(oldest, p.Epoch) // its ReplicaAck is yet to come, under that epoch
			}
		}
	}
	return oldest
}
