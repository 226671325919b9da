// Conformance is the conformance operator in Go; package wasmops/abitest says what each command does.
package main

import (
	"bytes"
	"errors"
	"math"
	"strconv"

	weir "github.com/weir-stream/weir/sdk/go"
	"github.com/weir-stream/weir/sdk/go/migrate"
)

func init() {
	weir.Register(weir.Operator{
		Outputs: []string{"side", "unused"}, Init: start, Process: process, OnTimer: onTimer,
		OnWatermark: func(at int64, out *weir.Out) error {
			if timed {
				out.Emit(nil, at, []byte("watermark"))
			}
			return nil
		},
		OnEnd: func(out *weir.Out) error {
			if timed {
				out.Emit(nil, 0, []byte("end"))
			}
			return nil
		},
	})
	migrate.Register(migrateOut, migrateIn)
}

func main() {}

var (
	config weir.Config
	ratio  float64
	limit  int
	seen   int64
	timed  bool
	buf    []byte

	instead []byte // if it is not nil: given to the next version in the place of seen
)

func start(c weir.Config) (err error) {
	config = c
	if ratio, err = c.Float("ratio", 0.5); err != nil {
		return err
	}
	limit, err = c.Int("limit", 7)
	return err
}

func process(r weir.Record, out *weir.Out) error {
	if len(r.Value) == 0 {
		return errors.New("empty command")
	}
	command, arg := r.Value[0], r.Value[1:]
	answer := func(value []byte) { out.Emit(r.Key, r.Time, value) }
	found := func(value []byte, ok bool) {
		if !ok {
			value = []byte("-")
		}
		answer(value)
	}
	buf = buf[:0]
	switch command {
	case 'T', 'U', 'm', 'P':
		timed = true
		answerTime(command, r.Key, arg, answer)
	case 'e':
		out.EmitRecord(weir.MainOutput, r)
	case 's':
		out.EmitRecord("side", r)
		out.EmitRecord("unused", r)
	case 'n':
		for i := range number(arg) {
			answer(strconv.AppendInt(buf, int64(i), 10))
		}
	case 'w':
		large := make([]byte, number(arg))
		for i := range large {
			large[i] = 'w'
		}
		answer(large)
	case 'c':
		value, ok := config.Lookup(string(arg))
		found([]byte(value), ok)
	case 'C':
		answer(strconv.AppendInt(append(weir.AppendFixed(buf, ratio, 6), '|'), int64(limit), 10))
	case 'h':
		value := r.Header(string(arg))
		found(value, value != nil)
	case 'i':
		answer(strconv.AppendInt(buf, int64(r.Input), 10))
	case 'g':
		found(weir.State.Get(r.Key, buf))
	case 'p':
		weir.State.Put(r.Key, arg)
	case 'd':
		answer(strconv.AppendInt(buf, int64(truth(weir.State.Delete(r.Key))), 10))
	case 'x':
		weir.State.Scan(arg, func(key, value []byte) bool {
			out.Emit(key, r.Time, value)
			return true
		})
	case 'k':
		weir.Count(string(arg), r.Time)
	case 'u':
		weir.Gauge(string(arg), float64(r.Time)/2)
	case 'l':
		if len(arg) == 0 {
			return errors.New("no level")
		}
		weir.Log(weir.Level(arg[0]-'0'), string(arg[1:]))
	case 't':
		answer(strconv.AppendInt(buf, weir.Now(), 10))
	case 'f':
		answer(arg)
		return errors.New(string(arg))
	case 'j':
		answer(json(arg))
	case 'r':
		v, ok := weir.ParseNumber(arg[min(1, len(arg)):])
		if !ok {
			return errors.New("not a number")
		}
		answer(weir.AppendFixed(buf, v, int(arg[0]-'0')))
	case 'q':
		answer(weir.AppendJSONString(buf, string(arg)))
	case 'M':
		instead = append([]byte{}, arg...)
	case 'v':
		seen++
		answer(strconv.AppendInt(buf, seen, 10))
	default:
		return errors.New("unknown command")
	}
	return nil
}

// answerTime does the commands about time.
func answerTime(command byte, key, arg []byte, answer func([]byte)) {
	switch command {
	case 'T':
		weir.SetTimer(weir.TimerKind(arg[0]-'0'), signed(arg[1:]), key)
	case 'U':
		answer(strconv.AppendInt(buf, int64(truth(weir.ClearTimer(weir.TimerKind(arg[0]-'0'), signed(arg[1:]), key))), 10))
	case 'm':
		switch w := weir.Watermark(); w {
		case weir.NoWatermark:
			answer([]byte("-"))
		case weir.EndOfTime:
			answer([]byte("end"))
		default:
			answer(strconv.AppendInt(buf, w, 10))
		}
	case 'P':
		until, value, _ := bytes.Cut(arg, []byte("|"))
		weir.State.PutUntil(key, value, signed(until))
	}
}

func onTimer(t weir.Timer, out *weir.Out) error {
	out.Emit(t.Key, t.At, append(append(buf[:0], "timer"...), byte('0'+t.Kind)))
	switch {
	case len(t.Key) == 0:
	case t.Key[0] == 'a':
		weir.SetTimer(t.Kind, t.At, t.Key)
	case t.Key[0] == 'c':
		weir.ClearTimer(weir.EventTime, t.At, []byte("d"))
	case t.Key[0] == 'f':
		return errors.New("timer fails")
	}
	return nil
}

func migrateOut() ([]byte, error) {
	switch {
	case instead == nil:
		return strconv.AppendInt([]byte("1 "), seen, 10), nil
	case len(instead) == 0:
		return nil, errors.New("nothing to give")
	}
	return instead, nil
}

func migrateIn(state []byte) error {
	count, ok := bytes.CutPrefix(state, []byte("1 "))
	if !ok {
		return errors.New("unknown format")
	}
	seen = signed(count)
	return nil
}

// signed is the whole number in b, 0 if it is none.
func signed(b []byte) int64 {
	v, _ := weir.ParseNumber(b)
	return int64(v)
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// number is the number in b, 0 if it is none that makes sense here.
func number(b []byte) int {
	if v, ok := weir.ParseNumber(b); ok && v >= 0 && v <= 1e9 {
		return int(v)
	}
	return 0
}

func json(value []byte) []byte {
	raw, ok := weir.JSONField(value, "v")
	if !ok {
		raw = []byte("-")
	}
	b := append(append(buf, raw...), '|')
	v, ok := weir.JSONNumber(value, "v")
	if !ok {
		return append(b, "-|-"...)
	}
	b = append(weir.AppendFixed(b, v, 3), '|')
	const hex = "0123456789abcdef"
	for bits, shift := math.Float64bits(v), 60; shift >= 0; shift -= 4 {
		b = append(b, hex[bits>>shift&15])
	}
	return b
}
