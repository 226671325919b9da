package local

import (
	"context"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/window"
)

// handOver gives the items of a sink's window to write, in order, until ctx ends or write says that it could not: nothing of
// those items is handed over then.
func handOver(ctx context.Context, w *window.Window, ev dataflow.SinkEvents, write func([]dataflow.SinkItem) bool) {
	w.Open()
	defer w.Close()
	ev.Ready()
	var items []dataflow.SinkItem
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Wake():
		}
		items = w.Take(items[:0])
		if len(items) == 0 {
			continue
		}
		if !write(items) {
			return
		}
		ev.Handed(items[len(items)-1].Number)
		if w.Done(len(items)) {
			ev.Ready()
		}
		clear(items)
	}
}
