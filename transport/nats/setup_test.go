package nats

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// patience bounds waits that must end by themselves; it is never what a test measures.
const patience = 5 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func startServer(t testing.TB, opt ServerOptions) *Server {
	t.Helper()
	if opt.Dir == "" {
		opt.Dir = t.TempDir()
	}
	if opt.Name == "" {
		opt.Name = "test"
	}
	opt.Log = quiet()
	s, err := StartServer(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

func connect(t testing.TB, opt ConnectOptions) *Conn {
	t.Helper()
	opt.Log = quiet()
	c, err := Connect(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// inProcess starts a server without listeners and connects to it, with the control plane made.
func inProcess(t testing.TB) *Conn {
	t.Helper()
	c := connect(t, ConnectOptions{Server: startServer(t, ServerOptions{})})
	ensure(t, c)
	return c
}

func ensure(t testing.TB, c *Conn) Cluster {
	t.Helper()
	ctx := testContext(t)
	if err := c.WaitConnected(ctx); err != nil {
		t.Fatal(err)
	}
	cl, err := c.Ensure(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

// restartable is a server with a client listener that comes back at the same address.
type restartable struct {
	t   testing.TB
	opt ServerOptions
	*Server
}

func newRestartable(t testing.TB) *restartable {
	t.Helper()
	opt := ServerOptions{Dir: t.TempDir(), Name: "test", Listen: "127.0.0.1:0"}
	r := &restartable{t: t, opt: opt, Server: startServer(t, opt)}
	r.opt.Listen = r.ClientAddr()
	return r
}

// restart stops the server and starts it again, on an emptied directory if empty.
func (r *restartable) restart(empty bool) {
	r.t.Helper()
	r.Shutdown()
	if empty {
		if err := os.RemoveAll(storeDir(r.opt.Dir)); err != nil {
			r.t.Fatal(err)
		}
	}
	r.Server = startServer(r.t, r.opt)
}

// receive returns the next delivery.
func receive(t testing.TB, in dataflow.Input) dataflow.Delivery {
	t.Helper()
	select {
	case d, ok := <-in.Deliveries():
		if !ok {
			t.Fatal("the input is closed")
		}
		return d
	case <-time.After(patience):
		t.Fatal("no delivery")
	}
	panic("not reached")
}

func wantDrained(t testing.TB, in dataflow.Input) {
	t.Helper()
	if d := receive(t, in); !d.Drained {
		t.Fatalf("got %+v, want Drained", d)
	}
}

func wantReset(t testing.TB, in dataflow.Input) {
	t.Helper()
	if d := receive(t, in); !d.Reset {
		t.Fatalf("got %+v, want Reset", d)
	}
}

func wantFrame(t testing.TB, in dataflow.Input, channel int, content string) dataflow.Delivery {
	t.Helper()
	d := receive(t, in)
	if d.Drained || d.Reset || d.Channel != channel || string(d.Frame) != content {
		t.Fatalf("got %+v (%q), want %q on channel %d", d, d.Frame, content, channel)
	}
	return d
}

// sendOne sends one frame and returns what done got.
func sendOne(t testing.TB, out dataflow.Output, channel int, content string) error {
	t.Helper()
	done := make(chan error, 1)
	out.Send(channel, []byte(content), func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("done was not called")
	}
	panic("not reached")
}

// sendUntilTaken repeats a frame until the stream takes it, as a task does.
func sendUntilTaken(t testing.TB, out dataflow.Output, channel int, content string) {
	t.Helper()
	ctx := testContext(t)
	for n := 0; ; n++ {
		err := sendOne(t, out, channel, content)
		if err == nil {
			return
		}
		if sleep(ctx, backoff(min(n, 3))) != nil {
			t.Fatalf("frame is not taken: %v", err)
		}
	}
}

func openInput(t testing.TB, s *Streams, task abs.TaskID, channels ...int) dataflow.Input {
	t.Helper()
	in, err := s.OpenInput(context.Background(), "job", 1, task, channels)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	return in
}

func openOutput(t testing.TB, s *Streams, to map[int]abs.TaskID) dataflow.Output {
	t.Helper()
	out, err := s.OpenOutput(context.Background(), "job", 1, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.Close)
	return out
}

func frameName(n int) string { return "frame " + strconv.Itoa(n) }

// unused returns an address at which nobody listens.
func unused(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func streamDir(dir, stream string) string {
	return filepath.Join(storeDir(dir), "$G", "streams", stream)
}
