//go:build linux

package main

import (
	"bytes"
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/eval/graph"
)

func TestQuantiles(t *testing.T) {
	v := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.2: 1, 0.21: 2, 0.5: 3, 0.99: 5, 1: 5} {
		if got := quantile(v, q); got != want {
			t.Errorf("quantile %g is %g, want %g", q, got, want)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("a median of nothing")
	}
}

func TestBetweenLooks(t *testing.T) {
	begun := time.Unix(1000, 0)
	all := []sample{{at: begun}, {at: begun.Add(time.Second), done: 100, cpu: time.Second}, {at: begun.Add(3 * time.Second), done: 500, cpu: 2 * time.Second}}
	for _, c := range []struct {
		done    float64
		ms, cpu time.Duration
	}{{0, 0, 0}, {50, 500, 500}, {100, 1000, 1000}, {300, 2000, 1500}, {500, 3000, 2000}} {
		s := at(all, c.done)
		if s.at.Sub(begun) != c.ms*time.Millisecond || s.cpu != c.cpu*time.Millisecond {
			t.Errorf("at %g records: %v, %v", c.done, s.at.Sub(begun), s.cpu)
		}
	}
}

// The graph has three full shuffles, on one agent and on several, and none of the six operators is left out.
func TestGraphShufflesThreeTimes(t *testing.T) {
	for _, agents := range []int{1, 3} {
		j := graph.Job{Name: "eval", Mode: exactlyOnce, Interval: time.Second, Agents: agents, Sources: 1, Parallel: 2, Records: 1001, Keys: 10, Size: 50}
		if j.Total() < 1001 || j.Total() > 1001+agents {
			t.Errorf("%d records in all", j.Total())
		}
		file, err := job.Parse("eval.yaml", []byte(j.YAML()))
		if err != nil {
			t.Fatal(err)
		}
		g, err := job.Build(file)
		if err != nil {
			t.Fatal(err)
		}
		var fleet []job.Agent
		for _, name := range []string{"a", "b", "c"}[:agents] {
			fleet = append(fleet, job.Agent{Name: name, Labels: job.Labels{"role": "worker"}})
		}
		p, err := job.Plan(g, fleet, map[string]string{graph.Module: "sha256:" + strings.Repeat("0", 64)}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		sources, parallel := agents, 2*agents
		if want := sources*parallel + 2*parallel*parallel; len(p.Channels) != want {
			t.Errorf("%d agents: %d channels, full shuffles have %d", agents, len(p.Channels), want)
		}
		ops := map[string]bool{}
		for _, task := range p.Tasks {
			for _, op := range task.Ops {
				ops[op.Name] = true
			}
		}
		if len(ops) != 6 {
			t.Errorf("operators %v", ops)
		}
	}
}

func TestCollectorKnowsWhatCame(t *testing.T) {
	c := &collector{seen: map[string]map[uint64]bool{}, made: map[uint64]int{}}
	take := func(payload string) {
		t.Helper()
		if err := c.take([]byte(payload), 2_000_000); err != nil {
			t.Fatal(err)
		}
	}
	take(`a>o 1 {"n":0,"v":1.25,"t":1500000}`)
	take(`b>o 1 {"n":0,"v":1.25,"t":1000000,"pad":"xx"}`)
	take(`a>o 2 {"n":1,"v":1.25,"t":1999000}`)
	if err := c.exact(2, 2); err == nil {
		t.Error("a record is missing and nobody says so")
	}
	take(`a>o 2 {"n":1,"v":1.25,"t":1999000}`) // again
	take(`b>o 2 {"n":1,"v":1.25,"t":1999000}`)
	if err := c.exact(2, 2); err != nil || c.repeats != 1 || c.count() != 4 || c.arrivals[0].took != 500_000 {
		t.Errorf("%v, %d repeats, %+v", err, c.repeats, c.arrivals)
	}
	take(`b>o 3 {"n":1,"v":1.25,"t":1999000}`)
	if err := c.exact(2, 2); err == nil {
		t.Error("a record came under two numbers and nobody says so")
	}
	for _, wrong := range []string{"", "a 1", `a x {"n":1,"t":2}`, `a 1 {"n":1}`} {
		if c.take([]byte(wrong), 0) == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

// Everything that a report has is written for results of all sections, some of which have gaps.
func TestReport(t *testing.T) {
	e := &evaluation{scale: usual, out: t.TempDir()}
	var arrivals []arrival
	for i := range int64(4000) {
		if i < 1500 || i > 2500 { // killed for a second at 1.5 s
			arrivals = append(arrivals, arrival{i * 1000, 1000 + i%100})
		}
	}
	for _, section := range []string{"interval", "changed", "agents", "latency", "state", "crash", "throughput"} {
		for i, arm := range []string{none, exactlyOnce, synchronous} {
			for _, x := range []float64{1000, 100} {
				if arm == none && (section == "interval" || section == "latency" || section == "changed") {
					x = 0
				}
				r := result{section: section, arm: arm, x: x, records: 1000, seconds: float64(i + 1), cpu: 0.5, freezeMS: 0.1}
				if section == "latency" || section == "state" || section == "crash" {
					r.arrivals, r.killed = arrivals, 1_500_000
				}
				e.results = append(e.results, r)
			}
		}
	}
	if err := e.report("a machine, "); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(e.out, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| synchronous | 100 | 3.00 | 3.000 |", "a machine", "## Throughput", "| exactly_once | 1.0 |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
	table, err := os.ReadFile(filepath.Join(e.out, "results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := csv.NewReader(bytes.NewReader(table)).ReadAll(); err != nil || len(rows) != 1+len(e.results) {
		t.Errorf("%d rows: %v", len(rows), err)
	}
	for _, name := range []string{"interval-time", "interval-cpu", "agents-time", "agents-cpu", "state-latency", "state-freeze", "latency", "crash"} {
		for _, form := range []string{".svg", ".png"} {
			if st, err := os.Stat(filepath.Join(e.out, name+form)); err != nil || st.Size() < 1000 {
				t.Errorf("%s%s is not drawn: %v", name, form, err)
			}
		}
	}
}
