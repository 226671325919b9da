package dataflow

import (
	"context"
	"fmt"

	"github.com/weir-stream/weir/abs"
)

// A snapshot that a task takes alone bounds how much of its log a restart replays when no checkpoint comes for
// long: the agent is out of reach, or an agent in the middle is. It is the task's own and part of no checkpoint.
// Log and parts are given up to counting checkpoints only, so that a rewind, and a generation that began
// without this agent, find what they need.
const (
	// aloneBytes of entries are between two such snapshots at least: some 80,000 records of 200 bytes, which
	// are replayed in a second or so.
	aloneBytes = 16 << 20
	// aloneTicks is how long after the last snapshot one may be taken: more than checkpoints usually take.
	aloneTicks = 300
)

// freezeAlone takes a snapshot if it is time for one. What the task has done may lie behind its position in
// the log: the snapshot is durable only after all that has been logged by now.
func (t *Task) freezeAlone() error {
	b := t.env.Bounds.orDefault()
	if t.sinceFreeze < b.Alone || t.tick < t.frozenTick+uint64(b.AloneTicks) || !t.started || t.replaying || t.entry != nil ||
		len(t.parts) > 0 || t.saving != nil || t.final || t.ended || t.draining || t.halted != 0 || t.loops() || t.aligner.Pending() != 0 {
		return nil
	}
	if err := t.take(t.epoch, nil, false, true); err != nil {
		return fmt.Errorf("snapshot between checkpoints: %w", err)
	}
	p := t.parts[len(t.parts)-1]
	p.upto = max(p.upto, t.env.Log.Last())
	return nil
}

// forward ends a rewind that has given its receivers what they lacked: the task goes on from its newest snapshot,
// if its receivers have all that was made up to there, or its spools do.
func (t *Task) forward(ctx context.Context) error {
	if !t.replaying || t.recovery.Level != LevelRewind || t.tick == t.forwardTick {
		return nil
	}
	t.forwardTick = t.tick
	for _, o := range t.outs {
		if !o.spool.holds(o.have) && o.have < o.next {
			return nil // the usual case, without looking at parts
		}
	}
	parts, err := t.env.Store.Parts(t.spec.Name())
	if err != nil {
		return err
	}
	best, err := t.choose(parts, nil)
	if err != nil || best == nil || best.Pos <= t.pos {
		return err
	}
	r, err := ReportOf(*best)
	if err != nil {
		return err
	}
	for _, o := range t.outs {
		if !o.served(r.Cut.Sent[o.ID]) {
			return nil
		}
	}
	return t.restore(ctx, *best, LevelForward, "its receivers have what they lacked, and its spools what follows")
}

// served says whether the receiver has all up to a number, or the spool has what it lacks of it.
func (o *outlet) served(sent abs.Seq) bool {
	return o.granted && (o.have > sent || o.spool.holds(o.have) && o.spool.last >= sent)
}
