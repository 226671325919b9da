package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// gateway is an agent without a server, which has heard nobody, and knows of others.
func (s *shelf) gateway(others ...string) *Agent {
	a := s.agent("g0")
	a.opt.NATS = "elsewhere"
	a.peers.init()
	for _, name := range others {
		a.peers.put(agentRecord{Name: name})
	}
	return a
}

func (s *shelf) serves(name string, answer func([]byte) []byte) {
	s.t.Helper()
	stop, err := s.conn.Serve(name, answer)
	s.must(err)
	s.t.Cleanup(stop)
}

// coordinates answers what agents are heard of: all but "down" a moment ago.
func (s *shelf) coordinates() (most *atomic.Int64) {
	most = &atomic.Int64{}
	s.serves("coordinator", func(request []byte) []byte {
		var c coordinatorCall
		if err := json.Unmarshal(request, &c); err != nil || c.Op != "heard" {
			s.t.Error(c, err)
		}
		most.Store(max(most.Load(), int64(len(c.Agents))))
		heard := map[string]heardOf{}
		for _, name := range c.Agents {
			if heard[name] = (heardOf{AgoMS: 10}); name == "down" {
				heard[name] = heardOf{AgoMS: time.Hour.Milliseconds()}
			}
		}
		return mustJSON(coordinatorReply{Heard: heard})
	})
	return most
}

// TestCoordinatorIsAskedFirst: an agent that hears nobody calls those only of whom the coordinator has heard nothing lately
// either; and asks of a large fleet in parts.
func TestCoordinatorIsAskedFirst(t *testing.T) {
	s := newShelf(t)
	var names []string
	for i := range heardAtOnce + 1 {
		names = append(names, fmt.Sprint("g", i+1))
	}
	a := s.gateway(append(names, "down")...)
	most := s.coordinates()
	var calls, called atomic.Int64
	status := func(n *atomic.Int64) func([]byte) []byte {
		return func([]byte) []byte {
			n.Add(1)
			return mustJSON(api.Status{})
		}
	}
	s.serves("status/g1", status(&calls))
	s.serves("status/down", status(&called))
	a.askSilent(s.ctx)
	if calls.Load() != 0 || called.Load() != 1 || most.Load() > heardAtOnce {
		t.Errorf("called are one that lives %d times, one that has fallen silent %d times; of %d agents is asked at once", calls.Load(), called.Load(), most.Load())
	}
	if silent := a.silent(); len(silent) > 0 {
		t.Errorf("%d agents are silent", len(silent))
	}
}

// TestCanaryOfWhoIsUp: who was up when the plan was made has not been heard of for a while when a canary is chosen.
func TestCanaryOfWhoIsUp(t *testing.T) {
	s := newShelf(t)
	a := s.gateway("g1", "g2", "down")
	s.coordinates()
	a.peers.mu.Lock()
	for _, name := range []string{"g1", "g2"} {
		a.peers.heard[name] = sign{Name: name, at: time.Now().Add(-goneAfter)}
	}
	a.peers.mu.Unlock()
	p := &job.Physical{}
	for _, name := range []string{"down", "g1", "g2"} {
		p.Tasks = append(p.Tasks, job.Task{Agent: name, Ops: []job.Op{{Name: "o"}}})
	}
	if got, err := a.canaries(s.ctx, p, []string{"o"}, "1"); err != nil || !slices.Equal(got, []string{"g1"}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestWhatIsNotKnownIsNotShown: nor noted for good: it is asked for again.
func TestWhatIsNotKnownIsNotShown(t *testing.T) {
	s := newShelf(t)
	a := s.gateway("g1")
	list, err := a.Agents(s.ctx)
	if err != nil || len(list) != 1 || list[0].DeadLetters != nil || bytes.Contains(mustJSON(list), []byte("0001")) {
		t.Errorf("without a coordinator: %s, %v", mustJSON(list), err)
	}
	var asked atomic.Int64
	s.serves("coordinator", func([]byte) []byte {
		if asked.Add(1) == 1 {
			return []byte("not now")
		}
		return mustJSON(coordinatorReply{Heard: map[string]heardOf{"g1": {AgoMS: 9000, Letters: []heardLetters{{"old", 5, map[string]uint64{"j": 3}}}}}})
	})
	_, err = s.conn.KV(wnats.Agents).Put(s.ctx, wnats.Key("g1"), mustJSON(agentRecord{Name: "g1", Instance: "new"}))
	s.must(err)
	next := jobRecord{Name: "j", Plan: &job.Physical{}}
	old := jobRecord{Name: "j", Dirs: map[string]string{"g1": "old"}}
	s.must(a.noteLetters(s.ctx, &next, old, nil))
	if len(next.LostLetters) != 1 || next.LostLetters[0].Letters != 3 || next.LostLetters[0].Heard.UnixMilli() != 5 {
		t.Errorf("%+v", next.LostLetters)
	}
	if list, err := a.Agents(s.ctx); err != nil || list[0].DeadLetters == nil || *list[0].DeadLetters != 3 || list[0].Seen.IsZero() {
		t.Errorf("%s, %v", mustJSON(list), err)
	}
	gone, leave := context.WithCancel(s.ctx)
	leave()
	if err := a.mustHear(gone, "g1", "g2"); err == nil || api.IsInvalid(err) {
		t.Errorf("nobody tells: %v", err)
	}
}

// TestHeardOfWhoIsGone: of an agent that gives no sign, taken out or silent since this one was started, what is known of its
// dead letters is told, and whoever learns that takes it for no sign of life.
func TestHeardOfWhoIsGone(t *testing.T) {
	var knows, asks peers
	knows.init()
	asks.init()
	knows.letters["g"] = []heardLetters{{"one", 100, map[string]uint64{"j": 3}}}
	told := knows.heardOf([]string{"g", "nobody"})
	asks.learn(told)
	if len(told) != 1 || len(asks.letters["g"]) != 1 || asks.letters["g"][0].Count["j"] != 3 || asks.alive("g") || !asks.heard["g"].at.IsZero() {
		t.Errorf("told %+v, learned %+v, %+v", told, asks.letters, asks.heard)
	}
}

// TestLearn: what others have heard is taken if it is later than what was heard here.
func TestLearn(t *testing.T) {
	var p peers
	p.init()
	now := time.Now()
	p.letters["g"] = []heardLetters{{"one", 100, nil}, {"two", 200, map[string]uint64{"j": 2}}}
	p.before["g"] = logged{Log: 7, at: now.Add(-time.Minute)}
	p.learn(map[string]heardOf{
		"g": {AgoMS: 1000, Before: logged{Log: 6}, BeforeAgoMS: time.Hour.Milliseconds(), Letters: []heardLetters{
			{"one", 90, map[string]uint64{"j": 9}}, {"two", 210, map[string]uint64{"j": 4}}, {"nil", 50, nil},
		}},
		"new": {AgoMS: 2000, Before: logged{Log: 3}, BeforeAgoMS: 3000, Letters: []heardLetters{{"x", 1, map[string]uint64{"j": 1}}}},
	})
	got := fmt.Sprint(p.letters["g"], p.letters["new"], p.before["g"].Log, p.before["new"].Log)
	if got != "[{nil 50 map[]} {one 100 map[]} {two 210 map[j:4]}] [{x 1 map[j:1]}] 7 3" {
		t.Error(got)
	}
	if at := p.seen("g"); at.Before(now.Add(-2*time.Second)) || !at.Before(time.Now()) || time.Since(p.before["new"].at) < 3*time.Second {
		t.Errorf("seen %v, before %v", at, p.before["new"].at)
	}
	p.learn(map[string]heardOf{"g": {AgoMS: time.Hour.Milliseconds(), Before: logged{Log: 8}}})
	if at := p.seen("g"); at.Before(now.Add(-2*time.Second)) || p.before["g"].Log != 8 {
		t.Errorf("seen %v, before %+v", at, p.before["g"])
	}
	if n := p.deadLetters("g"); n == nil || *n != 4 || p.deadLetters("nobody") != nil {
		t.Error(n)
	}
}

// TestAsksOfALostControlPlane: terms begin anew with a control plane. Whoever has heard an ask of the lost one coordinates
// above it, so that one that comes late is in nobody's way for long.
func TestAsksOfALostControlPlane(t *testing.T) {
	log, err := storage.OpenLog(filepath.Join(t.TempDir(), "log"), storage.LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	a := &Agent{entries: log, asked: make(chan struct{}, 1)}
	takes := func(q, want ask) {
		t.Helper()
		if a.takeAsk(q); a.drained() != want {
			t.Errorf("asked %v, it answers %v, want %v", q, a.drained(), want)
		}
	}
	takes(ask{7, 1}, ask{7, 1})
	takes(ask{2, 1}, ask{7, 1})
	a.forgetAsk()
	takes(ask{2, 1}, ask{2, 1})
	takes(ask{7, 2}, ask{7, 2})
	if term := a.highestTerm(); term != 7 {
		t.Errorf("it would coordinate above term %d", term)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := (&lead{a: a, term: 6}).run(ctx); !errors.Is(err, errOutdated) {
		t.Errorf("in term 6 it ends with %v", err)
	}
}

// TestRecordsOfAgentsAreKept: those that are there at first at once, one that is kept already not again, one of an agent that
// is back again, and in place of a damaged one.
func TestRecordsOfAgentsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copies")
	copies, _, err := storage.OpenCopies(path)
	if err != nil {
		t.Fatal(err)
	}
	defer copies.Close()
	a := &Agent{name: "hub", copies: copies, log: slog.New(slog.DiscardHandler)}
	a.peers.init()
	w := &agentWatch{a: a}
	record := func(name, instance string) []byte { return mustJSON(agentRecord{Name: name, Instance: instance}) }
	hears := func(name, instance string) {
		t.Helper()
		e := wnats.Event{Entry: wnats.Entry{Key: wnats.Key(name), Value: record(name, instance)}}
		if err := w.on(e); err != nil {
			t.Fatal(err)
		}
	}
	kept := func(name, instance string) {
		t.Helper()
		got, ok, err := copies.Get(copyAgent, name)
		if _, gone, e := copies.Get(copyGone, name); err != nil || e != nil || ok != (instance != "") || gone != !ok || ok && !bytes.Equal(got, record(name, instance)) {
			t.Errorf("%s: %s, %v, gone %v; %v %v", name, got, ok, gone, err, e)
		}
	}
	writes := func(what string, want bool, do func()) {
		t.Helper()
		before := copies.Written()
		if do(); (copies.Written() > before) != want {
			t.Errorf("%s: %d bytes are written", what, copies.Written()-before)
		}
	}
	caughtUp := func() {
		t.Helper()
		if err := w.on(wnats.Event{CaughtUp: true}); err != nil {
			t.Fatal(err)
		}
	}
	writes("before all are there", false, func() {
		hears("g1", "unmistakable")
		hears("g2", "two")
	})
	writes("all are there", true, caughtUp)
	kept("g1", "unmistakable")
	kept("g2", "two")
	writes("again", false, func() { hears("g1", "unmistakable") })
	writes("a change", true, func() { hears("g2", "three") })
	kept("g2", "three")
	if err := w.on(wnats.Event{Entry: wnats.Entry{Key: wnats.Key("g2")}, Deleted: true}); err != nil {
		t.Fatal(err)
	}
	kept("g2", "")
	hears("g2", "three")
	kept("g2", "three")
	w = &agentWatch{a: a}
	writes("another session", false, func() {
		hears("g1", "unmistakable")
		caughtUp()
	})

	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := os.ReadFile(path)
	for at := 0; err == nil; at++ {
		i := bytes.Index(b[at:], []byte("unmistakable"))
		if i < 0 {
			break
		}
		at += i
		_, err = f.WriteAt([]byte("U"), int64(at))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := copies.Get(copyAgent, "g1"); err == nil {
		t.Fatal("no copy is damaged")
	}
	hears("g1", "unmistakable")
	kept("g1", "unmistakable")
}
