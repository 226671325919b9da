package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// methodByName matches where a method is found by its name or index at run time.
var methodByName = regexp.MustCompile(`\.(MethodByName|Method)\(`)

// The linker drops what nobody calls. One call in the whole program that finds a method by its name, and it must keep
// every exported method of every type that is in an interface somewhere: an eighth of the agent.
func TestAgentFindsNoMethodsByName(t *testing.T) {
	if found := callsMethodsByName(t, "text/template"); len(found) == 0 {
		t.Error("nothing found in text/template, which does: the test looks for the wrong thing")
	}
	for _, file := range callsMethodsByName(t, "./cmd/agent") {
		t.Errorf("%s finds methods by name: the linker can then drop none in the agent", file)
	}
}

// callsMethodsByName are the files that a package is built of, with all that it imports, in which methods are found by
// their names.
func callsMethodsByName(t *testing.T, pkg string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", `{{range .GoFiles}}{{$.ImportPath}} {{$.Dir}}/{{.}}{{"\n"}}{{end}}`, pkg)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pkg, err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		in, file, ok := strings.Cut(strings.TrimSpace(line), " ")
		// reflect itself has the methods that are looked for.
		if !ok || in == "reflect" || in == "internal/reflectlite" {
			continue
		}
		source, err := os.ReadFile(filepath.FromSlash(file))
		if err != nil {
			t.Fatal(err)
		}
		if methodByName.Match(source) {
			found = append(found, file)
		}
	}
	return found
}
