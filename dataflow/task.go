package dataflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// Bounds of a task.
const (
	// pendingParts may wait to become durable; beyond it an epoch is not frozen and times out.
	pendingParts = 2
	// grantTicks is how often grants are repeated while nothing changes.
	grantTicks = 5
	// heldEnough is how many bytes are taken from the stream while there is something to do.
	heldEnough = 1 << 20
	// stepBurst bounds the steps between two looks at other events.
	stepBurst = 16
)

// Env is what a task needs of its agent.
type Env struct {
	Log       Log
	Store     SnapshotStore
	Operators Operators
	Input     Input  // nil: the task has no streamed input
	Output    Output // nil: the task has no streamed output
	Sinks     []Sink // as in the spec
	Dead      DeadLetters
	Observer  Observer
	// Save makes a part durable in the background and calls done from any goroutine, once.
	Save func(info PartInfo, changes []Change, done func(error))
	// Clock gives milliseconds since 1970.
	Clock func() int64
	// Stopwatch gives a time that only durations are taken of; it decides nothing.
	Stopwatch func() time.Duration
	// Ticks comes every 100 ms, less often while the task is [Task.Resting]. It paces repetition; nothing
	// that a task computes depends on it.
	Ticks <-chan struct{}
	// Synced is signalled (capacity 1) when the log has been synced further.
	Synced <-chan struct{}
	// Floor is the epoch of the generation's initial state, and Base the part of an older generation
	// that it starts from, nil for none. They are used if the task has no part of its generation.
	// BaseHere says that the part is of this log, and not of one that was lost or is elsewhere.
	Floor    abs.Epoch
	Base     *PartInfo
	BaseHere bool
	// Version is the highest that the store ever had of the task, rejected ones included.
	Version Version
	// RolledBack says that the generation was begun without a drain, from a checkpoint that others may have
	// left behind: what a streamed task has logged beyond Base is void, and what its sinks have handed over
	// since may come again.
	RolledBack bool
	// Level and Reason, if not empty, are what is reported of the way back when the task is opened: without
	// them that is "L1" for a part of its generation, and nothing for the beginning of a generation.
	Level, Reason string
	// Relieve, if not nil, purges a channel of the input stream up to a sequence, in the background, and
	// calls done from any goroutine, once. It is called when no checkpoint has counted for so long that
	// the stream would become full. What it takes is made again by upstream if the task should need it.
	Relieve func(channel int, seq uint64, done func(error))
	// Spool gives the spool of an output channel; nil if there is none and it is not to be made. It is needed
	// if the spec has channels with one.
	Spool func(c Channel, create bool) (Spool, error)
	// Bounds limit what the task holds; zero fields stand for the defaults.
	Bounds Bounds
	// Go lets a source task take the entries of its log: closed once checkpoint 0 is committed.
	Go <-chan struct{}
}

// Bounds limit what a task holds in memory, by channel and in all.
type Bounds struct {
	Frames int // may always be under way on a channel, whatever its credit
	Unsent int // bytes computed for a channel that are not handed over: beyond it the task takes no step
	Join   int // bytes of items to which frames that wait become one
	Aside  int // bytes taken from the input stream and not processed
	Behind int // frames of a channel that stay in the input stream behind what was consumed
	Stored int // bytes of all channels that do
	// Alone and AloneTicks: bytes of log and ticks after a snapshot, from which on the task takes one alone.
	Alone, AloneTicks int
}

func (b Bounds) orDefault() Bounds {
	return Bounds{cmp.Or(b.Frames, minFrames), cmp.Or(b.Unsent, unsentLimit), cmp.Or(b.Join, frame.TargetSize), cmp.Or(b.Aside, asideBudget), cmp.Or(b.Behind, behindLimit), cmp.Or(b.Stored, storedLimit), cmp.Or(b.Alone, aloneBytes), cmp.Or(b.AloneTicks, aloneTicks)}
}

// Observer is told what becomes of a task, on the task's goroutine; the calls return at once.
type Observer interface {
	// PartDurable: a part of an epoch is durable, and everything sent before its cut is handed over.
	PartDurable(r PartReport)
	// PartSkipped: no part of this epoch will come.
	PartSkipped(epoch abs.Epoch, reason string)
	// Recovered: the task has been restored; it now replays.
	Recovered(r Recovery)
	// CaughtUp: replay is over.
	CaughtUp(r Recovery)
	// Drained: a final barrier has been passed on.
	Drained(epoch abs.Epoch)
	// Stirred: the task has changed for the first time since its newest part; see [Task.Quiet].
	Stirred()
}

// PartReport describes a durable part.
type PartReport struct {
	Info    PartInfo
	Cut     abs.Cut
	Aligned []abs.ChannelID
	Ended   bool    // the task has sent End on every output
	AlignMS float64 // from the first barrier to the last
	// FreezeMS is how long the task stood still for it.
	FreezeMS  float64
	PersistMS float64
}

// Recovery says how a task came back.
type Recovery struct {
	Level    string // "L0" after a failure of its own, "L1" after a restart, LevelRewind, LevelForward, or that of [Env]
	Reason   string
	Epoch    abs.Epoch // of the snapshot
	Version  Version
	Replayed uint64 // records
	HeldBack uint64 // items that receivers had
	Compared uint64 // checksums compared with receivers
	// Repeated counts the items that the task's immediate sinks have handed over beyond the part: under their
	// numbers there will be others, made of the same input. Unknown: the log that told of them is lost.
	Repeated uint64
	Unknown  bool
	TookMS   float64
	// Stamp is the clock of the log so far, milliseconds since 1970: the task's own does not go behind it.
	Stamp int64
}

// Levels of recoveries that are none of a failure.
const (
	LevelRewind  = "rewind"  // to serve a receiver
	LevelForward = "forward" // back from there
)

// Task runs one task. Everything but Status, NewestEpoch, Quiet, Resting, Record, Purgeable, Unpurged,
// Truncated and SinkEvents belongs to one goroutine, that of Run.
type Task struct {
	spec TaskSpec
	env  Env

	chain   chain
	inbox   *inbox
	aligner *abs.Aligner
	dedupe  *dedupe
	outs    []*outlet // of all edges, in plan order
	pool    framePool

	follow    Follower // nil: live
	entry     *Entry   // read and not yet applied: its items are not at hand
	replayEnd abs.Position
	replaying bool
	pos       abs.Position // last entry applied
	movedPos  abs.Position // pos when it was last seen to move, and the tick
	movedTick uint64
	stamp     int64
	epoch     abs.Epoch
	final     bool
	lastEpoch abs.Epoch         // whose barrier was a final one, 0: none was
	cursor    []byte            // of the last batch applied
	marks     map[uint64]uint64 // of the source, by the batches applied
	ended     bool              // End was sent on every output
	still     bool              // nothing has changed since the last freeze
	// lastSource is what the log says of the source when it is looked through.
	lastSource SourceState
	halted     abs.Epoch // the task stands still until this epoch is over; 0: it does not

	rollBack  bool                // the sinks of the part being restored forget what they handed over beyond it
	loadSinks map[string]sinkMeta // of the part being restored, until the log has been looked through
	loadBoxes map[string]*outbox  // likewise
	loadBase  bool                // likewise: the part is of an older generation, so a checkpoint that counts has it

	counted abs.Position           // a checkpoint counts that contains what entries up to here have caused
	running abs.Epoch              // the newest that has started and is not over; 0: none is known
	wanted  abs.Epoch              // likewise, of a source: its barrier may be taken ahead
	cuts    map[abs.Position][]cut // barriers taken ahead, by the entry they follow

	target        Upgrade // the newest that was asked for
	upgraded      Upgraded
	upgradeLogged uint64 // the newest in the log, if the task has not come to it
	planLogged    bool   // the log has an upgrade of this generation, to which the task may not have come

	// Event time, see watermark.go.
	watermark int64 // how far it has come
	told      int64 // the last watermark sent
	toldIdle  bool  // that the task is idle was sent after it
	source    sourceTime
	drained   bool         // nothing has come behind the final barrier of the generation
	endDue    bool         // all inputs have ended, and the end is to be passed on
	callsAt   abs.Position // the entry whose calls that time has made due are counted
	calls     int
	liveSince int64 // the clock when replay was over
	tickAt    int64 // the clock when a tick was last logged, and its entry
	tickPos   abs.Position

	letters     []Letter                // to be replayed, not logged yet
	replayed    map[string]abs.Position // logged and not marked yet
	letterMarks []letterMark
	heldLetters []heldLetter // behind the final barrier

	giveUps map[abs.Position]map[int]givenUp
	suspect suspect           // its entry is taken record by record
	unsure  unsure            // entries whose giving up of records may not be synced
	dead    []deadLetter      // records given up that are not kept yet
	behind  string            // why the task must not replay on from where it is; empty: it may
	records []abs.EpochRecord // not yet looked at: a task that replays looks at none

	version  Version // last saved, or in saving
	fullNext bool
	durable  abs.Epoch // highest epoch with a durable part of this generation
	parts    []*pendingPart
	open     *pendingPart // the one whose loop log is being written
	loopKeys int          // keys of the loop log in the version before the next
	draining bool         // what comes from back edges is left to the next generation
	withheld []withheld   // so: it is processed if this generation goes on after all
	stuck    int          // ticks for which an alignment has kept a full loop from moving
	saving   *pendingPart
	retryAt  uint64

	sinceFreeze int    // bytes of log entries applied since the last snapshot was frozen
	frozenTick  uint64 // when it was
	forwardTick uint64

	tick       uint64
	grantTick  uint64
	started    bool // a part of this generation exists
	alignStart time.Duration
	recovery   Recovery
	recoverAt  time.Duration
	noted      bool // consumption that receivers' grants do not tell yet

	mail  mailbox
	stats stats
}

type pendingPart struct {
	info    PartInfo
	meta    taskMeta
	changes []Change
	report  PartReport
	frozen  time.Duration

	loop      []loopItem // what came from back edges since the cut
	loopBytes int
	ahead     int          // of loop: they come from the part that the task was restored from
	upto      abs.Position // of the last item of the loop log
}

// NewTask returns a task that Run runs.
func NewTask(spec TaskSpec, env Env) *Task {
	t := &Task{spec: spec, env: env, mail: newMailbox(), giveUps: map[abs.Position]map[int]givenUp{}, replayed: map[string]abs.Position{}, watermark: NoTime, told: NoTime}
	t.inbox = newInbox(spec.Generation, spec.Inputs)
	b := env.Bounds.orDefault()
	t.inbox.budget, t.inbox.behind, t.inbox.most = b.Aside, b.Behind, b.Stored
	t.chain.spec = spec
	for _, e := range spec.Edges {
		var outs []*outlet
		for _, c := range e.Channels {
			o := newOutlet(spec.Generation, c, &t.pool)
			o.bounds = env.Bounds.orDefault()
			outs = append(outs, o)
			t.outs = append(t.outs, o)
		}
		t.chain.outlets = append(t.chain.outlets, outs)
	}
	for i, s := range spec.Sinks {
		t.chain.sinks = append(t.chain.sinks, newSinkPort(i, s, env.Sinks[i]))
	}
	return t
}

// Record tells a streamed task of an epoch's record, in the order of epochs; what the task lacks of
// it becomes control items in its log. A source has the barrier from its ingest log and needs no more.
func (t *Task) Record(r abs.EpochRecord) {
	t.mail.post(func() {
		if r.State != abs.Started && r.Epoch >= t.halted {
			t.halted = 0
		}
		t.noteEpoch(r)
		if !t.spec.Source {
			t.records = append(t.records, r)
		}
	})
}

// noteEpoch keeps which epoch is running.
func (t *Task) noteEpoch(r abs.EpochRecord) {
	switch {
	case r.State == abs.Started && r.Epoch > t.running:
		t.running, t.wanted = r.Epoch, 0
		if !r.Final && !r.Initial && !slices.Contains(r.Detached, t.spec.Agent) {
			t.wanted = r.Epoch
		}
	case r.State != abs.Started && r.Epoch >= t.running:
		t.running, t.wanted = 0, 0
	}
}

// Run restores the task and runs it until ctx ends or it fails. A [DiffError] means that replay has
// shown a difference: running it again cannot help.
//
// All that a task does is in Open, HandOver, Step, Settle, Deliver, TakeGrant, Asked, Tick and Close,
// none of which waits: Run calls them as events come, and another driver may call them in any order
// after Open, from one goroutine.
func (t *Task) Run(ctx context.Context) (err error) {
	defer func() {
		if e := t.Close(); err == nil {
			err = e
		}
	}()
	if err := t.Open(ctx); err != nil {
		return err
	}
	return t.Serve(ctx)
}

// Serve runs the open task until ctx ends or it fails.
func (t *Task) Serve(ctx context.Context) (err error) {
	for {
		if err := t.HandOver(); err != nil {
			return err
		}
		busy := true
		for i := 0; busy && i < stepBurst; i++ {
			if busy, err = t.Step(ctx); err != nil {
				return err
			}
		}
		if err := t.listen(ctx, busy); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// Open restores the task: to the newest state it has of its generation, else to the generation's
// initial state.
func (t *Task) Open(ctx context.Context) error {
	if err := t.start(ctx); err != nil {
		return err
	}
	if t.env.Output != nil {
		t.env.Output.Ask()
	}
	return nil
}

// Close ends the task's operators and its reading of the log.
func (t *Task) Close() error {
	if t.follow != nil {
		t.follow.Close()
	}
	for _, o := range t.outs {
		o.spool.stop()
	}
	return t.chain.close()
}

// listen takes the events that are there, and waits for one if the task has nothing to do.
func (t *Task) listen(ctx context.Context, busy bool) error {
	if !busy {
		if err := t.wait(ctx); err != nil {
			return err
		}
	}
	for range stepBurst {
		select {
		case d, ok := <-t.deliveries(busy):
			if !ok {
				return errors.New("the input stream was closed")
			}
			if err := t.Deliver(d); err != nil {
				return err
			}
			continue
		default:
		}
		break
	}
	return t.poll(ctx)
}

// deliveries is the queue of the input stream, nil while enough is at hand.
func (t *Task) deliveries(busy bool) <-chan Delivery {
	if t.env.Input == nil || busy && t.inbox.bytes > heldEnough {
		return nil
	}
	return t.env.Input.Deliveries()
}

// poll takes the events other than deliveries without waiting.
func (t *Task) poll(ctx context.Context) error {
	t.Settle()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case g := <-t.grants():
			if err := t.TakeGrant(ctx, g); err != nil {
				return err
			}
			continue
		case <-t.asked():
			t.Asked()
		case <-t.env.Ticks:
			t.Tick()
		default:
			return nil
		}
	}
}

func (t *Task) wait(ctx context.Context) error {
	var ready <-chan struct{}
	if t.follow != nil {
		ready = t.follow.Ready()
	}
	var start <-chan struct{}
	if t.env.Go != nil && !t.allowed() {
		start = t.env.Go
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case d, ok := <-t.deliveries(false):
		if !ok {
			return errors.New("the input stream was closed")
		}
		return t.Deliver(d)
	case g := <-t.grants():
		return t.TakeGrant(ctx, g)
	case <-t.asked():
		t.Asked()
	case <-t.env.Ticks:
		t.Tick()
	case <-t.env.Synced:
	case <-t.mail.signal:
	case <-ready:
	case <-start:
	}
	return nil
}

func (t *Task) grants() <-chan Grant {
	if t.env.Output == nil {
		return nil
	}
	return t.env.Output.Grants()
}

func (t *Task) asked() <-chan struct{} {
	if t.env.Input == nil {
		return nil
	}
	return t.env.Input.Asked()
}

// Settle takes the completions that other goroutines have reported: of frames, parts and sinks.
func (t *Task) Settle() {
	for _, f := range t.mail.take() {
		f()
	}
}

// Asked answers a sender's question for grants.
func (t *Task) Asked() { t.sendGrants(true) }

// Tick tells the task that 100 ms have passed.
func (t *Task) Tick() {
	t.tick++
	if t.tick >= t.grantTick+grantTicks {
		t.sendGrants(true)
		if t.env.Output != nil && t.unknown() {
			t.env.Output.Ask()
		}
	}
	t.unstick()
	if t.follow == nil && !t.inbox.reading && t.tick%grantTicks == 0 { // also if other channels always have something
		t.rereadOpen()
	}
	for _, o := range t.outs {
		o.watch()
	}
	t.relieve()
	t.status()
}

// unknown says whether some receiver has not been heard of.
func (t *Task) unknown() bool {
	for _, o := range t.outs {
		if !o.granted {
			return true
		}
	}
	return false
}

// Deliver takes a delivery of the input stream. Its frame becomes the task's.
func (t *Task) Deliver(d Delivery) error {
	switch {
	case d.Reset:
		t.inbox.restart()
		return nil
	case d.Drained:
		t.inbox.drained()
		t.noted = true
		return nil
	}
	t.noted = true
	had := t.inbox.duplicates
	err := t.inbox.accept(d)
	if t.inbox.duplicates != had {
		t.stir() // the next checkpoint purges it
	}
	return err
}

// sendGrants tells senders what was consumed: all channels, or those where it is news.
func (t *Task) sendGrants(all bool) {
	if t.env.Input == nil || !all && !t.noted {
		return
	}
	t.noted = false
	if all {
		t.grantTick = t.tick
	}
	for _, c := range t.inbox.chans {
		if all || c.granted != c.next || c.rewind {
			c.granted = c.next
			t.env.Input.Grant(c.grant())
		}
	}
}

// TakeGrant takes a receiver's grant; it may ask for what is not at hand any more.
func (t *Task) TakeGrant(ctx context.Context, g Grant) error {
	o := t.outlet(g.Channel)
	if o == nil {
		return nil
	}
	if c := t.inbox.byIndex[o.Index]; c != nil { // the task's own grant, perhaps from before it was restored
		g.Next, g.Sum = c.next, c.sum
	}
	regenerate, err := o.grant(g, t.tick)
	if err != nil {
		return err
	}
	if err := errors.Join(o.differs(), t.forward(ctx)); err != nil {
		return err
	}
	if regenerate && o.lacking(g.Next, t.tick) {
		return t.rewind(ctx, o, g.Next)
	}
	return nil
}

func (t *Task) outlet(channel int) *outlet {
	for _, o := range t.outs {
		if o.Index == channel {
			return o
		}
	}
	return nil
}

// Step takes one step and hands over what may leave. If there is none to take it tells the senders
// what was consumed and returns false.
func (t *Task) Step(ctx context.Context) (bool, error) {
	stepped := false
	t.letGo()
	if allowed := t.allowed(); allowed {
		var err error
		if stepped, err = t.cutAhead(); err == nil && !stepped && !t.stalled() {
			stepped, err = t.step()
		}
		if err != nil {
			if stepped, err = t.failed(ctx, err); err != nil {
				return false, err
			}
		}
		if err := t.freezeAlone(); err != nil {
			return false, err
		}
		if err := t.HandOver(); err != nil {
			return false, err
		}
	}
	if !stepped || t.consumedMuch() {
		t.sendGrants(false)
	}
	return stepped, nil
}

// consumedMuch says whether a sender waits for news: a quarter of what it may have under way.
func (t *Task) consumedMuch() bool {
	return t.noted && t.env.Input != nil && t.stats.sinceGrant(grantWindow/4)
}

// allowed says whether the task may take entries: replay always may, a new task once its
// generation's initial checkpoint is committed.
func (t *Task) allowed() bool {
	if t.halted != 0 {
		return false
	}
	if t.env.Go == nil {
		return true
	}
	select {
	case <-t.env.Go:
		t.env.Go = nil
		return true
	default:
		return false
	}
}

// stalled says whether an output is full: then the task takes no step.
func (t *Task) stalled() bool {
	for _, o := range t.outs {
		if o.full() {
			return true
		}
	}
	return t.sinkFull()
}

// HandOver lets go what the log is synced past. It fails if a dead letter cannot be kept.
func (t *Task) HandOver() error {
	synced := t.unsure.limit(t.env.Log.Synced())
	if err := t.bury(synced); err != nil {
		return err
	}
	if err := t.mark(synced); err != nil {
		return err
	}
	for _, o := range t.outs {
		t.reserve(o)
		if o.Spool {
			o.spool.reached(t.env.Log.Synced())
			if err := errors.Join(t.spill(o), o.load(t.tick)); err != nil {
				return err
			}
		}
		for f := o.sendable(synced, t.tick); f != nil; f = o.sendable(synced, t.tick) {
			o.sending(f, t.tick)
			t.env.Output.Send(o.Index, f.buf, func(err error) {
				t.mail.post(func() { o.done(f, err, t.tick) })
			})
		}
	}
	for _, p := range t.chain.sinks {
		t.logHanded(p)
		t.logProgress(p)
		p.offer(synced, t.counted)
	}
	t.persist(synced)
	return nil
}

// logHanded logs what a sink has handed over and the log does not tell, also what it confirmed while
// the task was restored. It spares repeats after a restart; a full log only means that there may be some.
func (t *Task) logHanded(p *sinkPort) {
	if h, news := p.news(); news {
		t.stir()
		if _, err := t.env.Log.Append(EntryHanded, h.encode()); err != nil {
			p.logged = 0
		}
	}
}

// logProgress logs how far a sink that resumes may come and has come. With a full log nothing is sent
// beyond what was logged, and this is tried again.
func (t *Task) logProgress(p *sinkPort) {
	if e, due := p.progress(); due {
		if pos, err := t.env.Log.Append(EntrySink, e.encode()); err == nil {
			p.resume.progressed(e, pos)
		}
	}
}

// reserve logs how far the channel may be handed over, well before it is needed.
func (t *Task) reserve(o *outlet) {
	upto, due := o.reserve()
	if !due {
		return
	}
	pos, err := t.env.Log.Append(EntryReserve, reserveEntry{o.Index, upto}.encode())
	if err != nil {
		return // the log is full: nothing leaves beyond the last reservation, and this is tried again
	}
	o.reserveUpto(upto, pos)
}

// step takes one entry of the log, or makes one.
func (t *Task) step() (bool, error) {
	if t.endDue {
		t.endDue = false
		return true, t.endIfAllHave(t.pos)
	}
	if logged, err := t.upgradeDue(); logged || err != nil {
		return logged, err
	}
	if logged, err := t.replayDue(); logged || err != nil {
		return logged, err
	}
	if !t.replaying {
		if logged, err := t.logTick(); err != nil || logged {
			return logged, err
		}
	}
	if t.follow != nil {
		return t.stepLogged()
	}
	return t.stepLive()
}

// stepLogged follows the log: a source task always, a streamed one in replay.
func (t *Task) stepLogged() (bool, error) {
	if t.behind != "" {
		return false, &behindError{errors.New(t.behind)}
	}
	if ok, err := t.peek(); err != nil || !ok {
		if err == nil && !t.spec.Source {
			t.follow.Close()
			t.follow = nil
			return true, nil
		}
		return false, err
	}
	done, err := t.apply(*t.entry)
	if done {
		t.sinceFreeze += len(t.entry.Data)
		t.entry = nil
	}
	return done, err
}

// peek reads the next entry of the log, if it is not at hand; false if there is none now.
func (t *Task) peek() (bool, error) {
	if t.entry != nil {
		return true, nil
	}
	e, ok, err := t.follow.Next()
	if err != nil {
		return false, &behindError{err}
	}
	if t.replaying && (!ok || e.Pos > t.replayEnd) {
		t.caughtUp()
	}
	if ok {
		t.entry = &e
	}
	return ok, nil
}

func (t *Task) caughtUp() {
	t.replaying = false
	t.liveSince = t.env.Clock()
	t.recovery.TookMS = ms(t.env.Stopwatch() - t.recoverAt)
	t.recovery.Stamp = t.stamp
	t.addHeldBack()
	t.env.Observer.CaughtUp(t.recovery)
	t.stats.setRecovery(t.recovery)
}

func (t *Task) addHeldBack() {
	t.recovery.HeldBack, t.recovery.Compared = 0, 0
	for _, o := range t.outs {
		t.recovery.HeldBack += o.heldBack
		t.recovery.Compared += o.compared
	}
	for _, p := range t.chain.sinks {
		t.recovery.HeldBack += p.heldBack
		t.recovery.Compared += p.compared
	}
}

// apply applies one entry; false if its items are not at hand yet.
func (t *Task) apply(e Entry) (bool, error) {
	switch e.Kind {
	case EntryIngest, EntryMarked, EntryMarks:
		in, err := ingestOf(e)
		if err != nil {
			return false, fmt.Errorf("log entry %d: %w", e.Pos, err)
		}
		return true, t.ingest(e.Pos, in)
	case EntryEnd:
		if err := t.releaseLetters(e.Pos); err != nil {
			return false, err
		}
		t.pos = e.Pos
		return true, t.end(e.Pos)
	case EntryBarrier:
		b, err := decodeBarrier(e.Data)
		if err != nil {
			return false, fmt.Errorf("log entry %d: %w", e.Pos, err)
		}
		return true, t.sourceBarrier(e.Pos, b)
	case EntryOrder:
		o, err := decodeOrder(e.Data)
		if err != nil {
			return false, fmt.Errorf("log entry %d: %w", e.Pos, err)
		}
		return t.ordered(e.Pos, o)
	case EntryUpgrade:
		u, err := decodeUpgrade(e.Data)
		if err != nil {
			return false, fmt.Errorf("log entry %d: %w", e.Pos, err)
		}
		return true, t.upgrade(e.Pos, u)
	case EntryReplay:
		l, err := decodeReplay(e.Data)
		if err != nil {
			return false, fmt.Errorf("log entry %d: %w", e.Pos, err)
		}
		return true, t.replay(e.Pos, l)
	case EntryControl:
		ev, err := decodeControl(e.Data)
		if err != nil {
			return false, fmt.Errorf("log entry %d: %w", e.Pos, err)
		}
		t.pos = e.Pos
		return true, t.control(ev, e.Pos)
	case EntryTick:
		tick, err := decodeTick(e.Data)
		if err != nil {
			return false, fmt.Errorf("log entry %d: %w", e.Pos, err)
		}
		return true, t.takeTick(e.Pos, tick)
	}
	t.pos = e.Pos
	return true, nil
}

// ordered repeats what the log says was taken.
func (t *Task) ordered(pos abs.Position, e orderEntry) (bool, error) {
	c := t.inbox.byIndex[e.channel]
	if c == nil || e.first != c.next {
		return false, fmt.Errorf("log entry %d takes number %d of channel %d, which the task is not at: log and snapshot are not of one run", pos, e.first, e.channel)
	}
	if !c.has(e.count) {
		t.inbox.settle(c)
		t.reread(c)
		if err := t.refill(c); err != nil || !c.has(e.count) {
			return false, err
		}
	}
	return true, t.consume(pos, c, e)
}

// stepLive takes what comes next, and logs that it did.
func (t *Task) stepLive() (bool, error) {
	if len(t.records) > 0 {
		return t.stepRecord()
	}
	t.inbox.shut = t.crowded()
	c := t.inbox.pick(t.aligner.Blocked)
	if c == nil {
		t.rereadOpen()
		return false, nil
	}
	e := orderEntry{max(t.stamp, t.env.Clock()), c.Index, c.next, c.held[0].count}
	var buf [40]byte
	pos, err := t.env.Log.Append(EntryOrder, e.encode(buf[:0]))
	if err != nil {
		return false, ignoreFull(err)
	}
	return true, t.consume(pos, c, e)
}

// stepRecord logs and takes the first control item that the task lacks of the oldest record.
func (t *Task) stepRecord() (bool, error) {
	lacks := t.aligner.Lacks(t.records[0], t.spec.Agent)
	if len(lacks) == 0 {
		t.records = t.records[1:]
		return true, nil
	}
	pos, err := t.env.Log.Append(EntryControl, encodeControl(lacks[0]))
	if err != nil {
		return false, ignoreFull(err)
	}
	t.pos = pos
	return true, t.control(lacks[0], pos)
}

// control takes a control item. A barrier alone changes nothing.
func (t *Task) control(ev abs.Event, pos abs.Position) error {
	if ev.Kind != abs.OnControlBarrier {
		t.stir()
	}
	fx := t.align(ev)
	if (ev.Kind == abs.OnDetach || ev.Kind == abs.OnAttach) && !t.ended {
		if err := t.moveTime(pos); err != nil {
			return err
		}
	}
	return t.effects(fx, pos)
}

// ignoreFull leaves a full log to be tried again at the next tick.
func ignoreFull(err error) error {
	if errors.Is(err, ErrLogFull) {
		return nil
	}
	return err
}

// rereadOpen reads the stream again if that brings what a channel lacks that is not blocked.
func (t *Task) rereadOpen() {
	for _, c := range t.inbox.chans {
		if !t.aligner.Blocked(c.ID) {
			t.reread(c)
		}
	}
}

// reread reads the stream again if it has frames of the channel that were dropped and are needed now.
func (t *Task) reread(c *inChannel) {
	if !c.starved() {
		return
	}
	for _, c := range t.inbox.chans {
		c.forget(len(c.places))
		c.dropped, c.beyond = false, 0
	}
	t.inbox.reading = true
	t.env.Input.Reread()
}

// consume takes count items of a channel and processes them.
func (t *Task) consume(pos abs.Position, c *inChannel, e orderEntry) error {
	t.pos, t.stamp = pos, e.stamp
	kind, payload := t.inbox.take(c, e.count)
	t.noted = true
	t.drained = t.drained && c.Back
	t.stats.grantBytes += len(payload)
	t.sinceFreeze += len(payload)
	t.logLoop(c, e, kind, payload)
	if t.draining && !c.Back { // the final epoch was aborted: senders have gone on
		if err := t.release(); err != nil {
			return err
		}
	}
	if kind != frame.Data {
		return t.takeMark(pos, c, payload)
	}
	to, b := []Target{c.To}, Batch{Stamp: t.stamp, Count: e.count, Payload: payload}
	if t.draining {
		t.stir()
		t.withheld = append(t.withheld, withheld{pos, to, b})
		return nil
	}
	return t.process(pos, to, b)
}

func (t *Task) takeMark(pos abs.Position, c *inChannel, payload []byte) error {
	m, err := frame.DecodeMark(payload)
	if err != nil {
		panic(fmt.Sprintf("checked mark is malformed: %v", err))
	}
	ev := abs.Event{Channel: c.ID, Epoch: abs.Epoch(m.Value &^ frame.Final)}
	switch m.Kind {
	case frame.Barrier:
		ev.Kind = abs.OnBarrier
		if m.Value&frame.Final != 0 {
			t.lastEpoch = ev.Epoch
		}
	case frame.End:
		ev.Kind, ev.Epoch = abs.OnEnd, 0
		c.ended = true
	case frame.Watermark:
		return t.takeWatermark(pos, c, int64(m.Value))
	default:
		return nil
	}
	fx := t.align(ev)
	if m.Kind == frame.End && !t.hasEnded() {
		if err := t.moveTime(pos); err != nil { // the channel no longer holds it back
			return err
		}
	}
	if err := t.effects(fx, pos); err != nil {
		return err
	}
	return t.endIfAllHave(pos)
}

// endIfAllHave passes the end on once all inputs have ended. A part that the last of them completes is
// frozen before, so that a task restored from it does this, too.
func (t *Task) endIfAllHave(pos abs.Position) error {
	if t.hasEnded() {
		return t.end(pos)
	}
	return nil
}

// hasEnded says whether all inputs have ended and nothing can come any more.
func (t *Task) hasEnded() bool { return t.aligner.Ended() && !t.loops() }

// end passes the end of the input on, once. Barriers that come later are frozen for and not sent.
func (t *Task) end(pos abs.Position) error {
	if t.ended {
		return nil
	}
	if err := t.advance(pos, Moment{Watermark: EndOfTime, Stamp: t.stamp, End: true}); err != nil {
		return err
	}
	t.ended = true
	for _, o := range t.outs {
		o.mark(frame.Mark{Kind: frame.End}, pos)
	}
	return t.endStep(pos)
}

// Source is what the task, once open, knows of its source.
func (t *Task) Source() SourceState { return t.lastSource }

// SourceState is what a task's log says of its source.
type SourceState struct {
	Cursor []byte            // of the last batch
	Marks  map[uint64]uint64 // that the batches have left
	Ended  bool              // the input has ended
	Final  abs.Epoch         // the final barrier was logged last: the source must not go on unless this epoch is aborted; 0: it was not
}

// ingest processes a batch that a source has logged.
func (t *Task) ingest(pos abs.Position, e ingestEntry) error {
	if err := t.goOn(pos); err != nil {
		return err
	}
	t.pos, t.stamp = pos, max(t.stamp, e.stamp)
	payload, count := e.payload, e.count
	if len(e.cursor) > 0 {
		t.cursor = e.cursor
	}
	if err := applyMarks(t.marks, e.marks); err != nil {
		return fmt.Errorf("log entry %d: %w", pos, err)
	}
	t.stats.ingested.Add(uint64(count))
	if t.dedupe != nil && len(e.ids) > 0 {
		var err error
		if payload, count, err = t.fresh(payload, e.ids, count); err != nil {
			return fmt.Errorf("log entry %d: %w", pos, err)
		}
	}
	if err := t.process(pos, t.spec.Entry, Batch{Stamp: t.stamp, Count: count, Payload: payload}); err != nil || !t.spec.Time.Watermarks {
		return err
	}
	if err := t.source.take(t.spec.Time, t.stamp, payload); err != nil {
		return fmt.Errorf("log entry %d: %w", pos, err)
	}
	return t.sourceMoves(pos, false, Moment{Stamp: t.stamp})
}

// fresh returns the records that are no repeats; if all are, or none, without copying.
func (t *Task) fresh(payload, ids []byte, count int) ([]byte, int, error) {
	var kept []byte
	n, copying := 0, false
	r := entryReader{b: ids}
	for rest := payload; len(rest) > 0; {
		rec, after, err := frame.Next(rest)
		if err != nil {
			return nil, 0, err
		}
		id := r.bytes(r.uvarint())
		if r.err != nil {
			return nil, 0, r.err
		}
		one := rest[:len(rest)-len(after)]
		if len(id) > 0 && t.dedupe.repeat(rec.Key, id, rec.Value) {
			if !copying {
				kept, copying = append(kept, payload[:len(payload)-len(rest)]...), true
			}
			t.stats.repeats.Add(1)
		} else {
			n++
			if copying {
				kept = append(kept, one...)
			}
		}
		rest = after
	}
	if !copying {
		return payload, count, nil
	}
	return kept, n, nil
}

// process runs records through the chain and ends the step.
func (t *Task) process(pos abs.Position, to []Target, b Batch) error {
	t.stir()
	if t.replaying {
		t.recovery.Replayed += uint64(b.Count)
	}
	t.stats.in.Add(uint64(b.Count))
	t.tally(b.Count, 0)
	var err error
	switch {
	case b.Count == 0:
	case t.suspect.entry == pos || t.giveUps[pos] != nil:
		err = t.oneByOne(pos, to, b)
	default:
		err = t.chain.run(to, b, pos)
	}
	if err != nil {
		return err
	}
	return t.endStep(pos)
}

// oneByOne runs the records of an entry singly, without those given up.
func (t *Task) oneByOne(pos abs.Position, to []Target, b Batch) error {
	index := 0
	for rest := b.Payload; len(rest) > 0; index++ {
		_, after, err := frame.Next(rest)
		if err != nil {
			return err
		}
		one := Batch{Stamp: b.Stamp, Count: 1, Payload: rest[:len(rest)-len(after)]}
		rest = after
		if g, is := t.giveUps[pos][index]; is {
			t.tally(0, 1)
			t.setAside(pos, t.letterKey(pos, index, to), g, one.Payload)
			continue
		}
		if err := t.chain.run(to, one, pos); err != nil {
			return &recordError{index: index, record: append([]byte(nil), one.Payload...), err: err}
		}
	}
	return nil
}

func (t *Task) endStep(pos abs.Position) error {
	for _, o := range t.outs {
		o.flush(pos)
		if err := o.differs(); err != nil {
			return err
		}
		if t.replaying {
			continue
		}
		if err := o.overrun(); err != nil {
			return err
		}
	}
	return nil
}

// sourceBarrier takes a barrier that the coordinator has put into the source's log.
func (t *Task) sourceBarrier(pos abs.Position, b barrierEntry) error {
	if err := t.goOn(pos); err != nil {
		return err
	}
	t.pos = pos
	if b.final {
		t.lastEpoch = b.epoch
	}
	fx := t.align(abs.Event{Kind: abs.OnControlBarrier, Epoch: b.epoch})
	if fx.Ignored {
		return t.barrier(b.epoch, pos)
	}
	t.final = b.final
	if err := t.effects(fx, pos); err != nil {
		return err
	}
	if b.final {
		t.env.Observer.Drained(b.epoch)
	}
	return nil
}

// align tells the aligner of an event, and notes when an epoch is opened by it.
func (t *Task) align(ev abs.Event) abs.Effects {
	before := t.aligner.Pending()
	fx := t.aligner.Step(ev)
	if opened := cmp.Or(t.aligner.Pending(), fx.Freeze); opened != 0 && opened != before {
		t.alignStart = t.env.Stopwatch()
	}
	return fx
}

// effects does what the aligner says.
func (t *Task) effects(fx abs.Effects, pos abs.Position) error {
	if fx.DropLog != 0 {
		t.dropLog()
	}
	if t.draining && (fx.DropLog != 0 || fx.Freeze != 0) {
		if err := t.release(); err != nil {
			return err
		}
	}
	if fx.StopLog != 0 {
		t.stopLog(fx.StopLog)
	}
	if t.spec.Halt && !t.replaying {
		t.halt(fx)
	}
	if fx.Freeze == 0 {
		return nil
	}
	if err := t.barrier(fx.Freeze, pos); err != nil {
		return err
	}
	t.drained = fx.Freeze == t.lastEpoch
	t.draining = t.drained && t.loops()
	return t.freeze(fx.Freeze, fx.Aligned, fx.StartLog != 0)
}

// halt makes the task stand still once its part is complete: a loop head takes what is in the loop first.
func (t *Task) halt(fx abs.Effects) {
	switch {
	case fx.StopLog != 0:
		t.halted = fx.StopLog
	case fx.Freeze != 0 && fx.StartLog == 0:
		t.halted = fx.Freeze
	}
}

// barrier sends a barrier on every output.
func (t *Task) barrier(epoch abs.Epoch, pos abs.Position) error {
	t.epoch = max(t.epoch, epoch)
	if t.ended {
		return nil
	}
	m := frame.Mark{Kind: frame.Barrier, Value: uint64(epoch)}
	if epoch == t.lastEpoch {
		m.Value |= frame.Final
	}
	for _, o := range t.outs {
		o.mark(m, pos)
	}
	return t.endStep(pos)
}
