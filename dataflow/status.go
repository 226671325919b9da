package dataflow

import (
	"cmp"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/weir-stream/weir/abs"
)

// stats are read from other goroutines.
type stats struct {
	in, repeats, givenUp, restarts atomic.Uint64
	backlog, ingested, epoch       atomic.Uint64
	newest, quiet                  atomic.Uint64
	looked, resting                atomic.Bool

	grantBytes int // consumed since the last grant; the task's own

	mu        sync.Mutex
	state     string
	waiting   []abs.ChannelID
	out       uint64
	held      uint64
	spooled   uint64
	pos       abs.Position
	handed    abs.Position
	unhanded  uint64
	sinks     []SinkStatus
	time      TimeStatus
	recovery  Recovery
	recovered bool
	saveError string
	counters  Counters
	upgraded  Upgraded
	ended     bool
}

// Counters are protocol events that are expected and counted.
type Counters struct {
	Duplicates uint64 // frames that the receiver had
	Jumps      uint64 // frames beyond the next number, dropped
	Stale      uint64 // frames of another generation or incarnation
}

// Status is a task's state as others see it.
type Status struct {
	State      string // "starting", "replaying", "running", "aligning", "stalled", "drained"
	RecordsIn  uint64 // since the process started, replay included
	RecordsOut uint64 // likewise, on all outputs
	Repeats    uint64 // dropped by id
	GivenUp    uint64
	Restarts   uint64 // by L0
	Held       uint64 // records taken from the stream and not processed
	Backlog    uint64 // records that its log held after its snapshot when the task was restored
	Ingested   uint64 // records processed since then
	Unhanded   uint64 // records that sinks have not confirmed
	Spooled    uint64 // items that wait in spools
	Sinks      []SinkStatus
	Time       TimeStatus
	Epoch      abs.Epoch
	Pos        abs.Position
	// HandedOver is the log position up to which receivers have consumed what came of it.
	HandedOver abs.Position
	Waiting    []abs.ChannelID // channels that hold up alignment
	Recovery   *Recovery
	SaveError  string
	Counters   Counters
	// Upgraded is as of the last tick, but that there was an upgrade shows at once.
	Upgraded Upgraded
	Ended    bool // all its input has ended, as of the last tick
}

// TimeStatus is how far event time has come in a task.
type TimeStatus struct {
	Watermark int64 // [NoTime] before the first, [EndOfTime] at the end
	Idle      bool  // it does not hold back its receivers
	// Ahead is how many records of the source were too far ahead of the clock to move the watermark, since the job
	// began.
	Ahead uint64
}

// SinkStatus is a sink's part of a task's state. Early is how many records were let go before a checkpoint
// that contains them counted.
type SinkStatus struct{ Unhanded, Early uint64 }

// seen notes that there is, or was, an epoch of that number. Only the task's goroutine calls it.
func (s *stats) seen(e abs.Epoch) { s.newest.Store(max(s.newest.Load(), uint64(e))) }

// NewestEpoch is the highest epoch that the task's parts and, if it is a source, its log know of;
// false until they have been looked through.
func (t *Task) NewestEpoch() (abs.Epoch, bool) {
	return abs.Epoch(t.stats.newest.Load()), t.stats.looked.Load()
}

// Quiet is the epoch of the newest part if nothing of the task has changed since the one before it: a part of
// a later epoch would hold the same, and what the first of the two has made needless the second has
// cleared away. 0: something has changed, or there are no such parts. What the task has not taken yet, from its log or its channels, is no change.
func (t *Task) Quiet() abs.Epoch { return abs.Epoch(t.stats.quiet.Load()) }

// stir notes that the task changes.
func (t *Task) stir() {
	t.still = false
	if t.stats.quiet.Load() != 0 {
		t.stats.quiet.Store(0)
		t.env.Observer.Stirred()
	}
}

func (s *stats) sinceGrant(limit int) bool {
	if s.grantBytes < limit {
		return false
	}
	s.grantBytes = 0
	return true
}

func (s *stats) setRecovery(r Recovery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recovery, s.recovered = r, true
}

func (s *stats) setUpgraded(u Upgraded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reached(u)
}

// reached notes how far the task is with its upgrades. A task that replays is where it was before, and so on until it
// is further: an operator that fails on most records lets it hardly do anything else, and its trial is to hear of that.
func (s *stats) reached(u Upgraded) {
	had := s.upgraded
	if c := cmp.Or(cmp.Compare(u.Number, had.Number), cmp.Compare(u.Since.Records, had.Since.Records), cmp.Compare(u.Since.Failed, had.Since.Failed)); c >= 0 {
		s.upgraded = u
	}
}

func (s *stats) setSaveError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saveError = ""
	if err != nil {
		s.saveError = err.Error()
	}
}

// Resting says whether, as of the last tick, the task has nothing to do but to wait: nothing is on its way
// to it, from it, or to its disk.
func (t *Task) Resting() bool { return t.Quiet() != 0 && t.stats.resting.Load() }

func (t *Task) rests() bool {
	if t.replaying || t.entry != nil || len(t.records) > 0 || len(t.parts) > 0 || t.saving != nil || t.unknown() || t.inbox.bytes > 0 || t.aligner.Pending() != 0 {
		return false
	}
	for _, c := range t.inbox.chans {
		if c.gap || c.dropped {
			return false
		}
	}
	for _, o := range t.outs {
		if len(o.window) > 0 || o.spooling() {
			return false
		}
	}
	for _, p := range t.chain.sinks {
		if len(p.items) > 0 {
			return false
		}
	}
	return true
}

// status publishes what only the task's goroutine knows.
func (t *Task) status() {
	var out, held uint64
	for _, o := range t.outs {
		out += o.made
	}
	for _, p := range t.chain.sinks {
		out += p.made
	}
	for _, c := range t.inbox.chans {
		held += uint64(c.tail - c.next)
	}
	s := &t.stats
	s.resting.Store(t.rests())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.out, s.held, s.pos, s.ended = t.state(), out, held, t.pos, t.ended
	s.time = TimeStatus{t.watermark, t.toldIdle, t.source.Ahead}
	s.waiting = t.aligner.Waiting()
	s.handed = t.handed()
	s.unhanded, s.spooled = 0, 0
	for _, o := range t.outs {
		s.spooled += o.waiting()
	}
	s.sinks = make([]SinkStatus, len(t.chain.sinks))
	for i, p := range t.chain.sinks {
		s.unhanded += uint64(len(p.items))
		s.sinks[i].Unhanded = uint64(len(p.items))
		if p.held != nil {
			s.sinks[i].Early = p.held.released
		}
	}
	s.reached(t.upgraded)
	s.counters = Counters{t.inbox.duplicates, t.inbox.jumps, t.inbox.stale}
}

// handed is the position before the first entry whose output is still in a window.
func (t *Task) handed() abs.Position {
	pos := t.pos
	for _, o := range t.outs {
		if len(o.window) > 0 && o.window[0].cause <= pos {
			pos = o.window[0].cause - 1
		}
		if o.spool.unread() && o.spool.cause <= pos {
			pos = o.spool.cause - 1
		}
		if len(o.tail) > 0 && o.tail[0].cause <= pos {
			pos = o.tail[0].cause - 1
		}
	}
	return pos
}

func (t *Task) state() string {
	switch {
	case t.final, t.draining:
		return "drained"
	case t.replaying:
		return "replaying"
	case t.env.Go != nil:
		return "starting"
	case t.stalled():
		return "stalled"
	case t.aligner.Pending() != 0:
		return "aligning"
	}
	return "running"
}

// Ingested is how many records of its source the task has processed since it was restored, and how many its
// log held then. It may be called from any goroutine.
func (t *Task) Ingested() (records, backlog uint64) {
	return t.stats.ingested.Load(), t.stats.backlog.Load()
}

// Status may be called from any goroutine.
func (t *Task) Status() Status {
	s := &t.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{
		State: s.state, RecordsIn: s.in.Load(), RecordsOut: s.out, Repeats: s.repeats.Load(),
		GivenUp: s.givenUp.Load(), Restarts: s.restarts.Load(), Held: s.held, Backlog: s.backlog.Load(), Ingested: s.ingested.Load(),
		Epoch: abs.Epoch(s.epoch.Load()), Pos: s.pos, HandedOver: s.handed, Unhanded: s.unhanded, Spooled: s.spooled, Sinks: s.sinks, Time: s.time, Waiting: s.waiting, SaveError: s.saveError, Counters: s.counters, Upgraded: s.upgraded, Ended: s.ended,
	}
	if st.State == "" {
		st.State, st.Time.Watermark = "starting", NoTime
	}
	if s.recovered {
		r := s.recovery
		st.Recovery = &r
	}
	return st
}

// Purgeable gives reply, on the task's goroutine, the stream sequence per channel up to which the
// input stream holds only what was consumed up to the given numbers, and which reading of the stream they are of.
func (t *Task) Purgeable(consumed map[abs.ChannelID]abs.Seq, reply func(seqs map[int]uint64, reading uint64)) {
	t.mail.post(func() {
		seqs := map[int]uint64{}
		for _, c := range t.inbox.chans {
			if t.follow != nil && c.next <= consumed[c.ID] {
				t.behind = "a checkpoint counts in which the task is further on"
			}
			if c.passed(consumed[c.ID]) < purgeFrames && c.owed == 0 {
				continue
			}
			if seq := c.purgeable(consumed[c.ID]); seq > 0 {
				seqs[c.Index] = seq
			}
		}
		reply(seqs, t.inbox.restarts)
	})
}

// Truncated says that the entries of the task's log up to a position are given up: nothing will be
// replayed from before it. Sent is what the part of that position had sent: spools keep only what follows.
func (t *Task) Truncated(upto abs.Position, sent map[abs.ChannelID]abs.Seq) {
	t.mail.post(func() {
		for _, o := range t.outs {
			if err := o.spool.giveUp(sent[o.ID]); err != nil {
				t.stats.setSaveError(fmt.Errorf("give up what was spooled of %s: %w", o.ID, err))
			}
		}
		maps.DeleteFunc(t.giveUps, func(pos abs.Position, _ map[int]givenUp) bool { return pos <= upto })
	})
}

// relieve makes room in the input stream. A task that replays makes as little as it can, unless its replay stands: the
// server may have less room than the stream may take.
func (t *Task) relieve() {
	if t.env.Relieve == nil {
		return
	}
	if t.pos != t.movedPos {
		t.movedPos, t.movedTick = t.pos, t.tick
	}
	sparing := t.replaying && t.tick < t.movedTick+standTicks
	for _, c := range t.inbox.chans {
		seq, reading := c.excess(sparing), t.inbox.restarts
		if seq == 0 {
			continue
		}
		t.env.Relieve(c.Index, seq, func(err error) {
			if err != nil {
				t.Unpurged(c.Index, seq, reading)
			}
		})
	}
}

// Unpurged says that a purge of a channel up to a sequence of a reading has failed: the next one will include it,
// unless the stream has been begun anew meanwhile.
func (t *Task) Unpurged(channel int, seq, reading uint64) {
	t.mail.post(func() {
		if c := t.inbox.byIndex[channel]; c != nil && reading == t.inbox.restarts {
			c.owed = max(c.owed, seq)
			t.stir()
		}
	})
}

// SinkEvents is what the adapter of the task's i-th sink reports to.
func (t *Task) SinkEvents(i int) SinkEvents { return &sinkEvents{task: t, port: t.chain.sinks[i]} }

// sinkEvents passes confirmations on to the task, many in one.
type sinkEvents struct {
	task *Task
	port *sinkPort

	mu       sync.Mutex
	upto     abs.Seq
	received abs.Seq
	posted   bool
}

// Handed implements [SinkEvents].
func (e *sinkEvents) Handed(upto abs.Seq) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.upto = max(e.upto, upto)
	e.post()
}

// Ready implements [SinkEvents].
func (e *sinkEvents) Ready() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.post()
}

// Received implements [SinkEvents].
func (e *sinkEvents) Received(upto abs.Seq) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.received = max(e.received, upto)
	e.post()
}

func (e *sinkEvents) post() {
	if !e.posted {
		e.posted = true
		e.task.mail.post(e.confirm)
	}
}

// confirm runs on the task's goroutine. The entry it logs spares repeats after a restart; a full
// log only means that there may be some. What was received is logged when the task hands over next.
func (e *sinkEvents) confirm() {
	e.mu.Lock()
	upto, received := e.upto, e.received
	e.posted = false
	e.mu.Unlock()
	if h, news := e.port.confirm(upto); news {
		e.task.stir()
		if _, err := e.task.env.Log.Append(EntryHanded, h.encode()); err != nil {
			e.port.logged = 0
		}
	}
	e.port.resume.received = max(e.port.resume.received, received)
}
