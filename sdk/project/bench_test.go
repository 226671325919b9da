package project

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/wasmops"
)

var benchModes = []string{"noop", "filter", "count", "state"}

// benchBatch has 1,000 records of 50 bytes with 1,000 keys.
func benchBatch() dataflow.Batch {
	b := dataflow.Batch{Stamp: 1_700_000_000_000, Count: 1000}
	for i := range b.Count {
		b.Payload = frame.AppendRecord(b.Payload, frame.Record{
			Time: b.Stamp + int64(i), Key: fmt.Appendf(nil, "sensor%04d", i*7%1000), Value: fmt.Appendf(nil, `{"seq":%07d,"v":%d}`, i, i%10),
		})
	}
	return b
}

// native is what the guests in sdk/*/bench do, written for the host.
type native struct {
	mode   string
	counts map[string]*int64
	keyed  map[string][]byte
	out    []byte
	text   []byte
}

func (n *native) Process(b dataflow.Batch, emit dataflow.Emit) error {
	n.out = n.out[:0]
	count := 0
	for rest := b.Payload; len(rest) > 0; {
		r, after, err := frame.Next(rest)
		if err != nil {
			return err
		}
		rest = after
		switch n.mode {
		case "filter":
			if size := len(r.Value); size > 0 && r.Value[size-1]&1 == 1 {
				n.out = frame.AppendRecord(n.out, r)
				count++
			}
		case "count":
			c := n.counts[string(r.Key)]
			if c == nil {
				c = new(int64)
				n.counts[string(r.Key)] = c
			}
			*c++
			n.text = strconv.AppendInt(n.text[:0], *c, 10)
			n.out = frame.AppendRecord(n.out, frame.Record{Key: r.Key, Time: r.Time, Value: n.text})
			count++
		case "state":
			c := int64(1)
			if had, ok := n.keyed[string(r.Key)]; ok {
				v, err := strconv.ParseInt(string(had), 10, 64)
				if err != nil {
					return err
				}
				c += v
			}
			n.text = strconv.AppendInt(n.text[:0], c, 10)
			n.keyed[string(r.Key)] = append(n.keyed[string(r.Key)][:0], n.text...)
			n.out = frame.AppendRecord(n.out, frame.Record{Key: r.Key, Time: r.Time, Value: n.text})
			count++
		}
	}
	if count == 0 {
		return nil
	}
	return emit(0, n.out, count)
}

func newNative(mode string) *native {
	return &native{mode: mode, counts: map[string]*int64{}, keyed: map[string][]byte{}}
}

type shelf []byte

func (s shelf) Open(string) ([]byte, error) { return s, nil }

func newGuest(tb testing.TB, wasm []byte, mode string) dataflow.Operator {
	tb.Helper()
	host, err := wasmops.NewHost(tb.Context(), wasmops.Options{Modules: shelf(wasm)})
	if err != nil {
		tb.Fatal(err)
	}
	op, err := host.New(tb.Context(), dataflow.OperatorSpec{
		Name: "bench", Task: "bench", Digest: wasmops.Digest(wasm), Outputs: []string{"out"}, Config: map[string]string{"mode": mode},
	}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := op.Close(); err != nil {
			tb.Error(err)
		}
		if err := host.Close(tb.Context()); err != nil {
			tb.Error(err)
		}
	})
	return op
}

type processor interface {
	Process(b dataflow.Batch, emit dataflow.Emit) error
}

func benchOperator(b *testing.B, op processor) {
	work := benchBatch()
	before := cpuTime()
	for b.Loop() {
		if err := op.Process(work, func(int, []byte, int) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	records, cpu := float64(b.N)*float64(work.Count), float64(cpuTime()-before)
	b.ReportMetric(cpu/records, "cpu-ns/record")
	b.ReportMetric(records/cpu*1e3, "Mrecords/cpu-s")
}

// BenchmarkOperators compares the same operators in Go for the host, and as guests in each language: records of 50
// bytes, in batches of 1,000. Guests in C, Rust and AssemblyScript are there with the build tags clang,
// rustc and asc. noop reads every record; filter passes on half of them; count counts by key in a map in
// memory and puts out each new count; state does that in keyed state, by one get and one put a record.
func BenchmarkOperators(b *testing.B) {
	for _, mode := range benchModes {
		b.Run(mode+"/native", func(b *testing.B) { benchOperator(b, newNative(mode)) })
		for _, g := range benchGuests {
			b.Run(mode+"/"+g.name, func(b *testing.B) { benchOperator(b, newGuest(b, g.build(b), mode)) })
		}
	}
}

// benchGuest is the guest in one language.
type benchGuest struct {
	name  string
	build func(tb testing.TB) []byte
}

var benchGuests = []benchGuest{{"go", func(tb testing.TB) []byte { return buildOperator(tb, Go, "sdk/go/bench/main.go", Options{}) }}}

// TestBenchGuests: what benchmarks compare puts out the same. With another language, Go is not tested again.
func TestBenchGuests(t *testing.T) {
	for _, g := range benchGuests[min(1, len(benchGuests)-1):] {
		wasm := g.build(t)
		for _, mode := range benchModes {
			host, guest := newNative(mode), newGuest(t, wasm, mode)
			for range 3 {
				var outs [2][]byte
				for i, op := range []processor{host, guest} {
					err := op.Process(benchBatch(), func(_ int, payload []byte, count int) error {
						outs[i] = append(fmt.Appendf(outs[i], "%d:", count), payload...)
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				if !bytes.Equal(outs[0], outs[1]) || (len(outs[0]) == 0) != (mode == "noop") {
					t.Fatalf("%s in %s puts out %d bytes, the host %d, or others", mode, g.name, len(outs[1]), len(outs[0]))
				}
			}
		}
	}
}
