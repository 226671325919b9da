//go:build wat2wasm

package abitest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-stream/weir/wasmops/optest"
)

// TestExampleByHand assembles the module of docs/abi.md and runs it.
func TestExampleByHand(t *testing.T) {
	out := filepath.Join(t.TempDir(), "every.wasm")
	if said, err := exec.Command("wat2wasm", "../../docs/abi/every.wat", "-o", out).CombinedOutput(); err != nil {
		t.Fatalf("wat2wasm: %v\n%s", err, said)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, every := range []string{"", "1", "3", "9"} {
		config := map[string]string{"every": every}
		n, err := strconv.Atoi(every)
		if err != nil {
			n, config = 2, nil
		}
		if _, err := Verify(t.Context(), wasm, Options{Config: config}); err != nil {
			t.Errorf("every %q: %v", every, err)
		}
		var in, want []byte
		for i := 1; i <= 100; i++ {
			line := []byte(`{"key":"k` + strconv.Itoa(i) + `","time":` + strconv.Itoa(i) + `,"headers":{"a":"b"},"value":"` + strings.Repeat("x", i*50) + `"}` + "\n")
			in = append(in, line...)
			if i%n == 0 {
				want = append(want, line...)
			}
		}
		if _, err := optest.Run(t.Context(), wasm, config, bytes.NewReader(in), bytes.NewReader(want)); err != nil {
			t.Errorf("every %q: %v", every, err)
		}
	}
	for _, every := range []string{"0", "12", "x", ""} {
		_, err := Verify(t.Context(), wasm, Options{Config: map[string]string{"every": every}})
		if err == nil || !strings.Contains(err.Error(), "it does not start: operator operator: config every: must be one digit from 1 to 9") {
			t.Errorf("every %q: %v", every, err)
		}
	}
}
