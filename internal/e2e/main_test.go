//go:build mosquitto

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// built is where TestMain puts what all tests use: the agent and the operators.
var built string

// operators are those of the demo.
var operators = []string{"parse", "count"}

func agentBinary() string { return filepath.Join(built, "agent") }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if built, err = os.MkdirTemp("", "weir-e2e-built-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(built)
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build builds the agent, and the operators as the README says.
func build() error {
	commands := []*exec.Cmd{exec.Command("go", "build", "-o", agentBinary(), "github.com/weir-stream/weir/cmd/agent")}
	for _, op := range operators {
		cmd := exec.Command("go", "build", "-buildmode=c-shared", "-o", filepath.Join(built, op+".wasm"), ".")
		cmd.Dir = filepath.Join("..", "..", "examples", "demo", op)
		cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
		commands = append(commands, cmd)
	}
	for _, cmd := range commands {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	return nil
}
