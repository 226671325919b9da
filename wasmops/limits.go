package wasmops

import (
	"fmt"
	"runtime"
	"time"

	"github.com/weir-stream/weir/dataflow"
)

// Limits of the host, with their reasons. Those that an installation may want to move are in [Options].
const (
	// DefaultModuleLimit bounds a module's size in bytes: a Go operator has 2–8 MB, and compiling takes
	// seconds and about 20 times the size in memory.
	DefaultModuleLimit = 32 << 20
	// DefaultMemoryLimit bounds an instance's linear memory in bytes. The shadow copy for snapshots can
	// take as much again.
	DefaultMemoryLimit = 64 << 20
	// DefaultOutputLimit bounds the bytes that one batch may cause on all outputs together: 27 times
	// the largest input frame.
	DefaultOutputLimit = 8 << 20
	// DefaultKeyedLimit bounds the bytes of keys and values in an instance's keyed state, each key with
	// keyOverhead on top.
	DefaultKeyedLimit = 64 << 20

	// DefaultTimeLimit bounds a call of a guest. It is not measured but counted, see fuelPerMillisecond.
	DefaultTimeLimit = time.Second
	// DefaultTimers bounds the timers that an instance has set: each costs about 150 bytes, and all of them may
	// become due at once. Their keys are bounded likewise, as keyed state is.
	DefaultTimers = 100_000
	// DefaultLogRate bounds the lines that an instance logs, per second of its own clock.
	DefaultLogRate = 10

	// MaxMemoryLimit is the most that a job may allow an operator, in bytes.
	MaxMemoryLimit = 1 << 30

	// fuelPerMillisecond turns a time limit into fuel: the most that guests use in a millisecond of a
	// desktop machine (C and Go: 4 to 10 million). A slower device takes longer for the same count, as it
	// does for the same work.
	fuelPerMillisecond = 10_000_000
	// interpreted is how much less an interpreter gets, which is so much slower.
	interpreted = 32
	// minStart is the least that a guest may use for its start-up, where a language has needs of its own:
	// Go takes about 2 ms.
	minStart = 200 * time.Millisecond
	// recordsPerLimit: a batch may use its limit once, and once more for so many records. A record that
	// uses all of its limit is still found: after a failure they are taken one by one.
	recordsPerLimit = 100
	// maxFrames bounds the bytes of a guest's nested calls, as frameSize estimates them.
	maxFrames = 8 << 20

	// maxEmits bounds the calls of emit in one batch: one per output is enough, more is for guests that
	// emit as they go.
	maxEmits = 4096
	// maxOutputs bounds the names that a guest may open.
	maxOutputs = 64
	// maxName bounds names of outputs, counters and configuration keys, in bytes.
	maxName = 256
	// maxCounters bounds the counters and gauges of one instance: each becomes a metric.
	maxCounters = 64
	// maxInput bounds a batch in bytes: what one operator may emit, the next one in its chain takes.
	maxInput = 32 << 20
	// minInputBuffer is the smallest buffer asked of a guest, so that the usual batch never needs another.
	minInputBuffer = 64 << 10
	// maxStateKey bounds a key of keyed state: stores have limits on keys.
	maxStateKey = 4 << 10
	// maxStateValue bounds a value of keyed state.
	maxStateValue = 1 << 20
	// maxExpired bounds the expired keys that are removed when the watermark moves; more wait for the next time.
	maxExpired = 4096
	// maxLogText bounds one log line in bytes; the rest is cut off.
	maxLogText = 4 << 10
	// logBurst is how many seconds of its log rate an instance may log at once: a guest that logs per
	// record must not fill a device's disk.
	logBurst = 10
	// maxReason bounds the reason in a guest's failure.
	maxReason = 1 << 10
	// maxVectors bounds the buffers of one fd_write or fd_read.
	maxVectors = 1024
	// maxSubscriptions bounds one poll_oneoff.
	maxSubscriptions = 1024
	// maxIdleModules bounds the compiled modules that are kept without an instance: a task that
	// restarts finds its module compiled.
	maxIdleModules = 8
	// Bounds of one function. Compiling takes time and memory by the square of its branches, and by their
	// product with its locals: at these limits a function takes some seconds at most. Go has up to 30 KB,
	// 2,000 branches and 20 locals; interpreters of languages, in C, have ten times that.
	maxFunction = 512 << 10 // bytes
	maxLocals   = 5000
	maxBranches = 20_000 // blocks, loops, branches and the targets of tables
	maxLoops    = 1000
	maxWeb      = 2_000_000 // branches times locals
	// maxCompile bounds the time for compiling a module: checked between functions.
	maxCompile = 2 * time.Minute
	// What a module may have of each: large Go modules have some 20,000 functions and 200 types.
	maxFunctions = 100_000
	maxTypes     = 20_000
	maxParams    = 1000 // of a function, and results
	maxGlobals   = 10_000
	maxExports   = 10_000
	maxImports   = 1000
	// maxTableElements bounds a module's table: an element costs 8 bytes, large Go modules have some 10,000.
	maxTableElements = 1 << 20
	// maxTables bounds the tables of a module; compilers emit one.
	maxTables = 16
	// maxClockLead bounds how far sleeping may move a guest's clock: 100 years in nanoseconds.
	maxClockLead = 100 * 365 * 24 * 3600 * 1e9
)

const (
	wasmPage = 64 << 10 // unit in which linear memory grows
	pageSize = 4 << 10  // unit in which changed memory is saved
)

// limits are those of one instance.
type limits struct {
	memory, output, state int64 // bytes
	time                  time.Duration
	logRate               int64 // lines per second
	timers                int64
	perMillisecond        int64 // fuel
}

// limits returns the host's defaults with what the operator sets of its own.
func (o Options) limits(own dataflow.Limits) (limits, error) {
	l := limits{
		memory: orDefault(own.Memory, o.MemoryLimit), output: orDefault(own.Output, o.OutputLimit),
		state: orDefault(own.State, o.KeyedLimit), time: time.Duration(orDefault(int64(own.Time), int64(o.TimeLimit))),
		logRate: orDefault(own.LogRate, o.LogRate), timers: orDefault(own.Timers, o.Timers), perMillisecond: fuelPerMillisecond,
	}
	if o.Interpreter || !compiles {
		l.perMillisecond /= interpreted
	}
	switch {
	case l.memory < wasmPage || l.memory > MaxMemoryLimit:
		return l, fmt.Errorf("memory limit of %d bytes is not between 64 KiB and 1 GiB", l.memory)
	case l.time < time.Millisecond || l.time > 24*time.Hour:
		return l, fmt.Errorf("time limit of %s is not between 1ms and 24h", l.time)
	case l.output < 1 || l.output > maxInput:
		return l, fmt.Errorf("output limit of %d bytes is not between 1 byte and 32 MiB", l.output)
	case l.state < 1 || l.logRate < 1 || l.timers < 1:
		return l, fmt.Errorf("limits of %d bytes of state, %d log lines per second and %d timers must be above 0", l.state, l.logRate, l.timers)
	}
	return l, nil
}

// compiles says whether the engine has a compiler for this machine.
const compiles = runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64"

func (l limits) fuel(d time.Duration) int64 { return int64(d/time.Millisecond) * l.perMillisecond }

// batch is the fuel of a call with so many records.
func (l limits) batch(records int) int64 {
	one := l.fuel(l.time)
	return one + one/recordsPerLimit*int64(records-1)
}

// start is the fuel of a call that is not about records: a language's start-up has its own needs.
func (l limits) start() int64 { return l.fuel(max(l.time, minStart)) }

func (l limits) logBurst() int64 { return l.logRate * logBurst }
