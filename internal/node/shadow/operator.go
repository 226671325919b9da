package shadow

import (
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/weir-stream/weir/dataflow"
)

// operator is the running version's instance, with a run of the new one beside it while there is one. It belongs to
// the task's goroutine.
type operator struct {
	slot  *Slot
	old   dataflow.Operator
	timed dataflow.TimedOperator // nil: time does not matter to it
	spec  dataflow.OperatorSpec

	run    *run
	moment *item // under way
	due    bool  // a call of it has come out of Next and was not made
}

var _ dataflow.TimedOperator = (*operator)(nil)

// Beside wraps an instance of the running version, so that what is wanted of the slot runs beside it.
func (s *Slot) Beside(op dataflow.Operator, spec dataflow.OperatorSpec) dataflow.Operator {
	o := &operator{slot: s, old: op, spec: spec}
	o.timed, _ = op.(dataflow.TimedOperator)
	return o
}

// follow returns the run that is to take a call with so many records; nil: there is none.
func (o *operator) follow(records int) *run {
	w := o.slot.wanted.Load()
	if w == nil && o.run == nil {
		return nil
	}
	if o.run != nil && (o.run.wanted != w || o.run.queue.over()) {
		o.leave()
	}
	if o.run == nil && w != nil {
		if o.run = o.slot.begin(w, o.old, o.spec); o.run == nil {
			o.slot.skip(w, records)
		}
	}
	return o.run
}

// leave gives the run nothing more.
func (o *operator) leave() {
	o.run.queue.close()
	o.slot.left(o.run)
	o.run, o.moment = nil, nil
}

// give hands a call to the run.
func (o *operator) give(it *item) {
	switch o.run.queue.push(it) {
	case full:
		o.slot.behind(o.run.wanted, it.batch.Count)
		o.leave()
	case over:
		o.slot.skip(o.run.wanted, it.batch.Count)
		o.leave()
	}
}

// Process implements [dataflow.Operator].
func (o *operator) Process(b dataflow.Batch, emit dataflow.Emit) error {
	if o.follow(b.Count) == nil {
		return o.old.Process(b, emit)
	}
	it := &item{batch: b}
	it.batch.Payload = slices.Clone(b.Payload)
	err := o.watch(it, emit, func(emit dataflow.Emit) error { return o.old.Process(b, emit) })
	if err == nil {
		o.give(it)
		return nil
	}
	var guest *dataflow.GuestError
	if errors.As(err, &guest) && b.Count == 1 && o.slot.refuses(it) {
		it.refused = true
		o.give(it)
	}
	if o.run != nil { // the task goes back to its snapshot, and takes the records again
		o.leave()
	}
	return err
}

// watch makes a call of the running version and notes what it puts out, and how long it takes.
func (o *operator) watch(it *item, emit dataflow.Emit, call func(dataflow.Emit) error) error {
	began := o.slot.opt.Now()
	err := call(func(output int, payload []byte, count int) error {
		at := o.slot.opt.Now()
		err := emit(output, payload, count)
		if err == nil {
			it.put(output, payload)
		}
		it.took -= o.slot.opt.Now().Sub(at)
		return err
	})
	it.took += o.slot.opt.Now().Sub(began)
	return err
}

// Advance implements [dataflow.TimedOperator].
func (o *operator) Advance(m dataflow.Moment) {
	o.moment, o.due = nil, false
	if o.follow(0) != nil {
		o.moment = &item{moment: &m, batch: dataflow.Batch{Stamp: m.Stamp}}
	}
	if o.timed != nil {
		o.timed.Advance(m)
	}
}

// Next implements [dataflow.TimedOperator]. When no call is due any more, the moment is over, and the new version's
// turn: it may have other calls to be made.
func (o *operator) Next() (c dataflow.TimeCall, due bool) {
	if o.timed != nil {
		c, due = o.timed.Next()
	}
	if o.moment == nil {
		return c, due
	}
	if o.due { // the task has given it up
		o.moment.partial = true
	}
	if o.due = due; !due {
		it := o.moment
		o.moment = nil
		o.give(it)
	}
	return c, due
}

// Call implements [dataflow.TimedOperator].
func (o *operator) Call(c dataflow.TimeCall, emit dataflow.Emit) error {
	if o.moment == nil {
		return o.timed.Call(c, emit)
	}
	o.due = false
	err := o.watch(o.moment, emit, func(emit dataflow.Emit) error { return o.timed.Call(c, emit) })
	if err != nil {
		o.leave()
	}
	return err
}

// NextTick implements [dataflow.TimedOperator]: timers that only the new version has set make no ticks.
func (o *operator) NextTick() (at int64, ok bool) {
	if o.timed == nil {
		return 0, false
	}
	return o.timed.NextTick()
}

// Freeze implements [dataflow.Operator].
func (o *operator) Freeze(full bool) ([]dataflow.Change, error) { return o.old.Freeze(full) }

// Close implements [dataflow.Operator]. The run finishes what it was given; nobody waits for it here.
func (o *operator) Close() error {
	if o.run != nil {
		o.leave()
	}
	return o.old.Close()
}

// refuses says whether the one record of a call that the running version has refused is another one than before.
func (s *Slot) refuses(it *item) bool {
	now := refusedRecord{it.batch.Stamp, sha256.Sum256(it.batch.Payload)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == now {
		return false
	}
	s.refused = now
	return true
}

// item is a call of the running version and what it put out.
type item struct {
	batch   dataflow.Batch
	moment  *dataflow.Moment // nil: it is about the batch
	refused bool             // the running version has refused the one record of the batch
	partial bool             // not all calls that the moment made due were made
	out     [][]byte         // by output
	took    time.Duration
}

func (it *item) put(output int, payload []byte) {
	for len(it.out) <= output {
		it.out = append(it.out, nil)
	}
	it.out[output] = append(it.out[output], payload...)
}

// bytes is about what the item takes in memory.
func (it *item) bytes() int {
	n := 256 + len(it.batch.Payload)
	for _, p := range it.out {
		n += cap(p)
	}
	return n
}
