package wasmops

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// keyedBatch has n records of about 50 bytes with 100 keys.
func keyedBatch(n int) dataflow.Batch {
	b := dataflow.Batch{Stamp: 1_700_000_000_000, Count: n}
	for i := range n {
		b.Payload = frame.AppendRecord(b.Payload, frame.Record{
			Time: b.Stamp, Key: []byte("sensor" + strconv.Itoa(i%100)), Value: []byte(`{"seq":` + strconv.Itoa(i) + `,"v":20.5}`),
		})
	}
	return b
}

func benchProcess(b *testing.B, wasm []byte, spec dataflow.OperatorSpec, records int) {
	h := newHost(b, Options{Modules: shelf(wasm)})
	in := newInstance(b, h, spec, nil)
	defer closeInstance(b, in)
	work := keyedBatch(records)
	b.ReportAllocs()
	for b.Loop() {
		if err := in.Process(work, func(int, []byte, int) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	if records > 0 {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*records), "ns/record")
		b.ReportMetric(float64(b.N*records)/b.Elapsed().Seconds(), "records/s")
	}
}

// BenchmarkCall is one call of a guest that does nothing, without and with a Go guest's overhead.
func BenchmarkCall(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		wasm := minimal().wasm()
		benchProcess(b, wasm, dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm)}, 0)
	})
	b.Run("go", func(b *testing.B) { benchProcess(b, tortureModule(b), torture(b, "echo"), 0) })
}

// BenchmarkRecords is an operator written in Go that passes records on, and ones that count by key.
func BenchmarkRecords(b *testing.B) {
	for _, records := range []int{10, 1000} {
		b.Run(fmt.Sprintf("echo/batch=%d", records), func(b *testing.B) {
			benchProcess(b, tortureModule(b), torture(b, "echo"), records)
		})
		for _, name := range []string{"count", "parse"} {
			b.Run(fmt.Sprintf("%s/batch=%d", name, records), func(b *testing.B) {
				wasm := wasmtest.Bytes(b, "../examples/demo/"+name)
				benchProcess(b, wasm, dataflow.OperatorSpec{Name: name, Digest: Digest(wasm), Outputs: []string{"out"}}, records)
			})
		}
	}
}

// BenchmarkFreeze is the pause of a snapshot with so much changed memory.
func BenchmarkFreeze(b *testing.B) {
	for _, mib := range []int{0, 1, 8} {
		b.Run(fmt.Sprintf("changed=%dMiB", mib), func(b *testing.B) {
			h := newHost(b, Options{Modules: shelf(tortureModule(b))})
			spec := torture(b, "dirty")
			spec.Config["bytes"] = strconv.Itoa(mib << 20)
			in := newInstance(b, h, spec, nil)
			defer closeInstance(b, in)
			if _, err := in.Freeze(true); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				if err := in.Process(batch(1, "x"), nil); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if _, err := in.Freeze(false); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(in.mod.Memory().Size())/(1<<20), "MiB")
		})
	}
}

// BenchmarkRestore is a new instance with the state of a Go operator.
func BenchmarkRestore(b *testing.B) {
	h := newHost(b, Options{Modules: shelf(tortureModule(b))})
	in := newInstance(b, h, torture(b, "count"), nil)
	changes, err := in.Freeze(true)
	closeInstance(b, in)
	if err != nil {
		b.Fatal(err)
	}
	var store memoryStore
	store.save(changes)
	for b.Loop() {
		closeInstance(b, newInstance(b, h, torture(b, "count"), store.read))
	}
}
