package shadow

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/weir-stream/weir/dataflow"
)

// run is one instance of the new version, from its beginning to its end. Serve is its goroutine.
type run struct {
	slot   *Slot
	wanted *Wanted
	spec   dataflow.OperatorSpec
	state  dataflow.StateReader
	queue  queue
	under  int // records of the call under way
}

// queue is the calls that the new version has not come to.
type queue struct {
	mu     sync.Mutex
	some   *sync.Cond
	items  []*item
	bytes  int
	closed bool // nothing more comes; what is there is taken
	dead   bool // nothing is taken any more
}

// pushed is what became of an item.
type pushed uint8

const (
	taken pushed = iota
	full
	over // nothing is taken any more
)

func (q *queue) init() { q.some = sync.NewCond(&q.mu) }

func (q *queue) push(it *item) pushed {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch n := it.bytes(); {
	case q.dead:
		return over
	case len(q.items) == maxItems || len(q.items) > 0 && q.bytes+n > maxBytes:
		return full
	default:
		q.items, q.bytes = append(q.items, it), q.bytes+n
	}
	q.some.Signal()
	return taken
}

// pop waits for an item; false: none will come.
func (q *queue) pop() (*item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && !q.closed && !q.dead {
		q.some.Wait()
	}
	if q.dead || len(q.items) == 0 {
		return nil, false
	}
	it := q.items[0]
	q.items[0] = nil
	q.items, q.bytes = q.items[1:], q.bytes-it.bytes()
	return it, true
}

func (q *queue) over() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dead
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.some.Signal()
}

// abandon drops what is there, takes nothing more, and returns how many records were dropped.
func (q *queue) abandon() (records int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range q.items {
		records += it.batch.Count
	}
	q.items, q.bytes, q.dead = nil, 0, true
	q.some.Signal()
	return records
}

// serve makes the instance and lets it take what the running version took. A panic is a broken invariant of the host:
// it ends the run and nothing else, and the instance is left as it is.
func (r *run) serve() {
	defer r.slot.ended(r)
	defer func() {
		if v := recover(); v != nil {
			r.slot.opt.Log.Error("broken invariant in a shadow; please report it", "panic", v, "stack", string(debug.Stack()))
			r.fail(fmt.Errorf("broken invariant: %v", v))
		}
	}()
	op, err := r.slot.opt.Makers.New(context.Background(), r.spec, r.state)
	if r.state = nil; err != nil {
		r.fail(fmt.Errorf("it does not start: %w", err))
		return
	}
	r.slot.comparing(r)
	for it, ok := r.queue.pop(); ok; it, ok = r.queue.pop() {
		r.under = it.batch.Count
		if err := r.take(op, it); err != nil {
			r.fail(err)
			break
		}
	}
	if err := op.Close(); err != nil {
		r.slot.opt.Log.Warn("the instance of a version in the shadow is not closed", "error", err)
	}
}

// fail ends the run; what it was given and did not compare is counted.
func (r *run) fail(err error) {
	records := r.under + r.queue.abandon()
	s := r.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.of(r.wanted) {
		return
	}
	s.failed(err)
	s.status.Skipped += uint64(records)
	if s.current == r {
		s.status.State = Resting
	}
}

// take lets the new version take what the running one took, and compares what they put out.
func (r *run) take(op dataflow.Operator, it *item) error {
	out := item{}
	began := r.slot.opt.Now()
	err := r.call(op, it, &out)
	out.took += r.slot.opt.Now().Sub(began)
	if it.refused { // the last call of the run
		r.slot.noteRefused(r.wanted, err)
		return nil
	}
	if err != nil {
		return err
	}
	v, err := compare(it.out, out.out, r.spec.Outputs)
	if err != nil {
		return err
	}
	r.slot.note(r.wanted, it, out.took, v)
	return nil
}

// call calls the new version for one item.
func (r *run) call(op dataflow.Operator, it *item, out *item) error {
	total := 0
	emit := func(output int, payload []byte, _ int) error {
		at := r.slot.opt.Now()
		if output < 0 || output >= len(r.spec.Outputs) {
			return fmt.Errorf("output %d, the operator has %d", output, len(r.spec.Outputs))
		}
		if total += len(payload); total > maxOutput {
			return fmt.Errorf("output of more than %d bytes in one call", maxOutput)
		}
		out.put(output, payload)
		out.took -= r.slot.opt.Now().Sub(at)
		return nil
	}
	if it.moment == nil {
		return op.Process(it.batch, emit)
	}
	timed, ok := op.(dataflow.TimedOperator)
	if !ok {
		return nil
	}
	timed.Advance(*it.moment)
	for c, due := timed.Next(); due && !r.queue.over(); c, due = timed.Next() {
		if err := timed.Call(c, emit); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

// comparing notes that the instance is there.
func (s *Slot) comparing(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of(r.wanted) && s.current == r {
		s.status.State = Comparing
	}
}

// ended notes that the run has come to its end.
func (s *Slot) ended(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, r)
}

// left notes that the run is given nothing more.
func (s *Slot) left(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == r {
		s.current = nil
		if s.of(r.wanted) {
			s.status.State = Resting
		}
	}
}

// behind notes that the new version has fallen too far behind.
func (s *Slot) behind(w *Wanted, records int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of(w) {
		s.status.Behind++
		s.status.Skipped += uint64(records)
	}
}

// noteRefused notes what the new version made of a record that the running one refused.
func (s *Slot) noteRefused(w *Wanted, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.of(w):
	case err == nil:
		s.status.Mended++
	default:
		s.status.RefusedBoth++
	}
}

// note notes what came of a call that both versions took.
func (s *Slot) note(w *Wanted, it *item, took time.Duration, v verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.of(w):
		return
	case it.partial: // a call that the running version failed on was given up as one record is
		s.status.Skipped++
		return
	}
	st := &s.status
	before := st.Records
	st.Records += uint64(it.batch.Count)
	st.Equal, st.Different = st.Equal+v.equal, st.Different+v.different
	if n := uint64(it.batch.Count); n > 0 {
		s.old = spent{s.old.time + it.took, s.old.records + n}
		s.fresh = spent{s.fresh.time + took, s.fresh.records + n}
	}
	if v.first == nil || st.First != nil {
		return
	}
	st.First = v.first
	st.First.At = time.UnixMilli(it.batch.Stamp).UTC()
	if st.First.From = before; it.moment == nil {
		st.First.From, st.First.To = before+1, st.Records
	}
	s.opt.Log.Warn("a version in the shadow puts out something else", "version", w.Version.Module, "output", v.first.Output,
		"key", v.first.Key, "differs", v.first.Part, "running", v.first.Old, "shadow", v.first.New)
}

// short cuts a text to so many bytes.
func short(s string, most int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
