package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ban is something that the source of some folders must not contain.
type ban struct {
	folders []string
	imports []string            // import paths
	calls   map[string][]string // import path → names of its functions
	// concurrency: no go statement, no queue.
	concurrency bool
	reason      string
}

var bans = []ban{
	{
		folders: []string{"abs", "dataflow", "wasmops"},
		imports: []string{"math/rand", "math/rand/v2", "crypto/rand", "hash/maphash"},
		calls:   map[string][]string{"time": {"Now", "Since", "Until"}},
		reason:  "a task's state and output follow from its log alone: clocks and random numbers come in as log entries, or replay would differ",
	},
	{
		folders:     []string{"abs"},
		imports:     []string{"time", "context", "os", "io", "net", "sync", "sync/atomic", "log", "log/slog"},
		concurrency: true,
		reason:      "abs is a pure state machine: an event goes in, a value that says what to do comes out",
	},
	{
		folders: []string{"dataflow/job"},
		imports: []string{"context", "os", "sync", "sync/atomic", "log/slog"},
		calls:   map[string][]string{"net": {"Dial", "Listen", "LookupHost", "LookupIP", "LookupAddr"}},
		reason:  "the same bytes, agents and digests give the same plan: no I/O on the way",
	},
}

func TestSourceOfDeterministicParts(t *testing.T) {
	for _, b := range bans {
		for _, folder := range b.folders {
			files := sources(t, folder, func(name string) bool { return !strings.HasSuffix(name, "_test.go") })
			if len(files) == 0 {
				t.Errorf("no source below %s: the test looks in the wrong place", folder)
			}
			for _, f := range files {
				for _, found := range b.find(f.ast) {
					t.Errorf("%s: %s: %s", f.set.Position(found.pos), found.what, b.reason)
				}
			}
		}
	}
}

// Tests run everywhere or are behind a build tag: a skipped one would look like a passed one.
func TestNoSkippedTests(t *testing.T) {
	for _, f := range sources(t, ".", func(name string) bool { return strings.HasSuffix(name, "_test.go") }) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
				if x, ok := s.X.(*ast.Ident); ok && len(x.Name) <= 2 {
					t.Errorf("%s: %s.%s: give the test a build tag instead", f.set.Position(s.Pos()), x.Name, s.Sel.Name)
				}
			}
			return true
		})
	}
}

// A name that says nothing gathers what belongs elsewhere.
func TestPackageNames(t *testing.T) {
	for _, f := range sources(t, ".", func(string) bool { return true }) {
		if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "manager", "misc"}, f.ast.Name.Name) {
			t.Errorf("%s: package %s: name it after what it does", f.set.Position(f.ast.Package), f.ast.Name.Name)
		}
	}
}

type source struct {
	set *token.FileSet
	ast *ast.File
}

// sources parses the Go files below a folder of the module, whatever their build tags.
func sources(t *testing.T, folder string, want func(name string) bool) []source {
	t.Helper()
	set := token.NewFileSet()
	var out []source
	err := filepath.WalkDir(filepath.Join(root(t), folder), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (name == "testdata" || len(name) > 1 && strings.HasPrefix(name, ".")) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || !want(name) {
			return nil
		}
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		out = append(out, source{set, f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

type finding struct {
	pos  token.Pos
	what string
}

func (b ban) find(f *ast.File) []finding {
	var found []finding
	names := map[string]string{} // local name → import path
	for _, imp := range f.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			continue
		}
		if slices.Contains(b.imports, path) {
			found = append(found, finding{imp.Pos(), "imports " + path})
		}
		name := path[strings.LastIndexByte(path, '/')+1:]
		if imp.Name != nil {
			name = imp.Name.Name
		}
		names[name] = path
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if what := b.forbids(n, names); what != "" {
			found = append(found, finding{n.Pos(), what})
		}
		return true
	})
	return found
}

func (b ban) forbids(n ast.Node, names map[string]string) string {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		x, ok := n.X.(*ast.Ident)
		if ok && slices.Contains(b.calls[names[x.Name]], n.Sel.Name) {
			return fmt.Sprintf("uses %s.%s", names[x.Name], n.Sel.Name)
		}
	case *ast.GoStmt:
		if b.concurrency {
			return "starts a goroutine"
		}
	case *ast.ChanType:
		if b.concurrency {
			return "has a queue"
		}
	}
	return ""
}

// The bans must bite.
func TestBansFind(t *testing.T) {
	text := `package x
import (
	clock "time"
	"math/rand"
)
var a = clock.Now
func f(c chan int) { go f(c); _ = clock.Since; _ = rand.Int }
`
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(bans[0].find(f)); got != 3 {
		t.Errorf("found %d of the clock and random numbers, want 3", got)
	}
	if got := len(bans[1].find(f)); got != 3 {
		t.Errorf("found %d of time, goroutine and queue, want 3", got)
	}
}
