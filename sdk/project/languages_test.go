package project

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-stream/weir/wasmops/abitest"
	"github.com/weir-stream/weir/wasmops/optest"
)

// sources are an SDK's conformance operator and its ewma, relative to the root of the repository: what goes into
// a new project in the place of its operator.
type sources struct {
	conformance []string
	included    string // by all of conformance; may be empty
	ewma        string // may be empty
}

// checkLanguage builds and tests a new project, runs the conformance kit on the SDK, and compares ewma, all
// built as users build.
func checkLanguage(t *testing.T, l Language, from sources, opt Options) {
	t.Helper()
	t.Run("new", func(t *testing.T) {
		dir := newProject(t, l)
		golden(t, build(t, dir, opt), dir)
	})
	if from.ewma != "" {
		t.Run("ewma", func(t *testing.T) {
			golden(t, buildOperator(t, l, from.ewma, opt), "../../examples/ewma")
		})
	}
	for _, main := range from.conformance {
		t.Run(filepath.Base(main), func(t *testing.T) {
			dir := newProject(t, l)
			file := filepath.Join(dir, MainFile(l))
			put(t, main, file)
			if from.included != "" {
				put(t, from.included, filepath.Join(filepath.Dir(file), filepath.Base(from.included)))
			}
			abitest.Run(t, build(t, dir, opt), abitest.Options{CacheDir: t.TempDir()})
		})
	}
}

// buildOperator builds a project with another operator in it.
func buildOperator(tb testing.TB, l Language, source string, opt Options) []byte {
	tb.Helper()
	dir := newProject(tb, l)
	put(tb, source, filepath.Join(dir, MainFile(l)))
	return build(tb, dir, opt)
}

func newProject(tb testing.TB, l Language) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "my-operator")
	if err := New(dir, l); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// put copies a file of the repository.
func put(tb testing.TB, from, to string) {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("../..", from))
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o644); err != nil {
		tb.Fatal(err)
	}
}

func build(tb testing.TB, dir string, opt Options) []byte {
	tb.Helper()
	out := filepath.Join(tb.TempDir(), "built.wasm")
	if err := Build(tb.Context(), dir, out, opt); err != nil {
		tb.Fatal(err)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		tb.Fatal(err)
	}
	return wasm
}

// golden tests a module with in.jsonl and want.jsonl of a folder.
func golden(t *testing.T, wasm []byte, dir string) {
	t.Helper()
	var files [2]*bytes.Reader
	for i, name := range []string{"in.jsonl", "want.jsonl"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[i] = bytes.NewReader(data)
	}
	report, err := optest.Run(t.Context(), wasm, nil, files[0], files[1])
	if err != nil {
		t.Fatal(err)
	}
	if report.Records == 0 {
		t.Error("nothing was tested")
	}
}

// TestMissing: without a program, a build says which one, and how to get it.
func TestMissing(t *testing.T) {
	dirs := map[Language]string{}
	for _, l := range Languages() {
		dirs[l] = newProject(t, l)
	}
	t.Setenv("PATH", t.TempDir())
	for l, want := range map[Language]string{
		Go: "go is needed to build operators in Go and was not found; get Go", C: "clang is needed to build operators in C and was not found; on Debian: apt-get install clang lld",
		AssemblyScript: "node is needed",
	} {
		err := Build(t.Context(), dirs[l], filepath.Join(t.TempDir(), "x.wasm"), Options{})
		var missing *Missing
		if !errors.As(err, &missing) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", l, err)
		}
	}
	err := Build(t.Context(), dirs[Go], "x.wasm", Options{TinyGo: true})
	if err == nil || !strings.HasPrefix(err.Error(), "tinygo is needed") {
		t.Errorf("TinyGo: %v", err)
	}
	if err := Build(t.Context(), dirs[C], "x.wasm", Options{TinyGo: true}); err == nil || !strings.Contains(err.Error(), "TinyGo builds Go") {
		t.Errorf("C with TinyGo: %v", err)
	}
}

func TestDetect(t *testing.T) {
	if _, err := Detect(t.TempDir()); err == nil || !strings.Contains(err.Error(), "agent operator new writes one") {
		t.Errorf("an empty folder: %v", err)
	}
	dir := newProject(t, Rust)
	if err := os.WriteFile(filepath.Join(dir, "x.c"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Detect(dir); err == nil || !strings.Contains(err.Error(), "[rust c]") {
		t.Errorf("two languages: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	dir := newProject(t, C)
	if err := New(dir, C); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a second time: %v", err)
	}
	if err := New("", C); err == nil || !strings.Contains(err.Error(), `"" cannot be an operator's name`) {
		t.Errorf("no name: %v", err)
	}
	for _, name := range []string{"Upper", "a_b", "-a", "1a", "a--b", "ä", "a b", strings.Repeat("a", 65)} {
		if err := New(filepath.Join(t.TempDir(), name), C); err == nil || !strings.Contains(err.Error(), "cannot be an operator's name") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := New(filepath.Join(t.TempDir(), "x"), "cobol"); err == nil || !strings.Contains(err.Error(), `no SDK for "cobol"; there are [go rust c assemblyscript]`) {
		t.Errorf("unknown language: %v", err)
	}
}

// TestNewIsWhole: nothing of a template is left to fill in, and a Go project has the SDK without its tests.
func TestNewIsWhole(t *testing.T) {
	for _, l := range Languages() {
		dir := newProject(t, l)
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			for _, left := range []string{placeholder, "weir-operator", "LANGUAGE", "COMMAND", "TOOLS\n", "MIGRATE."} {
				if bytes.Contains(data, []byte(left)) {
					t.Errorf("%s has %s in it", path, left)
				}
			}
			if strings.HasSuffix(path, ".txt") || strings.Contains(path, "weir/operator_test.go") {
				t.Errorf("%s should not be there", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		if readme, err := os.ReadFile(filepath.Join(dir, "README.md")); err != nil || !bytes.Contains(readme, []byte(languages[l].hooks)) {
			t.Errorf("%s: the README does not say how variables survive an upgrade: %v", l, err)
		}
		for _, name := range []string{"README.md", "in.jsonl", "want.jsonl", ".gitignore", MainFile(l)} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
	}
}
