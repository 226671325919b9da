// Package examples holds the example jobs and their operators, with sources, so that the agent can show
// and build them on a machine that has the go tool and no network.
//
// An example is a folder with a README, a job file, and for each operator its source, an input in.jsonl
// and the output want.jsonl that it must give (see `agent operator test`).
package examples

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-stream/weir/sdk"
)

// Files are all files of the examples, without what was built beside them.
//
//go:embed */README.md */job.yaml */*.go */*.jsonl demo/*/*.go demo/*/*.jsonl feedback/*/*.go feedback/*/*.jsonl
//go:embed operators/*/*.go operators/*/job.yaml
//go:embed ewma/c/*.c ewma/rust/*.rs ewma/assemblyscript/*.ts
var Files embed.FS

// Operators are the names of the operators, which are their folders.
func Operators() []string {
	return []string{"demo/count", "demo/parse", "ewma", "feedback/learn", "feedback/watch", "top-n", "wordcount"}
}

// ReadyMade are the names of the ready-made operators: they are used without writing code.
func ReadyMade() []string {
	return []string{"operators/aggregate", "operators/deadband", "operators/dedup", "operators/filter", "operators/join", "operators/map", "operators/rate", "operators/window"}
}

// ErrNoGo is wrapped by the error of [BuildOperator] on a machine without the go tool.
var ErrNoGo = errors.New("the go tool is needed to build operators and is not in PATH; install Go 1.24 or newer from https://go.dev/dl")

// buildModule is the module in which an operator is built. The SDK beside it takes the place of the
// published one, so that nothing is downloaded.
const buildModule = `module operator

go 1.24

require github.com/weir-stream/weir/sdk/go v0.0.0

replace github.com/weir-stream/weir/sdk/go => ./sdk
`

const sdkModule = `module github.com/weir-stream/weir/sdk/go

go 1.24
`

// BuildOperator builds an example operator, one of [Operators] or [ReadyMade], to a WebAssembly module in outFile. It
// needs the go tool ([ErrNoGo]) and no network. The error holds what the tool said.
func BuildOperator(ctx context.Context, name, outFile string) error {
	if all := append(Operators(), ReadyMade()...); !slices.Contains(all, name) {
		return fmt.Errorf("no example operator %q; there are %s", name, strings.Join(all, ", "))
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		return ErrNoGo
	}
	out, err := filepath.Abs(outFile)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-operator-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := writeSources(dir, name); err != nil {
		return fmt.Errorf("build operator %s: %w", name, err)
	}
	cmd := exec.CommandContext(ctx, goTool, "build", "-trimpath", "-ldflags=-s -w", "-buildmode=c-shared", "-o", out, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0",
		"GOFLAGS=-mod=mod", "GOWORK=off", "GOTOOLCHAIN=local", "GOPROXY=off")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build operator %s: %w: %s", name, errors.Join(err, ctx.Err()), bytes.TrimSpace(said))
	}
	return nil
}

// writeSources lays out the module that buildModule describes.
func writeSources(dir, name string) error {
	if err := copySources(sdk.Go, "go", filepath.Join(dir, "sdk")); err != nil {
		return err
	}
	if err := copySources(sdk.Go, "go/ops", filepath.Join(dir, "sdk", "ops")); err != nil {
		return err
	}
	if err := copySources(Files, name, dir); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "sdk", "go.mod"), []byte(sdkModule), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "go.mod"), []byte(buildModule), 0o644)
}

// copySources copies the Go files of a folder, without tests.
func copySources(from fs.FS, folder, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	names, err := fs.Glob(from, path.Join(folder, "*.go"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		data, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, path.Base(name)), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
