package wasmops

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
	// DefaultKeyedLimit bounds the bytes of keys and values in an instance's keyed state.
	DefaultKeyedLimit = 64 << 20

	// maxEmits bounds the calls of emit in one batch: one per output is enough, more is for guests that
	// emit as they go.
	maxEmits = 4096
	// maxOutputs bounds the names that a guest may open.
	maxOutputs = 64
	// maxName bounds names of outputs, counters and configuration keys, in bytes.
	maxName = 256
	// maxCounters bounds the counters of one instance: each becomes a metric.
	maxCounters = 64
	// maxInput bounds a batch in bytes: what one operator may emit, the next one in its chain takes.
	maxInput = 32 << 20
	// minInputBuffer is the smallest buffer asked of a guest, so that the usual batch never needs another.
	minInputBuffer = 64 << 10
	// maxStateKey bounds a key of keyed state: stores have limits on keys.
	maxStateKey = 4 << 10
	// maxStateValue bounds a value of keyed state.
	maxStateValue = 1 << 20
	// maxLogText bounds one log line in bytes; the rest is cut off.
	maxLogText = 4 << 10
	// logBurst and logPerSecond bound the log lines of one instance by its own clock: a guest that logs
	// per record must not fill a device's disk.
	logBurst     = 100
	logPerSecond = 10
	// maxReason bounds the reason in a guest's failure.
	maxReason = 1 << 10
	// maxVectors bounds the buffers of one fd_write or fd_read.
	maxVectors = 1024
	// maxSubscriptions bounds one poll_oneoff.
	maxSubscriptions = 1024
	// maxIdleModules bounds the compiled modules that are kept without an instance: a task that
	// restarts finds its module compiled.
	maxIdleModules = 8
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
