package wasmops

import (
	"strings"

	"github.com/tetratelabs/wazero/api"
)

// The guest ABI, version 1. This file names everything that stands between a module and the host.
// All integers are those of WebAssembly; pointers and lengths are i32, unsigned, in bytes.
//
// # What a module exports
//
//	memory                                   its only linear memory
//	_initialize ()                           optional; called once on a fresh instance (WASI reactor)
//	weir_abi_v1 ()                           says which ABI the module speaks; never called
//	weir_alloc  (size) -> ptr                a buffer of size bytes into which the host writes batches.
//	                                         The host asks again only when it needs a larger one; the
//	                                         former buffer is then free. 0 means out of memory.
//	weir_init   () -> status                 called once on a fresh instance, after _initialize: reads the
//	                                         configuration and opens the outputs
//	weir_process (input, ptr, len, count) -> status
//	                                         one batch: count records in len bytes at ptr
//	weir_timer (kind, at i64, ptr, len) -> status
//	                                         optional; a timer that timer_set has set is due: kind, time and
//	                                         the key of len bytes at ptr, in the buffer for batches
//	weir_watermark (at i64) -> status        optional; the watermark has moved to at
//	weir_end () -> status                    optional; the input has ended, nothing follows
//
// These three may emit as weir_process does. When the watermark moves, timers of event time (kind 0) up to it
// are called in order of time, then key, then weir_watermark. At the end of the input the watermark is the
// largest i64, and weir_end comes last. Timers of processing time (kind 1) are called when a tick of the
// agent's clock has reached them. A timer that is set while others are called, or at or before the watermark,
// waits until the watermark moves next, or for the next tick.
//
//	weir_migrate_out () -> i64               optional; what the next version of the operator is to have of this
//	                                         one's variables: address (high half) and length (low half) of
//	                                         up to 16 MiB, or -1 if that failed. Called on an old version's
//	                                         instance, which is then closed
//	weir_migrate_in (ptr, len) -> status     optional; takes what another version's weir_migrate_out gave,
//	                                         once, after weir_init. Keyed state is there without it
//
// Each of these calls has a budget of instructions, see DefaultTimeLimit, and traps when it is used up.
//
// A status other than 0 is a failure; its reason is what the module gave to fail. After a failure or
// a trap the instance is discarded. Exports of other names are ignored. Names that begin with
// weir_g, or are weir_start, weir_fuel or weir_depth, are reserved for the prepared module.
//
// A batch is a sequence of records, little-endian, one after the other:
//
//	offset size field
//	     0    4 size: bytes that follow this field
//	     4    8 event time, milliseconds since 1970
//	    12    2 key length
//	    14    2 length of the headers
//	    16      key, headers, value
//
// Headers are a sequence of: name length (1 byte), value length (2 bytes), name, value.
//
// # What a module imports from "weir"
//
//	emit (output, ptr, len, count)           hands over count records in len bytes, same encoding. The
//	                                         buffer is read when weir_process has returned 0 and must
//	                                         stay as it is until then.
//	output_open (name, name_len) -> i32      index of an output, or -1 if the job does not use it; only
//	                                         during weir_init. The main output is called "out".
//	config_get (key, key_len, out, cap) -> i32
//	                                         length of a configuration value, or -1 if it is not set; the
//	                                         value is written only if it fits into cap bytes. The host sets two
//	                                         keys: weir:keys, the names of those that the job file sets, sorted,
//	                                         with a line feed between them; weir:event_time, "none" in a job
//	                                         without event time, else "watermarks". -1: an agent that does not tell
//	state_get (key, key_len, out, cap) -> i32
//	                                         the same for keyed state
//	state_put (key, key_len, value, value_len)
//	state_delete (key, key_len) -> i32       1 if the key was there
//	state_scan (prefix, prefix_len, after, after_len, out, cap) -> i32
//	                                         writes the entries whose keys begin with prefix and come after
//	                                         the key after (after_len 0: from the first one) in byte order,
//	                                         as many whole ones as fit: key length (4), value length (4),
//	                                         key, value. Returns the bytes written, 0 when there are no
//	                                         more, or -n if the next entry alone needs n bytes.
//	log (level, ptr, len)                    level 0 debug, 1 info, 2 warn, 3 error; rate-limited
//	counter_add (name, name_len, delta i64)  adds to a counter of the operator
//	gauge_set (name, name_len, value f64)    sets a gauge of the operator: a metric that shows the last value
//	state_put_until (key, key_len, value, value_len, until i64)
//	                                         puts a key that is gone once the watermark has reached until
//	timer_set (kind, at i64, key, key_len)   asks for a call of weir_timer: kind 0 event time, 1 processing time;
//	                                         one timer for each kind, time and key
//	timer_clear (kind, at i64, key, key_len) -> i32
//	                                         1 if the timer was set
//	watermark () -> i64                      milliseconds since 1970: records with a time before it are late;
//	                                         the smallest i64 before the first, the largest at the end
//	clock_ms () -> i64                       milliseconds since 1970: the stamp of the log entry whose
//	                                         records are processed; never goes back; 0 before the first
//	fail (ptr, len)                          gives the reason for the status, or the trap, that follows
//
// # WASI preview 1
//
// All functions of wasi_snapshot_preview1 may be imported. There are no arguments, no environment
// and no files; descriptor 0 is at its end, what is written to 1 and 2 goes to the log. Clocks show
// the time of clock_ms; each reading moves them on by a microsecond, and sleeping moves them on by the
// time asked for and returns at once, so that a guest that waits for time to pass is not stuck. Random
// numbers come from a generator seeded by job, task and operator. The host keeps no descriptors: a
// snapshot could not hold them.

// Names of the modules that a guest imports from.
const (
	ImportModule = "weir"
	WASIModule   = "wasi_snapshot_preview1"
)

// Names of the exports of ABI version 1.
const (
	exportMemory     = "memory"
	exportInitialize = "_initialize"
	exportMarker     = "weir_abi_v1"
	exportAlloc      = "weir_alloc"
	exportInit       = "weir_init"
	exportProcess    = "weir_process"
	exportTimer      = "weir_timer"
	exportWatermark  = "weir_watermark"
	exportEnd        = "weir_end"
	exportMigrateOut = "weir_migrate_out"
	exportMigrateIn  = "weir_migrate_in"
)

// Configuration keys that the host sets.
const (
	configKeys      = "weir:keys"
	configEventTime = "weir:event_time"
)

// Names that [Prepare] adds to a module.
const (
	reservedGlobal = "weir_g" // followed by the global's index
	reservedStart  = "weir_start"
	reservedFuel   = "weir_fuel"
	reservedDepth  = "weir_depth"
)

const (
	i32 = api.ValueTypeI32
	i64 = api.ValueTypeI64
)

// signature is the type of a function.
type signature struct {
	params, results []api.ValueType
}

func sig(params []api.ValueType, results ...api.ValueType) signature {
	return signature{params: params, results: results}
}

func args(types ...api.ValueType) []api.ValueType { return types }

func (s signature) equal(t signature) bool {
	return string(s.params) == string(t.params) && string(s.results) == string(t.results)
}

func (s signature) String() string {
	return "(" + typeNames(s.params) + ") -> (" + typeNames(s.results) + ")"
}

func typeNames(types []api.ValueType) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = api.ValueTypeName(t)
	}
	return strings.Join(names, ", ")
}

// guestExports are the functions that a module must export, except those marked optional.
var guestExports = []struct {
	name     string
	sig      signature
	optional bool
}{
	{exportInitialize, sig(nil), true},
	{exportMarker, sig(nil), false},
	{exportAlloc, sig(args(i32), i32), false},
	{exportInit, sig(nil, i32), false},
	{exportProcess, sig(args(i32, i32, i32, i32), i32), false},
	{exportTimer, sig(args(i32, i64, i32, i32), i32), true},
	{exportWatermark, sig(args(i64), i32), true},
	{exportEnd, sig(nil, i32), true},
	{exportMigrateOut, sig(nil, i64), true},
	{exportMigrateIn, sig(args(i32, i32), i32), true},
}
