package mqtt

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/eclipse/paho.mqtt.golang/packets"
)

// Bounds of a connection.
const (
	// connectTimeout bounds dial and handshake together: a broker that takes longer is as good as
	// unreachable, and the next attempt may find it better.
	connectTimeout = 10 * time.Second
	// writeTimeout bounds one write of at most writeBuffer bytes: slower than 1.6 kB/s is lost.
	writeTimeout = 20 * time.Second
	// readBuffer and writeBuffer: 32 KiB hold hundreds of small messages or acknowledgements, so that
	// one system call serves them all.
	readBuffer  = 32 << 10
	writeBuffer = 32 << 10
	// maxHandover bounds the packets that the reader hands over at once.
	maxHandover = 256
	// closeWait is how long a closing connection waits for the broker to close its side, so that
	// data not yet read here does not reset the connection under the last acknowledgements.
	closeWait = 500 * time.Millisecond
	// disconnectWait bounds how long an owner waits for its last packets to be written and the
	// connection to close, before it cuts it.
	disconnectWait = 2 * closeWait
)

// errFinished is how a session ends that was asked to.
var errFinished = errors.New("disconnected")

// session is one connection to a broker from CONNACK on: a reader and a writer. Its owner receives
// packets from in, appends packets to what is written, and sees it end by ended.
type session struct {
	conn    net.Conn
	br      *bufio.Reader
	present bool // the broker has kept the session's state

	keepAlive time.Duration
	in        chan []packet // a slice belongs to the owner
	ended     chan struct{} // closed when run has returned
	wake      chan struct{} // capacity 1: there is something to write
	wrote     chan struct{} // capacity 1: written has grown
	finishing chan struct{} // closed by finish

	mu       sync.Mutex // guards all below
	out      []byte     // not yet written
	appended uint64     // bytes ever appended to out
	written  uint64     // of those, bytes given to the operating system
	finished bool       // nothing more is appended, or taken in
	cause    error      // of the end, if the owner has ended it
}

// opener makes the connection on which the handshake is done.
type opener func(ctx context.Context, b Broker, u *url.URL) (net.Conn, error)

// dial connects to the broker and does the handshake. Clean asks the broker to forget the session.
func dial(ctx context.Context, open opener, b Broker, u *url.URL, clean bool) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	password, err := b.password()
	if err != nil {
		return nil, err
	}
	conn, err := open(ctx, b, u)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	s := &session{
		conn: conn, br: bufio.NewReaderSize(idleConn{conn, b.KeepAlive * 3 / 2}, readBuffer), keepAlive: b.KeepAlive,
		in: make(chan []packet), ended: make(chan struct{}), wake: make(chan struct{}, 1), wrote: make(chan struct{}, 1),
		finishing: make(chan struct{}),
	}
	err = s.handshake(b, password, clean)
	if !stop() && err == nil {
		err = ctx.Err() // the connection was closed under the handshake
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return s, nil
}

// idleConn fails a read on which nothing comes for so long: with pings, silence is a lost connection.
type idleConn struct {
	net.Conn
	idle time.Duration
}

func (c idleConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func open(ctx context.Context, b Broker, u *url.URL) (net.Conn, error) {
	d := &net.Dialer{}
	switch u.Scheme {
	case "ssl", "tls", "mqtts", "wss":
		c, err := b.tls(u.Hostname())
		if err != nil {
			return nil, err
		}
		if u.Scheme == "wss" {
			return openWebsocket(ctx, u, c)
		}
		return (&tls.Dialer{NetDialer: d, Config: c}).DialContext(ctx, "tcp", u.Host)
	case "ws":
		return openWebsocket(ctx, u, nil)
	}
	return d.DialContext(ctx, "tcp", u.Host)
}

// openWebsocket takes at most connectTimeout, whatever ctx says: the library's dial takes no context.
func openWebsocket(ctx context.Context, u *url.URL, c *tls.Config) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return paho.NewWebsocket(u.String(), c, connectTimeout, nil, &paho.WebsocketOptions{ReadBufferSize: readBuffer})
}

func (s *session) handshake(b Broker, password string, clean bool) error {
	c := packets.NewControlPacket(packets.Connect).(*packets.ConnectPacket)
	c.ProtocolName, c.ProtocolVersion = "MQTT", 4
	c.ClientIdentifier, c.CleanSession = b.ClientID, clean
	c.Keepalive = uint16((b.KeepAlive + time.Second - 1) / time.Second)
	c.UsernameFlag, c.Username = b.User != "", b.User
	c.PasswordFlag, c.Password = password != "", []byte(password)
	var buf bytes.Buffer
	if err := c.Write(&buf); err != nil {
		return err
	}
	if err := s.write(buf.Bytes()); err != nil {
		return err
	}
	p, err := readPacket(s.br)
	switch {
	case err != nil:
		return fmt.Errorf("waiting for CONNACK: %w", err)
	case p.kind != typeConnack:
		return fmt.Errorf("waiting for CONNACK: the broker sent a packet of type %d", p.kind)
	case p.codes[1] != 0:
		return fmt.Errorf("the broker refuses the connection: %s", refusal(p.codes[1]))
	}
	s.present = p.codes[0]&1 != 0
	return nil
}

// refusal is the meaning of a CONNACK return code (MQTT 3.1.1, 3.2.2.3) and what to do about it.
func refusal(code byte) string {
	switch code {
	case 1:
		return "it does not speak MQTT 3.1.1"
	case 2:
		return "it does not take the client id"
	case 3:
		return "it is not available now"
	case 4:
		return "user or password are wrong"
	case 5:
		return "the user is not authorised; check user, password and the broker's access rules"
	}
	return fmt.Sprintf("return code %d", code)
}

// run reads and writes until the connection ends, the owner ends it, or ctx ends. The error is the
// first cause; errFinished after finish.
func (s *session) run(ctx context.Context) error {
	defer close(s.ended)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	defer stop()
	readerEnded := make(chan struct{})
	go func() {
		defer close(readerEnded)
		if err := s.reader(ctx); err != nil {
			cancel(fmt.Errorf("reading: %w", err))
		}
	}()
	err := s.writer(ctx)
	if errors.Is(err, errFinished) {
		select {
		case <-readerEnded:
		case <-time.After(closeWait):
		}
	}
	cancel(err)
	s.conn.Close()
	<-readerEnded
	return s.endCause(context.Cause(ctx), err)
}

func (s *session) endCause(first, writer error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cause != nil:
		return s.cause
	case errors.Is(writer, errFinished):
		return errFinished
	}
	return first
}

// reader hands over what it reads, as many whole packets at once as are there.
func (s *session) reader(ctx context.Context) error {
	var got []packet
	for {
		p, err := readPacket(s.br)
		if err != nil {
			return err
		}
		if p.kind != typePingresp {
			got = append(got, p)
		}
		if len(got) == 0 || len(got) < maxHandover && wholePacket(s.br) {
			continue
		}
		select {
		case s.in <- got:
		case <-s.finishing: // read on to throw away
		case <-ctx.Done():
			return nil
		}
		got = nil
	}
}

// writer writes what was appended, all of it at once, and pings.
func (s *session) writer(ctx context.Context) error {
	ping := time.NewTicker(max(s.keepAlive/2, time.Millisecond))
	defer ping.Stop()
	var buf []byte
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ping.C:
			buf = appendEmpty(buf[:0], typePingreq)
			if err := s.write(buf); err != nil {
				return err
			}
			continue
		case <-s.wake:
		}
		out, finished := s.takeOut(buf)
		if err := s.writeAll(out); err != nil {
			return err
		}
		if finished {
			return errFinished
		}
		if buf = out; cap(buf) > 4*writeBuffer {
			buf = nil // a burst is not kept
		}
	}
}

// takeOut takes what is to be written and leaves spare as the next buffer.
func (s *session) takeOut(spare []byte) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.out
	s.out = spare[:0]
	return out, s.finished
}

// writeAll writes piece by piece, each within writeTimeout, so that a slow network is not taken for a
// lost one.
func (s *session) writeAll(out []byte) error {
	for len(out) > 0 {
		n := min(len(out), writeBuffer)
		if err := s.write(out[:n]); err != nil {
			return err
		}
		s.noteWritten(n)
		out = out[n:]
	}
	return nil
}

func (s *session) noteWritten(n int) {
	s.mu.Lock()
	s.written += uint64(n)
	s.mu.Unlock()
	signal(s.wrote)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *session) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := s.conn.Write(b); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	return nil
}

// send lets add append packets to what is to be written and returns how many bytes were ever
// appended. The owner bounds what it appends by what it has under way. Nothing is appended after
// finish.
func (s *session) send(add func(dst []byte) []byte) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return s.appended
	}
	before := len(s.out)
	s.out = add(s.out)
	s.appended += uint64(len(s.out) - before)
	signal(s.wake)
	return s.appended
}

// sentBytes is how many of the bytes ever appended have been given to the operating system.
func (s *session) sentBytes() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written
}

// finish writes what is left and DISCONNECT, and then ends the session.
func (s *session) finish() {
	s.send(func(dst []byte) []byte { return appendEmpty(dst, typeDiscon) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.finished {
		s.finished = true
		close(s.finishing)
	}
	signal(s.wake)
}

// fail ends the session with a cause.
func (s *session) fail(cause error) {
	s.mu.Lock()
	if s.cause == nil {
		s.cause = cause
	}
	s.mu.Unlock()
	s.conn.Close()
}

// subscribe appends a SUBSCRIBE. The broker's answer is a packet of typeSuback with this id.
func (s *session) subscribe(id uint16, topics []string, qos byte) {
	p := packets.NewControlPacket(packets.Subscribe).(*packets.SubscribePacket)
	p.MessageID, p.Topics = id, topics
	for range topics {
		p.Qoss = append(p.Qoss, qos)
	}
	var buf bytes.Buffer
	if err := p.Write(&buf); err != nil {
		panic("mqtt: a buffer refuses a write: " + err.Error())
	}
	s.send(func(dst []byte) []byte { return append(dst, buf.Bytes()...) })
}
