package wasmops

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// TestHostileCatalogue runs every guest of the catalogue by both engines.
func TestHostileCatalogue(t *testing.T) {
	limits := dataflow.Limits{
		Memory: wasmtest.HostileLimits.Memory, State: wasmtest.HostileLimits.State,
		Time: time.Duration(wasmtest.HostileLimits.Time) * time.Millisecond,
	}
	count := 0
	for _, g := range wasmtest.HostileGuests() {
		count++
		for _, interpreter := range []bool{false, true} {
			ends, err := runGuest(t, Options{Modules: shelf(g.Wasm), Interpreter: interpreter}, g.Wasm, limits)
			if ends != g.Ends {
				t.Errorf("%s (interpreter %v): ends %d with %v, want %d", g.Name, interpreter, ends, err, g.Ends)
			}
			if g.Ends != wasmtest.Fine && (err == nil || !strings.Contains(err.Error(), g.Reason)) {
				t.Errorf("%s (interpreter %v): %v, want %q", g.Name, interpreter, err, g.Reason)
			}
		}
	}
	if count < 40 {
		t.Errorf("%d guests", count)
	}
}

func runGuest(t *testing.T, opt Options, wasm []byte, limits dataflow.Limits) (wasmtest.Ends, error) {
	t.Helper()
	h := newHost(t, opt)
	if _, err := h.Check(context.Background(), wasm); err != nil {
		return wasmtest.Refused, err
	}
	op, err := h.New(context.Background(), dataflow.OperatorSpec{Name: "o", Task: "t", Digest: Digest(wasm), Outputs: []string{"out"}, Limits: limits}, nil)
	if err != nil {
		return wasmtest.Starts, guestOnly(t, err)
	}
	defer op.Close()
	emitted := 0
	err = op.Process(batch(1, "abc", "def"), func(_ int, _ []byte, n int) error { emitted += n; return nil })
	if err != nil {
		if emitted > 0 {
			t.Errorf("%d records were handed on by a guest that failed with %v", emitted, err)
		}
		return wasmtest.Records, guestOnly(t, err)
	}
	if emitted != 2 {
		t.Errorf("%d records emitted, want 2", emitted)
	}
	return wasmtest.Fine, nil
}

// guestOnly checks that an error is laid at the guest's door.
func guestOnly(t *testing.T, err error) error {
	t.Helper()
	var guest *dataflow.GuestError
	if !errors.As(err, &guest) {
		t.Errorf("not a guest's error: %v", err)
	}
	return err
}
