package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

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
