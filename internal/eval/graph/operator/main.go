//go:build wasip1

// The operators of the evaluation's graph, for machines without a C compiler: see operator.c, which does
// the same and says what is configured.
package main

import (
	"errors"

	weir "github.com/weir-stream/weir/sdk/go"
)

func init() { weir.Register(weir.Operator{Init: start, Process: process}) }

func main() {}

type slot struct{ key, count, sum uint64 }

var (
	aggregate, emit bool
	salt, hot       uint64
	table           []slot
	room            []byte
	key             [8]byte
)

var errFull = errors.New("the table is full: give it more slots")

func start(c weir.Config) error {
	aggregate = c.String("step", "") == "aggregate"
	number := func(name string, missing int) uint64 {
		n, err := c.Int(name, missing)
		if err != nil {
			panic(err)
		}
		return uint64(n)
	}
	salt, hot, emit = number("salt", 0), number("hot", 0)<<10, number("emit", 1) != 0
	if !aggregate {
		return nil
	}
	table = make([]slot, number("slots", 1<<16))
	room = make([]byte, number("memory", 0)<<10)
	for i := 0; i < len(room); i += 512 {
		room[i] = byte(mix(uint64(i)+1)) | 1
	}
	return nil
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func hash(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return mix(h)
}

// number reads the digits behind {"n":
func number(v []byte) (n uint64) {
	for i := 5; i < len(v) && v[i] >= '0' && v[i] <= '9'; i++ {
		n = n*10 + uint64(v[i]-'0')
	}
	return n
}

func process(r weir.Record, out *weir.Out) error {
	h := hash(r.Key)
	if !aggregate {
		k := mix(h + salt)
		for i := range key {
			key[i] = "0123456789abcdef"[k&15]
			k >>= 4
		}
		out.Emit(key[:], r.Time, r.Value)
		return nil
	}
	h |= 1
	mask := uint64(len(table) - 1)
	i := h >> 1 & mask
	for tries := 0; table[i].key != h && table[i].key != 0; tries++ {
		if tries == len(table) {
			return errFull
		}
		i = (i + 1) & mask
	}
	s := &table[i]
	s.key = h
	s.count++
	s.sum += number(r.Value)
	if hot > 0 {
		room[(s.count*4096+(h&0xffff)*4096)%hot]++
	}
	if emit {
		out.Emit(r.Key, r.Time, r.Value)
	}
	return nil
}
