package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/demo"
	"github.com/weir-stream/weir/internal/node"
	"github.com/weir-stream/weir/wasmops/abitest"
	"github.com/weir-stream/weir/wasmops/optest"
)

// parts are what commands run in this process.
type parts struct {
	// run runs an agent until ctx ends.
	run func(ctx context.Context, opt node.Options, log *slog.Logger) error
	// wait waits before a request is tried again; nil: by the clock.
	wait func(ctx context.Context, d time.Duration) error
	// demo shows the whole on this machine; keep leaves it running afterwards.
	demo func(ctx context.Context, keep bool, out io.Writer) error
	// importCheckpoint puts an exported checkpoint into an agent's directory, offline.
	importCheckpoint func(ctx context.Context, file io.Reader, dir string) (node.Imported, error)
	// diagnose looks at the directory of an agent that does not run.
	diagnose func(dir string) (*node.Diagnosis, error)
	// testOperator runs a module over records in JSON lines, whole and restored after every batch.
	testOperator func(ctx context.Context, module []byte, opt optest.Options, in, want io.Reader) (optest.Report, error)
	// tryOperators starts the operators of a job file whose modules are files, to hear what they refuse.
	tryOperators func(ctx context.Context, file *job.File, paths map[string]string) error
	// verifyOperator checks a module against the ABI; kit runs the conformance kit on it.
	verifyOperator func(ctx context.Context, module []byte, opt abitest.Options) (abitest.Report, error)
	kit            func(ctx context.Context, module []byte, opt abitest.Options) []abitest.Result
}

func wired() parts {
	return parts{
		run:              node.Run,
		demo:             demo.Run,
		importCheckpoint: node.ImportCheckpoint,
		diagnose:         node.Diagnose,
		testOperator:     optest.RunOptions,
		tryOperators:     node.TryFiles,
		verifyOperator:   abitest.Verify,
		kit:              abitest.Kit,
	}
}
