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

// BenchmarkMetering compares ways to stop a guest that does not end: none, counted fuel, and the
// engine's own check of a context. The loops are what a C compiler makes of a checksum over bytes and
// of calls of a small recursive function; the rest is Go.
func BenchmarkMetering(b *testing.B) {
	count, parse := wasmtest.Bytes(b, "../examples/demo/count"), wasmtest.Bytes(b, "../examples/demo/parse")
	for _, guest := range []struct {
		name string
		wasm []byte
		spec dataflow.OperatorSpec
	}{
		{"checksum", checksumGuest().wasm(), dataflow.OperatorSpec{}},
		{"fibonacci", fibonacciGuest().wasm(), dataflow.OperatorSpec{}},
		{"floats", floatGuest().wasm(), dataflow.OperatorSpec{}},
		{"go-echo", tortureModule(b), torture(b, "echo")},
		{"go-count", count, dataflow.OperatorSpec{Outputs: []string{"out"}}},
		{"go-parse", parse, dataflow.OperatorSpec{Outputs: []string{"out"}}},
	} {
		guest.spec.Name, guest.spec.Digest = "o", Digest(guest.wasm)
		for i, name := range []string{"metered", "unstoppable", "watched"} {
			for _, interpreter := range []bool{false, true} {
				engine := "compiler"
				if interpreter {
					engine = "interpreter"
				}
				b.Run(guest.name+"/"+engine+"/"+name, func(b *testing.B) {
					h := newHost(b, Options{Modules: shelf(guest.wasm), Interpreter: interpreter, measure: measure(i)})
					in := newInstance(b, h, guest.spec, nil)
					defer closeInstance(b, in)
					work := keyedBatch(1000)
					for b.Loop() {
						if err := in.Process(work, func(int, []byte, int) error { return nil }); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// checksumGuest hashes a batch byte by byte (FNV-1a), its buffer at 65536.
func checksumGuest() *builder {
	b := minimal().body(exportAlloc, i32c(65536)...)
	b.memory = []byte{0, 4}
	at := b.local(exportProcess, i32)
	h := b.local(exportProcess, i32)
	return b.body(exportProcess, cat(
		[]byte{0x20, 1, 0x21, at, 0x20, 2, 0x20, 1, 0x6a, 0x21, 2}, // at = ptr; len = ptr + len
		[]byte{0x03, 0x40},
		[]byte{0x20, h, 0x20, at, 0x2d, 0, 0, 0x73}, i32c(16777619), []byte{0x6c, 0x21, h}, // h = (h ^ load8(at)) * prime
		[]byte{0x20, at, 0x41, 1, 0x6a, 0x22, at, 0x20, 2, 0x49, 0x0d, 0, 0x0b}, // if ++at < len: again
		i32c(8), []byte{0x20, h, 0x36, 2, 0}, ok)...)
}

// fibonacciGuest calls itself some 20,000 times.
func fibonacciGuest() *builder {
	b := minimal()
	self := byte(len(b.funcs))
	b.fn("", sig(args(i32), i32), cat(
		[]byte{0x20, 0, 0x41, 2, 0x49, 0x04, 0x7f, 0x20, 0, 0x05}, // n < 2 ? n :
		[]byte{0x20, 0, 0x41, 1, 0x6b, 0x10, self, 0x20, 0, 0x41, 2, 0x6b, 0x10, self, 0x6a, 0x0b})...)
	return b.body(exportProcess, cat(callWith(self, 20), drop, ok)...)
}

// floatGuest is 100,000 steps of an exponential average.
func floatGuest() *builder {
	b := minimal()
	i := b.local(exportProcess, i32)
	x := b.local(exportProcess, 0x7c)
	half := append([]byte{0x44}, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f)
	return b.body(exportProcess, cat(i32c(100_000), []byte{0x21, i, 0x03, 0x40},
		[]byte{0x20, x}, half, []byte{0xa2}, half, []byte{0xa0, 0x21, x}, // x = x / 2 + 0.5
		[]byte{0x20, i, 0x41, 1, 0x6b, 0x22, i, 0x0d, 0, 0x0b},
		i32c(8), []byte{0x20, x, 0x39, 3, 0}, ok)...)
}
