package examples

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/wasmops/optest"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// jobConfig is the configuration that a job file gives to a ready-made operator.
func jobConfig(t *testing.T, name string) map[string]string {
	t.Helper()
	data, err := Files.ReadFile(name + "/job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file, err := job.Parse(name+"/job.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range file.Operators {
		if op.WASM == "./"+filepath.Base(name)+".wasm" {
			return op.Config
		}
	}
	t.Fatalf("%s/job.yaml does not use the operator", name)
	return nil
}

// TestReadyMade runs the ready-made operators, configured as in their job files, in all ways, and once through their tables of
// cases. sdk/project runs the same tables for the operators in Rust, some of them in all ways.
func TestReadyMade(t *testing.T) {
	for _, name := range ReadyMade() {
		t.Run(filepath.Base(name), func(t *testing.T) {
			opt := optest.Options{CacheDir: t.TempDir()}
			wasm, cases := wasmtest.Bytes(t, name), readCases(t, name)
			whole := []optest.Case{{Name: "job.yaml", Config: jobConfig(t, name), In: read(t, name, "in.jsonl")}}
			if *update {
				rewrite(t, name, wasm, opt, cases, whole)
			}
			whole[0].Want = read(t, name, "want.jsonl")
			if err := optest.RunCases(t.Context(), wasm, opt, whole); err != nil {
				t.Error(err)
			}
			opt.Once = true
			if err := optest.RunCases(t.Context(), wasm, opt, cases); err != nil {
				t.Error(err)
			}
		})
	}
}

func read(t *testing.T, name, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(name, file))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readCases(t *testing.T, name string) []optest.Case {
	t.Helper()
	cases, err := optest.ReadCases(bytes.NewReader(read(t, name, "testdata/cases.jsonl")))
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

// sideOutputs are those that operators have besides the main one.
var sideOutputs = map[string][]string{"filter": {"rest"}, "dedup": {"repeats"}, "join": {"late"}, "window": {"late"}}

// rewrite keeps what the operator puts out as what is wanted.
func rewrite(t *testing.T, name string, wasm []byte, opt optest.Options, cases, whole []optest.Case) {
	t.Helper()
	for _, fill := range [][]optest.Case{cases, whole} {
		if err := optest.FillCases(t.Context(), wasm, opt, fill, sideOutputs[filepath.Base(name)]...); err != nil {
			t.Fatal(err)
		}
	}
	var table []byte
	for _, c := range cases {
		table = optest.AppendCase(table, c)
	}
	for file, data := range map[string][]byte{"testdata/cases.jsonl": table, "want.jsonl": whole[0].Want} {
		if err := os.WriteFile(filepath.Join(name, file), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReadyMadeFiles: each has what its users need, and is in the list in the README.
func TestReadyMadeFiles(t *testing.T) {
	index := string(read(t, "operators", "README.md"))
	for _, name := range ReadyMade() {
		text := string(read(t, name, "README.md"))
		for _, word := range []string{"job.yaml", "in.jsonl", "want.jsonl", "| configuration |", "agent operator test " + filepath.Base(name) + ".wasm"} {
			if !strings.Contains(text, word) {
				t.Errorf("%s/README.md does not mention %s", name, word)
			}
		}
		if !strings.Contains(index, "("+filepath.Base(name)+")") {
			t.Errorf("operators/README.md does not list %s", name)
		}
	}
	dirs, err := filepath.Glob("operators/*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range dirs {
		found = append(found, filepath.ToSlash(filepath.Dir(d)))
	}
	if !slices.Equal(found, ReadyMade()) {
		t.Errorf("there are %v, ReadyMade has %v", found, ReadyMade())
	}
}
