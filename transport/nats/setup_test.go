package nats

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/weir-stream/weir/dataflow/streamtest"
)

// patience bounds waits that must end by themselves; it is never what a test measures.
const patience = streamtest.Patience

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

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
	opt := ServerOptions{Dir: t.TempDir(), Name: "test", Listen: unused(t)}
	return &restartable{t: t, opt: opt, Server: startServer(t, opt)}
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

// What tests of streams have in common, wherever their frames go.
var (
	receive        = streamtest.Receive
	wantDrained    = streamtest.WantDrained
	wantReset      = streamtest.WantReset
	wantFrame      = streamtest.WantFrame
	sendOne        = streamtest.SendOne
	sendUntilTaken = streamtest.SendUntilTaken
	openInput      = streamtest.OpenInput
	openOutput     = streamtest.OpenOutput
	frameName      = streamtest.Name
	testContext    = streamtest.Context
)

// unused returns an address at which nobody listens, and which is given to nobody who does not ask for it: it lies below
// those that operating systems choose for listeners and connections.
func unused(t testing.TB) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 20000+rand.IntN(12000)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
}

func streamDir(dir, stream string) string {
	return filepath.Join(storeDir(dir), "$G", "streams", stream)
}
