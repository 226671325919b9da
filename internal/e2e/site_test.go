//go:build mosquitto

package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
	"github.com/weir-stream/weir/internal/ledger"
)

// Limits of the tests' patience, for slow machines.
const (
	startPatience   = 5 * time.Minute
	commandPatience = 5 * time.Minute
	// stuckAfter without any progress, what is missing will not come any more.
	stuckAfter = 2 * time.Minute
	// quietFor is how long nothing new must have come before the verdict.
	quietFor  = 2 * time.Second
	lookEvery = 50 * time.Millisecond
)

// sensorsPerGateway bounds how many publishers run; each sends its share of the rate.
const sensorsPerGateway = 10

const jobFile = `name: totals
checkpoint: {interval: 2s}
sources:
  readings:
    mqtt: {broker: "tcp://BROKER", topics: ["plant/{agent}/+"], qos: 1}
    key: {segment: 2}
    id: seq
    on: {role: gateway}
operators:
  parse: {wasm: parse@1.0.0, from: readings}
  count: {wasm: count@1.0.0, from: parse, key_by: key, parallelism: 2, on: {role: hub}}
sinks:
  totals:
    mqtt: {broker: "tcp://BROKER", topic: "totals/{key}", payload: '{"number":{number},"channel":"{channel}","value":{value}}', qos: 1}
    from: count
`

// site is a broker, a hub, two gateways, sensors and a reader.
type site struct {
	t          *testing.T
	ctx        context.Context
	dir        string
	broker     string // HOST:PORT
	brokerConf string
	brokerRun  *fleet.Process
	jobFile    string
	fleet      *fleet.Fleet
	hub        *fleet.Agent
	gateways   []*fleet.Agent
	rand       *rand.Rand
	rate       int    // readings a second, of all sensors together
	qos        string // of the sensors; empty: 1

	mu     sync.Mutex
	ledger *ledger.Ledger
	newest time.Time // when the last new record came

	seqs map[string]uint64 // of the last reading of each sensor
}

// newSite starts a broker, three agents, and a reader with a persistent session, pushes the operators and
// applies the job, in which pairs of texts are replaced. The directory of a test that failed is left to
// be looked at.
func newSite(t *testing.T, replace ...string) *site {
	began := time.Now()
	s := emptySite(t)
	s.startBroker()
	s.jobFile = strings.NewReplacer(append(replace, "BROKER", s.broker)...).Replace(jobFile)
	s.startReader()
	s.addAgents()
	s.must(s.within(startPatience, s.fleet.Start))
	s.pushOperators()
	s.apply()
	t.Logf("set up within %.1f s", time.Since(began).Seconds())
	return s
}

// emptySite has a directory and nothing in it.
func emptySite(t *testing.T) *site {
	ctx, cancel := context.WithCancel(context.Background())
	s := &site{t: t, ctx: ctx, ledger: ledger.New(), seqs: map[string]uint64{}, rate: number(t, "WEIR_E2E_RATE", 2000)}
	s.rand = seeded(t)
	dir, err := os.MkdirTemp("", "weir-e2e-")
	s.must(err)
	s.dir = dir
	t.Cleanup(func() {
		cancel()
		if s.fleet != nil {
			s.fleet.Kill()
		}
		if t.Failed() || os.Getenv("WEIR_E2E_KEEP") != "" {
			t.Logf("left to be looked at: %s", s.dir)
			return
		}
		s.must(os.RemoveAll(s.dir))
	})
	return s
}

func seeded(t *testing.T) *rand.Rand {
	seed := uint64(number(t, "WEIR_E2E_SEED", int(rand.Uint64()>>33)))
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func number(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

func duration(t *testing.T, name string, otherwise time.Duration) time.Duration {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return d
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// check fails the test and shows what the agents said last.
func (s *site) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.fleet.Tails())
	}
}

func (s *site) within(patience time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	return f(ctx)
}

// until asks again and again, until the answer is yes.
func (s *site) until(patience time.Duration, what string, yes func(context.Context) bool) {
	s.t.Helper()
	s.check(s.within(patience, func(ctx context.Context) error {
		for !yes(ctx) {
			if !fleet.Sleep(ctx, lookEvery) {
				return fmt.Errorf("waited %s for %s", patience, what)
			}
		}
		return nil
	}))
}

// command runs a program to its end and returns what it printed.
func (s *site) command(program string, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, commandPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tails := ""
		if s.fleet != nil {
			tails = s.fleet.Tails()
		}
		s.t.Fatalf("%s %s: %v\n%s%s\n%s", filepath.Base(program), strings.Join(args, " "), err, out, &stderr, tails)
	}
	return string(out)
}

// cli runs the agent's command line against the hub.
func (s *site) cli(args ...string) string {
	s.t.Helper()
	return s.command(agentBinary(), append(args, "--server", s.hub.URL())...)
}

// startBroker starts mosquitto with the packaged configuration, on a port and in a directory of its own.
func (s *site) startBroker(replace ...string) {
	s.t.Helper()
	packaged, err := os.ReadFile("../../packaging/mosquitto.conf")
	s.must(err)
	s.broker, err = fleet.FreeAddr()
	s.must(err)
	_, port, err := net.SplitHostPort(s.broker)
	s.must(err)
	store := filepath.Join(s.dir, "broker")
	s.must(os.Mkdir(store, 0o700))
	conf := string(packaged)
	for old, adapted := range map[string]string{"listener 1883 127.0.0.1": "listener " + port + " 127.0.0.1", "persistence_location broker/": "persistence_location " + store + "/"} {
		if strings.Count(conf, old) != 1 {
			s.t.Fatalf("packaging/mosquitto.conf has no line %q", old)
		}
		conf = strings.Replace(conf, old, adapted, 1)
	}
	conf = strings.NewReplacer(replace...).Replace(conf)
	if os.Getuid() == 0 {
		conf += "user root\n" // the directory is ours alone
	}
	file := filepath.Join(s.dir, "mosquitto.conf")
	s.must(os.WriteFile(file, []byte(conf), 0o600))
	s.brokerConf = file
	s.runBroker()
}

// runBroker starts the broker and waits until it listens.
func (s *site) runBroker() {
	s.t.Helper()
	s.brokerRun = s.start(exec.Command("mosquitto", "-c", s.brokerConf))
	s.until(startPatience, "mosquitto", func(ctx context.Context) bool {
		select {
		case <-s.brokerRun.Gone():
			s.t.Fatalf("mosquitto ended: %v", s.brokerRun.Err())
		default:
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.broker)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// restartBroker stops the broker, which then stores its sessions, and starts it again.
func (s *site) restartBroker(down time.Duration) {
	s.t.Helper()
	s.brokerRun.Signal(syscall.SIGTERM)
	<-s.brokerRun.Gone()
	fleet.Sleep(s.ctx, down)
	s.runBroker()
}

// start starts a program that runs until the test ends. What it says goes to a file of its name.
func (s *site) start(cmd *exec.Cmd) *fleet.Process {
	s.t.Helper()
	if cmd.Stderr == nil {
		f, err := os.OpenFile(filepath.Join(s.dir, filepath.Base(cmd.Path)+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		s.must(err)
		defer f.Close()
		cmd.Stderr = f
	}
	p, err := fleet.StartProcess(cmd)
	s.must(err)
	s.t.Cleanup(p.Kill)
	return p
}

func (s *site) client(program string, args ...string) *exec.Cmd {
	host, port, _ := net.SplitHostPort(s.broker)
	return exec.Command(program, append([]string{"-h", host, "-p", port, "-q", cmp.Or(s.qos, "1")}, args...)...)
}

// startReader subscribes in a session that persists, then reads in that session.
func (s *site) startReader() {
	s.t.Helper()
	args := []string{"-q", "2", "-c", "-i", "reader", "-t", "totals/#"}
	if out, err := s.client("mosquitto_sub", append(args, "-E")...).CombinedOutput(); err != nil {
		s.t.Fatalf("subscribe: %v\n%s", err, out)
	}
	cmd := s.client("mosquitto_sub", append(args, "-F", "%t %p")...)
	r, w, err := os.Pipe()
	s.must(err)
	cmd.Stdout = w
	read := make(chan struct{})
	go func() {
		defer close(read)
		s.read(r)
	}()
	s.t.Cleanup(func() { <-read })
	s.start(cmd)
	s.must(w.Close())
}

// read notes records until the reader ends.
func (s *site) read(r io.ReadCloser) {
	defer r.Close()
	for lines := bufio.NewScanner(r); lines.Scan(); {
		topic, payload, _ := strings.Cut(lines.Text(), " ")
		rec, err := ledger.Decode(topic, []byte(payload))
		s.mu.Lock()
		if err != nil {
			s.ledger.SeenOther(err)
		} else if s.ledger.Seen(rec) {
			s.newest = time.Now()
		}
		s.mu.Unlock()
	}
}

func (s *site) addAgents() {
	s.t.Helper()
	s.fleet = fleet.New(agentBinary(), s.dir)
	var err error
	s.hub, err = s.fleet.Add(fleet.Options{Name: "hub", Label: "role=hub"})
	s.must(err)
	for _, name := range []string{"g1", "g2"} {
		g, err := s.fleet.Add(fleet.Options{Name: name, Label: "role=gateway", Hub: s.hub})
		s.must(err)
		s.gateways = append(s.gateways, g)
	}
}

func (s *site) pushOperators() {
	s.t.Helper()
	for _, op := range operators {
		s.cli("operator", "push", filepath.Join(built, op+".wasm"), "--name", op, "--version", "1.0.0")
	}
}

func (s *site) apply() {
	s.t.Helper()
	file := filepath.Join(s.dir, "totals.yaml")
	s.must(os.WriteFile(file, []byte(s.jobFile), 0o600))
	s.until(startPatience, "all agents to be up", func(ctx context.Context) bool {
		list, err := s.hub.Client().Agents(ctx)
		return err == nil && api.Up(list) == 3
	})
	s.cli("job", "apply", file)
}

func (s *site) job() api.Job {
	s.t.Helper()
	var j api.Job
	s.check(s.within(commandPatience, func(ctx context.Context) (err error) {
		j, err = s.hub.Client().Job(ctx, "totals")
		return err
	}))
	return j
}

// feed lets all sensors send for a while and returns what waits until the broker has acknowledged
// everything. The rate is paced: what a sensor is late with it sends at once.
func (s *site) feed(lasts time.Duration) (wait func()) {
	s.t.Helper()
	var done sync.WaitGroup
	began := time.Now()
	for _, g := range s.gateways {
		for i := range sensorsPerGateway {
			name := fmt.Sprintf("%s-s%02d", g.Name, i)
			done.Go(func() { s.sense(name, "plant/"+g.Name+"/"+name, began, lasts) })
		}
	}
	return done.Wait
}

// sense is one sensor: mosquitto_pub sends each line as a message, and ends when all are acknowledged.
func (s *site) sense(name, topic string, began time.Time, lasts time.Duration) {
	cmd := s.client("mosquitto_pub", "-l", "-i", name, "-t", topic)
	r, w, err := os.Pipe()
	if err != nil {
		s.t.Error(err)
		return
	}
	cmd.Stdin = r
	out, err := os.OpenFile(filepath.Join(s.dir, "mosquitto_pub.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p, err := fleet.StartProcess(cmd)
	r.Close()
	if err != nil {
		s.t.Error(err)
		return
	}
	defer p.Kill()
	each := time.Second * time.Duration(sensorsPerGateway*len(s.gateways)) / time.Duration(s.rate)
	s.mu.Lock()
	first := s.seqs[name]
	s.mu.Unlock()
	seq := first
	for n := time.Duration(0); n*each < lasts; n++ {
		if wait := time.Until(began.Add(n * each)); wait > 0 && !fleet.Sleep(s.ctx, wait) {
			break
		}
		seq++
		if _, err := fmt.Fprintf(w, "{\"seq\":%d}\n", seq); err != nil {
			s.t.Errorf("%s: mosquitto_pub takes no more: %v", name, err)
			break
		}
	}
	w.Close()
	select {
	case <-p.Gone():
	case <-time.After(stuckAfter):
		s.t.Errorf("%s: the broker did not acknowledge everything within %s", name, stuckAfter)
		return
	}
	if err := p.Err(); err != nil {
		s.t.Errorf("%s: mosquitto_pub: %v", name, err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seqs[name] = seq
	for n := first + 1; n <= seq; n++ {
		s.ledger.Sent(name, n)
	}
}

// settle waits until everything that was sent is counted, or nothing moves any more, and then until
// nothing new comes.
func (s *site) settle() {
	s.t.Helper()
	look := func() (ledger.Totals, time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ledger.Totals(), time.Since(s.newest)
	}
	began := time.Now()
	for {
		totals, quiet := look()
		if totals.Counted == totals.Sent && quiet > quietFor {
			s.t.Logf("settled within %.1f s", (time.Since(began) - quietFor).Seconds())
			return
		}
		if quiet > stuckAfter && time.Since(began) > stuckAfter {
			return
		}
		fleet.Sleep(s.ctx, lookEvery)
	}
}

// judge fails the test unless everything is counted once. It returns how many records came again.
func (s *site) judge() (repeats uint64) {
	s.t.Helper()
	s.mu.Lock()
	v := s.ledger.Verdict()
	s.mu.Unlock()
	s.t.Logf("sent %d, counted %d, lost %d, duplicated %d, altered %d, repeats on the last hop %d", v.Sent, v.Counted, v.Lost, v.Duplicated, v.Altered, v.Repeats)
	j := s.job()
	for _, task := range j.Tasks {
		if r := task.Recovery; r != nil {
			s.t.Logf("%s: %s, %d restarts, %s (%s), replayed %d, held back %d, compared %d, differing %d, %.0f ms",
				task.ID, task.State, task.Restarts, r.Level, r.Reason, r.ReplayedRecords, r.HeldBack, r.Compared, r.Differing, r.TookMS)
			if r.Level == "L4" || r.Differing > 0 {
				s.t.Errorf("%s recovered at %s, %d outputs differing", task.ID, r.Level, r.Differing)
			}
		}
	}
	if v.Sent == 0 || !v.Exact() {
		s.t.Errorf("not exact:\n  %s\n%s", strings.Join(v.Faults, "\n  "), s.fleet.Tails())
	}
	return v.Repeats
}

// outage is one kill in a plan of many.
type outage struct {
	at   time.Duration // since the beginning
	who  int           // index of the agent
	down time.Duration
}

// outages spreads n kills over a time, at random. No agent is killed while it is down.
func outages(r *rand.Rand, n, agents int, lasts time.Duration) []outage {
	slot := lasts / time.Duration(n)
	up := make([]time.Duration, agents) // when each is up again
	var out []outage
	for i := range n {
		o := outage{at: time.Duration(i)*slot + time.Duration(r.Int64N(int64(slot)))}
		o.down = time.Duration(r.Int64N(int64(2 * time.Second)))
		for o.who = r.IntN(agents); up[o.who] > o.at; o.who = r.IntN(agents) {
			o.at = max(o.at, up[o.who]) // all may be down
		}
		up[o.who] = o.at + o.down
		out = append(out, o)
	}
	return out
}

// disturb kills and starts agents as planned.
func (s *site) disturb(plan []outage) {
	s.t.Helper()
	began := time.Now()
	agents := s.fleet.Agents()
	starts := map[int]time.Duration{}
	startDue := func(before time.Duration) {
		for len(starts) > 0 {
			next := -1
			for who, at := range starts {
				if next < 0 || at < starts[next] {
					next = who
				}
			}
			if starts[next] > before {
				return
			}
			fleet.Sleep(s.ctx, time.Until(began.Add(starts[next])))
			s.check(agents[next].Start())
			delete(starts, next)
		}
	}
	for _, o := range plan {
		startDue(o.at)
		fleet.Sleep(s.ctx, time.Until(began.Add(o.at)))
		a := agents[o.who]
		if !a.Running() {
			s.t.Fatalf("%s ended by itself\n%s", a.Name, a.Tail())
		}
		s.t.Logf("%6.2f s: kill -9 %s, start it %d ms later", time.Since(began).Seconds(), a.Name, o.down.Milliseconds())
		a.Kill()
		starts[o.who] = o.at + o.down
	}
	startDue(1 << 62)
	for _, a := range agents {
		s.check(s.within(startPatience, a.WaitReady))
	}
}

// terminate stops all agents as an operator would.
func (s *site) terminate() {
	s.t.Helper()
	s.check(s.fleet.Stop())
}
