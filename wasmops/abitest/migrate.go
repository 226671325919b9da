package abitest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/wasmops"
)

// Migrate checks that one conformance operator takes over the variables of another, as the next version of an operator does.
// They may be of different SDKs.
func Migrate(ctx context.Context, old, next []byte, opt Options) (err error) {
	host, err := wasmops.NewHost(ctx, wasmops.Options{Modules: versions{old, next}, CacheDir: opt.CacheDir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close(ctx)) }()
	return migrates(ctx, host, (&kit{wasm: old}).spec(nil), (&kit{wasm: next}).spec(nil))
}

// versions are the modules of one operator.
type versions [][]byte

func (v versions) Open(digest string) ([]byte, error) {
	for _, wasm := range v {
		if wasmops.Digest(wasm) == digest {
			return wasm, nil
		}
	}
	return nil, fmt.Errorf("no module %s", digest)
}

// migration hands the variables over to the same module with another configuration.
func (k *kit) migration(ctx context.Context) error {
	return migrates(ctx, k.host, k.spec(nil), k.spec(map[string]string{"limit": "8"}))
}

func migrates(ctx context.Context, host *wasmops.Host, old, next dataflow.OperatorSpec) error {
	state := image{}
	saved := func(op dataflow.Operator) error {
		changes, err := op.Freeze(true)
		clear(state)
		state.save(changes)
		return err
	}
	// run makes an operator from the state, or without one, runs f and saves the state.
	run := func(spec dataflow.OperatorSpec, from dataflow.StateReader, f func(dataflow.Operator) error) error {
		op, err := host.New(ctx, spec, from)
		if err != nil {
			return err
		}
		if err = f(op); err == nil {
			err = saved(op)
		}
		return errors.Join(err, op.Close())
	}
	upgrade := next
	upgrade.Fresh = true
	for _, c := range []struct {
		give []string // commands of the old version
		want int      // the new one's next count
		fail string   // or why it is refused
	}{
		{give: []string{"v", "v", "v"}, want: 4},
		{give: nil, want: 1},
		{give: []string{"v", "M1 41"}, want: 42},
		{give: []string{"v", "M"}, fail: "weir_migrate_out: nothing to give"},
		{give: []string{"M2 41"}, fail: "unknown format"},
		{give: []string{"M" + strings.Repeat("2", 200_000)}, fail: "unknown format"}, // larger than the buffer for batches
	} {
		err := run(old, nil, func(op dataflow.Operator) error {
			_, err := process(op, batch(append(commands(c.give), command("k", "pkept"))...))
			return err
		})
		if err != nil {
			return err
		}
		err = run(upgrade, state.read, func(op dataflow.Operator) error { return values(op, []string{"v", "g"}, strconv.Itoa(c.want), "kept") })
		if c.fail != "" {
			err = failed(err, c.fail)
		}
		if err != nil {
			return fmt.Errorf("after the commands %.40q: %w", c.give, err)
		}
		if c.fail != "" {
			continue
		}
		err = run(next, state.read, func(op dataflow.Operator) error {
			return values(op, []string{"v", "g"}, strconv.Itoa(c.want+1), "kept")
		})
		if err != nil {
			return fmt.Errorf("a restored copy of the new version: %w", err)
		}
	}
	return nil
}

// commands are records with these commands.
func commands(list []string) []frame.Record {
	var records []frame.Record
	for _, c := range list {
		records = append(records, command("k", c))
	}
	return records
}
