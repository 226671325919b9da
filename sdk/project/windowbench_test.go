package project

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"testing"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	weir "github.com/weir-stream/weir/sdk/go"
	"github.com/weir-stream/weir/wasmops"
)

// windowMs is the size of the windows of BenchmarkOperatorsWindow.
const windowMs = 10_000

// nativeWindow is a tumbling window of event time per key, written for the host: count, sum, mean, min and max of the field v.
type nativeWindow struct {
	open      map[int64]map[string]*nativeAcc // by their ends
	watermark int64
	out, text []byte
}

type nativeAcc struct {
	count         uint64
	sum, min, max float64
}

// Process implements processor. It never gets a late record.
func (n *nativeWindow) Process(b dataflow.Batch, _ dataflow.Emit) error {
	for rest := b.Payload; len(rest) > 0; {
		r, after, err := frame.Next(rest)
		if err != nil {
			return err
		}
		rest = after
		v, ok := weir.JSONNumber(r.Value, "v")
		if !ok {
			continue
		}
		end := r.Time - r.Time%windowMs + windowMs
		keys := n.open[end]
		if keys == nil {
			keys = map[string]*nativeAcc{}
			n.open[end] = keys
		}
		acc := keys[string(r.Key)]
		if acc == nil {
			acc = &nativeAcc{min: v, max: v}
			keys[string(r.Key)] = acc
		}
		acc.count++
		acc.sum += v
		acc.min, acc.max = min(acc.min, v), max(acc.max, v)
	}
	return nil
}

// moveTo moves the watermark on.
func (n *nativeWindow) moveTo(watermark int64, emit dataflow.Emit) error {
	n.watermark = watermark
	var ends []int64
	for end := range n.open {
		if end <= watermark {
			ends = append(ends, end)
		}
	}
	slices.Sort(ends)
	for _, end := range ends {
		keys := n.open[end]
		delete(n.open, end)
		names := make([]string, 0, len(keys))
		for key := range keys {
			names = append(names, key)
		}
		slices.Sort(names)
		n.out = n.out[:0]
		for _, key := range names {
			acc := keys[key]
			t := strconv.AppendInt(append(n.text[:0], `{"start":`...), end-windowMs, 10)
			t = strconv.AppendInt(append(t, `,"end":`...), end, 10)
			t = strconv.AppendUint(append(t, `,"count":`...), acc.count, 10)
			t = weir.AppendFixed(append(t, `,"sum":`...), acc.sum, 3)
			t = weir.AppendFixed(append(t, `,"mean":`...), acc.sum/float64(acc.count), 3)
			t = weir.AppendFixed(append(t, `,"min":`...), acc.min, 3)
			n.text = append(weir.AppendFixed(append(t, `,"max":`...), acc.max, 3), '}')
			n.out = frame.AppendRecord(n.out, frame.Record{Key: []byte(key), Time: end - 1, Value: n.text})
		}
		if err := emit(0, n.out, len(names)); err != nil {
			return err
		}
	}
	return nil
}

// guestWindow is the ready-made window in a module.
type guestWindow struct{ dataflow.TimedOperator }

func (g guestWindow) moveTo(watermark int64, emit dataflow.Emit) error {
	g.Advance(dataflow.Moment{Watermark: watermark, Stamp: watermark})
	for c, due := g.Next(); due; c, due = g.Next() {
		if err := g.Call(c, emit); err != nil {
			return err
		}
	}
	return nil
}

func newGuestWindow(tb testing.TB, wasm []byte, state string) guestWindow {
	tb.Helper()
	host, err := wasmops.NewHost(tb.Context(), wasmops.Options{Modules: shelf(wasm)})
	if err != nil {
		tb.Fatal(err)
	}
	op, err := host.New(tb.Context(), dataflow.OperatorSpec{
		Name: "bench", Task: "bench", Digest: wasmops.Digest(wasm), Outputs: []string{"out"},
		Config: map[string]string{"size": "10s", "functions": "count,sum,mean,min,max", "state": state},
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
	return guestWindow{op.(dataflow.TimedOperator)}
}

type windowed interface {
	processor
	moveTo(watermark int64, emit dataflow.Emit) error
}

// step gives a batch to a window, moves the batch a second on and the watermark behind it.
func step(w windowed, work *dataflow.Batch, emit dataflow.Emit) error {
	if err := w.Process(*work, emit); err != nil {
		return err
	}
	for rest := work.Payload; len(rest) > 0; {
		time := binary.LittleEndian.Uint64(rest[4:])
		binary.LittleEndian.PutUint64(rest[4:], time+1000)
		rest = rest[4+binary.LittleEndian.Uint32(rest):]
	}
	watermark := work.Stamp
	work.Stamp += 1000
	return w.moveTo(watermark, emit)
}

// windowGuests are the ready-made window in each language that is built.
var windowGuests = []benchGuest{{"go", func(tb testing.TB) []byte {
	return buildOperator(tb, Go, "examples/operators/window/main.go", Options{})
}}}

// BenchmarkOperatorsWindow compares a tumbling window of event time in Go for the host and the ready-made one, in keyed state and in memory: 1,000
// keys, each with a record of 50 bytes a second, windows of ten seconds with five functions.
func BenchmarkOperatorsWindow(b *testing.B) {
	run := func(w windowed) func(b *testing.B) {
		return func(b *testing.B) {
			work := benchBatch()
			before := cpuTime()
			for b.Loop() {
				if err := step(w, &work, func(int, []byte, int) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
			records, cpu := float64(b.N)*float64(work.Count), float64(cpuTime()-before)
			b.ReportMetric(cpu/records, "cpu-ns/record")
			b.ReportMetric(records/cpu*1e3, "Mrecords/cpu-s")
		}
	}
	b.Run("native", run(&nativeWindow{open: map[int64]map[string]*nativeAcc{}}))
	for _, g := range windowGuests {
		wasm := g.build(b)
		for _, state := range []string{"keyed", "memory"} {
			b.Run(g.name+"/"+state, run(newGuestWindow(b, wasm, state)))
		}
	}
}

// TestWindowGuests: what the benchmark compares puts out the same.
func TestWindowGuests(t *testing.T) {
	for _, g := range windowGuests {
		wasm := g.build(t)
		for _, state := range []string{"keyed", "memory"} {
			windows := []windowed{&nativeWindow{open: map[int64]map[string]*nativeAcc{}}, newGuestWindow(t, wasm, state)}
			var outs [2][]byte
			for i, w := range windows {
				work := benchBatch()
				for range 25 {
					if err := step(w, &work, func(_ int, payload []byte, _ int) error {
						outs[i] = append(outs[i], payload...)
						return nil
					}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if !bytes.Equal(outs[0], outs[1]) || len(outs[0]) < 100_000 {
				t.Fatalf("%s, %s: the guest puts out %d bytes, the host %d, or others", g.name, state, len(outs[1]), len(outs[0]))
			}
		}
	}
}
