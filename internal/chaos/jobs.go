package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-stream/weir/internal/ledger"
	"github.com/weir-stream/weir/internal/trial"
)

// The jobs. PLAIN is the broker of the first, ONCE the quality of service at which it keeps its promise, OTHER that
// of the others. Sinks say number and channel, so that a reader can tell a repeat.
const (
	// chainJob runs on each gateway alone: from sensor to reader once.
	chainJob = `name: chain
checkpoint: {interval: 2s, detach_after: 20s}
sources:
  readings:
    mqtt: {broker: "tcp://PLAIN", client_id: "{agent}-chain", topics: ["chain/{agent}/+"], qos: ONCE, keep_alive: 2s}
    key: {segment: 2}
    id: {json: seq, window: 100000}
    on: {role: gateway}
operators:
  tally: {wasm: ./tally.wasm, from: readings}
sinks:
  out:
    mqtt: {broker: "tcp://PLAIN", topic: "out/chain/{key}", qos: ONCE,
           payload: '{"number":{number},"channel":"{channel}","value":{"n":{value.n},"seq":{value.seq}}}'}
    from: tally
`
	// shuffleJob takes from four gateways and shuffles twice: by sensor to the plant, by group to the hub.
	shuffleJob = `name: shuffle
checkpoint: {interval: 1s, min_pause: 200ms, detach_after: 20s}
sources:
  readings:
    mqtt: {broker: "tcp://OTHER", client_id: "{agent}-shuffle", topics: ["shuffle/{agent}/+"], qos: 1, keep_alive: 2s}
    key: {segment: 2}
    id: {json: seq, window: 100000}
    on: {role: gateway}
operators:
  sensors: {wasm: ./tally.wasm, from: readings, key_by: key, parallelism: 2, on: {role: plant}}
  groups:  {wasm: ./tally.wasm, from: sensors, key_by: {json: g}, parallelism: 2, on: {role: hub}, config: {seq: u}}
sinks:
  by-sensor:
    mqtt: {broker: "tcp://OTHER", topic: "out/sensors/{key}", qos: 1,
           payload: '{"number":{number},"channel":"{channel}","value":{"n":{value.n},"seq":{value.seq}}}'}
    from: sensors
  by-group:
    mqtt: {broker: "tcp://OTHER", topic: "out/groups/{key}", qos: 1,
           payload: '{"number":{number},"channel":"{channel}","value":{"n":{value.n},"seq":{value.seq}}}'}
    from: groups
    commit: checkpoint
`
	// loopJob is the example of feedback, over two agents.
	loopJob = `name: feedback
checkpoint: {interval: 500ms, min_pause: 100ms, detach_after: 20s}
sources:
  readings:
    mqtt: {broker: "tcp://PLAIN", client_id: "{agent}-loop", topics: ["loop/{agent}/+"], qos: 1, keep_alive: 2s}
    key: {segment: 2}
    id: {json: seq, window: 100000}
    on: {role: gateway}
operators:
  watch: {wasm: ./watch.wasm, from: [readings, learn.threshold], key_by: key, parallelism: 2, on: {role: plant}, config: {threshold: "0"}}
  learn: {wasm: ./learn.wasm, from: watch, on: {role: hub}, config: {rate: "0.01"}}
sinks:
  alarms:
    mqtt: {broker: "tcp://PLAIN", topic: "out/alarms/{key}", qos: 1,
           payload: '{"number":{number},"channel":"{channel}","n":{value.n},"readings":{value.readings}}'}
    from: learn
  learned:
    mqtt: {broker: "tcp://OTHER", topic: "out/learned/{key}", qos: 1,
           payload: '{"number":{number},"channel":"{channel}","n":{value.n},"readings":{value.readings}}'}
    from: watch.learned
  broken:
    mqtt: {broker: "tcp://OTHER", topic: "out/broken/{key}", qos: 1, payload: "{value}"}
    from: [watch.broken, learn.broken]
`
)

// The readings: how many a second each gateway gets for each job, and of how many sensors.
const (
	rate    = 40
	sensors = 5
	groups  = 3
)

// stream is what one gateway gets for one job.
type stream struct {
	job     string
	gateway int
	sender  *trial.Sender
}

// sensor names the sensor of the nth reading, and says its seq.
func (s *stream) sensor(n int) (index int, name string, seq int) {
	index = (n - 1) % sensors
	return index, fmt.Sprintf("g%d-s%d", s.gateway+1, index), (n-1)/sensors + 1
}

// unique numbers a reading within its group.
func (s *stream) unique(n int) (group string, u uint64) {
	index, _, seq := s.sensor(n)
	return fmt.Sprintf("x%d", index%groups), uint64(seq*100 + s.gateway*10 + index)
}

// message is the nth one. A reading of the loop is above the one before; those behind total are far above.
func (s *stream) message(n, total int) (topic, payload string) {
	_, name, seq := s.sensor(n)
	topic = fmt.Sprintf("%s/g%d/%s", s.job, s.gateway+1, name)
	switch s.job {
	case "loop":
		v := seq
		if n > total {
			v *= 1_000_000
		}
		return topic, fmt.Sprintf(`{"seq":%d,"v":%d}`, seq, v)
	case "windows":
		return topic, fmt.Sprintf(`{"seq":%d,"t":%d}`, seq, eventTime(n, total))
	}
	group, u := s.unique(n)
	return topic, fmt.Sprintf(`{"seq":%d,"g":"%s","u":%d}`, seq, group, u)
}

// newStream makes the stream; total is how many readings it has at first.
func newStream(job string, gateway int, broker string, qos byte, total int) *stream {
	s := &stream{job: job, gateway: gateway}
	s.sender = &trial.Sender{
		Name: fmt.Sprintf("%s-g%d", job, gateway+1), Broker: broker, QoS: qos, Rate: rate,
		Message: func(n int) (string, string) { return s.message(n, total) },
	}
	return s
}

// book has what all sinks are to give, and what they gave. One goroutine at a time may use it.
type book struct {
	chain, sensors, groups *ledger.Ledger
	alarms, learned        *rounds
	windows                *windowed
	broken                 []string
	newest                 time.Time // when something new came
}

func newBook() *book {
	return &book{chain: ledger.New(), sensors: ledger.New(), groups: ledger.New(), alarms: newRounds(), learned: newRounds(), windows: newWindowed(), newest: time.Now()}
}

// take notes a message of a sink.
func (b *book) take(topic string, payload []byte) {
	parts := strings.Split(topic, "/")
	var l *ledger.Ledger
	var r interface {
		take(key string, payload []byte) (isNew bool)
	}
	switch parts[1] {
	case "chain":
		l = b.chain
	case "sensors":
		l = b.sensors
	case "groups":
		l = b.groups
	case "alarms":
		r = b.alarms
	case "learned":
		r = b.learned
	case "windows", "late":
		r = b.windows
	default:
		b.broken = append(b.broken, topic+" "+string(payload))
		return
	}
	isNew := false
	if r != nil {
		isNew = r.take(parts[2], payload)
	} else if rec, err := ledger.Decode(topic, payload); err != nil {
		l.SeenOther(err)
	} else {
		isNew = l.Seen(rec)
	}
	if isNew {
		b.newest = time.Now()
	}
}

// sent notes that the broker has acknowledged readings 1 to n of a stream.
func (b *book) sent(s *stream, n int) {
	for i := 1; i <= n; i++ {
		_, name, seq := s.sensor(i)
		switch s.job {
		case "chain":
			b.chain.Sent(name, uint64(seq))
		case "shuffle":
			b.sensors.Sent(name, uint64(seq))
			group, u := s.unique(i)
			b.groups.Sent(group, u)
		case "windows":
			b.windows.send(name, eventTime(i, n), int64(seq))
		}
	}
}
