//go:build mutants && !race

package mutant

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// seeds is how many are tried. A few dozen suffice for most.
const seeds = "200"

func TestMutants(t *testing.T) {
	whole := build(t, "")
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) { m.find(t, whole) })
	}
}

func (m mutant) find(t *testing.T, whole string) {
	text, err := m.text()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changed := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, []byte(strings.Replace(text, m.old, m.new, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	real, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]any{"Replace": map[string]string{real: changed}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := build(t, overlay)
	args := append([]string{"-sim.topo=" + m.topo}, strings.Fields(m.args)...)
	out, failed := run(t, broken, m.test, append(args, "-sim.seeds="+seeds, "-sim.stop"))
	found := regexp.MustCompile(`(?s)seed (\d+): (.{0,300})`).FindStringSubmatch(out)
	if !failed || found == nil {
		t.Fatalf("none of %s seeds finds that the rule is missing: %.500s", seeds, out)
	}
	if out, failed := run(t, whole, m.test, append(args, "-sim.first="+found[1], "-sim.seeds=1")); failed {
		t.Fatalf("seed %s fails with the rule as well: %.1000s", found[1], out)
	}
	t.Logf("seed %s of %s %s finds it: %s", found[1], m.topo, m.args, found[2])
}

// run runs some seeds and says whether one has failed.
func run(t *testing.T, simulator, test string, args []string) (out string, failed bool) {
	cmd := exec.CommandContext(t.Context(), simulator, append([]string{"-test.run=^" + cmp.Or(test, "TestSeeds") + "$", "-test.timeout=10m"}, args...)...)
	raw, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(raw), err != nil
}

// build builds the simulator, with an overlay if there is one.
func build(t *testing.T, overlay string) string {
	to := filepath.Join(t.TempDir(), "simulator")
	args := []string{"test", "-c", "-o", to}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./dataflow/sim")...)
	cmd.Dir = root
	if raw, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, raw)
	}
	return to
}
