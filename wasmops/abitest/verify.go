package abitest

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/wasmops"
)

// Report says what [Verify] found.
type Report struct {
	Module   *wasmops.Module
	Snapshot int // bytes of a snapshot of a fresh instance
}

// Verify checks any operator: that a host takes it (exports, imports, limits, no state that a snapshot
// would lack), that it starts with its configuration, takes an empty batch, a watermark and the end of its input, and that a restored copy of
// it has the same state and goes on. The error says what is wrong and what to do.
func Verify(ctx context.Context, wasm []byte, opt Options) (report Report, err error) {
	host, err := wasmops.NewHost(ctx, wasmops.Options{Modules: single(wasm), CacheDir: opt.CacheDir})
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, host.Close(ctx)) }()
	if report.Module, err = host.Check(ctx, wasm); err != nil {
		return report, err
	}
	spec := dataflow.OperatorSpec{Name: "operator", Task: "test/operator", Digest: report.Module.Digest, Config: opt.Config, Inputs: []string{"in"}}
	op, err := host.New(ctx, spec, nil)
	if err != nil {
		return report, fmt.Errorf("it does not start: %w", err)
	}
	defer func() { err = errors.Join(err, op.Close()) }()
	if err := op.Process(dataflow.Batch{Stamp: stamp}, nothing); err != nil {
		return report, fmt.Errorf("it does not take an empty batch: %w", err)
	}
	if err := move(op, dataflow.Moment{Watermark: stamp, Stamp: stamp, Tick: true}, nothing); err != nil {
		return report, fmt.Errorf("it does not take a watermark: %w", err)
	}
	first, second := image{}, image{}
	if op, err = replace(ctx, host, spec, op, first); err != nil {
		return report, fmt.Errorf("it cannot be restored: %w", err)
	}
	for _, c := range first {
		report.Snapshot += len(c.Value)
	}
	changes, err := op.Freeze(true)
	if err != nil {
		return report, err
	}
	second.save(changes)
	if at := first.difference(second); at != "" {
		return report, fmt.Errorf("a restored copy's state differs: %s", at)
	}
	if err := op.Process(dataflow.Batch{Stamp: stamp}, nothing); err != nil {
		return report, fmt.Errorf("a restored copy does not take an empty batch: %w", err)
	}
	if err := move(op, dataflow.Moment{Watermark: dataflow.EndOfTime, Stamp: stamp, End: true}, nothing); err != nil {
		return report, fmt.Errorf("it does not take the end of its input: %w", err)
	}
	return report, nil
}

func nothing(int, []byte, int) error { return nil }
