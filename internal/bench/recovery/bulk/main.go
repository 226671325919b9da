// Bulk is an operator with as much state as its config says: every record changes one page of it and comes out with
// its number and with the time that it carries.
package main

import (
	"encoding/binary"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(weir.Operator{Init: start, Process: process}) }

func main() {}

const page = 4096

var (
	state []byte
	n     int64
	buf   []byte
)

func start(c weir.Config) error {
	size, err := c.Int("bytes", page)
	if err != nil {
		return err
	}
	state = make([]byte, max(page, size))
	x := uint64(88172645463325252) // xorshift: pages that do not compress
	for i := 0; i+8 <= len(state); i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(state[i:], x)
	}
	return nil
}

func process(r weir.Record, out *weir.Out) error {
	n++
	binary.LittleEndian.PutUint64(state[int(n)*page%(len(state)-8):], uint64(n))
	t, ok := weir.JSONField(r.Value, "t")
	if !ok {
		return nil
	}
	buf = append(buf[:0], `{"n":`...)
	buf = strconv.AppendInt(buf, n, 10)
	buf = append(buf, `,"t":`...)
	buf = append(buf, t...)
	out.Emit(r.Key, r.Time, append(buf, '}'))
	return nil
}
