package mqtt

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"testing"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// inFlight is what the double's broker allows unacknowledged in benchmarks.
const inFlight = 1000

// flood publishes b.N messages at QoS 1 and reads as many PUBACKs, never more than inFlight behind.
func flood(b *testing.B, p *peer, payload []byte) {
	credit := make(chan struct{}, inFlight)
	for range inFlight {
		credit <- struct{}{}
	}
	acked := make(chan error, 1)
	go func() {
		r := bufio.NewReaderSize(p.conn, 64<<10)
		buf := make([]byte, 4)
		for range b.N {
			if _, err := io.ReadFull(r, buf); err != nil || buf[0] != typePuback<<4 {
				acked <- fmt.Errorf("instead of PUBACK: %x %w", buf, err)
				return
			}
			credit <- struct{}{}
		}
		acked <- nil
	}()
	w := bufio.NewWriterSize(p.conn, 64<<10)
	var packet []byte
	for i := range b.N {
		select {
		case <-credit:
		default:
			w.Flush()
			<-credit
		}
		packet = appendPublish(packet[:0], 1, false, false, uint16(i%inFlight)+1, []byte("plant/a/7"), payload)
		w.Write(packet)
	}
	w.Flush()
	if err := <-acked; err != nil {
		b.Fatal(err)
	}
}

// durableLog is a log whose disk costs nothing.
type durableLog struct{}

func (durableLog) Append(_ dataflow.IngestBatch, durable func()) error { durable(); return nil }
func (durableLog) DeadLetter(_ frame.Record, _ string, durable func()) error {
	durable()
	return nil
}

// BenchmarkReceive compares the source with the Paho client as it comes, both acknowledging each
// message by hand, per message.
func BenchmarkReceive(b *testing.B) {
	payload := make([]byte, 200)
	b.Run("source", func(b *testing.B) {
		d := newDouble(b)
		s := quick(b, SourceConfig{Broker: d.broker("c"), QoS: 1}, testDeps(nil))
		run := start(b, func(ctx context.Context) error { return s.Run(ctx, durableLog{}) })
		p := d.openSource(false)
		b.ReportAllocs()
		b.ResetTimer()
		flood(b, p, payload)
		b.StopTimer()
		p.end(run)
	})
	b.Run("paho", func(b *testing.B) {
		d := newDouble(b)
		o := paho.NewClientOptions().AddBroker(d.broker("c").URL).SetClientID("c").SetAutoAckDisabled(true).SetAutoReconnect(false)
		o.SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { go m.Ack() }) // within the handler it blocks
		o.SetOrderMatters(true)
		c := paho.NewClient(o)
		connecting := c.Connect()
		p := d.open(false)
		connecting.Wait()
		b.ReportAllocs()
		b.ResetTimer()
		flood(b, p, payload)
		b.StopTimer()
		c.Disconnect(250)
	})
}

// BenchmarkPublish is the same for publishing at QoS 1 with a window of 256.
func BenchmarkPublish(b *testing.B) {
	payload := make([]byte, 200)
	acks := func(p *peer, n int) {
		r, w := bufio.NewReaderSize(p.conn, 64<<10), bufio.NewWriterSize(p.conn, 64<<10)
		for range n {
			if !wholePacket(r) {
				w.Flush()
			}
			m, err := readPacket(r)
			if err != nil || m.kind != typePublish {
				return
			}
			w.Write(appendAck(nil, typePuback, m.id))
		}
		w.Flush()
	}
	b.Run("sink", func(b *testing.B) {
		d := newDouble(b)
		s := newTestSink(b, SinkConfig{Broker: d.broker("c"), QoS: 1}, SinkDeps{})
		run, ev := startSink(b, s)
		p := d.open(false)
		go acks(p, b.N)
		b.ReportAllocs()
		b.ResetTimer()
		items := make([]dataflow.SinkItem, 0, 64)
		for n := 1; n <= b.N; {
			items = items[:0]
			for i := n; i <= b.N && len(items) < cap(items); i++ {
				items = append(items, dataflow.SinkItem{Number: abs.Seq(i), Record: frame.Record{Key: []byte("k"), Value: payload}})
			}
			took := s.Offer(items)
			if n += took; took == 0 {
				<-ev.ready
			}
			for more := true; more; {
				select {
				case <-ev.handed:
				default:
					more = false
				}
			}
		}
		until(b, "all handed over", func() bool { return s.Status().Handed == uint64(b.N) })
		b.StopTimer()
		p.end(run)
	})
	b.Run("paho", func(b *testing.B) {
		d := newDouble(b)
		c := paho.NewClient(paho.NewClientOptions().AddBroker(d.broker("c").URL).SetClientID("c").SetAutoReconnect(false))
		connecting := c.Connect()
		p := d.open(false)
		connecting.Wait()
		go acks(p, b.N)
		b.ReportAllocs()
		b.ResetTimer()
		window := make(chan paho.Token, 256)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for t := range window {
				t.Wait()
			}
		}()
		for range b.N {
			window <- c.Publish("out/k", 1, false, payload)
		}
		close(window)
		<-done
		b.StopTimer()
		c.Disconnect(250)
	})
}

func (durableLog) Cursor() []byte { return nil }

func (durableLog) End() error { return nil }

func (durableLog) Marks(durable func()) map[uint64]uint64 { durable(); return nil }
