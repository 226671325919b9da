package node_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/weir-stream/weir/internal/node"
)

// TestRenamedIsSaid: a broker that forgets packet identifiers sends a message of QoS 2 again under another one. The
// agent cannot know and takes it, but says what it looks like.
func TestRenamedIsSaid(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	// serve takes one connection, sends one message, and waits for its PUBREC.
	serve := func(present bool, id uint16, dup bool) error {
		ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(patience))
		for {
			p, err := packets.ReadPacket(conn)
			if err != nil {
				return err
			}
			switch p := p.(type) {
			case *packets.ConnectPacket:
				a := packets.NewControlPacket(packets.Connack).(*packets.ConnackPacket)
				a.SessionPresent = present
				err = a.Write(conn)
			case *packets.SubscribePacket:
				a := packets.NewControlPacket(packets.Suback).(*packets.SubackPacket)
				a.MessageID, a.ReturnCodes = p.MessageID, p.Qoss
				m := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
				m.TopicName, m.Payload, m.Qos, m.MessageID, m.Dup = "t/x", []byte(`{"k":"x"}`), 2, id, dup
				if err = a.Write(conn); err == nil {
					err = m.Write(conn)
				}
			case *packets.PubrecPacket:
				if present {
					return nil
				}
				return conn.Close()
			}
			if err != nil {
				return err
			}
		}
	}
	served := make(chan error, 1)
	go func() {
		err := serve(false, 5, false)
		if err == nil {
			err = serve(true, 1, true)
		}
		served <- err
	}()
	a := startWith(t, node.Options{Data: t.TempDir(), Name: "a", NATSListen: "127.0.0.1:0"})
	a.mustApply(strings.NewReplacer("{topics", `{broker: "tcp://`+ln.Addr().String()+`", topics`, "qos: 1", "qos: 2", ", id: n", "").Replace(clockJob))
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	a.until("it says that the broker sends messages again", func() (bool, string) {
		st, err := a.client.Status(t.Context())
		said := strings.Join(st.Notices, "\n")
		return err == nil && strings.Contains(said, "broker of source in seems to have sent 1 messages again"), fmt.Sprint(said, err)
	})
	a.stop()
}
