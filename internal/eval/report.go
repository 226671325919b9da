//go:build linux

package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// median of values, which may be in any order; NaN of none.
func median(v []float64) float64 { return quantile(v, 0.5) }

// quantile is the value below which that share lies, of the nearest rank; NaN of none.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	return s[max(0, int(math.Ceil(q*float64(len(s))))-1)]
}

// latencies are those of a run in milliseconds, without the first quarter, in which everything starts.
func (r result) latencies() []float64 {
	var out []float64
	for _, a := range r.arrivals[len(r.arrivals)/4:] {
		out = append(out, float64(a.took)/1000)
	}
	return out
}

func (r result) line() string {
	s := fmt.Sprintf("%-10s %-24s %6g  #%d  ", r.section, r.arm, r.x, r.round)
	if len(r.arrivals) > 0 {
		l := r.latencies()
		return s + fmt.Sprintf("p50 %.2f ms  p99 %.2f ms  p99.99 %.2f ms  %d epochs, freeze %.2f ms, persist %.1f ms  %.0f MiB  %d repeats",
			quantile(l, 0.5), quantile(l, 0.99), quantile(l, 0.9999), r.epochs, r.freezeMS, r.persist, r.rssMiB, r.repeats)
	}
	return s + fmt.Sprintf("%6.2f s  %8.0f records/s  %6.3f µs CPU per record  %d epochs, align %.1f ms, freeze %.2f ms, persist %.1f ms  %.0f MiB",
		r.seconds, float64(r.records)/r.seconds, 1e6*r.cpu/float64(r.records), r.epochs, r.alignMS, r.freezeMS, r.persist, r.rssMiB)
}

// report writes everything that was measured so far.
func (e *evaluation) report(machine string) error {
	load := "load average at the end " + loadAverage()
	return errors.Join(e.writeCSV(), e.writeMarkdown(machine+load+"\n"), e.plots())
}

var columns = []string{"section", "arm", "x", "round", "records", "seconds", "records_per_second", "cpu_us_per_record", "epochs",
	"align_ms", "freeze_ms", "persist_ms", "peak_rss_mib", "p50_ms", "p99_ms", "p9999_ms", "repeats"}

func (e *evaluation) writeCSV() error {
	f, err := os.Create(filepath.Join(e.out, "results.csv"))
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	rows := [][]string{columns}
	for _, r := range e.results {
		num := func(v float64) string {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return ""
			}
			return strconv.FormatFloat(v, 'g', 6, 64)
		}
		per := math.NaN()
		if r.seconds > 0 {
			per = float64(r.records) / r.seconds
		}
		var p [3]float64
		for i, q := range []float64{0.5, 0.99, 0.9999} {
			p[i] = math.NaN()
			if len(r.arrivals) > 0 {
				p[i] = quantile(r.latencies(), q)
			}
		}
		cpu := math.NaN()
		if r.cpu > 0 {
			cpu = 1e6 * r.cpu / float64(r.records)
		}
		rows = append(rows, []string{r.section, r.arm, num(r.x), strconv.Itoa(r.round), strconv.Itoa(r.records), num(r.seconds), num(per), num(cpu),
			strconv.FormatUint(r.epochs, 10), num(r.alignMS), num(r.freezeMS), num(r.persist), num(r.rssMiB), num(p[0]), num(p[1]), num(p[2]), strconv.Itoa(r.repeats)})
	}
	return errors.Join(w.WriteAll(rows), f.Close())
}

// spread is a median and what it is the median of.
type spread struct{ mid, low, high float64 }

func spreadOf(v []float64) spread {
	return spread{median(v), quantile(v, 0), quantile(v, 1)}
}

func (s spread) text(digits int) string {
	if math.IsNaN(s.mid) {
		return "–"
	}
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', digits, 64) }
	if s.low == s.high {
		return f(s.mid)
	}
	return fmt.Sprintf("%s (%s–%s)", f(s.mid), f(s.low), f(s.high))
}

// of collects a value of all rounds of one kind of run.
func (e *evaluation) of(section, arm string, x float64, value func(result) float64) spread {
	var v []float64
	for _, r := range e.results {
		if r.section == section && r.arm == arm && r.x == x {
			v = append(v, value(r))
		}
	}
	return spreadOf(v)
}

// ratio is the same against the run of another arm in the same round.
func (e *evaluation) ratio(section, arm string, x float64, base string, baseX float64, value func(result) float64) spread {
	var v []float64
	for _, r := range e.results {
		if r.section != section || r.arm != arm || r.x != x {
			continue
		}
		for _, b := range e.results {
			if b.section == section && b.arm == base && b.x == baseX && b.round == r.round {
				v = append(v, value(r)/value(b))
			}
		}
	}
	return spreadOf(v)
}

// kinds are the kinds of runs of a section in the order of their first one.
func (e *evaluation) kinds(section string) (out []result) {
	for _, r := range e.results {
		if r.section == section && !slices.ContainsFunc(out, func(o result) bool { return o.arm == r.arm && o.x == r.x }) {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b result) int {
		if a.arm != b.arm {
			return slices.Index(arms, a.arm) - slices.Index(arms, b.arm)
		}
		if section == "interval" || section == "changed" || section == "latency" {
			return int(b.x - a.x) // as in the paper, the longest first
		}
		return int(a.x - b.x)
	})
	return out
}

var arms = []string{none, exactlyOnce, atLeastOnce, synchronous}

func runTime(r result) float64 { return r.seconds }
func cpuPer(r result) float64  { return 1e6 * r.cpu / float64(r.records) }
func rate(r result) float64    { return float64(r.records) / r.seconds }
func late(q float64) func(result) float64 {
	return func(r result) float64 { return quantile(r.latencies(), q) }
}

func (e *evaluation) writeMarkdown(machine string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Evaluation\n\n%s\nMedians of %d rounds, in brackets the lowest and the highest. Ratios are to the run without snapshots of the same round.\n", machine, e.rounds)
	e.speedTable(&b, "interval", "Run time against the snapshot interval", "interval, ms")
	e.speedTable(&b, "changed", "The same with some 25 MB changed between two snapshots", "interval, ms")
	e.agentsTable(&b)
	e.latencyTable(&b, "latency", fmt.Sprintf("Record latency at %d records a second", e.rate), "interval, ms")
	e.latencyTable(&b, "state", "Record latency and pauses against the size of the state; 1 MiB and the tables change in a second", "state, MiB")
	e.crashTable(&b)
	e.throughputTable(&b)
	return os.WriteFile(filepath.Join(e.out, "report.md"), []byte(b.String()), 0o644)
}

func (e *evaluation) speedTable(b *strings.Builder, section, title, x string) {
	kinds := e.kinds(section)
	if len(kinds) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n| arm | %s | run time, s | relative | CPU, µs per record | relative | epochs | align, ms | freeze, ms | persist, ms | peak RSS, MiB |\n|---|---|---|---|---|---|---|---|---|---|---|\n", title, x)
	for _, k := range kinds {
		of := func(f func(result) float64) spread { return e.of(section, k.arm, k.x, f) }
		at := strconv.FormatFloat(k.x, 'g', -1, 64)
		if k.arm == none {
			at = "–"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", k.arm, at,
			of(runTime).text(2), e.ratio(section, k.arm, k.x, none, 0, runTime).text(3),
			of(cpuPer).text(3), e.ratio(section, k.arm, k.x, none, 0, cpuPer).text(3),
			of(func(r result) float64 { return float64(r.epochs) }).text(0), of(func(r result) float64 { return r.alignMS }).text(1),
			of(func(r result) float64 { return r.freezeMS }).text(2), of(func(r result) float64 { return r.persist }).text(1),
			of(func(r result) float64 { return r.rssMiB }).text(0))
	}
}

func (e *evaluation) agentsTable(b *strings.Builder) {
	kinds := e.kinds("agents")
	if len(kinds) == 0 {
		return
	}
	b.WriteString("\n## Run time against the number of agents, snapshots every 3 s\n\nAgents share the machine's cores: run time falls no further once they are used up, and CPU per record says what more agents cost.\n\n| arm | agents | run time, s | to none | CPU, µs per record | to none | records/s |\n|---|---|---|---|---|---|---|\n")
	for _, k := range kinds {
		of := func(f func(result) float64) spread { return e.of("agents", k.arm, k.x, f) }
		fmt.Fprintf(b, "| %s | %g | %s | %s | %s | %s | %s |\n", k.arm, k.x, of(runTime).text(2), e.ratio("agents", k.arm, k.x, none, k.x, runTime).text(3),
			of(cpuPer).text(3), e.ratio("agents", k.arm, k.x, none, k.x, cpuPer).text(3), of(rate).text(0))
	}
}

func (e *evaluation) latencyTable(b *strings.Builder, section, title, x string) {
	kinds := e.kinds(section)
	if len(kinds) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\nFrom the making of a record to its arrival at the broker, over three shuffles, with a synced log entry before each hand-over. Every record came exactly once.\n\n| arm | %s | p50, ms | p99, ms | to none | p99.99, ms | epochs | freeze, ms | persist, ms | peak RSS, MiB |\n|---|---|---|---|---|---|---|---|---|---|\n", title, x)
	for _, k := range kinds {
		of := func(f func(result) float64) spread { return e.of(section, k.arm, k.x, f) }
		at, base := strconv.FormatFloat(k.x, 'g', -1, 64), 0.0
		if section == "state" {
			base = k.x
		} else if k.arm == none {
			at = "–"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", k.arm, at, of(late(0.5)).text(2), of(late(0.99)).text(2),
			e.ratio(section, k.arm, k.x, none, base, late(0.99)).text(2), of(late(0.9999)).text(2),
			of(func(r result) float64 { return float64(r.epochs) }).text(0), of(func(r result) float64 { return r.freezeMS }).text(2),
			of(func(r result) float64 { return r.persist }).text(1), of(func(r result) float64 { return r.rssMiB }).text(0))
	}
}

func (e *evaluation) crashTable(b *strings.Builder) {
	kinds := e.kinds("crash")
	if len(kinds) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## An agent of two is killed and started a second later\n\n%d records a second; output by tenths of a second is in crash.svg. Of the rate before the kill; every record came exactly once by channel and number, repeats left out.\n\n| arm | below half of the rate for, s | until as many had come as without the kill, s | repeats |\n|---|---|---|---|\n", e.rate)
	for _, k := range kinds {
		of := func(f func(result) float64) spread { return e.of("crash", k.arm, k.x, f) }
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", k.arm, of(func(r result) float64 { gap, _ := r.outage(); return gap }).text(1),
			of(func(r result) float64 { _, behind := r.outage(); return behind }).text(1), of(func(r result) float64 { return float64(r.repeats) }).text(0))
	}
}

// binWidth is the width of a bin of output over time, in microseconds.
const binWidth = 100_000

// bins are records per second over time, from the first arrival on, in seconds.
func (r result) bins() (times, rates []float64) {
	if len(r.arrivals) == 0 {
		return nil, nil
	}
	first := r.arrivals[0].at
	n := int(r.arrivals[len(r.arrivals)-1].at-first)/binWidth + 1
	counts := make([]float64, n)
	for _, a := range r.arrivals {
		counts[int(a.at-first)/binWidth]++
	}
	for i, c := range counts {
		times = append(times, float64(i)*binWidth/1e6)
		rates = append(rates, c*1e6/binWidth)
	}
	return times, rates
}

// outage says for how many seconds after a kill output was below half of the rate before it, and after how
// many as much had come as would have without it.
func (r result) outage() (below, behind float64) {
	times, rates := r.bins()
	if r.killed == 0 || len(times) == 0 {
		return math.NaN(), math.NaN()
	}
	killed := float64(r.killed-r.arrivals[0].at) / 1e6
	var before []float64
	for i, t := range times {
		if t > killed/3 && t < killed-0.1 {
			before = append(before, rates[i])
		}
	}
	usual, owed := 0.0, 0.0
	for _, v := range before {
		usual += v / float64(len(before))
	}
	for i, t := range times {
		if t < killed {
			continue
		}
		if rates[i] < usual/2 && owed >= 0 {
			below += binWidth / 1e6
		}
		owed += (usual - rates[i]) * binWidth / 1e6
		if owed > usual*binWidth/1e6 {
			behind = t - killed
		}
		if i > 0 && owed <= 0 && behind > 0 {
			break
		}
	}
	return below, behind
}

func (e *evaluation) throughputTable(b *strings.Builder) {
	kinds := e.kinds("throughput")
	if len(kinds) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## Throughput of one agent, snapshots every 3 s\n\n| arm | value, bytes | records/s | CPU, µs per record | records/s per core used |\n|---|---|---|---|---|\n")
	for _, k := range kinds {
		of := func(f func(result) float64) spread { return e.of("throughput", k.arm, k.x, f) }
		fmt.Fprintf(b, "| %s | %g | %s | %s | %s |\n", k.arm, k.x, of(rate).text(0), of(cpuPer).text(3),
			of(func(r result) float64 { return float64(r.records) / r.cpu }).text(0))
	}
}

// describe says on what and how it was measured.
func (e *evaluation) describe() string {
	var b strings.Builder
	model := "unknown processor"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(info), "model name"); ok {
			line, _, _ := strings.Cut(rest, "\n")
			model = strings.TrimSpace(strings.TrimLeft(line, " \t:"))
		}
	}
	var sys syscall.Sysinfo_t
	memory := "unknown memory"
	if syscall.Sysinfo(&sys) == nil {
		memory = fmt.Sprintf("%d GiB", (uint64(sys.Totalram)*uint64(sys.Unit)+1<<29)>>30)
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	fmt.Fprintf(&b, "Machine: %s, %d cores, %s, Linux %s, %s/%s, %s. Operators in %s. ", model, runtime.NumCPU(), memory,
		strings.TrimSpace(string(kernel)), runtime.GOOS, runtime.GOARCH, runtime.Version(), e.language)
	if took, err := fsyncMS(e.work); err == nil {
		fmt.Fprintf(&b, "An append of 4 KiB with fdatasync takes %.2f ms (median), %.2f ms (p99). ", quantile(took, 0.5), quantile(took, 0.99))
	}
	fmt.Fprintf(&b, "Measured on %s; load average at the beginning %s, ", time.Now().UTC().Format(time.DateOnly), loadAverage())
	return b.String()
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// fsyncMS measures appends that are synced, in milliseconds each.
func fsyncMS(dir string) (took []float64, err error) {
	f, err := os.CreateTemp(dir, "fsync-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	block := make([]byte, 4<<10)
	for range 200 {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		took = append(took, float64(time.Since(began).Microseconds())/1000)
	}
	return took, f.Close()
}
