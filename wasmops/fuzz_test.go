package wasmops

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// fuzzLimits end a guest soon.
var fuzzLimits = dataflow.Limits{Memory: 1 << 20, Time: 2 * time.Millisecond, Output: 64 << 10, State: 64 << 10}

func addGuests(f *testing.F) {
	for _, g := range wasmtest.HostileGuests() {
		if len(g.Wasm) < 10_000 {
			f.Add(g.Wasm)
		}
	}
	f.Add(checksumGuest().wasm())
	f.Add(fibonacciGuest().wasm())
	f.Add(floatGuest().wasm())
	f.Add(minimal().global(i32, true, 0x41, 7).segment(0, 0x41, 0, 0x0b, 2, 'h', 'i').imp("emit").wasm())
	branches := minimal().body(exportInit, 0x02, 0x40, 0x41, 0, 0x0e, 1, 0, 0, 0x0b, 0x41, 0)
	branches.table, branches.elem, branches.start = []byte{0x70, 0, 2}, []byte{0, 0x41, 0, 0x0b, 1, 0}, 0
	f.Add(branches.wasm())
}

// FuzzPrepare prepares any bytes. What was a valid module is one when it has been rewritten, and it runs,
// or fails, within its limits.
func FuzzPrepare(f *testing.F) {
	addGuests(f)
	ctx := context.Background()
	plain, err := NewHost(ctx, Options{Interpreter: true, measure: unstoppable})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := plain.Close(ctx); err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, wasm []byte) {
		if _, err := plain.Check(ctx, wasm); err != nil {
			return
		}
		h, err := NewHost(ctx, Options{Interpreter: true, Modules: shelf(wasm)})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close(ctx)
		if _, err := h.Check(ctx, wasm); err != nil {
			t.Fatalf("what is valid is not once it is rewritten: %v", err)
		}
		spec := dataflow.OperatorSpec{Name: "o", Task: "t", Digest: Digest(wasm), Outputs: []string{"out"}, Limits: fuzzLimits}
		op, err := h.New(ctx, spec, nil)
		if err != nil {
			guestOnly(t, err)
			return
		}
		defer op.Close()
		if err := op.Process(batch(1, "abc"), func(int, []byte, int) error { return nil }); err != nil {
			guestOnly(t, err)
			return
		}
		changes, err := op.Freeze(true)
		if err != nil {
			t.Fatal(err)
		}
		var store memoryStore
		store.save(changes)
		again, err := h.New(ctx, spec, store.read)
		if err != nil {
			t.Fatalf("its own state is not restored: %v", err)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// appendChange encodes one change of a snapshot for the fuzzer: space, length of the key, key, length
// of the value (2 bytes), value.
func appendChange(b []byte, c dataflow.Change) []byte {
	b = append(append(b, byte(c.Space), byte(len(c.Key))), c.Key...)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(c.Value))), c.Value...)
}

func imageReader(image []byte) dataflow.StateReader {
	return func(visit func(dataflow.Change) error) error {
		r := &reader{b: image}
		for r.more() {
			c := dataflow.Change{Space: dataflow.Space(r.byte())}
			c.Key = slices.Clone(r.bytes(int(r.byte())))
			c.Value = append([]byte{}, r.bytes(int(r.byte())<<8|int(r.byte()))...)
			if r.err != nil {
				return nil
			}
			if err := visit(c); err != nil {
				return err
			}
		}
		return nil
	}
}

// FuzzRestore restores damaged snapshots: each is refused, or gives an instance that runs or fails as
// any guest does.
func FuzzRestore(f *testing.F) {
	// The guest adds its batch's length to a global, stores it, keeps it as keyed state, and emits the batch.
	g := wasmtest.NewGuest().Import("weir", "state_put", "iiii:").Global(0x7f, 1, 0x41, 0, 0x0b)
	g.Body("weir_process", wasmtest.Code([]byte{0x23, 0, 0x20, 2, 0x6a, 0x24, 0}, wasmtest.I32(9000), []byte{0x23, 0, 0x36, 2, 0},
		wasmtest.Call(2, 9000, 4, 9000, 4), wasmtest.Pass, wasmtest.OK)...)
	wasm := g.Wasm()
	ctx := context.Background()
	h, err := NewHost(ctx, Options{Interpreter: true, Modules: shelf(wasm)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := h.Close(ctx); err != nil {
			f.Error(err)
		}
	})
	spec := dataflow.OperatorSpec{Name: "o", Task: "t", Digest: Digest(wasm), Outputs: []string{"out"}, Limits: fuzzLimits}
	op, err := h.New(ctx, spec, nil)
	if err != nil {
		f.Fatal(err)
	}
	for range 3 {
		if err := op.Process(batch(1_700_000_000_000, "abc", "def"), func(int, []byte, int) error { return nil }); err != nil {
			f.Fatal(err)
		}
		changes, err := op.Freeze(true)
		if err != nil {
			f.Fatal(err)
		}
		var image []byte
		for _, c := range changes {
			image = appendChange(image, c)
		}
		f.Add(image)
		f.Add(image[:len(image)/2])
		for at := len(image) - 200; at > 0 && at < len(image); at += 7 {
			bad := slices.Clone(image)
			bad[at] ^= 0x80
			f.Add(bad)
		}
	}
	if err := op.Close(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, image []byte) {
		op, err := h.New(ctx, spec, imageReader(image))
		if err != nil {
			if !errors.Is(err, errState) && !strings.Contains(err.Error(), "limits.memory") {
				t.Fatalf("refused for another reason: %v", err)
			}
			return
		}
		defer op.Close()
		if err := op.Process(batch(1, "abc"), func(int, []byte, int) error { return nil }); err != nil {
			guestOnly(t, err)
			return
		}
		if _, err := op.Freeze(false); err != nil {
			t.Fatal(err)
		}
	})
}
