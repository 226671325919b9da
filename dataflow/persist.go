package dataflow

import (
	"github.com/weir-stream/weir/abs"
)

// freeze takes the task's state at a barrier, in memory. What was frozen is persisted in the
// background; it stays part of the chain of versions even if its epoch is aborted.
// A loop head's part stays open until its loop log is complete.
func (t *Task) freeze(epoch abs.Epoch, aligned []abs.ChannelID, logs bool) error {
	if t.started && epoch <= t.durable || t.saving != nil && t.saving.info.Epoch == epoch {
		return nil // replay past a part that is durable already: it holds the same
	}
	if len(t.parts) >= pendingParts {
		t.env.Observer.PartSkipped(epoch, "earlier snapshots of the task are not durable yet")
		return nil
	}
	return t.take(epoch, aligned, logs, false)
}

// take freezes the task: at a barrier, or alone between checkpoints.
func (t *Task) take(epoch abs.Epoch, aligned []abs.ChannelID, logs, alone bool) error {
	from := t.env.Stopwatch()
	changes, err := t.chain.freeze(t.fullNext)
	if err != nil {
		return err
	}
	for _, p := range t.chain.sinks {
		changes = append(changes, p.freeze(t.fullNext)...)
	}
	if t.dedupe != nil {
		changes = append(changes, t.dedupe.freeze(t.fullNext)...)
	}
	meta := t.meta()
	meta.Aligned = aligned
	info := PartInfo{
		Task: t.spec.Name(), Generation: t.spec.Generation, Epoch: epoch, Pos: t.pos,
		Full: t.fullNext, Local: alone,
	}
	t.sinceFreeze, t.frozenTick = 0, t.tick
	now := t.env.Stopwatch()
	r := PartReport{Info: info, Cut: t.cut(), Aligned: aligned, Ended: t.ended, FreezeMS: ms(now - from)}
	if t.alignStart != 0 {
		r.AlignMS = ms(from - t.alignStart)
	}
	t.fullNext, t.started = false, true
	if t.still {
		t.stats.quiet.Store(uint64(epoch))
	}
	t.still = !alone
	p := &pendingPart{info: info, meta: meta, changes: changes, report: r, frozen: now, loop: t.inbox.ahead()}
	p.ahead = len(p.loop)
	t.parts = append(t.parts, p)
	if t.open = p; !logs {
		t.seal(p)
	}
	return nil
}

// persist hands the oldest frozen part to the store once everything before its cut is out: logged,
// and in the downstream stream or with the receiver. What sinks have not confirmed is in the part.
func (t *Task) persist(synced abs.Position) {
	if t.saving != nil || len(t.parts) == 0 || t.tick < t.retryAt {
		return
	}
	p := t.parts[0]
	if p == t.open || max(p.info.Pos, p.upto) > synced || !t.handedOver(p.report.Cut) {
		return
	}
	p.info.Version = t.version + 1
	t.saving = p
	t.env.Save(p.info, p.changes, func(err error) {
		t.mail.post(func() { t.saved(p, err) })
	})
}

func (t *Task) handedOver(cut abs.Cut) bool {
	for _, o := range t.outs {
		if !o.out(cut.Sent[o.ID]) {
			return false
		}
	}
	return true
}

// saved takes the outcome. A failed save is tried again, since its changes are in no other part; under
// another version, if an earlier life of the task has saved one meanwhile.
func (t *Task) saved(p *pendingPart, err error) {
	t.saving = nil
	t.stats.setSaveError(err)
	if err != nil {
		t.retryAt = t.tick + retryTicks
		t.seekVersion()
		return
	}
	if len(t.parts) > 0 && t.parts[0] == p {
		t.parts = t.parts[1:]
	}
	t.version = p.info.Version
	if p.info.Local {
		return
	}
	t.durable = max(t.durable, p.info.Epoch)
	if t.replaying && t.recovery.Level != LevelRewind && p.info.Pos > t.pos {
		t.behind = "a part further on has become durable"
	}
	for _, c := range t.inbox.chans {
		c.refilled = 0 // the part's loop log may hold what a replay waits for
	}
	p.report.Info = p.info
	p.report.PersistMS = ms(t.env.Stopwatch() - p.frozen)
	t.stats.epoch.Store(uint64(t.durable))
	t.env.Observer.PartDurable(p.report)
}

// seekVersion looks which versions have been saved. If it cannot, the next try fails like the last one.
func (t *Task) seekVersion() {
	parts, err := t.env.Store.Parts(t.spec.Name())
	if err != nil {
		return
	}
	for _, p := range parts {
		t.version = max(t.version, p.Version)
	}
}
