package mqtt

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/extract"
)

// startServer runs a NATS server with its MQTT listeners in this process: TCP and websocket.
func startServer(t testing.TB) (tcp, websocket string) {
	t.Helper()
	o := &server.Options{
		ServerName: "test", Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir(),
	}
	o.MQTT.Host, o.MQTT.Port = "127.0.0.1", -1
	o.Websocket.Host, o.Websocket.Port, o.Websocket.NoTLS = "127.0.0.1", -1, true
	o.MQTT.AckWait = time.Second // before it sends again; the default is 30 s
	serve(t, o)
	return fmt.Sprintf("tcp://127.0.0.1:%d", o.MQTT.Port), fmt.Sprintf("ws://127.0.0.1:%d/mqtt", o.Websocket.Port)
}

// serve runs a NATS server until the test ends.
func serve(t testing.TB, o *server.Options) {
	t.Helper()
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
}

// Everything that a sink hands over to a real broker reaches a source, in order per topic, also what
// is published while the source is away.
func TestWithServer(t *testing.T) {
	url, websocket := startServer(t)
	for qos := range byte(3) {
		t.Run(fmt.Sprintf("QoS %d", qos), func(t *testing.T) {
			topic := fmt.Sprintf("plant/%d/", qos)
			src := quick(t, SourceConfig{
				Broker: Broker{URL: url, ClientID: fmt.Sprintf("source-%d", qos)}, Topics: []string{topic + "#"}, QoS: qos,
				Key: extract.KeyRule{Kind: extract.KeySegment, Segment: 2},
			}, testDeps(nil))
			log := newLog(false)
			run := startSource(t, src, log)
			until(t, "subscribed", func() bool { return src.Status().State == SourceReceiving })
			snk := newTestSink(t, SinkConfig{Broker: Broker{URL: websocket, ClientID: fmt.Sprintf("sink-%d", qos)}, Topic: topic + "{key}", QoS: qos}, SinkDeps{})
			sinkRun, ev := startLogged(t, snk, snk.Logged)
			const n = 300
			publish(t, snk, ev, 1, n)
			log.wait(t, n)
			check(t, log, n)
			run.stop(t)
			if qos > 0 {
				publish(t, snk, ev, n+1, 2*n)
				again := quick(t, src.cfg, testDeps(nil))
				run = startSource(t, again, log)
				log.wait(t, n)
				check(t, log, 2*n)
				until(t, "all acknowledged", func() bool { return again.Status().Acked == n })
				run.stop(t)
			}
			sinkRun.stop(t)
		})
	}
}

// publish offers the items from..to as the task does: again when the sink is ready.
func publish(t *testing.T, s *Sink, ev *events, from, to abs.Seq) {
	t.Helper()
	var items []dataflow.SinkItem
	for n := from; n <= to; n++ {
		it := item(n)
		it.Record.Key = fmt.Appendf(nil, "m%d", n%7)
		items = append(items, it)
	}
	for len(items) > 0 {
		n := s.Offer(items)
		if items = items[n:]; n == 0 {
			ev.waitReady(t)
		}
	}
	ev.waitHanded(t, to)
}

func check(t *testing.T, log *logDouble, n int) {
	t.Helper()
	next := map[string]int{}
	recs := log.records(t)
	for _, rec := range recs {
		var got int
		fmt.Sscan(string(rec.Value), &got)
		want := next[string(rec.Key)] + 7
		if want == 7 {
			fmt.Sscanf(string(rec.Key), "m%d", &want)
			if want == 0 {
				want = 7
			}
		}
		if got != want {
			t.Fatalf("key %s: got %d, want %d", rec.Key, got, want)
		}
		next[string(rec.Key)] = got
	}
	if len(recs) != n {
		t.Fatalf("%d records, want %d", len(recs), n)
	}
}

// A message that was not acknowledged before the source's process died comes again from a real
// broker; one that was does not.
func TestServerSendsAgainWhatWasNotAcknowledged(t *testing.T) {
	url, _ := startServer(t)
	cfg := SourceConfig{Broker: Broker{URL: url, ClientID: "s"}, Topics: []string{"t/#"}, QoS: 1}
	log := newLog(true)
	src := quick(t, cfg, testDeps(nil))
	run := startSource(t, src, log)
	until(t, "subscribed", func() bool { return src.Status().State == SourceReceiving })
	snk := newTestSink(t, SinkConfig{Broker: Broker{URL: url, ClientID: "p"}, Topic: "t/{key}", QoS: 1}, SinkDeps{})
	sinkRun, ev := startSink(t, snk)
	offer(t, snk, 1)
	log.wait(t, 1)
	log.release(0)
	until(t, "acknowledged", func() bool { return src.Status().Acked == 1 })
	offer(t, snk, 2)
	ev.waitHanded(t, 2)
	log.wait(t, 1) // never durable
	run.stop(t)
	after := newLog(false)
	run = startSource(t, quick(t, cfg, testDeps(nil)), after)
	after.wait(t, 1)
	run.stop(t)
	sinkRun.stop(t)
	if got := after.values(t); got != "2" {
		t.Errorf("came again: %s", got)
	}
}
