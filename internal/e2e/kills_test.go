//go:build mosquitto

package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/fleet"
)

// TestRandomKills kills agents ten times at random while readings stream in.
func TestRandomKills(t *testing.T) {
	s := newSite(t)
	lasts := duration(t, "WEIR_E2E_TIME", 30*time.Second)
	plan := outages(s.rand, 10, len(s.fleet.Agents()), lasts)
	published := s.feed(lasts + 2*time.Second)
	s.disturb(plan)
	published()
	s.settle()
	s.judge()
}

// TestOnceKills is like it at QoS 2 from the sensors to the reader: handshakes go on where a kill has cut them
// off, and no record arrives twice. The sources have an id for what mosquitto 2.0.11 sends again though it has
// released it (see transport/mqtt).
func TestOnceKills(t *testing.T) {
	s := newSite(t, "{value}}', qos: 1}", "{value}}', qos: 2}", `/+"], qos: 1}`, `/+"], qos: 2}`)
	s.qos = "2"
	lasts := duration(t, "WEIR_E2E_TIME", 30*time.Second)
	plan := outages(s.rand, 15, 3, lasts)
	published := s.feed(lasts + 2*time.Second)
	s.disturb(plan)
	published()
	s.settle()
	if repeats := s.judge(); repeats > 0 {
		t.Errorf("%d records arrived twice", repeats)
	}
}

// TestStorm kills agents before they have recovered from the last kill: while they open their files,
// restore, replay, merge their copies, or take a checkpoint, of which one follows the other. Every agent
// is killed every few hundred milliseconds, some as soon as they have been started.
func TestStorm(t *testing.T) {
	s := newSite(t, "interval: 2s", "interval: 300ms, min_pause: 100ms")
	const storms, kills = 5, 8
	const gust, calm = 4 * time.Second, 2 * time.Second
	published := s.feed(storms * (gust + calm))
	for range storms {
		began := time.Now()
		for range kills {
			a := s.fleet.Agents()[s.rand.IntN(3)]
			fleet.Sleep(s.ctx, time.Duration(s.rand.Int64N(int64(2*gust/kills))))
			t.Logf("%6.2f s: kill -9 %s and start it", time.Since(began).Seconds(), a.Name)
			a.Kill()
			s.check(a.Start())
		}
		fleet.Sleep(s.ctx, calm)
	}
	for _, a := range s.fleet.Agents() {
		s.check(s.within(startPatience, a.WaitReady))
	}
	published()
	s.settle()
	s.judge()
	s.sameGeneration(1)
	s.checkpointsGoOn()
}

// TestBrokerRestart restarts the broker while readings stream in, once beside a kill of a gateway and
// once beside one of the hub.
func TestBrokerRestart(t *testing.T) {
	s := newSite(t)
	published := s.feed(16 * time.Second)
	for _, victim := range []*fleet.Agent{s.gateways[0], s.hub} {
		fleet.Sleep(s.ctx, 3*time.Second+time.Duration(s.rand.Int64N(int64(2*time.Second))))
		victim.Kill()
		s.restartBroker(time.Duration(s.rand.Int64N(int64(time.Second))))
		s.check(victim.Start())
		s.check(s.within(startPatience, victim.WaitReady))
	}
	published()
	s.settle()
	s.judge()
	s.sameGeneration(1)
	s.checkpointsGoOn()
}

// TestServerLost kills the hub, at times a gateway with it, and deletes what the embedded server had on
// disk, again and again while the other agents go on and readings stream in.
func TestServerLost(t *testing.T) {
	s := newSite(t, "interval: 2s", "interval: 500ms, min_pause: 100ms")
	const times, between = 4, 4 * time.Second
	published := s.feed(times * between)
	for n := range times {
		began := time.Now()
		fleet.Sleep(s.ctx, time.Duration(s.rand.Int64N(int64(between/2))))
		s.hub.Kill()
		s.must(os.RemoveAll(filepath.Join(s.hub.Dir, "nats")))
		if g := s.gateways[n%len(s.gateways)]; s.rand.IntN(2) == 0 {
			g.Kill()
			s.check(g.Start())
		}
		s.check(s.hub.Start())
		fleet.Sleep(s.ctx, time.Until(began.Add(between)))
	}
	for _, a := range s.fleet.Agents() {
		s.check(s.within(startPatience, a.WaitReady))
	}
	published()
	s.settle()
	s.judge()
	s.sameGeneration(1)
	s.checkpointsGoOn()
}
