package dataflow

import (
	"bytes"
	"fmt"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// sequence is what a channel carries, by number from 1: the same whoever sends it and however it is
// cut into frames.
type sequence struct {
	gen   abs.Generation
	inc   uint32
	items []seqItem
}

type seqItem struct {
	kind  frame.Kind
	bytes []byte
}

// newSequence makes items; marks says which numbers are barriers.
func newSequence(n int, marks ...int) sequence {
	s := sequence{gen: 3, inc: 2}
	for i := 1; i <= n; i++ {
		s.items = append(s.items, seqItem{frame.Data, numbered(i, 0)})
	}
	for i, m := range marks {
		s.items[m-1] = seqItem{frame.Barrier, frame.AppendMark(nil, frame.Mark{Kind: frame.Barrier, Value: uint64(i + 1)})}
	}
	return s
}

// numbered is an encoded record that tells its number.
func numbered(n, padding int) []byte {
	value := append(fmt.Appendf(nil, "item %d", n), make([]byte, padding)...)
	return frame.AppendRecord(nil, frame.Record{Time: int64(n), Key: fmt.Appendf(nil, "k%d", n%7), Value: value})
}

// sum is the running checksum before a number.
func (s sequence) sum(before abs.Seq) frame.Sum {
	var sum frame.Sum
	for _, it := range s.items[:before-1] {
		sum = sum.Add(it.bytes)
	}
	return sum
}

// bytes are the items from one number to another, both included.
func (s sequence) bytes(first, last abs.Seq) []byte {
	var b []byte
	for _, it := range s.items[first-1 : last] {
		b = append(b, it.bytes...)
	}
	return b
}

// frame is a frame of the items from one number to another; they must be records, or one mark.
func (s sequence) frame(first, last abs.Seq) []byte {
	payload := s.bytes(first, last)
	before := s.sum(first)
	return frame.Append(nil, frame.Header{
		Kind: s.items[first-1].kind, Generation: uint32(s.gen), Incarnation: s.inc, Count: uint32(last - first + 1),
		First: uint64(first), Watermark: frame.NoWatermark, Before: before, After: before.Add(payload),
	}, payload)
}

// run is the number of the last item up to limit that may be in one frame with the first.
func (s sequence) run(first, limit abs.Seq) abs.Seq {
	last := first
	if s.items[first-1].kind != frame.Data {
		return last
	}
	for last < limit && s.items[last].kind == frame.Data {
		last++
	}
	return last
}

// checker is a test, or the test of one case of a property.
type checker interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func mustEqual[T comparable](t checker, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func mustBytes(t checker, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

func payloadValues(t checker, payload []byte) []string {
	t.Helper()
	var out []string
	for len(payload) > 0 {
		r, rest, err := frame.Next(payload)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(r.Value))
		payload = rest
	}
	return out
}
