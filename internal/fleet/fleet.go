// Package fleet runs agents as processes of their own on this machine, kills them and starts them again,
// for the demo and for tests.
//
// An agent's directory and addresses outlive its process. A process does not outlive the one that
// started it, whatever ends that one (where the operating system can promise it).
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

// Limits of waiting for processes.
const (
	// stopPatience is how long an agent may take to stop after SIGTERM. It closes its files and
	// connections; it does not drain.
	stopPatience = 15 * time.Second
	// pollEvery is short beside the time that an agent takes to start.
	pollEvery = 20 * time.Millisecond
	// tailBytes is what is shown of the end of an agent's output.
	tailBytes = 4 << 10
)

// Fleet is a set of agents below one directory.
type Fleet struct {
	program string
	dir     string
	agents  []*Agent
}

// New makes an empty fleet. program is the agent's binary; everything that agents write is below dir.
func New(program, dir string) *Fleet { return &Fleet{program: program, dir: dir} }

// Options are how an agent is to run.
type Options struct {
	Name  string
	Label string // K=V
	// Hub is the agent whose NATS server is used; nil: this one runs a server.
	Hub *Agent
	// Via is where the hub's server is reached instead, such as a proxy's address; empty: at the hub's own.
	Via string
	// MQTT tells whether an agent with a server has an MQTT listener.
	MQTT bool
	// Dir is the agent's directory; empty: one below the fleet's.
	Dir string
}

// Agent is one agent: a directory, addresses, and at times a process. Its methods may be called by one
// goroutine at a time.
type Agent struct {
	Name string
	Dir  string // its --data
	HTTP string // HOST:PORT
	NATS string // empty: none
	MQTT string // empty: none

	program string
	args    []string
	output  string // file
	client  *api.Client
	proc    *Process // nil: never started
}

// Add makes an agent and picks its addresses, which it keeps over restarts.
func (f *Fleet) Add(opt Options) (*Agent, error) {
	a := &Agent{Name: opt.Name, Dir: filepath.Join(f.dir, opt.Name), output: filepath.Join(f.dir, opt.Name+".log"), program: f.program}
	a.Dir = cmp.Or(opt.Dir, a.Dir)
	var err error
	if a.HTTP, err = FreeAddr(); err != nil {
		return nil, err
	}
	a.args = []string{"run", "--data", a.Dir, "--name", a.Name, "--http", a.HTTP}
	if opt.Label != "" {
		a.args = append(a.args, "--label", opt.Label)
	}
	if opt.Hub != nil {
		a.args = append(a.args, "--nats", "nats://"+cmp.Or(opt.Via, opt.Hub.NATS))
	} else if err := a.serve(opt.MQTT); err != nil {
		return nil, err
	}
	if a.client, err = api.NewClient(a.URL()); err != nil {
		return nil, err
	}
	f.agents = append(f.agents, a)
	return a, nil
}

// serve gives the agent the addresses of a server.
func (a *Agent) serve(withMQTT bool) (err error) {
	if a.NATS, err = FreeAddr(); err != nil {
		return err
	}
	listen := "off"
	if withMQTT {
		if a.MQTT, err = FreeAddr(); err != nil {
			return err
		}
		listen = a.MQTT
	}
	a.args = append(a.args, "--nats-listen", a.NATS, "--mqtt-listen", listen)
	return nil
}

// Agents are all agents in the order in which they were added.
func (f *Fleet) Agents() []*Agent { return f.agents }

// Start starts all agents and waits until they are ready.
func (f *Fleet) Start(ctx context.Context) error {
	for _, a := range f.agents {
		if err := a.Start(); err != nil {
			return err
		}
	}
	for _, a := range f.agents {
		if err := a.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Kill kills all agents, as a power cut would, and returns when they are gone.
func (f *Fleet) Kill() {
	for _, a := range f.agents {
		if a.proc != nil {
			a.proc.Signal(syscall.SIGKILL)
		}
	}
	for _, a := range f.agents {
		a.Kill()
	}
}

// Stop stops all agents as an operator would, and returns when they are gone.
func (f *Fleet) Stop() error {
	var errs []error
	for _, a := range f.agents {
		errs = append(errs, a.Stop())
	}
	return errors.Join(errs...)
}

// Tails is the end of every agent's output, for people.
func (f *Fleet) Tails() string {
	var s string
	for _, a := range f.agents {
		s += fmt.Sprintf("--- end of the output of %s\n%s", a.Name, a.Tail())
	}
	return s
}

// URL is where the agent's API is.
func (a *Agent) URL() string { return "http://" + a.HTTP }

// Client talks to the agent's API.
func (a *Agent) Client() *api.Client { return a.client }

// Start starts the agent's process. Its output goes on at the end of the file that it has.
func (a *Agent) Start() error {
	if a.Running() {
		panic("fleet: agent " + a.Name + " runs already")
	}
	out, err := os.OpenFile(a.output, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(a.program, a.args...)
	cmd.Stdout, cmd.Stderr = out, out
	p, err := StartProcess(cmd)
	err = errors.Join(err, out.Close()) // the process has its own
	if err != nil {
		return fmt.Errorf("start agent %s: %w", a.Name, err)
	}
	a.proc = p
	return nil
}

// Running tells whether the agent's process runs.
func (a *Agent) Running() bool {
	if a.proc == nil {
		return false
	}
	select {
	case <-a.proc.Gone():
		return false
	default:
		return true
	}
}

// Gone is closed when the process that was started last has ended.
func (a *Agent) Gone() <-chan struct{} { return a.proc.Gone() }

// Started is when the process that was started last began.
func (a *Agent) Started() time.Time { return a.proc.Started() }

// PID is the process that was started last.
func (a *Agent) PID() int { return a.proc.PID() }

// Signal tells the agent's process something, if it runs.
func (a *Agent) Signal(s os.Signal) {
	if a.proc != nil {
		a.proc.Signal(s)
	}
}

// Kill kills the agent's process with SIGKILL, if it runs, and returns when it is gone.
func (a *Agent) Kill() {
	if a.proc == nil {
		return
	}
	a.proc.Kill()
}

// Stop stops the agent with SIGTERM, if it runs, and returns when it is gone.
func (a *Agent) Stop() error {
	if !a.Running() {
		return nil
	}
	a.proc.Signal(syscall.SIGTERM)
	t := time.NewTimer(stopPatience)
	defer t.Stop()
	select {
	case <-a.proc.Gone():
		return a.proc.Err()
	case <-t.C:
		a.Kill()
		return fmt.Errorf("agent %s did not stop within %s and was killed", a.Name, stopPatience)
	}
}

// WaitReady waits until the agent answers that it is ready; an agent that ends before is an error.
func (a *Agent) WaitReady(ctx context.Context) error {
	for {
		select {
		case <-a.proc.Gone():
			return fmt.Errorf("agent %s ended instead of becoming ready: %w", a.Name, errors.Join(a.proc.Err(), errors.New(a.Tail())))
		default:
		}
		if a.ready(ctx) {
			return nil
		}
		if !Sleep(ctx, pollEvery) {
			return fmt.Errorf("agent %s is not ready: %w", a.Name, ctx.Err())
		}
	}
}

// readyPatience bounds one question to an agent that may just be killed.
const readyPatience = 2 * time.Second

func (a *Agent) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL()+"/readyz", nil)
	if err != nil {
		return false
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Tail is the end of the agent's output.
func (a *Agent) Tail() string {
	f, err := os.Open(a.output)
	if err != nil {
		return err.Error() + "\n"
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > tailBytes {
		if _, err := f.Seek(-tailBytes, io.SeekEnd); err != nil {
			return err.Error() + "\n"
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error() + "\n"
	}
	return string(b)
}

// Sleep waits for d and tells whether ctx lasts.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Ports that [FreeAddr] picks from lie below those that operating systems give to outgoing connections:
// one that is tried while its listener is down could otherwise be given to the very connection that
// tries it.
const (
	lowPort  = 20000
	highPort = 32000
)

var (
	given   = map[int]bool{}
	givenMu sync.Mutex
)

// FreeAddr finds a port of this machine on which nobody listens, to be used for longer than one
// listener lives. It never gives the same one twice.
func FreeAddr() (string, error) {
	const tries = 200 // far more than there are listeners among the ports
	givenMu.Lock()
	defer givenMu.Unlock()
	var last error
	for range tries {
		port := lowPort + rand.IntN(highPort-lowPort)
		if given[port] {
			continue
		}
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			last = err
			continue
		}
		given[port] = true
		return l.Addr().String(), l.Close()
	}
	return "", fmt.Errorf("no free port found on 127.0.0.1: %w", last)
}
