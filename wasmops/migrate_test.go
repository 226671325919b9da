package wasmops

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// migrating is a guest that counts its records in the four bytes at 1024 and migrates them. The mark makes it
// another module.
func migrating(mark string) *wasmtest.Guest {
	load, store := []byte{0x28, 2, 0}, []byte{0x36, 2, 0}
	g := wasmtest.NewGuest().Data(4096, mark)
	g.Body("weir_process", wasmtest.Code(wasmtest.I32(1024), wasmtest.I32(1024), load, []byte{0x20, 3, 0x6a}, store, wasmtest.OK)...)
	g.Func("weir_migrate_out", ":I", wasmtest.I64(1024<<32|4)...)
	g.Func("weir_migrate_in", "ii:i", wasmtest.Code(wasmtest.I32(1024), []byte{0x20, 0}, load, store, wasmtest.OK)...)
	return g
}

func guestSpec(wasm []byte) dataflow.OperatorSpec {
	return dataflow.OperatorSpec{Name: "count", Task: "job/count", Digest: Digest(wasm), Outputs: []string{"out"}, Inputs: []string{"in"}}
}

// stateAfter is the state that a guest leaves after some records.
func stateAfter(t *testing.T, h *Host, wasm []byte, records ...string) dataflow.StateReader {
	t.Helper()
	in := newInstance(t, h, guestSpec(wasm), nil)
	defer closeInstance(t, in)
	if _, err := process(in, batch(77, records...)); err != nil {
		t.Fatal(err)
	}
	return snapshot(t, in)
}

// snapshot is the whole state of an instance, as one reads it that is restored from it.
func snapshot(t *testing.T, in *Instance) dataflow.StateReader {
	t.Helper()
	changes, err := in.Freeze(true)
	if err != nil {
		t.Fatal(err)
	}
	return func(visit func(dataflow.Change) error) error {
		for _, c := range changes {
			if err := visit(c); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestVariablesMigrate(t *testing.T) {
	one, two := migrating("one").Wasm(), migrating("two").Wasm()
	neither := migrating("neither").Without("weir_migrate_out").Without("weir_migrate_in").Wasm()
	h := newHost(t, Options{Modules: shelf(one, two, neither)})
	for _, c := range []struct {
		name     string
		from, to []byte
		want     uint32
	}{
		{"another module", one, two, 3},
		{"another configuration", one, one, 3},
		{"the old one gives nothing", neither, one, 0},
		{"the new one takes nothing", one, neither, 0},
	} {
		spec := guestSpec(c.to)
		spec.Fresh = true
		in := newInstance(t, h, spec, stateAfter(t, h, c.from, "x", "y", "z"))
		if got := binary.LittleEndian.Uint32(in.view()[1024:]); got != c.want {
			t.Errorf("%s: it begins with %d, want %d", c.name, got, c.want)
		}
		if in.clock.stamp != 77 {
			t.Errorf("%s: its clock is at %d, the old one's was at 77", c.name, in.clock.stamp)
		}
		if _, err := process(in, batch(78, "x")); err != nil {
			t.Fatal(err)
		}
		changes, err := in.Freeze(false)
		if err != nil {
			t.Fatal(err)
		}
		copied := newInstance(t, h, guestSpec(c.to), func(visit func(dataflow.Change) error) error {
			for _, ch := range changes {
				if err := visit(ch); err != nil {
					return err
				}
			}
			return nil
		})
		if got := binary.LittleEndian.Uint32(copied.view()[1024:]); got != c.want+1 {
			t.Errorf("%s: a restored copy has %d, want %d", c.name, got, c.want+1)
		}
		closeInstance(t, in)
		closeInstance(t, copied)
	}
}

// TestMigrationFails: each fault of a guest's hook is one of the guest, and names the hook.
func TestMigrationFails(t *testing.T) {
	good := migrating("good").Wasm()
	for name, c := range map[string]struct {
		from, to *wasmtest.Guest
		want     string
	}{
		"out traps":             {migrating("a").Body("weir_migrate_out", wasmtest.Trap...), nil, "trapped"},
		"out says no":           {migrating("b").Body("weir_migrate_out", wasmtest.I64(-1)...), nil, "weir_migrate_out"},
		"out beyond its memory": {migrating("c").Body("weir_migrate_out", wasmtest.I64(0x7fff0000<<32|100)...), nil, "not in its memory"},
		"out gives too much":    {migrating("d").Body("weir_migrate_out", wasmtest.I64(1<<25)...), nil, "at most"},
		"in traps":              {nil, migrating("e").Body("weir_migrate_in", wasmtest.Trap...), "trapped"},
		"in says no":            {nil, migrating("f").Body("weir_migrate_in", wasmtest.I32(3)...), "weir_migrate_in returned status 3"},
		"in does not end":       {nil, migrating("g").Body("weir_migrate_in", wasmtest.Code(wasmtest.Loop(), wasmtest.OK)...), "ran longer"},
		"out with another type": {migrating("h").Sig("weir_migrate_out", ":i").Body("weir_migrate_out", wasmtest.OK...), nil, "has type"},
		"emit is for records":   {nil, migrating("i").Body("weir_migrate_in", wasmtest.Code(wasmtest.Call(1, 0, 0, 0, 0), wasmtest.OK)...), "emit is called outside"},
		"nothing to give":       {migrating("j").Body("weir_migrate_out", wasmtest.I64(0)...), nil, ""},
	} {
		from, to := good, good
		if c.from != nil {
			from = c.from.Wasm()
		}
		if c.to != nil {
			to = c.to.Wasm()
		}
		h := newHost(t, Options{Modules: shelf(from, to)})
		spec := guestSpec(to)
		spec.Fresh = true
		if c.want == "has type" {
			if _, err := Prepare(from); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		state := stateAfter(t, h, from, "x")
		op, err := h.New(t.Context(), spec, state)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if err := op.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		var guest *dataflow.GuestError
		if !errors.As(err, &guest) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want a guest's error with %q", name, err, c.want)
		}
	}
}
