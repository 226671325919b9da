package node_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/node"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// Signs of life of all agents go to the hub alone, however many gateways there are; a gateway that is asked knows of
// the others all the same, of one that is down too.
func TestGatewaysDoNotHearEachOther(t *testing.T) {
	hub := start(t, t.TempDir())
	var gates []*agent
	for i := range 3 {
		gates = append(gates, startWith(t, node.Options{Data: t.TempDir(), Name: fmt.Sprint("g", i), NATS: "nats://" + hub.at.NATS}))
	}
	agents := func(of *agent, want map[string]string) []api.Agent {
		t.Helper()
		var list []api.Agent
		of.until(fmt.Sprint("one coordinates, and agents are ", want), func() (bool, string) {
			var err error
			list, err = of.client.Agents(t.Context())
			got := map[string]string{}
			led := false
			for _, a := range list {
				got[a.Name] = a.State
				led = led || a.Coordinator
			}
			return led && fmt.Sprint(got) == fmt.Sprint(want), fmt.Sprint(got, led, err)
		})
		return list
	}
	agents(hub, map[string]string{"a": "up", "g0": "up", "g1": "up", "g2": "up"}) // it has heard of all
	agents(gates[0], map[string]string{"a": "up", "g0": "up", "g1": "up", "g2": "up"})
	nc, err := nats.Connect("nats://" + hub.at.NATS)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if got := hearing(t, nc); fmt.Sprint(got) != "[a]" {
		t.Errorf("%v hear the signs of life of all agents, want the hub alone", got)
	}

	gates[2].stop()
	// This one has never asked anybody.
	for _, a := range agents(gates[1], map[string]string{"a": "up", "g0": "up", "g1": "up", "g2": "down"}) {
		if a.Name == "g2" && time.Since(a.Seen) > patience {
			t.Errorf("g2, which is down, was seen at %v", a.Seen)
		}
	}
}

// A coordinator may be an agent without a server: the others hear what it asks all the same, so that a gateway that was
// away takes part again.
func TestClientThatCoordinatesIsHeard(t *testing.T) {
	t.Parallel()
	server, err := wnats.StartServer(wnats.ServerOptions{
		Dir: t.TempDir(), Name: "test", Listen: "127.0.0.1:0", Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	client := func(name, role, dir string) *agent {
		return startWith(t, node.Options{Data: dir, Name: name, Labels: map[string]string{"role": role}, NATS: server.ClientURL()})
	}
	hub := client("hub", "hub", t.TempDir())
	up := func(want string) {
		t.Helper()
		hub.until("the agents are up, and the hub coordinates", func() (bool, string) {
			list, err := hub.client.Agents(t.Context())
			got := ""
			for _, a := range list {
				if a.State == "up" {
					got += a.Name + " "
				}
				if a.Coordinator {
					got += "coordinates "
				}
			}
			return got == want, fmt.Sprint(got, err)
		})
	}
	up("hub coordinates ")
	home, in := t.TempDir(), files{in: filepath.Join(t.TempDir(), "in")}
	in.write(t, "")
	gate := client("gate", "gateway", home)
	up("gate hub coordinates ")
	hub.mustApply(fmt.Sprintf(`name: lines
checkpoint: {interval: 200ms, detach_after: 300ms}
sources:
  text: {file: {path: %q, follow: true}, on: {role: gateway}}
operators:
  total: {native: count, from: text, key_by: key, on: {role: hub}}
sinks:
  out: {file: {path: %q}, from: total}
`, in.in, filepath.Join(t.TempDir(), "out")))
	without := func(want ...string) {
		t.Helper()
		hub.until(fmt.Sprint("checkpoints go on without ", want), func() (bool, string) {
			j, err := hub.client.Job(t.Context(), "lines")
			return err == nil && fmt.Sprint(j.Without) == fmt.Sprint(want), fmt.Sprint(j.Without, j.Waits, err)
		})
	}
	gate.stop()
	without("gate")
	client("gate", "gateway", home)
	in.write(t, "x\n")
	without()
}

// hearing asks the server which agents listen to the signs of life of all.
func hearing(t *testing.T, nc *nats.Conn) (names []string) {
	t.Helper()
	m, err := nc.Request("$SYS.REQ.ACCOUNT.PING.CONNZ", []byte(`{"subscriptions":true}`), patience)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Data struct {
			Connections []struct {
				Name          string   `json:"name"`
				Subscriptions []string `json:"subscriptions_list"`
			} `json:"connections"`
		} `json:"data"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil || len(answer.Data.Connections) == 0 {
		t.Fatalf("%v: %s", err, m.Data)
	}
	for _, c := range answer.Data.Connections {
		for _, s := range c.Subscriptions {
			if s == "weir.say.alive" {
				names = append(names, strings.TrimSuffix(c.Name, " control"))
			}
		}
	}
	return names
}
