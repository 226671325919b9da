package dataflow

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// remembers is what dedupe must decide, the plain way.
type remembers struct {
	window int
	keys   map[string][]string
}

func (m *remembers) repeat(key, id, payload string) bool {
	msg := id + "\x00" + payload
	if slices.Contains(m.keys[key], msg) {
		return true
	}
	m.keys[key] = append(m.keys[key], msg)
	if n := len(m.keys[key]) - m.window; n > 0 {
		m.keys[key] = m.keys[key][n:]
	}
	return false
}

// chunks keeps what freezes return, as a snapshot store does.
type chunks map[string][]byte

func (c chunks) save(changes []Change, full bool) {
	if full {
		clear(c)
	}
	for _, ch := range changes {
		if ch.Space != SpaceDedupe {
			panic("a change of another space")
		}
		c[string(ch.Key)] = ch.Value
	}
}

func (c chunks) load(window int) *dedupe {
	d := newDedupe(window)
	for _, k := range slices.Sorted(maps.Keys(c)) {
		key, value := []byte(k), bytes.Clone(c[k])
		d.restore(key, value)
		clear(key)
		clear(value)
	}
	return d
}

func TestDedupe(t *testing.T) {
	d := newDedupe(3)
	for i, c := range []struct {
		key, id, payload string
		repeat           bool
	}{
		{"a", "1", "x", false},
		{"a", "1", "x", true},
		{"b", "1", "x", false}, // another key
		{"a", "2", "x", false}, // another id
		{"a", "1", "y", false}, // another payload: a sensor that counts from 1 again
		{"a", "1", "x", true},
		{"a", "3", "x", false}, // pushes out a 1 x; a repeat does not keep it
		{"a", "2", "x", true},
		{"a", "1", "x", false},
		{"a", "2", "x", false},
		{"b", "1", "x", true}, // its own window
		{"", "", "", false},
		{"", "", "", true},
	} {
		if got := d.repeat([]byte(c.key), []byte(c.id), []byte(c.payload)); got != c.repeat {
			t.Fatalf("message %d: repeat %v, want %v", i+1, got, c.repeat)
		}
	}
}

// TestDedupeIDAndPayloadAreApart: where the one ends and the other begins counts.
func TestDedupeIDAndPayloadAreApart(t *testing.T) {
	d := newDedupe(8)
	d.repeat([]byte("k"), []byte("ab"), []byte("c"))
	mustEqual(t, "repeat", d.repeat([]byte("k"), []byte("a"), []byte("bc")), false)
	mustEqual(t, "repeat", d.repeat([]byte("k"), []byte("c"), []byte("ab")), false)
}

func message(i int) []byte { return fmt.Appendf(nil, "m%d", i) }

// put logs messages from one number to another, none of which may be a repeat.
func put(t checker, d *dedupe, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		if d.repeat([]byte("k"), message(i), nil) {
			t.Fatalf("message %d is a repeat", i)
		}
	}
}

// knows wants exactly the messages from one number to another to be remembered, of those up to most.
func knows(t checker, c chunks, window, from, to, most int) {
	t.Helper()
	for i := 1; i <= most; i++ {
		if got, want := c.load(window).repeat([]byte("k"), message(i), nil), from <= i && i <= to; got != want {
			t.Fatalf("message %d: repeat %v, want %v", i, got, want)
		}
	}
}

func TestDedupeFreezesWhatChanged(t *testing.T) {
	const window = 3*chunkSlots + 10
	d := newDedupe(window)
	c := chunks{}
	freeze := func(full bool, want int) {
		t.Helper()
		changes := d.freeze(full)
		mustEqual(t, "chunks", len(changes), want)
		c.save(changes, full)
	}
	freeze(false, 0)
	put(t, d, 1, 5)
	freeze(false, 1)
	freeze(false, 0)
	put(t, d, 6, 2*chunkSlots+1)
	freeze(false, 3)
	freeze(true, 3)
	knows(t, c, window, 1, 2*chunkSlots+1, 2*chunkSlots+1)
	put(t, d, 2*chunkSlots+2, window)
	freeze(false, 2)
	put(t, d, window+1, window+7) // wraps into the first chunk
	freeze(false, 1)
	knows(t, c, window, 8, window+7, window+7)
	d.repeat([]byte("k"), message(window), nil)
	freeze(false, 0)
}

// TestDedupeAnotherWindow: a version of the job with another window remembers the newest messages
// that it has room for, and forgets in order.
func TestDedupeAnotherWindow(t *testing.T) {
	const was = 2 * chunkSlots
	for _, logged := range []int{1, 50, was - 1, was, was + 1, was + 50, 5*was + 17} {
		for _, window := range []int{1, 7, chunkSlots, was - 1, was, was + 1, was + 40, 5 * was} {
			t.Run(fmt.Sprintf("%d logged, window %d", logged, window), func(t *testing.T) {
				d := newDedupe(was)
				put(t, d, 1, logged)
				c := chunks{}
				c.save(d.freeze(true), true)

				kept := min(logged, was, window)
				knows(t, c, window, logged-kept+1, logged, logged)

				d = c.load(window)
				c.save(d.freeze(true), true) // the generation's initial part
				more := window/2 + 1
				put(t, d, logged+1, logged+more)
				c.save(d.freeze(false), false)
				kept = min(kept+more, window)
				knows(t, c, window, logged+more-kept+1, logged+more, logged+more)
			})
		}
	}
}

// TestDedupeProperty: whenever it is frozen and restored, it decides like the model.
func TestDedupeProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom([]int{1, 3, chunkSlots - 1, chunkSlots, chunkSlots + 5}).Draw(t, "window")
		ids := rapid.IntRange(1, 2*window+2)
		keys := rapid.SampledFrom([]string{"", "a", "a\x00\x00", "a\x00\x01", "ab"})
		d, m := newDedupe(window), &remembers{window, map[string][]string{}}
		saved, model := chunks{}, map[string][]string{}
		t.Repeat(map[string]func(*rapid.T){
			"messages": func(t *rapid.T) {
				key, from, n := keys.Draw(t, "key"), ids.Draw(t, "from"), rapid.IntRange(1, window).Draw(t, "n")
				for i := from; i < from+n; i++ {
					id := string(message(i))
					got, want := d.repeat([]byte(key), []byte(id), []byte("p")), m.repeat(key, id, "p")
					if got != want {
						t.Fatalf("message %s of %q: repeat %v, want %v", id, key, got, want)
					}
				}
			},
			"freeze": func(t *rapid.T) {
				full := rapid.Bool().Draw(t, "full")
				saved.save(d.freeze(full), full)
				model = map[string][]string{}
				for k, v := range m.keys {
					model[k] = slices.Clone(v)
				}
			},
			"restore": func(t *rapid.T) {
				d, m.keys = saved.load(window), map[string][]string{}
				for k, v := range model {
					m.keys[k] = slices.Clone(v)
				}
			},
		})
	})
}

func BenchmarkDedupe(b *testing.B) {
	d := newDedupe(DefaultDedupeWindow)
	key, id, payload := []byte("plant/line1/m7/vibration"), make([]byte, 8), make([]byte, 100)
	for i := range b.N {
		id[0], id[1], id[2], id[3] = byte(i), byte(i>>8), byte(i>>16), byte(i>>24)
		d.repeat(key, id, payload)
	}
}
