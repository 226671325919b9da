package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// oracle knows what must hold.
type oracle struct {
	w       *world
	items   map[int][]uint64 // hash of every item ever sent, by channel and number
	grant   map[*taskRun]dataflow.Grant
	commits []*checkpoint
	restore *checkpoint // of the run that this one continues
	mark    abs.Epoch   // newest epoch when all was delivered
	marked  bool
	why     string // it is not over

	ends *checkpoint // the newest that counts

	keepsFrames bool
	frames      []stored           // all that were sent, if they are kept
	releases    map[string]abs.Seq // how far sinks that commit with checkpoints may have handed over
}

// settling is for how long after its own restoration a task may be asked for what its receiver is about
// to find in the stream.
const settling = 10 * time.Second

// checkpoint is a committed one, with the parts as they were at that time.
type checkpoint struct {
	record abs.EpochRecord
	parts  map[abs.TaskID]*savedPart
	handed map[string]abs.Seq // by sink channel
	from   *world
}

func newOracle(w *world) *oracle {
	return &oracle{w: w, items: map[int][]uint64{}, grant: map[*taskRun]dataflow.Grant{}, releases: map[string]abs.Seq{}}
}

// sent: under equal numbers there are equal items, for ever.
func (o *oracle) sent(s *send) {
	h, payload, err := frame.Decode(s.data)
	if err != nil {
		o.w.fail("channel %s: a malformed frame was sent: %v", s.c.id, err)
	}
	if o.keepsFrames {
		o.frames = append(o.frames, stored{channel: s.c.index, data: s.data})
	}
	n := h.First
	if h.Kind != frame.Data {
		o.item(s.c, n, payload)
		return
	}
	for len(payload) > 0 {
		size, err := frame.Skip(payload, 1)
		if err != nil {
			o.w.fail("channel %s: %v", s.c.id, err)
		}
		o.item(s.c, n, payload[:size])
		payload = payload[size:]
		n++
	}
}

func (o *oracle) item(c *plannedChannel, n uint64, content []byte) {
	items := o.items[c.index]
	for uint64(len(items)) < n {
		items = append(items, 0)
	}
	hash := hashOf(content) | 1
	if old := items[n-1]; old != 0 && old != hash {
		o.w.fail("channel %s: number %d is sent with another content", c.id, n)
	}
	items[n-1] = hash
	o.items[c.index] = items
}

// serving notes what a task is asked for while it takes the grant.
func (o *oracle) serving(r *taskRun, g dataflow.Grant, take func() error) error {
	o.grant[r] = g
	defer delete(o.grant, r)
	return take()
}

// recovered: a task is only rewound for numbers that a stream has lost, or has only where its receiver cannot use
// them. One that has just been restored for a reason of its own may be rewound also for what its receiver has not yet
// read.
func (o *oracle) recovered(r *taskRun, rec dataflow.Recovery) {
	if o.restore != nil {
		return // from an old checkpoint, with all streams empty
	}
	o.w.chaos.count("restored: " + rec.Level)
	o.furthest(r, rec)
	if rec.Level != "rewind" {
		r.restored = o.w.now
		return
	}
	g, asked := o.grant[r]
	if !asked {
		return // it has overtaken its replay
	}
	c := o.w.topo.channels[g.Channel]
	o.refilled(r, c, g.Next)
	lost := o.w.streams[c.to.id].lost[g.Channel]
	unread := r.restored != 0 && o.w.now-r.restored < settling && o.w.streams[c.to.id].has(g.Channel, g.Next)
	if g.Next > lost && !unread && !o.w.streams[c.to.id].stopsAt(g.Channel, g.Next) {
		o.w.fail("%s is rewound for number %d of channel %s, of which the stream has lost nothing beyond %d", r.r.t.id, g.Next, c.id, lost)
	}
}

// failed: no task fails.
func (o *oracle) failed(r *taskRun, err error) { o.w.fail("%s failed: %v", r.r.t.id, err) }

// written holds every change of an epoch's key against the rules.
func (o *oracle) written(old abs.EpochRecord, existed bool, r abs.EpochRecord) {
	legal := map[abs.EpochState][]abs.EpochState{
		abs.Started: {abs.Started, abs.Aborted, abs.Committed}, abs.Committed: {abs.Replicated, abs.Aborted},
	}
	switch {
	case !existed && r.State != abs.Started, existed && !slices.Contains(legal[old.State], r.State):
		o.w.fail("%v goes from %q to %q by term %d", r.Epoch, old.State, r.State, r.Term)
	case existed && r.Term < old.Term:
		o.w.fail("%v: term %d writes after term %d", r.Epoch, r.Term, old.Term)
	case o.w.profile.steady && r.State == abs.Aborted && !o.w.topo.mayAbort(r.Reason):
		o.w.fail("%v is aborted although nothing is broken: %s", r.Epoch, r.Reason)
	}
	for _, agent := range r.Detached {
		if !o.w.topo.plan(o.w.gen).Gateway(agent) {
			o.w.fail("%v does not wait for %s, which takes data from others", r.Epoch, agent)
		}
	}
	if before, ok := o.w.kv.record(r.Epoch - 1); !existed && ok && before.Record.State == abs.Started {
		o.w.fail("%v starts while the one before it runs", r.Epoch)
	}
	o.decided(r)
	o.w.chaos.count("epoch " + string(r.State))
	if len(r.Detached) > 0 && r.Manifest() {
		o.w.chaos.count("committed with agents detached")
	}
	if r.State == abs.Aborted && strings.HasPrefix(r.Reason, "channel ") {
		o.w.chaos.count("aborted for numbers that do not fit")
	}
	if r.State == abs.Replicated && o.ends != nil && o.ends.record.Epoch > r.Epoch { // from a coordinator that was slow to say so: nobody needs it any more
		o.w.chaos.count("replicated after a newer one")
		return
	}
	if r.Manifest() {
		o.committed(r)
	}
	if r.Counts(o.w.profile.checkpoints.Replicate) {
		o.released(r)
		o.ends = o.commits[len(o.commits)-1]
	}
}

// committed: every part is on its disk, loads, and the numbers fit together.
func (o *oracle) committed(r abs.EpochRecord) {
	if err := abs.Check(o.w.topo.plan(o.w.gen), abs.ExactlyOnce, r.Parts); err != nil && !o.w.rules.trustNumbers {
		o.w.fail("%v is committed although %v", r.Epoch, err)
	}
	c := &checkpoint{record: through(r), parts: map[abs.TaskID]*savedPart{}, handed: map[string]abs.Seq{}, from: o.w}
	for _, t := range o.w.topo.tasks {
		disk := store{o.w.agent(t.agent).disk}
		version := dataflow.Version(r.Parts[t.id].Version)
		state, err := disk.state(t.name(), version)
		if err != nil {
			o.w.fail("%v is committed, but %v", r.Epoch, err)
		}
		for _, p := range disk.of(t.name()).list {
			if p.info.Version == version {
				part := &savedPart{info: p.info, changes: state}
				part.info.Full = true
				c.parts[t.id] = part
			}
		}
		rep, err := dataflow.ReportOf(c.parts[t.id].info)
		if err != nil || !maps.Equal(rep.Cut.Sent, r.Parts[t.id].Cut.Sent) || !maps.Equal(rep.Cut.Consumed, r.Parts[t.id].Cut.Consumed) || !maps.Equal(rep.Cut.Logged, r.Parts[t.id].Cut.Logged) {
			o.w.fail("%v: the manifest says of %s %+v, its part %+v (%v)", r.Epoch, t.id, r.Parts[t.id].Cut, rep.Cut, err)
		}
	}
	for _, t := range o.w.topo.tasks {
		for id, n := range r.Parts[t.id].Cut.Logged {
			if n > r.Parts[t.id].Cut.Consumed[id]+1 {
				o.w.chaos.count("records in a loop at the cut")
			}
		}
	}
	o.commits = append(o.commits, c)
}

// finished says whether all is delivered and, two counting checkpoints later, or one since which nothing
// has changed, nothing is kept that is needed no more.
func (o *oracle) finished() bool {
	if o.why = o.lacking(); o.why != "" {
		return false
	}
	if o.restore != nil {
		return true
	}
	epochs := o.w.kv.epochs()
	if !o.marked {
		o.mark, o.marked = epochs[len(epochs)-1], true
	}
	if o.why = o.w.behind(); o.why != "" {
		return false
	}
	if o.why = o.kept(); o.why == "" && o.w.profile.finishes {
		o.why = o.unended()
	}
	return o.why == ""
}

// unended names a task whose part in the newest checkpoint that counts does not say that it has ended.
func (o *oracle) unended() string {
	if o.ends == nil {
		return "no checkpoint counts"
	}
	for _, t := range o.w.topo.tasks {
		if rep, err := dataflow.ReportOf(o.ends.parts[t.id].info); err != nil || !rep.Ended {
			return fmt.Sprintf("%s has not ended in %v (%v)", t.id, o.ends.record.Epoch, err)
		}
	}
	return ""
}

// lacking says what has not been delivered yet.
func (o *oracle) lacking() string {
	if o.w.next != nil {
		if ids := o.missing(); len(ids) > 0 {
			return fmt.Sprintf("records %v are not delivered", ids)
		}
	} else if want := o.expected(); o.w.outside.items < want {
		return fmt.Sprintf("%d of %d items are delivered, missing %v", o.w.outside.items, want, o.missing())
	}
	for _, b := range o.w.brokers {
		if n := b.acknowledged(); n < len(b.messages) && (o.restore == nil || o.w.next != nil) {
			return fmt.Sprintf("%d of %d messages of %s are acknowledged", n, len(b.messages), b.t.id)
		}
	}
	return ""
}

// missing lists the records that are not accounted for.
func (o *oracle) missing() (ids []uint32) {
	n := o.accounts()
	for _, m := range o.w.outside.messages {
		if n[m.id] != o.w.topo.copies(m) && !o.w.next.loses(m.id) {
			ids = append(ids, m.id)
		}
	}
	return ids
}

// accounts counts, for every record, the ways to sinks at whose end it has come out or on which it was
// given up.
func (o *oracle) accounts() map[uint32]int {
	n := map[uint32]int{}
	for channel, of := range o.w.outside.got {
		o.count(n, channel, of, math.MaxUint64)
	}
	if o.restore != nil {
		for channel, handed := range o.restore.handed {
			o.count(n, channel, o.restore.from.outside.got[channel], handed)
		}
	}
	for _, a := range o.w.agents {
		for key, rec := range a.disk.dead {
			if _, again := a.disk.replayed[key]; again {
				continue
			}
			task, _, _ := strings.Cut(taskOf(key), " ")
			n[decodeValue(rec).id] += o.w.topo.task(task).paths()
		}
	}
	return n
}

// count adds what a sink got up to a number.
func (o *oracle) count(n map[uint32]int, channel string, got map[abs.Seq][]byte, upto abs.Seq) {
	for number, content := range got {
		if number > upto {
			continue
		}
		r, _, err := frame.Next(content)
		if err != nil {
			o.w.fail("%s: %v", channel, err)
		}
		n[decodeValue(r.Value).id]++
	}
}

// expected is how many items must come out.
func (o *oracle) expected() int {
	n := 0
	for _, m := range o.w.outside.messages {
		n += o.w.topo.copies(m)
	}
	for _, a := range o.w.agents {
		for key := range a.disk.dead {
			if _, again := a.disk.replayed[key]; again {
				continue
			}
			task, _, _ := strings.Cut(taskOf(key), " ")
			n -= o.w.topo.task(task).paths()
		}
	}
	if o.restore != nil {
		for _, handed := range o.restore.handed {
			n -= int(handed)
		}
	}
	return n
}

// Bounds of what may be left when nothing flows but barriers.
const (
	leftEntries = 24 // of a task's log: what belongs to the epochs since the counting one
	leftFrames  = 14 // of a channel
	leftParts   = 4
)

// kept says what is kept that should be gone.
func (o *oracle) kept() string {
	for _, a := range o.w.agents {
		if a.proc == nil || a.proc.counted < o.mark+2 && !o.rests(a.proc) || a.proc.purges > 0 {
			return a.name + " has not taken the second counting checkpoint"
		}
		for _, r := range a.proc.runners {
			if n := r.log.kept(); n > leftEntries {
				return fmt.Sprintf("the log of %s keeps %d entries", r.t.id, n)
			}
			parts, err := store{a.disk}.Parts(r.t.name())
			if err != nil || len(parts) > leftParts {
				return fmt.Sprintf("%s keeps %d parts (%v)", r.t.id, len(parts), err)
			}
			if r.run == nil {
				return fmt.Sprintf("%s does not run", r.t.id)
			}
			if st := r.run.task.Status(); st.HandedOver < r.counted || st.Held > leftFrames || st.Unhanded > 0 {
				return fmt.Sprintf("%s has sent up to %d, the counting part is at %d; %d items are held, %d are for its sink", r.t.id, st.HandedOver, r.counted, st.Held, st.Unhanded)
			}
		}
	}
	for _, a := range o.w.agents {
		for _, name := range slices.Sorted(mapKeys(a.disk.spools)) {
			if n := a.disk.spools[name].kept(); n > leftFrames {
				return fmt.Sprintf("the spool %s keeps %d entries", name, n)
			}
		}
	}
	for _, t := range o.w.topo.tasks {
		of := map[int]int{}
		for _, f := range o.w.streams[t.id].frames {
			if of[f.channel]++; of[f.channel] > leftFrames {
				return fmt.Sprintf("the stream of %s keeps frames: %s", t.id, o.w.streams[t.id])
			}
		}
	}
	return ""
}

// rests says whether the newest epoch counts for an agent and nothing has changed since on any.
func (o *oracle) rests(p *process) bool {
	epochs := o.w.kv.epochs()
	newest := epochs[len(epochs)-1]
	return p.counted == newest && !slices.ContainsFunc(o.w.agents, func(a *agent) bool { return a.quiet != newest })
}

// atEnd: every record has had its effect once, in states and outside, or is a dead letter.
func (o *oracle) atEnd() {
	n := o.accounts()
	for _, m := range o.w.outside.messages {
		if want := o.w.topo.copies(m); n[m.id] > want || n[m.id] < want && !o.w.next.loses(m.id) {
			o.w.fail("record %d of %s is accounted for %d times, not %d", m.id, m.from.id, n[m.id], want)
		}
	}
	for _, t := range o.w.topo.tasks {
		if t.sink {
			o.sinkAtEnd(string(t.id) + ">out")
		}
	}
}

// sinkAtEnd: numbers without gap, and as many records in the state as numbers.
func (o *oracle) sinkAtEnd(channel string) {
	got := o.w.outside.got[channel]
	total, before := len(got), abs.Seq(0)
	if o.restore != nil {
		before = o.restore.handed[channel]
		total += int(before)
	}
	for n := abs.Seq(1); n <= abs.Seq(total); n++ {
		content, ok := got[n]
		if n <= before {
			content, ok = o.restore.from.outside.got[channel][n]
		}
		if !ok {
			o.w.fail("%s: number %d is missing, of %d", channel, n, total)
		}
		r, _, err := frame.Next(content)
		if err != nil {
			o.w.fail("%v", err)
		}
		v := decodeValue(r.Value)
		if v.count != uint64(n) {
			o.w.fail("%s: number %d is the operator's record %d: its state is not what it has sent", channel, n, v.count)
		}
	}
}
