package mqtt

import (
	"context"
	"net"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"
)

// piped makes a source connect through pipes instead of the network, so that its time can be played.
// Every connection comes from the channel.
func piped(s *Source) <-chan net.Conn {
	conns := make(chan net.Conn)
	s.link.open = func(ctx context.Context, _ Broker, _ *url.URL) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case conns <- theirs:
			return ours, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return conns
}

// subscribed takes a connection up to SUBACK.
func subscribed(t *testing.T, conn net.Conn) *peer {
	p := &peer{t: t, conn: conn}
	p.connect = p.read().(*packets.ConnectPacket)
	p.connack(false, 0)
	p.suback()
	return p
}

// TestSlowLogKeepsTheConnection: for two minutes the log takes nothing, the queue is full, and the broker,
// with a keep-alive of 30 s, hears pings and nothing else. Afterwards everything is acknowledged on the
// same connection.
func TestSlowLogKeepsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		log := newLog(false)
		s := quick(t, SourceConfig{Broker: Broker{URL: "tcp://h", ClientID: "c", KeepAlive: 30 * time.Second}, QoS: 1}, testDeps(nil))
		s.bounds.queue = 10 * messageOverhead
		conns := piped(s)
		run := startSource(t, s, log)
		p := subscribed(t, <-conns)
		log.setFull(true)
		go func() {
			for i := range n {
				p.publish(1, uint16(i+1), false, "t", "x")
			}
		}()
		acked, pings := 0, 0
		began, heard := time.Now(), time.Now()
		for acked < n {
			p.conn.SetReadDeadline(time.Now().Add(45 * time.Second))
			c, err := packets.ReadPacket(p.conn)
			if err != nil {
				t.Fatalf("%s after the last packet: %v", time.Since(heard), err)
			}
			heard = time.Now()
			switch c.(type) {
			case *packets.PingreqPacket: // the answer would stand in the pipe behind the messages
				pings++
			case *packets.PubackPacket:
				acked++
			}
			if pings == 8 {
				log.setFull(false)
			}
		}
		if slow := time.Since(began); slow < 120*time.Second || slow > 150*time.Second {
			t.Errorf("took %s", slow)
		}
		if got := s.Status().Link.Connects; got != 1 {
			t.Errorf("%d connections", got)
		}
		run.cancel()
		p.expect("DISCONNECT")
		p.cut()
		if err := run.wait(t); err != nil {
			t.Error(err)
		}
	})
}

// TestHalfOpenConnection: packets vanish, and nobody says so. It is noticed within one and a half
// keep-alives, whether what is sent still goes somewhere or not, and not before.
func TestHalfOpenConnection(t *testing.T) {
	for name, swallows := range map[string]bool{"what is sent is swallowed": true, "nothing is taken": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const keepAlive = 30 * time.Second
				s := quick(t, SourceConfig{Broker: Broker{URL: "tcp://h", ClientID: "c", KeepAlive: keepAlive}, QoS: 1}, testDeps(nil))
				conns := piped(s)
				run := startSource(t, s, newLog(false))
				p := subscribed(t, <-conns)
				if swallows {
					go func() {
						for buf := make([]byte, 64); ; {
							if _, err := p.conn.Read(buf); err != nil {
								return
							}
						}
					}()
					p.conn.SetReadDeadline(time.Time{})
				}
				time.Sleep(keepAlive)
				synctest.Wait()
				if !s.Status().Link.Connected {
					t.Fatal("lost before a keep-alive has passed")
				}
				time.Sleep(keepAlive / 2)
				synctest.Wait()
				if s.Status().Link.Connected {
					t.Fatal("not noticed within one and a half keep-alives")
				}
				p.cut()
				p = subscribed(t, <-conns) // and tried again
				run.cancel()
				p.expect("DISCONNECT")
				p.cut()
				if err := run.wait(t); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestQuietConnectionLives: hours without a message are no silence, since pings are answered.
func TestQuietConnectionLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quick(t, SourceConfig{Broker: Broker{URL: "tcp://h", ClientID: "c"}, QoS: 1}, testDeps(nil))
		conns := piped(s)
		run := startSource(t, s, newLog(false))
		p := subscribed(t, <-conns)
		for range 1000 {
			if _, ping := readPacketOf(t, p).(*packets.PingreqPacket); !ping {
				t.Fatal("something else than a ping")
			}
			p.write(packets.NewControlPacket(packets.Pingresp))
		}
		if st := s.Status(); st.Link.Connects != 1 || !st.Link.Connected {
			t.Errorf("%+v", st.Link)
		}
		run.cancel()
		p.expect("DISCONNECT")
		p.cut()
		if err := run.wait(t); err != nil {
			t.Error(err)
		}
	})
}

func readPacketOf(t *testing.T, p *peer) packets.ControlPacket {
	t.Helper()
	p.conn.SetReadDeadline(time.Now().Add(patience))
	c, err := packets.ReadPacket(p.conn)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
