package dataflow

import "math"

// Watermarks that are no times.
const (
	// NoTime is the watermark before the first one.
	NoTime int64 = math.MinInt64
	// EndOfTime is the watermark at the end of the input.
	EndOfTime int64 = math.MaxInt64
)

// Moment is where time stands for an operator.
type Moment struct {
	// Watermark is how far event time has come, in milliseconds since 1970: a record with a time before it
	// is late. It never goes back.
	Watermark int64
	// Stamp is the clock of the log entry, milliseconds since 1970.
	Stamp int64
	// Tick: timers of processing time up to Stamp are due.
	Tick bool
	// End: the input has ended; Watermark is [EndOfTime].
	End bool
}

// TimeCallKind is what a [TimeCall] calls.
type TimeCallKind uint8

// Kinds of calls, in the order in which a moment makes them.
const (
	CallEventTimer TimeCallKind = iota + 1
	CallProcessingTimer
	CallWatermark
	CallEnd
)

func (k TimeCallKind) String() string {
	return [...]string{"?", "event_timer", "processing_timer", "watermark", "end"}[min(k, CallEnd)]
}

// TimeCall is one call of an operator that time has made due. A timer that has come out of Next is no
// longer set, whether it is called or given up.
type TimeCall struct {
	Kind TimeCallKind
	At   int64  // the timer's time, or the watermark
	Key  []byte // the timer's; the caller's own
}

// TimedOperator is an operator that time matters to. What it knows of time is part of its state.
type TimedOperator interface {
	Operator
	// Advance tells it where time stands. Timers that are due and set now are called one by one, by way of
	// Next and Call, in order of time, then key; those set meanwhile wait for the next moment. Then, if the
	// watermark has moved, comes the watermark, and the end if it has come.
	Advance(m Moment)
	// Next takes the next call that is due; false if there is none.
	Next() (TimeCall, bool)
	// Call makes it. Errors are as in Process.
	Call(c TimeCall, emit Emit) error
	// NextTick is the earliest timer of processing time; false if there is none.
	NextTick() (at int64, ok bool)
}
