package mqtt

import (
	"strconv"

	"github.com/tidwall/gjson"
	"github.com/zeebo/xxh3"

	"github.com/weir-stream/weir/dataflow"
)

// maxSequenceKeys bounds the senders whose numbers are followed: 100 bytes each.
const maxSequenceKeys = 4096

// restartedBelow: a number so far below the last one is no repeat, which a broker's window bounds, but that
// of a sender that has begun again.
const restartedBelow = 1000

// sequence counts the messages that are missing between those of a sender, by a number that it gives them
// and that grows by one. The last number of each key is a mark in the log, so that what a broker dropped
// while the agent was away is noticed, too.
type sequence struct {
	path  string            // empty: nothing is counted
	last  map[uint64]uint64 // by mark
	ahead map[uint64]uint64 // changes by the batch in the making
	fresh int               // keys in ahead that are not in last
	found gaps              // in it
}

// gaps are what a batch shows to be missing.
type gaps struct {
	gaps, missing, untracked uint64
}

func newSequence(path string) sequence {
	return sequence{path: path, last: map[uint64]uint64{}, ahead: map[uint64]uint64{}}
}

func (s *sequence) restore(mark, number uint64) { s.last[mark] = number }

// begin starts a batch. What one that was not logged had changed is forgotten.
func (s *sequence) begin() {
	clear(s.ahead)
	s.fresh = 0
	s.found = gaps{}
}

// take looks at a message of the batch.
func (s *sequence) take(key, payload []byte) {
	if s.path == "" || !gjson.ValidBytes(payload) {
		return
	}
	v := gjson.GetBytes(payload, s.path)
	n, err := strconv.ParseUint(v.String(), 10, 64)
	if err != nil || v.Type != gjson.Number && v.Type != gjson.String {
		return
	}
	mark := xxh3.Hash(key) | markSequence
	last, known := s.ahead[mark]
	if !known {
		last, known = s.last[mark]
	}
	switch {
	case !known && len(s.last)+s.fresh >= maxSequenceKeys:
		s.found.untracked++
		return
	case known && n > last && n-last > 1:
		s.found.gaps++
		s.found.missing += n - last - 1
	case known && n <= last && n > 1 && last-n < restartedBelow:
		return // a repeat
	}
	if !known {
		s.fresh++
	}
	s.ahead[mark] = n
}

// appendMarks appends what the batch changes.
func (s *sequence) appendMarks(dst []dataflow.Mark) []dataflow.Mark {
	for mark, n := range s.ahead {
		dst = append(dst, dataflow.Mark{Key: mark, Value: n})
	}
	return dst
}

// commit makes the changes of a batch that has been logged.
func (s *sequence) commit() gaps {
	for mark, n := range s.ahead {
		s.last[mark] = n
	}
	clear(s.ahead)
	s.fresh = 0
	return s.found
}
