package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/eval/graph"
	"github.com/weir-stream/weir/internal/node"
)

// BenchmarkGraph runs the graph of the evaluation on one agent, in this process, so that it can be profiled:
//
//	go test ./internal/node -run '^$' -bench Graph/exactly_once -benchtime 2000000x -cpuprofile cpu.out
//
// An operation is a record on its way from a generator through six operators, three full shuffles and a log.
// The profile of the start is in it, so let it run for seconds.
func BenchmarkGraph(b *testing.B) {
	root, err := filepath.Abs("../..")
	if err != nil {
		b.Fatal(err)
	}
	path, language, err := graph.Build(b.Context(), root, b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("operators in %s", language)
	for _, mode := range []string{"none", "exactly_once", "at_least_once", "synchronous"} {
		for _, size := range []int{50, 200} {
			b.Run(fmt.Sprintf("%s/%dB", mode, size), func(b *testing.B) { runGraph(b, path, mode, size) })
		}
	}
}

func runGraph(b *testing.B, module, mode string, size int) {
	a := startWith(b, node.Options{Data: b.TempDir(), Name: "a", Labels: map[string]string{"role": "worker"}, NATSListen: "127.0.0.1:0", MQTTListen: node.Off})
	f, err := os.Open(module)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	m, err := a.client.PushModule(b.Context(), f)
	if err != nil {
		b.Fatal(err)
	}
	job := graph.Job{Name: "graph", Mode: mode, Interval: time.Second, Agents: 1, Sources: 2, Parallel: 2, Records: b.N, Keys: 10_000, Size: size}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := cpuTime(b)
	b.ResetTimer()
	if _, err := a.client.ApplyJob(b.Context(), api.JobSource{File: "graph.yaml", YAML: job.YAML(), Modules: map[string]string{graph.Module: m.Digest}}, time.Minute); err != nil {
		b.Fatal(err)
	}
	a.until("all records are through", func() (bool, string) {
		n := through(b.Context(), a)
		return n >= uint64(job.Total()), fmt.Sprintf("%d of %d", n, job.Total())
	})
	b.StopTimer()
	used := cpuTime(b) - cpu
	runtime.ReadMemStats(&after)
	n := float64(job.Total())
	b.ReportMetric(float64(used.Nanoseconds())/n, "cpu-ns/record")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/n, "allocs/record")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/n, "B/record")
	a.stop()
}

// through is how many records the last aggregate has taken.
func through(ctx context.Context, a *agent) (n uint64) {
	st, err := a.client.Status(ctx)
	if err != nil {
		return 0
	}
	for _, t := range st.Tasks {
		if strings.HasPrefix(t.ID, graph.Last+"/") {
			n += t.RecordsIn
		}
	}
	return n
}
