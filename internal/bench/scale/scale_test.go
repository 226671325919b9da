//go:build linux

package main

import (
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test's program be hub and gateways too.
func TestMain(m *testing.M) {
	if role := roleOf(os.Args); role != nil {
		exit(role(os.Args[2:]))
		return
	}
	os.Exit(m.Run())
}

// The whole command, with few gateways and short windows. How fast it is does not matter.
func TestThreeGateways(t *testing.T) {
	out := t.TempDir()
	s := settings{
		fleets: []int{1, 3}, spreads: []int{1}, intervals: []time.Duration{300 * time.Millisecond, 3 * time.Second},
		window: time.Second, settle: 1, out: out, to: 10000, cores: 2, profile: 1,
	}
	if err := run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	report, err := os.ReadFile(filepath.Join(out, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| gateways | 1 | 3 |", "| channels | 3 |", "## 10000 agents", "What runs out first: "} {
		if !strings.Contains(string(report), want) {
			t.Errorf("the report does not say %q:\n%s", want, report)
		}
	}
	profiles, err := filepath.Glob(filepath.Join(out, "hub-1-*.pprof"))
	if err != nil || len(profiles) != 4 {
		t.Errorf("profiles of the hub: %v, %v", profiles, err)
	}
	f, err := os.Open(filepath.Join(out, "results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil || len(lines) != 1+3*4 {
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	column := map[string]int{}
	for i, name := range lines[0] {
		column[name] = i
	}
	for _, l := range lines[1:] {
		for _, name := range []string{"msgs_in", "msgs_out", "bytes_out", "hub_rss_bytes", "gateways_rss_bytes", "kv_bytes", "objects_bytes", "record_bytes", "job_up_s"} {
			if v := l[column[name]]; v == "0" {
				t.Errorf("%s is 0 in %v", name, l)
			}
		}
		if data, none := strings.HasPrefix(l[column["phase"]], "data"), l[column["checkpoints"]] == "0"; data == none {
			t.Errorf("checkpoints in %v", l)
		}
	}
}

func TestFit(t *testing.T) {
	l := fit([]float64{1, 2, 3}, []float64{5, 7, 9})
	if math.Abs(l.at-3) > 1e-9 || math.Abs(l.slope-2) > 1e-9 || math.Abs(l.r2-1) > 1e-9 {
		t.Errorf("%+v", l)
	}
	if l := fit([]float64{1, 2, 3}, []float64{1, 0, 1}); math.Abs(l.slope) > 1e-9 || math.Abs(l.r2) > 1e-9 {
		t.Errorf("%+v", l)
	}
	if p := exponent([]float64{1, 10, 20}, []float64{0, 10, 40}); math.Abs(p-2) > 1e-9 {
		t.Errorf("power %g", p)
	}
}

// The slope between two intervals is the cost of a checkpoint, and what is left is that without any.
func TestPerCheckpoint(t *testing.T) {
	cpu := func(checkpoints int) phase { // 20 ms/s and 30 ms each
		return phase{look: look{seconds: 10, hubCPU: time.Duration(200+30*checkpoints) * time.Millisecond}, checkpoints: checkpoints}
	}
	tr := trial{phases: []phase{{}, {}, cpu(1), cpu(5)}}
	if per, rest := tr.perCheckpoint(phase.hubMillis), tr.withoutCheckpoints(phase.hubMillis); math.Abs(per-30) > 1e-9 || math.Abs(rest-20) > 1e-9 {
		t.Errorf("%g ms each, %g ms/s", per, rest)
	}
}
