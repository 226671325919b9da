package ledger

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// play reads a script: "s1" is the reading of sensor s with seq 1 sent, "s=2@a:3" a record of s with
// count 2 and number 3 in channel a, "s=2@a:3#1" one that also tells the seq.
func play(t *testing.T, script string) *Ledger {
	t.Helper()
	l := New()
	for _, word := range strings.Fields(script) {
		var r Record
		name, rest, record := strings.Cut(word, "=")
		if !record {
			sensor, seq := name[:1], uint64(0)
			if _, err := fmt.Sscanf(name[1:], "%d", &seq); err != nil {
				t.Fatalf("%s: %v", word, err)
			}
			l.Sent(sensor, seq)
			continue
		}
		rest, seq, told := strings.Cut(rest, "#")
		if told {
			if _, err := fmt.Sscanf(seq, "%d", &r.Seq); err != nil {
				t.Fatalf("%s: %v", word, err)
			}
		}
		count, at, _ := strings.Cut(rest, "@")
		r.Sensor = name
		var ok bool
		r.Channel, rest, ok = strings.Cut(at, ":")
		if _, err := fmt.Sscanf(count+" "+rest, "%d %d", &r.Count, &r.Number); err != nil || !ok {
			t.Fatalf("%s: %v", word, err)
		}
		l.Seen(r)
	}
	return l
}

func TestVerdict(t *testing.T) {
	for _, k := range []struct {
		name, script                               string
		sent, counted, lost, dup, altered, repeats uint64
		fault                                      string // in the first fault
	}{
		{name: "nothing"},
		{name: "exact", script: "s1 s2 r1 s=1@a:1 r=1@b:1 s=2@a:2", sent: 3, counted: 3},
		{name: "marks take numbers too", script: "s1 s2 s=1@a:1 s=2@a:7", sent: 2, counted: 2},
		{name: "counted before acknowledged", script: "s=1@a:1 s=2@a:2 s1 s2", sent: 2, counted: 2},
		{name: "acknowledged twice", script: "s1 s1 s=1@a:1", sent: 1, counted: 1},
		{name: "acknowledged out of order", script: "s2 s1 s=1@a:1 s=2@a:2", sent: 2, counted: 2},
		{name: "records out of order", script: "s1 s2 s=2@a:2 s=1@a:1", sent: 2, counted: 2},
		{name: "the last is lost", script: "s1 s2 s=1@a:1", sent: 2, counted: 1, lost: 1, fault: "s: 2 sent, lost: no record with count 2"},
		{name: "a record in the middle is lost", script: "s1 s2 s3 s=1@a:1 s=3@a:3", sent: 3, counted: 2, lost: 1, fault: "no record with count 2"},
		{name: "all of a sensor is lost", script: "s1 s2 s3 r1 r=1@a:1", sent: 4, counted: 1, lost: 3, fault: "s: 3 sent, lost: no record with count 1-3"},
		{name: "a reading is counted twice", script: "s1 s=1@a:1 s=2@a:2", sent: 1, counted: 1, dup: 1, fault: "s: 1 sent, counted again: 1 too many records, with count 2"},
		{name: "the count went back", script: "s1 s2 s=1@a:1 s=2@a:2 s=2@a:3", sent: 2, counted: 2, dup: 1, fault: "with count 2"},
		{name: "the count went back and one is lost", script: "s1 s2 s3 s=1@a:1 s=2@a:2 s=2@a:3", sent: 3, counted: 2, lost: 1, dup: 1, fault: "no record with count 3"},
		{name: "two tasks count a sensor", script: "s1 s2 s=1@a:1 s=1@b:1", sent: 2, counted: 1, lost: 1, dup: 1},
		{name: "counted and never sent", script: "s=1@a:1", dup: 1, fault: "s: 0 sent, counted again: 1 too many"},
		{name: "a count of 0", script: "s1 s=0@a:1 s=1@a:2", sent: 1, counted: 1, dup: 1, fault: "with count 0"},
		{name: "repeated", script: "s1 s=1@a:1 s=1@a:1 s=1@a:1", sent: 1, counted: 1, repeats: 2},
		{name: "repeated with another count", script: "s1 s2 s=1@a:1 s=2@a:2 s=1@a:2", sent: 2, counted: 2, altered: 1, fault: "a number 2: s with count 2 seq 0, later s with count 1"},
		{name: "repeated for another sensor", script: "s1 r1 s=1@a:1 r=1@a:1", sent: 2, counted: 1, lost: 1, altered: 1, fault: "r: 1 sent"},
		{name: "exact with seqs", script: "s5 s6 s=1@a:1#6 s=2@a:2#5", sent: 2, counted: 2},
		{name: "one lost, another counted twice", script: "s1 s2 s=1@a:1#1 s=2@a:2#1", sent: 2, counted: 1, lost: 1, dup: 1, fault: "s: 2 sent, lost: no record with seq 2"},
		{name: "counted and never sent, by seq", script: "s1 s2 s=1@a:1#1 s=2@a:2#3", sent: 2, counted: 1, lost: 1, dup: 1, fault: "no record with seq 2"},
		{name: "a record is lost, with seqs", script: "s1 s2 s3 s=1@a:1#1 s=3@a:3#3", sent: 3, counted: 2, lost: 1, fault: "no record with count 2 seq 2"},
		{name: "counted twice, with seqs", script: "s1 s2 s=1@a:1#1 s=2@a:2#1 s=3@a:3#2", sent: 2, counted: 2, dup: 1, fault: "with count 3 seq 1"},
		{name: "repeated with another seq", script: "s1 s2 s=1@a:1#1 s=2@a:2#2 s=2@a:2#1", sent: 2, counted: 2, altered: 1, fault: "s with count 2 seq 2, later s with count 2 seq 1"},
		{name: "the same number in two channels", script: "s1 r1 s=1@a:1 r=1@b:1", sent: 2, counted: 2},
	} {
		t.Run(k.name, func(t *testing.T) {
			l := play(t, k.script)
			v := l.Verdict()
			got := []uint64{v.Sent, v.Counted, v.Lost, v.Duplicated, v.Altered, v.Repeats}
			want := []uint64{k.sent, k.counted, k.lost, k.dup, k.altered, k.repeats}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("sent, counted, lost, duplicated, altered, repeats: %v, want %v", got, want)
			}
			exact := k.lost+k.dup+k.altered == 0
			if v.Exact() != exact || exact != (len(v.Faults) == 0) {
				t.Errorf("exact: %v, faults %q, want %v", v.Exact(), v.Faults, exact)
			}
			if k.fault != "" && (len(v.Faults) == 0 || !strings.Contains(v.Faults[0], k.fault)) {
				t.Errorf("faults %q, want %s", v.Faults, k.fault)
			}
			if (v.Counted == v.Sent) != (v.Lost == 0) {
				t.Errorf("counted %d of %d and lost %d", v.Counted, v.Sent, v.Lost)
			}
		})
	}
}

func TestAlienMessages(t *testing.T) {
	l := play(t, "s1 s=1@a:1")
	l.SeenOther(errors.New("first"))
	l.SeenOther(errors.New("second"))
	v := l.Verdict()
	if v.Exact() || v.Alien != 2 || len(v.Faults) != 1 || !strings.Contains(v.Faults[0], "first") {
		t.Errorf("%+v", v)
	}
}

func TestSeenTellsWhatIsNew(t *testing.T) {
	l := New()
	r := Record{Sensor: "s", Channel: "a", Number: 1, Count: 1}
	if !l.Seen(r) || l.Seen(r) {
		t.Error("new once, then a repeat")
	}
	r.Count = 2
	if l.Seen(r) {
		t.Error("an altered record is not new")
	}
}

func TestNewest(t *testing.T) {
	l := play(t, "s1 s3 s2 r=1@a:1")
	if n := l.Newest(); n["s"] != 3 || n["r"] != 0 {
		t.Errorf("%v", n)
	}
}

// Many faults do not make a long report.
func TestFaultsAreBounded(t *testing.T) {
	l := New()
	for i := range 100 {
		for seq := range 200 {
			l.Sent(fmt.Sprint("s", i), uint64(seq))
		}
		for n := uint64(1); n <= 200; n += 2 {
			l.Seen(Record{fmt.Sprint("s", i), "a", uint64(i)*1000 + n, n, 0})
			l.Seen(Record{fmt.Sprint("s", i), "b", uint64(i)*1000 + n, n, 0})
			l.Seen(Record{fmt.Sprint("s", i), "b", uint64(i)*1000 + n, n + 1, 0})
		}
	}
	v := l.Verdict()
	if v.Lost != 100*100 || v.Duplicated != 100*100 || v.Altered != 100*100 {
		t.Errorf("%+v", v)
	}
	if len(v.Faults) != 3*maxFaults {
		t.Errorf("%d faults", len(v.Faults))
	}
	for _, f := range v.Faults {
		if len(f) > 200 {
			t.Errorf("a long fault: %s", f)
		}
	}
}

// However sent and counted interleave, totals kept on the way equal those counted at the end, and a
// run in which every reading is counted once is exact.
func TestTotalsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New()
		events := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) [3]uint64 {
			return [3]uint64{rapid.Uint64Range(0, 1).Draw(t, "kind"), rapid.Uint64Range(0, 2).Draw(t, "sensor"), rapid.Uint64Range(1, 6).Draw(t, "n")}
		}), 0, 60).Draw(t, "events")
		sent, counts, number := map[string]map[uint64]bool{}, map[string]map[uint64]bool{}, uint64(0)
		for _, e := range events {
			name := fmt.Sprint("s", e[1])
			into := sent
			if e[0] == 0 {
				l.Sent(name, e[2])
			} else {
				number++
				l.Seen(Record{name, "a", number, e[2], 0})
				into = counts
			}
			if into[name] == nil {
				into[name] = map[uint64]bool{}
			}
			into[name][e[2]] = true
		}
		want := Totals{}
		for name, seqs := range sent {
			want.Sent += uint64(len(seqs))
			for n := range counts[name] {
				if n <= uint64(len(seqs)) {
					want.Counted++
				}
			}
		}
		if got := l.Totals(); got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
		if v := l.Verdict(); v.Sent-v.Lost != v.Counted {
			t.Fatalf("%+v", v)
		}
	})
}

func TestDecode(t *testing.T) {
	r, err := Decode("counts/sensor-1", []byte(`{"number":7,"channel":"count/0:totals","value":{"n":3,"seq":9}}`))
	if want := (Record{"sensor-1", "count/0:totals", 7, 3, 9}); err != nil || r != want {
		t.Errorf("%+v, %v, want %+v", r, err, want)
	}
	for _, bad := range []string{
		``, `7`, `null`, `{}`, `{"number":1,"channel":"a"}`, `{"number":1,"value":{"n":1}}`, `{"channel":"a","value":{"n":1}}`,
		`{"number":0,"channel":"a","value":{"n":1}}`, `{"number":1,"channel":"a","value":{"n":0}}`,
		`{"number":-1,"channel":"a","value":{"n":1}}`, `{"number":1.5,"channel":"a","value":{"n":1}}`,
		`{"number":1,"channel":"a","value":{"n":1}} {}`, `{"number":1,"channel":"a","value":{"n":1},"more":1}`,
	} {
		if r, err := Decode("counts/s", []byte(bad)); err == nil || !strings.Contains(err.Error(), "counts/s") {
			t.Errorf("%s: %+v, %v", bad, r, err)
		}
	}
	if _, err := Decode("counts/", []byte(`{"number":1,"channel":"a","value":{"n":1}}`)); err == nil {
		t.Error("no sensor: accepted")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("counts/s", `{"number":7,"channel":"a","value":{"n":3}}`)
	f.Add("", `{"number":7,"channel":"a","value":{"n":-3}}`)
	f.Fuzz(func(t *testing.T, topic, payload string) {
		r, err := Decode(topic, []byte(payload))
		if err != nil {
			return
		}
		if r.Sensor == "" || r.Channel == "" || r.Number == 0 || r.Count == 0 || !strings.HasSuffix(topic, r.Sensor) {
			t.Errorf("%q %q: %+v", topic, payload, r)
		}
	})
}
