package node

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node/shadow"
	"github.com/weir-stream/weir/wasmops"
)

// guestObserver logs what operators say and keeps their counters and gauges.
type guestObserver struct {
	log *slog.Logger

	mu       sync.Mutex
	dropped  map[guestOperator]*droppedLines
	counters map[guestMetric]int64
	gauges   map[guestMetric]float64
	// refused counts what was told of metrics beyond maxGuestMetrics.
	refused uint64
}

type (
	guestOperator struct{ task, operator string }
	guestMetric   struct{ task, operator, name string }
)

type droppedLines struct {
	total uint64
	// unsaid of them have not been told of; said is when that was done last.
	unsaid int
	said   time.Time
}

const (
	// sayDropped is how often dropped lines are told of.
	sayDropped = 10 * time.Second
	// maxGuestMetrics bounds the counters of all operators, and their gauges; more names come of a mistake.
	maxGuestMetrics = 1000
)

func newGuestObserver(log *slog.Logger) *guestObserver {
	return &guestObserver{
		log: log, dropped: map[guestOperator]*droppedLines{},
		counters: map[guestMetric]int64{}, gauges: map[guestMetric]float64{},
	}
}

// Log implements [wasmops.Observer].
func (g *guestObserver) Log(task, operator string, level wasmops.LogLevel, text string) {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "warn": slog.LevelWarn, "error": slog.LevelError}
	g.log.Log(context.Background(), levels[level.String()], text, "task", task, "operator", operator)
}

// LogDropped implements [wasmops.Observer].
func (g *guestObserver) LogDropped(task, operator string, lines int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := guestOperator{task, operator}
	d := g.dropped[key]
	if d == nil {
		d = &droppedLines{}
		g.dropped[key] = d
	}
	d.total += uint64(lines)
	if d.unsaid += lines; time.Since(d.said) >= sayDropped {
		g.log.Warn("operator logs faster than it may", "task", task, "operator", operator, "dropped", d.unsaid)
		d.unsaid, d.said = 0, time.Now()
	}
}

// Count implements [wasmops.Observer].
func (g *guestObserver) Count(task, operator, name string, delta int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if key := (guestMetric{task, operator, name}); admits(g, g.counters, key) {
		g.counters[key] += delta
	}
}

// Gauge implements [wasmops.Observer].
func (g *guestObserver) Gauge(task, operator, name string, value float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if key := (guestMetric{task, operator, name}); admits(g, g.gauges, key) {
		g.gauges[key] = value
	}
}

// admits says whether a metric is known or may become so, and counts it if not.
func admits[V any](g *guestObserver, known map[guestMetric]V, key guestMetric) bool {
	most := maxGuestMetrics
	if strings.HasSuffix(key.operator, shadow.Suffix) { // the operators' own go before
		most /= 2
	}
	if _, ok := known[key]; ok || len(known) < most {
		return true
	}
	g.refused++
	return false
}

// families are the metrics of operators. What is replayed is counted again.
func (g *guestObserver) families() []api.Family {
	counters := api.Family{Name: "weir_operator_counter_total", Help: "Counters that operators keep, replay included.", Kind: api.Counter}
	gauges := api.Family{Name: "weir_operator_gauge", Help: "Gauges that operators set.", Kind: api.Gauge}
	lines := api.Family{Name: "weir_operator_log_dropped_total", Help: "Log lines of operators beyond their rate.", Kind: api.Counter}
	g.mu.Lock()
	defer g.mu.Unlock()
	for m, v := range g.counters {
		counters.Samples = append(counters.Samples, m.sample("counter", float64(v)))
	}
	for m, v := range g.gauges {
		gauges.Samples = append(gauges.Samples, m.sample("gauge", v))
	}
	for o, d := range g.dropped {
		lines.Samples = append(lines.Samples, api.Sample{Labels: o.labels(), Value: float64(d.total)})
	}
	return []api.Family{
		counters, gauges, lines,
		one("weir_operator_metrics_refused_total", "Changes of counters and gauges that are not kept since there are too many.", api.Counter, float64(g.refused)),
	}
}

func (o guestOperator) labels() []api.Label {
	return []api.Label{{Name: "task", Value: o.task}, {Name: "operator", Value: o.operator}}
}

func (m guestMetric) sample(kind string, v float64) api.Sample {
	labels := guestOperator{m.task, m.operator}.labels()
	return api.Sample{Labels: append(labels, api.Label{Name: kind, Value: m.name}), Value: v}
}
