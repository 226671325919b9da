package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// windowsJob collects what four gateways send in windows of event time at the plant. Some readings are out of order,
// some late; how far event time has come when one arrives, and so which is too late, is chance.
const windowsJob = `name: windows
checkpoint: {interval: 1s, min_pause: 200ms, detach_after: 20s}
sources:
  readings:
    mqtt: {broker: "tcp://PLAIN", client_id: "{agent}-windows", topics: ["windows/{agent}/+"], qos: 1, keep_alive: 2s}
    key: {segment: 2}
    id: {json: seq, window: 100000}
    time: {json: t, unit: ms, max_delay: 1s}
    on: {role: gateway}
operators:
  sums: {wasm: ./window.wasm, from: readings, key_by: key, parallelism: 2, on: {role: plant}, config: {size: 5s, field: seq, functions: "count,sum"}}
sinks:
  windows:
    mqtt: {broker: "tcp://PLAIN", topic: "out/windows/{key}", qos: 1,
           payload: '{"number":{number},"channel":"{channel}","start":{value.start},"count":{value.count},"sum":{value.sum}}'}
    from: sums
  late:
    mqtt: {broker: "tcp://PLAIN", topic: "out/late/{key}", qos: 1,
           payload: '{"number":{number},"channel":"{channel}","t":{value.t},"seq":{value.seq}}'}
    from: sums.late
`

// Event time, in milliseconds. It is far in the past, so that no agent's clock, wrong as it may be, is behind it.
const (
	windowSize = 5_000
	firstTime  = 1_700_000_000_000
	lastTime   = firstTime + 24*3600_000 // of the readings that close all windows
)

// eventTime is that of a stream's nth reading. The last of each sensor close what came before.
func eventTime(n, total int) int64 {
	t := firstTime + int64(n)*1000/rate
	switch {
	case n > total-sensors:
		return lastTime
	case n%13 == 0:
		return t - 2*windowSize
	case n%13 == 5:
		return t - 800
	}
	return t
}

// sum is of some readings of one sensor.
type sum struct{ Count, Sum int64 }

func (s *sum) add(o sum) { s.Count, s.Sum = s.Count+o.Count, s.Sum+o.Sum }

// windowed has what is to come in windows, or else late, and what came: by key and start of the window.
type windowed struct {
	sent, got map[string]map[int64]sum
	out       map[string]map[int64]bool // windows that came
	late      map[string]map[int64]bool // seqs that came late
	places    map[string]windowedRecord // by channel and number
	faults    []string
}

// windowedRecord is a record of either sink.
type windowedRecord struct {
	Start, T, Seq *int64
	sum
}

func (r windowedRecord) String() string {
	if r.Start != nil {
		return fmt.Sprintf("window %d of %+v", *r.Start, r.sum)
	}
	return fmt.Sprintf("late %d of %d", *r.Seq, *r.T)
}

func newWindowed() *windowed {
	return &windowed{
		sent: map[string]map[int64]sum{}, got: map[string]map[int64]sum{}, out: map[string]map[int64]bool{},
		late: map[string]map[int64]bool{}, places: map[string]windowedRecord{},
	}
}

// at makes the map of a key if there is none.
func at[K comparable, V any](m map[string]map[K]V, key string) map[K]V {
	if m[key] == nil {
		m[key] = map[K]V{}
	}
	return m[key]
}

func plus(m map[int64]sum, start int64, s sum) {
	was := m[start]
	was.add(s)
	m[start] = was
}

func startOf(t int64) int64 { return t - t%windowSize }

// send notes a reading that is to come out.
func (w *windowed) send(key string, t, seq int64) {
	if t != lastTime {
		plus(at(w.sent, key), startOf(t), sum{1, seq})
	}
}

// take notes a record of either sink and says whether it is new.
func (w *windowed) take(key string, payload []byte) bool {
	var place struct {
		Number  uint64
		Channel string
	}
	var rec windowedRecord
	if err := json.Unmarshal(payload, &place); err != nil || place.Number == 0 {
		w.fault("%s: not a record: %s", key, payload)
		return false
	}
	if err := json.Unmarshal(payload, &rec); err != nil || (rec.Start == nil) == (rec.T == nil || rec.Seq == nil) {
		w.fault("%s: neither a window nor late: %s", key, payload)
		return false
	}
	where := fmt.Sprintf("%s %d", place.Channel, place.Number)
	if before, known := w.places[where]; known {
		if before.String() != rec.String() {
			w.fault("%s: %s, later %s", where, before, rec)
		}
		return false
	}
	w.places[where] = rec
	if rec.Start != nil {
		if at(w.out, key)[*rec.Start] {
			w.fault("%s: window %d came in two places", key, *rec.Start)
		}
		at(w.out, key)[*rec.Start] = true
		plus(at(w.got, key), *rec.Start, rec.sum)
		return true
	}
	if at(w.late, key)[*rec.Seq] {
		w.fault("%s: reading %d came late in two places", key, *rec.Seq)
	}
	at(w.late, key)[*rec.Seq] = true
	plus(at(w.got, key), startOf(*rec.T), sum{1, *rec.Seq})
	return true
}

func (w *windowed) fault(format string, args ...any) {
	if len(w.faults) < maxFaults {
		w.faults = append(w.faults, fmt.Sprintf(format, args...))
	}
}

// complete says whether each reading is in its window or came late.
func (w *windowed) complete() bool {
	return len(w.sent) > 0 && maps.EqualFunc(w.sent, w.got, func(a, b map[int64]sum) bool { return maps.Equal(a, b) })
}

// total is how many windows came, and how many readings late.
func (w *windowed) total() (windows, late int) {
	for _, m := range w.out {
		windows += len(m)
	}
	for _, m := range w.late {
		late += len(m)
	}
	return windows, late
}

// missing says what keeps it from being complete.
func (w *windowed) missing() (out []string) {
	keys := map[string]bool{}
	for _, m := range []map[string]map[int64]sum{w.sent, w.got} {
		for key := range m {
			keys[key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		starts := maps.Clone(at(w.sent, key))
		maps.Copy(starts, at(w.got, key))
		for _, start := range slices.Sorted(maps.Keys(starts)) {
			if is, want := w.got[key][start], w.sent[key][start]; is != want && len(out) < maxFaults {
				out = append(out, fmt.Sprintf("%s, window of %s: %+v came, of %+v", key, time.UnixMilli(start).UTC().Format(time.TimeOnly), is, want))
			}
		}
	}
	return out
}
