package window

import (
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

func items(from, n, bytes int) []dataflow.SinkItem {
	out := make([]dataflow.SinkItem, n)
	for i := range out {
		out[i] = dataflow.SinkItem{Number: abs.Seq(from + i), Record: frame.Record{Value: make([]byte, bytes)}}
	}
	return out
}

func TestBoundByItems(t *testing.T) {
	w := New(3, 1<<20)
	if n := w.Offer(items(1, 2, 1)); n != 0 {
		t.Fatalf("a closed window took %d", n)
	}
	w.Open()
	if n := w.Offer(items(1, 5, 1)); n != 3 {
		t.Fatalf("took %d, want 3", n)
	}
	<-w.Wake()
	if got := w.Take(nil); len(got) != 3 || got[2].Number != 3 {
		t.Fatalf("took out %v", got)
	}
	if got := w.Take(nil); len(got) != 0 {
		t.Fatalf("took out twice: %v", got)
	}
	if n := w.Offer(items(4, 1, 1)); n != 0 {
		t.Fatal("items under way do not count")
	}
	if !w.Done(2) {
		t.Fatal("the waiting task is not called")
	}
	if n := w.Offer(items(4, 2, 1)); n != 2 {
		t.Fatalf("took %d, want 2", n)
	}
	if w.Done(1) {
		t.Fatal("the task is called though its offer was taken")
	}
	if got := w.Take(nil); len(got) != 2 || got[0].Number != 4 {
		t.Fatalf("took out %v", got)
	}
}

func TestBoundByBytes(t *testing.T) {
	w := New(100, 1000)
	w.Open()
	if n := w.Offer(items(1, 2, 5000)); n != 1 {
		t.Fatalf("took %d: one item must fit, a second not", n)
	}
	w.Take(nil)
	w.Done(1)
	if n := w.Offer(items(2, 4, 100)); n != 3 {
		t.Fatalf("took %d, want 3 of 276 bytes", n)
	}
}

func TestCloseForgets(t *testing.T) {
	w := New(2, 1<<20)
	w.Open()
	w.Offer(items(1, 2, 1))
	w.Close()
	w.Open()
	if w.Len() != 0 || len(w.Take(nil)) != 0 {
		t.Fatal("items survived the close")
	}
	if n := w.Offer(items(1, 2, 1)); n != 2 {
		t.Fatalf("took %d after reopening", n)
	}
}
