package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
	"github.com/weir-stream/weir/internal/ledger"
	"github.com/weir-stream/weir/internal/trial"
)

// manyJob counts at the hub what many gateways take in.
const manyJob = `name: many
checkpoint: {interval: 2s, detach_after: 20s}
sources:
  readings:
    mqtt: {broker: "tcp://PLAIN", client_id: "{agent}-many", topics: ["many/{agent}/+"], qos: 1, keep_alive: 5s}
    key: {segment: 2}
    id: {json: seq, window: 10000}
    on: {role: gateway}
operators:
  tally: {wasm: ./tally.wasm, from: readings, key_by: key, parallelism: 2, on: {role: hub}}
sinks:
  out:
    mqtt: {broker: "tcp://PLAIN", topic: "out/many/{key}", qos: 1,
           payload: '{"number":{number},"channel":"{channel}","value":{"n":{value.n},"seq":{value.seq}}}'}
    from: tally
`

// Rhythm of the reboots.
const (
	rebootEvery = 5 * time.Second
	hubEvery    = time.Minute
	manyRate    = 10 // readings a second of a gateway
	undisturbed = 10 * time.Second
)

// many is a hub with gateways of which one is always being rebooted.
type many struct {
	*theSite
	r *rand.Rand

	// Guarded by the site's lock.
	ledger  *ledger.Ledger
	came    map[string]time.Time // by gateway: when its newest output came
	pause   map[string]time.Duration
	counted bool // pauses count
	down    map[string]bool
	newest  time.Time

	hit map[string]int // reboots
}

// reboots plays it: n gateways, one killed and started again every few seconds, the hub once a minute.
func reboots(ctx context.Context, dir string, built program, o options, n int, seed uint64) (err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	m := &many{
		theSite: newSite(ctx, dir, built), r: rand.New(rand.NewPCG(seed, 3)), ledger: ledger.New(),
		came: map[string]time.Time{}, pause: map[string]time.Duration{}, down: map[string]bool{}, hit: map[string]int{},
	}
	defer func() { err = errors.Join(err, m.close(err != nil)) }()
	if err := m.set(o, n); err != nil {
		return err
	}
	return m.play(o.duration)
}

func (m *many) set(o options, n int) error {
	names, roles := gatewaysAfter([]string{"hub"}, n)
	if err := m.addAll(&o, names, roles); err != nil {
		return err
	}
	if err := errors.Join(m.startMosquitto(), m.within(startPatience, m.fleet.Start)); err != nil {
		return err
	}
	embedded, err := m.proxy(m.broker.MQTT)
	if err != nil {
		return err
	}
	m.proxies = append(m.proxies, embedded)
	plain, _, plainAt, _ := m.brokers()
	r := &trial.Reader{Name: "reader", Broker: plainAt, Filter: "out/#", QoS: 1, Subscribed: make(chan struct{}), Take: m.take}
	m.running.Go(func() {
		if err := r.Run(m.ctx); err != nil {
			m.failed <- err
		}
	})
	select {
	case <-r.Subscribed:
	case <-time.After(startPatience):
		return errors.New("the broker does not take a subscription")
	}
	if err := m.known(); err != nil {
		return err
	}
	module, err := os.Open(m.built.operators["./tally.wasm"])
	if err != nil {
		return err
	}
	defer module.Close()
	c := m.devices[0].Client()
	pushed, err := c.PushModule(m.ctx, module)
	if err != nil {
		return err
	}
	src := api.JobSource{File: "many.yaml", YAML: strings.ReplaceAll(manyJob, "PLAIN", plain), Modules: map[string]string{"./tally.wasm": pushed.Digest}}
	_, err = c.ApplyJob(m.ctx, src, applyPatience)
	return err
}

// take notes an output: the longest time without one of each gateway that is up.
func (m *many) take(topic string, payload []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec, err := ledger.Decode(topic, payload)
	if err != nil {
		m.ledger.SeenOther(err)
		return
	}
	if !m.ledger.Seen(rec) {
		return
	}
	now := time.Now()
	m.newest = now
	gateway, _, _ := strings.Cut(rec.Sensor, "-")
	if before, ok := m.came[gateway]; ok && m.counted && !m.down[gateway] {
		m.pause[gateway] = max(m.pause[gateway], now.Sub(before))
	}
	m.came[gateway] = now
}

// longest is the longest pause of any gateway's output, and begins anew.
func (m *many) longest(count bool) (longest time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for g, p := range m.pause {
		longest = max(longest, p)
		if m.counted && !m.down[g] {
			longest = max(longest, now.Sub(m.came[g]))
		}
	}
	clear(m.pause)
	for g := range m.came {
		m.came[g] = now
		m.pause[g] = 0
	}
	m.counted = count
	return longest
}

func (m *many) play(lasts time.Duration) error {
	_, _, plainAt, _ := m.brokers()
	gateways := m.devices[1:]
	const total = math.MaxInt32 // until they are told to stop
	for i := range gateways {
		st := newStream("many", i, plainAt, 1, total)
		st.sender.Rate = manyRate
		m.streams = append(m.streams, st)
		m.running.Go(func() {
			if err := st.sender.Send(m.ctx, total); err != nil && m.ctx.Err() == nil {
				m.failed <- err
			}
		})
	}
	err := m.until(startPatience, "output of all gateways", func(context.Context) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.came) == len(gateways)
	})
	if err != nil {
		return err
	}
	m.longest(true)
	fleet.Sleep(m.ctx, undisturbed)
	usual := m.longest(true)
	m.say("%d gateways, undisturbed: the longest pause of one's output is %d ms", len(gateways), usual.Milliseconds())
	longest, err := m.disturb(lasts)
	if err != nil {
		return err
	}
	for _, st := range m.streams {
		st.sender.Stop.Store(true)
	}
	m.say("reboots are over; the longest pause in the output of a gateway that was not rebooted, with the hub up, was %d ms", longest.Milliseconds())
	// What another gateway's reboot may cost: far below its own time of rebooting, which the others must not share.
	if limit := 5*time.Second + 10*usual; longest > limit {
		err = fmt.Errorf("the output of a gateway that was not rebooted paused for %s; at most %s are fine", longest, limit)
	}
	return errors.Join(err, m.judge())
}

// disturb reboots and returns the longest pause of the others.
func (m *many) disturb(lasts time.Duration) (longest time.Duration, err error) {
	began := time.Now()
	nextHub := hubEvery / 2
	for at := rebootEvery; at < lasts; at += rebootEvery {
		for time.Since(began) < at {
			fleet.Sleep(m.ctx, min(sampleEvery, at-time.Since(began)))
			if err := errors.Join(m.trouble(), m.look()); err != nil {
				return longest, err
			}
		}
		longest = max(longest, m.longest(true))
		d := m.devices[1+m.r.IntN(len(m.devices)-1)]
		if at >= nextHub {
			d = m.devices[0]
			nextHub += hubEvery
		}
		if err := m.reboot(d); err != nil {
			return longest, err
		}
	}
	return longest, nil
}

// reboot kills an agent as a power cut would, starts it again, and waits until its output is there again.
func (m *many) reboot(d *device) error {
	hub := d == m.devices[0]
	m.mu.Lock()
	m.down[d.Name] = true
	m.counted = m.counted && !hub
	m.mu.Unlock()
	lost, err := m.powerCut(d, m.r)
	if err != nil {
		return err
	}
	m.hit[d.Name]++
	fleet.Sleep(m.ctx, time.Duration(m.r.Int64N(int64(2*time.Second))))
	killed := time.Now()
	if err := m.start(d); err != nil {
		return err
	}
	err = m.until(startPatience, "output after the reboot of "+d.Name, func(context.Context) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		for g, at := range m.came {
			if (hub || g == d.Name) && !at.After(killed) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	m.say("%s: rebooted%s; output again %d ms after its start", d.Name, lost, time.Since(killed).Milliseconds())
	m.mu.Lock()
	m.down[d.Name] = false
	m.mu.Unlock()
	if hub {
		m.longest(true)
	}
	return nil
}

// look checks that nobody comes back who was not rebooted, but those whom the hub's reboot asked for what it lost.
func (m *many) look() error {
	before := m.recovered["rewind"]
	if err := m.sample(); err != nil {
		return err
	}
	if n := m.recovered["rewind"] - before; n > 0 {
		if m.hit["hub"] == 0 {
			m.unexpected(fmt.Sprintf("%d tasks rewound, and the hub had not been rebooted", n), "")
		}
	}
	return nil
}

// judge waits for what is on its way and looks at everything.
func (m *many) judge() error {
	err := m.until(startPatience+stuckAfter, "the broker to take all readings", func(context.Context) bool {
		for _, st := range m.streams {
			if !st.sender.Done.Load() {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	sent := 0
	for _, st := range m.streams {
		for n := 1; n <= st.sender.Sent(); n++ {
			_, name, seq := st.sensor(n)
			m.ledger.Sent(name, uint64(seq))
			sent++
		}
	}
	m.newest = time.Now()
	m.mu.Unlock()
	for {
		m.mu.Lock()
		t, quiet := m.ledger.Totals(), time.Since(m.newest)
		m.mu.Unlock()
		if t.Counted == t.Sent && quiet > quietFor || quiet > stuckAfter {
			break
		}
		if err := errors.Join(m.trouble(), m.look()); err != nil {
			return err
		}
		fleet.Sleep(m.ctx, lookEvery)
	}
	m.mu.Lock()
	v := m.ledger.Verdict()
	m.mu.Unlock()
	m.say("sent %d, counted %d, lost %d, duplicated %d, altered %d, repeats on the last hop %d", v.Sent, v.Counted, v.Lost, v.Duplicated, v.Altered, v.Repeats)
	m.say("recoveries: %v; reboots: %v", m.recovered, m.hit)
	var errs []error
	if v.Sent == 0 || !v.Exact() {
		errs = append(errs, fmt.Errorf("not exact:\n  %s", strings.Join(v.Faults, "\n  ")))
	}
	if len(m.restarts) > 0 {
		errs = append(errs, errors.New("came back, or restarted, as nobody should:\n  "+strings.Join(m.restarts, "\n  ")))
	}
	return errors.Join(append(errs, m.budgets(), m.inspect())...)
}
