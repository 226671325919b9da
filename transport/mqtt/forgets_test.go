package mqtt

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/eclipse/paho.mqtt.golang/packets"
	"github.com/nats-io/nats-server/v2/server"
)

// natsBroker is a NATS server with an MQTT listener, in this process.
type natsBroker struct {
	srv  *server.Server
	addr string
}

func startNATS(t *testing.T, dir string) *natsBroker {
	t.Helper()
	o := &server.Options{ServerName: "test", Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, JetStream: true, StoreDir: dir, SyncAlways: true}
	o.MQTT.Host, o.MQTT.Port = "127.0.0.1", -1
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	b := &natsBroker{srv: s}
	t.Cleanup(b.stop)
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	b.addr = fmt.Sprintf("127.0.0.1:%d", o.MQTT.Port)
	return b
}

func (b *natsBroker) stop() {
	b.srv.Shutdown()
	b.srv.WaitForShutdown()
}

// connect is a client of which the test writes every packet. Its session persists.
func (b *natsBroker) connect(t *testing.T, client string, present bool) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	p := &peer{t: t, conn: conn}
	c := packets.NewControlPacket(packets.Connect).(*packets.ConnectPacket)
	c.ProtocolName, c.ProtocolVersion, c.ClientIdentifier = "MQTT", 4, client
	p.write(c)
	if a := p.read().(*packets.ConnackPacket); a.ReturnCode != 0 || a.SessionPresent != present {
		t.Fatalf("CONNACK %v, want session present: %v", a, present)
	}
	return p
}

// release is the second half of an exchange at QoS 2, as the receiver.
func (p *peer) release(id uint16) {
	p.t.Helper()
	p.ack(typePubrec, id)
	p.expect(fmt.Sprintf("PUBREL %d", id))
	p.ack(typePubcomp, id)
}

// deliver publishes at QoS 2 and completes the exchange.
func (p *peer) deliver(id uint16, text string) {
	p.t.Helper()
	p.publish(2, id, false, "t", text)
	p.expect(fmt.Sprintf("PUBREC %d", id))
	p.ack(typePubrel, id)
	p.expect(fmt.Sprintf("PUBCOMP %d", id))
}

// TestServerForgetsIdentifiers shows why a source of QoS 2 needs an id at a NATS server's MQTT listener, the one
// inside an agent: no client can do without. The server keeps packet identifiers in memory only, begins with 1 again
// when it is started, says that the session is there, and writes down what it has sent and what was acknowledged
// afterwards, at most ten times a second. (nats-server 2.15: mqttSession.trackPublish, consumerFileStore.flushLoop.)
//
// A subscriber takes a, b and c. In one history the server is killed before c is acknowledged, and sends it again. In
// the other c is acknowledged, and the same text is published once more after a restart. What the subscriber
// gets, byte for byte, is the same.
func TestServerForgetsIdentifiers(t *testing.T) {
	const filter, client = "t", "sub"
	history := func(again bool) (packet string) {
		dir := t.TempDir()
		b := startNATS(t, dir)
		sub, pub := b.connect(t, client, false), b.connect(t, "pub", false)
		s := packets.NewControlPacket(packets.Subscribe).(*packets.SubscribePacket)
		s.MessageID, s.Topics, s.Qoss = 1, []string{filter}, []byte{2}
		sub.write(s)
		if _, ok := sub.read().(*packets.SubackPacket); !ok {
			t.Fatal("no SUBACK")
		}
		for id, text := range []string{"a", "b"} {
			pub.deliver(uint16(id+1), text)
			sub.expect(fmt.Sprintf("PUBLISH %d t %s", id+1, text))
			sub.release(uint16(id + 1))
		}
		b.acknowledged(t)
		sub.cut()
		until(t, "the server knows that the subscriber is gone", func() bool { return b.srv.NumClients() == 1 })
		pub.deliver(3, "c")
		killed := "" // what is on disk before anything of what follows
		until(t, "a copy in which nothing is missing that the server has renamed meanwhile", func() bool {
			killed = t.TempDir()
			err := os.CopyFS(killed, os.DirFS(dir))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			return err == nil
		})
		sub = b.connect(t, client, true)
		sub.expect("PUBLISH 3 t c")
		if again {
			sub.release(3)
			b.acknowledged(t)
			killed = dir
		}
		b.stop()
		b = startNATS(t, killed)
		sub = b.connect(t, client, true)
		if again {
			b.connect(t, "pub", true).deliver(4, "c")
		}
		return word(sub.read())
	}
	sentAgain, published := history(false), history(true)
	if sentAgain != published || published != "PUBLISH 1 t c" {
		t.Errorf("%q is a message that comes again, %q another one: they can be told apart now; make use of it, and say so in the package's documentation",
			sentAgain, published)
	}
}

// acknowledged waits until the server has dropped all messages, and so has noted that the subscriber has them.
func (b *natsBroker) acknowledged(t *testing.T) {
	t.Helper()
	until(t, "what was released is noted", func() bool {
		info, err := b.srv.Jsz(&server.JSzOptions{Accounts: true, Streams: true})
		if err != nil {
			t.Fatal(err)
		}
		empty := 0
		for _, account := range info.AccountDetails {
			for _, s := range account.Streams {
				if (s.Name == "$MQTT_msgs" || s.Name == "$MQTT_out") && s.State.Msgs == 0 {
					empty++
				}
			}
		}
		return empty == 2
	})
}

// TestServerLosesWhatIsReleased shows why one should publish at QoS 1 to such a server. On PUBREL it stores the message
// for its subscribers and deletes the copy that it held, both at once and in files that know nothing of each other
// (nats-server 2.15: mqttPipelineReleaseAndPubComp). If it is killed when only the second has been done, PUBREL comes again,
// is answered, and nobody gets the message.
func TestServerLosesWhatIsReleased(t *testing.T) {
	for deleted, want := range map[bool]string{false: "PUBLISH 1 t x", true: "PUBLISH 1 t y"} {
		if got := firstAfterKill(t, deleted); got != want {
			t.Errorf("deleted before the kill: %v: the first message is %q, want %q; if x is no longer lost say so in the documentation, and in what a plan promises",
				deleted, got, want)
		}
	}
}

// firstAfterKill is what a subscriber first gets if a server is killed when it has the PUBREL of x, and y follows.
func firstAfterKill(t *testing.T, deleted bool) (packet string) {
	dir, killed := t.TempDir(), t.TempDir()
	b := startNATS(t, dir)
	sub, pub := b.connect(t, "sub", false), b.connect(t, "pub", false)
	s := packets.NewControlPacket(packets.Subscribe).(*packets.SubscribePacket)
	s.MessageID, s.Topics, s.Qoss = 1, []string{"t"}, []byte{1}
	sub.write(s)
	if _, ok := sub.read().(*packets.SubackPacket); !ok {
		t.Fatal("no SUBACK")
	}
	sub.cut()
	pub.publish(2, 1, false, "t", "x")
	pub.expect("PUBREC 1")
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	pub.ack(typePubrel, 1)
	pub.expect("PUBCOMP 1")
	b.stop()
	if deleted { // nothing else was done before the kill, and PUBCOMP was not sent
		held := filepath.Join("jetstream", "$G", "streams", "$MQTT_qos2in")
		if err := os.RemoveAll(filepath.Join(killed, held)); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(killed, held), os.DirFS(filepath.Join(dir, held))); err != nil {
			t.Fatal(err)
		}
	}
	b = startNATS(t, killed)
	pub = b.connect(t, "pub", true)
	pub.ack(typePubrel, 1)
	pub.expect("PUBCOMP 1")
	pub.publish(1, 2, false, "t", "y")
	pub.expect("PUBACK 2")
	sub = b.connect(t, "sub", true)
	return word(sub.read())
}
