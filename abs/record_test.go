package abs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestRebuild(t *testing.T) {
	copies := []EpochRecord{
		{Epoch: 2, Term: 1, Generation: 1, State: Committed, Savepoint: "old"},
		{Epoch: 1, Term: 1, Generation: 1, State: Committed},
		{Epoch: 2, Term: 2, Generation: 1, State: Aborted, Reason: "newer term"},
		{Epoch: 1, Term: 1, Generation: 1, State: Replicated},
		{Epoch: 1, Term: 1, Generation: 1, State: Committed},
		{Epoch: 4, Term: 2, Generation: 1, State: Started},
		{Epoch: 3, Term: 2, Generation: 1, State: Committed},
		{Epoch: 3, Term: 2, Generation: 2, State: Started},
	}
	var got []string
	for _, r := range Rebuild(copies) {
		got = append(got, fmt.Sprintf("%d %s gen %d %s", r.Epoch, r.State, r.Generation, r.Reason))
	}
	lost := "the control plane was lost while it ran"
	want := []string{"1 replicated gen 1 ", "2 aborted gen 1 newer term", "3 aborted gen 2 " + lost, "4 aborted gen 1 " + lost}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestGateway(t *testing.T) {
	p := parseWorldPlan("a@g1* m@g1 b@g2* h@hub k@k1 x@k1 a>m m>h b>h h>k k>x x~k")
	for agent, want := range map[string]bool{"g1": true, "g2": true, "hub": false, "k1": false, "elsewhere": false} {
		if got := p.Gateway(agent); got != want {
			t.Errorf("Gateway(%q) = %v", agent, got)
		}
	}
	if got := fmt.Sprint(p.Inputs("k")); got != "[{h>k hub false} {x~k k1 true}]" {
		t.Errorf("inputs of k: %s", got)
	}
}

func TestCheckNeedsEveryPart(t *testing.T) {
	p := parseWorldPlan("a@g1* m@hub a>m")
	err := Check(p, ExactlyOnce, map[TaskID]Part{"a": {}})
	if err == nil || !strings.Contains(err.Error(), `"m" has no part`) {
		t.Errorf("got %v", err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for raw, want := range map[string]string{
		`{`:                               "unexpected end",
		`{"epoch":3,"state":"melted"}`:    `epoch 3 has the unknown state "melted"`,
		`{"epoch":3,"state":"committed"}`: "epoch 3 is committed without parts",
	} {
		if _, err := DecodeRecord([]byte(raw)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if _, err := DecodeAck([]byte(`{"epoch":3}`)); err == nil {
		t.Error("an acknowledgement without a task was taken")
	}
	if _, err := DecodeReplicaAck([]byte(`{"task":"a"}`)); err == nil {
		t.Error("a replica acknowledgement without packs was taken")
	}
}

// FuzzRecovered: whatever KV holds, the decoders refuse it or a coordinator can go on from it: it
// does not panic, and writes nothing against the rules.
func FuzzRecovered(f *testing.F) {
	f.Add([]byte(`{"epoch":0,"term":1,"generation":1,"state":"started","initial":true}`), []byte(`{"task":"s","epoch":0,"generation":1}`), []byte(`{"task":"s","packs":["p"]}`))
	f.Add([]byte(`{"epoch":7,"term":1,"generation":1,"state":"committed","parts":{"s":{"epoch":7},"m":{"epoch":6}},"detached":["g1"]}`), []byte(`{"task":"m","epoch":8,"generation":1,"part":{"epoch":8,"cut":{"consumed":{"s>m":3}}}}`), []byte(`{}`))
	f.Add([]byte(`{"epoch":18446744073709551615,"term":1,"generation":1,"state":"aborted","final":true}`), []byte(`{"task":"m","failed":"x"}`), []byte(`{}`))
	plan := parseWorldPlan("s@g1* m@hub s>m")
	f.Fuzz(func(t *testing.T, rawRecord, rawAck, rawReplica []byte) {
		r, err := DecodeRecord(rawRecord)
		if err != nil {
			return
		}
		rec := Recovered{Records: []VersionedRecord{{r, 1}}}
		ack, ackErr := DecodeAck(rawAck)
		replica, replicaErr := DecodeReplicaAck(rawReplica)
		cfg := Config{IntervalMs: 10, TimeoutMs: 100, DetachAfterMs: 10, Replicate: replicaErr == nil}
		c, err := NewCoordinator(cfg, plan, 5, rec)
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range []Notice{Tick{}, AgentGone{"g1"}, ack, replica, Tick{}, Stop{}, Trigger{"x"}, AgentDrained{"g1"}, Tick{}} {
			if _, isAck := n.(Ack); isAck && ackErr != nil {
				continue
			}
			act := c.Step(n, int64(i)*50)
			if w := act.Write; w != nil {
				if w.Record.Term != 5 || w.Record.Epoch == r.Epoch && r.State != Started && w.Record.State != Replicated {
					t.Fatalf("%+v became %+v", r, w.Record)
				}
				c.Step(Written{uint64(i) + 2}, int64(i)*50)
			}
		}
		c.Status()
		c.Needed()
	})
}

// TestNeeded: while a kept part waits for its packs, the acknowledgements of its epoch are needed,
// however long ago that was; and of all those epochs only a bounded number is remembered.
func TestNeeded(t *testing.T) {
	p := parseWorldPlan("a@g1* b@g2* m@hub a>m b>m")
	cfg := Config{IntervalMs: 100, TimeoutMs: 1000, DetachAfterMs: 50, ReplicaTimeoutMs: 10, Replicate: true}
	b := &coordinatorBench{plan: p, cfg: cfg, kv: newTestKV(), terms: map[Term]*Coordinator{}}
	b.newTerm(1)
	b.ackAll(0, nil)
	b.step(AgentGone{"g2"})
	const epochs = 3 * maxAwaiting
	for e := Epoch(1); e <= epochs; e++ {
		b.now += 200
		b.step(Tick{})
		b.ackAll(e, []string{"b"})
		b.replica(ReplicaAck{Task: "m", Epoch: 99, Generation: 1, Version: uint64(e), Packs: []string{"foreign"}})
	}
	c := b.terms[1]
	if s := c.Status(); s.Committed == nil || s.Committed.Epoch != epochs {
		t.Fatalf("status %+v\n%s", s, b.out.String())
	}
	if n := c.Needed(); n != 0 {
		t.Errorf("needed from %d, the part of b is of epoch 0 and has no packs", n)
	}
	if len(c.records) > maxAwaiting+2 || len(c.packs) > 0 || len(c.acks) > 2 {
		t.Errorf("remembers %d records, %d packs, %d epochs of acknowledgements", len(c.records), len(c.packs), len(c.acks))
	}
	b.replica(ReplicaAck{Task: "b", Epoch: 0, Generation: 1, Version: 1, Packs: []string{"b-0"}})
	for _, task := range []TaskID{"a", "m"} {
		b.replica(ReplicaAck{Task: task, Epoch: epochs, Generation: 1, Version: epochs + 1, Packs: []string{"x"}})
	}
	if n := c.Needed(); n != epochs {
		t.Errorf("needed from %d, want %d", n, epochs)
	}
}
