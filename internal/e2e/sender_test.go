//go:build mosquitto

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/weir-stream/weir/internal/fleet"
)

// sender publishes numbered messages, {"id":"NAME-N"}, each once to the broker whatever happens to the
// connection: its session persists, and it goes on in it as MQTT 3.1.1, 4.4 says.
type sender struct {
	name, topic, broker string
	qos                 byte
	rate                int // messages a second; 0: as fast as they are acknowledged

	held  atomic.Bool // give out no numbers
	quiet atomic.Bool // it knows that it is held, and everything given out is acknowledged
	done  atomic.Bool // nothing is to be sent

	sent   int // numbers given out
	lastID uint16
	open   []outgoing // not acknowledged, oldest first
}

type outgoing struct {
	id       uint16
	payload  string
	received bool // PUBREC has come
}

// senderWindow is how many messages are under way: fewer than mosquitto 2.0.11 takes of one client; beyond that
// it refuses some after a restart.
const senderWindow = 10

// send publishes the next n messages and returns when the broker has taken all.
func (s *sender) send(ctx context.Context, n int) error {
	goal, began := s.sent+n, time.Now()
	first := s.sent
	s.done.Store(false)
	defer s.done.Store(true)
	for s.sent < goal || len(s.open) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := s.session(ctx, goal, func() int {
			if s.rate == 0 {
				return goal
			}
			return first + int(time.Since(began).Seconds()*float64(s.rate))
		})
		var fatal *senderError
		if errors.As(err, &fatal) {
			return err
		}
		if err != nil {
			fleet.Sleep(ctx, 50*time.Millisecond) // the broker is away
		}
	}
	return nil
}

// senderError is one that is not of the connection.
type senderError struct{ text string }

func (e *senderError) Error() string { return e.text }

// session goes on over one connection until all is sent and acknowledged, or the connection ends. due is the number
// up to which messages are to be sent by now.
func (s *sender) session(ctx context.Context, goal int, due func() int) error {
	conn, err := net.DialTimeout("tcp", s.broker, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetReadDeadline(time.Now().Add(startPatience)); err != nil {
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
	for s.sent < goal || len(s.open) > 0 {
		upto, held := due(), s.held.Load()
		s.quiet.Store(held && len(s.open) == 0)
		if held {
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
func (s *sender) handshake(conn net.Conn) error {
	c := packets.NewControlPacket(packets.Connect).(*packets.ConnectPacket)
	c.ProtocolName, c.ProtocolVersion, c.ClientIdentifier = "MQTT", 4, s.name
	if err := c.Write(conn); err != nil {
		return err
	}
	p, err := packets.ReadPacket(conn)
	if err != nil {
		return err
	}
	ack, ok := p.(*packets.ConnackPacket)
	if !ok || ack.ReturnCode != 0 {
		return &senderError{fmt.Sprintf("%s: the broker answers with %s", s.name, p)}
	}
	if s.sent > 0 && !ack.SessionPresent {
		return &senderError{s.name + ": the broker has lost the session"}
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

func (s *sender) publish(conn net.Conn) error {
	for used := true; used; {
		s.lastID++
		used = s.lastID == 0
		for _, o := range s.open {
			used = used || o.id == s.lastID
		}
	}
	s.sent++
	o := outgoing{id: s.lastID, payload: fmt.Sprintf(`{"id":"%s-%d"}`, s.name, s.sent)}
	s.open = append(s.open, o)
	return s.write(conn, o, false)
}

func (s *sender) write(conn net.Conn, o outgoing, dup bool) error {
	m := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
	m.TopicName, m.Payload, m.Qos, m.MessageID, m.Dup = s.topic, []byte(o.payload), s.qos, o.id, dup
	return m.Write(conn)
}

func (s *sender) release(conn net.Conn, id uint16) error {
	m := packets.NewControlPacket(packets.Pubrel).(*packets.PubrelPacket)
	m.MessageID = id
	return m.Write(conn)
}

// take deals with an acknowledgement.
func (s *sender) take(conn net.Conn, p packets.ControlPacket) error {
	id, done := p.Details().MessageID, false
	switch p.(type) {
	case *packets.PubackPacket, *packets.PubcompPacket:
		done = true
	case *packets.PubrecPacket:
	default:
		return &senderError{fmt.Sprintf("%s: the broker sends %s", s.name, p)}
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
