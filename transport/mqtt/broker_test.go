package mqtt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"
	"go.uber.org/goleak"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen; it is met only by a failure.
const patience = 2 * time.Minute

// double is a broker of which the test writes every packet.
type double struct {
	t  testing.TB
	ln net.Listener
}

func newDouble(t testing.TB) *double {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return &double{t, ln}
}

func (d *double) broker(client string) Broker {
	return Broker{URL: "tcp://" + d.ln.Addr().String(), ClientID: client}
}

// peer is the double's end of one connection.
type peer struct {
	t       testing.TB
	conn    net.Conn
	connect *packets.ConnectPacket
}

// accept waits for a connection and its CONNECT.
func (d *double) accept() *peer {
	d.t.Helper()
	d.ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	conn, err := d.ln.Accept()
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	p := &peer{t: d.t, conn: conn}
	p.connect = p.read().(*packets.ConnectPacket)
	return p
}

// leave ends the connections that wait to be accepted: they come before one that is made now.
func (d *double) leave() {
	d.t.Helper()
	last, err := net.Dial("tcp", d.ln.Addr().String())
	if err != nil {
		d.t.Fatal(err)
	}
	defer last.Close()
	d.ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	for {
		conn, err := d.ln.Accept()
		if err != nil {
			d.t.Fatal(err)
		}
		conn.Close()
		if conn.RemoteAddr().String() == last.LocalAddr().String() {
			return
		}
	}
}

// open accepts a connection and answers with CONNACK.
func (d *double) open(present bool) *peer {
	d.t.Helper()
	p := d.accept()
	p.connack(present, 0)
	return p
}

// openSource accepts a source's connection and its subscription.
func (d *double) openSource(present bool) *peer {
	d.t.Helper()
	p := d.open(present)
	p.suback()
	return p
}

func (p *peer) connack(present bool, code byte) {
	p.t.Helper()
	a := packets.NewControlPacket(packets.Connack).(*packets.ConnackPacket)
	a.SessionPresent, a.ReturnCode = present, code
	p.write(a)
}

// suback expects SUBSCRIBE and grants what it asks for.
func (p *peer) suback() *packets.SubscribePacket {
	p.t.Helper()
	s := p.read().(*packets.SubscribePacket)
	p.grant(s, s.Qoss...)
	return s
}

func (p *peer) grant(s *packets.SubscribePacket, codes ...byte) {
	p.t.Helper()
	a := packets.NewControlPacket(packets.Suback).(*packets.SubackPacket)
	a.MessageID, a.ReturnCodes = s.MessageID, codes
	p.write(a)
}

func (p *peer) write(c packets.ControlPacket) {
	p.t.Helper()
	if err := c.Write(p.conn); err != nil {
		p.t.Fatal(err)
	}
}

// read returns the next packet but for pings, which it answers.
func (p *peer) read() packets.ControlPacket {
	p.t.Helper()
	p.conn.SetReadDeadline(time.Now().Add(patience))
	for {
		c, err := packets.ReadPacket(p.conn)
		if err != nil {
			p.t.Fatalf("reading from the client: %v", err)
		}
		if _, ping := c.(*packets.PingreqPacket); !ping {
			return c
		}
		p.write(packets.NewControlPacket(packets.Pingresp))
	}
}

func (p *peer) publish(qos byte, id uint16, dup bool, topic, payload string) {
	p.t.Helper()
	m := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
	m.Qos, m.MessageID, m.Dup, m.TopicName, m.Payload = qos, id, dup, topic, []byte(payload)
	p.write(m)
}

// ack sends an acknowledgement of a kind.
func (p *peer) ack(kind byte, id uint16) {
	p.t.Helper()
	if _, err := p.conn.Write(appendAck(nil, kind, id)); err != nil {
		p.t.Fatal(err)
	}
}

// expect reads packets and compares them with words such as "PUBACK 1".
func (p *peer) expect(want ...string) {
	p.t.Helper()
	for _, w := range want {
		c := p.read()
		if got := word(c); got != w {
			p.t.Fatalf("got %s, want %s", got, w)
		}
	}
}

func word(c packets.ControlPacket) string {
	switch c := c.(type) {
	case *packets.PublishPacket:
		dup := ""
		if c.Dup {
			dup = "DUP "
		}
		return fmt.Sprintf("PUBLISH %d %s%s %s", c.MessageID, dup, c.TopicName, c.Payload)
	case *packets.PubackPacket:
		return fmt.Sprintf("PUBACK %d", c.MessageID)
	case *packets.PubrecPacket:
		return fmt.Sprintf("PUBREC %d", c.MessageID)
	case *packets.PubrelPacket:
		return fmt.Sprintf("PUBREL %d", c.MessageID)
	case *packets.PubcompPacket:
		return fmt.Sprintf("PUBCOMP %d", c.MessageID)
	case *packets.DisconnectPacket:
		return "DISCONNECT"
	}
	return fmt.Sprintf("%T", c)
}

// settled is a round trip: the client has dealt with all that was sent before, and has sent nothing
// in answer, since a PUBREL for an identifier that nobody uses is answered at once.
func (p *peer) settled() {
	p.t.Helper()
	p.ack(typePubrel, 60000)
	p.expect("PUBCOMP 60000")
}

func (p *peer) cut() { p.conn.Close() }

// end stops the client, which says good-bye, and closes as a broker does.
func (p *peer) end(r *running) {
	p.t.Helper()
	r.cancel()
	p.expect("DISCONNECT")
	p.cut()
	if err := r.wait(p.t); err != nil {
		p.t.Error(err)
	}
}

// clockNow is what the clock of tests says, always.
const clockNow = 1700000000000

func testDeps(h slog.Handler) Deps {
	d := Deps{Clock: func() int64 { return clockNow }}
	if h != nil {
		d.Log = slog.New(h)
	}
	return d
}

// logDouble is an ingest log of which the test decides when something is durable.
type logDouble struct {
	manual bool // the test calls durable

	mu      sync.Mutex
	full    bool
	fail    error
	batches []dataflow.IngestBatch
	letters []letter
	pending []func()
	synced  []bool // by append
	marks   map[uint64]uint64

	appended chan int // number of records, dead letters count one
}

type letter struct {
	rec    frame.Record
	reason string
}

func newLog(manual bool) *logDouble {
	return &logDouble{manual: manual, marks: map[uint64]uint64{}, appended: make(chan int, 1<<16)}
}

func (l *logDouble) take(records int, durable func(), keep func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	if l.full {
		return fmt.Errorf("test: %w", dataflow.ErrLogFull)
	}
	keep()
	if l.manual {
		l.pending, l.synced = append(l.pending, durable), append(l.synced, false)
	} else {
		durable()
	}
	l.appended <- records
	return nil
}

func (l *logDouble) Append(b dataflow.IngestBatch, durable func()) error {
	b.Marks = slices.Clone(b.Marks)
	if b.Count == 0 && b.Marks[0].Key >= markSession { // what a source notes for itself: no test waits for it
		l.mu.Lock()
		defer l.mu.Unlock()
		l.apply(b.Marks)
		durable()
		return nil
	}
	if n, err := frame.Count(b.Payload); err != nil || n != b.Count {
		return errors.Join(errors.New("malformed batch"), err)
	}
	return l.take(b.Count, durable, func() {
		l.batches = append(l.batches, dataflow.IngestBatch{
			Payload: append([]byte(nil), b.Payload...), Count: b.Count, IDs: append([]byte(nil), b.IDs...), Marks: b.Marks,
		})
		l.apply(b.Marks)
	})
}

func (l *logDouble) apply(marks []dataflow.Mark) {
	for _, m := range marks {
		if m.Drop {
			maps.DeleteFunc(l.marks, func(k, _ uint64) bool { return m.Key <= k && k <= m.Value })
		} else {
			l.marks[m.Key] = m.Value
		}
	}
}

// killed is the log as a process finds it that is started after this one was killed: the batches up to
// the first that was not durable.
func (l *logDouble) killed() *logDouble {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := newLog(l.manual)
	n.marks[markSession] = l.marks[markSession]
	for i, b := range l.batches {
		if l.manual && !l.synced[i] {
			break
		}
		n.batches = append(n.batches, b)
		n.apply(b.Marks)
		n.pending, n.synced = append(n.pending, func() {}), append(n.synced, true)
	}
	return n
}

func (l *logDouble) DeadLetter(rec frame.Record, reason string, durable func()) error {
	if err := rec.Check(); err != nil {
		return err
	}
	return l.take(1, durable, func() { l.letters = append(l.letters, letter{rec, reason}) })
}

func (l *logDouble) setFull(full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = full
}

func (l *logDouble) setFail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

// release makes the nth append durable.
func (l *logDouble) release(n int) {
	l.mu.Lock()
	f := l.pending[n]
	l.synced[n] = true
	l.mu.Unlock()
	f()
}

// wait waits until n more records have been logged.
func (l *logDouble) wait(t testing.TB, n int) {
	t.Helper()
	late := time.After(patience)
	for n > 0 {
		select {
		case got := <-l.appended:
			n -= got
		case <-late:
			t.Fatalf("%d records were not logged", n)
		}
	}
	if n < 0 {
		t.Fatalf("%d records too many were logged", -n)
	}
}

// waitBatches waits until the log has had so many batches, those without records included.
func (l *logDouble) waitBatches(t testing.TB, n int) {
	t.Helper()
	until(t, fmt.Sprintf("%d batches", n), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.batches) >= n
	})
}

func (l *logDouble) records(t testing.TB) []frame.Record {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []frame.Record
	for _, b := range l.batches {
		for rest := b.Payload; len(rest) > 0; {
			rec, r, err := frame.Next(rest)
			if err != nil {
				t.Fatal(err)
			}
			out, rest = append(out, rec), r
		}
	}
	return out
}

func (l *logDouble) values(t testing.TB) string {
	t.Helper()
	text := ""
	for i, rec := range l.records(t) {
		if i > 0 {
			text += " "
		}
		text += string(rec.Value)
	}
	return text
}

// running is a source or a sink that runs until the test stops it.
type running struct {
	cancel context.CancelFunc
	ended  chan error
}

func start(t testing.TB, run func(context.Context) error) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel, make(chan error, 1)}
	go func() { r.ended <- run(ctx) }()
	t.Cleanup(func() { cancel() })
	return r
}

// stop ends it and returns what Run returned.
func (r *running) stop(t testing.TB) error {
	t.Helper()
	r.cancel()
	return r.wait(t)
}

func (r *running) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(patience):
		t.Fatal("it does not end")
		return nil
	}
}

// until polls a status: what it waits for has no signal of its own.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("not reached: %s", what)
		}
	}
}

// events collects what a sink reports.
type events struct {
	handed   chan abs.Seq
	received chan abs.Seq
	ready    chan struct{}
	log      func(received abs.Seq) // if not nil, what the sink says goes here and not to received
}

func newEvents() *events {
	return &events{make(chan abs.Seq, 1<<16), make(chan abs.Seq, 1<<16), make(chan struct{}, 1<<16), nil}
}

func (e *events) Handed(n abs.Seq) { e.handed <- n }
func (e *events) Received(n abs.Seq) {
	if e.log != nil {
		e.log(n)
		return
	}
	e.received <- n
}
func (e *events) Ready() { e.ready <- struct{}{} }

func (e *events) waitHanded(t testing.TB, upto abs.Seq) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case n := <-e.handed:
			if n == upto {
				return
			}
			if n > upto {
				t.Fatalf("handed %d, want %d", n, upto)
			}
		case <-late:
			t.Fatalf("%d was not handed over", upto)
		}
	}
}

func (e *events) waitReady(t testing.TB) {
	t.Helper()
	select {
	case <-e.ready:
	case <-time.After(patience):
		t.Fatal("the sink is not ready")
	}
}

// warnings counts log entries of level warn and above.
type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w *warnings) WithGroup(string) slog.Handler            { return w }
func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Level >= slog.LevelWarn {
		w.text = append(w.text, r.Message)
	}
	return nil
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.text...)
}

func (l *logDouble) Cursor() []byte { return nil }

func (l *logDouble) End() error { return nil }

// Marks implements [dataflow.Ingest]: those of the batches so far.
func (l *logDouble) Marks(durable func()) map[uint64]uint64 {
	l.mu.Lock()
	m := maps.Clone(l.marks)
	l.mu.Unlock()
	durable()
	return m
}
