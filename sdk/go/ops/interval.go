package ops

import (
	"errors"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

// Side is a record of one side of a join. The value is borrowed until the function that gets it returns.
type Side struct {
	Time  int64
	Value []byte
}

// IntervalJoin joins records of two inputs that have the same key and times close to each other: one of the first
// input, left, at time t with all of the second, right, from t+Lower to t+Upper, both included.
//
// A pair comes out when the later of its records arrives. A record is kept as long as a partner may come; one that is
// more than Lateness behind the watermark is [Late] and joins nothing.
//
// State is an entry in keyed state for each key, input and time, with the values of that time. A value of 1 MiB bounds the
// records of one key, input and millisecond. What is over is removed by timers, a few at a time for each key.
type IntervalJoin struct {
	Lower, Upper int64
	Lateness     int64
	Tag          byte // tells blocks of one operator apart; 0: 'i'
	Pair         func(key []byte, left, right Side, out *weir.Out) error

	step       int64 // timers are at multiples of it
	own, other slot
	timer      []byte
	value      []byte
}

// Init checks and prepares the block; it comes before all else.
func (j *IntervalJoin) Init() error {
	if j.Lower > j.Upper {
		return errors.New("the lower bound of a join is above the upper one")
	}
	if j.Lower < -maxDuration || j.Upper > maxDuration || j.Lateness < 0 || j.Lateness > maxDuration {
		return errors.New("bounds and lateness of a join are at most 100 years")
	}
	if j.Tag == 0 {
		j.Tag = 'i'
	}
	j.step = 1 + (j.Upper-j.Lower+j.Lateness)/16
	return needsEventTime("a join of records close in time needs")
}

// of makes the beginning of the keys of one side.
func (j *IntervalJoin) of(s *slot, key []byte, side int) error {
	err := s.of(key, j.Tag)
	s.key = append(s.key, byte(side))
	return err
}

// Add joins a record of input 0 or 1 with what is there of the other, and keeps it.
func (j *IntervalJoin) Add(r weir.Record, out *weir.Out) (Outcome, error) {
	if r.Input > 1 {
		return Ignored, errors.New("a join has two inputs: input " + strconv.Itoa(r.Input) + " is one too many")
	}
	if r.Time > maxTime || r.Time < -maxTime {
		return Ignored, errors.New("event time " + strconv.FormatInt(r.Time, 10) + " is too far from 1970")
	}
	watermark := weir.Watermark()
	if r.Time+j.Lateness < watermark {
		return Late, nil
	}
	if err := j.of(&j.own, r.Key, r.Input); err != nil {
		return Ignored, err
	}
	if err := j.of(&j.other, r.Key, 1-r.Input); err != nil {
		return Ignored, err
	}
	low, high := r.Time+j.Lower, r.Time+j.Upper
	if r.Input == 1 {
		low, high = r.Time-j.Upper, r.Time-j.Lower
	}
	var failed error
	mine := Side{r.Time, r.Value}
	weir.State.Scan(j.other.key, func(key, value []byte) bool {
		time := timeOf(key)
		if time > high {
			return false
		}
		for time >= low && len(value) > 0 && failed == nil {
			n := 4 + le32(value)
			theirs := Side{time, value[4:n:n]}
			if r.Input == 0 {
				failed = j.Pair(r.Key, mine, theirs, out)
			} else {
				failed = j.Pair(r.Key, theirs, mine, out)
			}
			value = value[n:]
		}
		return failed == nil
	})
	if failed != nil {
		return Taken, failed
	}
	expiry := j.expiry(r.Input, r.Time)
	if expiry <= watermark {
		return Taken, nil // no partner may come any more
	}
	value, had := weir.State.Get(j.own.at(r.Time), j.value)
	if !had {
		value = j.value[:0]
	}
	j.value = append(put32(value, len(r.Value)), r.Value...)
	weir.State.Put(j.own.key, j.value)
	if !had {
		j.timer = timerKey(j.timer, r.Key, j.Tag)
		weir.SetTimer(weir.EventTime, expiry+(-expiry%j.step+j.step)%j.step, j.timer)
	}
	return Taken, nil
}

// expiry is the watermark at which no partner of a record may come any more.
func (j *IntervalJoin) expiry(input int, time int64) int64 {
	if input == 0 {
		return time + j.Upper + j.Lateness + 1
	}
	return time - j.Lower + j.Lateness + 1
}

// timeOf is the time at the end of a state key.
func timeOf(key []byte) int64 {
	t := uint64(0)
	for _, c := range key[len(key)-8:] {
		t = t<<8 | uint64(c)
	}
	return int64(t ^ 1<<63)
}

// OnTimer takes the timers that the block has set; false if this is not one of them.
func (j *IntervalJoin) OnTimer(t weir.Timer, _ *weir.Out) (bool, error) {
	key, mine := timerOf(t, j.Tag)
	if !mine {
		return false, nil
	}
	for side := range 2 {
		if err := j.of(&j.own, key, side); err != nil {
			return true, err
		}
		weir.State.Scan(j.own.key, func(key, _ []byte) bool {
			if j.expiry(side, timeOf(key)) > t.At {
				return false
			}
			weir.State.Delete(key)
			return true
		})
	}
	return true, nil
}
