package ops

import (
	"encoding/binary"
	"errors"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

// Store is where a block keeps its state.
type Store interface {
	// Get returns the value of a key in buf if it is large enough; false if there is none.
	Get(key, buf []byte) ([]byte, bool)
	// Put sets the value of a key. Both are copied.
	Put(key, value []byte)
	// Delete removes a key and says whether it was there.
	Delete(key []byte) bool
}

// Keyed is the host's keyed state as a [Store].
func Keyed() Store { return &weir.State }

// NewMemory makes a [Store] in the program's variables.
func NewMemory() Store { return memory{} }

type memory map[string][]byte

func (m memory) Get(key, buf []byte) ([]byte, bool) {
	v, ok := m[string(key)]
	return append(buf[:0], v...), ok
}

func (m memory) Put(key, value []byte) {
	if old, ok := m[string(key)]; ok && len(old) == len(value) {
		copy(old, value)
		return
	}
	m[string(key)] = append([]byte(nil), value...)
}

func (m memory) Delete(key []byte) bool {
	_, ok := m[string(key)]
	delete(m, string(key))
	return ok
}

// maxKey bounds the keys of records: a block's keys in the store have a few bytes more.
const maxKey = 4000

// slot makes the keys under which a block keeps state: length of the record's key (2 bytes, big-endian), the key, the
// block's tag, and what else tells its entries apart. No key is the beginning of another record's.
type slot struct{ key []byte }

func (s *slot) of(key []byte, tag byte) error {
	if len(key) > maxKey {
		return errors.New("key of " + strconv.Itoa(len(key)) + " bytes: at most " + strconv.Itoa(maxKey) + " where state is kept by key")
	}
	s.key = append(s.key[:0], byte(len(key)>>8), byte(len(key)))
	s.key = append(append(s.key, key...), tag)
	return nil
}

// at is the slot's key followed by a time, so that byte order is that of time.
func (s *slot) at(time int64) []byte {
	s.key = binary.BigEndian.AppendUint64(s.key, uint64(time)^1<<63)
	return s.key
}

// cut takes the time away again.
func (s *slot) cut() { s.key = s.key[:len(s.key)-8] }

// timerKey is the key of a block's timers: the record's key and the block's tag.
func timerKey(buf, key []byte, tag byte) []byte { return append(append(buf[:0], key...), tag) }

// timerOf returns the record's key of a timer; false if the timer is not of this block.
func timerOf(t weir.Timer, tag byte) ([]byte, bool) {
	n := len(t.Key) - 1
	if t.Kind != weir.EventTime || n < 0 || t.Key[n] != tag {
		return nil, false
	}
	return t.Key[:n], true
}

// Outcome is what became of a record that was given to a block.
type Outcome int

// Outcomes.
const (
	// Taken: the record counts.
	Taken Outcome = iota
	// Late: it came after all that it would have counted in was final.
	Late
	// Ignored: it has not what the block works on, such as a number.
	Ignored
)

func le32(b []byte) int { return int(binary.LittleEndian.Uint32(b)) }

func le64(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) }

func put32(dst []byte, v int) []byte { return binary.LittleEndian.AppendUint32(dst, uint32(v)) }

func put64(dst []byte, v int64) []byte { return binary.LittleEndian.AppendUint64(dst, uint64(v)) }

// needsEventTime says that a block cannot do its work in a job without event time: it would put out nothing, or keep
// everything, until the input ends.
func needsEventTime(what string) error {
	if (weir.Config{}).EventTime() {
		return nil
	}
	return errors.New(what + " event time, and no source of the job has it: give one a time, such as time: arrival")
}
