package dataflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// ErrLogLost says that a task's log ends before its newest snapshot: the log, or its end, has been lost,
// and with it what only it knew.
var ErrLogLost = errors.New("the log was lost")

// ErrGap says that a receiver lacks numbers that this task can make again from no snapshot it has.
var ErrGap = errors.New("a gap that cannot be refilled")

// PartError says which part a task could not be restored from. Whoever runs the task knows whether the part is to
// blame, and rejects it in its store: then the next one is taken.
type PartError struct {
	Version Version
	err     error
}

func (e *PartError) Error() string { return e.err.Error() }

// Unwrap is the cause.
func (e *PartError) Unwrap() error { return e.err }

// recordError is an operator's failure on one record of an entry.
type recordError struct {
	index  int
	record []byte
	err    error
}

func (e *recordError) Error() string {
	if e.index == upgradeIndex {
		return fmt.Sprintf("upgrade: %v", e.err)
	}
	if e.index >= timeCalls {
		return e.err.Error()
	}
	return fmt.Sprintf("record %d of the batch: %v", e.index, e.err)
}
func (e *recordError) Unwrap() error { return e.err }

// start brings the task to the newest state it has of this generation. If it has none, it makes the
// generation's initial part.
func (t *Task) start(ctx context.Context) error {
	t.recoverAt = t.env.Stopwatch()
	if err := t.openSpools(); err != nil {
		return err
	}
	parts, err := t.env.Store.Parts(t.spec.Name())
	if err != nil {
		return err
	}
	t.version = t.env.Version
	for _, p := range parts {
		t.version = max(t.version, p.Version)
		t.stats.seen(p.Epoch)
		if p.Generation == t.spec.Generation && !p.Local {
			t.durable = max(t.durable, p.Epoch)
		}
	}
	t.stats.epoch.Store(uint64(t.durable))
	best, err := t.choose(parts, nil)
	if err != nil {
		return err
	}
	if best != nil {
		if err := t.logHas(*best); err != nil {
			return err
		}
		t.started = true
		if err := t.restore(ctx, *best, cmp.Or(t.env.Level, "L1"), cmp.Or(t.env.Reason, "the agent started")); err != nil {
			return err
		}
		return t.reportAgain(*best)
	}
	return t.begin(ctx, t.env.Base)
}

// logHas makes sure that the log leads on from a part.
func (t *Task) logHas(p PartInfo) error {
	id, err := LogOf(p)
	if err != nil {
		return err
	}
	last := t.env.Log.Last()
	switch {
	case id != t.env.Log.ID():
		return fmt.Errorf("task %s: its newest snapshot is of another log than the agent has now: %w", t.spec.Name(), ErrLogLost)
	case p.Pos > last:
		return fmt.Errorf("task %s: its newest snapshot is of log entry %d, and the log ends at %d: %w", t.spec.Name(), p.Pos, last, ErrLogLost)
	}
	return nil
}

// reportAgain reports the part that the task was restored from: an earlier life may have ended between
// its becoming durable and being reported.
func (t *Task) reportAgain(p PartInfo) error {
	if p.Local {
		return nil
	}
	r, err := ReportOf(p)
	if err == nil {
		t.env.Observer.PartDurable(r)
	}
	return err
}

// choose picks the part to restore: the one furthest in the log from which every needed number is made
// again. Nil if there is none.
func (t *Task) choose(parts []PartInfo, needs map[abs.ChannelID]abs.Seq) (*PartInfo, error) {
	of, err := summaries(parts)
	if err != nil {
		return nil, err
	}
	d := abs.Choose(of, abs.Ask{Generation: t.spec.Generation, Needs: needs, ReplicaTried: true})
	for i, p := range parts {
		if d.Kind == abs.RestorePart && uint64(p.Version) == d.Version {
			return &parts[i], nil
		}
	}
	return nil, nil
}

func summaries(parts []PartInfo) ([]abs.PartSummary, error) {
	var of []abs.PartSummary
	for _, p := range parts {
		r, err := ReportOf(p)
		if err != nil {
			return nil, err
		}
		of = append(of, abs.PartSummary{Version: uint64(p.Version), Generation: p.Generation, Pos: p.Pos, Cut: r.Cut})
	}
	return of, nil
}

// begin starts the task in a generation that it has no part of: from what an older generation has
// left, or from nothing. Numbers go on. A source goes on behind the older part in its log: nobody rolls
// it back, and what it has logged since then counts: if it was further on than the part, it makes again
// what it has made, under the same numbers and with the versions of its operators that made it, and its sinks hold back
// what they have handed over; the versions of the plan come into their own behind that. A streamed
// task's order belongs to the old channels; it takes from the log only what sinks have handed over.
func (t *Task) begin(ctx context.Context, old *PartInfo) error {
	meta := taskMeta{}
	var state StateReader
	if old != nil {
		var err error
		if meta, err = decodeMeta(*old); err != nil {
			return err
		}
		meta.Upgraded.PlanDue = t.spec.Source && t.env.BaseHere && !t.env.RolledBack && len(t.spec.Ops) > 0
		if meta.Upgraded.Older, err = t.madeMore(*old, meta); err != nil {
			return err
		}
		meta.Aligner, meta.Draining, meta.Final = abs.State{}, false, false
		meta.tellAgain()
		if !t.env.BaseHere {
			meta.forgetSent()
		}
		state = t.stateReader(old.Version)
	}
	if err := t.load(ctx, meta, state, true); err != nil {
		if old != nil {
			err = &PartError{old.Version, err}
		}
		return err
	}
	t.aligner.Step(abs.Event{Kind: abs.OnFloor, Epoch: t.env.Floor})
	for _, c := range t.inbox.chans {
		if c.ended {
			t.aligner.Step(abs.Event{Kind: abs.OnEnd, Channel: c.ID})
		}
	}
	t.loadBase, t.rollBack = true, t.env.RolledBack && !t.spec.Source
	t.pos = t.env.Log.Last()
	look := t.pos
	if old != nil && t.env.BaseHere {
		look = old.Pos
		if t.spec.Source {
			t.pos = old.Pos
		}
	}
	if err := t.readLog(look, t.pos); err != nil {
		return err
	}
	t.lastSource.Final = 0 // of the generation that is over
	if err := t.forgetReplays(old); err != nil {
		return err
	}
	t.fullNext = true
	if err := t.freeze(t.env.Floor, nil, false); err != nil {
		return err
	}
	t.endDue = !t.ended && t.hasEnded()
	t.liveSince = t.env.Clock()
	t.begun(old)
	return nil
}

// madeMore says whether the log holds, behind a part of an older generation, what operators have processed. Of that
// generation itself there is nothing behind its final barrier.
func (t *Task) madeMore(old PartInfo, meta taskMeta) (more bool, err error) {
	if !meta.Upgraded.PlanDue {
		return false, nil
	}
	look, err := t.env.Log.Follow(old.Pos)
	if err != nil {
		return false, err
	}
	defer look.Close()
	for !more {
		e, ok, err := look.Next()
		if err != nil || !ok {
			return false, err
		}
		switch e.Kind {
		case EntryIngest, EntryMarked, EntryMarks, EntryReplay, EntryEnd:
			more = true
		case EntryTick:
			more = !meta.Final
		}
	}
	return true, nil
}

// begun reports how the generation began, if that was a way back from something.
func (t *Task) begun(old *PartInfo) {
	if t.env.Level == "" {
		return
	}
	t.recovery.Level, t.recovery.Reason = t.env.Level, t.env.Reason
	if old != nil {
		t.recovery.Epoch, t.recovery.Version = old.Epoch, old.Version
		t.recovery.Unknown = t.rolledBackBlind()
	}
	t.replaying, t.recovery.Stamp = true, t.stamp
	t.env.Observer.Recovered(t.recovery)
	t.stats.setRecovery(t.recovery)
	if t.replayEnd <= t.pos {
		t.caughtUp()
	}
}

// rolledBackBlind says that the task's sinks may have handed over more than its part knows, and that the
// log that could tell is not here.
func (t *Task) rolledBackBlind() bool {
	return !t.env.BaseHere && len(t.chain.sinks) > 0
}

func (t *Task) stateReader(v Version) StateReader {
	return func(visit func(Change) error) error { return t.env.Store.Load(t.spec.Name(), v, visit) }
}

// restore brings the task to one of its parts; from there it reads its log again.
func (t *Task) restore(ctx context.Context, p PartInfo, level, reason string) error {
	t.recoverAt = t.env.Stopwatch()
	meta, err := decodeMeta(p)
	if err != nil {
		return err
	}
	if err := t.load(ctx, meta, t.stateReader(p.Version), false); err != nil {
		return &PartError{p.Version, fmt.Errorf("restore snapshot %d of %s: %w", p.Version, p.Epoch, err)}
	}
	t.pos = p.Pos
	t.loadBase = false
	t.fullNext = p.Version != t.version || t.saving != nil
	t.recovery = Recovery{Level: level, Reason: reason, Epoch: p.Epoch, Version: p.Version, Stamp: t.stamp}
	for _, o := range t.outs {
		o.heldBack, o.compared = 0, 0
	}
	for _, s := range t.chain.sinks {
		s.heldBack, s.compared = 0, 0
	}
	if err := t.readLog(p.Pos, p.Pos); err != nil {
		return err
	}
	t.replaying = true
	t.env.Observer.Recovered(t.recovery)
	t.stats.setRecovery(t.recovery)
	t.endDue = !t.ended && t.hasEnded()
	return nil
}

// load makes the operators and sets every counter to what meta says. older: the state is of an older
// generation.
func (t *Task) load(ctx context.Context, meta taskMeta, state StateReader, older bool) error {
	t.still = false
	t.stats.quiet.Store(0)
	if err := t.chain.close(); err != nil {
		return err
	}
	t.loadVersions(meta.Upgraded, older && !t.env.RolledBack)
	if err := t.chain.open(ctx, t.env.Operators, state, older); err != nil {
		return err
	}
	var inputs []abs.Input
	for _, c := range t.inbox.chans {
		inputs = append(inputs, abs.Input{ID: c.ID, Agent: c.Agent, Back: c.Back})
		m, known := meta.In[c.ID]
		if !known || older && c.Anew {
			m.Next, m.Sum, m.Ended = 1, 0, false
		}
		c.seek(m.Next, m.Sum)
		c.ended = m.Ended
		c.time = inTime{timeOr(m.Watermark), m.Idle}
	}
	if err := t.loadLoop(state); err != nil {
		return err
	}
	t.inbox.restart()
	var err error
	if t.aligner, err = abs.RestoreAligner(inputs, t.spec.Mode, meta.Aligner); err != nil {
		return err
	}
	for _, o := range t.outs {
		m := meta.Out[o.ID]
		if older && o.Anew {
			m = outMeta{}
		}
		o.seek(m.Sent, m.Sum, meta.Epoch)
		o.reserved = max(o.reserved, m.Reserved)
		if c := t.inbox.byIndex[o.Index]; c != nil { // the receiver is the task itself: it has gone back too
			o.have, o.checkAt = c.next, 0
		}
	}
	t.stamp, t.epoch, t.cursor, t.ended = meta.Stamp, meta.Epoch, meta.Cursor, meta.Ended
	t.final = meta.Final
	if t.marks, err = decodeMarks(meta.Marks); err != nil {
		return fmt.Errorf("what the source of %s remembers: %w", t.spec.Name(), err)
	}
	t.lastSource = SourceState{Cursor: meta.Cursor, Marks: maps.Clone(t.marks), Ended: meta.Ended}
	if meta.Final {
		t.lastSource.Final = meta.Epoch
	}
	t.watermark, t.told, t.toldIdle = timeOr(meta.Watermark), timeOr(meta.Told), meta.ToldIdle
	t.source = sourceTime{}
	if meta.Source != nil {
		t.source = *meta.Source
	}
	t.drained, t.endDue, t.callsAt, t.calls = meta.Drained, false, 0, 0
	t.entry, t.parts, t.open = nil, nil, nil
	t.lastEpoch, t.draining, t.withheld = 0, meta.Draining, nil
	t.unsure, t.dead, t.behind = unsure{}, nil, ""
	t.letterMarks, t.heldLetters = nil, nil
	clear(t.replayed)
	if t.saving != nil {
		t.parts = []*pendingPart{t.saving}
	}
	if err := t.loadDedupe(state); err != nil {
		return err
	}
	t.loadSinks = meta.Sinks
	t.loadBoxes, err = loadOutboxes(state, meta.Sinks)
	return err
}

func (t *Task) loadDedupe(state StateReader) error {
	t.dedupe = nil
	if t.spec.DedupeWindow == 0 {
		return nil
	}
	t.dedupe = newDedupe(t.spec.DedupeWindow)
	if state == nil {
		return nil
	}
	return state(func(c Change) error {
		if c.Space == SpaceDedupe {
			t.dedupe.restore(c.Key, c.Value)
		}
		return nil
	})
}

// readLog looks through the task's log after a position for what must be known before it is replayed,
// and opens it for replay after pos.
func (t *Task) readLog(after, pos abs.Position) error {
	look, err := t.env.Log.Follow(after)
	if err != nil {
		return err
	}
	t.replayEnd = pos
	t.cuts = map[abs.Position][]cut{}
	var backlog uint64
	for {
		e, ok, err := look.Next()
		if err != nil || !ok {
			look.Close()
			if err != nil {
				return err
			}
			break
		}
		t.replayEnd = e.Pos
		n, err := t.preview(e)
		if err != nil {
			look.Close()
			return fmt.Errorf("log entry %d: %w", e.Pos, err)
		}
		backlog += n
	}
	if t.upgraded.PlanDue && !t.planLogged { // once, and before anything of the generation is logged
		if _, err := t.logPlan(); err != nil {
			return err
		}
	}
	t.stats.looked.Store(true)
	t.stats.backlog.Store(backlog)
	t.stats.ingested.Store(0)
	if err := t.seekSinks(); err != nil {
		return err
	}
	if t.env.Input != nil {
		t.env.Input.Reread()
	}
	if t.follow != nil {
		t.follow.Close()
	}
	t.follow, err = t.env.Log.Follow(pos)
	return err
}

// preview takes from an entry what replay must know in advance, and returns its number of records.
func (t *Task) preview(e Entry) (records uint64, err error) {
	switch e.Kind {
	case EntryIngest, EntryMarked, EntryMarks:
		in, err := ingestOf(e)
		if err == nil {
			err = applyMarks(t.lastSource.Marks, in.marks)
		}
		if len(in.cursor) > 0 {
			t.lastSource.Cursor = in.cursor
		}
		t.lastSource.Final = 0
		return uint64(in.count), err
	case EntryEnd:
		t.lastSource.Ended = true
		return 0, nil
	case EntryBarrier:
		b, err := decodeBarrier(e.Data)
		t.stats.seen(b.epoch)
		if t.lastSource.Final = 0; b.final {
			t.lastSource.Final = b.epoch
		}
		return 0, err
	case EntryHanded:
		h, err := decodeHanded(e.Data)
		if p := t.sinkOf(h.sink); err == nil && p != nil {
			if h.number > p.handed {
				p.handed, p.handedSum = h.number, h.sum
			}
			p.logged = max(p.logged, h.number)
		}
		return 0, err
	case EntryCut:
		c, err := decodeCut(e.Data)
		t.stats.seen(c.epoch)
		if err == nil {
			t.cuts[c.pos] = append(t.cuts[c.pos], cut{c.epoch, e.Pos})
		}
		return 0, err
	case EntrySink:
		s, err := decodeSink(e.Data)
		if p := t.sinkOf(s.sink); err == nil && p != nil {
			p.resume.found(s.sent, s.received, e.Pos)
		}
		return 0, err
	case EntryReserve:
		r, err := decodeReserve(e.Data)
		if o := t.outlet(r.channel); err == nil && o != nil && t.started { // else its channels are those of an older plan
			o.reserved = max(o.reserved, r.number)
		}
		return 0, err
	case EntryReplay:
		l, err := decodeReplay(e.Data)
		t.replayed[l.Key] = e.Pos
		return 0, err
	case EntryUpgrade:
		u, err := decodeUpgrade(e.Data)
		t.planLogged = t.planLogged || u.generation == t.spec.Generation
		if err == nil && (u.generation == t.spec.Generation || t.env.RolledBack) {
			t.upgradeLogged = max(t.upgradeLogged, u.Number)
		}
		return 0, err
	case EntryGiveUp:
		g, err := decodeGiveUp(e.Data)
		if err == nil {
			t.giveUp(e.Pos, g)
		}
		return 0, err
	}
	return 0, nil
}

// sinkOf finds the sink that the log calls by an index: that of the generation of the part being
// restored. Nil if the plan has it no more.
func (t *Task) sinkOf(index int) *sinkPort {
	for name, m := range t.loadSinks {
		if m.Index != index {
			continue
		}
		for _, p := range t.chain.sinks {
			if p.name == name {
				return p
			}
		}
		return nil
	}
	return nil
}

// givenUp is a record that the entry at a position gives up. Without a reason it is skipped, else kept
// as a dead letter.
type givenUp struct {
	at     abs.Position
	reason string
}

func (t *Task) giveUp(at abs.Position, g giveUpEntry) {
	if t.giveUps[g.pos] == nil {
		t.giveUps[g.pos] = map[int]givenUp{}
	}
	t.giveUps[g.pos][g.index] = givenUp{at, g.reason}
}

// seekSinks sets the sinks' ports once the log has said what was handed over, and lets outputs go
// without credit as far as they may have been handed over before.
func (t *Task) seekSinks() error {
	for _, p := range t.chain.sinks {
		m, known := t.loadSinks[p.name]
		if !known {
			m.Next = 1
		}
		if t.rollBack {
			t.recovery.Repeated += p.rollBack(&m)
		}
		if m.Handed > p.handed {
			p.handed, p.handedSum = m.Handed, m.HandedSum
		}
		p.logged = max(p.logged, m.Handed)
		p.resume.found(m.Sent, m.Received, 0)
		p.resume.begin()
		p.taken = max(p.taken, p.handed)
		box := t.loadBoxes[p.name]
		if box == nil {
			box = &outbox{records: m.Outbox}
		}
		before := m.Sum
		if len(box.records) > 0 {
			before = m.HandedSum
		}
		if t.loadBase {
			box.causes = nil
		}
		if err := p.seek(m.Next, m.Sum, box.records, before, box.causes); err != nil {
			return err
		}
		if p.held != nil {
			p.held.frozen, p.held.chunks = m.Next-1, box.chunks
		}
	}
	t.loadSinks, t.loadBoxes, t.rollBack = nil, nil, false
	for _, o := range t.outs {
		o.free = max(o.free, o.reserved)
		o.reserving = max(o.reserving, o.reserved)
	}
	return nil
}

// rewind makes a channel's items again from a number on, for a receiver that has lost them.
func (t *Task) rewind(ctx context.Context, o *outlet, from abs.Seq) error {
	parts, err := t.env.Store.Parts(t.spec.Name())
	if err != nil {
		return err
	}
	best, err := t.choose(parts, map[abs.ChannelID]abs.Seq{o.ID: from})
	if err != nil {
		return err
	}
	if best == nil && t.tick < o.lackTick+gapTicks {
		return nil
	}
	if best == nil {
		return fmt.Errorf("channel %s: the receiver lacks number %d and later ones: %w: no snapshot of %s is from before it", o.ID, from, ErrGap, t.spec.Name())
	}
	return t.restore(ctx, *best, LevelRewind, "the receiver of "+string(o.ID)+" lacks numbers from "+strconv.FormatUint(uint64(from), 10)+" on")
}

// failed decides what becomes of a failed step. An operator's failure restores the task to just
// before it; the entry's records are then taken one by one, and the one that fails again is given
// up, by an entry of the log, so that replay gives up the same. One that fails for the first time may
// have been processed before, and what it led to handed over: the failure may be the host's.
func (t *Task) failed(ctx context.Context, cause error) (bool, error) {
	var behind *behindError
	if errors.As(cause, &behind) {
		return t.overtake(ctx, behind.err)
	}
	var guest *GuestError
	if !errors.As(cause, &guest) {
		return false, cause
	}
	t.stats.restarts.Add(1)
	t.stats.setUpgraded(t.upgraded)
	var rec *recordError
	switch {
	case !errors.As(cause, &rec):
		t.suspect = suspect{t.pos, anyRecord}
	case t.suspect == suspect{t.pos, anyRecord} && rec.index < timeCalls, t.suspect == suspect{t.pos, rec.index}:
		t.suspect = suspect{t.pos, noRecord}
		if err := t.logGiveUp(rec, guest); err != nil {
			return false, err
		}
	default:
		t.suspect = suspect{t.pos, rec.index}
	}
	parts, err := t.env.Store.Parts(t.spec.Name())
	if err != nil {
		return false, err
	}
	best, err := t.choose(parts, nil)
	if err != nil {
		return false, err
	}
	if best == nil {
		return false, fmt.Errorf("before the first snapshot: %w", cause)
	}
	return true, t.restore(ctx, *best, "L0", cause.Error())
}

// suspect is the record of an entry on which an operator has failed.
type suspect struct {
	entry abs.Position
	index int
}

const (
	anyRecord = -1 // which of the batch is not known
	noRecord  = -2 // the one that failed is given up
)

// behindError says that what the task replays is not to be had any more, or need not be.
type behindError struct{ err error }

func (e *behindError) Error() string { return e.err.Error() }

// overtake restores the task to its newest part, if that is further on than the task is. Replay of an
// older one was overtaken: the newer part has become durable meanwhile, or counts even, so that log and
// stream need not have what lies before it. (A task that replays to serve a receiver is overtaken only
// by a checkpoint that counts: then the receiver's own part is beyond what it serves.)
func (t *Task) overtake(ctx context.Context, cause error) (bool, error) {
	parts, err := t.env.Store.Parts(t.spec.Name())
	if err != nil {
		return false, err
	}
	t.behind = ""
	best, err := t.choose(parts, nil)
	if err != nil {
		return false, err
	}
	if best == nil || best.Pos <= t.pos {
		return false, cause
	}
	return true, t.restore(ctx, *best, t.recovery.Level, t.recovery.Reason+"; "+cause.Error())
}

// logGiveUp gives a record up according to the operator's policy.
func (t *Task) logGiveUp(rec *recordError, guest *GuestError) error {
	g := giveUpEntry{t.pos, rec.index, rec.Error()}
	if rec.index == upgradeIndex {
		return t.refuse(rec)
	}
	for _, op := range t.chain.spec.Ops {
		if op.Operator.Name == guest.Operator && op.Operator.Digest != "" {
			g.reason += " (" + op.Operator.Digest + ")"
		}
		switch {
		case op.Operator.Name != guest.Operator:
		case op.Policy == PolicyFail && t.target.Trial:
		case op.Policy == PolicyFail:
			return fmt.Errorf("operator %s failed, and its policy is to stop: %s", guest.Operator, guest.Reason)
		case op.Policy == PolicySkip:
			g.reason = ""
		}
	}
	pos, err := t.env.Log.Append(EntryGiveUp, g.encode())
	if err != nil {
		return err
	}
	t.stats.givenUp.Add(1)
	t.giveUp(pos, g)
	return nil
}

// unsure is from which entry on what the task has made follows from another one that gave up a record,
// and where the last of those is: until the log is synced to there, it is as if it were not synced to here.
type unsure struct{ from, until abs.Position }

func (u *unsure) add(entry, giveUp abs.Position) {
	if u.until == 0 {
		u.from = entry
	}
	u.until = max(u.until, giveUp)
}

// limit says up to where outputs may be handed over if the log is synced to a position.
func (u *unsure) limit(synced abs.Position) abs.Position {
	if synced >= u.until {
		*u = unsure{}
		return synced
	}
	return min(synced, u.from-1)
}

// deadLetter is a record given up that is not kept yet.
type deadLetter struct {
	cause  abs.Position
	key    string
	record []byte
	reason string
}

// setAside takes a record that is given up, again in every replay: the process may have ended before
// it was kept.
func (t *Task) setAside(pos abs.Position, key string, g givenUp, record []byte) {
	t.unsure.add(pos, g.at)
	if g.reason == "" {
		return
	}
	t.dead = append(t.dead, deadLetter{
		cause: pos, key: key, record: append([]byte(nil), record...), reason: g.reason,
	})
}

// bury keeps the dead letters that may be handed over.
func (t *Task) bury(synced abs.Position) error {
	for len(t.dead) > 0 && t.dead[0].cause <= synced {
		d := t.dead[0]
		r, _, err := frame.Next(d.record)
		if err != nil {
			return err
		}
		if err := t.env.Dead.Put(t.spec.Name(), d.key, r, d.reason); err != nil {
			return err
		}
		t.dead = t.dead[1:]
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
