package wasmops

import (
	"encoding/binary"
	"fmt"

	"github.com/weir-stream/weir/dataflow"
)

// timers is what an instance knows of time. It is kept as keys without values, so that they are in order and
// that snapshots hold what changed:
//
//	kind (1 byte) | time (8 bytes, big-endian, the highest bit turned) | key
type timers struct {
	set       *keyedState
	count     int64 // timers, without expiries
	watermark int64
	saved     int64 // watermark of the last freeze

	// Of the moment under way.
	due       []string
	tell, end bool // the watermark, the end of the input
}

// Kinds of keys. The first two are those of timer_set.
const (
	timerEvent byte = iota
	timerProcessing
	timerExpiry    // of a key of the keyed state
	timerWatermark // has nothing but a value: the watermark, little-endian
	timerKinds     = timerProcessing + 1
)

// timerHead is how many bytes are before the key.
const timerHead = 9

func newTimers() *timers {
	t := &timers{set: newKeyedState(), watermark: dataflow.NoTime, saved: dataflow.NoTime}
	t.set.sort()
	return t
}

func appendTimer(dst []byte, kind byte, at int64, key []byte) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, kind), uint64(at)^1<<63)
	return append(dst, key...)
}

// timerTime is the time of an encoded timer.
func timerTime(encoded string) int64 {
	return int64(binary.BigEndian.Uint64([]byte(encoded[1:timerHead])) ^ 1<<63)
}

// upto visits the timers of a kind up to a time in order, until visit returns false.
func (t *timers) upto(kind byte, at int64, visit func(encoded string) bool) {
	t.set.order.from(string([]byte{kind}), func(encoded string) bool {
		return encoded[0] == kind && timerTime(encoded) <= at && visit(encoded)
	})
}

// freeze appends what has changed, or all.
func (t *timers) freeze(full bool, changes []dataflow.Change) []dataflow.Change {
	t.set.freeze(full, func(key string, value []byte) {
		changes = append(changes, dataflow.Change{Space: dataflow.SpaceTimer, Key: []byte(key), Value: value})
	})
	if t.watermark != t.saved || full && t.watermark != dataflow.NoTime {
		changes = append(changes, t.mark())
	}
	t.saved = t.watermark
	return changes
}

// mark is the watermark as it is saved.
func (t *timers) mark() dataflow.Change {
	return dataflow.Change{Space: dataflow.SpaceTimer, Key: []byte{timerWatermark}, Value: binary.LittleEndian.AppendUint64(nil, uint64(t.watermark))}
}

// copy appends all, and leaves what the next freeze appends as it is.
func (t *timers) copy(changes []dataflow.Change) []dataflow.Change {
	t.set.all(func(key string, value []byte) {
		changes = append(changes, dataflow.Change{Space: dataflow.SpaceTimer, Key: []byte(key), Value: value})
	})
	if t.watermark != dataflow.NoTime {
		changes = append(changes, t.mark())
	}
	return changes
}

// restore takes a saved change.
func (t *timers) restore(c dataflow.Change) error {
	switch {
	case len(c.Key) == 1 && c.Key[0] == timerWatermark && len(c.Value) == 8:
		t.watermark = int64(binary.LittleEndian.Uint64(c.Value))
	case len(c.Key) >= timerHead && c.Key[0] <= timerExpiry && len(c.Value) == 0:
		if _, there := t.set.get(c.Key); !there && c.Key[0] < timerKinds {
			t.count++
		}
		t.set.put(c.Key, nil, 1<<62)
	default:
		return fmt.Errorf("timer of %d bytes with a value of %d", len(c.Key), len(c.Value))
	}
	return nil
}

func (t *timers) settle() {
	t.set.settle()
	t.saved = t.watermark
}

// linkExpiries tells restored keys when they expire.
func (in *Instance) linkExpiries() error {
	in.keyed.now = in.timers.watermark
	var err error
	in.timers.upto(timerExpiry, dataflow.EndOfTime, func(encoded string) bool {
		v := in.keyed.values[encoded[timerHead:]]
		if v == nil || v.expires {
			err = fmt.Errorf("key %q expires, and is not there or expires twice", encoded[timerHead:])
			return false
		}
		v.expires, v.until = true, timerTime(encoded)
		return true
	})
	return err
}

// put sets a key that does not expire.
func (in *Instance) put(key, value []byte) {
	in.charge(fuelState + len(key) + len(value))
	in.stay(key)
	if !in.keyed.put(key, value, in.limits.state) && (!in.collect(len(in.keyed.values)) || !in.keyed.put(key, value, in.limits.state)) {
		faultf("keyed state of more than %d bytes (limits.state)", in.limits.state)
	}
}

// remove removes a key and says whether it was there.
func (in *Instance) remove(key []byte) bool {
	_, there := in.keyed.get(key)
	in.stay(key)
	in.keyed.remove(key)
	return there
}

// stay makes a key not expire.
func (in *Instance) stay(key []byte) {
	if v := in.keyed.look(key); v != nil && v.expires {
		in.timers.set.remove(appendTimer(nil, timerExpiry, v.until, key))
		v.expires = false
	}
}

// collect removes expired keys, at most so many, and says whether there were any.
func (in *Instance) collect(most int) bool {
	var expired []string
	in.timers.upto(timerExpiry, in.timers.watermark, func(encoded string) bool {
		expired = append(expired, encoded)
		return len(expired) < most
	})
	for _, encoded := range expired {
		in.timers.set.remove([]byte(encoded))
		in.keyed.remove([]byte(encoded[timerHead:]))
	}
	return len(expired) > 0
}

func hostStatePutUntil(in *Instance, mem memory, s []uint64) {
	key, value, until := stateKey(mem, s[0], s[1]), mem.bounded("state value", s[2], s[3], maxStateValue), int64(s[4])
	if until <= in.timers.watermark {
		in.charge(fuelState)
		in.remove(key)
		return
	}
	in.put(key, value)
	v := in.keyed.look(key)
	v.expires, v.until = true, until
	in.setTimer(appendTimer(nil, timerExpiry, until, key))
}

// setTimer keeps an encoded timer.
func (in *Instance) setTimer(encoded []byte) {
	in.charge(fuelState + len(encoded))
	if !in.timers.set.put(encoded, nil, in.limits.state) {
		faultf("timers of more than %d bytes (limits.state)", in.limits.state)
	}
}

// timerArgument reads kind, time and key, for the time until the next one is read.
func (in *Instance) timerArgument(mem memory, s []uint64) []byte {
	if uint32(s[0]) >= uint32(timerKinds) {
		faultf("timer of kind %d: 0 is event time, 1 processing time", uint32(s[0]))
	}
	in.scratch = appendTimer(in.scratch[:0], byte(s[0]), int64(s[1]), mem.bounded("key of a timer", s[2], s[3], maxStateKey))
	return in.scratch
}

func hostTimerSet(in *Instance, mem memory, s []uint64) {
	encoded := in.timerArgument(mem, s)
	if in.onTimer == nil {
		faultf("a timer is set, and the module does not export %s", exportTimer)
	}
	if _, there := in.timers.set.get(encoded); there {
		in.charge(fuelState)
		return
	}
	if in.timers.count == in.limits.timers {
		faultf("more than %d timers (limits.timers)", in.limits.timers)
	}
	if in.spec.NoEventTime && uint32(s[0]) == 0 && !in.toldTime {
		in.toldTime = true
		in.host.opt.Observer.Log(in.spec.Task, in.told(), LogWarn, "sets a timer of event time, and no source of the job has it: the timer is called at the end of the input; give a source a time, such as time: arrival")
	}
	in.setTimer(encoded)
	in.timers.count++
}

func hostTimerClear(in *Instance, mem memory, s []uint64) {
	in.charge(fuelState)
	removed := in.clearTimer(in.timerArgument(mem, s))
	s[0] = 0
	if removed {
		s[0] = 1
	}
}

func (in *Instance) clearTimer(encoded []byte) bool {
	if !in.timers.set.remove(encoded) {
		return false
	}
	in.timers.count--
	return true
}

func hostWatermark(in *Instance, _ memory, s []uint64) { s[0] = uint64(in.timers.watermark) }

// Advance implements [dataflow.TimedOperator].
func (in *Instance) Advance(m dataflow.Moment) {
	t := in.timers
	in.clock.enter(m.Stamp)
	t.due, t.tell, t.end = t.due[:0], false, m.End && in.onEnd != nil
	if !in.loaded.module.Timed {
		return
	}
	due := func(encoded string) bool {
		t.due = append(t.due, encoded)
		return true
	}
	if m.Watermark > t.watermark {
		t.watermark, in.keyed.now = m.Watermark, m.Watermark
		in.collect(maxExpired)
		t.tell = in.onWatermark != nil
		t.upto(timerEvent, m.Watermark, due)
	}
	if m.Tick {
		t.upto(timerProcessing, m.Stamp, due)
	}
}

// Next implements [dataflow.TimedOperator].
func (in *Instance) Next() (dataflow.TimeCall, bool) {
	t := in.timers
	for len(t.due) > 0 {
		encoded := t.due[0]
		t.due[0] = ""
		t.due = t.due[1:]
		in.scratch = append(in.scratch[:0], encoded...)
		if !in.clearTimer(in.scratch) {
			continue // one that was called before it has cleared it
		}
		kind := dataflow.CallEventTimer
		if encoded[0] == timerProcessing {
			kind = dataflow.CallProcessingTimer
		}
		return dataflow.TimeCall{Kind: kind, At: timerTime(encoded), Key: []byte(encoded[timerHead:])}, true
	}
	switch {
	case t.tell:
		t.tell = false
		return dataflow.TimeCall{Kind: dataflow.CallWatermark, At: t.watermark}, true
	case t.end:
		t.end = false
		return dataflow.TimeCall{Kind: dataflow.CallEnd, At: t.watermark}, true
	}
	return dataflow.TimeCall{}, false
}

// Call implements [dataflow.TimedOperator].
func (in *Instance) Call(c dataflow.TimeCall, emit dataflow.Emit) error {
	fuel, export := in.limits.batch(1), exportEnd
	var status uint32
	var err error
	switch c.Kind {
	case dataflow.CallWatermark:
		export = exportWatermark
		status, err = in.call(phaseProcess, fuel, in.onWatermark, uint64(c.At))
	case dataflow.CallEnd:
		status, err = in.call(phaseProcess, fuel, in.onEnd)
	default:
		if in.onTimer == nil { // it was set by the module that was here before
			return nil
		}
		kind := timerEvent
		if c.Kind == dataflow.CallProcessingTimer {
			kind = timerProcessing
		}
		export = exportTimer
		var ptr uint32
		if ptr, err = in.write(c.Key); err == nil {
			status, err = in.call(phaseProcess, fuel, in.onTimer, uint64(kind), uint64(c.At), uint64(ptr), uint64(len(c.Key)))
		}
	}
	if err != nil {
		return err
	}
	return in.handOn(export, status, emit)
}

// NextTick implements [dataflow.TimedOperator]. Timers that another version has left to a module that knows nothing
// of time stay for the next version; no tick is logged for them.
func (in *Instance) NextTick() (at int64, ok bool) {
	if !in.loaded.module.Timed {
		return 0, false
	}
	in.timers.upto(timerProcessing, dataflow.EndOfTime, func(encoded string) bool {
		at, ok = timerTime(encoded), true
		return false
	})
	return at, ok
}
