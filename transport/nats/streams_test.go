package nats

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/streamtest"
)

func TestContract(t *testing.T) {
	streamtest.Run(t, streamtest.Kind{
		Open: func(t testing.TB, channelFrames int) dataflow.Streams {
			return inProcess(t).Streams(StreamOptions{ChannelFrames: int64(channelFrames)})
		},
		Full: ErrFull, Unavailable: ErrUnavailable, Lost: ErrLost, Ended: ErrClosed,
	})
}

// One pull at a time is under way: more would bring more than a reader that is slow has room for.
func TestPullsFollowEachOther(t *testing.T) {
	conn := inProcess(t)
	s := conn.Streams(StreamOptions{})
	in := openInput(t, s, "t", 0)
	wantDrained(t, in)
	out := openOutput(t, s, map[int]abs.TaskID{0: "t"})
	const frames = 10 * pullBatch
	for n := range frames {
		if err := sendOne(t, out, 0, frameName(n)); err != nil {
			t.Fatal(err)
		}
		wantFrame(t, in, 0, frameName(n))
	}
	stream := conn.names.stream("job", 1, "t")
	pulls, err := conn.data.nc.SubscribeSync(conn.data.api + "CONSUMER.MSG.NEXT." + stream + ".>")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.data.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	r, err := conn.openReader(testContext(t), conn.data, source{stream: stream})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for n := 0; ; n++ {
		m, err := r.next(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		if !m.caughtUp {
			continue
		}
		if n != frames {
			t.Fatalf("%d frames came of %d", n, frames)
		}
		break
	}
	if err := conn.data.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	own := 0
	for {
		m, err := pulls.NextMsg(time.Millisecond)
		if err != nil {
			break
		}
		if strings.HasSuffix(m.Subject, r.consumer) {
			own++
		}
	}
	if most := frames/pullBatch + 1; own < frames/pullBatch || own > most {
		t.Errorf("%d pulls for %d frames, want at most %d", own, frames, most)
	}
}

// A network that hangs must not hang the task: what is too much is refused, and all is told in the end.
func TestTooManySendsAreRefused(t *testing.T) {
	proxy := newProxy(t, startServer(t, ServerOptions{Listen: "127.0.0.1:0"}).ClientAddr())
	s := connect(t, ConnectOptions{URL: "nats://" + proxy.addr()}).Streams(StreamOptions{})
	in := openInput(t, s, "t", 0)
	wantDrained(t, in)
	out := openOutput(t, s, map[int]abs.TaskID{0: "t"})
	const frames = 3 * maxSends
	results := make(chan error, frames)
	proxy.gate.Lock()
	for range frames { // far more bytes than sockets hold
		out.Send(0, make([]byte, 256<<10), func(err error) { results <- err })
	}
	busy := 0
	for range frames - maxSends {
		if err := <-results; !errors.Is(err, ErrBusy) && !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got %v", err)
		} else if errors.Is(err, ErrBusy) {
			busy++
		}
	}
	if busy == 0 {
		t.Error("no frame was refused")
	}
	proxy.gate.Unlock()
	for range maxSends {
		<-results
	}
	select {
	case err := <-results:
		t.Errorf("done was called once more: %v", err)
	default:
	}
}

func TestLostStreamIsMadeAgain(t *testing.T) {
	c := inProcess(t)
	s := c.Streams(StreamOptions{})
	in := openInput(t, s, "t", 0)
	wantDrained(t, in)
	out := openOutput(t, s, map[int]abs.TaskID{0: "t"})
	sendUntilTaken(t, out, 0, "one")
	old := wantFrame(t, in, 0, "one")
	if err := s.Delete(testContext(t), "job", 1); err != nil {
		t.Fatal(err)
	}
	wantReset(t, in)
	wantDrained(t, in)
	sendUntilTaken(t, out, 0, "two")
	d := wantFrame(t, in, 0, "two")
	if d.Seq <= old.Seq {
		t.Errorf("frame at %d of the new stream, %d of the old one: a late purge would remove it", d.Seq, old.Seq)
	}
	if err := in.Purge(testContext(t), 0, old.Seq); err != nil {
		t.Fatal(err)
	}
	in.Reread()
	wantFrame(t, in, 0, "two")
	wantDrained(t, in)
}

// Another one makes the stream again before its reader notices.
func TestReplacedStreamIsNoticed(t *testing.T) {
	c := inProcess(t)
	s := c.Streams(StreamOptions{})
	in := openInput(t, s, "t", 0)
	wantDrained(t, in)
	out := openOutput(t, s, map[int]abs.TaskID{0: "t"})
	sendUntilTaken(t, out, 0, "one")
	wantFrame(t, in, 0, "one")
	ctx := testContext(t)
	if err := s.Delete(ctx, "job", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.ensure(ctx, "job", 1, "t"); err != nil {
		t.Fatal(err)
	}
	sendUntilTaken(t, out, 0, "two")
	wantReset(t, in)
	for d := receive(t, in); !d.Drained; d = receive(t, in) {
		if string(d.Frame) != "two" {
			t.Fatalf("got %+v", d)
		}
	}
}

func TestDeletedConsumerIsMadeAgain(t *testing.T) {
	c := inProcess(t)
	s := c.Streams(StreamOptions{})
	in := openInput(t, s, "t", 0)
	wantDrained(t, in)
	out := openOutput(t, s, map[int]abs.TaskID{0: "t"})
	sendUntilTaken(t, out, 0, "one")
	wantFrame(t, in, 0, "one")
	ctx := testContext(t)
	stream := c.names.stream("job", 1, "t")
	st, err := c.data.js.Stream(ctx, stream)
	if err != nil {
		t.Fatal(err)
	}
	for name := range st.ConsumerNames(ctx).Name() {
		if err := st.DeleteConsumer(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	wantReset(t, in)
	wantFrame(t, in, 0, "one")
	wantDrained(t, in)
	sendUntilTaken(t, out, 0, "two")
	wantFrame(t, in, 0, "two")
}

func TestServerRestartsUnderStreams(t *testing.T) {
	for _, test := range []struct {
		name  string
		file  bool
		empty bool
		kept  bool // the frames are still there
	}{
		{name: "memory", kept: false},
		{name: "file", file: true, kept: true},
		{name: "file, emptied", file: true, empty: true, kept: false},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := newRestartable(t)
			s := connect(t, ConnectOptions{URL: server.ClientURL()}).Streams(StreamOptions{File: test.file})
			in := openInput(t, s, "t", 0)
			wantDrained(t, in)
			out := openOutput(t, s, map[int]abs.TaskID{0: "t"})
			sendUntilTaken(t, out, 0, "one")
			wantFrame(t, in, 0, "one")
			server.restart(test.empty)
			wantReset(t, in)
			if test.kept {
				wantFrame(t, in, 0, "one")
			}
			wantDrained(t, in)
			sendUntilTaken(t, out, 0, "two")
			for d := receive(t, in); string(d.Frame) != "two"; d = receive(t, in) {
				t.Logf("before it: %+v", d)
			}
		})
	}
}

// A cut connection, with the server and its streams unharmed, is no loss: the reading goes on where
// it was, without Reset and without a frame twice.
func TestCutConnectionLosesNothing(t *testing.T) {
	server := startServer(t, ServerOptions{Listen: "127.0.0.1:0"})
	proxy := newProxy(t, server.ClientAddr())
	s := connect(t, ConnectOptions{URL: "nats://" + proxy.addr()}).Streams(StreamOptions{})
	direct := connect(t, ConnectOptions{URL: server.ClientURL()}).Streams(StreamOptions{})
	in := openInput(t, s, "t", 0)
	wantDrained(t, in)
	out := openOutput(t, direct, map[int]abs.TaskID{0: "t"})
	for n := range 30 {
		if n%10 == 5 {
			proxy.cut()
		}
		sendUntilTaken(t, out, 0, frameName(n))
	}
	for n := range 30 {
		wantFrame(t, in, 0, frameName(n))
	}
	cut := openOutput(t, s, map[int]abs.TaskID{0: "t"})
	proxy.cut()
	sendUntilTaken(t, cut, 0, "from the other side")
	wantFrame(t, in, 0, "from the other side")
}

func TestStreamsWithoutServer(t *testing.T) {
	addr := unused(t)
	c := connect(t, ConnectOptions{URL: "nats://" + addr})
	if s := c.State(); s.Connected {
		t.Fatalf("%+v", s)
	}
	s := c.Streams(StreamOptions{})
	in := openInput(t, s, "t", 0)
	out := openOutput(t, s, map[int]abs.TaskID{0: "t"})
	if err := sendOne(t, out, 0, "lost"); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v, want ErrUnavailable", err)
	}
	if _, err := c.KV(Jobs).Get(testContext(t), "x"); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v, want ErrUnavailable", err)
	}
	in.Grant(dataflow.Grant{})
	out.Ask()
	in.Reread()
	startServer(t, ServerOptions{Listen: addr})
	wantDrained(t, in)
	sendUntilTaken(t, out, 0, "one")
	wantFrame(t, in, 0, "one")
}

func TestListAndDeleteStreams(t *testing.T) {
	s := inProcess(t).Streams(StreamOptions{})
	ctx := testContext(t)
	long := abs.TaskID(fmt.Sprintf("%0300d", 7))
	for _, x := range []struct {
		job  string
		gen  abs.Generation
		task abs.TaskID
	}{{"a b", 1, "x@g.1"}, {"a b", 2, long}, {"a", 1, "b/0"}} {
		if err := s.ensure(ctx, x.job, x.gen, x.task); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(ctx, "a b", 1); err != nil {
		t.Fatal(err)
	}
	all, err := s.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]abs.TaskID{}
	for _, st := range all {
		got[fmt.Sprintf("%s %d", st.Job, st.Generation)] = st.Task
	}
	if len(got) != 2 || got["a b 2"] != long || got["a 1"] != "b/0" {
		t.Errorf("got %v", got)
	}
	if err := s.DeleteStream(ctx, "no such stream"); err == nil {
		t.Error("a name with spaces was taken")
	}
	if err := s.DeleteStream(ctx, "none"); err != nil {
		t.Error(err)
	}
}
