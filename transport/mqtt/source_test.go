package mqtt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/extract"
	"github.com/weir-stream/weir/dataflow/frame"
)

// quick makes waits short that a test does not want to wait for.
func quick(t testing.TB, cfg SourceConfig, deps Deps) *Source {
	t.Helper()
	if cfg.Topics == nil {
		cfg.Topics = []string{"#"}
	}
	s, err := NewSource(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	s.link.backoff = backoff{time.Millisecond, 5 * time.Millisecond}
	s.bounds.logRetry = s.link.backoff
	return s
}

func startSource(t testing.TB, s *Source, log *logDouble) *running {
	return start(t, func(ctx context.Context) error { return s.Run(ctx, log) })
}

func TestAckFollowsDurableInOrder(t *testing.T) {
	d, log := newDouble(t), newLog(true)
	s := quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(nil))
	run := startSource(t, s, log)
	p := d.openSource(false)
	p.publish(1, 11, false, "t", "a")
	log.wait(t, 1)
	p.publish(1, 12, false, "t", "b")
	log.wait(t, 1) // after the linger
	p.settled()
	log.release(1)
	p.settled() // the second is durable and waits for the first
	log.release(0)
	p.expect("PUBACK 11", "PUBACK 12")
	if got := log.values(t); got != "a b" {
		t.Errorf("logged %s", got)
	}
	p.end(run)
	st := s.Status()
	if st.Received != 2 || st.Logged != 2 || st.Acked != 2 || st.State != SourceStopped || st.Link.Connects != 1 {
		t.Errorf("status %+v", st)
	}
}

func TestConnectAsConfigured(t *testing.T) {
	d := newDouble(t)
	b := d.broker("plant-7")
	b.User, b.Password, b.KeepAlive = "u", "secret", 10*time.Second
	run := startSource(t, quick(t, SourceConfig{Broker: b, Topics: []string{"a/+", "b/#"}, QoS: 2}, testDeps(nil)), newLog(false))
	p := d.accept()
	c := p.connect
	if c.CleanSession || c.ClientIdentifier != "plant-7" || c.Username != "u" || string(c.Password) != "secret" ||
		c.Keepalive != 10 || c.ProtocolVersion != 4 {
		t.Errorf("CONNECT %v", c)
	}
	p.connack(false, 0)
	if sub := p.suback(); fmt.Sprint(sub.Topics, sub.Qoss) != "[a/+ b/#] [2 2]" {
		t.Errorf("SUBSCRIBE %v %v", sub.Topics, sub.Qoss)
	}
	p.end(run)
}

func TestCutBeforeAck(t *testing.T) {
	for _, present := range []bool{true, false} {
		d, log := newDouble(t), newLog(true)
		run := startSource(t, quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(nil)), log)
		p := d.openSource(false)
		p.publish(1, 5, false, "t", "x")
		log.wait(t, 1)
		p.cut()
		p = d.openSource(present) // subscribes again in both cases
		log.release(0)            // its connection is gone: no acknowledgement here
		p.settled()
		p.publish(1, 5, true, "t", "x")
		want := "x"
		if !present { // by the protocol it is another message
			log.wait(t, 1)
			log.release(1)
			want = "x x"
		}
		p.expect("PUBACK 5")
		p.end(run)
		if got := log.values(t); got != want {
			t.Errorf("session present: %t; logged %s, want %s", present, got, want)
		}
	}
}

func TestMessagesBeforeSuback(t *testing.T) {
	d, log := newDouble(t), newLog(false)
	run := startSource(t, quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(nil)), log)
	p := d.open(true)
	sub := p.read().(*packets.SubscribePacket)
	p.publish(1, 9, true, "t", "waited")
	p.expect("PUBACK 9")
	p.grant(sub, 1)
	p.settled()
	if got := log.values(t); got != "waited" {
		t.Errorf("logged %s", got)
	}
	p.end(run)
}

func TestRepeatUnderAnIdentifierInUse(t *testing.T) {
	d, log := newDouble(t), newLog(true)
	s := quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(nil))
	run := startSource(t, s, log)
	p := d.openSource(false)
	p.publish(1, 5, false, "t", "x")
	p.publish(1, 5, true, "t", "x")
	p.settled()
	log.wait(t, 1)
	log.release(0)
	p.expect("PUBACK 5")
	p.publish(1, 5, true, "t", "x") // after the acknowledgement it is another one
	log.wait(t, 1)
	log.release(1)
	p.expect("PUBACK 5")
	p.end(run)
	if st := s.Status(); st.Repeated != 1 || st.Received != 3 {
		t.Errorf("status %+v", st)
	}
}

func TestQoS2(t *testing.T) {
	d, log := newDouble(t), newLog(true)
	s := quick(t, SourceConfig{Broker: d.broker("c"), QoS: 2}, testDeps(nil))
	run := startSource(t, s, log)
	p := d.openSource(false)
	p.publish(2, 5, false, "t", "x")
	log.wait(t, 1)
	p.settled()
	p.cut() // before PUBREC
	p = d.openSource(true)
	p.publish(2, 5, true, "t", "x")
	p.settled()
	log.release(0)
	p.expect("PUBREC 5")
	p.cut() // PUBREC may be lost
	p = d.openSource(true)
	p.publish(2, 5, true, "t", "x")
	p.expect("PUBREC 5")
	p.ack(typePubrel, 5)
	log.waitBatches(t, 2)
	p.settled() // the release is not durable
	p.ack(typePubrel, 5)
	p.settled()
	log.release(1)
	p.expect("PUBCOMP 5")
	p.ack(typePubrel, 5)
	p.expect("PUBCOMP 5")
	if got := log.values(t); got != "x" {
		t.Errorf("logged %s", got)
	}
	p.publish(2, 5, false, "t", "x") // released: a new message
	log.wait(t, 1)
	log.release(2)
	p.expect("PUBREC 5")
	p.end(run)
	if got := log.values(t); got != "x x" {
		t.Errorf("logged %s", got)
	}
}

func TestQoS2ForgetsWithTheBroker(t *testing.T) {
	d, log := newDouble(t), newLog(false)
	run := startSource(t, quick(t, SourceConfig{Broker: d.broker("c"), QoS: 2}, testDeps(nil)), log)
	p := d.openSource(false)
	p.publish(2, 5, false, "t", "x")
	p.expect("PUBREC 5")
	p.cut()
	p = d.openSource(false)
	p.publish(2, 5, true, "t", "x")
	p.expect("PUBREC 5")
	p.end(run)
	if got := log.values(t); got != "x x" {
		t.Errorf("logged %s", got)
	}
}

func TestLogFull(t *testing.T) {
	d, log, warn := newDouble(t), newLog(false), &warnings{}
	s := quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1, Key: extract.KeyRule{Kind: extract.KeyJSON, Path: "k"}}, testDeps(warn))
	run := startSource(t, s, log)
	p := d.openSource(false)
	log.setFull(true)
	p.publish(1, 1, false, "t", `{"k":1}`)
	p.publish(1, 2, false, "t", `{}`) // a dead letter waits too
	p.settled()
	until(t, "log full", func() bool { return s.Status().State == SourceLogFull })
	p.cut()
	p = d.openSource(true) // what waits comes again
	p.publish(1, 1, true, "t", `{"k":1}`)
	p.publish(1, 2, true, "t", `{}`)
	p.settled()
	log.setFull(false)
	p.expect("PUBACK 1", "PUBACK 2")
	if got := log.values(t); got != `{"k":1}` || len(log.letters) != 1 {
		t.Errorf("logged %s, %d dead letters", got, len(log.letters))
	}
	if st := s.Status(); st.State != SourceReceiving || st.DeadLetter != 1 || st.Waiting != 0 {
		t.Errorf("status %+v", st)
	}
	p.end(run)
	if got := len(warn.all()); got != 2 {
		t.Errorf("warnings %q, want one of the log and one of the connection", warn.all())
	}
}

func TestBrokerLosesSessionWhileMessagesWait(t *testing.T) {
	d, log := newDouble(t), newLog(false)
	run := startSource(t, quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(nil)), log)
	p := d.openSource(false)
	log.setFull(true)
	p.publish(1, 1, false, "t", "only here")
	p.settled()
	p.cut()
	p = d.openSource(false) // it will not come again
	p.settled()
	log.setFull(false)
	log.wait(t, 1)
	p.settled() // and is nothing to acknowledge here
	p.end(run)
	if got := log.values(t); got != "only here" {
		t.Errorf("logged %q", got)
	}
}

func TestBacklogIsBoundedByNotReading(t *testing.T) {
	d, log := newDouble(t), newLog(false)
	s := quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(nil))
	s.bounds.queue = 64 << 10
	run := startSource(t, s, log)
	p := d.openSource(false)
	log.setFull(true)
	const n = 2000
	payload := strings.Repeat("x", 4096)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := range n {
			p.publish(1, uint16(i+1), false, "t", payload)
		}
	}()
	until(t, "full queue", func() bool { return s.Status().Waiting >= 64<<10 })
	log.setFull(false)
	peak := int64(0)
	for i := range n {
		peak = max(peak, s.Status().Waiting)
		p.expect(fmt.Sprintf("PUBACK %d", i+1))
	}
	<-written
	p.end(run)
	if peak > 64<<10+readBuffer*2 {
		t.Errorf("%d bytes waited", peak)
	}
	if st := s.Status(); st.Shed != 0 || st.Logged != n {
		t.Errorf("status %+v", st)
	}
}

func TestStopAcknowledgesWhatIsUnderWay(t *testing.T) {
	d, log := newDouble(t), newLog(true)
	run := startSource(t, quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(nil)), log)
	p := d.openSource(false)
	p.publish(1, 1, false, "t", "x")
	log.wait(t, 1)
	run.cancel()
	log.release(0)
	p.expect("PUBACK 1")
	p.end(run)
}

func TestClosedLogIsWaitedFor(t *testing.T) {
	d, log, warn := newDouble(t), newLog(false), &warnings{}
	log.fail = dataflow.ErrClosed
	s := quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(warn))
	run := startSource(t, s, log)
	p := d.openSource(false)
	p.publish(1, 1, false, "t", "x")
	p.publish(0, 0, false, "t", "y")
	p.settled()
	log.setFail(nil)
	p.expect("PUBACK 1")
	log.wait(t, 2)
	log.setFail(dataflow.ErrClosed)
	p.publish(1, 2, false, "t", "z")
	p.publish(0, 0, false, "t", "lost")
	p.settled()
	p.end(run)
	if st := s.Status(); st.Acked != 1 || st.Shed != 1 || len(warn.all()) != 0 {
		t.Errorf("status %+v, warnings %q", st, warn.all())
	}
}

func TestLogErrorEndsTheSource(t *testing.T) {
	d, log := newDouble(t), newLog(false)
	log.fail = errors.New("disk gone")
	run := startSource(t, quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(nil)), log)
	p := d.openSource(false)
	p.publish(1, 1, false, "t", "x")
	p.expect("DISCONNECT")
	p.cut()
	if err := run.wait(t); !errors.Is(err, log.fail) {
		t.Errorf("got %v", err)
	}
}

// TestLowerQoSIsShown: what the broker grants below the QoS asked for is the reason of a source that receives, until it grants all.
func TestLowerQoSIsShown(t *testing.T) {
	d, warn := newDouble(t), &warnings{}
	s := quick(t, SourceConfig{Broker: d.broker("c"), Topics: []string{"a", "b/#", "c"}, QoS: 2}, testDeps(warn))
	run := startSource(t, s, newLog(false))
	p := d.open(false)
	p.grant(p.read().(*packets.SubscribePacket), 2, 1, 0)
	until(t, "a source that receives", func() bool { return s.Status().State == SourceReceiving })
	if st := s.Status(); !strings.HasPrefix(st.Reason, `the broker grants QoS 1 where the job asks for 2, first for "b/#": `) || len(warn.all()) != 2 {
		t.Errorf("reason %q, warnings %q", st.Reason, warn.all())
	}
	p.cut()
	p = d.openSource(false)
	until(t, "a source that receives in full", func() bool { st := s.Status(); return st.State == SourceReceiving && st.Reason == "" })
	p.end(run)
}

func TestOutageIsSaidOnce(t *testing.T) {
	d, warn := newDouble(t), &warnings{}
	s := quick(t, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(warn))
	run := startSource(t, s, newLog(false))
	d.accept().connack(false, 5)
	until(t, "refusal of the user in the status", func() bool { return strings.Contains(s.Status().Reason, "the user is not authorised") })
	d.accept().connack(false, 3)
	until(t, "another refusal in the status", func() bool { return strings.Contains(s.Status().Reason, "it is not available now") })
	p := d.open(false)
	p.grant(p.read().(*packets.SubscribePacket), 0x80)
	until(t, "refusal in the status", func() bool { return strings.Contains(s.Status().Link.LastError, `subscription to "#"`) })
	if st := s.Status(); st.Link.OutageSince != clockNow || st.State == SourceReceiving {
		t.Errorf("status %+v", st)
	}
	p = d.openSource(false)
	p.settled()
	if st := s.Status(); st.Link.OutageSince != 0 || st.Link.LastError != "" || st.State != SourceReceiving || st.Reason != "" {
		t.Errorf("status %+v", st)
	}
	p.end(run)
	if got := warn.all(); len(got) != 1 {
		t.Errorf("warnings %q", got)
	}
}

func TestSilenceIsALostConnection(t *testing.T) {
	d := newDouble(t)
	b := d.broker("c")
	b.KeepAlive = 20 * time.Millisecond
	run := startSource(t, quick(t, SourceConfig{Broker: b}, testDeps(nil)), newLog(false))
	d.open(false) // and never a word more
	d.open(false)
	run.stop(t)
}

func TestForget(t *testing.T) {
	d := newDouble(t)
	s := quick(t, SourceConfig{Broker: d.broker("c")}, testDeps(nil))
	run := start(t, s.Forget)
	p := d.open(false)
	if !p.connect.CleanSession {
		t.Error("the session is kept")
	}
	p.expect("DISCONNECT")
	p.cut()
	if err := run.wait(t); err != nil {
		t.Error(err)
	}
}

func TestRecords(t *testing.T) {
	jsonKey := extract.KeyRule{Kind: extract.KeyJSON, Path: "m.id"}
	for _, c := range []struct {
		name           string
		cfg            SourceConfig
		topic, payload string
		key, header    string
		time           int64
		id             string
		dead           string
	}{
		{name: "default", topic: "p/a/7", payload: "\x00raw", key: "p/a/7", time: clockNow},
		{name: "segment", cfg: SourceConfig{Key: extract.KeyRule{Kind: extract.KeySegment, Segment: 2}}, topic: "p/a/7", key: "7", header: "p/a/7", time: clockNow},
		{name: "empty segment", cfg: SourceConfig{Key: extract.KeyRule{Kind: extract.KeySegment, Segment: 0}}, topic: "/a", key: "", header: "/a", time: clockNow},
		{name: "no segment", cfg: SourceConfig{Key: extract.KeyRule{Kind: extract.KeySegment, Segment: 3}}, topic: "p/a/7", dead: `key segment 3: topic "p/a/7" has no such level`},
		{name: "const", cfg: SourceConfig{Key: extract.KeyRule{Kind: extract.KeyConst, Const: "all"}}, topic: "t", key: "all", header: "t", time: clockNow},
		{name: "json key", cfg: SourceConfig{Key: jsonKey}, topic: "t", payload: `{"m":{"id":"x\u0041"}}`, key: "xA", header: "t", time: clockNow},
		{name: "json key number", cfg: SourceConfig{Key: jsonKey}, topic: "t", payload: `{"m":{"id":12345678901234567890}}`, key: "12345678901234567890", header: "t", time: clockNow},
		{name: "json key is the topic", cfg: SourceConfig{Key: jsonKey}, topic: "t", payload: `{"m":{"id":"t"}}`, key: "t", time: clockNow},
		{name: "json key missing", cfg: SourceConfig{Key: jsonKey}, topic: "t", payload: `{"m":{"id":null}}`, dead: `key field "m.id" is missing`},
		{name: "json key object", cfg: SourceConfig{Key: jsonKey}, topic: "t", payload: `{"m":{"id":{}}}`, dead: `key field "m.id" is an object`},
		{name: "not json", cfg: SourceConfig{Key: jsonKey}, topic: "t", payload: `{"m":{"id":"x"}`, dead: `not JSON; the key field "m.id" is needed`},
		{name: "ms", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts"}}, topic: "t", payload: `{"ts":1699999999999}`, key: "t", time: 1699999999999},
		{name: "s", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts", Unit: extract.Seconds}}, topic: "t", payload: `{"ts":1699999999.123}`, key: "t", time: 1699999999123},
		{name: "us", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts", Unit: extract.Microseconds}}, topic: "t", payload: `{"ts":1699999999123999}`, key: "t", time: 1699999999123},
		{name: "ns before 1970", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts", Unit: extract.Nanoseconds}}, topic: "t", payload: `{"ts":-1}`, key: "t", time: -1},
		{name: "rfc3339", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts", Unit: extract.RFC3339}}, topic: "t", payload: `{"ts":"2023-11-14T22:13:20.5+00:00"}`, key: "t", time: 1700000000500},
		{name: "rfc3339 wrong", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts", Unit: extract.RFC3339}}, topic: "t", payload: `{"ts":"yesterday"}`, dead: `time field "ts" is "yesterday"`},
		{name: "rfc3339 number", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts", Unit: extract.RFC3339}}, topic: "t", payload: `{"ts":5}`, dead: `must be a string`},
		{name: "time missing", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts"}}, topic: "t", payload: `{}`, dead: `time field "ts" is missing`},
		{name: "time text", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts"}}, topic: "t", payload: `{"ts":"1"}`, dead: `must be a number`},
		{name: "time absurd", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts", Unit: extract.Seconds}}, topic: "t", payload: `{"ts":1699999999123}`, dead: `outside the years`},
		{name: "time infinite", cfg: SourceConfig{Time: extract.TimeRule{Path: "ts"}}, topic: "t", payload: `{"ts":1e400}`, dead: `time field "ts"`},
		{name: "id", cfg: SourceConfig{ID: "seq"}, topic: "t", payload: `{"seq":17}`, key: "t", time: clockNow, id: "17"},
		{name: "no id", cfg: SourceConfig{ID: "seq"}, topic: "t", payload: `not json`, key: "t", time: clockNow},
		{name: "long key", cfg: SourceConfig{Key: jsonKey}, topic: "t", payload: `{"m":{"id":"` + strings.Repeat("k", 70000) + `"}}`, dead: "key of 70000 bytes, at most 8192"},
		{name: "oversize", topic: "t", payload: strings.Repeat("v", frame.MaxRecord), dead: "record of 262161 bytes, at most 262144; kept are the first 262127 of 262144 bytes"},
		{name: "huge", topic: "t", payload: strings.Repeat("v", 1<<20), dead: "message of 1048576 bytes, a record has at most 262144; kept are the first 262127 of 1048576 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, log := newDouble(t), newLog(true)
			c.cfg.Broker, c.cfg.QoS = d.broker("c"), 1
			s := quick(t, c.cfg, testDeps(nil))
			run := startSource(t, s, log)
			p := d.openSource(false)
			p.publish(1, 1, false, c.topic, c.payload)
			log.wait(t, 1)
			p.settled()
			log.release(0)
			p.expect("PUBACK 1")
			p.end(run)
			if c.dead != "" {
				if len(log.letters) != 1 || !strings.Contains(log.letters[0].reason, c.dead) {
					t.Fatalf("dead letters %.300v, want one: %s", log.letters, c.dead)
				}
				if rec := log.letters[0].rec; string(rec.Key) != c.topic || !strings.HasPrefix(c.payload, string(rec.Value)) || rec.Time != clockNow {
					t.Errorf("dead letter of key %q", rec.Key)
				}
				return
			}
			recs := log.records(t)
			if len(recs) != 1 {
				t.Fatalf("records %v, dead letters %v", recs, log.letters)
			}
			rec := recs[0]
			if string(rec.Key) != c.key || string(rec.Header("topic")) != c.header || rec.Time != c.time || string(rec.Value) != c.payload {
				t.Errorf("record %q %q %d %q", rec.Key, rec.Header("topic"), rec.Time, rec.Value)
			}
			ids := log.batches[0].IDs
			if c.cfg.ID == "" && len(ids) > 0 || c.cfg.ID != "" && string(ids) != string(binary.AppendUvarint(nil, uint64(len(c.id))))+c.id {
				t.Errorf("ids %q", ids)
			}
			if want := uint64(0); c.cfg.ID != "" && c.id == "" && s.Status().WithoutID != want+1 {
				t.Errorf("records without id: %d", s.Status().WithoutID)
			}
		})
	}
}

func TestSourceConfigErrors(t *testing.T) {
	good := func() SourceConfig {
		return SourceConfig{Broker: Broker{URL: "tcp://h", ClientID: "c"}, Topics: []string{"a"}}
	}
	if _, err := NewSource(good(), testDeps(nil)); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*SourceConfig){
		"write tcp, ssl, ws":      func(c *SourceConfig) { c.Broker.URL = "http://h" },
		"cannot be read":          func(c *SourceConfig) { c.Broker.URL = "tcp://u:secret@h:x y" },
		"client id":               func(c *SourceConfig) { c.Broker.ClientID = "" },
		"password without a user": func(c *SourceConfig) { c.Broker.Password = "secret" },
		"belong together":         func(c *SourceConfig) { c.Broker.CertFile = "c.pem" },
		"keep-alive":              func(c *SourceConfig) { c.Broker.KeepAlive = 24 * time.Hour },
		"no topics":               func(c *SourceConfig) { c.Topics = nil },
		"# stands alone":          func(c *SourceConfig) { c.Topics = []string{"a/#/b"} },
		"+ stands alone":          func(c *SourceConfig) { c.Topics = []string{"a/b+"} },
		"bytes of UTF-8":          func(c *SourceConfig) { c.Topics = []string{""} },
		"QoS 3":                   func(c *SourceConfig) { c.QoS = 3 },
		"the first is 0":          func(c *SourceConfig) { c.Key = extract.KeyRule{Kind: extract.KeySegment, Segment: -1} },
		"key: the JSON path":      func(c *SourceConfig) { c.Key = extract.KeyRule{Kind: extract.KeyJSON} },
		"time: unknown unit":      func(c *SourceConfig) { c.Time.Unit = 9 },
		"key: unknown kind":       func(c *SourceConfig) { c.Key.Kind = 9 },
	} {
		c := good()
		change(&c)
		if _, err := NewSource(c, testDeps(nil)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// newTestReceiver is a receiver without a connection, driven step by step.
func newTestReceiver(t *testing.T, log dataflow.Ingest) *receiver {
	s := quick(t, SourceConfig{Broker: Broker{URL: "tcp://h", ClientID: "c"}}, testDeps(nil))
	return newReceiver(s, log)
}

func qos0(payload string) packet {
	return packet{kind: typePublish, topic: "t", payload: []byte(payload)}
}

func (r *receiver) step(t *testing.T, lingered bool, got ...packet) {
	t.Helper()
	r.take(got)
	if err := r.flush(lingered); err != nil {
		t.Fatal(err)
	}
}

func TestBatching(t *testing.T) {
	log := newLog(true)
	r := newTestReceiver(t, log)
	count := func(want ...int) {
		t.Helper()
		var got []int
		for _, b := range log.batches {
			got = append(got, b.Count)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("batches of %v, want %v", got, want)
		}
	}
	r.step(t, false, qos0("a"))
	count(1) // at once: nothing is under way
	r.step(t, false, qos0("b"))
	r.step(t, false, qos0("c"))
	count(1)
	if !r.linger.set {
		t.Fatal("no bound on the wait")
	}
	log.release(0)
	r.settle()
	r.step(t, false)
	count(1, 2) // what waited, once the first was durable
	r.step(t, false, qos0("d"))
	r.step(t, true)
	count(1, 2, 1) // lingered
	big := strings.Repeat("x", batchBytes/2)
	r.step(t, false, qos0(big))
	count(1, 2, 1)
	r.step(t, false, qos0(big), qos0("e"))
	count(1, 2, 1, 2) // large enough
	if !r.linger.set {
		t.Fatal("no bound on the wait of the rest")
	}
}

func TestUnderwayIsBounded(t *testing.T) {
	log := newLog(true)
	r := newTestReceiver(t, log)
	r.src.bounds.underway = 1000
	for range 20 {
		r.step(t, true, qos0(strings.Repeat("x", 500)))
	}
	if len(log.batches) != 2 {
		t.Fatalf("%d batches under way", len(log.batches))
	}
	log.release(0)
	log.release(1)
	r.settle()
	r.step(t, true)
	if got := len(log.records(t)); got != 20 {
		t.Fatalf("%d records logged", got)
	}
}

func TestShedOldestOfQoS0(t *testing.T) {
	log := newLog(false)
	r := newTestReceiver(t, log)
	r.src.bounds.queue = 10 * (messageOverhead + 101)
	log.setFull(true)
	kept := packet{kind: typePublish, qos: 1, id: 1, topic: "t", payload: []byte("kept" + strings.Repeat(" ", 96))}
	r.step(t, false, kept)
	for i := range 30 {
		r.step(t, false, qos0(fmt.Sprintf("%-100d", i)))
	}
	shed := r.src.Status().Shed
	if shed == 0 || r.queueBytes >= r.src.bounds.queue {
		t.Fatalf("%d shed, %d bytes wait", shed, r.queueBytes)
	}
	log.setFull(false)
	r.retry.stop()
	r.step(t, true)
	got := strings.Fields(log.values(t))
	if len(got) != 31-int(shed) || got[0] != "kept" || got[1] != fmt.Sprint(shed) || got[len(got)-1] != "29" {
		t.Errorf("%d shed, logged %v", shed, got)
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{100 * time.Millisecond, 30 * time.Second}
	least, most := func(int64) int64 { return 0 }, func(n int64) int64 { return n - 1 }
	for n, want := range map[int]time.Duration{0: 100 * time.Millisecond, 3: 800 * time.Millisecond, 9: 30 * time.Second, 1000: 30 * time.Second} {
		if lo, hi := b.wait(n, least), b.wait(n, most); lo != want/2 || hi != want {
			t.Errorf("attempt %d: %s–%s", n, lo, hi)
		}
	}
}
