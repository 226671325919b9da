//go:build mosquitto

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
	"github.com/weir-stream/weir/internal/trial"
)

// chaos is how much happens to an agent, its broker and their connections while messages pass.
type chaos struct {
	qos1, qos2           int // messages
	queued               int // of those of QoS 2, and as many of QoS 1, before the agent's first start
	kills, brokers, cuts int
	pause                time.Duration // at most, between two events
}

// chaosOf is a short form, or under WEIR_E2E_CHAOS=whole what `make chaos-mqtt` runs.
func chaosOf() chaos {
	if os.Getenv("WEIR_E2E_CHAOS") == "whole" {
		return chaos{qos1: 200_000, qos2: 50_000, queued: 1000, kills: 30, brokers: 10, cuts: 30, pause: 4 * time.Second}
	}
	return chaos{qos1: 12_000, qos2: 4000, queued: 1000, kills: 5, brokers: 2, cuts: 6, pause: 1500 * time.Millisecond}
}

const chaosJob = `name: chaos
checkpoint: {interval: 10s}
sources:
  one:
    mqtt: {broker: "tcp://PROXY", client_id: "{agent}-one", topics: ["one/+"], qos: 1, keep_alive: 2s}
  two:
    mqtt: {broker: "tcp://PROXY", client_id: "{agent}-two", topics: ["two/+"], qos: 2, keep_alive: 2s}
sinks:
  ones: {file: {path: ones.txt, line: "{number} {value}"}, from: one}
  twos: {file: {path: twos.txt, line: "{number} {value}"}, from: two}
`

// chaosOut is a sink beside those of the job: what comes at QoS 2 leaves at QoS 2.
const chaosOut = `  out: {mqtt: {broker: "tcp://PROXY", topic: out/two, payload: "{number} {value}", qos: 2}, from: two}
`

// TestMQTTChaos kills the agent, restarts the broker, which keeps its sessions, and ends connections in
// every way, while messages of QoS 1 and 2 pass that began to wait before the agent was first started. What
// the sources have logged is what was published: each message of QoS 2 once, each of QoS 1 at least once. What
// was logged at QoS 2 is published at QoS 2, and arrives once. The broker has at most 20 messages of a session under way.
//
// The broker is ended with SIGTERM, on which it stores its sessions. One that is killed forgets messages
// that it has acknowledged, and sends others again that it was told to release; no client can know. It is
// ended while nothing is under way from the senders, so that what they repeat plays no part; what is under
// way to the agent stays so. And when a connection is lost as soon as it is there, mosquitto 2.0.11 sends
// messages again that it has released, which the proxy sees: those are not held against the agent.
func TestMQTTChaos(t *testing.T) {
	c := chaosOf()
	s := emptySite(t)
	s.startBroker("max_inflight_messages 500", "max_inflight_messages 20")
	proxy := newProxy(t, s.broker)
	s.fleet = fleet.New(agentBinary(), s.dir)
	var err error
	s.hub, err = s.fleet.Add(fleet.Options{Name: "g1"})
	s.must(err)

	senders := s.senders(c)
	s.queue(c, senders)
	s.must(s.within(startPatience, s.fleet.Start))
	file := filepath.Join(s.dir, "chaos.yaml")
	s.must(os.WriteFile(file, []byte(strings.ReplaceAll(chaosJob+chaosOut, "PROXY", proxy.Addr())), 0o600))
	out := s.readOut("out/two")
	s.cli("job", "apply", file)

	sent := s.sendRest(c, senders)
	s.wreck(c, s.hub, proxy, senders, func() { s.restartBroker(time.Duration(s.rand.Int64N(int64(500 * time.Millisecond)))) })
	sent()
	s.check(s.within(startPatience, s.hub.WaitReady))
	_, twos := s.judgeFiles(c, s.hub, proxy)
	s.judgeOut(twos, out)
	s.account(s.hub)
	if t.Failed() {
		t.Log(s.fleet.Tails())
	}
}

// TestMQTTChaosEmbedded is the same with the broker inside another agent, which is killed with SIGKILL: what it
// has acknowledged and released it has on disk, and nothing is under way from the senders then. It sends messages again under other identifiers, so that both sources name
// an id, and half a minute later, so that they remember many. Then both are exact.
func TestMQTTChaosEmbedded(t *testing.T) {
	c := chaosOf()
	s := emptySite(t)
	s.fleet = fleet.New(agentBinary(), s.dir)
	var err error
	s.hub, err = s.fleet.Add(fleet.Options{Name: "hub", Label: "role=hub", MQTT: true})
	s.must(err)
	gateway, err := s.fleet.Add(fleet.Options{Name: "g1", Label: "role=gateway", Hub: s.hub})
	s.must(err)
	s.broker = s.hub.MQTT
	proxy := newProxy(t, s.broker)
	s.must(s.hub.Start())
	s.must(s.within(startPatience, s.hub.WaitReady))
	senders := s.senders(c)
	s.queue(c, senders)
	s.must(gateway.Start())
	s.must(s.within(startPatience, gateway.WaitReady))
	file := filepath.Join(s.dir, "chaos.yaml")
	text := strings.NewReplacer("PROXY", proxy.Addr(), "keep_alive: 2s}", "keep_alive: 2s}\n    on: {role: gateway}\n    id: {json: id, window: 100000}").Replace(chaosJob)
	s.must(os.WriteFile(file, []byte(text), 0o600))
	s.until(startPatience, "both agents to be up", func(ctx context.Context) bool {
		list, err := s.hub.Client().Agents(ctx)
		return err == nil && api.Up(list) == 2
	})
	s.cli("job", "apply", file)
	sent := s.sendRest(c, senders)
	s.wreck(c, gateway, proxy, senders, func() {
		s.hub.Kill()
		s.check(s.hub.Start())
		s.check(s.within(startPatience, s.hub.WaitReady))
	})
	sent()
	s.check(s.within(startPatience, gateway.WaitReady))
	if ones, _ := s.judgeFiles(c, gateway, proxy); ones.repeats > 0 {
		t.Errorf("QoS 1 with ids: %s, such as %v", ones, ones.examples)
	}
	if t.Failed() {
		t.Log(s.fleet.Tails())
	}
}

// TestMQTTOwnBroker kills an agent that is its own broker, at any moment: what it has acknowledged at QoS 1 to those who
// publish is on disk, and comes once, since the source names an id. (At QoS 2 it may lose what is being released to it: see
// transport/mqtt.)
func TestMQTTOwnBroker(t *testing.T) {
	c := chaosOf()
	c.qos1, c.qos2, c.queued, c.brokers, c.cuts = c.qos1/4, 0, 0, 0, 0
	s := emptySite(t)
	s.fleet = fleet.New(agentBinary(), s.dir)
	var err error
	s.hub, err = s.fleet.Add(fleet.Options{Name: "g1", MQTT: true})
	s.must(err)
	s.broker = s.hub.MQTT
	s.must(s.within(startPatience, s.fleet.Start))
	file := filepath.Join(s.dir, "chaos.yaml")
	text := strings.NewReplacer(`broker: "tcp://PROXY", `, "", "keep_alive: 2s}", "keep_alive: 2s}\n    id: {json: id, window: 100000}").Replace(chaosJob)
	s.must(os.WriteFile(file, []byte(text), 0o600))
	s.cli("job", "apply", file)
	sent := s.sendRest(c, s.senders(c))
	s.wreck(c, s.hub, nil, nil, nil)
	sent()
	s.check(s.within(startPatience, s.hub.WaitReady))
	ones, _ := s.settleFiles(c, s.hub)
	t.Logf("QoS 1: %s", ones)
	if ones.lost(c.qos1) > 0 || ones.repeats > 0 || ones.strange > 0 {
		t.Errorf("of %d messages %d are lost; %s, such as %v\n%s", c.qos1, ones.lost(c.qos1), ones, ones.examples, s.fleet.Tails())
	}
}

// judgeFiles waits for what the agent's sinks write, and fails the test unless it is what was published. It
// returns what came.
func (s *site) judgeFiles(c chaos, of *fleet.Agent, proxy *proxy) (ones, twos *came) {
	s.t.Helper()
	t := s.t
	ones, twos = s.settleFiles(c, of)
	t.Logf("QoS 1: %s", ones)
	t.Logf("QoS 2: %s", twos)
	if ones.lost(c.qos1) > 0 || ones.strange > 0 {
		t.Errorf("QoS 1: %s; %d lost", ones, ones.lost(c.qos1))
	}
	wrong := proxy.seen.wrongly()
	for value := range wrong { // by the protocol it is another message
		if twos.values[value] == 2 {
			twos.repeats--
		}
	}
	t.Logf("QoS 2: the broker sent %d messages again that it had released", len(wrong))
	if twos.lost(c.qos2) > 0 || twos.repeats > 0 || twos.strange > 0 {
		t.Errorf("QoS 2: %s; %d lost, such as %v", twos, twos.lost(c.qos2), twos.examples)
	}
	return ones, twos
}

// readOut reads, at QoS 2, what a sink publishes, until the test ends.
func (s *site) readOut(topic string) *came {
	s.t.Helper()
	c := newCame()
	s.reader(&trial.Reader{Name: "reader", Broker: s.broker, Filter: topic, QoS: 2, Take: func(_ string, payload []byte) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.line(string(payload))
	}})
	return c
}

// reader reads until the test ends.
func (s *site) reader(r *trial.Reader) {
	s.t.Helper()
	r.Subscribed = make(chan struct{})
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
	s.until(startPatience, "the reader to be subscribed", func(context.Context) bool {
		select {
		case <-r.Subscribed:
			return true
		default:
			return false
		}
	})
}

// judgeOut waits for what the sink publishes, and fails the test unless that is what was logged, each record once.
func (s *site) judgeOut(logged, out *came) {
	s.t.Helper()
	s.until(nothingComes, "everything that was logged to be published", func(context.Context) bool {
		out.mu.Lock()
		defer out.mu.Unlock()
		return len(out.numbers) >= len(logged.numbers)
	})
	out.mu.Lock()
	defer out.mu.Unlock()
	s.t.Logf("published: %s", out)
	if !maps.Equal(out.numbers, logged.numbers) || out.again > 0 || out.strange > 0 {
		s.t.Errorf("published: %s, %d numbers of %d, such as %v", out, len(out.numbers), len(logged.numbers), out.examples)
	}
}

// sendersPerQoS: several, so that messages of one mix with those of others.
const sendersPerQoS = 2

// senders make their part of the messages in about the time that the events take.
func (s *site) senders(c chaos) []*trial.Sender {
	takes := c.pause.Seconds() / 2 * float64(c.kills+c.brokers+c.cuts)
	var out []*trial.Sender
	for i := range sendersPerQoS {
		rate := func(n int) int { return max(1, int(float64(n)/sendersPerQoS/takes)) }
		out = append(out,
			s.sender(fmt.Sprintf("a%d", i), fmt.Sprintf("one/%d", i), 1, rate(c.qos1)),
			s.sender(fmt.Sprintf("b%d", i), fmt.Sprintf("two/%d", i), 2, rate(c.qos2)))
	}
	return out
}

// sender publishes {"id":"NAME-N"} to one topic.
func (s *site) sender(name, topic string, qos byte, rate int) *trial.Sender {
	return &trial.Sender{Name: name, Broker: s.broker, QoS: qos, Rate: rate, Message: func(n int) (string, string) {
		return topic, fmt.Sprintf(`{"id":"%s-%d"}`, name, n)
	}}
}

// queue has messages wait for an agent that was never there: in the sessions that its sources will have.
func (s *site) queue(c chaos, senders []*trial.Sender) {
	s.t.Helper()
	for _, of := range []string{"one", "two"} {
		if out, err := s.client("mosquitto_sub", "-c", "-i", "g1-"+of, "-q", "2", "-t", of+"/+", "-E").CombinedOutput(); err != nil {
			s.t.Fatalf("subscribe: %v\n%s", err, out)
		}
	}
	s.sendAll(senders, func(of *trial.Sender) int { return c.queued / sendersPerQoS })()
}

// sendRest lets all senders send what is not queued.
func (s *site) sendRest(c chaos, senders []*trial.Sender) (wait func()) {
	return s.sendAll(senders, func(of *trial.Sender) int {
		if of.QoS == 1 {
			return (c.qos1 - c.queued) / sendersPerQoS
		}
		return (c.qos2 - c.queued) / sendersPerQoS
	})
}

// sendAll lets all senders send and returns what waits for them.
func (s *site) sendAll(senders []*trial.Sender, n func(*trial.Sender) int) (wait func()) {
	var done sync.WaitGroup
	for _, of := range senders {
		done.Go(func() {
			if err := of.Send(s.ctx, n(of)); err != nil {
				s.t.Error(err)
			}
		})
	}
	return done.Wait
}

// wreck does everything that is to happen, in an order and at times that chance decides.
func (s *site) wreck(c chaos, victim *fleet.Agent, p *proxy, senders []*trial.Sender, restart func()) {
	s.t.Helper()
	var events []func()
	add := func(n int, event func()) {
		for range n {
			events = append(events, event)
		}
	}
	began := time.Now()
	say := func(format string, args ...any) {
		s.t.Logf("%6.2f s: %s", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	add(c.kills, func() {
		say("kill -9 the agent")
		victim.Kill()
		fleet.Sleep(s.ctx, time.Duration(s.rand.Int64N(int64(300*time.Millisecond))))
		s.check(victim.Start())
	})
	add(c.brokers, func() {
		say("restart the broker")
		s.hold(senders, true)
		restart()
		s.hold(senders, false)
	})
	way := trial.Cut(s.rand.IntN(trial.Cuts)) // every way comes
	add(c.cuts, func() {
		way = (way + 1) % trial.Cuts
		say("%s %d connections", way, p.CutAll(way))
	})
	s.rand.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	for _, event := range events {
		fleet.Sleep(s.ctx, time.Duration(s.rand.Int64N(int64(c.pause))))
		event()
	}
}

// hold makes senders stop, and waits until the broker has taken what they sent; or lets them go on.
func (s *site) hold(senders []*trial.Sender, held bool) {
	s.t.Helper()
	for _, of := range senders {
		of.Quiet.Store(false)
		of.Held.Store(held)
	}
	s.until(startPatience, "the broker to take everything", func(context.Context) bool {
		for _, of := range senders {
			if held && !of.Quiet.Load() && !of.Done.Load() {
				return false
			}
		}
		return true
	})
}

// came is what a file holds of the messages of one QoS.
type came struct {
	mu       sync.Mutex        // guards all of what is read from a broker
	numbers  map[uint64]string // by item number: a line written again after a kill has one that is known
	values   map[string]int
	repeats  int // messages that are there under several numbers
	strange  int // lines that are not ours, or differ from one with their number
	again    int // lines written again
	examples []string
}

func newCame() *came { return &came{numbers: map[uint64]string{}, values: map[string]int{}} }

func (c *came) String() string {
	return fmt.Sprintf("%d messages came, %d of them repeatedly, %d strange lines, %d lines written again", len(c.values), c.repeats, c.strange, c.again)
}

// lost counts the messages that did not come, of so many.
func (c *came) lost(of int) int { return of - len(c.values) }

// readCame reads a sink's file. A line that is being written is left out.
func (s *site) readCame(of *fleet.Agent, name string) *came {
	c := newCame()
	f, err := os.Open(filepath.Join(of.Dir, "files", name))
	if os.IsNotExist(err) {
		return c
	}
	s.must(err)
	defer f.Close()
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadString('\n')
		if err == io.EOF {
			return c
		}
		s.must(err)
		c.line(strings.TrimSuffix(line, "\n"))
	}
}

func (c *came) line(line string) {
	digits, value, _ := strings.Cut(line, " ")
	n, err := strconv.ParseUint(digits, 10, 64)
	before, known := c.numbers[n]
	switch {
	case err != nil || known && before != value:
		c.strange++
		c.examples = append(c.examples, "strange: "+line)
	case known:
		c.again++
	default:
		c.numbers[n] = value
		if c.values[value]++; c.values[value] == 2 {
			c.repeats++
			c.examples = append(c.examples, "twice: "+value)
		}
	}
}

// nothingComes without anything new, the rest is lost: far beyond the half minute after which the embedded
// broker sends again.
const nothingComes = 5 * time.Minute

// settleFiles waits until everything has come, or nothing new comes any more.
func (s *site) settleFiles(c chaos, of *fleet.Agent) (ones, twos *came) {
	s.t.Helper()
	newest, total := time.Now(), 0
	for {
		ones, twos = s.readCame(of, "ones.txt"), s.readCame(of, "twos.txt")
		if n := len(ones.numbers) + len(twos.numbers); n != total {
			total, newest = n, time.Now()
		}
		quiet := time.Since(newest)
		if ones.lost(c.qos1) <= 0 && twos.lost(c.qos2) <= 0 && quiet > quietFor || quiet > nothingComes {
			return ones, twos
		}
		fleet.Sleep(s.ctx, 500*time.Millisecond)
	}
}

// account checks that the sources' own accounts are shown and add up.
func (s *site) account(of *fleet.Agent) {
	s.t.Helper()
	var j api.Job
	s.until(startPatience, "the sources to receive", func(ctx context.Context) (yes bool) {
		var err error
		if j, err = of.Client().Job(ctx, "chaos"); err != nil || len(j.Tasks) != 2 {
			return false
		}
		for _, task := range j.Tasks { // the last connection may just have been cut
			if task.Source == nil || task.Source.State != "receiving" {
				return false
			}
		}
		return true
	})
	for _, task := range j.Tasks {
		src := task.Source
		if src.Received < src.Logged+src.Refused || src.Shed+src.Refused > 0 {
			s.t.Errorf("task %s: account %+v", task.ID, src)
			continue
		}
		s.t.Logf("%s since the last start: %+v", task.ID, *src)
	}
	ctx, cancel := context.WithTimeout(s.ctx, commandPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, of.URL()+"/metrics", nil)
	s.must(err)
	resp, err := http.DefaultClient.Do(req)
	s.must(err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	s.must(err)
	for _, name := range []string{"weir_source_received_total", "weir_source_logged_total", "weir_source_deduplicated_total", "weir_records_shed_total", "weir_source_refused_total", "weir_source_sessions_lost_total"} {
		if want := name + `{job="chaos",task="two@g1"}`; !strings.Contains(string(text), want) {
			s.t.Errorf("no %s in /metrics", want)
		}
	}
	if shown := s.cli("job", "show", "chaos"); !strings.Contains(shown, "SESSIONS LOST") {
		s.t.Errorf("job show has no account:\n%s", shown)
	}
}

const sharedJob = `name: chaos
sources:
  one: {mqtt: {broker: "tcp://BROKER", topics: ["$share/g/one/+"], qos: 1}}
  two: {mqtt: {broker: "tcp://BROKER", topics: ["two/+", "two/+/{agent}/{label.line}"], qos: 2, retained: first}}
sinks:
  ones: {file: {path: ones.txt, line: "{number} {value}"}, from: one}
  twos: {file: {path: twos.txt, line: "{number} {value}"}, from: two}
`

// TestSharedSubscriptions: two agents divide the messages of a shared subscription, and each gets those of
// its own filters. The retained message comes to each once, though the broker sends it again when an agent
// has been killed.
func TestSharedSubscriptions(t *testing.T) {
	s := emptySite(t)
	s.startBroker()
	s.fleet = fleet.New(agentBinary(), s.dir)
	var err error
	s.hub, err = s.fleet.Add(fleet.Options{Name: "hub", Label: "line=x"})
	s.must(err)
	gateway, err := s.fleet.Add(fleet.Options{Name: "g1", Label: "line=y", Hub: s.hub})
	s.must(err)
	s.command("mosquitto_pub", s.client("mosquitto_pub", "-r", "-t", "two/a", "-m", "kept").Args[1:]...)
	s.must(s.within(startPatience, s.fleet.Start))
	file := filepath.Join(s.dir, "shared.yaml")
	s.must(os.WriteFile(file, []byte(strings.ReplaceAll(sharedJob, "BROKER", s.broker)), 0o600))
	s.until(startPatience, "both agents to be up", func(ctx context.Context) bool {
		list, err := s.hub.Client().Agents(ctx)
		return err == nil && api.Up(list) == 2
	})
	s.cli("job", "apply", file)
	agents := []*fleet.Agent{s.hub, gateway}
	// comes waits for what each agent's second source has, and for how much both have of the first.
	comes := func(ones int, hub, g1 string) {
		t.Helper()
		s.until(startPatience, fmt.Sprintf("%d messages, %s, and %s", ones, hub, g1), func(context.Context) bool {
			total := 0
			for i, a := range agents {
				twos := s.readCame(a, "twos.txt")
				if got := strings.Join(slices.Sorted(maps.Keys(twos.values)), " "); got != []string{hub, g1}[i] || twos.repeats > 0 {
					return false
				}
				total += len(s.readCame(a, "ones.txt").values)
			}
			return total == ones
		})
	}
	comes(0, "kept", "kept")
	s.until(startPatience, "the first start to be over", func(context.Context) bool {
		for _, a := range agents {
			said, err := os.ReadFile(filepath.Join(s.dir, a.Name+".log"))
			s.must(err)
			if !strings.Contains(string(said), "the first start is over") {
				return false
			}
		}
		return true
	})
	for topic, text := range map[string]string{"two/b/hub/x": "for hub", "two/b/g1/y": "for g1", "two/b/g1/x": "for nobody"} {
		s.command("mosquitto_pub", s.client("mosquitto_pub", "-t", topic, "-m", text).Args[1:]...)
	}
	comes(0, "for hub kept", "for g1 kept") // and what was logged before them is durable
	gateway.Kill()
	s.check(gateway.Start())
	s.check(s.within(startPatience, gateway.WaitReady))
	s.until(startPatience, "the broker to send the retained message again", func(ctx context.Context) bool {
		j, err := s.hub.Client().Job(ctx, "chaos")
		skipped := uint64(0)
		for _, task := range j.Tasks {
			if task.Source != nil {
				skipped += task.Source.RetainedSkipped
			}
		}
		return err == nil && skipped > 0
	})
	const n = 300
	one := s.sender("a", "one/x", 1, 0)
	s.must(one.Send(s.ctx, n))
	comes(n, "for hub kept", "for g1 kept")
	for _, a := range agents {
		if got := len(s.readCame(a, "ones.txt").values); got == 0 || got == n {
			t.Errorf("%s has %d of %d messages", a.Name, got, n)
		}
	}
}
