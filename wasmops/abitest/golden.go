package abitest

import (
	"bytes"
	"context"
	"embed"
	"fmt"

	"github.com/weir-stream/weir/wasmops/optest"
)

// golden has, for each name, records that go in and those that must come out, see [optest.Line].
//
//go:embed golden/*.jsonl
var golden embed.FS

// goldenConfig is the configuration of each golden run; its keys are their names.
var goldenConfig = map[string]map[string]string{
	"records": {"name": "pump", "empty": "", "ratio": "-1.25e1", "limit": "-40"},
	"state":   nil,
	"numbers": nil,
	"time":    nil,
}

func goldenFile(name, kind string) ([]byte, error) {
	return golden.ReadFile("golden/" + name + "." + kind + ".jsonl")
}

// runGolden runs one golden file whole and restored after every batch, in batches of 1, 7 and all.
func (k *kit) runGolden(ctx context.Context, name string) error {
	in, err := goldenFile(name, "in")
	if err != nil {
		return err
	}
	want, err := goldenFile(name, "want")
	if err != nil {
		return err
	}
	opt := optest.Options{Config: goldenConfig[name], CacheDir: k.opt.CacheDir}
	report, err := optest.RunOptions(ctx, k.wasm, opt, bytes.NewReader(in), bytes.NewReader(want))
	if err == nil && report.Records == 0 {
		return fmt.Errorf("golden file %s is empty", name)
	}
	return err
}
