package direct

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/dataflow/streamtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(opt Options) *Streams {
	opt.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	return New(opt)
}

func TestContract(t *testing.T) {
	streamtest.Run(t, streamtest.Kind{
		Open: func(_ testing.TB, channelFrames int) dataflow.Streams {
			return open(Options{ChannelFrames: channelFrames})
		},
		Full: ErrFull, Unavailable: ErrUnavailable, Lost: ErrLost, Ended: ErrClosed,
	})
}

func TestBytesAreBounded(t *testing.T) {
	s := open(Options{Bytes: 25})
	in := streamtest.OpenInput(t, s, "t", 0)
	streamtest.WantDrained(t, in)
	out := streamtest.OpenOutput(t, s, map[int]abs.TaskID{0: "t"})
	for range 5 {
		if err := streamtest.SendOne(t, out, 0, "12345678901"); err != nil {
			t.Fatal(err)
		}
		first := streamtest.WantFrame(t, in, 0, "12345678901")
		if err := streamtest.SendOne(t, out, 0, "123456789012345"); !errors.Is(err, ErrFull) {
			t.Fatalf("got %v, want %v", err, ErrFull)
		}
		if err := in.Purge(t.Context(), 0, first.Seq); err != nil {
			t.Fatal(err)
		}
	}
}

// All streams together are bounded, and what they held may be used by others once it is purged or they have ended.
func TestTotalIsBounded(t *testing.T) {
	s := open(Options{Total: 25})
	to := map[int]abs.TaskID{0: "t", 1: "u"}
	in, other := streamtest.OpenInput(t, s, "t", 0), streamtest.OpenInput(t, s, "u", 1)
	streamtest.WantDrained(t, in)
	streamtest.WantDrained(t, other)
	out := streamtest.OpenOutput(t, s, to)
	if err := streamtest.SendOne(t, out, 0, "12345678901234567890"); err != nil {
		t.Fatal(err)
	}
	d := streamtest.WantFrame(t, in, 0, "12345678901234567890")
	if err := streamtest.SendOne(t, out, 1, "123456"); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want %v", err, ErrFull)
	}
	if err := in.Purge(t.Context(), 0, d.Seq); err != nil {
		t.Fatal(err)
	}
	if err := streamtest.SendOne(t, out, 1, "12345678901234567890"); err != nil {
		t.Fatal(err)
	}
	for _, end := range []interface{ Close() }{out, in, other} {
		end.Close()
	}
	if got := s.bytes.Load(); got != 0 {
		t.Errorf("%d bytes are counted when all streams have ended", got)
	}
}

// Where there is no room, frames go that their receiver has said to have consumed in this reading, and no others: the
// checkpoint that would purge them needs a barrier that has to come in.
func TestConsumedFramesMakeRoom(t *testing.T) {
	size := len(numbered(1))
	for name, opt := range map[string]Options{"of a stream": {Bytes: 3 * size}, "of all streams": {Total: 3 * size}, "of a channel": {ChannelFrames: 3}} {
		t.Run(name, func(t *testing.T) {
			s := open(opt)
			in := streamtest.OpenInput(t, s, "t", 0)
			streamtest.WantDrained(t, in)
			out := streamtest.OpenOutput(t, s, map[int]abs.TaskID{0: "t"})
			send := func(n uint64, want error) {
				t.Helper()
				if err := streamtest.SendOne(t, out, 0, numbered(n)); !errors.Is(err, want) {
					t.Fatalf("frame %d: got %v, want %v", n, err, want)
				}
				if want == nil {
					streamtest.WantFrame(t, in, 0, numbered(n))
				}
			}
			for n := range uint64(3) {
				send(n+1, nil)
			}
			send(4, ErrFull)
			in.Grant(dataflow.Grant{Channel: 0, Next: 1})
			send(4, ErrFull)
			in.Grant(dataflow.Grant{Channel: 0, Next: 3})
			send(4, nil)
			send(5, nil)
			send(6, ErrFull)
			in.Grant(dataflow.Grant{Channel: 0, Next: 6})
			in.Reread() // by a receiver that has gone back
			for n := uint64(3); n <= 5; n++ {
				streamtest.WantFrame(t, in, 0, numbered(n))
			}
			streamtest.WantDrained(t, in)
			send(6, ErrFull)
		})
	}
}

// What lies beyond a gap goes when its receiver has asked for what is before it again: it comes once more.
func TestFramesBeyondAGapMakeRoom(t *testing.T) {
	s := open(Options{ChannelFrames: 3})
	in := streamtest.OpenInput(t, s, "t", 0)
	streamtest.WantDrained(t, in)
	out := streamtest.OpenOutput(t, s, map[int]abs.TaskID{0: "t"})
	send := func(n uint64, want error) {
		t.Helper()
		if err := streamtest.SendOne(t, out, 0, numbered(n)); !errors.Is(err, want) {
			t.Fatalf("frame %d: got %v, want %v", n, err, want)
		}
	}
	for n := uint64(2); n <= 4; n++ {
		send(n, nil)
		streamtest.WantFrame(t, in, 0, numbered(n))
	}
	in.Grant(dataflow.Grant{Channel: 0, Next: 1})
	send(1, ErrFull)
	in.Grant(dataflow.Grant{Channel: 0, Next: 1, Rewind: true})
	for n := uint64(1); n <= 3; n++ {
		send(n, nil)
		streamtest.WantFrame(t, in, 0, numbered(n))
	}
	send(4, ErrFull) // these answer it
	in.Reread()
	for n := uint64(1); n <= 3; n++ {
		streamtest.WantFrame(t, in, 0, numbered(n))
	}
	streamtest.WantDrained(t, in)
	send(4, ErrFull)
}

// A full stream makes as much room as is worth it, and keeps the rest for a receiver that is started anew.
func TestLittleGoesAtATime(t *testing.T) {
	s := open(Options{Bytes: 16 * len(numbered(1))})
	in := streamtest.OpenInput(t, s, "t", 0)
	streamtest.WantDrained(t, in)
	out := streamtest.OpenOutput(t, s, map[int]abs.TaskID{0: "t"})
	for n := uint64(1); n <= 17; n++ {
		if n == 17 {
			in.Grant(dataflow.Grant{Channel: 0, Next: abs.Seq(n)})
		}
		if err := streamtest.SendOne(t, out, 0, numbered(n)); err != nil {
			t.Fatal(n, err)
		}
		streamtest.WantFrame(t, in, 0, numbered(n))
	}
	in.Reread()
	for n := uint64(3); n <= 17; n++ {
		streamtest.WantFrame(t, in, 0, numbered(n))
	}
	streamtest.WantDrained(t, in)
}

// numbered is a frame of one record.
func numbered(n uint64) string {
	payload := frame.AppendRecord(nil, frame.Record{Value: make([]byte, 100)})
	return string(frame.Append(nil, frame.Header{Kind: frame.Data, Generation: 1, Count: 1, First: n, After: frame.Sum(0).Add(payload)}, payload))
}

// A full stream takes what a channel may have in any case.
func TestEachChannelHasRoom(t *testing.T) {
	for name, opt := range map[string]Options{"of a stream": {Bytes: 20, Least: 10}, "of all streams": {Total: 20, Least: 10}} {
		t.Run(name, func(t *testing.T) {
			s := open(opt)
			in := streamtest.OpenInput(t, s, "t", 0, 1)
			streamtest.WantDrained(t, in)
			out := streamtest.OpenOutput(t, s, map[int]abs.TaskID{0: "t", 1: "t"})
			for _, c := range []struct {
				channel int
				bytes   string
				want    error
			}{{0, "12345678901234567890", nil}, {0, "1", ErrFull}, {1, "12345", nil}, {1, "123456", ErrFull}, {1, "12345", nil}, {1, "1", ErrFull}} {
				if err := streamtest.SendOne(t, out, c.channel, c.bytes); !errors.Is(err, c.want) {
					t.Fatalf("%d bytes of channel %d: got %v, want %v", len(c.bytes), c.channel, err, c.want)
				}
			}
		})
	}
}

// One stream's consumed frames make room for others.
func TestConsumedFramesMakeRoomForOthers(t *testing.T) {
	one := numbered(1)
	s := open(Options{Total: len(one)})
	in, other := streamtest.OpenInput(t, s, "t", 0), streamtest.OpenInput(t, s, "u", 1)
	streamtest.WantDrained(t, in)
	streamtest.WantDrained(t, other)
	out := streamtest.OpenOutput(t, s, map[int]abs.TaskID{0: "t", 1: "u"})
	if err := streamtest.SendOne(t, out, 0, one); err != nil {
		t.Fatal(err)
	}
	streamtest.WantFrame(t, in, 0, one)
	if err := streamtest.SendOne(t, out, 1, one); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want %v", err, ErrFull)
	}
	in.Grant(dataflow.Grant{Channel: 0, Next: 2})
	if err := streamtest.SendOne(t, out, 1, one); err != nil {
		t.Fatal(err)
	}
	streamtest.WantFrame(t, other, 1, one)
}

// Whatever the order in which ends are closed, nothing is kept when the last one is, and a stream that is opened
// later begins empty.
func TestStreamEndsWithItsLastEnd(t *testing.T) {
	s := open(Options{})
	to := map[int]abs.TaskID{0: "t", 1: "u"}
	for _, inputFirst := range []bool{true, false} {
		in := streamtest.OpenInput(t, s, "t", 0)
		out := streamtest.OpenOutput(t, s, to)
		streamtest.WantDrained(t, in)
		if err := streamtest.SendOne(t, out, 0, "one"); err != nil {
			t.Fatal(err)
		}
		d := streamtest.WantFrame(t, in, 0, "one")
		if inputFirst {
			in.Close()
			out.Close()
		} else {
			out.Close()
			in.Close()
		}
		if len(s.streams) > 0 {
			t.Fatalf("%d streams are left", len(s.streams))
		}
		again := streamtest.OpenInput(t, s, "t", 0)
		streamtest.WantDrained(t, again)
		out = streamtest.OpenOutput(t, s, to)
		if err := streamtest.SendOne(t, out, 0, "two"); err != nil {
			t.Fatal(err)
		}
		streamtest.WantFrame(t, again, 0, "two")
		if err := in.Purge(t.Context(), 0, d.Seq); err != nil { // late, and of the old one
			t.Fatal(err)
		}
		again.Reread()
		streamtest.WantFrame(t, again, 0, "two")
		again.Close()
		out.Close()
	}
}

func TestOneInputAtATime(t *testing.T) {
	s := open(Options{})
	in := streamtest.OpenInput(t, s, "t", 0)
	if other, err := s.OpenInput(context.Background(), "job", 1, "t", []int{0}); err == nil {
		other.Close()
		t.Fatal("a second input was opened")
	}
	next, err := s.OpenInput(context.Background(), "job", 2, "t", []int{0}) // another generation's
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
	in.Close()
	streamtest.WantDrained(t, streamtest.OpenInput(t, s, "t", 0))
}

// An entry that is used again carries nothing over, and a channel whose frames stay does not keep those of others.
func TestPurgedFramesAreFreed(t *testing.T) {
	s := open(Options{})
	in := streamtest.OpenInput(t, s, "t", 0, 1)
	streamtest.WantDrained(t, in)
	out := streamtest.OpenOutput(t, s, map[int]abs.TaskID{0: "t", 1: "t"})
	if err := streamtest.SendOne(t, out, 1, "stays"); err != nil {
		t.Fatal(err)
	}
	streamtest.WantFrame(t, in, 1, "stays")
	st := s.hold(name{"job", 1, "t"})
	defer s.drop(st)
	freed := make(chan struct{}, 1)
	long := func(n int) string { return streamtest.Name(n) + strings.Repeat(".", 64) } // tiny objects share memory with others
	for n := range 3 * maxSpare {
		if err := streamtest.SendOne(t, out, 0, long(n)); err != nil {
			t.Fatal(err)
		}
		d := streamtest.WantFrame(t, in, 0, long(n))
		if n == 0 {
			runtime.AddCleanup(&d.Frame[0], func(c chan struct{}) { c <- struct{}{} }, freed)
		}
		if n%(2*maxSpare) == 2*maxSpare-1 {
			if err := in.Purge(t.Context(), 0, d.Seq); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := st.lanes[0].count; got != maxSpare {
		t.Errorf("%d frames, want %d", got, maxSpare)
	}
	if st.spare > maxSpare {
		t.Errorf("%d entries are kept", st.spare)
	}
	for end := time.After(streamtest.Patience); ; {
		runtime.GC()
		select {
		case <-freed:
		case <-end:
			t.Fatal("a purged frame is still held")
		case <-time.After(10 * time.Millisecond):
			continue
		}
		break
	}
	in.Reread()
	streamtest.WantFrame(t, in, 1, "stays")
	for n := 2 * maxSpare; n < 3*maxSpare; n++ {
		streamtest.WantFrame(t, in, 0, long(n))
	}
	streamtest.WantDrained(t, in)
}

// BenchmarkHop keeps 16 frames under way on one channel, and purges as checkpoints do.
func BenchmarkHop(b *testing.B) {
	s := open(Options{})
	in, out := streamtest.OpenInput(b, s, "t", 0), streamtest.OpenOutput(b, s, map[int]abs.TaskID{0: "t"})
	streamtest.WantDrained(b, in)
	data := make([]byte, frame.TargetSize)
	credit := make(chan struct{}, 16)
	b.SetBytes(frame.TargetSize)
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		done := func(err error) {
			if err != nil {
				b.Error(err)
			}
		}
		for range b.N {
			credit <- struct{}{}
			out.Send(0, data, done)
		}
	}()
	for n := range b.N {
		d := <-in.Deliveries()
		<-credit
		if n%512 == 511 {
			if err := in.Purge(context.Background(), 0, d.Seq); err != nil {
				b.Fatal(err)
			}
		}
	}
}
