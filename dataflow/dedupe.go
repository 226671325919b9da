package dataflow

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// DefaultDedupeWindow is how many of the last messages logged for a key are remembered.
const DefaultDedupeWindow = 1024

// chunkSlots is how many ids are saved under one key of a snapshot: small enough that a snapshot
// writes little more than what is new.
const chunkSlots = 64

// dedupe drops repeats: messages whose id and payload equal those of one of the last window messages
// logged for the same key. It runs behind the log, so that replay decides alike.
type dedupe struct {
	window int
	keys   map[string]*idRing
}

// idRing remembers 128-bit hashes of id and payload, the oldest overwritten first: message n, from
// 0, is in slot n modulo window.
type idRing struct {
	lo, hi   []uint64
	n        uint64 // messages ever put
	dirty    map[int]bool
	restored bool // maybe from another window: to be fitted before use
}

func newDedupe(window int) *dedupe { return &dedupe{window: window, keys: map[string]*idRing{}} }

// repeat says whether the message is a repeat, and remembers it if not.
func (d *dedupe) repeat(key, id, payload []byte) bool {
	h := xxh3.Hash128Seed(payload, xxh3.Hash(id))
	r := d.keys[string(key)]
	if r == nil {
		r = &idRing{dirty: map[int]bool{}}
		d.keys[string(key)] = r
	}
	r.fit(d.window)
	for i, lo := range r.lo {
		if lo == h.Lo && r.hi[i] == h.Hi {
			return true
		}
	}
	r.put(h, d.window)
	return false
}

func (r *idRing) put(h xxh3.Uint128, window int) {
	slot := int(r.n % uint64(window))
	if slot == len(r.lo) {
		r.lo, r.hi = append(r.lo, h.Lo), append(r.hi, h.Hi)
	} else {
		r.lo[slot], r.hi[slot] = h.Lo, h.Hi
	}
	r.n++
	r.dirty[slot/chunkSlots] = true
}

// fit lays a restored ring out for the window, which another version of the job may have changed:
// the newest messages that it has room for.
func (r *idRing) fit(window int) {
	if !r.restored {
		return
	}
	r.restored = false
	was := uint64(len(r.lo))
	if was == uint64(window) || r.n == was && was < uint64(window) {
		return
	}
	keep := min(r.n, was, uint64(window))
	lo, hi := make([]uint64, 0, keep), make([]uint64, 0, keep)
	for n := r.n - keep; n < r.n; n++ {
		lo, hi = append(lo, r.lo[n%was]), append(hi, r.hi[n%was])
	}
	r.lo, r.hi, r.n = lo, hi, keep
	for c := 0; c*chunkSlots < len(lo); c++ {
		r.dirty[c] = true
	}
}

// freeze returns the chunks that changed since the last freeze, or all. A chunk's key is the record
// key and the chunk's number (2 bytes), its value the count of messages and the hashes.
func (d *dedupe) freeze(full bool) []Change {
	var out []Change
	for key, r := range d.keys {
		r.fit(d.window)
		for c := 0; c*chunkSlots < len(r.lo); c++ {
			if full || r.dirty[c] {
				out = append(out, Change{SpaceDedupe, chunkKey(key, c), r.chunk(c)})
			}
		}
		clear(r.dirty)
	}
	return out
}

func chunkKey(key string, chunk int) []byte {
	return binary.BigEndian.AppendUint16([]byte(key), uint16(chunk))
}

func (r *idRing) chunk(c int) []byte {
	from, to := c*chunkSlots, min((c+1)*chunkSlots, len(r.lo))
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+16*(to-from)), r.n)
	for i := from; i < to; i++ {
		b = binary.LittleEndian.AppendUint64(b, r.lo[i])
		b = binary.LittleEndian.AppendUint64(b, r.hi[i])
	}
	return b
}

// restore takes one saved chunk. Chunks of a key come in ascending order. A window changes only with
// the generation, whose first snapshot is full, so that no chunk of a larger one is left behind it.
func (d *dedupe) restore(key, value []byte) {
	name := string(key[:len(key)-2])
	r := d.keys[name]
	if r == nil {
		r = &idRing{dirty: map[int]bool{}}
		d.keys[name] = r
	}
	r.restored = true
	r.n = max(r.n, binary.LittleEndian.Uint64(value))
	for b := value[8:]; len(b) >= 16; b = b[16:] {
		r.lo = append(r.lo, binary.LittleEndian.Uint64(b))
		r.hi = append(r.hi, binary.LittleEndian.Uint64(b[8:]))
	}
}
