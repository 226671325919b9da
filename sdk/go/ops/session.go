package ops

import (
	"errors"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

// Session collects the records of a key in sessions: runs of event time without a gap of Gap or more.
//
// A session ends Gap after its last record. Its result comes out when the watermark reaches that, and it is
// kept for Lateness longer: a late record in that time is added, and may join sessions. The new result is
// marked as an update; it takes the place of all earlier ones that it overlaps with. A record that comes later still,
// and would be a session of its own that is over, is [Late].
//
// State is an entry for each key with all of its sessions, and one timer for each session.
type Session struct {
	Gap      int64
	Lateness int64
	Fold     Fold
	Store    Store                               // nil: keyed state
	Tag      byte                                // tells blocks of one operator apart; 0: 's'
	Fire     func(w Result, out *weir.Out) error // takes results

	slot  slot
	timer []byte
	value []byte // sessions as they are stored: first, last (8 each), flags (1), length (4), accumulator
	made  []byte
	acc   []byte
}

const (
	sessionFixed = 21
	sessionShown = 1 // its result has come out
	sessionOver  = 2 // its end has passed
)

// Init checks and prepares the block; it comes before all else.
func (s *Session) Init() error {
	if s.Gap <= 0 || s.Gap > maxDuration {
		return errors.New("the gap between sessions is more than 0 and at most 100 years")
	}
	if s.Lateness < 0 || s.Lateness > maxDuration {
		return errors.New("lateness is at most 100 years")
	}
	if s.Store == nil {
		s.Store = Keyed()
	}
	if s.Tag == 0 {
		s.Tag = 's'
	}
	return needsEventTime("a session needs")
}

// session is one of them, in a stored value.
type session struct {
	first, last int64
	flags       byte
	acc         []byte
}

func nextSession(b []byte) (s session, rest []byte) {
	n := sessionFixed + le32(b[17:])
	return session{le64(b), le64(b[8:]), b[16], b[sessionFixed:n:n]}, b[n:]
}

func (s session) append(dst []byte) []byte {
	dst = append(put64(put64(dst, s.first), s.last), s.flags)
	return append(put32(dst, len(s.acc)), s.acc...)
}

func (s *Session) load(key []byte) error {
	if err := s.slot.of(key, s.Tag); err != nil {
		return err
	}
	value, ok := s.Store.Get(s.slot.key, s.value)
	if !ok {
		value = s.value[:0]
	}
	s.value = value
	return nil
}

// store keeps what has been made of the sessions.
func (s *Session) store() {
	if len(s.made) == 0 {
		s.Store.Delete(s.slot.key)
	} else {
		s.Store.Put(s.slot.key, s.made)
	}
}

// Add adds a record to its session.
func (s *Session) Add(r weir.Record, out *weir.Out) (Outcome, error) {
	if r.Time > maxTime || r.Time < -maxTime {
		return Ignored, errors.New("event time " + strconv.FormatInt(r.Time, 10) + " is too far from 1970")
	}
	if err := s.load(r.Key); err != nil {
		return Ignored, err
	}
	watermark := weir.Watermark()
	one, joined := session{first: r.Time, last: r.Time}, 0
	s.acc = s.acc[:0]
	for rest := s.value; len(rest) > 0; {
		var old session
		if old, rest = nextSession(rest); !s.touches(old, r.Time) {
			continue
		}
		one.first, one.last = min(one.first, old.first), max(one.last, old.last)
		one.flags |= old.flags & sessionShown
		if joined++; joined == 1 {
			s.acc = append(s.acc, old.acc...)
		} else {
			s.acc = s.Fold.Merge(s.acc, old.acc)
		}
	}
	end := one.last + s.Gap
	if joined == 0 && end+s.Lateness <= watermark {
		return Late, nil
	}
	acc, ok := s.Fold.Add(s.acc, r)
	s.acc = acc
	if !ok {
		return Ignored, nil
	}
	one.acc = acc
	over := end <= watermark
	if over {
		one.flags |= sessionOver | sessionShown
	}
	s.put(one, r.Time)
	s.timer = timerKey(s.timer, r.Key, s.Tag)
	for rest := s.value; len(rest) > 0; {
		var old session
		if old, rest = nextSession(rest); s.touches(old, r.Time) && !s.isDue(s.made, s.due(old)) {
			weir.ClearTimer(weir.EventTime, s.due(old), s.timer)
		}
	}
	if !s.isDue(s.value, s.due(one)) {
		weir.SetTimer(weir.EventTime, s.due(one), s.timer)
	}
	s.store()
	if over {
		return Taken, s.Fire(Result{Key: r.Key, Start: one.first, End: end, Acc: one.acc, Update: true}, out)
	}
	return Taken, nil
}

// touches says whether a record of that time belongs to the session.
func (s *Session) touches(old session, time int64) bool {
	return time < old.last+s.Gap && old.first < time+s.Gap
}

// due is when the session's timer fires: at its end, then when it is over for good.
func (s *Session) due(one session) int64 {
	if one.flags&sessionOver != 0 {
		return one.last + s.Gap + s.Lateness
	}
	return one.last + s.Gap
}

// isDue says whether a timer at that time is for a session of the list.
func (s *Session) isDue(list []byte, at int64) bool {
	for len(list) > 0 {
		var one session
		if one, list = nextSession(list); s.due(one) == at {
			return true
		}
	}
	return false
}

// put makes the list of sessions with one in the place of those that a record of that time touches.
func (s *Session) put(one session, time int64) {
	s.made = s.made[:0]
	placed := false
	for rest := s.value; len(rest) > 0; {
		var old session
		if old, rest = nextSession(rest); s.touches(old, time) {
			continue
		}
		if !placed && old.first > one.first {
			s.made, placed = one.append(s.made), true
		}
		s.made = old.append(s.made)
	}
	if !placed {
		s.made = one.append(s.made)
	}
}

// OnTimer takes the timers that the block has set; false if this is not one of them.
func (s *Session) OnTimer(t weir.Timer, out *weir.Out) (bool, error) {
	key, mine := timerOf(t, s.Tag)
	if !mine {
		return false, nil
	}
	if err := s.load(key); err != nil {
		return true, err
	}
	watermark := weir.Watermark()
	s.made = s.made[:0]
	for rest := s.value; len(rest) > 0; {
		var one session
		if one, rest = nextSession(rest); s.due(one) != t.At {
			s.made = one.append(s.made)
			continue
		}
		end := one.last + s.Gap
		if one.flags&sessionOver == 0 {
			if err := s.Fire(Result{Key: key, Start: one.first, End: end, Acc: one.acc, Update: one.flags&sessionShown != 0}, out); err != nil {
				return true, err
			}
			one.flags |= sessionOver | sessionShown
		}
		if end+s.Lateness > watermark {
			weir.SetTimer(weir.EventTime, end+s.Lateness, t.Key)
			s.made = one.append(s.made)
		}
	}
	s.store()
	return true, nil
}
