package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/nats-io/nats.go"

	"github.com/weir-stream/weir/abs"
)

func TestAddressInUseIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	for what, opt := range map[string]ServerOptions{
		"NATS":       {Listen: addr},
		"MQTT":       {Listen: "127.0.0.1:0", MQTTListen: addr},
		"leaf nodes": {Listen: "127.0.0.1:0", LeafListen: addr},
	} {
		opt.Dir, opt.Name, opt.Log = t.TempDir(), "test", quiet()
		_, err := StartServer(opt)
		if !errors.Is(err, ErrListen) || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
		opt.Listen, opt.MQTTListen, opt.LeafListen = "", "", ""
		s := startServer(t, opt) // nothing of the failed start is left
		if len(s.SetAside()) != 0 {
			t.Errorf("%s: set aside %v", what, s.SetAside())
		}
	}
}

func TestWrongServerOptions(t *testing.T) {
	for _, opt := range []ServerOptions{
		{Name: "x"},
		{Dir: t.TempDir()},
		{Dir: t.TempDir(), Name: "x", Listen: "nonsense"},
		{Dir: t.TempDir(), Name: "x", Listen: "127.0.0.1:99999"},
		{Dir: t.TempDir(), Name: "x", MQTTListen: ":x"},
		{Dir: t.TempDir(), Name: "x", LeafURL: "::"},
		{Dir: t.TempDir(), Name: "x", Prefix: "a.b"},
		{Dir: t.TempDir(), Name: "x", Users: []User{{"a", "x"}}, MQTTUsers: []User{{"a", "y"}}},
		{Dir: t.TempDir(), Name: "x", Users: []User{{"a", ""}}},
	} {
		opt.Log = quiet()
		if s, err := StartServer(opt); err == nil {
			s.Shutdown()
			t.Errorf("%+v was taken", opt)
		}
	}
	if _, err := Connect(ConnectOptions{}); err == nil {
		t.Error("connect to nothing")
	}
	if _, err := Connect(ConnectOptions{URL: "nats://x", Prefix: "a b"}); err == nil {
		t.Error("connect with a bad prefix")
	}
}

func TestOnlyUsersMayConnect(t *testing.T) {
	s := startServer(t, ServerOptions{
		Listen: "127.0.0.1:0", MQTTListen: "127.0.0.1:0",
		Users: []User{{"agent", "secret"}}, MQTTUsers: []User{{"line1", "other"}},
	})
	ensure(t, connect(t, ConnectOptions{Server: s}))
	addr := s.ClientAddr()
	for url, ok := range map[string]bool{
		"nats://" + addr:              false,
		"nats://agent:wrong@" + addr:  false,
		"nats://line1:other@" + addr:  false, // for MQTT only
		"nats://agent:secret@" + addr: true,
	} {
		nc, err := nats.Connect(url)
		if (err == nil) != ok {
			t.Errorf("%s: %v", url, err)
		}
		if err == nil {
			nc.Close()
		}
	}
	ensure(t, connect(t, ConnectOptions{URL: s.ClientURL(), User: "agent", Password: "secret"}))
	for user, ok := range map[string]bool{"": false, "line1 wrong": false, "agent secret": false, "line1 other": true} {
		name, password, _ := strings.Cut(user, " ")
		c, err := mqttConnect(s, "c", name, password)
		if (err == nil) != ok {
			t.Errorf("MQTT as %q: %v", user, err)
		}
		if err == nil {
			c.Disconnect(0)
		}
	}
	in := connect(t, ConnectOptions{URL: s.ClientURL(), User: "agent", Password: "wrong"})
	state := in.State()
	if state.Connected || !errors.Is(state.Err, nats.ErrAuthorization) {
		t.Errorf("state %+v does not say why", state)
	}
}

func mqttConnect(s *Server, id, user, password string) (mqtt.Client, error) {
	o := mqtt.NewClientOptions().AddBroker("tcp://" + s.MQTTAddr()).SetClientID(id).SetCleanSession(false).
		SetUsername(user).SetPassword(password).SetAutoReconnect(false).SetConnectTimeout(patience)
	c := mqtt.NewClient(o)
	return c, await(c.Connect())
}

func await(tok mqtt.Token) error {
	if !tok.WaitTimeout(patience) {
		return errors.New("no answer")
	}
	return tok.Error()
}

// MQTT works in all qualities of service, and what is not acknowledged comes again soon.
func TestMQTTListener(t *testing.T) {
	s := startServer(t, ServerOptions{MQTTListen: "127.0.0.1:0", MQTTAckWait: 200 * time.Millisecond})
	c, err := mqttConnect(s, "c", "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Disconnect(0)
	for qos := range byte(3) {
		got := make(chan string, 10)
		topic := fmt.Sprintf("plant/%d/vibration", qos)
		if err := await(c.Subscribe(topic, qos, func(_ mqtt.Client, m mqtt.Message) { got <- string(m.Payload()) })); err != nil {
			t.Fatal(err)
		}
		if err := await(c.Publish(topic, qos, false, "x")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-got:
		case <-time.After(patience):
			t.Fatalf("nothing received at QoS %d", qos)
		}
	}
	o := mqtt.NewClientOptions().AddBroker("tcp://" + s.MQTTAddr()).SetClientID("slow").SetCleanSession(false).SetAutoAckDisabled(true)
	slow := mqtt.NewClient(o)
	if err := await(slow.Connect()); err != nil {
		t.Fatal(err)
	}
	defer slow.Disconnect(0)
	again := make(chan bool, 10)
	if err := await(slow.Subscribe("again", 1, func(_ mqtt.Client, m mqtt.Message) {
		again <- m.Duplicate()
		if m.Duplicate() {
			m.Ack()
		}
	})); err != nil {
		t.Fatal(err)
	}
	if err := await(c.Publish("again", 1, false, "x")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{false, true} {
		select {
		case dup := <-again:
			if dup != want {
				t.Errorf("duplicate: %v, want %v", dup, want)
			}
		case <-time.After(patience):
			t.Fatal("nothing received")
		}
	}
}

// No topic reaches the control plane or the streams.
func TestMQTTClientsAreKeptOut(t *testing.T) {
	s := startServer(t, ServerOptions{MQTTListen: "127.0.0.1:0"})
	conn := connect(t, ConnectOptions{Server: s})
	ensure(t, conn)
	put(t, conn.KV(Jobs), "job", "good")
	in := openInput(t, conn.Streams(StreamOptions{}), "t", 0)
	wantDrained(t, in)
	served, err := conn.Serve("agent", func(request []byte) []byte {
		if string(request) == "bad" {
			t.Error("an MQTT client has called an agent")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer served()
	for i, topic := range []string{
		"$KV/weir-jobs/job", "weir/s/job/1/t/0", "$O/weir-modules/M/x", "$JS/API/STREAM/DELETE/KV_weir-jobs",
		"weir/call/agent",
	} {
		c, err := mqttConnect(s, "c"+strconv.Itoa(i), "", "") // the server delays one who comes back at once
		if err != nil {
			t.Fatal(err)
		}
		_ = await(c.Publish(topic, 0, false, "bad")) // refused or cut off
		_ = await(c.Publish(topic, 1, false, "bad"))
		c.Disconnect(0)
	}
	c, err := mqttConnect(s, "d", "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Disconnect(0)
	if err := await(c.Publish("weir/alarms", 1, false, "fine")); err != nil {
		t.Error(err)
	}
	if e, err := conn.KV(Jobs).Get(testContext(t), "job"); err != nil || string(e.Value) != "good" {
		t.Errorf("%+v, %v", e, err)
	}
	out := openOutput(t, conn.Streams(StreamOptions{}), map[int]abs.TaskID{0: "t"})
	sendUntilTaken(t, out, 0, "ours")
	wantFrame(t, in, 0, "ours")
	if _, err := conn.Call(testContext(t), "agent", []byte("good")); err != nil {
		t.Error(err)
	}
}

// Whatever is damaged, the server starts, says what it set aside, and the rest is still there.
func TestDamagedFilesAreSetAside(t *testing.T) {
	for _, test := range []struct {
		name   string
		damage func(dir string) error
		aside  bool
		kept   bool // the undamaged bucket
	}{
		{"meta file gone", func(dir string) error { return os.Remove(filepath.Join(streamDir(dir, "KV_weir-jobs"), "meta.inf")) }, true, true},
		{"meta file empty", func(dir string) error {
			return os.WriteFile(filepath.Join(streamDir(dir, "KV_weir-jobs"), "meta.inf"), nil, 0o640)
		}, true, true},
		{"checksum gone", func(dir string) error { return os.Remove(filepath.Join(streamDir(dir, "KV_weir-jobs"), "meta.sum")) }, true, true},
		{"messages gone", func(dir string) error { return os.RemoveAll(filepath.Join(streamDir(dir, "KV_weir-jobs"), "msgs")) }, false, true},
		{"bucket gone", func(dir string) error { return os.RemoveAll(streamDir(dir, "KV_weir-jobs")) }, false, true},
		{"all streams gone", func(dir string) error { return os.RemoveAll(filepath.Join(storeDir(dir), "$G")) }, false, false},
		{"store is a file", func(dir string) error {
			return errors.Join(os.RemoveAll(storeDir(dir)), os.WriteFile(storeDir(dir), []byte("x"), 0o640))
		}, true, false},
		{"crashed in several starts", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, startsFile), []byte(strconv.Itoa(maxCrashedStarts)), 0o640)
		}, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			s := startServer(t, ServerOptions{Dir: dir})
			c := connect(t, ConnectOptions{Server: s})
			id := ensure(t, c).ID
			put(t, c.KV(Jobs), "k", "jobs")
			put(t, c.KV(Agents), "k", "agents")
			c.Close()
			s.Shutdown()
			if err := test.damage(dir); err != nil {
				t.Fatal(err)
			}
			s = startServer(t, ServerOptions{Dir: dir})
			if got := len(s.SetAside()) > 0; got != test.aside {
				t.Errorf("set aside %v", s.SetAside())
			}
			for _, p := range s.SetAside() {
				if _, err := os.Stat(p); err != nil {
					t.Error(err)
				}
			}
			c = connect(t, ConnectOptions{Server: s})
			cl := ensure(t, c)
			if cl.ID == id {
				t.Errorf("the identity %s is that from before the damage", id)
			}
			if _, err := c.KV(Agents).Get(testContext(t), "k"); (err == nil) != test.kept {
				t.Errorf("undamaged bucket: %v", err)
			}
			if e, err := c.KV(Jobs).Get(testContext(t), "k"); test.name != "crashed in several starts" && err == nil {
				t.Errorf("the damaged bucket holds %+v", e)
			}
			put(t, c.KV(Jobs), "k", "again")
			s.Shutdown()
			if _, err := os.Stat(filepath.Join(dir, startsFile)); !os.IsNotExist(err) {
				t.Errorf("the note of the start is left: %v", err)
			}
		})
	}
}

// TestNothingIsSetAsideWithoutRoom: a disk that takes no writes is no damage of the files on it.
func TestNothingIsSetAsideWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, ServerOptions{Dir: dir})
	ensure(t, connect(t, ConnectOptions{Server: s}))
	s.Shutdown()
	meta, probe := filepath.Join(streamDir(dir, "KV_weir-jobs"), "meta.inf"), filepath.Join(dir, "room.try")
	if err := errors.Join(os.WriteFile(meta, nil, 0o640), os.Mkdir(probe, 0o700)); err != nil {
		t.Fatal(err)
	}
	if s, err := StartServer(ServerOptions{Dir: dir, Name: "test", Log: quiet()}); err == nil {
		s.Shutdown()
		t.Fatal("it started")
	} else if !strings.Contains(err.Error(), "make room") {
		t.Error(err)
	}
	if _, err := os.Stat(meta); err != nil {
		t.Errorf("it was set aside: %v", err)
	}
	if err := os.Remove(probe); err != nil {
		t.Fatal(err)
	}
	if s := startServer(t, ServerOptions{Dir: dir}); len(s.SetAside()) != 1 {
		t.Errorf("set aside %v", s.SetAside())
	}
}

// Random damage to any file must not stop the server from starting and working.
func TestRandomDamage(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewSource(seed))
	dir := t.TempDir()
	for range 12 {
		s := startServer(t, ServerOptions{Dir: dir})
		c := connect(t, ConnectOptions{Server: s})
		ensure(t, c)
		for n := range 20 {
			put(t, c.KV(Jobs), "k"+strconv.Itoa(n), strings.Repeat("v", rng.Intn(2000)))
		}
		c.Close()
		s.Shutdown()
		damageOneFile(t, rng, storeDir(dir))
	}
}

func damageOneFile(t *testing.T, rng *rand.Rand, dir string) {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	path := files[rng.Intn(len(files))]
	t.Logf("damage to %s", strings.TrimPrefix(path, dir))
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	switch what := rng.Intn(4); {
	case what == 0:
		err = os.Remove(path)
	case what == 1 || len(b) == 0:
		err = os.WriteFile(path, b[:rng.Intn(len(b)+1)], 0o640)
	default:
		for range 1 + rng.Intn(8) {
			b[rng.Intn(len(b))] ^= byte(1 + rng.Intn(255))
		}
		err = os.WriteFile(path, b, 0o640)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// An agent whose server is a leaf node reaches the hub's control plane through its domain.
func TestLeafNode(t *testing.T) {
	hub := startServer(t, ServerOptions{Name: "hub", Domain: "hub", LeafListen: "127.0.0.1:0", Users: []User{{"leaf", "secret"}}})
	ensure(t, connect(t, ConnectOptions{Server: hub}))
	leaf := startServer(t, ServerOptions{Name: "leaf", Domain: "leaf", LeafURL: "nats://leaf:secret@" + hub.LeafAddr()})
	c := connect(t, ConnectOptions{Server: leaf, Domain: "hub"})
	ctx := testContext(t)
	for { // until the leaf node has joined
		_, err := c.KV(Agents).Put(ctx, "leaf", []byte("here"))
		if err == nil {
			break
		}
		if sleep(ctx, firstBackoff) != nil {
			t.Fatal(err)
		}
	}
	direct := connect(t, ConnectOptions{Server: hub})
	if e, err := direct.KV(Agents).Get(ctx, "leaf"); err != nil || string(e.Value) != "here" {
		t.Errorf("%+v, %v", e, err)
	}
	w := watchBucket(t, c.KV(Agents), "")
	w.want("leaf=here")
	w.want("caught up")
	in := openInput(t, c.Streams(StreamOptions{}), "t", 0)
	wantDrained(t, in)
	out := openOutput(t, direct.Streams(StreamOptions{}), map[int]abs.TaskID{0: "t"})
	sendUntilTaken(t, out, 0, "from the hub")
	wantFrame(t, in, 0, "from the hub")
}

func TestStateShowsOutages(t *testing.T) {
	server := newRestartable(t)
	c := connect(t, ConnectOptions{URL: server.ClientURL()})
	ctx := testContext(t)
	if err := c.WaitConnected(ctx); err != nil {
		t.Fatal(err)
	}
	changed, stop := c.Changed()
	defer stop()
	before := c.State()
	server.Shutdown()
	for c.State().Connected {
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the outage does not show")
		}
	}
	if s := c.State(); s.Err == nil || s.Since.Before(before.Since) {
		t.Errorf("%+v", s)
	}
	server.restart(false)
	if err := c.WaitConnected(ctx); err != nil {
		t.Fatal(err)
	}
}

// counting counts log records by message.
type counting struct {
	slog.Handler
	mu    sync.Mutex
	count map[string]int
}

func (c *counting) Handle(_ context.Context, r slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[r.Message]++
	return nil
}

func (c *counting) Enabled(context.Context, slog.Level) bool { return true }

func (c *counting) WithAttrs([]slog.Attr) slog.Handler { return c }

func (c *counting) of(message string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[message]
}

func TestOutageIsLoggedOnce(t *testing.T) {
	addr := unused(t)
	logged := &counting{Handler: slog.DiscardHandler, count: make(map[string]int)}
	c, err := Connect(ConnectOptions{URL: "nats://" + addr, Log: slog.New(logged)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	changed, stop := c.Changed()
	defer stop()
	for range 3 { // attempts that fail
		<-changed
	}
	if n := logged.of(unreachable); n != 1 {
		t.Errorf("logged %d times", n)
	}
	s := startServer(t, ServerOptions{Listen: addr})
	if err := c.WaitConnected(testContext(t)); err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	for c.State().Connected || logged.of(unreachable) < 2 {
		<-changed
	}
	for range 3 {
		<-changed
	}
	if n := logged.of(unreachable); n != 2 {
		t.Errorf("logged %d times in two outages", n)
	}
}

// TestNothingIsGivenUpByAge: of all that the server keeps, nothing goes because a clock says that it is old, so that a
// clock that jumps takes nothing. (Marks of deleted keys have a time to live; a watcher does not count on them for
// longer than half of it by a clock that does not jump.)
func TestNothingIsGivenUpByAge(t *testing.T) {
	s := startServer(t, ServerOptions{MQTTListen: "127.0.0.1:0"})
	conn := connect(t, ConnectOptions{Server: s})
	ensure(t, conn)
	c, err := mqttConnect(s, "c", "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Disconnect(0)
	for qos := range byte(3) {
		err := errors.Join(await(c.Subscribe("a/b", qos, func(mqtt.Client, mqtt.Message) {})), await(c.Publish("a/b", qos, true, "x")))
		if err != nil {
			t.Fatal(err)
		}
	}
	wantDrained(t, openInput(t, conn.Streams(StreamOptions{}), "t", 0)) // it is there then
	names := map[string]bool{}
	list := conn.control.js.ListStreams(testContext(t))
	for info := range list.Info() {
		names[info.Config.Name] = true
		if info.Config.MaxAge != 0 {
			t.Errorf("%s gives up what is older than %s", info.Config.Name, info.Config.MaxAge)
		}
	}
	if list.Err() != nil || len(names) < len(buckets)+len(stores)+3 || !names["$MQTT_msgs"] || !names["$MQTT_sess"] {
		t.Errorf("streams %v, %v", names, list.Err())
	}
}
