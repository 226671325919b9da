package node_test

import (
	"bytes"
	"flag"
	"fmt"
	"runtime"
	"testing"

	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// cycles is how often TestDeployAndUndeploy does both; 1000 for a long look.
var cycles = flag.Int("cycles", 6, "deploy and undeploy so often")

// TestDeployAndUndeploy runs a job with an operator and removes it, again and again: neither goroutines
// nor memory are left behind.
func TestDeployAndUndeploy(t *testing.T) {
	a := start(t, t.TempDir())
	wasm := wasmtest.NewGuest().Body("weir_process", wasmtest.Code(wasmtest.Pass, wasmtest.OK)...).Wasm()
	if _, err := a.client.PushOperator(t.Context(), "pass", "1", bytes.NewReader(wasm)); err != nil {
		t.Fatal(err)
	}
	f := newFiles(t)
	f.write(t, "one\n")
	yaml := fmt.Sprintf(`name: lines
checkpoint: {interval: 100ms, min_pause: 0s}
sources:
  text: {file: {path: %q, follow: true}, key: {const: k}}
operators:
  pass: {wasm: pass@1, from: text}
sinks:
  out: {log: {}, from: pass}
`, f.in)
	cycle := func() {
		t.Helper()
		a.mustApply(yaml)
		if _, err := a.client.StopJob(t.Context(), "lines", patience); err != nil {
			t.Fatal(err)
		}
		if err := a.client.DeleteJob(t.Context(), "lines", false, patience); err != nil {
			t.Fatal(err)
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what finalizers have let go
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for range 2 { // what is made once
		cycle()
	}
	goroutines, before := runtime.NumGoroutine(), heap()
	for n := range *cycles {
		cycle()
		if n%100 == 99 {
			t.Logf("%d cycles: %d goroutines, %d KiB", n+1, runtime.NumGoroutine(), heap()>>10)
		}
	}
	const slack = 8 // connections and timers that come and go
	a.until("goroutines have ended", func() (bool, string) {
		n := runtime.NumGoroutine()
		return n <= goroutines+slack, fmt.Sprintf("%d, %d before", n, goroutines)
	})
	const room = 16 << 20 // caches of the server
	if after := heap(); after > before+room {
		t.Errorf("%d bytes of heap after %d cycles, %d before", after, *cycles, before)
	}
}
