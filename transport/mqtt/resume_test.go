package mqtt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// once is a sink of QoS 2 over several lives of its process: what its task's log holds outlives it.
type once struct {
	t      testing.TB
	d      *double
	broker Broker
	clock  func() int64 // nil: that of all tests

	sent, received, handed abs.Seq // as the log says

	sink *Sink
	run  *running
	ev   *events
}

func newOnce(t testing.TB) *once {
	d := newDouble(t)
	return &once{t: t, d: d, broker: d.broker("c")}
}

// live starts a process. It offers what the log does not say is handed over, up to a number.
func (o *once) live(upto abs.Seq) {
	o.t.Helper()
	o.sink = newTestSink(o.t, SinkConfig{Broker: o.broker, QoS: 2}, SinkDeps{})
	if o.clock != nil {
		o.sink.link.deps.Clock = o.clock
	}
	o.run, o.ev = startSink(o.t, o.sink)
	o.sink.Logged(o.received)
	o.offer(o.handed+1, upto)
}

func (o *once) offer(from, upto abs.Seq) {
	o.t.Helper()
	for n := from; n <= upto; n++ {
		it := item(n)
		switch {
		case n <= o.received:
			it.Past = dataflow.PastReceived
		case n <= o.sent:
			it.Past = dataflow.PastSent
		}
		if o.sink.Offer([]dataflow.SinkItem{it}) != 1 {
			o.t.Fatalf("item %d was not taken", n)
		}
	}
	o.sent = max(o.sent, upto)
}

// logs waits until the sink says what was received, and makes that durable.
func (o *once) logs(received abs.Seq) {
	o.t.Helper()
	o.ev.waitReceived(o.t, received)
	o.received = received
	o.sink.Logged(received)
}

// hands waits until the sink says what was handed over; the log gets to hear of it.
func (o *once) hands(upto abs.Seq) {
	o.t.Helper()
	o.ev.waitHanded(o.t, upto)
	o.handed = upto
}

// kill ends the process. The broker, which is the test, sees the connection end.
func (o *once) kill(p *peer) {
	o.t.Helper()
	p.cut()
	if err := o.run.stop(o.t); err != nil {
		o.t.Error(err)
	}
	o.d.leave() // it may have connected once more meanwhile
}

func (e *events) waitReceived(t testing.TB, upto abs.Seq) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case n := <-e.received:
			if n == upto {
				return
			}
			if n > upto {
				t.Fatalf("received %d, want %d", n, upto)
			}
		case <-late:
			t.Fatalf("%d was not reported as received", upto)
		}
	}
}

func (o *once) uncertain(want uint64) {
	o.t.Helper()
	if got := o.sink.Status().Uncertain; got != want {
		o.t.Errorf("%d items uncertain, want %d", got, want)
	}
}

// What the log says an earlier life may have sent is mostly new: how far it may send is logged ahead.
func TestOnceCountsNoRepeatsOfAnEarlierLife(t *testing.T) {
	o := newOnce(t)
	o.sent = 2
	o.live(2)
	p := o.d.open(true)
	p.expect("PUBLISH 1 DUP out/k 1", "PUBLISH 2 DUP out/k 2")
	if st := o.sink.Status(); st.Published != 2 || st.Repeated != 0 {
		t.Errorf("after a restart: %+v", st)
	}
	p.cut()
	p = o.d.open(true)
	p.expect("PUBLISH 1 DUP out/k 1", "PUBLISH 2 DUP out/k 2")
	if st := o.sink.Status(); st.Published != 4 || st.Repeated != 2 {
		t.Errorf("after a cut: %+v", st)
	}
	p.end(o.run)
}

func TestOnceWithoutFaults(t *testing.T) {
	o := newOnce(t)
	o.live(0)
	p := o.d.open(false)
	if p.connect.CleanSession {
		t.Error("the session is not kept")
	}
	o.offer(1, 3)
	p.expect("PUBLISH 1 out/k 1", "PUBLISH 2 out/k 2", "PUBLISH 3 out/k 3")
	p.ack(typePubrec, 1)
	p.ack(typePubrec, 3) // out of order: not yet
	o.ev.waitReceived(t, 1)
	p.ack(typePubrec, 2)
	o.ev.waitReceived(t, 3)
	p.ack(typePubcomp, 1) // for a PUBREL that was not sent
	o.received = 2
	o.sink.Logged(2) // not yet of 3
	p.expect("PUBREL 1", "PUBREL 2")
	p.ack(typePubcomp, 2)
	p.ack(typePubcomp, 1)
	o.hands(2)
	o.sink.Logged(3)
	p.expect("PUBREL 3")
	p.ack(typePubrec, 3) // again
	p.expect("PUBREL 3")
	p.ack(typePubcomp, 3)
	p.ack(typePubcomp, 3)
	o.hands(3)
	o.uncertain(0)
	p.end(o.run)
}

// What follows a cut, or a kill, after each packet of the handshake, with the session kept and lost.
func TestOnceCut(t *testing.T) {
	for _, c := range []struct {
		name string
		to   func(o *once, p *peer) // the handshake up to the cut, of item 1
		// What comes on the next connection, and how it goes on.
		kept, lost []string
		afterKill  []string // with the session kept; nil: the same
		uncertain  uint64   // with the session lost
	}{
		{"PUBLISH", func(o *once, p *peer) {}, []string{"PUBLISH 1 DUP out/k 1"}, []string{"PUBLISH 1 DUP out/k 1"}, nil, 1},
		{"PUBREC", func(o *once, p *peer) {
			p.ack(typePubrec, 1)
			o.ev.waitReceived(o.t, 1) // and the log does not hold it
		}, nil, nil, []string{"PUBLISH 1 DUP out/k 1"}, 1},
		{"PUBREC is durable", func(o *once, p *peer) {
			p.ack(typePubrec, 1)
			o.logs(1)
		}, []string{"PUBREL 1"}, []string{"PUBREL 1"}, nil, 1},
		{"PUBREL", func(o *once, p *peer) {
			p.ack(typePubrec, 1)
			o.logs(1)
			p.expect("PUBREL 1")
		}, []string{"PUBREL 1"}, []string{"PUBREL 1"}, nil, 1},
	} {
		for _, kill := range []bool{false, true} {
			for _, present := range []bool{true, false} {
				name := c.name + ", " + map[bool]string{true: "killed", false: "cut"}[kill] + ", " + map[bool]string{true: "session kept", false: "session lost"}[present]
				t.Run(name, func(t *testing.T) {
					o := newOnce(t)
					o.live(1)
					p := o.d.open(false)
					p.expect("PUBLISH 1 out/k 1")
					c.to(o, p)
					if kill {
						o.kill(p)
						o.live(1)
					} else {
						p.cut()
					}
					p = o.d.open(present)
					want := c.kept
					if !present {
						want = c.lost
					}
					if kill && c.afterKill != nil {
						want = c.afterKill
					}
					p.expect(want...)
					if len(want) == 0 { // nothing may come before the log holds it
						o.received = 1
						o.sink.Logged(1)
						p.expect("PUBREL 1")
					} else if want[0] != "PUBREL 1" {
						p.ack(typePubrec, 1)
						o.logs(1)
						p.expect("PUBREL 1")
					}
					p.ack(typePubcomp, 1)
					o.hands(1)
					if present {
						o.uncertain(0)
					} else {
						o.uncertain(c.uncertain)
					}
					p.end(o.run)
				})
			}
		}
	}
}

// A process killed after PUBCOMP, before the log says that the item is handed over, releases it again,
// which changes nothing.
func TestOnceKilledAfterPubcomp(t *testing.T) {
	o := newOnce(t)
	o.live(2)
	p := o.d.open(false)
	p.expect("PUBLISH 1 out/k 1", "PUBLISH 2 out/k 2")
	p.ack(typePubrec, 1)
	o.logs(1)
	p.expect("PUBREL 1")
	p.ack(typePubcomp, 1)
	o.ev.waitHanded(t, 1)
	o.kill(p)
	o.live(3)
	p = o.d.open(true)
	// 3 was never sent: it goes without DUP.
	p.expect("PUBREL 1", "PUBLISH 2 DUP out/k 2", "PUBLISH 3 out/k 3")
	p.ack(typePubcomp, 1)
	p.ack(typePubrec, 2)
	p.ack(typePubrec, 3)
	o.hands(1)
	o.logs(3)
	p.expect("PUBREL 2", "PUBREL 3")
	p.ack(typePubcomp, 2)
	p.ack(typePubcomp, 3)
	o.hands(3)
	o.uncertain(0)
	p.end(o.run)
}

// Acknowledgements that answer nothing of this connection change nothing, and are not answered: a
// PUBREL for an item that is still to be repeated would make its repeat a new message.
func TestOnceLateAcknowledgements(t *testing.T) {
	o := newOnce(t)
	o.live(2)
	p := o.d.open(false)
	p.expect("PUBLISH 1 out/k 1", "PUBLISH 2 out/k 2")
	o.kill(p)
	o.live(0)
	p = o.d.open(true)
	p.ack(typePubrec, 1)
	p.ack(typePubcomp, 1)
	p.ack(typePuback, 1)
	p.ack(typePubrec, 700)
	o.offer(1, 2)
	p.expect("PUBLISH 1 DUP out/k 1", "PUBLISH 2 DUP out/k 2")
	p.ack(typePuback, 1) // of another QoS
	p.ack(typePubcomp, 1)
	p.ack(typePubrec, 1)
	p.ack(typePubrec, 2)
	o.logs(2)
	p.expect("PUBREL 1", "PUBREL 2")
	p.ack(typePubcomp, 1)
	p.ack(typePubcomp, 2)
	o.hands(2)
	p.end(o.run)
}

// A broker that says that it has lost the session, and has not, recognises the repeat by its identifier;
// one that says that it has kept it, and has not, takes it for the first.
func TestOnceSessionPresentSaidWrongly(t *testing.T) {
	for _, said := range []bool{true, false} {
		o := newOnce(t)
		o.live(2)
		p := o.d.open(false)
		p.expect("PUBLISH 1 out/k 1", "PUBLISH 2 out/k 2")
		p.ack(typePubrec, 1)
		o.logs(1)
		p.expect("PUBREL 1")
		o.kill(p)
		o.live(2)
		p = o.d.open(said)
		p.expect("PUBREL 1", "PUBLISH 2 DUP out/k 2")
		p.ack(typePubcomp, 1)
		p.ack(typePubrec, 2)
		o.logs(2)
		p.expect("PUBREL 2")
		p.ack(typePubcomp, 2)
		o.hands(2)
		o.uncertain(map[bool]uint64{true: 0, false: 2}[said])
		p.end(o.run)
	}
}

// A session that the broker keeps of an earlier job of the same name is begun anew before the first
// item; one in which items are under way is not.
func TestOnceBeginsAnew(t *testing.T) {
	o := newOnce(t)
	o.live(0)
	p := o.d.open(true)
	o.offer(1, 1)
	clean := o.d.open(false)
	if !clean.connect.CleanSession {
		t.Error("the session is not forgotten")
	}
	clean.expect("DISCONNECT")
	clean.cut()
	p.cut()
	p = o.d.open(false)
	if p.connect.CleanSession {
		t.Error("the session is not kept")
	}
	p.expect("PUBLISH 1 out/k 1")
	o.kill(p)
	o.live(1)
	p = o.d.open(true)
	p.expect("PUBLISH 1 DUP out/k 1")
	p.end(o.run)
	// Nothing is under way once all was handed over.
	o.handed, o.received = 1, 1
	o.live(2)
	p = o.d.open(false)
	p.expect("PUBLISH 2 out/k 2")
	p.end(o.run)
}

// Packets vanish and nobody resets the connection: the sink notices within 1.5 keep-alives, connects
// anew and goes on where it was.
func TestOnceHalfOpen(t *testing.T) {
	o := newOnce(t)
	o.broker.KeepAlive = 4 * time.Second
	o.live(1)
	p := o.d.open(false)
	p.expect("PUBLISH 1 out/k 1") // and nothing is read or written from here on
	again := o.d.open(true)
	again.expect("PUBLISH 1 DUP out/k 1")
	again.ack(typePubrec, 1)
	o.logs(1)
	again.expect("PUBREL 1")
	again.ack(typePubcomp, 1)
	o.hands(1)
	o.run.cancel()
	again.expect("DISCONNECT")
	again.cut()
	p.cut()
	if err := o.run.wait(t); err != nil {
		t.Error(err)
	}
}

// Dead letters take no part in the handshake and hold it up only until they are kept.
func TestOnceDeadLetters(t *testing.T) {
	d := newDouble(t)
	kept := make(chan func(), 1)
	s := newTestSink(t, SinkConfig{Broker: d.broker("c"), QoS: 2}, SinkDeps{
		DeadLetter: func(_ dataflow.SinkItem, _ string, k func()) { kept <- k },
	})
	run, ev := startSink(t, s)
	p := d.open(false)
	bad := item(1)
	bad.Record.Key = []byte("+")
	s.Offer([]dataflow.SinkItem{bad, item(2)})
	p.expect("PUBLISH 2 out/k 2")
	p.ack(typePubrec, 2)
	(<-kept)()
	ev.waitHanded(t, 1)
	ev.waitReceived(t, 2)
	s.Logged(2)
	p.expect("PUBREL 2")
	p.ack(typePubcomp, 2)
	ev.waitHanded(t, 2)
	p.end(run)
}

// No more is in flight than the broker allows, also after a restart.
func TestOnceInFlight(t *testing.T) {
	d := newDouble(t)
	s := newTestSink(t, SinkConfig{Broker: d.broker("c"), QoS: 2, InFlight: 2}, SinkDeps{})
	run, ev := startLogged(t, s, nil)
	p := d.open(false)
	offer(t, s, 1, 2, 3)
	p.expect("PUBLISH 1 out/k 1", "PUBLISH 2 out/k 2")
	p.ack(typePubrec, 1)
	ev.waitReceived(t, 1)
	s.Logged(1)
	p.expect("PUBREL 1") // and not yet 3
	p.ack(typePubcomp, 1)
	p.expect("PUBLISH 3 out/k 3")
	p.end(run)
}

// honest is a broker that keeps to the protocol (MQTT 3.1.1, 4.3.3) and is cut off from its client when the
// test says so. It passes a message on when it comes or when it is released; both are allowed.
type honest struct {
	ln        net.Listener
	atPublish bool

	mu        sync.Mutex // held while a packet is dealt with
	conn      net.Conn
	known     bool              // it has a session
	open      map[uint16]string // identifiers not released, with what is to be passed on
	delivered []string
}

func newHonest(t testing.TB, atPublish bool) *honest {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &honest{ln: ln, atPublish: atPublish, open: map[uint16]string{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for { // one connection after the other: what the last one sent is dealt with before the next is let in
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conn = conn
			b.mu.Unlock()
			b.serve(conn)
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		b.cut()
		<-ended
	})
	return b
}

// cut ends the connection there is.
func (b *honest) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		b.conn.Close()
	}
}

func (b *honest) serve(conn net.Conn) {
	defer conn.Close()
	for {
		c, err := packets.ReadPacket(conn)
		if err != nil || !b.take(conn, c) {
			return
		}
	}
}

// take deals with a packet; false ends the connection. What cannot be written was answered all the same.
func (b *honest) take(conn net.Conn, c packets.ControlPacket) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch c := c.(type) {
	case *packets.ConnectPacket:
		if c.CleanSession {
			b.known = false
			clear(b.open)
		}
		a := packets.NewControlPacket(packets.Connack).(*packets.ConnackPacket)
		a.SessionPresent = b.known
		b.known = !c.CleanSession
		a.Write(conn)
	case *packets.PublishPacket:
		if _, repeat := b.open[c.MessageID]; !repeat {
			b.open[c.MessageID] = string(c.Payload)
			if b.atPublish {
				b.delivered = append(b.delivered, string(c.Payload))
			}
		}
		conn.Write(appendAck(nil, typePubrec, c.MessageID))
	case *packets.PubrelPacket:
		if payload, is := b.open[c.MessageID]; is && !b.atPublish {
			b.delivered = append(b.delivered, payload)
		}
		delete(b.open, c.MessageID)
		conn.Write(appendAck(nil, typePubcomp, c.MessageID))
	case *packets.PingreqPacket:
		packets.NewControlPacket(packets.Pingresp).Write(conn)
	case *packets.DisconnectPacket:
		return false
	}
	return true
}

// A broker that keeps to the protocol passes every item on once, and in order, over cuts and kills between
// which the log holds more or less of what has happened.
func TestOnceOverKills(t *testing.T) {
	for _, atPublish := range []bool{false, true} {
		t.Run(fmt.Sprintf("passed on at PUBLISH %v", atPublish), func(t *testing.T) { testOnceOverKills(t, newHonest(t, atPublish)) })
	}
}

func testOnceOverKills(t *testing.T, via *honest) {
	broker := Broker{URL: "tcp://" + via.ln.Addr().String(), ClientID: "sink"}
	const items, lives = 1500, 12
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var sent, received, handed abs.Seq // as the log says
	for life := 1; handed < items; life++ {
		s := newTestSink(t, SinkConfig{Broker: broker, QoS: 2}, SinkDeps{})
		ev := newEvents()
		run := start(t, func(ctx context.Context) error { return s.Run(ctx, ev) })
		ev.waitReady(t)
		s.Logged(received)
		upto := min(handed+abs.Seq(items/lives), items)
		if life > 2*lives {
			upto = items
		}
		next := handed + 1
		late := time.After(patience)
		for reached := false; !reached; {
			for ; next <= min(upto+20, items); next++ {
				it := item(next)
				switch {
				case next <= received:
					it.Past = dataflow.PastReceived
				case next <= sent:
					it.Past = dataflow.PastSent
				}
				if s.Offer([]dataflow.SinkItem{it}) == 0 {
					break
				}
			}
			sent = max(sent, next-1) // before anything is sent, in a task
			select {
			case n := <-ev.received:
				received = max(received, n)
				s.Logged(n)
				if random.IntN(40) == 0 {
					via.cut()
				}
			case n := <-ev.handed:
				if reached = n >= upto; !reached || upto == items || random.IntN(2) == 0 {
					handed = n
				}
			case <-ev.ready:
			case <-late:
				t.Fatalf("life %d: %d of %d", life, handed, upto)
			}
		}
		via.cut() // a kill: nothing more leaves, and what was not logged is not known
		run.stop(t)
	}
	via.mu.Lock()
	defer via.mu.Unlock()
	for i, got := range via.delivered {
		if got != fmt.Sprint(i+1) {
			t.Fatalf("message %d is %s", i+1, got)
		}
	}
	if len(via.delivered) != items {
		t.Fatalf("%d messages, want %d", len(via.delivered), items)
	}
}

// The clock may say anything: 1970 at boot, then now, then an hour less.
func TestOnceWhateverTheClockSays(t *testing.T) {
	for _, now := range [][]int64{{0, clockNow, clockNow - 3_600_000}, {clockNow, clockNow - 3_600_000, 0}} {
		o := newOnce(t)
		var at atomic.Int64
		at.Store(now[0])
		o.clock = at.Load
		o.live(0)
		p := o.d.open(false)
		for i := range 3 {
			n := abs.Seq(i + 1)
			at.Store(now[i])
			o.offer(n, n)
			p.expect(fmt.Sprintf("PUBLISH %d out/k %d", n, n))
			p.ack(typePubrec, uint16(n))
			o.logs(n)
			p.expect(fmt.Sprintf("PUBREL %d", n))
			p.cut()
			at.Store(now[(i+1)%3])
			p = o.d.open(true)
			p.expect(fmt.Sprintf("PUBREL %d", n))
			p.ack(typePubcomp, uint16(n))
			o.hands(n)
		}
		p.end(o.run)
	}
}
