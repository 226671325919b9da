// Package local holds the sources and sinks that need no network. [FileSource] reads lines, [GeneratorSource]
// makes records. [LogSink] writes items to the agent's own log,
// [FileSink] appends them to a file as lines.
//
// Both deliver in order. An item that was delivered shortly before a kill, and not yet known as
// handed over, is delivered again after the restart.
package local

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/template"
)

// Bounds of what a local sink holds. A round of the disk takes far fewer.
const (
	maxItems = 1024
	maxBytes = 1 << 20
)

// Deps are what a local sink needs of its agent.
type Deps struct {
	// Clock is the time in milliseconds since 1970.
	Clock func() int64
	Log   *slog.Logger
	// Lag is how many records of a source wait in its log for the task; nil: not known. Sinks need none.
	Lag func() uint64
}

func (d Deps) check() (Deps, error) {
	if d.Clock == nil {
		return d, errors.New("no clock given")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	return d, nil
}

// parseLine compiles the template of a line; an empty one is {value}.
func parseLine(source string) (template.Template, error) {
	if source == "" {
		source = "{value}"
	}
	t, err := template.Parse(source)
	if err != nil {
		return t, fmt.Errorf("line: %w", err)
	}
	return t, nil
}

func fields(it dataflow.SinkItem) template.Fields {
	return template.Fields{Record: it.Record, Number: uint64(it.Number), Channel: it.Channel}
}
