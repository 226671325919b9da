//go:build !wasip1

package weir

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
)

// Emitted is a record that an operator emitted in a [Harness], and the output it came out of.
type Emitted struct {
	Output string
	Record Record
}

// Harness runs an operator natively, in a plain Go test. It does what a host does except for
// snapshots; `agent operator test` runs the built module with those. It exists only in native builds.
type Harness struct {
	// Clock is what [Now] returns, in milliseconds since 1970.
	Clock int64
	// Logs are the lines that the operator logged, as "level text".
	Logs []string
	// Counters are the operator's counters.
	Counters map[string]int64
	// Gauges are the operator's gauges.
	Gauges map[string]float64
	// Keys is the keyed state. What has expired is removed when the watermark moves.
	Keys map[string][]byte

	time    harnessTime
	run     runner
	config  map[string]string
	outputs []string
	emitted []Emitted
}

var (
	hostMu  sync.Mutex // one harness runs at a time
	current *Harness
)

// Registered returns the operator that [Register] was called with, for the test of a main package. It
// exists only in native builds.
func Registered() Operator { return registered.op }

// NewHarness makes an operator ready to process. Variables of the operator's package are not reset.
func NewHarness(op Operator, config map[string]string) (*Harness, error) {
	if op.Process == nil {
		return nil, errors.New("operator without Process")
	}
	h := &Harness{Counters: map[string]int64{}, Gauges: map[string]float64{}, Keys: map[string][]byte{}, time: newHarnessTime(), config: config, run: runner{op: op}}
	hostMu.Lock()
	defer hostMu.Unlock()
	current = h
	if err := h.run.init(); err != nil {
		return nil, err
	}
	return h, nil
}

// Process gives records to the operator as one batch and returns what it emitted. The records that come
// out own their memory. Those given are scrambled afterwards, as a host does when it reuses its buffer.
func (h *Harness) Process(input int, records ...Record) ([]Emitted, error) {
	var batch []byte
	for _, r := range records {
		batch = appendRecord(batch, r.Key, r.Headers, r.Time, r.Value)
	}
	hostMu.Lock()
	defer hostMu.Unlock()
	current, h.emitted = h, nil
	if err := h.run.process(input, batch, len(records)); err != nil {
		return nil, err
	}
	for i := range batch {
		batch[i] = 0xdb
	}
	return h.emitted, nil
}

func hostEmit(output int32, b []byte, count uint32) {
	b = append([]byte(nil), b...)
	for ; count > 0; count-- {
		r, rest, ok := nextRecord(b)
		if !ok {
			panic(fmt.Sprintf("malformed output %s", current.outputs[output]))
		}
		current.emitted = append(current.emitted, Emitted{current.outputs[output], r})
		b = rest
	}
}

func hostOutputOpen(name string) int32 {
	current.outputs = append(current.outputs, name)
	return int32(len(current.outputs) - 1)
}

func hostConfigGet(key string, out []byte) int32 {
	if current == nil { // a block that is used without an operator
		return -1
	}
	v, ok := current.config[key]
	if key == hostKeys {
		var names []string
		for name := range current.config {
			names = append(names, name)
		}
		sort.Strings(names)
		v, ok = strings.Join(names, "\n"), true
	}
	return answer([]byte(v), ok, out)
}

func answer(v []byte, ok bool, out []byte) int32 {
	if !ok {
		return -1
	}
	if len(v) <= len(out) {
		copy(out, v)
	}
	return int32(len(v))
}

func hostStateGet(key, out []byte) int32 {
	v, ok := current.Keys[string(key)]
	return answer(v, ok, out)
}

func hostStatePut(key, value []byte) {
	if len(key) == 0 {
		panic("state key is empty")
	}
	current.Keys[string(key)] = append([]byte{}, value...)
	delete(current.time.until, string(key))
}

func hostStateDelete(key []byte) bool {
	_, ok := current.Keys[string(key)]
	delete(current.Keys, string(key))
	delete(current.time.until, string(key))
	return ok
}

func hostStateScan(prefix, after, out []byte) int32 {
	var keys []string
	for k := range current.Keys {
		if strings.HasPrefix(k, string(prefix)) && (len(after) == 0 || k > string(after)) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	n := 0
	for _, k := range keys {
		v := current.Keys[k]
		entry := append(appendLE32(appendLE32(nil, len(k)), len(v)), k...)
		entry = append(entry, v...)
		if n+len(entry) > len(out) {
			if n == 0 {
				return int32(-len(entry))
			}
			break
		}
		n += copy(out[n:], entry)
	}
	return int32(n)
}

func appendLE32(b []byte, v int) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}

func hostLog(level uint32, text string) {
	names := []string{"debug", "info", "warn", "error"}
	current.Logs = append(current.Logs, names[min(level, 3)]+" "+text)
}

func hostCounterAdd(name string, delta int64) { current.Counters[name] += delta }

func hostGaugeSet(name string, value float64) { current.Gauges[name] = value }

func hostClockMs() int64 { return current.Clock }
