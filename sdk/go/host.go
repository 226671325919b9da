package weir

import (
	"errors"
	"strconv"
	"strings"
)

// Config is the operator's configuration in the job file. It is fixed for the life of an operator.
type Config struct{}

// Lookup returns the value of a key, false if it is not set.
func (Config) Lookup(key string) (string, bool) {
	buf := make([]byte, 256)
	n := hostConfigGet(key, buf)
	if n < 0 {
		return "", false
	}
	if int(n) > len(buf) {
		buf = make([]byte, n)
		hostConfigGet(key, buf)
	}
	return string(buf[:n]), true
}

// Keys of the configuration that the host sets: no key of a job file begins with weir:.
const (
	hostKeys      = "weir:keys"
	hostEventTime = "weir:event_time"
)

// Keys are the names of all keys that are set, sorted. Empty on an agent that does not tell.
func (c Config) Keys() []string {
	all, ok := c.Lookup(hostKeys)
	if !ok || all == "" {
		return nil
	}
	return strings.Split(all, "\n")
}

// EventTime says whether the job has event time: without it no watermark comes before the end of the input, and no
// timer of event time is called until then. An agent that does not tell has it.
func (c Config) EventTime() bool { return c.String(hostEventTime, "") != "none" }

// String returns the value of a key, or fallback if it is not set.
func (c Config) String(key, fallback string) string {
	if v, ok := c.Lookup(key); ok {
		return v
	}
	return fallback
}

// Float returns the number that a key is set to, or fallback. The error names the key and its value.
func (c Config) Float(key string, fallback float64) (float64, error) {
	v, ok := c.Lookup(key)
	if !ok {
		return fallback, nil
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		return fallback, errors.New("config " + key + ": " + strconv.Quote(v) + " is not a number")
	}
	return f, nil
}

// Int returns the whole number that a key is set to, or fallback. The error names the key and its value.
func (c Config) Int(key string, fallback int) (int, error) {
	v, ok := c.Lookup(key)
	if !ok {
		return fallback, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return fallback, errors.New("config " + key + ": " + strconv.Quote(v) + " is not a whole number")
	}
	return n, nil
}

// Level is the level of a log line.
type Level uint32

// Levels of log lines.
const (
	Debug Level = iota
	Info
	Warn
	Error
)

// Log writes a line to the agent's log. Lines beyond the host's rate are dropped and counted.
func Log(level Level, text string) { hostLog(uint32(level), text) }

// Count adds to a counter of this operator, which the agent shows as a metric.
func Count(counter string, delta int64) { hostCounterAdd(counter, delta) }

// Gauge sets a gauge of this operator, which the agent shows as a metric. Counters and gauges have 64
// names together.
func Gauge(gauge string, value float64) { hostGaugeSet(gauge, value) }

// Now is the host's clock in milliseconds since 1970: the time at which the agent logged the records
// that are being processed. It is 0 in Init.
func Now() int64 { return hostClockMs() }

// Keyed is state that the host keeps by key: it may be larger than memory allows for variables, and follows
// its keys when a job is rescaled. Keys have 1 to 4,096 bytes, values up to 1 MiB.
type Keyed struct{ scan []byte }

// State is the operator's keyed state.
var State Keyed

// Get returns the value of a key in buf if it is large enough, else in a new slice; false if the key
// is not set.
func (*Keyed) Get(key, buf []byte) ([]byte, bool) {
	buf = buf[:cap(buf)]
	n := hostStateGet(key, buf)
	if n < 0 {
		return nil, false
	}
	if int(n) > len(buf) {
		buf = make([]byte, n)
		hostStateGet(key, buf)
	}
	return buf[:n], true
}

// Put sets the value of a key. Both are copied.
func (*Keyed) Put(key, value []byte) { hostStatePut(key, value) }

// Delete removes a key and says whether it was set.
func (*Keyed) Delete(key []byte) bool { return hostStateDelete(key) }

// Scan visits the keys that begin with prefix in byte order until visit returns false. Key and value are
// borrowed until visit returns. Keys may be changed meanwhile; a change may or may not be seen. Scans do not nest.
func (k *Keyed) Scan(prefix []byte, visit func(key, value []byte) bool) {
	if k.scan == nil {
		k.scan = make([]byte, 16<<10)
	}
	var after []byte
	for {
		n := int(hostStateScan(prefix, after, k.scan))
		if n == 0 {
			return
		}
		if n < 0 {
			k.scan = make([]byte, -n)
			continue
		}
		for b := k.scan[:n]; len(b) > 0; {
			klen, vlen := int(le32(b)), int(le32(b[4:]))
			key, value := b[8:8+klen:8+klen], b[8+klen:8+klen+vlen]
			b = b[8+klen+vlen:]
			if len(b) == 0 {
				after = append(after[:0], key...)
			}
			if !visit(key, value) {
				return
			}
		}
	}
}
