// Package streamtest checks that an implementation of [dataflow.Streams] keeps its contract, and has what such tests
// need beside it.
package streamtest

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// Patience bounds waits that must end by themselves; it is never what a test measures.
const Patience = 5 * time.Minute

// Kind is an implementation. Its errors are those that done and Purge get.
type Kind struct {
	// Open returns streams that take so many frames of a channel; 0: as many as they like.
	Open                           func(t testing.TB, channelFrames int) dataflow.Streams
	Full, Unavailable, Lost, Ended error
}

// Run checks an implementation.
func Run(t *testing.T, k Kind) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, k Kind)
	}{
		{"frames arrive in order of each sender", framesArriveInOrder},
		{"a frame is neither end's buffer", framesAreCopied},
		{"reread starts again from the beginning", rereadStartsAgain},
		{"rereads among frames that come", rereadsAmongFrames},
		{"purge takes one channel up to a frame", purgeTakesOneChannel},
		{"drained when the end has been purged", drainedWhenTheEndIsPurged},
		{"a full channel refuses and others go on", fullChannelRefuses},
		{"send before the stream exists", sendBeforeTheStream},
		{"the stream outlives its input", streamOutlivesInput},
		{"grants and asks", grantsAndAsks},
		{"closed ends", closedEnds},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, k) })
	}
}

func framesArriveInOrder(t *testing.T, k Kind) {
	s := k.Open(t, 0)
	const senders, frames = 4, 200
	to := map[int]abs.TaskID{}
	var channels []int
	for c := range senders {
		to[c] = "sum/0"
		channels = append(channels, c)
	}
	in := OpenInput(t, s, "sum/0", channels...)
	WantDrained(t, in) // of an empty stream, at once
	var wg sync.WaitGroup
	for c := range senders {
		out := OpenOutput(t, s, map[int]abs.TaskID{c: to[c]})
		wg.Go(func() {
			var taken sync.WaitGroup
			for n := range frames {
				taken.Add(1)
				out.Send(c, []byte(Name(n)), func(err error) {
					if err != nil {
						t.Errorf("frame %d of channel %d: %v", n, c, err)
					}
					taken.Done()
				})
				if n%50 == 49 {
					taken.Wait()
				}
			}
		})
	}
	next := make([]int, senders)
	var lastSeq uint64
	for range senders * frames {
		d := Receive(t, in)
		if string(d.Frame) != Name(next[d.Channel]) || d.Seq <= lastSeq {
			t.Fatalf("channel %d: got %q at %d after %d, want %q", d.Channel, d.Frame, d.Seq, lastSeq, Name(next[d.Channel]))
		}
		next[d.Channel]++
		lastSeq = d.Seq
	}
	wg.Wait()
}

// The sender's buffer is its own again after done, whatever becomes of the frame.
func framesAreCopied(t *testing.T, k Kind) {
	s := k.Open(t, 0)
	in := OpenInput(t, s, "t", 0)
	WantDrained(t, in)
	out := OpenOutput(t, s, map[int]abs.TaskID{0: "t"})
	buf := make([]byte, 0, 64)
	for n := range 20 {
		buf = append(buf[:0], Name(n)...)
		done := make(chan error, 1)
		out.Send(0, buf, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		clear(buf)
	}
	for range 2 {
		for n := range 20 {
			WantFrame(t, in, 0, Name(n))
		}
		in.Reread()
	}
}

func rereadStartsAgain(t *testing.T, k Kind) {
	s := k.Open(t, 0)
	in := OpenInput(t, s, "t", 0, 1)
	WantDrained(t, in)
	out := OpenOutput(t, s, map[int]abs.TaskID{0: "t", 1: "t"})
	for n := range 20 {
		if err := SendOne(t, out, n%2, Name(n)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // what lies in the queue does not come again after Reread
		WantFrame(t, in, 0, Name(0))
		WantFrame(t, in, 1, Name(1))
		in.Reread()
	}
	for n := range 20 {
		WantFrame(t, in, n%2, Name(n))
	}
	WantDrained(t, in)
	if err := SendOne(t, out, 0, "after"); err != nil {
		t.Fatal(err)
	}
	WantFrame(t, in, 0, "after")
}

// Each reading delivers every frame once and in order, and Drained once, whatever comes while it begins.
func rereadsAmongFrames(t *testing.T, k Kind) {
	s := k.Open(t, 0)
	in := OpenInput(t, s, "t", 0)
	WantDrained(t, in)
	out := OpenOutput(t, s, map[int]abs.TaskID{0: "t"})
	const frames = 3000
	var sender sync.WaitGroup
	defer sender.Wait()
	sender.Go(func() {
		for n := range frames {
			done := make(chan error, 1)
			out.Send(0, []byte(Name(n)), func(err error) { done <- err })
			if err := <-done; err != nil {
				t.Errorf("frame %d: %v", n, err)
			}
		}
	})
	for reading := 1; ; reading++ {
		drained := reading == 1
		for next := 0; next < frames || !drained; {
			d := Receive(t, in)
			switch {
			case d.Drained && drained:
				t.Fatalf("reading %d: drained again", reading)
			case d.Drained:
				drained = true
			case string(d.Frame) != Name(next):
				t.Fatalf("reading %d: got %q, want %q", reading, d.Frame, Name(next))
			default:
				next++
			}
			if next == reading*37 && reading < 20 {
				break
			}
		}
		if reading == 20 {
			return
		}
		in.Reread()
	}
}

func purgeTakesOneChannel(t *testing.T, k Kind) {
	s := k.Open(t, 0)
	in := OpenInput(t, s, "t", 0, 1)
	WantDrained(t, in)
	out := OpenOutput(t, s, map[int]abs.TaskID{0: "t", 1: "t"})
	var at uint64
	for n := range 6 {
		if err := SendOne(t, out, n%2, Name(n)); err != nil {
			t.Fatal(err)
		}
		if d := WantFrame(t, in, n%2, Name(n)); n == 2 {
			at = d.Seq
		}
	}
	ctx := Context(t)
	if err := in.Purge(ctx, 0, at); err != nil {
		t.Fatal(err)
	}
	if err := in.Purge(ctx, 0, at+100); !errors.Is(err, k.Lost) {
		t.Fatalf("purge beyond what was delivered: %v", err)
	}
	in.Reread()
	WantFrame(t, in, 1, Name(1))
	WantFrame(t, in, 1, Name(3))
	WantFrame(t, in, 0, Name(4))
	WantFrame(t, in, 1, Name(5))
	WantDrained(t, in)
}

// A stream whose last frames have been purged must still be found to be at its end.
func drainedWhenTheEndIsPurged(t *testing.T, k Kind) {
	s := k.Open(t, 0)
	in := OpenInput(t, s, "t", 0, 1)
	WantDrained(t, in)
	out := OpenOutput(t, s, map[int]abs.TaskID{0: "t", 1: "t"})
	var last dataflow.Delivery
	for n := range 4 {
		if err := SendOne(t, out, n/3, Name(n)); err != nil {
			t.Fatal(err)
		}
		last = WantFrame(t, in, n/3, Name(n))
	}
	if err := in.Purge(Context(t), 1, last.Seq); err != nil {
		t.Fatal(err)
	}
	in.Reread()
	for n := range 3 {
		WantFrame(t, in, 0, Name(n))
	}
	WantDrained(t, in)
	if err := in.Purge(Context(t), 0, last.Seq-1); err != nil { // now all
		t.Fatal(err)
	}
	in.Reread()
	WantDrained(t, in)
	if err := SendOne(t, out, 1, "after"); err != nil {
		t.Fatal(err)
	}
	WantFrame(t, in, 1, "after")
}

func fullChannelRefuses(t *testing.T, k Kind) {
	s := k.Open(t, 3)
	in := OpenInput(t, s, "t", 0, 1)
	WantDrained(t, in)
	out := OpenOutput(t, s, map[int]abs.TaskID{0: "t", 1: "t"})
	var last dataflow.Delivery
	for n := range 3 {
		if err := SendOne(t, out, 0, Name(n)); err != nil {
			t.Fatal(err)
		}
		last = WantFrame(t, in, 0, Name(n))
	}
	if err := SendOne(t, out, 0, "too many"); !errors.Is(err, k.Full) {
		t.Fatalf("got %v, want %v", err, k.Full)
	}
	if err := SendOne(t, out, 1, "other"); err != nil {
		t.Fatal(err)
	}
	WantFrame(t, in, 1, "other")
	if err := in.Purge(Context(t), 0, last.Seq-1); err != nil {
		t.Fatal(err)
	}
	if err := SendOne(t, out, 0, "again"); err != nil {
		t.Fatal(err)
	}
	WantFrame(t, in, 0, "again")
}

func sendBeforeTheStream(t *testing.T, k Kind) {
	s := k.Open(t, 0)
	out := OpenOutput(t, s, map[int]abs.TaskID{0: "t"})
	if err := SendOne(t, out, 0, "early"); !errors.Is(err, k.Unavailable) {
		t.Fatalf("got %v, want %v", err, k.Unavailable)
	}
	in := OpenInput(t, s, "t", 0)
	WantDrained(t, in)
	SendUntilTaken(t, out, 0, "now")
	WantFrame(t, in, 0, "now")
}

// A task that is started anew finds what it had not consumed, and what came meanwhile.
func streamOutlivesInput(t *testing.T, k Kind) {
	s := k.Open(t, 0)
	in := OpenInput(t, s, "t", 0)
	WantDrained(t, in)
	out := OpenOutput(t, s, map[int]abs.TaskID{0: "t"})
	var purged uint64
	for n := range 5 {
		if err := SendOne(t, out, 0, Name(n)); err != nil {
			t.Fatal(err)
		}
		if d := WantFrame(t, in, 0, Name(n)); n == 1 {
			purged = d.Seq
		}
	}
	if err := in.Purge(Context(t), 0, purged); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if err := SendOne(t, out, 0, Name(5)); err != nil {
		t.Fatal(err)
	}
	in = OpenInput(t, s, "t", 0)
	for n := 2; n <= 5; n++ {
		WantFrame(t, in, 0, Name(n))
	}
	WantDrained(t, in)
}

func grantsAndAsks(t *testing.T, k Kind) {
	s := k.Open(t, 0)
	in := OpenInput(t, s, "t", 3, 7)
	WantDrained(t, in)
	out := OpenOutput(t, s, map[int]abs.TaskID{3: "t", 7: "t"})
	out.Ask()
	select {
	case <-in.Asked():
	case <-time.After(Patience):
		t.Fatal("not asked")
	}
	want := dataflow.Grant{Channel: 3, Incarnation: 9, Next: 1000, Sum: 77, Window: 1 << 18, Rewind: true}
	for n := range 1000 { // only the newest of each channel counts
		g := want
		g.Next = abs.Seq(n + 1)
		in.Grant(g)
	}
	other := dataflow.Grant{Channel: 7, Next: 1}
	in.Grant(other)
	in.Grant(dataflow.Grant{Channel: 8}) // not ours
	newest := map[int]dataflow.Grant{}
	for deadline := time.After(Patience); newest[3] != want || newest[7] != other; {
		select {
		case g := <-out.Grants():
			if g.Channel == 3 && g.Next < newest[3].Next {
				t.Fatalf("grant up to %d after one up to %d", g.Next, newest[3].Next)
			}
			newest[g.Channel] = g
		case <-time.After(50 * time.Millisecond): // grants may be lost, and are repeated
			in.Grant(want)
			in.Grant(other)
		case <-deadline:
			t.Fatalf("got %+v", newest)
		}
	}
	if len(newest) != 2 {
		t.Errorf("got %+v", newest)
	}
}

func closedEnds(t *testing.T, k Kind) {
	s := k.Open(t, 0)
	in, err := s.OpenInput(context.Background(), "job", 1, "t", []int{0})
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	for range in.Deliveries() {
	}
	in.Reread() // must not hang
	in.Reread()
	in.Grant(dataflow.Grant{})
	out := OpenOutput(t, s, map[int]abs.TaskID{0: "t"})
	out.Close()
	if err := SendOne(t, out, 0, "late"); !errors.Is(err, k.Ended) {
		t.Errorf("got %v, want %v", err, k.Ended)
	}
	out.Ask()
}

// Context ends with the test, or when patience does.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Receive returns the next delivery.
func Receive(t testing.TB, in dataflow.Input) dataflow.Delivery {
	t.Helper()
	select {
	case d, ok := <-in.Deliveries():
		if !ok {
			t.Fatal("the input is closed")
		}
		return d
	case <-time.After(Patience):
		t.Fatal("no delivery")
	}
	panic("not reached")
}

// WantDrained takes the next delivery, which must say so.
func WantDrained(t testing.TB, in dataflow.Input) {
	t.Helper()
	if d := Receive(t, in); !d.Drained {
		t.Fatalf("got %+v, want Drained", d)
	}
}

// WantReset takes the next delivery, which must say so.
func WantReset(t testing.TB, in dataflow.Input) {
	t.Helper()
	if d := Receive(t, in); !d.Reset {
		t.Fatalf("got %+v, want Reset", d)
	}
}

// WantFrame takes the next delivery, which must be that frame.
func WantFrame(t testing.TB, in dataflow.Input, channel int, content string) dataflow.Delivery {
	t.Helper()
	d := Receive(t, in)
	if d.Drained || d.Reset || d.Channel != channel || string(d.Frame) != content {
		t.Fatalf("got %+v (%q), want %q on channel %d", d, d.Frame, content, channel)
	}
	return d
}

// SendOne sends one frame and returns what done got.
func SendOne(t testing.TB, out dataflow.Output, channel int, content string) error {
	t.Helper()
	done := make(chan error, 1)
	out.Send(channel, []byte(content), func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(Patience):
		t.Fatal("done was not called")
	}
	panic("not reached")
}

// SendUntilTaken repeats a frame until the stream takes it, as a task does.
func SendUntilTaken(t testing.TB, out dataflow.Output, channel int, content string) {
	t.Helper()
	ctx := Context(t)
	for {
		err := SendOne(t, out, channel, content)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("frame is not taken: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// OpenInput opens the input of a task of job "job" in its first generation, until the test ends.
func OpenInput(t testing.TB, s dataflow.Streams, task abs.TaskID, channels ...int) dataflow.Input {
	t.Helper()
	in, err := s.OpenInput(context.Background(), "job", 1, task, channels)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	return in
}

// OpenOutput opens an output of that job and generation, until the test ends.
func OpenOutput(t testing.TB, s dataflow.Streams, to map[int]abs.TaskID) dataflow.Output {
	t.Helper()
	out, err := s.OpenOutput(context.Background(), "job", 1, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.Close)
	return out
}

// Name is what a test calls its nth frame.
func Name(n int) string { return "frame " + strconv.Itoa(n) }
