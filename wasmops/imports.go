package wasmops

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/weir-stream/weir/dataflow"
)

// guestFault is panicked by a host function to end the call: the guest broke a rule.
type guestFault string

func (f guestFault) Error() string { return string(f) }

// errFuel is panicked by a host function when the fuel of the call is used up.
const errFuel = guestFault("out of fuel")

func faultf(format string, args ...any) { panic(guestFault(fmt.Sprintf(format, args...))) }

// hostFunction is one import. The stack holds the parameters, then the results.
type hostFunction struct {
	module string
	name   string
	sig    signature
	call   func(in *Instance, mem memory, stack []uint64)
}

// hostFunctions are the types of all imports that a module may have, by "module.name".
var hostFunctions = func() map[string]signature {
	types := map[string]signature{}
	for _, f := range append(weirFunctions(), wasiFunctions()...) {
		types[f.module+"."+f.name] = f.sig
	}
	return types
}()

func weirFunctions() []hostFunction {
	return []hostFunction{
		{ImportModule, "emit", sig(args(i32, i32, i32, i32)), hostEmit},
		{ImportModule, "output_open", sig(args(i32, i32), i32), hostOutputOpen},
		{ImportModule, "config_get", sig(args(i32, i32, i32, i32), i32), hostConfigGet},
		{ImportModule, "state_get", sig(args(i32, i32, i32, i32), i32), hostStateGet},
		{ImportModule, "state_put", sig(args(i32, i32, i32, i32)), hostStatePut},
		{ImportModule, "state_delete", sig(args(i32, i32), i32), hostStateDelete},
		{ImportModule, "state_scan", sig(args(i32, i32, i32, i32, i32, i32), i32), hostStateScan},
		{ImportModule, "log", sig(args(i32, i32, i32)), hostLog},
		{ImportModule, "counter_add", sig(args(i32, i32, i64)), hostCounterAdd},
		{ImportModule, "gauge_set", sig(args(i32, i32, api.ValueTypeF64)), hostGaugeSet},
		{ImportModule, "state_put_until", sig(args(i32, i32, i32, i32, i64)), hostStatePutUntil},
		{ImportModule, "timer_set", sig(args(i32, i64, i32, i32)), hostTimerSet},
		{ImportModule, "timer_clear", sig(args(i32, i64, i32, i32), i32), hostTimerClear},
		{ImportModule, "watermark", sig(nil, i64), hostWatermark},
		{ImportModule, "clock_ms", sig(nil, i64), hostClockMs},
		{ImportModule, "fail", sig(args(i32, i32)), hostFail},
	}
}

// memory is a guest's linear memory as the host sees it: every access is checked.
type memory struct{ api.Memory }

// view returns guest memory. It goes stale when the memory grows: it is used before the guest runs
// again. A range outside of the memory is a fault.
func (m memory) view(what string, ptr, size uint64) []byte {
	b, ok := m.Read(uint32(ptr), uint32(size))
	if !ok {
		faultf("%s: %d bytes at %d are not in its memory of %d bytes", what, uint32(size), uint32(ptr), m.Size())
	}
	return b
}

// bounded is view with a limit on the size.
func (m memory) bounded(what string, ptr, size uint64, limit int) []byte {
	if uint32(size) > uint32(limit) {
		faultf("%s of %d bytes, at most %d", what, uint32(size), limit)
	}
	return m.view(what, ptr, size)
}

// missing is the result -1 of a look-up.
const missing = uint64(1<<32 - 1)

// answer writes value to a guest's buffer if it fits and returns its length.
func (m memory) answer(what string, value []byte, ptr, capacity uint64) uint64 {
	out := m.view(what, ptr, capacity)
	if len(value) <= len(out) {
		copy(out, value)
	}
	return uint64(uint32(len(value)))
}

// emission is a call of emit, kept until the guest's call has ended.
type emission struct {
	output int
	ptr    uint32
	size   uint32
	count  uint32
}

func hostEmit(in *Instance, mem memory, s []uint64) {
	e := emission{output: int(uint32(s[0])), ptr: uint32(s[1]), size: uint32(s[2]), count: uint32(s[3])}
	if in.phase != phaseProcess {
		faultf("emit is called outside of %s, %s, %s and %s", exportProcess, exportTimer, exportWatermark, exportEnd)
	}
	if uint32(s[0]) >= uint32(len(in.spec.Outputs)) {
		faultf("emit to output %d, the job uses %d", uint32(s[0]), len(in.spec.Outputs))
	}
	if len(in.emissions) == maxEmits {
		faultf("more than %d calls of emit for one batch", maxEmits)
	}
	if in.emitted += int64(e.size); in.emitted > in.limits.output {
		faultf("output of more than %d bytes for one batch (limits.output)", in.limits.output)
	}
	mem.view("emit", s[1], s[2])
	in.emissions = append(in.emissions, e)
}

func hostOutputOpen(in *Instance, mem memory, s []uint64) {
	name := string(mem.bounded("name of an output", s[0], s[1], maxName))
	if in.phase != phaseInit {
		faultf("output %q is opened outside of %s", name, exportInit)
	}
	if len(in.opened) == maxOutputs {
		faultf("more than %d outputs", maxOutputs)
	}
	in.opened = append(in.opened, name)
	s[0] = missing
	for i, used := range in.spec.Outputs {
		if used == name {
			s[0] = uint64(i)
		}
	}
}

func hostConfigGet(in *Instance, mem memory, s []uint64) {
	value, ok := configValue(in.spec, string(mem.bounded("configuration key", s[0], s[1], maxName)))
	if !ok {
		s[0] = missing
		return
	}
	in.charge(len(value) >> bulkShift)
	s[0] = mem.answer("configuration value", []byte(value), s[2], s[3])
}

// configValue is the value of a key of the job file, or of one that the host sets.
func configValue(spec dataflow.OperatorSpec, key string) (string, bool) {
	switch {
	case key == configKeys:
		return strings.Join(slices.Sorted(maps.Keys(spec.Config)), "\n"), true
	case key == configEventTime && spec.NoEventTime:
		return "none", true
	case key == configEventTime:
		return "watermarks", true
	}
	value, ok := spec.Config[key]
	return value, ok
}

func stateKey(mem memory, ptr, size uint64) []byte {
	key := mem.bounded("state key", ptr, size, maxStateKey)
	if len(key) == 0 {
		faultf("state key is empty")
	}
	return key
}

func hostStateGet(in *Instance, mem memory, s []uint64) {
	value, ok := in.keyed.get(stateKey(mem, s[0], s[1]))
	if !ok {
		s[0] = missing
		return
	}
	in.charge(len(value) >> bulkShift)
	s[0] = mem.answer("state value", value, s[2], s[3])
}

func hostStatePut(in *Instance, mem memory, s []uint64) {
	in.put(stateKey(mem, s[0], s[1]), mem.bounded("state value", s[2], s[3], maxStateValue))
}

func hostStateDelete(in *Instance, mem memory, s []uint64) {
	in.charge(fuelState)
	removed := in.remove(stateKey(mem, s[0], s[1]))
	s[0] = 0
	if removed {
		s[0] = 1
	}
}

func hostStateScan(in *Instance, mem memory, s []uint64) {
	prefix := string(mem.bounded("state key", s[0], s[1], maxStateKey))
	after := string(mem.bounded("state key", s[2], s[3], maxStateKey))
	out := mem.view("scan", s[4], s[5])
	found, need := in.keyed.scan(in.scratch[:0], prefix, after, len(out))
	in.scratch = found
	in.charge(fuelState + len(found)*fuelScan)
	copy(out, found)
	s[0] = uint64(uint32(len(found) - need))
}

func hostLog(in *Instance, mem memory, s []uint64) {
	in.charge(fuelLine)
	level, size := LogLevel(min(uint32(s[0]), uint32(LogError))), uint32(s[2])
	in.log(level, string(mem.view("log", s[1], uint64(min(size, maxLogText)))))
}

func hostCounterAdd(in *Instance, mem memory, s []uint64) {
	in.charge(fuelLine)
	in.count(string(mem.bounded("name of a counter", s[0], s[1], maxName)), int64(s[2]))
}

func hostGaugeSet(in *Instance, mem memory, s []uint64) {
	in.charge(fuelLine)
	in.gauge(string(mem.bounded("name of a gauge", s[0], s[1], maxName)), api.DecodeF64(s[2]))
}

func hostClockMs(in *Instance, _ memory, s []uint64) { s[0] = uint64(in.clock.stamp) }

func hostFail(in *Instance, mem memory, s []uint64) {
	in.reason = string(mem.view("fail", s[0], uint64(min(uint32(s[1]), maxReason))))
}

// callContext carries the instance that makes a call to its imports; a call has no other way to name it. The engine asks
// it for values at every call, so it is not behind others.
type callContext struct {
	context.Context
	in *Instance
}

// defineImports makes the modules that guests import from, shared by all instances of a runtime.
func defineImports(ctx context.Context, rt wazero.Runtime) error {
	for module, functions := range map[string][]hostFunction{ImportModule: weirFunctions(), WASIModule: wasiFunctions()} {
		b := rt.NewHostModuleBuilder(module)
		for _, f := range functions {
			call := f.call
			b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, m api.Module, stack []uint64) {
				call(ctx.(*callContext).in, memory{m.Memory()}, stack)
			}), f.sig.params, f.sig.results).Export(f.name)
		}
		if _, err := b.Instantiate(ctx); err != nil {
			return fmt.Errorf("define imports of %s: %w", module, err)
		}
	}
	return nil
}
