package native

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/dataflow/job"
)

func open(t testing.TB, name string, config map[string]string, state dataflow.StateReader) dataflow.Operator {
	t.Helper()
	op, err := Operators{}.New(t.Context(), dataflow.OperatorSpec{Name: "op", Digest: Prefix + name, Config: config}, state)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

func batch(records ...string) dataflow.Batch {
	var b dataflow.Batch
	for _, kv := range records {
		k, v, _ := strings.Cut(kv, "=")
		b.Payload = frame.AppendRecord(b.Payload, frame.Record{Key: []byte(k), Value: []byte(v), Time: 7})
		b.Count++
	}
	return b
}

func run(t testing.TB, op dataflow.Operator, b dataflow.Batch) []string {
	t.Helper()
	var out []string
	err := op.Process(b, func(output int, payload []byte, count int) error {
		for rest := payload; len(rest) > 0; {
			r, after, err := frame.Next(rest)
			if err != nil {
				return err
			}
			out = append(out, fmt.Sprintf("%s=%s", r.Key, r.Value))
			rest = after
		}
		if count != len(out) || output != 0 {
			return fmt.Errorf("count %d of output %d", count, output)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAggregates(t *testing.T) {
	in := batch("a=4", "b=1", "a=-2", "a=7")
	want := map[string][]string{
		"count": {`a={"count":1}`, `b={"count":1}`, `a={"count":2}`, `a={"count":3}`},
		"sum":   {`a={"sum":4,"count":1}`, `b={"sum":1,"count":1}`, `a={"sum":2,"count":2}`, `a={"sum":9,"count":3}`},
		"mean":  {`a={"mean":4,"count":1}`, `b={"mean":1,"count":1}`, `a={"mean":1,"count":2}`, `a={"mean":3,"count":3}`},
		"min":   {`a={"min":4,"count":1}`, `b={"min":1,"count":1}`, `a={"min":-2,"count":2}`, `a={"min":-2,"count":3}`},
		"max":   {`a={"max":4,"count":1}`, `b={"max":1,"count":1}`, `a={"max":4,"count":2}`, `a={"max":7,"count":3}`},
	}
	if got := slices.Sorted(maps.Keys(want)); !slices.Equal(got, Names()) {
		t.Fatalf("the table has %v, the package %v", got, Names())
	}
	if Prefix != job.NativePrefix || !slices.Equal(job.NativeOperators, Names()) {
		t.Fatalf("job files may name %v, the package has %v", job.NativeOperators, Names())
	}
	for name, lines := range want {
		if got := run(t, open(t, name, nil, nil), in); !slices.Equal(got, lines) {
			t.Errorf("%s: %q, want %q", name, got, lines)
		}
	}
}

// A copy restored from checkpoints goes on as the operator itself does.
func TestCheckpointAndRestore(t *testing.T) {
	whole := open(t, "sum", map[string]string{"field": "v"}, nil)
	saved := map[string][]byte{}
	for i := range 50 {
		in := batch(fmt.Sprintf(`k%d={"v":%d}`, i%7, i), fmt.Sprintf(`k%d={"v":1}`, i%3))
		changes, err := whole.Freeze(i == 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			saved[string(c.Key)] = c.Value
		}
		restored := open(t, "sum", map[string]string{"field": "v"}, func(visit func(dataflow.Change) error) error {
			for k, v := range saved {
				if err := visit(dataflow.Change{Space: dataflow.SpaceKeyed, Key: []byte(k), Value: v}); err != nil {
					return err
				}
			}
			return nil
		})
		if got, want := run(t, restored, in), run(t, whole, in); !slices.Equal(got, want) {
			t.Fatalf("batch %d: restored %q, whole %q", i, got, want)
		}
	}
}

func TestBadRecordAndConfig(t *testing.T) {
	op := open(t, "mean", map[string]string{"field": "v"}, nil)
	var guest *dataflow.GuestError
	err := op.Process(batch(`a={"v":"x"}`), func(int, []byte, int) error { return nil })
	if !errors.As(err, &guest) || !strings.Contains(guest.Reason, `"v"`) {
		t.Fatalf("error %v", err)
	}
	for digest, config := range map[string]map[string]string{Prefix + "median": nil, Prefix + "sum": {"feild": "v"}} {
		if _, err := (Operators{}).New(t.Context(), dataflow.OperatorSpec{Digest: digest, Config: config}, nil); err == nil {
			t.Errorf("%s %v was taken", digest, config)
		}
	}
}

func BenchmarkCount(b *testing.B) {
	op := open(b, "count", nil, nil)
	var in dataflow.Batch
	for i := range 1000 {
		in.Payload = frame.AppendRecord(in.Payload, frame.Record{Key: fmt.Appendf(nil, "key-%d", i%100), Value: []byte("0123456789012345678901234")})
		in.Count++
	}
	b.SetBytes(int64(len(in.Payload)))
	b.ReportAllocs()
	for b.Loop() {
		if err := op.Process(in, func(int, []byte, int) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/record")
}
