//go:build mosquitto

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/fleet"
	"github.com/weir-stream/weir/internal/trial"
)

// outageJob passes on what comes. Its sink reaches the broker through a proxy.
const outageJob = `name: outage-QOS
checkpoint: {interval: 5s}
sources:
  in: {mqtt: {broker: "tcp://BROKER", topics: [in/x], qos: 1}}
sinks:
  out: {mqtt: {broker: "tcp://PROXY", topic: out/QOS, payload: "{number} {value}", qos: QOS, in_flight: 450}, from: in}
`

// How much an outage may cost, and how fast it must be over.
const (
	outageRate    = 1000 // messages a second, all the time
	outageText    = 200  // bytes of a message
	outageMemory  = 64 << 20
	outageRatio   = 5 // times the live rate, at which what waited must come; in the whole form
	outageWhole   = 10 * time.Minute
	outageShort   = 5 * time.Second
	outageBacklog = outageRate / 2 // messages on the way that are no backlog
)

// TestMQTTOutage takes the broker away from a job's sinks for ten minutes while a thousand messages a second come: the
// agent's memory stays as it is, its log stays within its budget, and when the broker is back everything arrives, in
// order, at QoS 2 once, at five times the rate at which messages still come or faster. In the short form the broker is
// away for seconds, no more messages come when it is back, and the rate is only told.
func TestMQTTOutage(t *testing.T) {
	away, whole := outageShort, os.Getenv("WEIR_E2E_CHAOS") == "whole"
	if whole {
		away = outageWhole
	}
	s := emptySite(t)
	s.startBroker()
	s.fleet = fleet.New(agentBinary(), s.dir)
	var err error
	s.hub, err = s.fleet.Add(fleet.Options{Name: "g1"})
	s.must(err)
	s.must(s.within(startPatience, s.fleet.Start))
	var outs []*arrivals
	for qos := byte(1); qos <= 2; qos++ { // a job each: a sink that waits holds up the others of its task
		a := s.arrivals(qos)
		outs = append(outs, a)
		file := filepath.Join(s.dir, fmt.Sprintf("outage-%d.yaml", qos))
		text := strings.NewReplacer("QOS", strconv.Itoa(int(qos)), "BROKER", s.broker, "PROXY", a.proxy.Addr()).Replace(outageJob)
		s.must(os.WriteFile(file, []byte(text), 0o600))
		s.cli("job", "apply", file)
	}

	pad := strings.Repeat("x", outageText)
	var given atomic.Int64 // messages published
	sender := &trial.Sender{Name: "sender", Broker: s.broker, QoS: 1, Rate: outageRate, Message: func(n int) (string, string) {
		given.Store(max(given.Load(), int64(n)))
		return "in/x", strconv.Itoa(n) + " " + pad
	}}
	sent := make(chan error, 1)
	go func() { sent <- sender.Send(s.ctx, 1<<30) }()
	for _, a := range outs {
		s.until(startPatience, "messages to pass", func(context.Context) bool { return a.count() > outageRate })
	}
	t.Logf("the broker is away from the sinks, after %d messages", given.Load())
	for _, a := range outs {
		a.proxy.Refuse(true)
		a.proxy.CutAll(trial.Reset)
	}
	first, most := s.endure(away/2), s.endure(away/2)
	t.Logf("memory: at most %d MiB in the first half, %d MiB in the second", first>>20, most>>20)
	if most > first+outageMemory {
		t.Errorf("memory has grown from %d to %d MiB while the broker was away", first>>20, most>>20)
	}
	sender.Stop.Store(!whole)
	for _, a := range outs {
		rate := s.catchUp(a, &given, startPatience+2*away)
		if whole && rate < outageRatio*outageRate {
			t.Errorf("QoS %d: what waited came at %.0f messages a second, want %d", a.qos, rate, outageRatio*outageRate)
		}
	}
	sender.Stop.Store(true)
	s.must(<-sent)
	for _, a := range outs {
		s.until(startPatience, "everything to arrive", func(context.Context) bool { return a.count() >= sender.Sent() })
		a.judge(t, sender.Sent())
	}
	if t.Failed() {
		t.Log(s.fleet.Tails())
	}
}

// catchUp lets a sink reach its broker, waits until nothing more waits, and returns at how many messages a second that
// came, from the first one on.
func (s *site) catchUp(a *arrivals, given *atomic.Int64, patience time.Duration) float64 {
	s.t.Helper()
	before := a.count()
	a.proxy.Refuse(false)
	s.until(patience, "the sink to be back", func(context.Context) bool { return a.count() > before })
	back := time.Now()
	s.until(patience, "what waited to arrive", func(context.Context) bool { return a.count() > int(given.Load())-outageBacklog })
	came := a.count() - before
	rate := float64(came) / time.Since(back).Seconds()
	s.t.Logf("QoS %d: caught up with %d messages at %.0f a second, %.1f times the live rate", a.qos, came, rate, rate/outageRate)
	return rate
}

// endure waits for so long and returns the most memory that the agent has taken, in bytes. It fails the test if the
// log is not within its budget.
func (s *site) endure(lasts time.Duration) (most int64) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < lasts; {
		most = max(most, s.memory())
		s.check(s.within(commandPatience, func(ctx context.Context) error {
			st, err := s.hub.Client().Status(ctx)
			if err == nil && st.Store.LogBytes > st.Store.LogBudgetBytes {
				err = fmt.Errorf("the log has %d bytes, its budget is %d", st.Store.LogBytes, st.Store.LogBudgetBytes)
			}
			return err
		}))
		fleet.Sleep(s.ctx, min(time.Second, lasts/10))
	}
	return most
}

// memory is what the agent's process takes, in bytes.
func (s *site) memory() int64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.hub.PID()))
	s.must(err)
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	s.t.Fatalf("no VmRSS in\n%s", text)
	return 0
}

// arrivals is what came of one sink, and what stands between it and its broker.
type arrivals struct {
	qos   byte
	proxy *proxy

	mu      sync.Mutex
	next    int // the message that has not come yet; those before have, in order
	repeats int
	wrong   []string
}

// arrivals reads what a sink publishes until the test ends.
func (s *site) arrivals(qos byte) *arrivals {
	s.t.Helper()
	a := &arrivals{qos: qos, proxy: newProxy(s.t, s.broker), next: 1}
	name := strconv.Itoa(int(qos))
	s.reader(&trial.Reader{Name: "reader-" + name, Broker: s.broker, Filter: "out/" + name, QoS: qos, Take: a.take})
	return a
}

// take notes a message "NUMBER N xxx": both count from 1.
func (a *arrivals) take(_ string, payload []byte) {
	fields := bytes.Fields(payload)
	a.mu.Lock()
	defer a.mu.Unlock()
	number, n := 0, 0
	if len(fields) == 3 && len(fields[2]) == outageText {
		number, _ = strconv.Atoi(string(fields[0]))
		n, _ = strconv.Atoi(string(fields[1]))
	}
	switch {
	case n == a.next && number == n:
		a.next++
	case n > 0 && n < a.next && number == n:
		a.repeats++
	case len(a.wrong) < 10:
		a.wrong = append(a.wrong, fmt.Sprintf("%.40q while %d was to come", payload, a.next))
	}
}

// count is how many messages have come, in order and without a hole.
func (a *arrivals) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.next - 1
}

func (a *arrivals) judge(t *testing.T, sent int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	t.Logf("QoS %d: %d sent, %d came in order, %d repeats", a.qos, sent, a.next-1, a.repeats)
	if a.next-1 != sent || len(a.wrong) > 0 || a.qos == 2 && a.repeats > 0 {
		t.Errorf("QoS %d: %d of %d came, %d repeats, and %v", a.qos, a.next-1, sent, a.repeats, a.wrong)
	}
}
