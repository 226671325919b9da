package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"time"
)

// trial is what was measured of one fleet.
type trial struct {
	gateways, parallel int
	fleetUp            time.Duration // from the start of the gateways' process until the hub knows that all are up
	jobUp              time.Duration // from apply until all tasks run and a checkpoint counts
	phases             []phase       // fleet, silent, data with checkpoints at the longer interval, and at the shorter
	kv, objects        store         // of checkpoints and snapshots, at the end
	manifest           int           // bytes of the newest checkpoint's record
}

// store is what a stream of the control plane holds.
type store struct{ msgs, bytes int64 }

// phase is a window that was measured.
type phase struct {
	name string
	look
	hubRSS, gateRSS int64
	checkpoints     int
	took            []float64 // milliseconds, sorted, of those that are still listed
}

func (p phase) hubMillis() float64  { return millis(p.hubCPU) / p.seconds }
func (p phase) gateMillis() float64 { return millis(p.gateCPU) / p.seconds }
func (p phase) rate() float64       { return float64(p.checkpoints) / p.seconds }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (t trial) channels() int { return t.gateways * t.parallel }

// phases by place.
const (
	fleetOnly = iota
	silent
	seldom
	often
)

// perCheckpoint is the slope of something per second between the two intervals.
func (t trial) perCheckpoint(of func(phase) float64) float64 {
	a, b := t.phases[often], t.phases[seldom]
	return (of(a) - of(b)) / (a.rate() - b.rate())
}

// withoutCheckpoints is what the same line says at no checkpoints.
func (t trial) withoutCheckpoints(of func(phase) float64) float64 {
	b := t.phases[seldom]
	return of(b) - t.perCheckpoint(of)*b.rate()
}

// figure is something that may grow with the fleet.
type figure struct {
	name, unit string
	of         func(trial) float64
}

func msgs(p phase) float64     { return float64(p.in.Msgs+p.out.Msgs) / p.seconds }
func sent(p phase) float64     { return float64(p.out.Bytes) / 1024 / p.seconds }
func received(p phase) float64 { return float64(p.in.Bytes) / 1024 / p.seconds }

// The figures that more than a table need.
var (
	cpuFleet      = figure{"hub, CPU without a job", "ms/s", func(t trial) float64 { return t.phases[fleetOnly].hubMillis() }}
	cpuSilent     = figure{"hub, CPU with a job and no data", "ms/s", func(t trial) float64 { return t.phases[silent].hubMillis() }}
	cpuData       = figure{"hub, CPU with data, no checkpoints", "ms/s", func(t trial) float64 { return t.withoutCheckpoints(phase.hubMillis) }}
	cpuCheckpoint = figure{"hub, CPU per checkpoint", "ms", func(t trial) float64 { return t.perCheckpoint(phase.hubMillis) }}
	sentPer       = figure{"sent per checkpoint", "KiB", func(t trial) float64 { return t.perCheckpoint(sent) }}
	took50        = figure{"checkpoint, p50", "ms", func(t trial) float64 { return median(t.phases[often].took) }}
	rss           = figure{"hub, RSS", "MiB", func(t trial) float64 { return float64(t.phases[often].hubRSS) / (1 << 20) }}
	record        = figure{"record of a checkpoint", "KiB", func(t trial) float64 { return float64(t.manifest) / 1024 }}
)

var figures = []figure{
	cpuFleet, cpuSilent, cpuData, cpuCheckpoint,
	{"gateway, CPU with a job and no data", "ms/s each", func(t trial) float64 { return t.phases[silent].gateMillis() / float64(t.gateways) }},
	{"gateway, CPU per checkpoint", "ms each", func(t trial) float64 { return t.perCheckpoint(phase.gateMillis) / float64(t.gateways) }},
	{"messages, no data", "1/s", func(t trial) float64 { return msgs(t.phases[silent]) }},
	{"messages per checkpoint", "", func(t trial) float64 { return t.perCheckpoint(msgs) }},
	{"received per checkpoint", "KiB", func(t trial) float64 { return t.perCheckpoint(received) }},
	sentPer, took50,
	{"checkpoint, longest", "ms", func(t trial) float64 { return quantile(t.phases[often].took, 1) }},
	record, rss,
	{"gateway, RSS", "MiB each", func(t trial) float64 { return float64(t.phases[often].gateRSS) / (1 << 20) / float64(t.gateways) }},
	{"KV of checkpoints, at the end", "KiB per agent", func(t trial) float64 { return float64(t.kv.bytes) / 1024 / float64(t.gateways) }},
	{"object store, at the end", "KiB per agent", func(t trial) float64 { return float64(t.objects.bytes) / 1024 / float64(t.gateways) }},
	{"all agents up", "s", func(t trial) float64 { return t.fleetUp.Seconds() }},
	{"job up", "s", func(t trial) float64 { return t.jobUp.Seconds() }},
}

func median(sorted []float64) float64 { return quantile(sorted, 0.5) }

// quantile of sorted values; NaN of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// line is y = at + slope·x, by least squares, with the share of the variance that it explains.
type line struct{ at, slope, r2 float64 }

func (l line) y(x float64) float64 { return l.at + l.slope*x }

// fit needs two different x; else the slope is NaN.
func fit(xs, ys []float64) line {
	n := float64(len(xs))
	var sx, sy float64
	for i := range xs {
		sx, sy = sx+xs[i], sy+ys[i]
	}
	mx, my := sx/n, sy/n
	var xx, xy, yy float64
	for i := range xs {
		xx, xy, yy = xx+(xs[i]-mx)*(xs[i]-mx), xy+(xs[i]-mx)*(ys[i]-my), yy+(ys[i]-my)*(ys[i]-my)
	}
	l := line{slope: xy / xx, r2: 1}
	l.at = my - l.slope*mx
	if yy > 0 || xx == 0 {
		l.r2 = xy * xy / (xx * yy)
	}
	return l
}

// exponent is b of y ~ x^b between the last two points: 1 is proportional, 2 is the square.
func exponent(xs, ys []float64) float64 {
	n := len(xs)
	if n < 2 {
		return math.NaN()
	}
	return math.Log(ys[n-1]/ys[n-2]) / math.Log(xs[n-1]/xs[n-2])
}

// results are both series.
type results struct{ agents, channels []trial }

func (t trial) String() string {
	return fmt.Sprintf("%d gateways, %d tasks on the hub: up in %.1f s, CPU of the hub %.0f ms/s silent, %.1f ms per checkpoint, which take %.0f ms",
		t.gateways, t.parallel, t.fleetUp.Seconds(), cpuSilent.of(t), cpuCheckpoint.of(t), took50.of(t))
}

func column(trials []trial, of func(trial) float64) []float64 {
	out := make([]float64, len(trials))
	for i, t := range trials {
		out[i] = of(t)
	}
	return out
}

func gateways(t trial) float64 { return float64(t.gateways) }
func channels(t trial) float64 { return float64(t.channels()) }

// markdown is the report.
func (r results) markdown(s settings) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# What agents cost the hub\n\n%s/%s, %d cores. Checkpoints every %v and %v, windows of %v, a line per second and gateway.\n\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), s.intervals[0], s.intervals[1], s.window)
	b.WriteString("## By gateways\n\n")
	table(&b, r.agents, "gateways", gateways)
	if len(r.channels) > 0 {
		fmt.Fprintf(&b, "\n## By channels, with %d gateways\n\n", r.channels[0].gateways)
		table(&b, r.channels, "channels", channels)
	}
	if len(r.agents) > 1 {
		b.WriteString("\n")
		r.extrapolate(&b, s)
	}
	return b.String()
}

// table has a line per figure: what was measured, the line through it, and how it grew between the last two.
func table(b *strings.Builder, trials []trial, what string, x func(trial) float64) {
	xs := column(trials, x)
	fmt.Fprintf(b, "| %s |", what)
	for _, v := range xs {
		fmt.Fprintf(b, " %.0f |", v)
	}
	b.WriteString(" intercept | slope | R² | last power |\n| --- |" + strings.Repeat(" ---: |", len(xs)+4) + "\n")
	for _, f := range figures {
		ys := column(trials, f.of)
		fmt.Fprintf(b, "| %s |", strings.TrimSuffix(f.name+", "+f.unit, ", "))
		for _, y := range ys {
			fmt.Fprintf(b, " %s |", short(y))
		}
		l := fit(xs, ys)
		fmt.Fprintf(b, " %s | %s | %s | %s |\n", short(l.at), short(l.slope), short(l.r2), short(exponent(xs, ys)))
	}
}

// short prints two or three digits that count.
func short(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// What a hub has, for the extrapolation.
const (
	// messageKiB is the largest message of the embedded server, and so the largest record of a checkpoint.
	messageKiB = 1024
	// linkKiB is a second of a gigabit link.
	linkKiB = 1e9 / 8 / 1024
	// memoryMiB of a small server.
	memoryMiB = 16 << 10
)

// resource is something of which a hub has so much.
type resource struct {
	name string
	of   func(trial) float64
	has  float64
	unit string
	why  string
}

// extrapolate says how much of what a hub has the lines need for many agents, and where each runs out.
func (r results) extrapolate(b *strings.Builder, s settings) {
	every := s.intervals[1].Seconds()
	resources := []resource{
		{"CPU, no data", cpuSilent.of, 1000 * s.cores, "ms/s", fmt.Sprintf("%g cores", s.cores)},
		{"CPU, data, a checkpoint every " + s.intervals[1].String(), func(t trial) float64 { return cpuData.of(t) + cpuCheckpoint.of(t)/every }, 1000 * s.cores, "ms/s", fmt.Sprintf("%g cores", s.cores)},
		{"duration of a checkpoint", took50.of, 1000 * every, "ms", "the interval of " + s.intervals[1].String()},
		{"sent, a checkpoint every " + s.intervals[1].String(), func(t trial) float64 { return t.withoutCheckpoints(sent) + sentPer.of(t)/every }, linkKiB, "KiB/s", "a link of 1 Gbit/s"},
		{"record of a checkpoint", record.of, messageKiB, "KiB", "the largest message"},
		{"memory", rss.of, memoryMiB, "MiB", "16 GiB"},
	}
	xs := column(r.agents, gateways)
	fmt.Fprintf(b, "## %d agents\n\nBy a line through all points, and by the power with which the last two points grew, which counts where that is more than a line.\n\n", s.to)
	fmt.Fprintf(b, "| resource | limit | by the line | by the power | runs out at, line | power |\n| --- | --- | ---: | ---: | ---: | ---: |\n")
	first, least := "nothing", math.Inf(1)
	for _, res := range resources {
		ys := column(r.agents, res.of)
		l, p := fit(xs, ys), max(exponent(xs, ys), 0)
		x, y := xs[len(xs)-1], ys[len(ys)-1]
		byPower := y * math.Pow(float64(s.to)/x, p)
		outLine, outPower := math.Inf(1), math.Inf(1)
		if l.slope > 0 {
			outLine = max(0, (res.has-l.at)/l.slope)
		}
		if p > 0 {
			outPower = x * math.Pow(res.has/y, 1/p)
		}
		if out := min(outLine, outPower); out < least {
			first, least = res.name, out
		}
		fmt.Fprintf(b, "| %s | %s | %s %s | %s | %s | %s |\n", res.name, res.why, short(l.y(float64(s.to))), res.unit, short(byPower), agents(outLine), agents(outPower))
	}
	fmt.Fprintf(b, "\nWhat runs out first: %s, at some %s gateways.\n", first, agents(least))
}

func agents(n float64) string {
	if n > 1e7 || math.IsNaN(n) {
		return "never"
	}
	return fmt.Sprintf("%.0f", n)
}

// writeCSV writes a line per phase.
func (r results) writeCSV(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := csv.NewWriter(f)
	head := strings.Fields("series gateways tasks_on_hub phase seconds hub_cpu_s gateways_cpu_s msgs_in msgs_out bytes_in bytes_out checkpoints p50_ms max_ms hub_rss_bytes gateways_rss_bytes fleet_up_s job_up_s kv_msgs kv_bytes objects_bytes record_bytes")
	lines := [][]string{head}
	for _, series := range []struct {
		name   string
		trials []trial
	}{{"agents", r.agents}, {"channels", r.channels}} {
		for _, t := range series.trials {
			for _, p := range t.phases {
				text := []string{series.name}
				for _, v := range []any{
					t.gateways, t.parallel, p.name, p.seconds, p.hubCPU.Seconds(), p.gateCPU.Seconds(), p.in.Msgs, p.out.Msgs, p.in.Bytes, p.out.Bytes,
					p.checkpoints, median(p.took), quantile(p.took, 1), p.hubRSS, p.gateRSS, t.fleetUp.Seconds(), t.jobUp.Seconds(), t.kv.msgs, t.kv.bytes, t.objects.bytes, t.manifest,
				} {
					text = append(text, fmt.Sprint(v))
				}
				lines = append(lines, text)
			}
		}
	}
	if err := w.WriteAll(lines); err != nil {
		return err
	}
	return f.Close()
}
