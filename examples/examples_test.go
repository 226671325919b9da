package examples

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/wasmops/optest"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

var update = flag.Bool("update", false, "write what operators put out to want.jsonl")

// TestOperators runs every example operator on its input: whole and restored after every batch, in
// several batch sizes.
func TestOperators(t *testing.T) {
	cache := t.TempDir()
	for _, name := range Operators() {
		t.Run(name, func(t *testing.T) {
			wasm := wasmtest.Bytes(t, name)
			if *update {
				write(t, name, wasm)
			}
			in, want := open(t, name, "in.jsonl"), open(t, name, "want.jsonl")
			report, err := optest.RunOptions(context.Background(), wasm, optest.Options{CacheDir: cache}, in, want)
			if err != nil {
				t.Fatal(err)
			}
			if report.Records == 0 || report.Outputs["out"] == 0 {
				t.Errorf("nothing was tested: %+v", report)
			}
		})
	}
}

func open(t *testing.T, name, file string) io.Reader {
	t.Helper()
	b, err := Files.ReadFile(name + "/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b)
}

// write runs the operator on its input and keeps what comes out.
func write(t *testing.T, name string, wasm []byte) {
	t.Helper()
	side := map[string][]string{"ewma": {"alerts"}, "top-n": {"alerts"}, "demo/parse": {"malformed"},
		"feedback/watch": {"broken", "learned"}, "feedback/learn": {"threshold", "broken"}}
	lines, err := optest.Output(context.Background(), wasm, optest.Options{}, open(t, name, "in.jsonl"), side[name]...)
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, l := range lines {
		text = optest.AppendLine(text, l)
	}
	if err := os.WriteFile(filepath.Join(name, "want.jsonl"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestSplitAndCountInTurn checks that the two halves of wordcount, one after the other, give what
// both in one give.
func TestSplitAndCountInTurn(t *testing.T) {
	wasm, ctx := wasmtest.Bytes(t, "wordcount"), context.Background()
	split, err := optest.Output(ctx, wasm, optest.Options{Config: map[string]string{"mode": "split"}}, open(t, "wordcount", "in.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var words []byte
	for _, l := range split {
		words = optest.AppendLine(words, l)
	}
	opt := optest.Options{Config: map[string]string{"mode": "count"}}
	if _, err := optest.RunOptions(ctx, wasm, opt, bytes.NewReader(words), open(t, "wordcount", "want.jsonl")); err != nil {
		t.Error(err)
	}
}

// TestJobFiles plans every job on a hub and two gateways.
func TestJobFiles(t *testing.T) {
	agents := []job.Agent{
		{Name: "g1", Labels: map[string]string{"role": "gateway"}, MQTTListen: true},
		{Name: "g2", Labels: map[string]string{"role": "gateway"}, MQTTListen: true},
		{Name: "hub", Labels: map[string]string{"role": "hub"}, MQTTListen: true},
	}
	modules := map[string]string{}
	for _, name := range append(Operators(), ReadyMade()...) {
		modules["./"+filepath.Base(name)+".wasm"] = "sha256:" + strings.Repeat("0", 64)
	}
	files, err := fs.Glob(Files, "*/job.yaml")
	if err != nil || len(files) != 5 {
		t.Fatalf("job files %v, %v", files, err)
	}
	ready, err := fs.Glob(Files, "operators/*/job.yaml")
	if err != nil || len(ready) != len(ReadyMade()) {
		t.Fatalf("job files %v, %v", ready, err)
	}
	files = append(files, ready...)
	for _, name := range files {
		data, err := Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := job.Parse(name, data)
		if err != nil {
			t.Error(err)
			continue
		}
		graph, err := job.Build(file)
		if err != nil {
			t.Error(err)
			continue
		}
		plan, err := job.Plan(graph, agents, modules, 1, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(plan.Tasks) < 3 {
			t.Errorf("%s: %d tasks on three agents", name, len(plan.Tasks))
		}
	}
}

// TestReadmesNameTheirFiles checks that every example has what its package promises.
func TestReadmesNameTheirFiles(t *testing.T) {
	for _, dir := range []string{"wordcount", "ewma", "top-n", "demo", "feedback"} {
		text, err := Files.ReadFile(dir + "/README.md")
		if err != nil {
			t.Error(err)
			continue
		}
		for _, word := range []string{"job.yaml", "in.jsonl", "want.jsonl", "agent operator test"} {
			if !strings.Contains(string(text), word) {
				t.Errorf("%s/README.md does not mention %s", dir, word)
			}
		}
	}
}

// TestBuildOperator builds one operator from the embedded sources, without network, and tests it.
func TestBuildOperator(t *testing.T) {
	out := filepath.Join(t.TempDir(), "count.wasm")
	if err := BuildOperator(context.Background(), "demo/count", out); err != nil {
		t.Fatal(err)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := optest.Run(context.Background(), wasm, nil, open(t, "demo/count", "in.jsonl"), open(t, "demo/count", "want.jsonl")); err != nil {
		t.Error(err)
	}
}

func TestBuildOperatorErrors(t *testing.T) {
	out := filepath.Join(t.TempDir(), "x.wasm")
	if err := BuildOperator(context.Background(), "nothing", out); err == nil || !strings.Contains(err.Error(), "there are demo/count") {
		t.Errorf("unknown operator: %v", err)
	}
	if err := os.WriteFile(out, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := BuildOperator(context.Background(), "ewma", filepath.Join(out, "x")); err == nil || !strings.Contains(err.Error(), "build operator ewma") {
		t.Errorf("output that cannot be written: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := BuildOperator(ctx, "ewma", out); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := BuildOperator(context.Background(), "ewma", out); !errors.Is(err, ErrNoGo) {
		t.Errorf("without the go tool: %v", err)
	}
}
