package node_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
)

const clockJob = `name: clock
checkpoint: {interval: 24h}
sources:
  in: {mqtt: {topics: ["t/+"], qos: 1}, key: {json: k}, id: n}
sinks:
  out: {file: {path: out.txt, line: "{value}"}, from: in}
`

var publishers atomic.Int64 // how many there were: each has an identifier of its own

// publish sends messages of QoS 1, each when the broker has acknowledged the one before. It does not wait until the
// server has noticed that it left; a second client of the same identifier might be refused meanwhile.
func publish(t *testing.T, addr string, payloads ...string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	send := func(p packets.ControlPacket) {
		if err := p.Write(conn); err != nil {
			t.Fatal(err)
		}
	}
	wait := func() packets.ControlPacket {
		p, err := packets.ReadPacket(conn)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	c := packets.NewControlPacket(packets.Connect).(*packets.ConnectPacket)
	c.ProtocolName, c.ProtocolVersion, c.ClientIdentifier, c.CleanSession = "MQTT", 4, fmt.Sprint("publisher-", publishers.Add(1)), true
	send(c)
	if ack, ok := wait().(*packets.ConnackPacket); !ok || ack.ReturnCode != 0 {
		t.Fatalf("CONNACK %v", ack)
	}
	for i, text := range payloads {
		m := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
		m.TopicName, m.Payload, m.Qos, m.MessageID = "t/x", []byte(text), 1, uint16(i+1)
		send(m)
		if _, ok := wait().(*packets.PubackPacket); !ok {
			t.Fatal("no PUBACK")
		}
	}
	send(packets.NewControlPacket(packets.Disconnect))
}

// TestClockIsSet: the machine's clock is set back by an hour, the agent boots in 1970 and the clock then
// jumps to now. Nothing is lost, doubled or late, dead letters are kept all, and checkpoints go on.
func TestClockIsSet(t *testing.T) {
	const now = 1800000000000
	var clock atomic.Int64
	clock.Store(now)
	dir := t.TempDir()
	begin := func() *agent {
		return startWith(t, node.Options{Data: dir, Name: "a", NATSListen: "127.0.0.1:0", MQTTListen: "127.0.0.1:0", Clock: clock.Load})
	}
	var want []string
	letters := 0
	// phase publishes under the clock of the moment and waits until all of it has come out.
	phase := func(a *agent, what string) {
		t.Helper()
		payloads := []string{fmt.Sprintf(`{"no key":%d}`, letters)} // becomes a dead letter
		for range 20 {
			text := fmt.Sprintf(`{"k":"x","n":%d}`, len(want))
			want = append(want, text)
			payloads = append(payloads, text, text) // twice: the second is dropped by its id
		}
		publish(t, a.at.MQTT, payloads...)
		letters++
		a.until("everything has come out: "+what, func() (bool, string) {
			out, err := os.ReadFile(filepath.Join(dir, "files", "out.txt"))
			got := strings.Count(string(out), "\n")
			return got >= len(want), fmt.Sprintf("%d of %d lines, %v", got, len(want), err)
		})
		dead, err := a.letters("clock", 100)
		if err != nil || len(dead) != letters {
			t.Fatalf("%s: %d dead letters of %d, %v", what, len(dead), letters, err)
		}
		if _, err := a.client.CheckpointNow(t.Context(), "clock", "", patience); err != nil {
			t.Fatalf("%s: checkpoint: %v", what, err)
		}
	}
	a := begin()
	a.mustApply(clockJob)
	phase(a, "at the right time")
	clock.Add(-3600_000)
	phase(a, "an hour back")
	a.stop()

	clock.Store(5000)
	a = begin()
	phase(a, "in 1970")
	clock.Store(now + 60_000)
	phase(a, "after the jump to now")
	a.stop()

	clock.Store(5000) // and again: what was kept under this time stays
	a = begin()
	phase(a, "in 1970 again")
	a.stop()

	out, err := os.ReadFile(filepath.Join(dir, "files", "out.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(out)); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// TestTimeGoesOn: whatever the machine's clock does, event time goes on at once and in seconds, not in the hours or
// years that the clock was wrong by: an hour back, 56 years ahead for a moment, a boot in 1970 and the jump to now.
// Arrival times go back never, and a device with a future clock is counted and moves nothing, unless the agent's own
// clock was there.
func TestTimeGoesOn(t *testing.T) {
	const hour, years = int64(3600_000), 56 * 365 * 24 * int64(3600_000)
	began := time.Now()
	var shift atomic.Int64
	clock := func() int64 { return 1_800_000_000_000 + shift.Load() + time.Since(began).Milliseconds() }
	dir := t.TempDir()
	begin := func() *agent {
		return startWith(t, node.Options{Data: dir, Name: "a", NATSListen: "127.0.0.1:0", MQTTListen: "127.0.0.1:0", Clock: clock})
	}
	a := begin()
	a.mustApply(`name: timed
checkpoint: {interval: 24h}
sources:
  sent: {mqtt: {topics: ["t/+"], qos: 1}, time: {json: ts, unit: ms, idle: 200ms}}
  came: {mqtt: {topics: ["t/+"], qos: 1}, time: {idle: 200ms}}
sinks:
  out: {log: {}, from: [sent, came]}
`)
	task := func(source string) api.EventTime {
		j, err := a.client.Job(t.Context(), "timed")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range j.Tasks {
			if strings.HasPrefix(task.ID, source) && task.EventTime != nil {
				return *task.EventTime
			}
		}
		return api.EventTime{}
	}
	sent, came, ahead := clock(), int64(0), uint64(0)
	// goes publishes what a sensor with the right clock sends, and waits until both watermarks have moved, and then
	// until the sources are idle, for which time must pass.
	goes := func(what string) {
		t.Helper()
		for range 3 {
			sent += 1000
			publish(t, a.at.MQTT, fmt.Sprintf(`{"ts":%d}`, sent))
		}
		a.until("event time has come to what was sent: "+what, func() (bool, string) {
			w := task("sent").Watermark
			return w != nil && w.UnixMilli() == sent, fmt.Sprint(w, " of ", time.UnixMilli(sent).UTC())
		})
		a.until("arrival times have moved: "+what, func() (bool, string) {
			w := task("came").Watermark
			return w != nil && w.UnixMilli() > came, fmt.Sprint(w, " was ", time.UnixMilli(came).UTC())
		})
		came = task("came").Watermark.UnixMilli()
		a.until("sources are idle: "+what, func() (bool, string) {
			return task("sent").Idle && task("came").Idle, ""
		})
		if got := task("sent").Ahead; got != ahead {
			t.Fatalf("%s: %d records were ahead of the clock, not %d", what, got, ahead)
		}
	}
	restart := func() {
		t.Helper()
		if _, err := a.client.CheckpointNow(t.Context(), "timed", "", patience); err != nil {
			t.Fatal(err)
		}
		a.stop()
		a = begin()
	}
	goes("at the right time")
	publish(t, a.at.MQTT, fmt.Sprintf(`{"ts":%d}`, clock()+10*365*24*hour))
	ahead++
	goes("with a sensor of the future")
	shift.Store(-hour)
	goes("an hour back")
	restart()
	goes("an hour back, after a restart")
	shift.Store(-clock() + 5000) // the clock's battery is empty
	restart()
	goes("in 1970")
	shift.Store(0)
	goes("at the right time again")
	shift.Store(years)
	goes("56 years ahead")
	shift.Store(0)
	goes("after 56 years ahead")
	restart()
	goes("after 56 years ahead, after a restart")
}
