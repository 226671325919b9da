package dataflow

import (
	"errors"
	"fmt"
	"testing"
)

// TestRefusedBy: the operator is had back from whatever a task writes down of its failure.
func TestRefusedBy(t *testing.T) {
	guest := &GuestError{Operator: "near-2", Reason: "no field v: operator x: y"}
	for _, c := range []struct {
		err  error
		want string
	}{
		{&recordError{index: 0, err: guest}, "near-2"},
		{&recordError{index: 4711, err: fmt.Errorf("%w (sha256:ab)", guest)}, "near-2"},
		{&recordError{index: timeCalls, err: guest}, ""},
		{&recordError{index: upgradeIndex, err: guest}, ""},
		{errors.New("the message is no JSON: operator near-2: "), ""},
	} {
		if got := RefusedBy(c.err.Error()); got != c.want {
			t.Errorf("%q was refused by %q, want %q", c.err, got, c.want)
		}
	}
}
