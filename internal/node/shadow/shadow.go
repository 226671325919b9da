// Package shadow runs a new version of an operator beside the one that runs, on the same input, and compares what
// both put out. Nothing of the new one leaves it.
//
// Invariants:
//   - The running version is called as it would be alone, in the same order and by the same goroutine, and what it
//     returns and emits is handed on unchanged. The new one is called by a goroutine of its own.
//   - The task waits for the new version at no time. What it has not come to is bounded by maxItems and maxBytes: when it
//     is further behind, it is given up and begun anew.
//   - What was not compared is counted.
//
// A run of the new version begins with a copy of the state that the running version has then, and keeps its own from
// there on. It ends when it fails, falls behind, or the running version's instance ends: with the task, with the agent,
// or since a record was refused, after which the task goes back to its snapshot. So that beginning anew, for which
// state is copied, never costs the task much, it is limited (maxBegins, beginEvery).
package shadow

import (
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-stream/weir/dataflow"
)

// Bounds of a shadow.
const (
	// maxItems and maxBytes bound the calls that wait for the new version with what the running one put out: a task that
	// catches up after a pause makes some hundreds of them at once.
	maxItems = 4096
	maxBytes = 32 << 20
	// maxBegins in a row; another one is allowed every beginEvery. A record that the running version refuses ends its
	// instance three times.
	maxBegins  = 4
	beginEvery = 15 * time.Second
	// maxLive bounds the runs at a time: one that is given nothing more may not have come to its end.
	maxLive = 2
	// maxOutput bounds what one call of the new version puts out, in bytes: what the host allows a guest at most.
	maxOutput = 32 << 20
	// maxTime bounds the time limit of the new version, since an agent that ends waits for a call that is under way.
	maxTime = 10 * time.Second
	// maxText and maxReason bound what is shown of a key or value, and of a reason, in bytes.
	maxText   = 60
	maxReason = 1 << 10
)

// Suffix is added to an operator's name for what the shadow logs and counts.
const Suffix = " (shadow)"

// Wanted is a new version that is to run beside an operator.
type Wanted struct {
	// Number tells it from others that were wanted before.
	Number  uint64
	Version dataflow.OpVersion
	// With says, for people, what of the running version's state it begins with.
	With string
}

// Options of a slot.
type Options struct {
	Makers dataflow.Operators // make the new version
	Go     func(func())       // runs a function in the background; whoever gives it waits for all of them
	Now    func() time.Time   // for times that are shown and the pace of beginning; nil: the machine's clock
	Log    *slog.Logger
}

// Slot is the place beside one operator of a task. It outlives the operator's instances. Its methods may be called
// by any goroutine.
type Slot struct {
	opt    Options
	wanted atomic.Pointer[Wanted]

	mu      sync.Mutex
	status  Status
	known   bool              // there is a status
	current *run              // takes items; nil: none
	live    map[*run]struct{} // have not ended
	begins  int               // still allowed
	begunAt time.Time
	refused refusedRecord
	old     spent // by the running version, for the records that were compared
	fresh   spent // by the new one
}

// refusedRecord is what the running version has refused last, so that it is counted once: the task takes it again.
type refusedRecord struct {
	stamp int64
	sum   [32]byte
}

// spent is time for records.
type spent struct {
	time    time.Duration
	records uint64
}

func (s spent) perRecord() time.Duration {
	if s.records == 0 {
		return 0
	}
	return s.time / time.Duration(s.records)
}

// NewSlot returns a slot in which nothing runs.
func NewSlot(opt Options) *Slot {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	return &Slot{opt: opt, begins: maxBegins, begunAt: opt.Now(), live: map[*run]struct{}{}}
}

// Prepare shows a version that is to run, and what it waits for: it ends the one before.
func (s *Slot) Prepare(w Wanted, state State, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known || s.status.Number != w.Number {
		s.reset()
		s.known, s.status = true, Status{Wanted: w}
	}
	s.status.State, s.status.Reason = state, reason
}

// Run lets a version run, from the next call of the operator on.
func (s *Slot) Run(w Wanted) {
	s.Prepare(w, Waiting, "")
	s.wanted.Store(&w)
}

// End ends what runs. Nothing is shown of it any more.
func (s *Slot) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset()
}

// reset ends what runs and forgets what came of it. The caller holds mu.
func (s *Slot) reset() {
	s.wanted.Store(nil)
	for r := range s.live {
		r.queue.abandon()
	}
	s.current, s.known, s.status = nil, false, Status{}
	s.old, s.fresh, s.refused = spent{}, spent{}, refusedRecord{}
	s.begins = maxBegins
}

// Status says what came of the version that is wanted; false: none is.
func (s *Slot) Status() (Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.OldPerRecord, st.NewPerRecord = s.old.perRecord(), s.fresh.perRecord()
	return st, s.known
}

// begin starts a run beside an instance that is at rest; nil if there is none to be begun now.
func (s *Slot) begin(w *Wanted, old dataflow.Operator, spec dataflow.OperatorSpec) *run {
	now := s.opt.Now()
	if !s.admits(w, now) {
		return nil
	}
	state, with, err := copyOf(old, w.With)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanted.Load() != w {
		return nil
	}
	if err != nil {
		s.failed(err)
		s.status.State = Resting
		return nil
	}
	r := &run{slot: s, wanted: w, spec: newSpec(spec, w.Version), state: state}
	r.queue.init()
	if s.status.Begins == 0 {
		s.status.Since = now
	}
	s.status.Begins++
	s.status.State, s.status.Reason, s.status.Begun, s.status.With = Starting, "", now, with
	s.current, s.live[r] = r, struct{}{}
	s.opt.Go(r.serve)
	return r
}

// admits takes one of the beginnings that are allowed; false if none is.
func (s *Slot) admits(w *Wanted, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanted.Load() != w || len(s.live) == maxLive {
		return false
	}
	if n := int(now.Sub(s.begunAt) / beginEvery); n > 0 {
		s.begins, s.begunAt = min(maxBegins, s.begins+n), s.begunAt.Add(time.Duration(n)*beginEvery)
	}
	if s.begins == 0 {
		return false
	}
	s.begins--
	return true
}

// copyOf is the state of an instance at rest, and what there is of it in words.
func copyOf(old dataflow.Operator, with string) (dataflow.StateReader, string, error) {
	c, ok := old.(interface {
		Copy() ([]dataflow.Change, error)
	})
	if !ok {
		return nil, "nothing: the state of the running version cannot be copied", nil
	}
	changes, err := c.Copy()
	if err != nil {
		return nil, "", err
	}
	return func(visit func(dataflow.Change) error) error {
		for _, ch := range changes {
			if err := visit(ch); err != nil {
				return err
			}
		}
		return nil
	}, with, nil
}

// newSpec is the operator in another version, to run beside it.
func newSpec(spec dataflow.OperatorSpec, v dataflow.OpVersion) dataflow.OperatorSpec {
	spec.Fresh = !sameCode(spec, v)
	spec.Module, spec.Digest, spec.Config, spec.Limits, spec.Anew = v.Module, v.Digest, v.Config, v.Limits, v.Anew
	spec.Limits.Time = min(spec.Limits.Time, maxTime)
	spec.As = spec.Name + Suffix
	return spec
}

// sameCode says whether the version can be restored from the variables of the running one.
func sameCode(spec dataflow.OperatorSpec, v dataflow.OpVersion) bool {
	return spec.Digest == v.Digest && maps.Equal(spec.Config, v.Config)
}

// failed notes that the new version has failed. The caller holds mu.
func (s *Slot) failed(err error) {
	s.status.Failed++
	s.status.Failure = short(err.Error(), maxReason)
	s.opt.Log.Warn("a version in the shadow has failed", "version", s.status.Version.Module, "reason", s.status.Failure)
}

// skip counts records that only the running version took.
func (s *Slot) skip(w *Wanted, records int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of(w) {
		s.status.Skipped += uint64(records)
	}
}

// of says whether the status is of that version. The caller holds mu.
func (s *Slot) of(w *Wanted) bool { return s.known && s.status.Number == w.Number }
