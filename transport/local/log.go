package local

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/template"
	"github.com/weir-stream/weir/dataflow/window"
)

// LogSinkConfig says how items look in the log.
type LogSinkConfig struct {
	Name string // of the sink in its job; an attribute of each entry
	// Line is a template (see [template]); empty: {value}.
	Line string
}

// LogSink writes each item as one entry of the log, at level info. It implements [dataflow.Sink].
type LogSink struct {
	line   template.Template
	log    *slog.Logger
	window *window.Window
	handed atomic.Uint64
}

// NewLogSink compiles the template.
func NewLogSink(cfg LogSinkConfig, deps Deps) (*LogSink, error) {
	deps, err := deps.check()
	if err != nil {
		return nil, fmt.Errorf("log sink %s: %w", cfg.Name, err)
	}
	line, err := parseLine(cfg.Line)
	if err != nil {
		return nil, fmt.Errorf("log sink %s: %w", cfg.Name, err)
	}
	return &LogSink{line: line, log: deps.Log.With("sink", cfg.Name), window: window.New(maxItems, maxBytes)}, nil
}

// Offer takes items if the sink runs and has room.
func (s *LogSink) Offer(items []dataflow.SinkItem) int { return s.window.Offer(items) }

// Handed is the number of items written since the sink was made.
func (s *LogSink) Handed() uint64 { return s.handed.Load() }

// Run writes until ctx ends, and then returns nil.
func (s *LogSink) Run(ctx context.Context, ev dataflow.SinkEvents) error {
	var text []byte
	handOver(ctx, s.window, ev, func(items []dataflow.SinkItem) bool {
		for _, it := range items {
			text, _ = s.line.Append(text[:0], fields(it)) // what the value does not have is left out
			s.log.Info(string(text))
		}
		s.handed.Add(uint64(len(items)))
		return true
	})
	return nil
}
