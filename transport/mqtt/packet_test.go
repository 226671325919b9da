package mqtt

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/weir-stream/weir/dataflow/extract"
	"github.com/weir-stream/weir/dataflow/frame"
)

func TestPublishRoundTrip(t *testing.T) {
	for _, size := range []int{0, 1, 100, 20000, 200000} {
		for qos := range byte(3) {
			payload := bytes.Repeat([]byte("p"), size)
			b := appendPublish(nil, qos, true, qos > 0, 7, []byte("a/b"), payload)
			c, err := packets.ReadPacket(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			m := c.(*packets.PublishPacket)
			if m.TopicName != "a/b" || !bytes.Equal(m.Payload, payload) || m.Qos != qos || !m.Retain || m.Dup != (qos > 0) || qos > 0 && m.MessageID != 7 {
				t.Errorf("read as %v", m)
			}
			r := bufio.NewReaderSize(bytes.NewReader(b), readBuffer)
			r.Peek(1)
			if whole := wholePacket(r); whole != (len(b) <= readBuffer) {
				t.Errorf("packet of %d bytes whole: %v", len(b), whole)
			}
			p, err := readPacket(r)
			if err != nil || p.topic != "a/b" || !bytes.Equal(p.payload, payload) || p.qos != qos {
				t.Errorf("%v: read as %+v", err, p)
			}
		}
	}
}

func TestLargePacketIsNotKept(t *testing.T) {
	b := appendPublish(nil, 1, false, false, 7, []byte("t"), make([]byte, 3<<20))
	b = appendAck(b, typePuback, 9)
	r := bufio.NewReader(bytes.NewReader(b))
	p, err := readPacket(r)
	if err != nil || len(p.payload)+p.lost != 3<<20 || len(p.payload) > maxKept || p.id != 7 {
		t.Fatalf("%v: %d bytes kept, %d lost", err, len(p.payload), p.lost)
	}
	if p, err := readPacket(r); err != nil || p.kind != typePuback || p.id != 9 {
		t.Fatalf("%v: next is %+v", err, p)
	}
	if _, err := readPacket(r); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
}

func TestMalformedPackets(t *testing.T) {
	for in, want := range map[string]string{
		"\x30\xff\xff\xff\xff\x01":  "remaining length",
		"\x36\x05\x00\x01tab":       "QoS 3",
		"\x32\x05\x00\x01t\x00\x00": "identifier 0",
		"\x30\x03\x00\x05t":         "topic of 5",
		"\x30\x01\x00":              "PUBLISH of 1 bytes",
		"\x20\x01\x00":              "CONNACK of 1",
		"\x40\x03\x00\x01\x00":      "type 4 of 3 bytes",
		"\x90\x01\x00":              "type 9 of 1 bytes",
		"\x40\xff\xff\x7f":          "type 4 of 2097151 bytes",
		"\x10\x00":                  "none of type 1",
		"\x30":                      "unexpected EOF",
		"\x40\x02\x00":              "unexpected EOF",
		"\x40\x02":                  "unexpected EOF",
	} {
		if _, err := readPacket(bufio.NewReader(strings.NewReader(in))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", in, err, want)
		}
	}
}

// What is read as a PUBLISH is what the reference codec reads, and nothing panics.
func FuzzReadPacket(f *testing.F) {
	f.Add(appendPublish(nil, 1, false, true, 7, []byte("a/b"), []byte("payload")))
	f.Add(appendPublish(nil, 0, true, false, 0, []byte("t"), nil))
	f.Add(appendAck(nil, typePubrel, 5))
	f.Add([]byte("\x20\x02\x01\x00"))
	f.Add([]byte("\x90\x04\x00\x01\x00\x80"))
	f.Add([]byte("\x30\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		r.Peek(1)
		whole := wholePacket(r)
		p, err := readPacket(r)
		if whole && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
			t.Fatalf("whole, and yet: %v", err)
		}
		if err != nil || p.kind != typePublish || p.lost > 0 {
			return
		}
		c, err := packets.ReadPacket(bytes.NewReader(b))
		m, ok := c.(*packets.PublishPacket)
		if !ok {
			t.Fatalf("the reference reads %v, %v", c, err)
		}
		if m.TopicName != p.topic || m.MessageID != p.id || m.Qos != p.qos || len(p.payload) > 0 && !bytes.Equal(m.Payload, p.payload) {
			t.Fatalf("read %+v, the reference %v", p, m)
		}
	})
}

// Whatever comes, a message becomes a record that can be encoded or a dead letter that can.
func FuzzRecord(f *testing.F) {
	f.Add("p/a/7", []byte(`{"k":"x","ts":1,"id":2}`), "k", "ts", "id", byte(0), byte(2), 1)
	f.Add("", []byte(`{`), "a.b.#", "#", "@pretty", byte(2), byte(4), 0)
	f.Add("/", []byte(`{"ts":1e999}`), "ts", "ts", "ts", byte(1), byte(3), 1)
	f.Fuzz(func(t *testing.T, topic string, payload []byte, key, at, id string, kind, unit byte, segment int) {
		if len(topic) > maxString {
			return
		}
		cfg := SourceConfig{
			Key: extract.KeyRule{Kind: extract.KeyKind(kind % 4), Segment: segment & 0xff, Path: key, Const: key}, ID: id,
			Time: extract.TimeRule{Path: at, Unit: extract.TimeUnit(unit % 5)},
		}
		m := message{topic: topic, payload: payload, arrived: clockNow}
		rec, recID, err := cfg.record(m)
		if err != nil {
			rec, reason := deadLetter(m, err.Error())
			if err := rec.Check(); err != nil || reason == "" {
				t.Fatalf("dead letter %q: %v", reason, err)
			}
			return
		}
		if !bytes.Equal(rec.Value, payload) || len(recID) > len(payload)+len(payload)*2 {
			t.Fatalf("value %q, id %q of payload %q", rec.Value, recID, payload)
		}
		if rec.Time < extract.MinTime || rec.Time > extract.MaxTime {
			t.Fatalf("time %d", rec.Time)
		}
		got, rest, err := frame.Next(frame.AppendRecord(nil, rec))
		if err != nil || len(rest) > 0 || string(got.Key) != string(rec.Key) {
			t.Fatalf("%v: %v", err, got)
		}
		if string(rec.Key) != topic && string(got.Header("topic")) != topic {
			t.Fatalf("topic %q is lost", topic)
		}
	})
}
