package nats

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// TestMend: a server that has stopped writing is started anew within the process: at the same addresses, with what it
// had; clients of all kinds come back by themselves, those within the process, too. One that writes is left alone.
func TestMend(t *testing.T) {
	opt := ServerOptions{
		Dir: t.TempDir(), Listen: "127.0.0.1:0", MQTTListen: "127.0.0.1:0", LeafListen: "127.0.0.1:0", Domain: "hub",
		Users: []User{{"agent", "secret"}},
	}
	s := startServer(t, opt)
	addresses := func() string { return fmt.Sprint(s.ClientURL(), s.MQTTAddr(), s.LeafAddr()) }
	at := addresses()
	in, out := connect(t, ConnectOptions{Server: s}), connect(t, ConnectOptions{URL: s.ClientURL(), User: "agent", Password: "secret"})
	before := ensure(t, in)
	put(t, out.KV(Jobs), "a", "1")
	if mended, err := s.Mend(); mended || err != nil || s.StoreError() != nil {
		t.Fatalf("a server that writes was mended: %v, %v", mended, err)
	}
	_, logs := s.running()
	logs.Errorf("Filestore [KV_x] Critical write error: write 1.blk: no space left on device")
	if err := s.StoreError(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("it says %v", err)
	}
	// No room: it is left as it is, and answers.
	probe := filepath.Join(opt.Dir, "room.try")
	if err := os.Mkdir(probe, 0o700); err != nil {
		t.Fatal(err)
	}
	if mended, err := s.Mend(); mended || err == nil {
		t.Fatalf("it was mended without room: %v, %v", mended, err)
	}
	ensure(t, in)
	if err := os.Remove(probe); err != nil {
		t.Fatal(err)
	}
	if mended, err := s.Mend(); !mended || err != nil {
		t.Fatalf("it was not mended: %v, %v", mended, err)
	}
	if _, err := os.Lstat(probe); !os.IsNotExist(err) {
		t.Errorf("the probe is still there: %v", err)
	}
	if s.StoreError() != nil || addresses() != at || len(s.SetAside()) != 0 {
		t.Errorf("error %v, at %s, was at %s, set aside %v", s.StoreError(), addresses(), at, s.SetAside())
	}
	for _, c := range []*Conn{in, out} {
		if got := ensure(t, c); got.ID != before.ID || len(got.Created) != 0 {
			t.Errorf("got %+v, want %+v", got, before)
		}
		if e, err := c.KV(Jobs).Get(testContext(t), "a"); err != nil || string(e.Value) != "1" {
			t.Errorf("got %s, %v", e.Value, err)
		}
	}
	if c, err := mqttConnect(s, "c", "", ""); err != nil {
		t.Error(err)
	} else {
		c.Disconnect(0)
	}
	if _, err := nats.Connect(s.ClientURL()); err == nil {
		t.Error("it takes clients without a password")
	}
	// JetStream turned off is mended likewise; and one that was stopped for good stays so.
	srv, _ := s.running()
	if err := srv.DisableJetStream(); err != nil {
		t.Fatal(err)
	}
	if mended, err := s.Mend(); !mended || err != nil {
		t.Fatalf("it was not mended: %v, %v", mended, err)
	}
	if got := ensure(t, in); got.ID != before.ID {
		t.Errorf("got %+v, want %+v", got, before)
	}
	s.Shutdown()
	if mended, err := s.Mend(); mended || err != nil {
		t.Errorf("it was mended after its end: %v, %v", mended, err)
	}
}

// TestMendTriesAgain: a server that was stopped and does not start, since its address has been taken, says so and is
// started when the address is free.
func TestMendTriesAgain(t *testing.T) {
	s := startServer(t, ServerOptions{Dir: t.TempDir(), Listen: unused(t)})
	c := connect(t, ConnectOptions{Server: s})
	before := ensure(t, c)
	srv, logs := s.running()
	logs.Errorf("JetStream stream critical write error: no space left on device")
	srv.Shutdown()
	srv.WaitForShutdown()
	l, err := net.Listen("tcp", s.ClientAddr())
	if err != nil {
		t.Fatal(err)
	}
	mended, err := s.Mend()
	if mended || !errors.Is(err, ErrNotStarted) || !errors.Is(s.StoreError(), ErrNotStarted) || !strings.Contains(s.StoreError().Error(), s.ClientAddr()) {
		t.Fatalf("mended: %v, %v; it says %v", mended, err, s.StoreError())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if mended, err := s.Mend(); !mended || err != nil {
		t.Fatalf("it was not mended: %v, %v", mended, err)
	}
	if got := ensure(t, c); got.ID != before.ID {
		t.Errorf("got %+v, want %+v", got, before)
	}
}

// TestMendWhenThereIsMoreRoom: a server that was started on a nearly full disk allows itself next to nothing. It says
// so as soon as it refuses something, is started anew when the disk has room, and not for a limit that was asked for.
func TestMendWhenThereIsMoreRoom(t *testing.T) {
	opt := ServerOptions{Dir: t.TempDir(), MaxStore: 100}
	s := startServer(t, opt)
	c := connect(t, ConnectOptions{Server: s})
	ctx := testContext(t)
	if err := c.WaitConnected(ctx); err != nil {
		t.Fatal(err)
	}
	for n := 0; s.StoreError() == nil; n++ {
		_, err := c.Ensure(ctx)
		if err == nil {
			_, err = c.KV(Jobs).Create(ctx, fmt.Sprint(n), []byte(strings.Repeat("x", 50)))
		}
		if n > 100 {
			t.Fatalf("it takes more than it may: %v", err)
		}
	}
	if err := s.StoreError(); err == nil || !strings.Contains(err.Error(), "room for when it was started") {
		t.Fatalf("it says %v", err)
	}
	if mended, err := s.Mend(); mended || err == nil || !strings.Contains(err.Error(), "make room") {
		t.Fatalf("mended: %v, %v", mended, err)
	}
	s.opt.MaxStore = 0
	if mended, err := s.Mend(); !mended || err != nil {
		t.Fatalf("it was not mended: %v, %v", mended, err)
	}
	ensure(t, c)
	put(t, c.KV(Jobs), "b", "1")
	if err := s.StoreError(); err != nil {
		t.Error(err)
	}
}
