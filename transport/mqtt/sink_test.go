package mqtt

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

func newTestSink(t testing.TB, cfg SinkConfig, deps SinkDeps) *Sink {
	t.Helper()
	if cfg.Topic == "" {
		cfg.Topic = "out/{key}"
	}
	deps.Deps = testDeps(nil)
	s, err := NewSink(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	s.link.backoff = backoff{time.Millisecond, 5 * time.Millisecond}
	return s
}

func startSink(t testing.TB, s *Sink) (*running, *events) { return startLogged(t, s, nil) }

// startLogged runs a sink whose log, if it is not nil, is as fast as the sink.
func startLogged(t testing.TB, s *Sink, log func(abs.Seq)) (*running, *events) {
	ev := newEvents()
	ev.log = log
	run := start(t, func(ctx context.Context) error { return s.Run(ctx, ev) })
	ev.waitReady(t) // it runs
	return run, ev
}

// item makes an item with key k and its number as value.
func item(n abs.Seq) dataflow.SinkItem {
	return dataflow.SinkItem{Number: n, Channel: "a>b", Record: frame.Record{Key: []byte("k"), Value: fmt.Append(nil, n), Time: 5}}
}

func offer(t testing.TB, s *Sink, numbers ...abs.Seq) {
	t.Helper()
	for _, n := range numbers {
		if s.Offer([]dataflow.SinkItem{item(n)}) != 1 {
			t.Fatalf("item %d was not taken", n)
		}
	}
}

func TestSinkHandsOverInOrder(t *testing.T) {
	d := newDouble(t)
	s := newTestSink(t, SinkConfig{Broker: d.broker("c"), QoS: 1, Payload: `{"n":{number},"channel":"{channel}","v":{value}}`}, SinkDeps{})
	run, ev := startSink(t, s)
	p := d.open(false)
	if !p.connect.CleanSession {
		t.Error("the session is kept at QoS 1")
	}
	offer(t, s, 1, 3, 4) // number 2 is a mark
	p.expect(`PUBLISH 1 out/k {"n":1,"channel":"a>b","v":1}`, `PUBLISH 3 out/k {"n":3,"channel":"a>b","v":3}`, `PUBLISH 4 out/k {"n":4,"channel":"a>b","v":4}`)
	p.ack(typePuback, 3)
	p.ack(typePuback, 3)
	p.ack(typePuback, 77)
	p.ack(typePuback, 1)
	ev.waitHanded(t, 3) // nothing before 1 was confirmed
	p.ack(typePuback, 4)
	ev.waitHanded(t, 4)
	p.end(run)
	if st := s.Status(); st.Taken != 3 || st.Published != 3 || st.Handed != 3 || st.Repeated != 0 || st.State != SinkStopped {
		t.Errorf("status %+v", st)
	}
}

// TestSinkHoldsWhatMayBeInFlight: fewer would bound what is in flight without a word.
func TestSinkHoldsWhatMayBeInFlight(t *testing.T) {
	for inFlight, holds := range map[int]int{0: 256, 20: 256, 450: 450} {
		s := newTestSink(t, SinkConfig{Broker: Broker{URL: "tcp://127.0.0.1:1", ClientID: "c"}, QoS: 2, InFlight: inFlight}, SinkDeps{})
		s.window.Open()
		if n := s.Offer(make([]dataflow.SinkItem, 1000)); n != holds {
			t.Errorf("with %d in flight it takes %d items, not %d", inFlight, n, holds)
		}
	}
}

func TestSinkPublishesAgainInOrder(t *testing.T) {
	d := newDouble(t)
	s := newTestSink(t, SinkConfig{Broker: d.broker("c"), QoS: 1}, SinkDeps{})
	run, ev := startSink(t, s)
	p := d.open(false)
	offer(t, s, 1, 2, 3)
	p.expect("PUBLISH 1 out/k 1", "PUBLISH 2 out/k 2", "PUBLISH 3 out/k 3")
	p.ack(typePuback, 2)
	p.ack(typePuback, 1)
	ev.waitHanded(t, 2)
	p.cut()
	offer(t, s, 4) // while there is no connection
	p = d.open(false)
	p.expect("PUBLISH 3 out/k 3", "PUBLISH 4 out/k 4")
	p.ack(typePuback, 3)
	p.ack(typePuback, 4)
	ev.waitHanded(t, 4)
	p.end(run)
	if st := s.Status(); st.Repeated != 1 && st.Repeated != 2 { // 4 may have met the first connection
		t.Errorf("status %+v", st)
	}
}

func TestSinkDoesNotRepeatWhatIsConfirmed(t *testing.T) {
	d := newDouble(t)
	s := newTestSink(t, SinkConfig{Broker: d.broker("c"), QoS: 1}, SinkDeps{})
	run, ev := startSink(t, s)
	p := d.open(false)
	offer(t, s, 1, 2, 3)
	p.expect("PUBLISH 1 out/k 1", "PUBLISH 2 out/k 2", "PUBLISH 3 out/k 3")
	p.ack(typePuback, 2)
	p.ack(typePubrec, 99) // answered after what came before it
	p.expect("PUBREL 99")
	p.cut()
	p = d.open(false)
	p.expect("PUBLISH 1 out/k 1", "PUBLISH 3 out/k 3")
	p.ack(typePuback, 1)
	ev.waitHanded(t, 2)
	p.end(run)
}

func TestSinkWindow(t *testing.T) {
	d := newDouble(t)
	s := newTestSink(t, SinkConfig{Broker: d.broker("c"), QoS: 1, MaxItems: 2}, SinkDeps{})
	if n := s.Offer([]dataflow.SinkItem{item(1)}); n != 0 {
		t.Fatal("a sink that does not run takes items")
	}
	run, ev := startSink(t, s)
	if n := s.Offer([]dataflow.SinkItem{item(1), item(2), item(3)}); n != 2 {
		t.Fatalf("took %d", n)
	}
	p := d.open(false)
	p.expect("PUBLISH 1 out/k 1", "PUBLISH 2 out/k 2")
	if n := s.Offer([]dataflow.SinkItem{item(3)}); n != 0 {
		t.Fatal("what is under way does not count")
	}
	p.ack(typePuback, 1)
	ev.waitHanded(t, 1)
	ev.waitReady(t)
	offer(t, s, 3)
	p.expect("PUBLISH 3 out/k 3")
	p.end(run)
	if s.Offer([]dataflow.SinkItem{item(2)}) != 0 || s.Status().Waiting != 0 {
		t.Error("a stopped sink holds items")
	}
	run, ev = startSink(t, s) // what was not handed over is offered again
	p = d.open(false)
	offer(t, s, 2, 3)
	p.expect("PUBLISH 2 out/k 2", "PUBLISH 3 out/k 3")
	p.ack(typePuback, 2)
	ev.waitHanded(t, 2)
	p.end(run)
}

func TestSinkDeadLetters(t *testing.T) {
	d := newDouble(t)
	type letter struct {
		n      abs.Seq
		reason string
		kept   func()
	}
	letters := make(chan letter, 1)
	s := newTestSink(t, SinkConfig{Broker: d.broker("c"), QoS: 1}, SinkDeps{
		DeadLetter: func(it dataflow.SinkItem, reason string, kept func()) { letters <- letter{it.Number, reason, kept} },
	})
	run, ev := startSink(t, s)
	p := d.open(false)
	bad := item(2)
	bad.Record.Key = []byte("a/+")
	offer(t, s, 1)
	s.Offer([]dataflow.SinkItem{bad})
	offer(t, s, 3)
	p.expect("PUBLISH 1 out/k 1", "PUBLISH 3 out/k 3")
	p.ack(typePuback, 3)
	p.ack(typePuback, 1)
	ev.waitHanded(t, 1) // 2 is not known to be kept
	l := <-letters
	if l.n != 2 || !strings.Contains(l.reason, `the topic "out/a/+" contains '+'`) {
		t.Errorf("dead letter %d: %s", l.n, l.reason)
	}
	l.kept()
	ev.waitHanded(t, 3)
	p.end(run)
	if st := s.Status(); st.DeadLetter != 1 || st.Published != 2 || st.Handed != 3 {
		t.Errorf("status %+v", st)
	}
}

func TestSinkWithoutDeadLetters(t *testing.T) {
	d := newDouble(t)
	s := newTestSink(t, SinkConfig{Broker: d.broker("c"), QoS: 1, Topic: "{key}"}, SinkDeps{})
	run, ev := startSink(t, s)
	p := d.open(false)
	for i, key := range []string{"", "a#", "nul\x00", "\xff", strings.Repeat("k", maxString+1)} {
		it := item(abs.Seq(i + 1))
		it.Record.Key = []byte(key)
		s.Offer([]dataflow.SinkItem{it})
	}
	ev.waitHanded(t, 5)
	p.end(run)
	if got := s.Status().DeadLetter; got != 5 {
		t.Errorf("%d dead letters", got)
	}
}

func TestSinkQoS0(t *testing.T) {
	d := newDouble(t)
	s := newTestSink(t, SinkConfig{Broker: d.broker("c"), QoS: 0, Retain: true}, SinkDeps{})
	run, ev := startSink(t, s)
	p := d.open(false)
	offer(t, s, 1, 2)
	p.expect("PUBLISH 0 out/k 1", "PUBLISH 0 out/k 2")
	ev.waitHanded(t, 2)
	p.end(run)
}

func TestPacketIDs(t *testing.T) {
	for n, want := range map[abs.Seq]uint16{1: 1, 2: 2, 65535: 65535, 65536: 1, 131071: 1, 131072: 2} {
		if got := packetID(item(n)); got != want {
			t.Errorf("item %d: %d, want %d", n, got, want)
		}
	}
	d := newDouble(t)
	s := newTestSink(t, SinkConfig{Broker: d.broker("c"), QoS: 1}, SinkDeps{})
	run, ev := startSink(t, s)
	p := d.open(false)
	offer(t, s, 1, 65536) // the same identifier
	p.expect("PUBLISH 1 out/k 1")
	p.ack(typePubrec, 99)
	p.expect("PUBREL 99") // and not yet the other
	p.ack(typePuback, 1)
	ev.waitHanded(t, 1)
	p.expect("PUBLISH 1 out/k 65536")
	p.end(run)
}

func TestSinkConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*SinkConfig){
		"topic: template":                   func(c *SinkConfig) { c.Topic = "a/{kye}" },
		"unknown placeholder {kye} at byte": func(c *SinkConfig) { c.Payload = "{kye}" },
		"no topic":                          func(c *SinkConfig) { c.Topic = "" },
		"QoS 3":                             func(c *SinkConfig) { c.QoS = 3 },
		"at most -1 items":                  func(c *SinkConfig) { c.MaxItems = -1 },
		"at most 65535 items":               func(c *SinkConfig) { c.MaxItems = 65535 },
		"at most 16385 items in flight":     func(c *SinkConfig) { c.InFlight = 16385 },
		"at most -1 bytes":                  func(c *SinkConfig) { c.MaxBytes = -1 },
		"client id":                         func(c *SinkConfig) { c.Broker.ClientID = "" },
	} {
		c := SinkConfig{Broker: Broker{URL: "tcp://h", ClientID: "c"}, Topic: "t"}
		change(&c)
		if _, err := NewSink(c, SinkDeps{Deps: testDeps(nil)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
