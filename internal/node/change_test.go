package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
)

// fleet is a hub and gateways that read lines from files of their own.
type fleet struct {
	*agent // the hub
	dir    string
	yaml   string
}

func newFleet(t *testing.T, operator string) *fleet {
	f := &fleet{dir: t.TempDir()}
	f.agent = startWith(t, node.Options{Data: t.TempDir(), Name: "hub", Labels: map[string]string{"role": "hub"}, NATSListen: "127.0.0.1:0"})
	f.yaml = fmt.Sprintf(`name: lines
checkpoint: {interval: 200ms}
sources:
  text: {file: {path: %q, follow: true}, key: {json: k}, on: {role: gateway}}
operators:
  total: {%s, from: text, key_by: key, on: {role: hub}}
sinks:
  out: {file: {path: %q, line: "{key} {value}"}, from: total}
`, filepath.Join(f.dir, "in-{agent}"), operator, filepath.Join(f.dir, "out"))
	return f
}

func (f *fleet) gateway(t *testing.T, name string) *agent {
	t.Helper()
	f.write(name, "")
	a := startWith(t, node.Options{Data: t.TempDir(), Name: name, Labels: map[string]string{"role": "gateway"}, NATS: "nats://" + f.at.NATS})
	f.until(name+" is known", func() (bool, string) {
		agents, err := f.client.Agents(t.Context())
		for _, known := range agents {
			if known.Name == name && known.State == "up" {
				return true, ""
			}
		}
		return false, fmt.Sprint(agents, err)
	})
	return a
}

func (f *fleet) write(name, lines string) {
	f.t.Helper()
	files{in: filepath.Join(f.dir, "in-"+name)}.write(f.t, lines)
}

// wants waits until the output has these lines, in any order, each once.
func (f *fleet) wants(lines ...string) {
	f.t.Helper()
	sort.Strings(lines)
	want := strings.Join(lines, "\n")
	f.until("the output is there", func() (bool, string) {
		b, err := os.ReadFile(filepath.Join(f.dir, "out"))
		got := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		sort.Strings(got)
		return err == nil && strings.Join(got, "\n") == want, fmt.Sprintf("%s, %v", b, err)
	})
}

// TestGatewayJoins: a job that runs takes in a new gateway when it is applied again, and its state goes on.
func TestGatewayJoins(t *testing.T) {
	f := newFleet(t, "native: count")
	f.gateway(t, "g1")
	if done := f.mustApply(f.yaml); done.Generation != 1 {
		t.Fatalf("generation %d", done.Generation)
	}
	f.write("g1", "{\"k\":\"a\"}\n{\"k\":\"b\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`)

	f.gateway(t, "g2")
	if done := f.mustApply(f.yaml); done.Generation != 2 || done.Unchanged {
		t.Fatalf("applied again: %+v", done)
	}
	f.write("g1", "{\"k\":\"a\"}\n")
	f.write("g2", "{\"k\":\"b\"}\n")
	f.wants(`a {"count":1}`, `b {"count":1}`, `a {"count":2}`, `b {"count":2}`)
	f.replicated("lines")
}

// TestOperatorStartsAnew: an operator whose module changes is refused unless it may start anew, which it then
// does once and not at every restart.
func TestOperatorStartsAnew(t *testing.T) {
	f := newFiles(t)
	dir := t.TempDir()
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\",\"v\":5}\n{\"k\":\"a\",\"v\":5}\n")
	f.wants(a, a1, `2 a {"count":2}`)

	sum := strings.Replace(f.job(true, ""), "native: count", "native: sum, config: {field: v}", 1)
	apply := func(fresh ...string) error {
		_, err := a.client.ApplyJob(t.Context(), api.JobSource{File: "job.yaml", YAML: sum, Fresh: fresh}, patience)
		return err
	}
	if err := apply(); err == nil || !strings.Contains(err.Error(), "--fresh total") {
		t.Fatalf("another operator: %v", err)
	}
	if err := apply("totals"); err == nil || !strings.Contains(err.Error(), "no operator totals in job lines") {
		t.Fatalf("an operator that is not there: %v", err)
	}
	if err := apply("total"); err != nil {
		t.Fatal(err)
	}
	f.write(t, "{\"k\":\"a\",\"v\":3}\n")
	f.wants(a, a1, `2 a {"count":2}`, `3 a {"sum":3,"count":1}`)
	a.replicated("lines")
	a.stop()
	a = start(t, dir)
	f.write(t, "{\"k\":\"a\",\"v\":4}\n")
	f.wants(a, a1, `2 a {"count":2}`, `3 a {"sum":3,"count":1}`, `4 a {"sum":7,"count":2}`)

	// The file without --fresh is the job that runs.
	done, err := a.apply(sum)
	if err != nil || !done.Unchanged {
		t.Fatalf("the same again: %+v, %v", done, err)
	}
}
