package wasmops

import (
	"crypto/sha256"
	"encoding/binary"
)

// clock is a guest's clock. It shows the stamp of the entry being processed, moves on by a
// microsecond with each reading and by what the guest sleeps, and never goes back.
type clock struct {
	now   int64 // nanoseconds since 1970
	stamp int64 // milliseconds since 1970: the highest stamp seen
}

// tick is what one reading moves the clock on, in nanoseconds: a guest that waits for time to pass
// gets there.
const tick = 1000

// maxStamp keeps stamps within what nanoseconds can hold, with room for sleeping: the year 2100.
const maxStamp = 4_102_444_800_000

// enter begins a call with an entry's stamp in milliseconds since 1970.
func (c *clock) enter(stamp int64) {
	c.stamp = max(c.stamp, min(stamp, maxStamp))
	c.now = max(c.now, c.stamp*1e6)
}

func (c *clock) read() int64 {
	c.sleep(tick)
	return c.now
}

// sleep moves the clock on. It returns false if the clock would then lead the stamps by too much.
func (c *clock) sleep(ns int64) bool {
	lead := c.now - c.stamp*1e6
	if ns < 0 || ns > maxClockLead-lead {
		return false
	}
	c.now += ns
	return true
}

// random makes the random numbers of one instance: the splitmix64 sequence of a seed, in which a
// position can be named. They are not secret.
type random struct {
	seed uint64
	pos  uint64 // in 8-byte words
}

func newRandom(task, operator string) random {
	h := sha256.Sum256([]byte("weir random v1\x00" + task + "\x00" + operator))
	return random{seed: binary.LittleEndian.Uint64(h[:])}
}

// fill fills b. A part of a word that is not used is lost.
func (r *random) fill(b []byte) {
	for len(b) > 0 {
		r.pos++
		x := r.seed + r.pos*0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], x^x>>31)
		b = b[copy(b, word[:]):]
	}
}
