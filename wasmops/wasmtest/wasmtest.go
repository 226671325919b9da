// Package wasmtest has guests for tests: operators built from source, which needs the go tool and no network;
// small modules assembled byte by byte; and guests that try to do harm.
package wasmtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built remembers, for the life of the process, what each folder was built to.
var (
	mu    sync.Mutex
	built = map[string][]byte{}
)

// Build builds the main package in dir, which is relative to the test's own folder, as a WebAssembly
// reactor and returns the file's path. The test fails if it does not build. A folder is built once per
// test process.
func Build(tb testing.TB, dir string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), filepath.Base(dir)+".wasm")
	if err := os.WriteFile(path, Bytes(tb, dir), 0o644); err != nil {
		tb.Fatal(err)
	}
	return path
}

// Bytes is like [Build] and returns the module itself, which must not be changed.
func Bytes(tb testing.TB, dir string) []byte {
	tb.Helper()
	mu.Lock()
	defer mu.Unlock()
	abs, err := filepath.Abs(dir)
	if err != nil {
		tb.Fatal(err)
	}
	if wasm, ok := built[abs]; ok {
		return wasm
	}
	out := filepath.Join(tb.TempDir(), "built.wasm")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-buildmode=c-shared", "-o", out, ".")
	cmd.Dir = abs
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOTOOLCHAIN=local", "GOFLAGS=", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build operator in %s: %v\n%s", dir, err, text)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		tb.Fatal(err)
	}
	built[abs] = wasm
	return wasm
}
