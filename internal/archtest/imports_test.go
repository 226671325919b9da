package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/weir-stream/weir"

// rule says what packages below a folder may import besides the standard library and one another.
// The first rule that covers a package counts.
type rule struct {
	under  string   // folder within the module
	may    []string // folders of the module, or paths of other modules, each with what is below it
	reason string
}

// adapters bind the outside: a library, a server, a disk.
var adapters = []string{"storage", "wasmops", "transport/mqtt", "transport/nats", "transport/local", "transport/direct"}

var rules = []rule{
	{under: "abs",
		reason: "abs is the pure algorithm: the standard library only, so that it can be read, tested and proved alone"},
	{under: "dataflow/frame",
		reason: "the wire unit is shared by everything, so it depends on nothing but the standard library"},
	{under: "dataflow/job", may: []string{"abs", "dataflow/frame", "dataflow/template", "github.com/goccy/go-yaml", "github.com/tidwall/gjson"},
		reason: "job files become plans without running anything"},
	{under: "dataflow/native", may: []string{"abs", "dataflow", "dataflow/frame", "github.com/tidwall/gjson"},
		reason: "native operators implement a contract and nothing else"},
	{under: "dataflow/extract", may: []string{"github.com/tidwall/gjson"},
		reason: "sources share how a message becomes key, id and time"},
	{under: "dataflow/template", may: []string{"dataflow/frame", "github.com/tidwall/gjson"},
		reason: "sinks share how a record becomes topic, payload and line"},
	{under: "dataflow", may: []string{"abs", "dataflow/frame", "github.com/zeebo/xxh3"},
		reason: "dataflow declares the contracts; adapters implement them and are never imported by it"},
	{under: "storage", may: []string{"abs", "dataflow", "dataflow/frame", "go.etcd.io/bbolt", "github.com/zeebo/xxh3", "github.com/klauspost/compress", "golang.org/x/sys"},
		reason: "an adapter imports the contracts and its own library, never another adapter"},
	{under: "wasmops", may: []string{"abs", "dataflow", "dataflow/frame", "github.com/tetratelabs/wazero", "github.com/tidwall/btree", "golang.org/x/sys"},
		reason: "an adapter imports the contracts and its own library, never another adapter"},
	{under: "transport/mqtt", may: []string{"abs", "dataflow", "github.com/eclipse/paho.mqtt.golang", "github.com/tidwall/gjson", "github.com/zeebo/xxh3"},
		reason: "an adapter imports the contracts and its own library, never another adapter"},
	{under: "transport/nats", may: []string{"abs", "dataflow", "github.com/nats-io"},
		reason: "an adapter imports the contracts and its own library, never another adapter"},
	{under: "transport/direct", may: []string{"abs", "dataflow"},
		reason: "an adapter imports the contracts and its own library, never another adapter"},
	{under: "transport/local", may: []string{"abs", "dataflow", "github.com/tidwall/gjson"},
		reason: "an adapter imports the contracts and its own library, never another adapter"},
	{under: "sdk",
		reason: "an operator's author builds against the SDK alone; it must not bring the host along"},
	{under: "examples", may: []string{"sdk"},
		reason: "examples show what the SDK alone can do"},
	{under: "internal/api",
		reason: "the types of the API are shared by server, client and scripts; they depend on nothing"},
	{under: "internal/cli",
		reason: "it reads command lines and knows none of the agent's commands"},
	{under: "internal/signing",
		reason: "what is signed and how; who signs and who trusts is elsewhere"},
	{under: "internal/web", may: []string{"internal/api"},
		reason: "the HTTP API knows its Backend, not how an agent works"},
	{under: "internal/archtest",
		reason: "it looks at the source, not at the packages"},
	{under: "internal/node", may: []string{"abs", "dataflow", "storage", "wasmops", "transport", "internal/api", "internal/signing", "internal/web", "github.com", "golang.org/x"},
		reason: "internal/node assembles an agent; commands, the demo and examples are above it"},
	{under: "internal/ledger",
		reason: "what was sent against what was counted is arithmetic"},
	{under: "internal/fleet", may: []string{"internal/api"},
		reason: "it starts and kills agents as processes and talks to them over HTTP"},
	{under: "internal/eval", may: []string{"internal/api", "internal/fleet", "sdk", "gonum.org/v1/plot"},
		reason: "the evaluation uses agents as anybody would; it alone draws, and no agent links what it draws with"},
	{under: "internal/bench/scale", may: []string{"abs", "internal/api", "internal/fleet", "internal/node", "github.com/nats-io/nats.go", "golang.org/x"},
		reason: "it has hundreds of agents in one process, which they are not to have each; the other benchmarks use agents as anybody would"},
	{under: "internal", may: []string{"examples", "sdk", "dataflow/job", "github.com", "golang.org/x"},
		reason: "the demo and the tests of whole fleets use agents as anybody would: over HTTP and MQTT, in processes of their own"},
	{under: "cmd/agent", may: []string{"abs", "dataflow", "storage", "wasmops", "transport", "internal", "examples", "sdk", "github.com", "golang.org/x"},
		reason: "the command line"},
}

// wiring are the packages that may import adapters.
var wiring = []string{"cmd/agent", "internal/node"}

type listed struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

// list runs go list over the whole module for one platform.
func list(t *testing.T, platform ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Imports,Standard", "./...")
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), platform...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var all []listed
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDependencyDirection(t *testing.T) {
	platforms := [][]string{nil, {"GOOS=wasip1", "GOARCH=wasm"}, {"GOOS=linux", "GOARCH=arm64"}, {"GOOS=darwin", "GOARCH=arm64"}, {"GOOS=windows", "GOARCH=amd64"}}
	seen := map[string]bool{}
	covered := map[string]bool{}
	for _, platform := range platforms {
		all := list(t, platform...)
		std := map[string]bool{}
		for _, p := range all {
			std[p.ImportPath] = p.Standard
		}
		for _, p := range all {
			folder, ok := strings.CutPrefix(p.ImportPath, module+"/")
			if !ok {
				continue
			}
			i := slices.IndexFunc(rules, func(r rule) bool { return below(folder, r.under) })
			if i < 0 {
				t.Errorf("%s: no rule says what it may import; add one", folder)
				continue
			}
			covered[rules[i].under] = true
			for _, imp := range p.Imports {
				if std[imp] || imp == "unsafe" || seen[folder+imp] {
					continue
				}
				seen[folder+imp] = true
				for _, wrong := range rules[i].check(folder, strings.TrimPrefix(imp, module+"/")) {
					t.Error(wrong)
				}
			}
		}
	}
	for _, must := range []string{"abs", "dataflow", "dataflow/frame", "cmd/agent", "sdk"} {
		if !covered[must] {
			t.Errorf("no package is covered by the rule for %s: the test looks in the wrong place", must)
		}
	}
}

// check says what is wrong with a package that imports another; both without the module's own path.
func (r rule) check(folder, imp string) (wrong []string) {
	allowed := below(imp, r.under) || slices.ContainsFunc(r.may, func(m string) bool { return below(imp, m) })
	// The rule for dataflow covers what is below it, but job is above: plans are made for tasks.
	if r.under == "dataflow" && below(imp, "dataflow/job") {
		allowed = false
	}
	if !allowed {
		wrong = append(wrong, fmt.Sprintf("%s imports %s: %s", folder, imp, r.reason))
	}
	isAdapter := slices.ContainsFunc(adapters, func(a string) bool { return below(imp, a) && !below(folder, a) })
	wires := slices.ContainsFunc(wiring, func(w string) bool { return below(folder, w) })
	if isAdapter && !wires {
		wrong = append(wrong, fmt.Sprintf("%s imports the adapter %s: only %s wire adapters", folder, imp, strings.Join(wiring, " and ")))
	}
	return wrong
}

// below tells whether a path is a folder or below it.
func below(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// The rules must bite: each of these imports is refused.
func TestRulesRefuse(t *testing.T) {
	for _, k := range [][2]string{
		{"abs", "github.com/zeebo/xxh3"},
		{"abs", "dataflow/frame"},
		{"dataflow/frame", "abs"},
		{"dataflow", "storage"},
		{"dataflow", "dataflow/job"},
		{"dataflow/job", "dataflow"},
		{"storage", "transport/nats"},
		{"wasmops/optest", "storage"},
		{"transport/mqtt", "transport/nats"},
		{"transport/mqtt", "github.com/nats-io/nats.go"},
		{"sdk/go", "dataflow/frame"},
		{"internal/web", "internal/node"},
		{"internal/demo", "transport/mqtt"},
		{"internal/node", "internal/demo"},
		{"internal/fleet", "storage"},
		{"internal/node", "gonum.org/v1/plot"},
		{"cmd/agent", "gonum.org/v1/plot"},
	} {
		i := slices.IndexFunc(rules, func(r rule) bool { return below(k[0], r.under) })
		if rules[i].check(k[0], k[1]) == nil {
			t.Errorf("%s may import %s", k[0], k[1])
		}
	}
}
