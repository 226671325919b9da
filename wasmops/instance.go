package wasmops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// phase says what an instance is doing.
type phase uint8

const (
	phaseRest    phase = iota // no guest code runs; the only time for snapshots
	phaseStart                // start function, _initialize
	phaseInit                 // weir_init
	phaseAlloc                // weir_alloc
	phaseProcess              // weir_process, weir_timer, weir_watermark, weir_end
	phaseMigrate              // weir_migrate_out, weir_migrate_in
	phaseLost                 // failed: to be closed
)

// Instance is one instance of an operator's module. It is used by one goroutine.
type Instance struct {
	host   *Host
	loaded *loaded
	spec   dataflow.OperatorSpec
	ctx    context.Context // to make and close the module
	calls  callContext
	mod    api.Module
	phase  phase

	// State that snapshots hold, besides the guest's memory and globals.
	keyed     *keyedState
	timers    *timers
	clock     clock
	random    random
	inputAt   uint32 // buffer that the guest gave for batches
	inputSize uint32

	// What is compared with at the next freeze, besides the shadow of the memory.
	frozen []byte // encoded globals of the last freeze

	globals []api.MutableGlobal
	fuel    api.MutableGlobal // what the call under way may still use, see meter.go
	depth   api.MutableGlobal // bytes of frames that it may still nest
	limits  limits
	linear  linear
	alloc   api.Function
	process api.Function
	// nil: the module does not export it
	onTimer, onWatermark, onEnd api.Function

	stack   [4]uint64
	opened  []string // outputs
	scratch []byte

	// Of the call under way.
	emissions []emission
	emitted   int64
	reason    string // given to fail
	text      text

	counters  map[string]struct{}
	logTokens int64
	toldTime  bool  // that it sets timers which nothing will call before the end
	logAt     int64 // stamp in milliseconds up to which tokens were given
}

var _ dataflow.TimedOperator = (*Instance)(nil)

// moduleConfig runs no guest code, and names no instance: many are of the same module.
func moduleConfig() wazero.ModuleConfig {
	return wazero.NewModuleConfig().WithName("").WithStartFunctions()
}

// instantiate makes the guest's memory and globals. No guest code runs.
func (in *Instance) instantiate() error {
	if need := in.loaded.module.MinMemory; need > in.limits.memory {
		return in.failure("needs %d bytes of memory to start, its limit is %d (limits.memory)", need, in.limits.memory)
	}
	mod, err := in.host.rt.InstantiateModule(in.ctx, in.loaded.compiled, moduleConfig())
	if err != nil {
		return in.guestError(err)
	}
	in.mod = mod
	in.alloc, in.process = mod.ExportedFunction(exportAlloc), mod.ExportedFunction(exportProcess)
	in.onTimer, in.onWatermark, in.onEnd = mod.ExportedFunction(exportTimer), mod.ExportedFunction(exportWatermark), mod.ExportedFunction(exportEnd)
	for _, name := range in.loaded.module.globals {
		in.globals = append(in.globals, mod.ExportedGlobal(name).(api.MutableGlobal))
	}
	in.fuel = mod.ExportedGlobal(reservedFuel).(api.MutableGlobal)
	in.depth = mod.ExportedGlobal(reservedDepth).(api.MutableGlobal)
	return nil
}

// initialize runs a fresh guest's own start-up code.
func (in *Instance) initialize() error {
	m := in.loaded.module
	if m.start {
		if _, err := in.call(phaseStart, in.limits.start(), in.mod.ExportedFunction(reservedStart)); err != nil {
			return err
		}
	}
	if m.initialize {
		if _, err := in.call(phaseStart, in.limits.start(), in.mod.ExportedFunction(exportInitialize)); err != nil {
			return err
		}
	}
	status, err := in.call(phaseInit, in.limits.start(), in.mod.ExportedFunction(exportInit))
	if err != nil {
		return err
	}
	if err := in.checkStatus(exportInit, status); err != nil {
		return err
	}
	in.linear.extend()
	return in.checkOutputs()
}

// checkOutputs refuses a job that reads an output which the module does not have.
func (in *Instance) checkOutputs() error {
	for _, used := range in.spec.Outputs {
		if !slices.Contains(in.opened, used) {
			in.phase = phaseLost
			return &dataflow.GuestError{Operator: in.spec.Name,
				Reason: fmt.Sprintf("has no output %q that the job reads; it has: %s", used, strings.Join(in.opened, ", "))}
		}
	}
	return nil
}

// call runs a guest function with so much fuel and returns its first result, if it has one.
func (in *Instance) call(p phase, fuel int64, f api.Function, params ...uint64) (uint32, error) {
	if in.phase != phaseRest {
		return 0, fmt.Errorf("operator %s: its instance is lost, or called while it runs", in.spec.Name)
	}
	copy(in.stack[:], params)
	in.reason, in.emissions, in.emitted = "", in.emissions[:0], 0
	in.phase = p
	in.fuel.Set(uint64(fuel))
	in.depth.Set(maxFrames)
	err := f.CallWithStack(&in.calls, in.stack[:])
	if err != nil {
		err = in.guestError(err)
	}
	in.text.end(in)
	if err != nil {
		return 0, err
	}
	in.phase = phaseRest
	return uint32(in.stack[0]), nil
}

// guestError turns the error of a guest's call into a [dataflow.GuestError]; the instance is lost.
// An error of the Go runtime comes from the host itself and is a broken invariant.
func (in *Instance) guestError(err error) error {
	in.phase = phaseLost
	if bug := runtime.Error(nil); errors.As(err, &bug) {
		panic(err)
	}
	if errors.Is(err, errFuel) {
		return in.outOfFuel()
	}
	var fault guestFault
	if errors.As(err, &fault) {
		return in.failure("%s", string(fault))
	}
	switch {
	case !strings.Contains(err.Error(), "wasm error: unreachable"):
	case int64(in.fuel.Get()) < 0:
		return in.outOfFuel()
	case int64(in.depth.Get()) < 0:
		return in.failure("calls nested more than about %d MiB deep: stack overflow", maxFrames>>20)
	}
	if in.reason != "" { // a guest that has no other way to end gives its reason and traps
		return in.failure("%s", in.reason)
	}
	if said := in.text.said(); said != "" { // a language's own words say more than its trap
		return in.failure("%s", said)
	}
	return in.failure("trapped: %s", err)
}

// outOfFuel is the failure of a call that did not end.
func (in *Instance) outOfFuel() error {
	return in.failure("ran longer than its limit of %s, counted in instructions (%d million for a record): an endless loop, or set limits.time of the operator higher",
		in.limits.time, in.limits.batch(1)/1e6)
}

// charge takes fuel for what a host function does on behalf of the guest.
func (in *Instance) charge(fuel int) {
	left := int64(in.fuel.Get()) - int64(fuel)
	in.fuel.Set(uint64(left))
	if left < 0 {
		panic(errFuel)
	}
}

// failure marks the instance as lost.
func (in *Instance) failure(format string, args ...any) error {
	in.phase = phaseLost
	reason := strings.ToValidUTF8(fmt.Sprintf(format, args...), "�")
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	return &dataflow.GuestError{Operator: in.spec.Name, Reason: reason}
}

func (in *Instance) checkStatus(export string, status uint32) error {
	switch {
	case status == 0:
		return nil
	case in.reason != "":
		return in.failure("%s", in.reason)
	}
	return in.failure("%s returned status %d", export, status)
}

// Process runs one batch in one call of the guest. Emit is called when the guest has succeeded and
// all its output has been checked: after an error of the guest nothing was emitted. Output of one
// call of the guest's emit is given as a whole, up to the output limit. An error of emit is returned as it
// is; the guest has then processed the batch.
func (in *Instance) Process(b dataflow.Batch, emit dataflow.Emit) error {
	in.clock.enter(b.Stamp)
	ptr, err := in.write(b.Payload)
	if err != nil {
		return err
	}
	status, err := in.call(phaseProcess, in.limits.batch(b.Count), in.process, uint64(uint32(b.Input)), uint64(ptr), uint64(len(b.Payload)), uint64(b.Count))
	if err != nil {
		return err
	}
	return in.handOn(exportProcess, status, emit)
}

// handOn gives emit what a call of the guest that returned this status has put out.
func (in *Instance) handOn(export string, status uint32, emit dataflow.Emit) error {
	if err := in.checkStatus(export, status); err != nil {
		return err
	}
	in.linear.extend()
	if err := in.checkEmissions(); err != nil {
		return err
	}
	for _, e := range in.emissions {
		payload, _ := in.mod.Memory().Read(e.ptr, e.size)
		if err := emit(e.output, payload, int(e.count)); err != nil {
			return err
		}
	}
	return nil
}

// write copies a batch to the guest's buffer.
func (in *Instance) write(payload []byte) (ptr uint32, err error) {
	if len(payload) > maxInput {
		return 0, fmt.Errorf("operator %s: batch of %d bytes, at most %d", in.spec.Name, len(payload), maxInput)
	}
	if len(payload) > int(in.inputSize) || in.inputSize == 0 {
		size := uint32(max(minInputBuffer, 1<<bits.Len(uint(max(len(payload), 1)-1))))
		if ptr, err = in.call(phaseAlloc, in.limits.batch(1), in.alloc, uint64(size)); err != nil {
			return 0, err
		}
		if ptr == 0 {
			return 0, in.failure("%s has no memory for a batch of %d bytes", exportAlloc, size)
		}
		if _, ok := in.mod.Memory().Read(ptr, size); !ok {
			return 0, in.failure("%s(%d) returned %d, which is not in its memory of %d bytes", exportAlloc, size, ptr, in.mod.Memory().Size())
		}
		in.inputAt, in.inputSize = ptr, size
	}
	if !in.mod.Memory().Write(in.inputAt, payload) {
		return 0, in.failure("its buffer for batches is no longer in its memory")
	}
	return in.inputAt, nil
}

// checkEmissions checks all output of a call before any of it is handed on.
func (in *Instance) checkEmissions() error {
	for i, e := range in.emissions {
		payload, ok := in.mod.Memory().Read(e.ptr, e.size)
		if !ok { // it was there when emit was called, and memory does not shrink
			panic(fmt.Sprintf("operator %s: emission %d has left its memory", in.spec.Name, i))
		}
		n, err := frame.Count(payload)
		if err != nil {
			return in.failure("output %s is malformed after %d records: %s", in.spec.Outputs[e.output], n, err)
		}
		if n != int(e.count) {
			return in.failure("output %s has %d records, emit said %d", in.spec.Outputs[e.output], n, e.count)
		}
	}
	return nil
}

// Close frees the instance. It may be called in any state, once.
func (in *Instance) Close() error {
	in.phase = phaseLost
	var err error
	if in.mod != nil {
		err = in.mod.Close(in.ctx)
	}
	in.linear.Free() // a module that was not made leaves its memory behind
	return errors.Join(err, in.host.release(in.ctx, in.loaded))
}

// told is the name under which the instance speaks.
func (in *Instance) told() string { return cmp.Or(in.spec.As, in.spec.Name) }

// log passes a line on, within the rate.
func (in *Instance) log(level LogLevel, line string) {
	if gained := (in.clock.stamp - in.logAt) * in.limits.logRate / 1000; gained > 0 {
		in.logTokens, in.logAt = min(in.limits.logBurst(), in.logTokens+gained), in.clock.stamp
	}
	if in.logTokens == 0 {
		in.host.opt.Observer.LogDropped(in.spec.Task, in.told(), 1)
		return
	}
	in.logTokens--
	in.host.opt.Observer.Log(in.spec.Task, in.told(), level, strings.ToValidUTF8(line, "�"))
}

// metric admits a name; beyond the limit they are a fault, since each is kept for ever.
func (in *Instance) metric(name string) {
	if _, known := in.counters[name]; !known {
		if len(in.counters) == maxCounters {
			faultf("more than %d counters and gauges", maxCounters)
		}
		in.counters[name] = struct{}{}
	}
}

// gauge passes a value on.
func (in *Instance) gauge(name string, value float64) {
	in.metric(name)
	in.host.opt.Observer.Gauge(in.spec.Task, in.told(), name, value)
}

// count passes an increment on.
func (in *Instance) count(name string, delta int64) {
	in.metric(name)
	in.host.opt.Observer.Count(in.spec.Task, in.told(), name, delta)
}
