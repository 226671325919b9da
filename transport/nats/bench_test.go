package nats

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// hop is one channel from an output to an input through the embedded server.
type hop struct {
	in  dataflow.Input
	out dataflow.Output
}

func openHop(b *testing.B, opt StreamOptions, tcp bool) hop {
	var server ServerOptions
	if tcp {
		server.Listen = "127.0.0.1:0"
	}
	s := startServer(b, server)
	connection := ConnectOptions{Server: s}
	if tcp {
		connection = ConnectOptions{URL: s.ClientURL()}
	}
	streams := connect(b, connection).Streams(opt)
	h := hop{in: openInput(b, streams, "t", 0), out: openOutput(b, streams, map[int]abs.TaskID{0: "t"})}
	wantDrained(b, h.in)
	return h
}

// purge keeps the stream short, as checkpoints do.
func (h hop) purge(b *testing.B, d dataflow.Delivery) {
	if err := h.in.Purge(context.Background(), 0, d.Seq); err != nil {
		b.Fatal(err)
	}
}

var hopKinds = []struct {
	name string
	opt  StreamOptions
	tcp  bool
}{
	{"memory", StreamOptions{}, false},
	{"file", StreamOptions{File: true}, false},
	{"memory-tcp", StreamOptions{}, true},
}

// send sends a frame and reports on done once the stream has it.
func (h hop) send(b *testing.B, data []byte, done func()) {
	h.out.Send(0, data, func(err error) {
		if err != nil {
			b.Error(err)
		}
		done()
	})
}

// BenchmarkHopLatency is the time from Send to Deliveries, one frame at a time.
func BenchmarkHopLatency(b *testing.B) {
	for _, kind := range hopKinds {
		for _, size := range []int{1 << 10, frame.TargetSize} {
			b.Run(fmt.Sprintf("%s/%dKiB", kind.name, size>>10), func(b *testing.B) {
				h := openHop(b, kind.opt, kind.tcp)
				data := make([]byte, size)
				times, taken := make([]time.Duration, 0, b.N), make(chan struct{}, 1)
				b.ResetTimer()
				for n := range b.N {
					begin := time.Now()
					h.send(b, data, func() { taken <- struct{}{} })
					d := <-h.in.Deliveries()
					times = append(times, time.Since(begin))
					<-taken // the acknowledgement may come behind the frame
					if n%256 == 255 {
						b.StopTimer()
						h.purge(b, d)
						b.StartTimer()
					}
				}
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "p50-µs")
				b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1e3, "p99-µs")
			})
		}
	}
}

// BenchmarkHopThroughput keeps 16 frames under way.
func BenchmarkHopThroughput(b *testing.B) {
	const window = 16
	for _, kind := range hopKinds {
		b.Run(kind.name, func(b *testing.B) {
			h := openHop(b, kind.opt, kind.tcp)
			data := make([]byte, frame.TargetSize)
			credit := make(chan struct{}, window)
			b.SetBytes(frame.TargetSize)
			b.ResetTimer()
			go func() {
				for range b.N {
					credit <- struct{}{}
					h.send(b, data, func() { <-credit })
				}
			}()
			for n := range b.N {
				d := <-h.in.Deliveries()
				if n%512 == 511 {
					h.purge(b, d)
				}
			}
		})
	}
}

// BenchmarkStart is a start on a control plane of a thousand keys, and the stop.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	s := startServer(b, ServerOptions{Dir: dir})
	c := connect(b, ConnectOptions{Server: s})
	ensure(b, c)
	for n := range 1000 {
		put(b, c.KV(Jobs), Key("job", frameName(n)), "value")
	}
	c.Close()
	s.Shutdown()
	for b.Loop() {
		startServer(b, ServerOptions{Dir: dir, Listen: "127.0.0.1:0", MQTTListen: "127.0.0.1:0"}).Shutdown()
	}
}

// BenchmarkPut is a key-value write, which the server fsyncs.
func BenchmarkPut(b *testing.B) {
	kv := inProcess(b).KV(Jobs)
	for b.Loop() {
		if _, err := kv.Put(context.Background(), "k", []byte("value")); err != nil {
			b.Fatal(err)
		}
	}
}
