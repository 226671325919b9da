package abitest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-stream/weir/wasmops/optest"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

var update = flag.Bool("update", false, "write what the Go operator puts out to golden/*.want.jsonl")

const conformance = "../../sdk/go/conformance"

// TestGo runs the kit on the conformance operator of the Go SDK.
func TestGo(t *testing.T) {
	wasm := wasmtest.Bytes(t, conformance)
	if *update {
		for name := range goldenConfig {
			writeGolden(t, name, wasm)
		}
	}
	Run(t, wasm, Options{CacheDir: cache})
}

// cache keeps compiled modules for the life of the test process.
var cache string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "abitest")
	if err != nil {
		panic(err)
	}
	cache = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func writeGolden(t *testing.T, name string, wasm []byte) {
	t.Helper()
	in, err := os.Open(filepath.Join("golden", name+".in.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	lines, err := optest.Output(t.Context(), wasm, optest.Options{Config: goldenConfig[name]}, in, "side", "unused")
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, l := range lines {
		text = optest.AppendLine(text, l)
	}
	if err := os.WriteFile(filepath.Join("golden", name+".want.jsonl"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestKitBites: an operator that is not the conformance operator fails its checks one by one.
func TestKitBites(t *testing.T) {
	failed := map[string]bool{}
	results := Kit(t.Context(), wasmtest.Bytes(t, "../../examples/demo/count"), Options{CacheDir: cache})
	for _, r := range results {
		if r.Err != nil {
			failed[r.Name] = true
		}
	}
	for _, name := range []string{"empty batch", "large batch", "many records from one", "outputs", "configuration", "keyed state",
		"counters, gauges and logs", "clock", "failure", "sizes of records", "snapshots", "instances", "timers", "watermarks and the end",
		"state that expires", "failing timer", "variables migrate", "golden records", "golden state", "golden numbers", "golden time"} {
		if !failed[name] {
			t.Errorf("%s: passed by an operator that does nothing of it", name)
		}
	}
	if failed["exports, imports and limits"] || failed["malformed batches"] {
		t.Errorf("a sound operator fails what it does well: %v", failed)
	}
	results = Kit(t.Context(), []byte("\x00asm\x01\x00\x00\x00"), Options{})
	if len(results) != 1 || results[0].Err == nil || !strings.Contains(results[0].Err.Error(), "lacks the exports") {
		t.Errorf("an empty module: %+v", results)
	}
}

func TestVerify(t *testing.T) {
	wasm := wasmtest.Bytes(t, conformance)
	report, err := Verify(t.Context(), wasm, Options{CacheDir: cache})
	if err != nil || report.Snapshot == 0 || report.Module.Size == 0 {
		t.Errorf("a sound operator: %+v, %v", report, err)
	}
	_, err = Verify(t.Context(), wasm, Options{CacheDir: cache, Config: map[string]string{"limit": "x"}})
	if err == nil || !strings.Contains(err.Error(), `it does not start: operator operator: config limit: "x" is not a whole number`) {
		t.Errorf("wrong configuration: %v", err)
	}
	if _, err = Verify(t.Context(), []byte("\x00asm\x01\x00\x00\x00"), Options{}); err == nil || !strings.Contains(err.Error(), "lacks the exports memory") {
		t.Errorf("an empty module: %v", err)
	}
}
