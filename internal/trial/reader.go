package trial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"
)

// Reader takes every message of a subscription whatever happens to the connection: its session persists. One of QoS 2
// it takes once; it remembers the identifiers of those that are not released yet (MQTT 3.1.1, 4.3.3).
type Reader struct {
	Name   string // the session's
	Broker string // HOST:PORT
	Filter string
	QoS    byte
	// Take gets the messages in the order in which they come; from one goroutine.
	Take func(topic string, payload []byte)
	// Subscribed is closed when the broker has first taken the subscription.
	Subscribed chan struct{}

	known map[uint16]bool // identifiers taken and not released
}

const readerKeepAlive = 5 * time.Second

// Run reads until ctx ends.
func (r *Reader) Run(ctx context.Context) error {
	r.known = map[uint16]bool{}
	for ctx.Err() == nil {
		err := r.session(ctx)
		var fatal *senderError
		if errors.As(err, &fatal) {
			return err
		}
		sleep(ctx, 50*time.Millisecond)
	}
	return nil
}

// session reads until the connection ends.
func (r *Reader) session(ctx context.Context) error {
	conn, err := net.DialTimeout("tcp", r.Broker, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	c := packets.NewControlPacket(packets.Connect).(*packets.ConnectPacket)
	c.ProtocolName, c.ProtocolVersion, c.ClientIdentifier, c.Keepalive = "MQTT", 4, r.Name, uint16(readerKeepAlive/time.Second)
	if err := c.Write(conn); err != nil {
		return err
	}
	failed, pinging := make(chan error, 1), make(chan struct{})
	defer close(pinging)
	w := &locked{conn: conn}
	go func() {
		t := time.NewTicker(readerKeepAlive / 2)
		defer t.Stop()
		for {
			select {
			case <-pinging:
				return
			case <-t.C:
			}
			if err := packets.NewControlPacket(packets.Pingreq).Write(w); err != nil {
				failed <- err
				return
			}
		}
	}()
	for {
		if err := conn.SetReadDeadline(time.Now().Add(answerPatience)); err != nil {
			return err
		}
		p, err := packets.ReadPacket(conn)
		if err != nil {
			return err
		}
		if err := r.packet(w, p); err != nil {
			return err
		}
		select {
		case err := <-failed:
			return err
		default:
		}
	}
}

func (r *Reader) packet(w *locked, p packets.ControlPacket) error {
	switch p := p.(type) {
	case *packets.ConnackPacket:
		switch {
		case p.ReturnCode != 0:
			return &senderError{fmt.Sprintf("%s: the broker answers with %s", r.Name, p)}
		case !p.SessionPresent && r.subscribed():
			return &senderError{r.Name + ": the broker has lost the session"}
		case !p.SessionPresent:
			s := packets.NewControlPacket(packets.Subscribe).(*packets.SubscribePacket)
			s.MessageID, s.Topics, s.Qoss, s.Qos = 1, []string{r.Filter}, []byte{r.QoS}, 1
			return s.Write(w)
		}
	case *packets.SubackPacket:
		if len(p.ReturnCodes) != 1 || p.ReturnCodes[0] != r.QoS {
			return &senderError{fmt.Sprintf("%s: the broker answers with %s", r.Name, p)}
		}
		if !r.subscribed() {
			close(r.Subscribed)
		}
	case *packets.PublishPacket:
		return r.publish(w, p)
	case *packets.PubrelPacket:
		delete(r.known, p.MessageID)
		a := packets.NewControlPacket(packets.Pubcomp).(*packets.PubcompPacket)
		a.MessageID = p.MessageID
		return a.Write(w)
	}
	return nil
}

func (r *Reader) subscribed() bool {
	select {
	case <-r.Subscribed:
		return true
	default:
		return false
	}
}

func (r *Reader) publish(w *locked, p *packets.PublishPacket) error {
	switch p.Qos {
	case 2:
		if !r.known[p.MessageID] {
			r.known[p.MessageID] = true
			r.Take(p.TopicName, p.Payload)
		}
		a := packets.NewControlPacket(packets.Pubrec).(*packets.PubrecPacket)
		a.MessageID = p.MessageID
		return a.Write(w)
	case 1:
		r.Take(p.TopicName, p.Payload)
		a := packets.NewControlPacket(packets.Puback).(*packets.PubackPacket)
		a.MessageID = p.MessageID
		return a.Write(w)
	}
	r.Take(p.TopicName, p.Payload)
	return nil
}
