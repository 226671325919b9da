package wasmops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow"
)

var timerSig = sig(args(i32, i64, i32, i32), i32)

// setsTimers is a guest that sets timers of event time with the key "k" when it processes.
func setsTimers(onTimer []byte, at ...int64) *builder {
	b := minimal().imp("timer_set").segment(0, 0x41, 16, 0x0b, 1, 'k')
	var code []byte
	for _, when := range at {
		code = cat(code, i32c(0), i64c(when), i32c(16), i32c(1), []byte{0x10, 0})
	}
	return b.body(exportProcess, cat(code, ok)...).fn(exportTimer, timerSig, onTimer...)
}

func timedInstance(t *testing.T, wasm []byte, limits dataflow.Limits, state dataflow.StateReader, fresh bool) (*Instance, error) {
	t.Helper()
	h := newHost(t, Options{Modules: shelf(wasm)})
	in, err := h.newInstance(context.Background(), dataflow.OperatorSpec{Name: "timed", Task: "t", Digest: Digest(wasm), Limits: limits, Fresh: fresh}, state)
	if err == nil {
		t.Cleanup(func() {
			if err := in.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return in, err
}

func nothing(int, []byte, int) error { return nil }

// TestTimersOfHostileGuests: what a guest says wrongly about timers ends it, with a reason.
func TestTimersOfHostileGuests(t *testing.T) {
	set := func(kind int32, at int64, ptr, size int32) *builder {
		return minimal().imp("timer_set").fn(exportTimer, timerSig, ok...).
			body(exportProcess, cat(i32c(kind), i64c(at), i32c(ptr), i32c(size), []byte{0x10, 0}, ok)...)
	}
	cleared := minimal().imp("timer_clear").body(exportProcess, cat(i32c(7), i64c(1), i32c(0), i32c(0), []byte{0x10, 0}, drop, ok)...)
	until := minimal().imp("state_put_until").body(exportProcess, cat(i32c(0), i32c(0), i32c(0), i32c(0), i64c(5), []byte{0x10, 0}, ok)...)
	alone := minimal().imp("timer_set").body(exportProcess, cat(i32c(0), i64c(1), i32c(0), i32c(0), []byte{0x10, 0}, ok)...)
	for name, test := range map[string]struct {
		b      *builder
		limits dataflow.Limits
		want   string
	}{
		"unknown kind":     {set(2, 1, 0, 1), dataflow.Limits{}, "timer of kind 2: 0 is event time"},
		"negative kind":    {set(-1, 1, 0, 1), dataflow.Limits{}, "timer of kind 4294967295"},
		"kind of an index": {cleared, dataflow.Limits{}, "timer of kind 7"},
		"key beyond":       {set(0, 1, -1, 1), dataflow.Limits{}, "key of a timer: 1 bytes at 4294967295 are not in its memory"},
		"key too long":     {set(0, 1, 0, 4097), dataflow.Limits{}, "key of a timer of 4097 bytes, at most 4096"},
		"nobody to call":   {alone, dataflow.Limits{}, "does not export weir_timer"},
		"empty state key":  {until, dataflow.Limits{}, "state key is empty"},
		"too many":         {setsTimers(ok, 1, 2, 3), dataflow.Limits{Timers: 2}, "more than 2 timers (limits.timers)"},
		"too large":        {setsTimers(ok, 1, 2, 3), dataflow.Limits{State: 150}, "timers of more than 150 bytes (limits.state)"},
	} {
		in, err := timedInstance(t, test.b.wasm(), test.limits, nil, false)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err = in.Process(batch(1, "abc"), nothing)
		var guest *dataflow.GuestError
		if !errors.As(err, &guest) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	in, err := timedInstance(t, setsTimers(ok, 5, 5, 6).wasm(), dataflow.Limits{Timers: 2}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Process(batch(1, "abc"), nothing); err != nil {
		t.Errorf("the same timer twice counts twice: %v", err)
	}
}

// TestCallsOfTimersFail as others do: a trap, a status, an endless loop.
func TestCallsOfTimersFail(t *testing.T) {
	for want, code := range map[string][]byte{
		"trapped":                      {0x00},
		"weir_timer returned status 3": i32c(3),
		"ran longer than its limit":    {0x03, 0x40, 0x0c, 0, 0x0b, 0x41, 0},
	} {
		in, err := timedInstance(t, setsTimers(code, 5).wasm(), dataflow.Limits{}, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Process(batch(1, "abc"), nothing); err != nil {
			t.Fatal(err)
		}
		in.Advance(dataflow.Moment{Watermark: 5})
		c, due := in.Next()
		if !due || c.Kind != dataflow.CallEventTimer || c.At != 5 || string(c.Key) != "k" {
			t.Fatalf("%+v, %v", c, due)
		}
		var guest *dataflow.GuestError
		if err := in.Call(c, nothing); !errors.As(err, &guest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := in.Freeze(true); err == nil {
			t.Error("an instance that has failed is frozen")
		}
		if _, err := in.Copy(); err == nil {
			t.Error("an instance that has failed is copied")
		}
	}
}

// TestOrderOfTimers: by time, which may be negative, then key.
func TestOrderOfTimers(t *testing.T) {
	in, err := timedInstance(t, setsTimers(ok).wasm(), dataflow.Limits{}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	in.fuel.Set(1 << 40)
	for _, at := range []int64{300, -1 << 63, 5, -7, 1<<63 - 1, 0, 255, 256} {
		for _, key := range []string{"b", "", "a\xff", "a"} {
			in.setTimer(appendTimer(nil, timerEvent, at, []byte(key)))
			in.timers.count++
		}
	}
	var got []string
	in.Advance(dataflow.Moment{Watermark: 255})
	for c, due := in.Next(); due; c, due = in.Next() {
		got = append(got, fmt.Sprintf("%d%q", c.At, c.Key))
	}
	var want []string
	for _, at := range []int64{-1 << 63, -7, 0, 5, 255} {
		for _, key := range []string{"", "a", "a\xff", "b"} {
			want = append(want, fmt.Sprintf("%d%q", at, key))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("have %q\nwant %q", got, want)
	}
	if in.timers.count != 12 {
		t.Errorf("%d timers are left", in.timers.count)
	}
	copied, err := in.Copy()
	all, failed := in.Freeze(true)
	if err != nil || failed != nil || equalState(copied, all) != nil {
		t.Errorf("a copy differs from a full snapshot: %v, %v, %v", err, failed, equalState(copied, all))
	}
}

// TestTimersAreInherited by a new version of a module, and keys expire in it as in the old one. Snapshots hold changes.
func TestTimersAreInherited(t *testing.T) {
	wasm := setsTimers(ok, 50, 60, 70).wasm()
	in, err := timedInstance(t, wasm, dataflow.Limits{}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	var store memoryStore
	freeze := func() (spaces string) {
		t.Helper()
		changes, err := in.Freeze(false)
		if err != nil {
			t.Fatal(err)
		}
		store.save(changes)
		for _, c := range changes {
			if c.Space == dataflow.SpaceTimer && c.Value == nil {
				spaces += "-"
			} else if c.Space == dataflow.SpaceTimer {
				spaces += "+"
			}
		}
		return spaces
	}
	if err := in.Process(batch(1, "abc"), nothing); err != nil {
		t.Fatal(err)
	}
	in.fuel.Set(1 << 40)
	in.put([]byte("expires"), []byte("v"))
	in.keyed.values["expires"].expires, in.keyed.values["expires"].until = true, 65
	in.setTimer(appendTimer(nil, timerExpiry, 65, []byte("expires")))
	in.put([]byte("stays"), []byte("w"))
	if s := freeze(); s != "++++" {
		t.Errorf("changes %s", s)
	}
	in.Advance(dataflow.Moment{Watermark: 50})
	for c, due := in.Next(); due; c, due = in.Next() {
		if err := in.Call(c, nothing); err != nil {
			t.Fatal(err)
		}
	}
	if s := freeze(); len(s) != 2 || !strings.Contains(s, "-") || !strings.Contains(s, "+") { // a timer is gone, the watermark has moved
		t.Errorf("changes %s", s)
	}
	if s := freeze(); s != "" {
		t.Errorf("changes %s where there are none", s)
	}
	for _, fresh := range []bool{false, true} {
		again, err := timedInstance(t, wasm, dataflow.Limits{}, store.read, fresh)
		if err != nil {
			t.Fatal(err)
		}
		if again.timers.watermark != 50 || again.timers.count != 2 {
			t.Errorf("fresh %v: watermark %d, %d timers", fresh, again.timers.watermark, again.timers.count)
		}
		again.Advance(dataflow.Moment{Watermark: 65})
		if c, due := again.Next(); !due || c.At != 60 {
			t.Errorf("fresh %v: %+v, %v", fresh, c, due)
		}
		if _, there := again.keyed.get([]byte("expires")); there {
			t.Errorf("fresh %v: a key has not expired", fresh)
		}
		if v, there := again.keyed.get([]byte("stays")); !there || string(v) != "w" {
			t.Errorf("fresh %v: stays is %q, %v", fresh, v, there)
		}
	}
}

// TestTimersOutlastVersionsWithoutTime: a module that knows nothing of time keeps the timers of the version before it, asks
// for no ticks on their account, and the version after it has them.
func TestTimersOutlastVersionsWithoutTime(t *testing.T) {
	timed, without := setsTimers(ok).wasm(), minimal().wasm()
	in, err := timedInstance(t, timed, dataflow.Limits{}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	in.fuel.Set(1 << 40)
	in.setTimer(appendTimer(nil, timerProcessing, 50, []byte("k")))
	in.timers.count++
	for i, version := range [][]byte{without, timed} {
		changes, err := in.Freeze(true)
		if err != nil {
			t.Fatal(err)
		}
		var store memoryStore
		store.save(changes)
		if in, err = timedInstance(t, version, dataflow.Limits{}, store.read, true); err != nil {
			t.Fatal(err)
		}
		if at, set := in.NextTick(); set != (i == 1) || set && at != 50 {
			t.Errorf("version %d: a tick at %d, %v", i, at, set)
		}
		if in.timers.count != 1 {
			t.Errorf("version %d: %d timers", i, in.timers.count)
		}
	}
}

// TestExpiredKeysMakeRoom: some at a time when the watermark moves, all of them when there is no room.
func TestExpiredKeysMakeRoom(t *testing.T) {
	const keys, each = maxExpired + 500, keyOverhead + 9
	in, err := timedInstance(t, setsTimers(ok).wasm(), dataflow.Limits{State: (keys + 1) * (each + timerHead)}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	in.fuel.Set(1 << 50)
	key := func(i int) []byte { return fmt.Appendf(nil, "key%06d", i) }
	for i := range keys {
		in.put(key(i), nil)
		v := in.keyed.values[string(key(i))]
		v.expires, v.until = true, 10
		in.setTimer(appendTimer(nil, timerExpiry, 10, key(i)))
	}
	in.Advance(dataflow.Moment{Watermark: 9})
	if n := len(in.keyed.values); n != keys {
		t.Errorf("%d keys before their time", n)
	}
	in.Advance(dataflow.Moment{Watermark: 10})
	if n := len(in.keyed.values); n != keys-maxExpired {
		t.Errorf("%d keys in memory, want %d: a step has a bound", n, keys-maxExpired)
	}
	for _, i := range []int{0, keys - 1} {
		if _, there := in.keyed.get(key(i)); there {
			t.Errorf("key %d is there", i)
		}
	}
	if found, _ := in.keyed.scan(nil, "", "", 1<<20); len(found) != 0 {
		t.Errorf("a scan finds %d bytes of expired keys", len(found))
	}
	in.limits.state = in.keyed.bytes
	in.put([]byte("new one !"), nil)
	if n := len(in.keyed.values); n != 1 {
		t.Errorf("%d keys in memory when there was no room", n)
	}
	if len(in.timers.set.values) != 0 {
		t.Errorf("%d expiries are left", len(in.timers.set.values))
	}
}

// TestTimersWithoutEventTime: the operator says once that nothing will call them; with event time it says nothing.
func TestTimersWithoutEventTime(t *testing.T) {
	for none, want := range map[bool]int{true: 1, false: 0} {
		var e ear
		wasm := setsTimers(ok, 10, 20).wasm()
		h := newHost(t, Options{Modules: shelf(wasm), Observer: &e})
		in, err := h.newInstance(context.Background(), dataflow.OperatorSpec{Name: "timed", Task: "t", Digest: Digest(wasm), NoEventTime: none}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := in.Process(batch(1, "x"), nothing); err != nil {
				t.Fatal(err)
			}
		}
		if len(e.lines) != want || want == 1 && !strings.Contains(e.lines[0], "at the end of the input") {
			t.Errorf("no event time: %v, said %q", none, e.lines)
		}
		closeInstance(t, in)
	}
}

// TestConfigurationOfTheHost: keys that the job file does not set.
func TestConfigurationOfTheHost(t *testing.T) {
	spec := dataflow.OperatorSpec{Config: map[string]string{"b": "1", "a": ""}}
	for key, want := range map[string]string{configKeys: "a\nb", configEventTime: "watermarks", "b": "1", "a": ""} {
		if v, ok := configValue(spec, key); !ok || v != want {
			t.Errorf("%s: %q, %v", key, v, ok)
		}
	}
	if v, ok := configValue(spec, "c"); ok {
		t.Errorf("c: %q", v)
	}
	if v, ok := configValue(dataflow.OperatorSpec{NoEventTime: true}, configEventTime); !ok || v != "none" {
		t.Errorf("%q, %v", v, ok)
	}
	if v, ok := configValue(dataflow.OperatorSpec{}, configKeys); !ok || v != "" {
		t.Errorf("%q, %v", v, ok)
	}
}
