package job

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzParse wants that no bytes crash or hang the way from file to plan, that all errors have a place
// within the file, and that plans are alike.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.txt", "testdata/plan/*.txt"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			f.Fatalf("no seeds under %s (%v)", pattern, err)
		}
		for _, path := range paths {
			f.Add(readScript(f, path).get("job.yaml"))
		}
	}
	f.Add([]byte("0::"))
	f.Add([]byte("{{},<<}"))
	f.Add([]byte("a: &x [*x]\n? - -\n: !!map\n"))
	on := []Agent{
		{Name: "g1", Labels: map[string]string{"role": "gateway", "line": "a"}},
		{Name: "hub", Labels: map[string]string{"role": "hub", "line": "b"}, MQTTListen: true},
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("job.yaml", data)
		if err != nil {
			checkErrors(t, err)
			return
		}
		g, err := Build(file)
		if err != nil {
			checkErrors(t, err)
			return
		}
		modules := map[string]string{}
		for _, o := range file.Operators {
			modules[o.WASM] = "sha256:1"
		}
		p, err := Plan(g, on, modules, 1, nil)
		if err != nil {
			return
		}
		checkPlan(t, p)
		if p.Text() == "" {
			t.Error("no text")
		}
		again, err := Plan(g, on, modules, 1, p)
		if err != nil {
			t.Fatalf("planned once but not twice: %v", err)
		}
		if !bytes.Equal(encode(t, p), encode(t, again)) {
			t.Error("the plan after itself differs")
		}
		if err := Diff(p, again, func(string) bool { return false }); err != nil {
			t.Errorf("the plan does not fit itself: %v", err)
		}
	})
}

func checkErrors(t *testing.T, err error) {
	t.Helper()
	all, ok := err.(Errors)
	if !ok || len(all) == 0 {
		t.Fatalf("%T: %v", err, err)
	}
	for _, e := range all {
		if e.Pos.Line < 1 || e.Pos.Column < 1 || e.Text == "" || !strings.HasPrefix(e.Error(), "job.yaml:") {
			t.Errorf("error %+v", e)
		}
	}
}
