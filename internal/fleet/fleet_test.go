package fleet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// This test's binary is the agent: `run` answers on --http that it is ready; what it does besides is
// said by BEHAVIOUR.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "run" {
		os.Exit(stand(os.Args[2:]))
	}
	if os.Getenv("BEHAVIOUR") == "parent" {
		os.Exit(parent())
	}
	os.Exit(m.Run())
}

func stand(args []string) int {
	flags := flag.NewFlagSet("run", flag.ExitOnError)
	data, name := flags.String("data", "", ""), flags.String("name", "", "")
	httpAt, natsAt, mqttAt := flags.String("http", "", ""), flags.String("nats-listen", "", ""), flags.String("mqtt-listen", "", "")
	nats, label := flags.String("nats", "", ""), flags.String("label", "", "")
	flags.Parse(args)
	fmt.Printf("data=%s name=%s nats-listen=%s mqtt-listen=%s nats=%s label=%s\n", *data, *name, *natsAt, *mqttAt, *nats, *label)
	if os.Getenv("BEHAVIOUR") == "fail" {
		fmt.Fprintln(os.Stderr, "it cannot be")
		return 3
	}
	l, err := net.Listen("tcp", *httpAt)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	var asked atomic.Int64
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || asked.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	<-stop.Done()
	fmt.Println("stopped")
	return 0
}

// parent starts an agent in a temporary directory, tells both, and then does nothing.
func parent() int {
	d, err := NewTempDir("weir-orphan-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	f := New(exe, d.Path)
	_, err = f.Add(Options{Name: "a"})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := errors.Join(err, f.Start(ctx)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(f.Agents()[0].PID(), d.Path)
	select {}
}

func newFleet(t *testing.T) *Fleet {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := New(exe, t.TempDir())
	t.Cleanup(f.Kill)
	return f
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestStartKillRestartStop(t *testing.T) {
	f, ctx := newFleet(t), patient(t)
	hub := must[*Agent](t)(f.Add(Options{Name: "hub", Label: "role=hub", MQTT: true}))
	plain := must[*Agent](t)(f.Add(Options{Name: "plain"}))
	client := must[*Agent](t)(f.Add(Options{Name: "client", Label: "role=gateway", Hub: hub}))
	if err := f.Start(ctx); err != nil {
		t.Fatal(err)
	}
	pid, before := hub.PID(), hub.Started()
	hub.Kill()
	if hub.Running() || syscall.Kill(pid, 0) == nil {
		t.Error("killed and still there")
	}
	if !client.Running() {
		t.Error("the other one is gone too")
	}
	if err := hub.Start(); err != nil {
		t.Fatal(err)
	}
	if err := hub.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if hub.PID() == pid || !hub.Started().After(before) {
		t.Error("not another process")
	}
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
	first := fmt.Sprintf("data=%s name=hub nats-listen=%s mqtt-listen=%s nats= label=role=hub\n", hub.Dir, hub.NATS, hub.MQTT)
	if want := first + first + "stopped\n"; hub.Tail() != want {
		t.Errorf("the hub was started with\n%swant\n%s", hub.Tail(), want)
	}
	if want := "mqtt-listen=off"; !strings.Contains(plain.Tail(), want) {
		t.Errorf("%s has no %s", plain.Tail(), want)
	}
	if want := fmt.Sprintf("nats-listen= mqtt-listen= nats=nats://%s label=role=gateway\n", hub.NATS); !strings.Contains(client.Tail(), want) {
		t.Errorf("%s has no %s", client.Tail(), want)
	}
	if !strings.Contains(f.Tails(), "output of client\n"+client.Tail()) {
		t.Errorf("tails: %s", f.Tails())
	}
	f.Kill() // of what does not run: nothing happens
}

func TestAgentThatEnds(t *testing.T) {
	t.Setenv("BEHAVIOUR", "fail")
	f := newFleet(t)
	must[*Agent](t)(f.Add(Options{Name: "a"}))
	err := f.Start(patient(t))
	if err == nil || !strings.Contains(err.Error(), "agent a ended") || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "it cannot be") {
		t.Errorf("%v", err)
	}
}

func TestAgentThatIsNeverReady(t *testing.T) {
	f := newFleet(t)
	a := must[*Agent](t)(f.Add(Options{Name: "a"}))
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.WaitReady(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestNoSuchProgram(t *testing.T) {
	f := New("/does/not/exist", t.TempDir())
	a := must[*Agent](t)(f.Add(Options{Name: "a"}))
	if err := a.Start(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	f.Kill()
}

func TestTempDir(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	d := must[*TempDir](t)(NewTempDir("weir-test-"))
	if err := os.WriteFile(d.Path+"/x", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

func TestFreeAddr(t *testing.T) {
	seen := map[string]bool{}
	for range 50 {
		addr := must[string](t)(FreeAddr())
		if seen[addr] {
			t.Errorf("%s was given twice", addr)
		}
		seen[addr] = true
		if err := must[net.Listener](t)(net.Listen("tcp", addr)).Close(); err != nil {
			t.Error(err)
		}
	}
}
