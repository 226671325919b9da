package wasmops

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestKeyedStateIsAMap compares the keyed state with a plain map under random use.
func TestKeyedStateIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k, plain, saved := newKeyedState(), map[string]string{}, map[string]string{}
		key := rapid.StringMatching(`[abc]{1,3}`)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			name := key.Draw(t, "key")
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0, 1, 2:
				value := rapid.StringN(0, 5, 5).Draw(t, "value")
				if !k.put([]byte(name), []byte(value), 1<<20) {
					t.Fatal("put is refused")
				}
				plain[name] = value
			case 3:
				_, there := plain[name]
				if k.remove([]byte(name)) != there {
					t.Fatalf("remove of %q, which is there: %v", name, there)
				}
				delete(plain, name)
			case 4:
				full := rapid.Bool().Draw(t, "full")
				if full { // hides what is older
					clear(saved)
				}
				k.freeze(full, func(key string, value []byte) {
					if saved[key] = string(value); value == nil {
						delete(saved, key)
					}
				})
				if !maps.Equal(saved, plain) {
					t.Fatalf("frozen changes add up to %q, want %q", saved, plain)
				}
			}
		}
		if !maps.EqualFunc(k.values, plain, func(a *keyedValue, b string) bool { return string(a.value) == b }) {
			t.Fatalf("have %v, want %q", k.values, plain)
		}
		size := int64(0)
		for key, value := range plain {
			size += int64(len(key)+len(value)) + keyOverhead
		}
		if k.bytes != size {
			t.Fatalf("%d bytes, want %d", k.bytes, size)
		}
		checkScans(t, k, plain)
	})
}

func checkScans(t *rapid.T, k *keyedState, plain map[string]string) {
	for _, prefix := range []string{"", "a", "ab", "c", "d"} {
		var want []string
		for _, key := range slices.Sorted(maps.Keys(plain)) {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key+"="+plain[key])
			}
		}
		room := rapid.IntRange(16, 100).Draw(t, "room")
		if have := scanAll(k, prefix, room); !slices.Equal(have, want) {
			t.Fatalf("scan of %q in %d bytes: %q, want %q", prefix, room, have, want)
		}
	}
}

// scanAll scans as a guest does, in buffers of room bytes.
func scanAll(k *keyedState, prefix string, room int) (found []string) {
	after := ""
	for {
		b, need := k.scan(nil, prefix, after, room)
		if need > 0 {
			room = need
			continue
		}
		if len(b) == 0 {
			return found
		}
		for len(b) > 0 {
			klen, vlen := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
			after = string(b[8 : 8+klen])
			found = append(found, after+"="+string(b[8+klen:8+klen+vlen]))
			b = b[8+klen+vlen:]
		}
	}
}

func TestKeyedStateOfManyKeys(t *testing.T) {
	k := newKeyedState()
	const n = 5 * maxChunk
	var want []string
	for i := range n {
		key := fmt.Sprintf("%05d", i*7919%n)
		k.put([]byte(key), nil, 1<<30)
		want = append(want, key+"=")
	}
	slices.Sort(want)
	if have := scanAll(k, "", 1000); !slices.Equal(have, want) {
		t.Errorf("%d keys in order, want %d", len(have), len(want))
	}
	for i := range n {
		if !k.remove(fmt.Appendf(nil, "%05d", i)) {
			t.Fatalf("key %d is missing", i)
		}
	}
	if len(k.order.chunks) != 0 || k.bytes != 0 {
		t.Errorf("%d chunks and %d bytes are left", len(k.order.chunks), k.bytes)
	}
}

func TestKeyedStateLimit(t *testing.T) {
	k := newKeyedState()
	const limit = 10 + 2*keyOverhead // room for two keys
	for i, step := range []struct {
		key, value string
		limit      int64
		ok         bool
	}{
		{"a", "12345", limit, true}, {"b", "123", limit, true}, {"c", "", limit, false}, {"b", "1234", limit, false},
		{"a", "", limit, true}, {"b", "12345678", limit, true}, {"b", "123456789", limit, false},
		{"b", "abcdefgh", 1, true}, {"b", "abc", 1, true}, {"b", "abcd", 1, false}, // a limit that was lowered
	} {
		if ok := k.put([]byte(step.key), []byte(step.value), step.limit); ok != step.ok {
			t.Errorf("step %d: put %v, want %v", i, ok, step.ok)
		}
	}
	if string(k.values["b"].value) != "abc" {
		t.Errorf("a refused put changed the value to %q", k.values["b"].value)
	}
}

func TestKeyedStateCopiesValues(t *testing.T) {
	k := newKeyedState()
	value := []byte("abc")
	k.put([]byte("k"), value, 1000)
	value[0] = 'x'
	var frozen []byte
	k.freeze(false, func(_ string, v []byte) { frozen = v })
	k.values["k"].value[0] = 'y'
	if !bytes.Equal(frozen, []byte("abc")) {
		t.Errorf("frozen value is %q", frozen)
	}
}

// TestPassingKeysAreForgotten: what is put and removed between two freezes takes no memory and is in no
// snapshot; what the last one had is removed by the next.
func TestPassingKeysAreForgotten(t *testing.T) {
	k := newKeyedState()
	frozen := func() (out []string) {
		k.freeze(false, func(key string, value []byte) {
			if value == nil {
				key = "-" + key
			}
			out = append(out, key)
		})
		return out
	}
	k.put([]byte("stays"), []byte("1"), 1<<20)
	for i := range 10_000 {
		key := binary.BigEndian.AppendUint32(nil, uint32(i))
		if !k.put(key, make([]byte, 100), 1<<20) || !k.remove(key) {
			t.Fatal("the state is full")
		}
		if len(k.changed) > 200 || len(k.gone) > 0 {
			t.Fatalf("%d changed, %d gone", len(k.changed), len(k.gone))
		}
	}
	if got := frozen(); !slices.Equal(got, []string{"stays"}) {
		t.Errorf("frozen %q", got)
	}
	k.remove([]byte("stays"))
	k.put([]byte("stays"), []byte("2"), 1<<20)
	k.remove([]byte("stays"))
	if got := frozen(); !slices.Equal(got, []string{"-stays"}) || k.bytes != 0 {
		t.Errorf("frozen %q, %d bytes", got, k.bytes)
	}
	k.put([]byte("stays"), []byte("3"), 1<<20)
	k.remove([]byte("stays"))
	if got := frozen(); len(got) > 0 {
		t.Errorf("frozen %q", got)
	}
}
