package dataflow

import (
	"errors"
	"fmt"
	"maps"
	"testing"
)

// TestMarksRoundTrip: what a snapshot keeps of marks is what they make, by whatever way they came about.
func TestMarksRoundTrip(t *testing.T) {
	m := map[uint64]uint64{}
	for _, step := range [][]Mark{
		{{Key: 1, Value: 10}, {Key: 65535, Value: 1 << 63}, {Key: 1 << 60, Value: 0}},
		{{Drop: true, Key: 1, Value: 1}, {Drop: true, Key: 2, Value: 2}, {Key: 2, Value: 20}},
		{{Drop: true, Key: 1, Value: 65535}, {Key: 3, Value: 30}},
		{{Drop: true, Key: 4, Value: 1<<64 - 1}},
	} {
		if err := applyMarks(m, appendMarks(nil, step)); err != nil {
			t.Fatal(err)
		}
		again, err := decodeMarks(encodeMarks(m))
		if err != nil || !maps.Equal(again, m) {
			t.Fatalf("%v is kept as %v, %v", m, again, err)
		}
	}
	if !maps.Equal(m, map[uint64]uint64{3: 30}) {
		t.Fatalf("got %v", m)
	}
}

func FuzzMarks(f *testing.F) {
	f.Add(appendMarks(nil, []Mark{{Key: 5, Value: 7}, {Drop: true, Key: 5, Value: 9}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMarks(b)
		if err != nil {
			if !errors.Is(err, errEntry) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if again, err := decodeMarks(encodeMarks(m)); err != nil || !maps.Equal(again, m) {
			t.Fatalf("%v is kept as %v, %v", m, again, err)
		}
	})
}

// TestTaskKeepsTheMarksOfItsSource: they are as durable as the records of their batch. A restart knows of
// those in the snapshot and in the log behind it, and of none that a power cut took with their records.
func TestTaskKeepsTheMarksOfItsSource(t *testing.T) {
	bubble(t, "", func(d *device) {
		batch := func(p *process, records int, marks ...Mark) {
			t.Helper()
			b := IngestBatch{Marks: marks, Count: records}
			for i := range records {
				b.Payload = append(b.Payload, numbered(i, 0)...)
			}
			if err := p.ingest.Append(b, func() {}); err != nil {
				d.t.Fatal(err)
			}
		}
		wants := func(what string, got map[uint64]uint64, want string) {
			d.t.Helper()
			if fmt.Sprint(got) != want {
				d.t.Fatalf("%s: got %v, want %s", what, got, want)
			}
		}
		p := d.start()
		batch(p, 1, Mark{Key: 5, Value: 50}, Mark{Key: 6, Value: 60})
		p.sync()
		p.barrier(1) // both are in the snapshot
		batch(p, 0, Mark{Drop: true, Key: 5, Value: 5})
		batch(p, 1, Mark{Key: 7, Value: 70})
		p.sync()
		durable := 0
		wants("in the process", p.ingest.Marks(func() { durable++ }), "map[6:60 7:70]")
		mustEqual(d.t, "said to be durable", durable, 1)
		batch(p, 1, Mark{Key: 8, Value: 80})
		p.ingest.Marks(func() { durable++ })
		mustEqual(d.t, "said to be durable", durable, 1)
		wants("with what is not synced", p.restarted().Marks, "map[6:60 7:70 8:80]")
		p.stop(true)

		p = d.start()
		wants("after the power cut", p.restarted().Marks, "map[6:60 7:70]")
		p.ingest.Resume(p.restarted())
		batch(p, 0, Mark{Drop: true, Key: 0, Value: 65535})
		p.sync()
		wants("dropped", p.ingest.Marks(func() {}), "map[]")
		p.barrier(2)
		p.sync()
		p.stop(false)

		p = d.start()
		wants("from the snapshot alone", p.restarted().Marks, "map[]")
		p.stop(false)
	})
}
