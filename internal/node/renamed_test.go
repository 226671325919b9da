package node_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

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
	var served sync.WaitGroup
	defer served.Wait()
	defer ln.Close()
	served.Go(func() { forgetful(ln) })
	a := startWith(t, node.Options{Data: t.TempDir(), Name: "a", NATSListen: "127.0.0.1:0"})
	a.mustApply(strings.NewReplacer("{topics", `{broker: "tcp://`+ln.Addr().String()+`", topics`, "qos: 1", "qos: 2", ", id: n", "").Replace(clockJob))
	a.until("it says that the broker sends messages again", func() (bool, string) {
		st, err := a.client.Status(t.Context())
		said := strings.Join(st.Notices, "\n")
		return err == nil && strings.Contains(said, "broker of source in seems to have sent 1 messages again"), fmt.Sprint(said, err)
	})
	a.stop()
}

// forgetful is a broker that sends a message under identifier 5, ends the connection when it has PUBREC, and then sends
// it again under identifier 1. A connection that fails is followed by another.
func forgetful(ln net.Listener) {
	id, known := uint16(5), false
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		for err == nil {
			var p packets.ControlPacket
			if p, err = packets.ReadPacket(conn); err != nil {
				break
			}
			switch p := p.(type) {
			case *packets.ConnectPacket:
				a := packets.NewControlPacket(packets.Connack).(*packets.ConnackPacket)
				a.SessionPresent = known
				err = a.Write(conn)
			case *packets.SubscribePacket:
				a := packets.NewControlPacket(packets.Suback).(*packets.SubackPacket)
				a.MessageID, a.ReturnCodes = p.MessageID, p.Qoss
				m := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
				m.TopicName, m.Payload, m.Qos, m.MessageID, m.Dup = "t/x", []byte(`{"k":"x"}`), 2, id, known
				err = errors.Join(a.Write(conn), m.Write(conn))
				known = true
			case *packets.PubrecPacket:
				if id == 5 {
					id, err = 1, io.EOF
				}
			case *packets.PingreqPacket:
				err = packets.NewControlPacket(packets.Pingresp).Write(conn)
			}
		}
		conn.Close()
	}
}
