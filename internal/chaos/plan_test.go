package main

import (
	"reflect"
	"testing"
	"time"
)

// TestPlan: a seed gives one plan, all faults come, in order and in time, and nobody's process is hit while it is down.
func TestPlan(t *testing.T) {
	const lasts = time.Hour
	all := map[kind]int{}
	events := plan(7, lasts, 6, 2, true)
	if !reflect.DeepEqual(events, plan(7, lasts, 6, 2, true)) || reflect.DeepEqual(events, plan(8, lasts, 6, 2, true)) {
		t.Fatal("the plan does not depend on the seed alone")
	}
	free := map[int]time.Duration{}
	for i, e := range events {
		all[e.kind]++
		if i > 0 && e.at < events[i-1].at || e.at+e.lasts > lasts {
			t.Fatalf("%v at %s", e, e.at)
		}
		who := []int{e.who}
		switch e.kind {
		case site:
			who = []int{0, 1, 2, 3, 4, 5}
		case kill, freeze, flip, lostServer:
		case cutNATS, slowNATS:
			if e.who == 0 {
				t.Fatal("the hub has no link to itself")
			}
			continue
		default:
			continue
		}
		for _, w := range who {
			if e.at < free[w] {
				t.Fatalf("%v at %s: it is down until %s", e, e.at, free[w])
			}
			free[w] = e.at + e.lasts
		}
	}
	for _, m := range mix {
		if all[m.kind] == 0 {
			t.Errorf("an hour without %s", m.kind)
		}
	}
	for _, e := range plan(7, lasts, 6, 1, false) {
		if e.kind == mosquitto || e.kind == fullDisk || e.kind == slowDisk || (e.kind == cutMQTT || e.kind == embedded) && e.who != 0 {
			t.Fatalf("%v with one broker and plain disks", e)
		}
	}
}

// TestBook: the model says which record of a sink belongs to which reading.
func TestBook(t *testing.T) {
	const total = 2 * sensors
	st := newStream("shuffle", 1, "", 1, total)
	b := newBook()
	b.sent(st, total)
	if got := b.sensors.Totals().Sent; got != total {
		t.Fatalf("%d readings sent", got)
	}
	if topic, payload := st.message(7, total); topic != "shuffle/g2/g2-s1" || payload != `{"seq":2,"g":"x1","u":211}` {
		t.Fatal(topic, payload)
	}
	// What two counts of the job would give: of each sensor its readings, of each group all of its sensors'.
	counts := map[string]int{}
	give := func(sink, key string, seq uint64) {
		counts[key]++
		b.take("out/"+sink+"/"+key, fmtPayload(sink+key, counts[key], seq))
	}
	for n := 1; n <= total; n++ {
		_, name, seq := st.sensor(n)
		give("sensors", name, uint64(seq))
		group, u := st.unique(n)
		give("groups", group, u)
	}
	for _, l := range []interface{ Exact() bool }{b.sensors.Verdict(), b.groups.Verdict()} {
		if !l.Exact() {
			t.Fatalf("%+v", l)
		}
	}
	give("groups", "x0", 1)
	if v := b.groups.Verdict(); v.Exact() {
		t.Fatalf("one too many: %+v", v)
	}
	b.take("out/broken/x", []byte("{}"))
	if len(b.broken) != 1 {
		t.Fatal("what the operators of the loop complain of is not noted")
	}
}

// TestRounds: rounds that are missing, twice, or different are seen.
func TestRounds(t *testing.T) {
	r := newRounds()
	for n := range 3 {
		if !r.take("k", fmtRound(n+1, n+1, n+10)) {
			t.Fatal("not new")
		}
	}
	if !r.complete(1, 12) || r.complete(2, 12) || r.complete(1, 13) || r.total() != 3 {
		t.Fatal("three rounds, the last of reading 12")
	}
	if r.take("k", fmtRound(3, 3, 12)) || len(r.faults) != 0 {
		t.Fatal("a repeat is no fault")
	}
	r.take("k", fmtRound(5, 5, 20))
	if r.complete(1, 20) || len(r.missing(20)) != 1 {
		t.Fatal("round 4 is missing")
	}
	r.take("k", fmtRound(6, 5, 20)) // another place
	r.take("k", fmtRound(5, 4, 20)) // another record in a place
	r.take("k", []byte("nonsense"))
	if len(r.faults) != 3 {
		t.Fatalf("faults: %q", r.faults)
	}
}
