package weir

import "errors"

// MainOutput is the name of the output that every operator has.
const MainOutput = "out"

// Operator says what an operator does.
type Operator struct {
	// Outputs are the names of side outputs, besides [MainOutput].
	Outputs []string
	// Init is called once, before the first record; it may be nil. An error refuses the job's
	// configuration.
	Init func(c Config) error
	// Process is called for each record in order. An error, or a panic, is a failure at this record: the job's
	// policy for the operator (on_error) decides what becomes of it, and the operator's state is put back
	// to what it was before.
	Process func(r Record, out *Out) error
	// OnTimer is called for each timer that [SetTimer] has set, once its time has come. It may be nil if none
	// is ever set. Errors are as in Process: state is put back, and the timer is given up.
	OnTimer func(t Timer, out *Out) error
	// OnWatermark is called when the watermark has moved on, after the timers that it makes due; at is the
	// new watermark, [EndOfTime] at the end of the input. It may be nil.
	OnWatermark func(at int64, out *Out) error
	// OnEnd is called once when the input has ended, after the timers and OnWatermark; nothing follows. It
	// may be nil.
	OnEnd func(out *Out) error
}

// registered is the module's operator and its outputs.
var registered runner

// Register makes op the operator of this module. It is called once, from an init function: main does
// not run in a module.
func Register(op Operator) {
	if op.Process == nil {
		panic("weir.Register: Process is nil")
	}
	registered = runner{op: op}
}

// runner runs an operator on batches.
type runner struct {
	op  Operator
	out Out
}

// init opens the outputs and initialises the operator.
func (r *runner) init() error {
	if r.op.Process == nil {
		return errors.New("no operator: call weir.Register from an init function")
	}
	r.out.outputs = []output{openOutput(MainOutput)}
	for _, name := range r.op.Outputs {
		r.out.outputs = append(r.out.outputs, openOutput(name))
	}
	if r.op.Init == nil {
		return nil
	}
	return r.op.Init(Config{})
}

var errBatch = errors.New("malformed batch from the host")

// process runs one batch and hands over what came out.
func (r *runner) process(input int, batch []byte, count int) error {
	r.out.reset()
	for ; count > 0; count-- {
		rec, rest, ok := nextRecord(batch)
		if !ok {
			return errBatch
		}
		rec.Input = input
		if err := r.op.Process(rec, &r.out); err != nil {
			return err
		}
		batch = rest
	}
	r.out.flush()
	return nil
}

// timer runs OnTimer and hands over what came out.
func (r *runner) timer(t Timer) error {
	if r.op.OnTimer == nil {
		return errors.New("a timer is due and Operator.OnTimer is nil")
	}
	r.out.reset()
	if err := r.op.OnTimer(t, &r.out); err != nil {
		return err
	}
	r.out.flush()
	return nil
}

func (r *runner) watermark(at int64) error {
	if r.op.OnWatermark == nil {
		return nil
	}
	r.out.reset()
	if err := r.op.OnWatermark(at, &r.out); err != nil {
		return err
	}
	r.out.flush()
	return nil
}

func (r *runner) end() error {
	if r.op.OnEnd == nil {
		return nil
	}
	r.out.reset()
	if err := r.op.OnEnd(&r.out); err != nil {
		return err
	}
	r.out.flush()
	return nil
}

// Out takes what an operator emits. What is given to it is copied.
type Out struct {
	outputs []output
}

// output collects what one batch emits on one output.
type output struct {
	name  string
	index int32 // -1: the job does not use it
	buf   []byte
	count uint32
}

func openOutput(name string) output { return output{name: name, index: hostOutputOpen(name)} }

// Emit emits a record on the main output. Time is the event time in milliseconds since 1970.
func (o *Out) Emit(key []byte, time int64, value []byte) {
	o.outputs[0].add(key, nil, time, value)
}

// EmitTo emits a record on the output of that name. A name that is neither [MainOutput] nor in
// Operator.Outputs is a mistake and panics.
func (o *Out) EmitTo(output string, key []byte, time int64, value []byte) {
	o.named(output).add(key, nil, time, value)
}

// EmitRecord emits a whole record, with its headers, on the output of that name.
func (o *Out) EmitRecord(output string, r Record) {
	o.named(output).add(r.Key, r.Headers, r.Time, r.Value)
}

func (o *Out) named(name string) *output {
	for i := range o.outputs {
		if o.outputs[i].name == name {
			return &o.outputs[i]
		}
	}
	panic("operator has no output " + name + ": name it in Operator.Outputs")
}

func (o *output) add(key, headers []byte, time int64, value []byte) {
	if o.index < 0 {
		return
	}
	o.buf = appendRecord(o.buf, key, headers, time, value)
	o.count++
}

func (o *Out) reset() {
	for i := range o.outputs {
		o.outputs[i].buf, o.outputs[i].count = o.outputs[i].buf[:0], 0
	}
}

// flush gives each output's records to the host, which reads the buffers when the call has returned:
// they are not touched before the next batch.
func (o *Out) flush() {
	for _, out := range o.outputs {
		if out.count > 0 {
			hostEmit(out.index, out.buf, out.count)
		}
	}
}
