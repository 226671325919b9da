package trial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"
)

// Sender publishes numbered messages, each once to the broker whatever happens to the connection: its session
// persists, and it goes on in it as MQTT 3.1.1, 4.4 says.
type Sender struct {
	Name    string // the session's
	Broker  string // HOST:PORT
	QoS     byte   // 1 or 2
	Rate    int    // messages a second; 0: as fast as they are acknowledged
	Message func(n int) (topic, payload string)

	Held  atomic.Bool // give out no numbers
	Quiet atomic.Bool // it knows that it is held, and everything given out is acknowledged
	Done  atomic.Bool // nothing is to be sent
	Stop  atomic.Bool // give out no more numbers: Send returns when what was given out is acknowledged

	sent   int // numbers given out
	lastID uint16
	open   []outgoing // not acknowledged, oldest first
}

type outgoing struct {
	id       uint16
	number   int
	received bool // PUBREC has come
}

// senderWindow is how many messages are under way: fewer than mosquitto 2.0.11 takes of one client; beyond that
// it refuses some after a restart.
const senderWindow = 10

// answerPatience is how long a broker may take to answer a CONNECT.
const answerPatience = 30 * time.Second

// Send publishes the next n messages and returns when the broker has taken all.
func (s *Sender) Send(ctx context.Context, n int) error {
	goal, began := s.sent+n, time.Now()
	first := s.sent
	s.Done.Store(false)
	defer s.Done.Store(true)
	for s.sent < goal && !s.Stop.Load() || len(s.open) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := s.session(ctx, goal, func() int {
			if s.Rate == 0 {
				return goal
			}
			return first + int(time.Since(began).Seconds()*float64(s.Rate))
		})
		var fatal *senderError
		if errors.As(err, &fatal) {
			return err
		}
		if err != nil {
			sleep(ctx, 50*time.Millisecond) // the broker is away
		}
	}
	return nil
}

// Sent is how many messages have been given out; it may be called when Send has returned.
func (s *Sender) Sent() int { return s.sent }

// senderError is one that is not of the connection.
type senderError struct{ text string }

func (e *senderError) Error() string { return e.text }

// session goes on over one connection until all is sent and acknowledged, or the connection ends. due is the number
// up to which messages are to be sent by now.
func (s *Sender) session(ctx context.Context, goal int, due func() int) error {
	conn, err := net.DialTimeout("tcp", s.Broker, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetReadDeadline(time.Now().Add(answerPatience)); err != nil {
		return err
	}
	if err := s.handshake(conn); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	got, failed := make(chan packets.ControlPacket), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			p, err := packets.ReadPacket(conn)
			if err != nil {
				failed <- err
				return
			}
			select {
			case got <- p:
			case <-ctx.Done():
				return
			}
		}
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.sent < goal && !s.Stop.Load() || len(s.open) > 0 {
		upto, held := due(), s.Held.Load()
		s.Quiet.Store(held && len(s.open) == 0)
		if held || s.Stop.Load() {
			upto = s.sent
		}
		for s.sent < min(goal, upto) && len(s.open) < senderWindow {
			if err := s.publish(conn); err != nil {
				return err
			}
		}
		select {
		case p := <-got:
			if err := s.take(conn, p); err != nil {
				return err
			}
		case err := <-failed:
			return err
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return packets.NewControlPacket(packets.Disconnect).Write(conn)
}

// handshake connects and sends again what is open.
func (s *Sender) handshake(conn net.Conn) error {
	c := packets.NewControlPacket(packets.Connect).(*packets.ConnectPacket)
	c.ProtocolName, c.ProtocolVersion, c.ClientIdentifier = "MQTT", 4, s.Name
	if err := c.Write(conn); err != nil {
		return err
	}
	p, err := packets.ReadPacket(conn)
	if err != nil {
		return err
	}
	ack, ok := p.(*packets.ConnackPacket)
	if !ok || ack.ReturnCode != 0 {
		return &senderError{fmt.Sprintf("%s: the broker answers with %s", s.Name, p)}
	}
	if s.sent > 0 && !ack.SessionPresent {
		return &senderError{s.Name + ": the broker has lost the session"}
	}
	for _, o := range s.open {
		if o.received {
			err = s.release(conn, o.id)
		} else {
			err = s.write(conn, o, true)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Sender) publish(conn net.Conn) error {
	for used := true; used; {
		s.lastID++
		used = s.lastID == 0
		for _, o := range s.open {
			used = used || o.id == s.lastID
		}
	}
	s.sent++
	o := outgoing{id: s.lastID, number: s.sent}
	s.open = append(s.open, o)
	return s.write(conn, o, false)
}

func (s *Sender) write(conn net.Conn, o outgoing, dup bool) error {
	m := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
	topic, payload := s.Message(o.number)
	m.TopicName, m.Payload, m.Qos, m.MessageID, m.Dup = topic, []byte(payload), s.QoS, o.id, dup
	return m.Write(conn)
}

func (s *Sender) release(conn net.Conn, id uint16) error {
	m := packets.NewControlPacket(packets.Pubrel).(*packets.PubrelPacket)
	m.MessageID = id
	return m.Write(conn)
}

// take deals with an acknowledgement.
func (s *Sender) take(conn net.Conn, p packets.ControlPacket) error {
	id, done := p.Details().MessageID, false
	switch p.(type) {
	case *packets.PubackPacket, *packets.PubcompPacket:
		done = true
	case *packets.PubrecPacket:
	default:
		return &senderError{fmt.Sprintf("%s: the broker sends %s", s.Name, p)}
	}
	for i := range s.open {
		if s.open[i].id != id {
			continue
		}
		if done {
			s.open = append(s.open[:i], s.open[i+1:]...)
			return nil
		}
		s.open[i].received = true
		break
	}
	return s.release(conn, id)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
