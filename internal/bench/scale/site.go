package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
)

const (
	jobName = "scale"
	jobFile = `name: scale
checkpoint: {interval: INTERVAL, min_pause: 0s, timeout: 10m}
sources:
  in: {file: {path: "DIR/{agent}.txt", follow: true}, on: {role: gateway}}
operators:
  count: {native: count, from: in, key_by: key, parallelism: PARALLEL, on: {role: hub}}
sinks:
  out: {file: {path: "DIR/out-{task}.txt"}, from: count}
`
	// patience bounds each wait for the fleet to settle: a loaded machine is slow, not wrong.
	patience = 20 * time.Minute
	// looksEvery is how often the hub is asked for a number that it has at hand.
	looksEvery = 50 * time.Millisecond
	// asksEvery is how often it is asked for what it asks all agents for. It is not done while a phase is measured.
	asksEvery = 500 * time.Millisecond
	// lineEvery is how often each gateway gets a line.
	lineEvery = time.Second
)

// site is one fleet.
type site struct {
	settings
	trial
	dir   string
	fleet *fleet.Fleet
	hub   *fleet.Agent
	gate  *fleet.Process
	nc    *nats.Conn
	js    jetstream.JetStream
	pprof string // address; empty: none
}

func (t *site) run(ctx context.Context) error {
	if err := t.start(ctx); err != nil {
		return err
	}
	if err := t.phase(ctx, "fleet", nil); err != nil {
		return err
	}
	often, seldom := t.intervals[0], t.intervals[1]
	began := time.Now()
	if err := t.apply(ctx, seldom); err != nil {
		return err
	}
	if err := t.until(ctx, "the job is up", asksEvery, t.runs); err != nil {
		return err
	}
	t.jobUp = time.Since(began)
	if err := t.until(ctx, "the job rests", asksEvery, t.rests); err != nil {
		return err
	}
	if err := t.phase(ctx, "silent", nil); err != nil {
		return err
	}
	if err := t.withData(ctx, seldom); err != nil {
		return err
	}
	if err := t.apply(ctx, often); err != nil {
		return err
	}
	if err := t.withData(ctx, often); err != nil {
		return err
	}
	return t.sizes(ctx)
}

// start starts the hub and the gateways and waits until the hub knows that all are up.
func (t *site) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if t.profile == t.gateways {
		if t.pprof, err = fleet.FreeAddr(); err != nil {
			return err
		}
	}
	if err := os.Setenv(pprofAt, t.pprof); err != nil {
		return err
	}
	t.fleet = fleet.New(self, t.dir)
	if t.hub, err = t.fleet.Add(fleet.Options{Name: "hub", Label: "role=hub"}); err != nil {
		return err
	}
	if err := t.fleet.Start(ctx); err != nil {
		return err
	}
	for i := range t.gateways {
		if err := os.WriteFile(t.input(i), nil, 0o600); err != nil {
			return err
		}
	}
	url := "nats://" + t.hub.NATS
	if t.nc, err = nats.Connect(url); err != nil {
		return err
	}
	if t.js, err = jetstream.New(t.nc); err != nil {
		return err
	}
	out, err := os.Create(t.gateOutput())
	if err != nil {
		return err
	}
	cmd := exec.Command(self, roleGateways, "-n", strconv.Itoa(t.gateways), "-dir", t.dir, "-nats", url)
	cmd.Stdout, cmd.Stderr = out, out
	began := time.Now()
	t.gate, err = fleet.StartProcess(cmd)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	err = t.until(ctx, "all agents are up", asksEvery, func(ctx context.Context) (bool, string, error) {
		agents, err := t.hub.Client().Agents(ctx)
		up := api.Up(agents)
		return up == t.gateways+1, fmt.Sprintf("%d of %d", up, t.gateways+1), err
	})
	t.fleetUp = time.Since(began)
	return err
}

func (t *site) input(i int) string { return filepath.Join(t.dir, gatewayName(i)+".txt") }
func (t *site) gateOutput() string { return filepath.Join(t.dir, "gateways.log") }

// close ends the processes, as a power cut would: the fleet is not used again.
func (t *site) close() {
	if t.nc != nil {
		t.nc.Close()
	}
	if t.gate != nil {
		t.gate.Kill()
	}
	if t.fleet != nil {
		t.fleet.Kill()
	}
}

// tails is the end of what the processes have printed.
func (t *site) tails() string {
	if t.fleet == nil {
		return ""
	}
	b, err := os.ReadFile(t.gateOutput())
	if err != nil {
		return t.fleet.Tails()
	}
	return t.fleet.Tails() + "--- end of the output of the gateways\n" + string(b[max(0, len(b)-4096):])
}

// apply applies the job. A hub that is busy with hundreds of agents that have just come may not be able to at once.
func (t *site) apply(ctx context.Context, interval time.Duration) error {
	text := strings.NewReplacer("INTERVAL", interval.String(), "PARALLEL", strconv.Itoa(t.parallel), "DIR", t.dir).Replace(jobFile)
	return t.until(ctx, "the job is applied", asksEvery, func(ctx context.Context) (bool, string, error) {
		_, err := t.hub.Client().ApplyJob(ctx, api.JobSource{File: "scale.yaml", YAML: text}, patience)
		return err == nil, "it is not", err
	})
}

// runs says whether all tasks run and a checkpoint counts.
func (t *site) runs(ctx context.Context) (bool, string, error) {
	j, err := t.hub.Client().Job(ctx, jobName)
	running, of := 0, t.gateways+t.parallel
	for _, task := range j.Tasks {
		if task.State == api.TaskRunning {
			running++
		}
	}
	if err == nil && running == of {
		_, err = t.epoch(ctx)
	}
	return running == of, fmt.Sprintf("%d of %d tasks run", running, of), err
}

// rests says whether nothing has changed since the last checkpoint.
func (t *site) rests(ctx context.Context) (bool, string, error) {
	j, err := t.hub.Client().Job(ctx, jobName)
	return strings.HasPrefix(j.Waits, "nothing has changed"), "the next checkpoint waits: " + j.Waits, err
}

// until asks again and again until yes. An error is only reported if it stays: an agent that is busy may answer late.
func (t *site) until(ctx context.Context, what string, every time.Duration, ask func(context.Context) (bool, string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		yes, state, err := ask(ctx)
		if yes && err == nil {
			return nil
		}
		select {
		case <-t.gate.Gone():
			return fmt.Errorf("waiting until %s: the gateways' process ended: %w", what, t.gate.Err())
		case <-t.hub.Gone():
			return fmt.Errorf("waiting until %s: the hub ended", what)
		default:
		}
		if !fleet.Sleep(ctx, every) {
			return errors.Join(fmt.Errorf("waiting until %s: %s: %w", what, state, ctx.Err()), err)
		}
	}
}

// withData measures a phase in which every gateway gets lines.
func (t *site) withData(ctx context.Context, interval time.Duration) error {
	feeding, stop := context.WithCancel(ctx)
	fed := make(chan error, 1)
	go func() { fed <- t.feed(feeding) }()
	err := t.phase(ctx, "data, "+interval.String(), t.epoch)
	stop()
	return errors.Join(err, <-fed)
}

// feed appends a line to every input in turn, as often as is due, until ctx ends.
func (t *site) feed(ctx context.Context) error {
	files := make([]*os.File, t.gateways)
	for i := range files {
		f, err := os.OpenFile(t.input(i), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		files[i] = f
	}
	for n := 0; ; n++ {
		began := time.Now()
		for i, f := range files {
			if !fleet.Sleep(ctx, time.Until(began.Add(lineEvery*time.Duration(i)/time.Duration(t.gateways)))) {
				return nil
			}
			if _, err := fmt.Fprintf(f, "%s-%d %d\n", gatewayName(i), n%64, n); err != nil {
				return err
			}
		}
		if !fleet.Sleep(ctx, time.Until(began.Add(lineEvery))) {
			return nil
		}
	}
}

// epoch is the newest checkpoint that counts, from the hub's metrics: to answer these it asks nobody.
func (t *site) epoch(ctx context.Context) (uint64, error) {
	body, err := fetch(ctx, t.hub.URL()+"/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if v, ok := strings.CutPrefix(line, `weir_checkpoint_epoch{job="`+jobName+`",state="replicated"} `); ok {
			return strconv.ParseUint(strings.TrimSpace(v), 10, 64)
		}
	}
	return 0, errors.New("the hub's metrics name no checkpoint")
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// phase measures for the window. With an epoch it begins and ends when a checkpoint has just come to count, the
// first time after as many as settle the fleet, so that it holds whole ones only.
func (t *site) phase(ctx context.Context, name string, epoch func(context.Context) (uint64, error)) error {
	edge := func(past uint64) (at uint64, err error) {
		if epoch == nil {
			return 0, nil
		}
		err = t.until(ctx, fmt.Sprintf("checkpoint %d counts", past+1), looksEvery, func(ctx context.Context) (bool, string, error) {
			e, err := epoch(ctx)
			at = e
			return e > past, fmt.Sprintf("%d does", e), err
		})
		return at, err
	}
	var first uint64
	if epoch != nil {
		e, err := epoch(ctx)
		if err == nil {
			first, err = edge(e + uint64(t.settle) - 1)
		}
		if err != nil {
			return err
		}
	}
	before, err := t.look()
	if err != nil {
		return err
	}
	profiled := make(chan error, 1)
	go func() { profiled <- t.profileHub(ctx, name) }()
	if !fleet.Sleep(ctx, t.window) {
		return ctx.Err()
	}
	last := first
	if epoch != nil {
		e, err := epoch(ctx)
		if err == nil {
			last, err = edge(e)
		}
		if err != nil {
			return err
		}
	}
	after, err := t.look()
	if err != nil {
		return errors.Join(err, <-profiled)
	}
	p := phase{name: name, look: after.since(before), hubRSS: after.hubRSS, gateRSS: after.gateRSS}
	if epoch != nil {
		if p.took, err = t.durations(ctx, first, last); err != nil {
			return err
		}
		p.checkpoints = int(last - first)
	}
	t.phases = append(t.phases, p)
	return <-profiled
}

// durations are those of the checkpoints after first up to last, from start until they count, in milliseconds. The
// control plane keeps some dozens.
func (t *site) durations(ctx context.Context, first, last uint64) ([]float64, error) {
	list, err := t.hub.Client().Checkpoints(ctx, jobName)
	if err != nil {
		return nil, err
	}
	var took []float64
	for _, c := range list {
		if c.Epoch > first && c.Epoch <= last && c.State == api.CheckpointReplicated {
			took = append(took, c.TookMS+c.ReplicateMS)
		}
	}
	slices.Sort(took)
	return took, nil
}

// profileHub writes the hub's CPU profile of a phase, if one is wanted.
func (t *site) profileHub(ctx context.Context, phase string) error {
	if t.pprof == "" {
		return nil
	}
	seconds := max(1, int(t.window.Seconds()))
	body, err := fetch(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", t.pprof, seconds))
	if err != nil {
		return fmt.Errorf("profile of the hub: %w", err)
	}
	if err := os.MkdirAll(t.out, 0o755); err != nil {
		return err
	}
	name := fmt.Sprintf("hub-%d-%s.pprof", t.gateways, strings.ReplaceAll(phase, ", ", "-"))
	return os.WriteFile(filepath.Join(t.out, name), body, 0o644)
}

// look is what the counters say at one moment, or between two.
type look struct {
	at              time.Time
	seconds         float64 // between two
	hubCPU, gateCPU time.Duration
	in, out         traffic // published by clients, sent to them
	hubRSS, gateRSS int64   // bytes
}

type traffic struct {
	Msgs  int64 `json:"msgs"`
	Bytes int64 `json:"bytes"`
}

func (a look) since(b look) look {
	return look{
		seconds: a.at.Sub(b.at).Seconds(), hubCPU: a.hubCPU - b.hubCPU, gateCPU: a.gateCPU - b.gateCPU,
		in: traffic{a.in.Msgs - b.in.Msgs, a.in.Bytes - b.in.Bytes}, out: traffic{a.out.Msgs - b.out.Msgs, a.out.Bytes - b.out.Bytes},
	}
}

func (t *site) look() (l look, err error) {
	if l.in, l.out, err = t.counters(); err != nil {
		return l, err
	}
	l.at = time.Now()
	if l.hubCPU, l.hubRSS, err = usage(t.hub.PID()); err != nil {
		return l, fmt.Errorf("hub: %w", err)
	}
	if l.gateCPU, l.gateRSS, err = usage(t.gate.PID()); err != nil {
		return l, fmt.Errorf("gateways: %w", err)
	}
	return l, nil
}

// counters asks the NATS server for those of its account, which all agents are in.
func (t *site) counters() (in, out traffic, err error) {
	m, err := t.nc.Request("$SYS.REQ.ACCOUNT.PING.STATZ", nil, time.Minute)
	if err != nil {
		return in, out, fmt.Errorf("counters of the NATS server: %w", err)
	}
	var answer struct {
		Data struct {
			Accounts []struct {
				Sent     traffic `json:"sent"`
				Received traffic `json:"received"`
			} `json:"account_statz"`
		} `json:"data"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil || len(answer.Data.Accounts) != 1 {
		return in, out, fmt.Errorf("counters of the NATS server: it answered %.200q (%v)", m.Data, err)
	}
	a := answer.Data.Accounts[0]
	return a.Received, a.Sent, nil
}

// usage is the processor time and the resident memory, in bytes, of a process.
func usage(pid int) (time.Duration, int64, error) {
	cpu, err := fleet.CPUTime(pid)
	if err != nil {
		return 0, 0, err
	}
	rss, err := fleet.Memory(pid, "VmRSS")
	return cpu, rss, err
}

// sizes asks what the control plane and the object stores hold at the end.
func (t *site) sizes(ctx context.Context) error {
	for _, b := range []struct {
		of   *store
		name string
	}{{&t.kv, "KV_weir-checkpoints"}, {&t.objects, "OBJ_weir-snapshots"}} {
		s, err := t.js.Stream(ctx, b.name)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		st := s.CachedInfo().State
		*b.of = store{msgs: int64(st.Msgs), bytes: int64(st.Bytes)}
	}
	t.manifest = 0
	kv, err := t.js.KeyValue(ctx, "weir-checkpoints")
	if err != nil {
		return err
	}
	e, err := t.epoch(ctx)
	if err != nil {
		return err
	}
	v, err := kv.Get(ctx, fmt.Sprintf("e.%s.%020d", jobName, e))
	if err != nil {
		return fmt.Errorf("record of checkpoint %d: %w", e, err)
	}
	t.manifest = len(v.Value())
	return nil
}
