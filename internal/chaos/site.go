package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-stream/weir/examples"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
	"github.com/weir-stream/weir/internal/trial"
	"github.com/weir-stream/weir/internal/trial/lossy"
)

// Limits of the trial's patience. A slow machine is no failure.
const (
	startPatience = 2 * time.Minute
	applyPatience = 3 * time.Minute
	askPatience   = 3 * time.Second
	// stuckAfter nothing new, what is missing will not come any more.
	stuckAfter = 3 * time.Minute
	// quietFor is how long nothing new must have come before the verdict.
	quietFor  = 3 * time.Second
	lookEvery = 500 * time.Millisecond
)

const gateways = 4

// program is the agent that is tried and its operators.
type program struct {
	agent     string
	operators map[string]string // files by the name in job files
}

// build makes the agent and the operators in a directory.
func build(ctx context.Context, dir string) (program, error) {
	p := program{agent: filepath.Join(dir, "agent"), operators: map[string]string{}}
	g, ctx := errgroup.WithContext(ctx)
	run := func(cmd *exec.Cmd) error {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
		return nil
	}
	g.Go(func() error {
		return run(exec.CommandContext(ctx, "go", "build", "-o", p.agent, "github.com/weir-stream/weir/cmd/agent"))
	})
	for _, name := range []string{"tally", "watch", "learn", "window"} {
		file := filepath.Join(dir, name+".wasm")
		p.operators["./"+name+".wasm"] = file
		g.Go(func() error {
			switch name {
			case "watch", "learn":
				return examples.BuildOperator(ctx, "feedback/"+name, file)
			case "window":
				return examples.BuildOperator(ctx, "operators/"+name, file)
			}
			cmd := exec.CommandContext(ctx, "go", "build", "-buildmode=c-shared", "-o", file, "github.com/weir-stream/weir/internal/chaos/tally")
			cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
			return run(cmd)
		})
	}
	return p, g.Wait()
}

// device is an agent with what is around it.
type device struct {
	*fleet.Agent
	disk *lossy.Disk  // nil: plain
	link *trial.Proxy // to the hub; nil: it is the hub, or apart

	down, frozen bool
	damaged      bool           // its snapshots were, and are not known to be whole again
	hurt         bool           // they were before its process started
	starts       int            // of its process
	rss          int64          // the most seen, bytes
	files        int64          // likewise
	back         map[string]int // how often each task of the process came back
	seen         string         // the recoveries of the process that have been noted
}

// theSite is everything in a round.
type theSite struct {
	ctx     context.Context
	dir     string
	built   program
	say     func(format string, args ...any)
	fleet   *fleet.Fleet
	devices []*device // the hub first; the broker is not among them
	broker  *device
	conf    string         // of mosquitto; empty: there is none
	mosq    *fleet.Process // it
	mosqAt  string
	proxies []*trial.Proxy // of the brokers: of mosquitto, if there is one, then of the embedded one
	streams []*stream
	total   int // readings of each stream
	running sync.WaitGroup
	stop    context.CancelFunc
	failed  chan error // of who reads and who sends

	mu   sync.Mutex
	book *book

	lost      map[string]uint64 // by job: the newest epoch that the server may have had when it lost its files
	newest    map[string]uint64 // by job: the newest replicated epoch seen
	recovered map[string]int    // recoveries by level
	slowest   time.Duration
	restarts  []string
}

// jobNames are the jobs, in the order in which they are applied.
var jobNames = []string{"chain", "shuffle", "feedback", "windows"}

// play runs one round.
func play(ctx context.Context, dir string, built program, o options, seed uint64, lasts time.Duration) (err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	s := newSite(ctx, dir, built)
	defer func() { err = errors.Join(err, s.close(err != nil)) }()
	if err := s.set(o, lasts); err != nil {
		return err
	}
	events := plan(seed, lasts, len(s.devices), len(s.proxies), s.broker.disk != nil)
	s.say("the site is set: %d agents, %d brokers, %d faults", len(s.devices)+1, len(s.proxies), len(events))
	s.send(lasts)
	if err := s.disturb(events); err != nil {
		return err
	}
	s.say("all faults are over")
	return s.judge()
}

func newSite(ctx context.Context, dir string, built program) *theSite {
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	return &theSite{
		ctx: ctx, dir: dir, built: built, stop: cancel, failed: make(chan error, 100), book: newBook(),
		lost: map[string]uint64{}, newest: map[string]uint64{}, recovered: map[string]int{},
		say: func(format string, args ...any) {
			fmt.Printf("%7.2f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
		},
	}
}

func (s *theSite) close(failed bool) error {
	if failed && s.fleet != nil {
		fmt.Print(s.fleet.Tails())
	}
	s.stop()
	for _, p := range s.proxies {
		p.Close()
	}
	if s.fleet != nil {
		for _, a := range s.fleet.Agents() {
			a.Signal(syscall.SIGCONT)
		}
		s.fleet.Kill()
	}
	if s.mosq != nil {
		s.mosq.Kill()
	}
	var errs []error
	for _, d := range s.all() {
		if d.link != nil {
			d.link.Close()
		}
		if d.disk != nil {
			errs = append(errs, d.disk.Close())
		}
	}
	s.running.Wait()
	return errors.Join(errs...)
}

// all is every agent, the broker last.
func (s *theSite) all() []*device {
	if s.broker == nil {
		return s.devices
	}
	return append(s.devices[:len(s.devices):len(s.devices)], s.broker)
}

// add makes an agent with its disk and its link.
func (s *theSite) add(o *options, name, role string, hub *device) (*device, error) {
	d := &device{back: map[string]int{}}
	opt := fleet.Options{Name: name, Label: "role=" + role, MQTT: role == "broker"}
	if o.disk != "plain" {
		disk, err := lossy.New(s.dir, name, "nats")
		if errors.Is(err, lossy.ErrNoDisk) && o.disk == "auto" {
			fmt.Printf("%v: disks are plain ones, a kill loses nothing that was written, no disk is full or slow\n", err)
			o.disk = "plain"
		} else if err != nil {
			return nil, err
		} else {
			d.disk = disk
			opt.Dir = disk.Dir
		}
	}
	if hub != nil {
		var err error
		if d.link, err = s.proxy(hub.NATS); err != nil {
			return d, err
		}
		opt.Hub, opt.Via = hub.Agent, d.link.Addr()
	}
	var err error
	d.Agent, err = s.fleet.Add(opt)
	return d, err
}

// addAll makes the broker, and agents of which the first is the others' hub.
func (s *theSite) addAll(o *options, names, roles []string) (err error) {
	s.fleet = fleet.New(s.built.agent, s.dir)
	if s.broker, err = s.add(o, "broker", "broker", nil); err != nil {
		return err
	}
	var hub *device
	for i, name := range names {
		d, err := s.add(o, name, roles[i], hub)
		if d != nil {
			s.devices = append(s.devices, d)
		}
		if err != nil {
			return err
		}
		if hub == nil {
			hub = d
		}
	}
	return nil
}

// gatewaysAfter are names and roles of agents, with so many gateways behind them.
func gatewaysAfter(first []string, n int) (names, roles []string) {
	names, roles = append(names, first...), append(roles, first...)
	for g := range n {
		names, roles = append(names, fmt.Sprint("g", g+1)), append(roles, "gateway")
	}
	return names, roles
}

// set makes the site and applies the jobs.
func (s *theSite) set(o options, lasts time.Duration) error {
	names, roles := gatewaysAfter([]string{"hub", "plant"}, gateways)
	if err := s.addAll(&o, names, roles); err != nil {
		return err
	}
	if err := s.startMosquitto(); err != nil {
		return err
	}
	if err := s.within(startPatience, s.fleet.Start); err != nil {
		return err
	}
	embedded, err := s.proxy(s.broker.MQTT)
	if err != nil {
		return err
	}
	s.proxies = append(s.proxies, embedded)
	if err := s.listen(); err != nil {
		return err
	}
	// A whole number of readings of each sensor.
	s.total = max(1, int(lasts.Seconds()*rate)/sensors) * sensors
	return s.apply()
}

// proxy makes one and runs it until the site is closed.
func (s *theSite) proxy(target string) (*trial.Proxy, error) {
	p, err := trial.NewProxy(target)
	if err == nil {
		s.running.Go(p.Run)
	}
	return p, err
}

// startMosquitto starts it with the packaged configuration, if it is installed.
func (s *theSite) startMosquitto() error {
	if _, err := exec.LookPath("mosquitto"); err != nil {
		s.say("no mosquitto here: the embedded broker serves all jobs")
		return nil
	}
	packaged, err := os.ReadFile("packaging/mosquitto.conf")
	if err != nil {
		return err
	}
	if s.mosqAt, err = fleet.FreeAddr(); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(s.mosqAt)
	if err != nil {
		return err
	}
	store := filepath.Join(s.dir, "mosquitto")
	if err := os.Mkdir(store, 0o755); err != nil {
		return err
	}
	conf := strings.NewReplacer("listener 1883 127.0.0.1", "listener "+port+" 127.0.0.1",
		"persistence_location broker/", "persistence_location "+store+"/").Replace(string(packaged))
	if os.Getuid() == 0 {
		conf += "user root\n" // the directory is ours alone
	}
	s.conf = filepath.Join(s.dir, "mosquitto.conf")
	if err := os.WriteFile(s.conf, []byte(conf), 0o600); err != nil {
		return err
	}
	p, err := s.proxy(s.mosqAt)
	if err != nil {
		return err
	}
	s.proxies = append(s.proxies, p)
	return s.runMosquitto()
}

func (s *theSite) runMosquitto() error {
	out, err := os.OpenFile(filepath.Join(s.dir, "mosquitto.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command("mosquitto", "-c", s.conf)
	cmd.Stdout, cmd.Stderr = out, out
	s.mosq, err = fleet.StartProcess(cmd)
	return err
}

// brokers are the addresses at which the jobs' first and other broker are reached: by agents, and by clients.
func (s *theSite) brokers() (plain, other, plainAt, otherAt string) {
	p := s.proxies
	plainAt, otherAt = s.mosqAt, s.broker.MQTT
	if s.mosqAt == "" {
		plainAt = otherAt
	}
	return p[0].Addr(), p[len(p)-1].Addr(), plainAt, otherAt
}

// once is the quality of service at which the first broker lets a job be exact.
func (s *theSite) once() byte {
	if s.mosqAt == "" {
		return 1
	}
	return 2
}

// listen subscribes to all that the sinks publish.
func (s *theSite) listen() error {
	_, _, plainAt, otherAt := s.brokers()
	readers := []*trial.Reader{{Name: "reader-other", Broker: otherAt, QoS: 1}}
	if plainAt != otherAt {
		readers = append(readers, &trial.Reader{Name: "reader-plain", Broker: plainAt, QoS: 2})
	}
	for _, r := range readers {
		r.Filter, r.Subscribed = "out/#", make(chan struct{})
		r.Take = func(topic string, payload []byte) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.book.take(topic, payload)
		}
		s.running.Go(func() {
			if err := r.Run(s.ctx); err != nil {
				s.failed <- err
			}
		})
		select {
		case <-r.Subscribed:
		case <-time.After(startPatience):
			return fmt.Errorf("the broker at %s did not take a subscription within %s", r.Broker, startPatience)
		case err := <-s.failed:
			return err
		}
	}
	return nil
}

func (s *theSite) apply() error {
	c := s.devices[0].Client()
	modules := map[string]string{}
	for as, file := range s.built.operators {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		m, err := c.PushModule(s.ctx, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("push %s: %w", as, err)
		}
		modules[as] = m.Digest
	}
	if err := s.known(); err != nil {
		return err
	}
	plain, other, _, _ := s.brokers()
	for i, text := range []string{chainJob, shuffleJob, loopJob, windowsJob} {
		used := map[string]string{}
		for as, digest := range modules {
			if strings.Contains(text, as) {
				used[as] = digest
			}
		}
		text = strings.NewReplacer("PLAIN", plain, "OTHER", other, "ONCE", fmt.Sprint(s.once())).Replace(text)
		src := api.JobSource{File: jobNames[i] + ".yaml", YAML: text, Modules: used}
		if _, err := c.ApplyJob(s.ctx, src, applyPatience); err != nil {
			return fmt.Errorf("apply %s: %w", jobNames[i], err)
		}
	}
	return nil
}

// known waits until the hub knows all agents: a job is planned for those.
func (s *theSite) known() error {
	return s.until(startPatience, "all agents to be known", func(ctx context.Context) bool {
		list, err := s.devices[0].Client().Agents(ctx)
		return err == nil && api.Up(list) == len(s.devices)
	})
}

// send lets all sensors send.
func (s *theSite) send(lasts time.Duration) {
	_, _, plainAt, otherAt := s.brokers()
	for g := range gateways {
		s.streams = append(s.streams, newStream("chain", g, plainAt, s.once(), s.total),
			newStream("shuffle", g, otherAt, 1, s.total), newStream("loop", g, plainAt, 1, s.total),
			newStream("windows", g, plainAt, 1, s.total))
	}
	for _, st := range s.streams {
		st.sender.Held.Store(false)
		s.running.Go(func() {
			if err := st.sender.Send(s.ctx, s.total); err != nil && s.ctx.Err() == nil {
				s.failed <- err
			}
		})
	}
}

func (s *theSite) within(patience time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	return f(ctx)
}

// until asks again and again, until the answer is yes.
func (s *theSite) until(patience time.Duration, what string, yes func(context.Context) bool) error {
	return s.within(patience, func(ctx context.Context) error {
		for !yes(ctx) {
			if !fleet.Sleep(ctx, lookEvery) {
				if s.ctx.Err() != nil {
					return fmt.Errorf("interrupted while it waited for %s", what)
				}
				return fmt.Errorf("waited %s for %s", patience, what)
			}
			if err := s.trouble(); err != nil {
				return err
			}
		}
		return nil
	})
}

// trouble is what readers and senders cannot go on with.
func (s *theSite) trouble() error {
	select {
	case err := <-s.failed:
		return err
	default:
		return s.ctx.Err()
	}
}

// chance is that of one fault.
func chance(e event) *rand.Rand { return rand.New(rand.NewPCG(e.seed, 2)) }
