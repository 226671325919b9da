// Bench compares an agent that relays MQTT messages through an operator, exactly once, with a bare
// relay over the Paho client that does the same with encoding/json and keeps nothing:
//
//	go run ./internal/bench [-n 200000] [-rounds 3] [-work DIR]
//
// It needs mosquitto in the PATH, Go for the operator in Go, and clang and wasm-ld for the one in C, which
// is left out where they are missing. Broker, relay and agent are processes of their own; runs alternate.
// What counts is the ratio of CPU time per message, which a busy machine changes less than the rates.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/weir-stream/weir/internal/fleet"
)

const (
	relayCommand = "relay"
	threshold    = 50
	window       = 1000 // messages published and not acknowledged
	patience     = 60 * time.Second
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == relayCommand {
		relay(os.Args[2])
		return
	}
	n := flag.Int("n", 200_000, "messages of a run")
	rounds := flag.Int("rounds", 3, "runs of each contender")
	work := flag.String("work", "", "directory to work in; a temporary one if empty")
	flag.Parse()
	if err := run(*n, *rounds, *work); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// reading is what sensors send; half of them are above the threshold.
type reading struct {
	Sensor string  `json:"sensor"`
	Value  float64 `json:"value"`
	Seq    int     `json:"seq"`
}

// relay subscribes, filters and publishes until it is told to end.
func relay(broker string) {
	o := paho.NewClientOptions().AddBroker("tcp://" + broker).SetClientID("relay").SetCleanSession(true)
	o.SetDefaultPublishHandler(func(c paho.Client, m paho.Message) {
		var r reading
		if err := json.Unmarshal(m.Payload(), &r); err == nil && r.Value > threshold {
			c.Publish("out/x", 1, false, m.Payload())
		}
	})
	c := paho.NewClient(o)
	for _, t := range []func() paho.Token{c.Connect, func() paho.Token { return c.Subscribe("in/+", 1, nil) }} {
		token := t()
		if !token.WaitTimeout(patience) {
			fmt.Fprintf(os.Stderr, "the broker at %s has not answered within %s\n", broker, patience)
			os.Exit(1)
		}
		if token.Error() != nil {
			fmt.Fprintln(os.Stderr, token.Error())
			os.Exit(1)
		}
	}
	fmt.Println("ready")
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
}

// contender starts a process that relays, and returns it once it does.
type contender struct {
	name  string
	start func(dir string) (*exec.Cmd, error)
}

type result struct{ rate, cpu float64 } // messages per second, microseconds per message

func run(n, rounds int, dir string) error {
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "weir-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	b, err := startBroker(dir)
	if err != nil {
		return err
	}
	defer end(b.cmd)
	contenders, err := build(dir, b.addr)
	if err != nil {
		return err
	}
	results := map[string][]result{}
	for round := range rounds {
		for _, c := range contenders {
			r, err := measure(c, b.addr, filepath.Join(dir, fmt.Sprintf("%s-%d", c.name, round)), n)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			fmt.Printf("%-12s %9.0f messages/s %8.2f µs CPU per message\n", c.name, r.rate, r.cpu)
			results[c.name] = append(results[c.name], r)
		}
	}
	base := median(results[relayCommand])
	fmt.Printf("\nmedians, and ratios to the relay\n")
	for _, c := range contenders {
		m := median(results[c.name])
		fmt.Printf("%-12s %9.0f messages/s (%.2f) %8.2f µs CPU per message (%.2f)\n", c.name, m.rate, m.rate/base.rate, m.cpu, m.cpu/base.cpu)
	}
	return nil
}

func median(rs []result) result {
	pick := func(of func(result) float64) float64 {
		var v []float64
		for _, r := range rs {
			v = append(v, of(r))
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	return result{pick(func(r result) float64 { return r.rate }), pick(func(r result) float64 { return r.cpu })}
}

// build makes the agent and the operators.
func build(dir, broker string) ([]contender, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	agent := filepath.Join(dir, "agent")
	if err := command(exec.Command("go", "build", "-o", agent, "github.com/weir-stream/weir/cmd/agent")); err != nil {
		return nil, err
	}
	all := []contender{{relayCommand, func(string) (*exec.Cmd, error) { return started(exec.Command(self, relayCommand, broker), "ready") }}}
	add := func(name, module string) {
		all = append(all, contender{name, func(d string) (*exec.Cmd, error) { return startAgent(agent, d, broker, module) }})
	}
	goModule := filepath.Join(dir, "go.wasm")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-o", goModule, "github.com/weir-stream/weir/internal/bench/filter")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if err := command(cmd); err != nil {
		return nil, err
	}
	add("weir, Go", goModule)
	if _, err := exec.LookPath("clang"); err != nil {
		fmt.Println("no clang: the operator in C is left out")
		return all, nil
	}
	cModule := filepath.Join(dir, "c.wasm")
	cc := exec.Command("clang", "--target=wasm32", "-O3", "-mbulk-memory", "-nostdlib", "-Wl,--no-entry", "-o", cModule, "internal/bench/testdata/filter.c")
	if err := command(cc); err != nil {
		return nil, err
	}
	add("weir, C", cModule)
	return all, nil
}

func command(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// started starts a program and waits for a line that begins with a word.
func started(cmd *exec.Cmd, word string) (*exec.Cmd, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), word) {
			go io.Copy(io.Discard, out)
			return cmd, nil
		}
	}
	end(cmd)
	return nil, fmt.Errorf("%s ended before it said %q", cmd, word)
}

// end ends a process and waits for it.
func end(cmd *exec.Cmd) {
	cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer late.Stop()
	cmd.Wait()
}

type broker struct {
	cmd  *exec.Cmd
	addr string
}

func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

func startBroker(dir string) (broker, error) {
	addr, err := freeAddr()
	if err != nil {
		return broker{}, err
	}
	_, port, _ := net.SplitHostPort(addr)
	conf := filepath.Join(dir, "mosquitto.conf")
	text := fmt.Sprintf("listener %s 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages %d\nset_tcp_nodelay true\nlog_type error\n", port, window)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return broker{}, err
	}
	b := broker{exec.Command("mosquitto", "-c", conf), addr}
	if err := b.cmd.Start(); err != nil {
		return broker{}, err
	}
	for late := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return b, c.Close()
		}
		if time.Now().After(late) {
			end(b.cmd)
			return broker{}, err
		}
	}
}

func startAgent(agent, dir, broker, module string) (*exec.Cmd, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	job := fmt.Sprintf(`name: bench
checkpoint: {interval: 2s}
sources:
  s:
    mqtt: {broker: "tcp://%s", topics: ["in/+"], qos: 1}
operators:
  f: {wasm: ./filter.wasm, from: s}
sinks:
  o:
    mqtt: {broker: "tcp://%s", topic: out/x, qos: 1}
    from: f
`, broker, broker)
	wasm, err := os.ReadFile(module)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "job.yaml")
	if err := errors.Join(os.WriteFile(file, []byte(job), 0o600), os.WriteFile(filepath.Join(dir, "filter.wasm"), wasm, 0o600)); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	cmd := exec.Command(agent, "run", "--data", data, "--name", "a", "--mqtt-listen", "off", "--nats-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "error")
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var at struct {
		HTTP string `json:"http"`
	}
	for late := time.Now().Add(patience); at.HTTP == ""; time.Sleep(50 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(data, "addresses.json"))
		if err == nil {
			err = json.Unmarshal(b, &at)
		}
		if err != nil && time.Now().After(late) {
			end(cmd)
			return nil, fmt.Errorf("the agent does not start: %w", err)
		}
	}
	if err := command(exec.Command(agent, "job", "apply", file, "--server", "http://"+at.HTTP)); err != nil {
		end(cmd)
		return nil, err
	}
	return cmd, nil
}

// measure sends n messages through a contender.
func measure(c contender, addr, dir string, n int) (result, error) {
	cmd, err := c.start(dir)
	if err != nil {
		return result{}, err
	}
	defer end(cmd)
	out, err := subscribe(addr)
	if err != nil {
		return result{}, err
	}
	defer out.conn.Close()
	if err := pump(addr, out, n/10+100); err != nil { // warm, and subscribed
		return result{}, fmt.Errorf("warming up: %w", err)
	}
	before, err := fleet.CPUTime(cmd.Process.Pid)
	if err != nil {
		return result{}, err
	}
	began := time.Now()
	if err := pump(addr, out, n); err != nil {
		return result{}, err
	}
	took := time.Since(began)
	after, err := fleet.CPUTime(cmd.Process.Pid)
	return result{float64(n) / took.Seconds(), float64((after - before).Microseconds()) / float64(n)}, err
}

// reader counts what comes out.
type reader struct {
	conn net.Conn
	got  atomic.Int64
	news chan struct{}
}

func connect(addr, client string) (net.Conn, *bufio.Reader, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	body := append([]byte{0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0, 0, byte(len(client))}, client...)
	if _, err := conn.Write(append([]byte{0x10, byte(len(body))}, body...)); err != nil {
		return nil, nil, err
	}
	r := bufio.NewReaderSize(conn, 64<<10)
	ack := make([]byte, 4)
	if _, err := io.ReadFull(r, ack); err != nil || ack[3] != 0 {
		return nil, nil, fmt.Errorf("CONNACK %x: %w", ack, err)
	}
	return conn, r, nil
}

func subscribe(addr string) (*reader, error) {
	conn, r, err := connect(addr, "reader")
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte{0x82, 10, 0, 1, 0, 5, 'o', 'u', 't', '/', '#', 0}); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(r, make([]byte, 5)); err != nil {
		return nil, err
	}
	out := &reader{conn: conn, news: make(chan struct{}, 1)}
	go func() {
		for {
			head, err := r.ReadByte()
			if err != nil {
				return
			}
			size, err := binary.ReadUvarint(r) // of MQTT's remaining length the same encoding
			if err != nil {
				return
			}
			if _, err := r.Discard(int(size)); err != nil {
				return
			}
			if head>>4 == 3 {
				out.got.Add(1)
				select {
				case out.news <- struct{}{}:
				default:
				}
			}
		}
	}()
	return out, nil
}

// pump publishes n messages at QoS 1 and waits until those that pass the filter have come out.
func pump(addr string, out *reader, n int) error {
	conn, r, err := connect(addr, "sensor")
	if err != nil {
		return err
	}
	defer conn.Close()
	credit := make(chan struct{}, window)
	for range window {
		credit <- struct{}{}
	}
	go func() {
		ack := make([]byte, 4)
		for {
			if _, err := io.ReadFull(r, ack); err != nil {
				return
			}
			credit <- struct{}{}
		}
	}()
	want := out.got.Load() + int64(n/2)
	w := bufio.NewWriterSize(conn, 64<<10)
	var p []byte
	for i := range n {
		select {
		case <-credit:
		default:
			if err := w.Flush(); err != nil {
				return err
			}
			select {
			case <-credit:
			case <-time.After(patience):
				return errors.New("the broker acknowledges nothing")
			}
		}
		topic := fmt.Sprintf("in/s%02d", i%50)
		p = append(p[:0], byte(0), byte(len(topic)))
		p = append(p, topic...)
		p = binary.BigEndian.AppendUint16(p, uint16(i%window)+1)
		value := 20.5
		if i%2 == 1 {
			value = 80.25
		}
		p = fmt.Appendf(p, `{"sensor":"s%02d","value":%g,"seq":%d,"unit":"mm/s"}`, i%50, value, i)
		w.Write(binary.AppendUvarint([]byte{0x32}, uint64(len(p))))
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for last := int64(-1); out.got.Load() < want; {
		select {
		case <-out.news:
		case <-time.After(patience):
			if now := out.got.Load(); now == last {
				return fmt.Errorf("%d messages are missing", want-now)
			}
		}
		last = out.got.Load()
	}
	return nil
}
