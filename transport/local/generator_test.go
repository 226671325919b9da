package local

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/extract"
)

// generate runs a generator on a log until it ends.
func generate(t *testing.T, cfg GeneratorConfig, l *logged) {
	t.Helper()
	s, err := NewGeneratorSource(cfg, deps(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if st := s.Status(); !st.Ended || st.Offset != cfg.Records {
		t.Fatalf("status %+v", st)
	}
}

func TestGeneratorMakesEqualRecords(t *testing.T) {
	cfg := GeneratorConfig{Records: 3000, Keys: 7, Size: 50, Seed: 1, Name: "job/a"}
	first, again, other := newLogged(), newLogged(), newLogged()
	generate(t, cfg, first)
	generate(t, cfg, again)
	cfg.Name = "job/b"
	generate(t, cfg, other)
	if !slices.Equal(first.lines, again.lines) || !slices.Equal(first.keys, again.keys) {
		t.Error("equal configurations make different records")
	}
	if slices.Equal(first.keys, other.keys) {
		t.Error("sources of different names make the same keys")
	}
	seen := map[string]int{}
	for i, line := range first.lines {
		var v struct {
			N   uint64
			V   float64
			Pad string
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil || v.N != uint64(i) || v.V < 0 || v.V >= 100 || len(line) != 50 {
			t.Fatalf("record %d: %s: %v", i, line, err)
		}
		seen[first.keys[i]]++
	}
	for k := range 7 {
		if n := seen[fmt.Sprint("k", k)]; n < 300 || n > 600 {
			t.Errorf("key k%d has %d of 3000 records", k, n)
		}
	}
	if len(seen) != 7 {
		t.Errorf("%d keys", len(seen))
	}
}

// stopAfter ends a source after one batch.
type stopAfter struct {
	*logged
	stop context.CancelFunc
}

func (l *stopAfter) Append(b dataflow.IngestBatch, durable func()) error {
	defer l.stop()
	return l.logged.Append(b, durable)
}

// A generator that is stopped anywhere and started again makes the records that one alone would.
func TestGeneratorGoesOnBehindItsLog(t *testing.T) {
	cfg := GeneratorConfig{Records: 5000, Keys: 3, Size: 60, Seed: 2, Name: "job/a"}
	whole, parts := newLogged(), newLogged()
	generate(t, cfg, whole)
	for !parts.ended {
		s, err := NewGeneratorSource(cfg, deps(nil))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopping := &stopAfter{logged: parts, stop: cancel}
		if err := s.Run(ctx, stopping); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	if !slices.Equal(whole.lines, parts.lines) || !slices.Equal(whole.keys, parts.keys) {
		t.Errorf("%d records in parts, %d in one go", len(parts.lines), len(whole.lines))
	}
}

func TestGeneratorWaitsForTheTask(t *testing.T) {
	d := deps(nil)
	lag, asked := uint64(1<<40), make(chan struct{})
	d.Lag = func() uint64 {
		select {
		case asked <- struct{}{}:
		default:
		}
		return lag
	}
	s, err := NewGeneratorSource(GeneratorConfig{Records: 10, Keys: 1}, d)
	if err != nil {
		t.Fatal(err)
	}
	l := newLogged()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l) }()
	<-asked
	<-asked
	cancel()
	if err := <-ended; err != nil || len(l.lines) != 0 {
		t.Fatalf("%d records were made while the task was behind: %v", len(l.lines), err)
	}
	d.Lag = func() uint64 { return 0 }
	if s, err = NewGeneratorSource(GeneratorConfig{Records: 10, Keys: 1}, d); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context(), l); err != nil || len(l.lines) != 10 {
		t.Fatalf("%d records: %v", len(l.lines), err)
	}
}

func TestGeneratorRateIsDue(t *testing.T) {
	s := &GeneratorSource{cfg: GeneratorConfig{Rate: 100, Records: 1000}}
	for _, c := range []struct {
		ms   int64
		want uint64
	}{{0, 50}, {9, 50}, {10, 51}, {1000, 150}, {60_000, 1000}} {
		if got := s.due(50, time.Duration(c.ms)*time.Millisecond); got != c.want {
			t.Errorf("after %d ms up to %d, want %d", c.ms, got, c.want)
		}
	}
}

func TestGeneratorRefuses(t *testing.T) {
	for _, cfg := range []GeneratorConfig{{}, {Keys: 1, Rate: -1}, {Keys: 1, Size: -1}, {Keys: 1, Size: 1 << 30}, {Keys: 1, Key: extract.KeyRule{Kind: extract.KeyJSON}}} {
		if _, err := NewGeneratorSource(cfg, deps(nil)); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

// A key that is not in what it makes is an error that says so, not a stream of dead letters.
func TestGeneratorKeyThatIsNotThere(t *testing.T) {
	s, err := NewGeneratorSource(GeneratorConfig{Records: 1, Keys: 1, Key: extract.KeyRule{Kind: extract.KeyJSON, Path: "machine"}}, deps(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context(), newLogged()); err == nil {
		t.Error("no error")
	}
}
