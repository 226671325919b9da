package node

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node/shadow"
)

// TestMetricsOfOperatorsAreBounded: names come from guests, so what is beyond the bound is counted.
func TestMetricsOfOperatorsAreBounded(t *testing.T) {
	g := newGuestObserver(slog.New(slog.DiscardHandler))
	for i := range maxGuestMetrics/2 + 3 { // what runs in the shadow leaves half of it to the others
		g.Count("job/task", "op"+shadow.Suffix, fmt.Sprint("s", i), 1)
	}
	for i := range maxGuestMetrics / 2 {
		g.Gauge("job/task", "op", fmt.Sprint("g", -i-1), 0)
	}
	for i := range maxGuestMetrics/2 + 7 {
		g.Count("job/task", "op", fmt.Sprint("c", i), 1)
		g.Gauge("job/task", "op", fmt.Sprint("g", i), float64(i))
	}
	g.Count("job/task", "op", "c0", 4)
	g.LogDropped("job/task", "op", 3)
	g.LogDropped("job/task", "op", 2)

	samples, sums, inShadow := map[string]int{}, map[string]float64{}, 0
	for _, f := range g.families() {
		samples[f.Name] = len(f.Samples)
		for _, s := range f.Samples {
			sums[f.Name] += s.Value
			if s.Labels != nil && s.Labels[1].Value == "op"+shadow.Suffix {
				inShadow++
			}
			if f.Name == "weir_operator_counter_total" && s.Labels[2] == (api.Label{Name: "counter", Value: "c0"}) && s.Value != 5 {
				t.Errorf("counter c0 is %v, not 5: a known one is counted on", s.Value)
			}
		}
	}
	for name, want := range map[string]int{"weir_operator_counter_total": maxGuestMetrics, "weir_operator_gauge": maxGuestMetrics} {
		if samples[name] != want {
			t.Errorf("%s has %d samples, not %d", name, samples[name], want)
		}
	}
	if got := sums["weir_operator_metrics_refused_total"]; got != 17 {
		t.Errorf("%v changes refused, not 17", got)
	}
	if inShadow != maxGuestMetrics/2 {
		t.Errorf("%d metrics of what runs in the shadow, not %d", inShadow, maxGuestMetrics/2)
	}
	if got := sums["weir_operator_log_dropped_total"]; got != 5 {
		t.Errorf("%v lines dropped, not 5", got)
	}
}
