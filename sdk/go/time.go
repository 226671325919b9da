package weir

import "math"

// TimerKind says which clock a timer waits for.
type TimerKind uint32

// Kinds of timers.
const (
	// EventTime timers are due when the watermark reaches them.
	EventTime TimerKind = iota
	// ProcessingTime timers are due when the agent's clock reaches them, some 100 ms later at most while the
	// task keeps up.
	ProcessingTime
)

// Watermarks that are no times.
const (
	NoWatermark int64 = math.MinInt64 // none has come yet
	EndOfTime   int64 = math.MaxInt64 // the input has ended
)

// Timer is a timer that is due. Key is borrowed until OnTimer returns.
type Timer struct {
	Kind TimerKind
	At   int64 // milliseconds since 1970
	Key  []byte
}

// SetTimer asks for a call of Operator.OnTimer at a time in milliseconds since 1970. There is one timer for
// each kind, time and key: setting it again changes nothing. Keys have up to 4,096 bytes and are copied.
//
// Timers that are due together fire in order of time, then key, before OnWatermark. A timer set at or before the
// watermark, or while timers fire, is due when the watermark moves next, or at the end of the input: so
// what comes out does not depend on how records are cut into batches. Timers of [ProcessingTime] are
// likewise due at the next tick of the clock; the end of the input does not fire them.
func SetTimer(kind TimerKind, at int64, key []byte) { hostTimerSet(uint32(kind), at, key) }

// ClearTimer takes a timer back and says whether it was set. A timer that fires is no longer set.
func ClearTimer(kind TimerKind, at int64, key []byte) bool {
	return hostTimerClear(uint32(kind), at, key)
}

// Watermark is the time up to which event time has come, in milliseconds since 1970: a record with a time before
// it is late. It never goes back. It is [NoWatermark] before the first, always in a job without event time,
// and [EndOfTime] at the end of the input.
func Watermark() int64 { return hostWatermark() }

// PutUntil sets the value of a key for a time: it is gone once the watermark has reached until, in
// milliseconds since 1970. Put makes it stay again. Until at or before the watermark removes the key.
func (*Keyed) PutUntil(key, value []byte, until int64) { hostStatePutUntil(key, value, until) }
