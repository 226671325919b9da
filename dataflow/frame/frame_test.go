package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEveryFlippedBitIsFound(t *testing.T) {
	for _, s := range samples() {
		whole := Append(nil, s.header, s.payload)
		for at := range whole {
			for bit := range 8 {
				b := bytes.Clone(whole)
				b[at] ^= 1 << bit
				if _, _, err := Decode(b); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
					t.Fatalf("%s: bit %d of byte %d flipped: %v", s.name, bit, at, err)
				}
			}
		}
	}
}

func TestEveryCutIsFound(t *testing.T) {
	for _, s := range samples() {
		whole := Append(nil, s.header, s.payload)
		for n := range whole {
			if _, _, err := Decode(whole[:n]); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s cut to %d of %d bytes: %v", s.name, n, len(whole), err)
			}
		}
		if _, _, err := Decode(append(whole, 0)); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%s with a byte more: %v", s.name, err)
		}
	}
}

func TestAppendKeepsWhatIsThere(t *testing.T) {
	s := samples()[0]
	b := Append([]byte("before"), s.header, s.payload)
	if string(b[:6]) != "before" {
		t.Fatalf("starts with %q", b[:6])
	}
	if _, _, err := Decode(b[6:]); err != nil {
		t.Error(err)
	}
}

// reseal makes the header's own checksum right again after a change.
func reseal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

// TestWhatAHeaderMustNotSay holds frames whose checksums are right and that no sender makes.
func TestWhatAHeaderMustNotSay(t *testing.T) {
	data, mark := payloadOf(records()...), AppendMark(nil, Mark{Kind: Barrier, Value: 1})
	build := func(h Header, payload []byte, change func(b []byte)) []byte {
		h.After = h.Before.Add(payload)
		b := Append(nil, h, payload)
		if change != nil {
			change(b)
		}
		return reseal(b)
	}
	for _, c := range []struct {
		name string
		b    []byte
		is   error
		says string
	}{
		{"empty", nil, ErrCorrupt, "less than a header"},
		{"magic", build(Header{Kind: Data, Count: 3, First: 1}, data, func(b []byte) { b[0] = 'X' }), ErrCorrupt, "starts with byte 0x58"},
		{"newer version", build(Header{Kind: Data, Count: 3, First: 1}, data, func(b []byte) { b[1] = 2 }), ErrVersion, "2, this build reads 1"},
		{"flags", build(Header{Kind: Data, Count: 3, First: 1}, data, func(b []byte) { b[3] = 1 }), ErrCorrupt, "unknown flags"},
		{"kind 0", build(Header{Count: 3, First: 1}, data, nil), ErrCorrupt, "unknown kind"},
		{"kind 7", build(Header{Kind: End + 1, Count: 3, First: 1}, data, nil), ErrCorrupt, "unknown kind"},
		{"no items", build(Header{Kind: Data, First: 1}, nil, nil), ErrCorrupt, "data frame of 0 items"},
		{"two marks", build(Header{Kind: Barrier, Count: 2, First: 1}, mark, nil), ErrCorrupt, "barrier frame of 2 items"},
		{"number 0", build(Header{Kind: Data, Count: 3}, data, nil), ErrCorrupt, "first number 0"},
		{"numbers run over", build(Header{Kind: Data, Count: 3, First: math.MaxUint64 - 2}, data, nil), ErrCorrupt, "first number"},
		{"too large", build(Header{Kind: Data, Count: 1, First: 1}, make([]byte, MaxPayload+1), nil), ErrCorrupt, "at most"},
		{"fewer records", build(Header{Kind: Data, Count: 4, First: 1}, data, nil), ErrCorrupt, "3 records, header says 4"},
		{"more records", build(Header{Kind: Data, Count: 2, First: 1}, data, nil), ErrCorrupt, "3 records, header says 2"},
		{"half a record", build(Header{Kind: Data, Count: 3, First: 1}, data[:len(data)-1], nil), ErrCorrupt, "record of"},
		{"another mark", build(Header{Kind: Tick, Count: 1, First: 1}, mark, nil), ErrCorrupt, "tick frame with a barrier"},
		{"mark of records", build(Header{Kind: Barrier, Count: 1, First: 1}, data, nil), ErrCorrupt, "mark"},
	} {
		_, _, err := Decode(c.b)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %v saying %q", c.name, err, c.is, c.says)
		}
	}
}

func TestLastNumberIsAllowed(t *testing.T) {
	h := sealed(Header{Kind: Data, First: math.MaxUint64 - 3}, 0, payloadOf(records()...), 3)
	got, _, err := Decode(Append(nil, h, payloadOf(records()...)))
	if err != nil || got.Last() != math.MaxUint64-1 {
		t.Errorf("last %d, %v", got.Last(), err)
	}
}

func TestLargestFrame(t *testing.T) {
	small := Record{Value: make([]byte, TargetSize-1-recordFixed)}
	large := Record{Value: make([]byte, MaxRecord-recordFixed)}
	if small.Check() != nil || large.Check() != nil {
		t.Fatal(small.Check(), large.Check())
	}
	payload := payloadOf(small, large)
	if _, _, err := Decode(Append(nil, sealed(Header{Kind: Data, First: 1}, 0, payload, 2), payload)); err != nil {
		t.Error(err)
	}
}

// TestSumDoesNotDependOnCuts is what lets receivers compare however frames were cut.
func TestSumDoesNotDependOnCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := rapid.SliceOf(rapid.Byte()).Draw(t, "items")
		start := Sum(rapid.Uint64().Draw(t, "start"))
		want, sum := start.Add(items), start
		for len(items) > 0 {
			n := rapid.IntRange(0, len(items)).Draw(t, "cut")
			sum, items = sum.Add(items[:n]), items[n:]
			if n == 0 {
				sum, items = sum.Add(items), nil
			}
		}
		if sum != want {
			t.Fatalf("%x in pieces, %x whole", sum, want)
		}
	})
}

func TestSumTellsOrderLengthAndZeros(t *testing.T) {
	if Sum(0).Add(nil) != 0 {
		t.Error("the sum of nothing is not zero")
	}
	if Sum(0).Add([]byte{0}) == 0 || Sum(0).Add([]byte{0, 0}) == Sum(0).Add([]byte{0}) {
		t.Error("zero bytes do not count")
	}
	if Sum(0).Add([]byte("ab")) == Sum(0).Add([]byte("ba")) {
		t.Error("order does not count")
	}
	if got := Sum(math.MaxUint32 << 32).Add([]byte("x")); got>>32 != 0 {
		t.Errorf("the length does not wrap: %x", got)
	}
	// Pinned, since receivers compare across versions of this program: CRC-32C of 123456789.
	if got := Sum(0).Add([]byte("123456789")); got != 9<<32|0xe3069283 {
		t.Errorf("%x", got)
	}
}

func genRecord() *rapid.Generator[Record] {
	return rapid.Custom(func(t *rapid.T) Record {
		var headers []byte
		for range rapid.IntRange(0, 3).Draw(t, "headers") {
			name := rapid.StringN(0, 8, 20).Draw(t, "name")
			headers, _ = AppendHeader(headers, name, rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "header"))
		}
		return Record{
			Time: rapid.Int64().Draw(t, "time"), Key: rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "key"),
			Headers: headers, Value: rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "value"),
		}
	})
}

func sameRecord(a, b Record) bool {
	return a.Time == b.Time && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Headers, b.Headers) && bytes.Equal(a.Value, b.Value)
}

func TestRecordsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := rapid.SliceOfN(genRecord(), 0, 12).Draw(t, "records")
		payload := payloadOf(rs...)
		if n, err := Count(payload); n != len(rs) || err != nil {
			t.Fatalf("count %d, %v; want %d", n, err, len(rs))
		}
		rest, size := payload, 0
		for i, want := range rs {
			at, err := Skip(payload, i)
			if err != nil || at != size {
				t.Fatalf("skip %d: %d, %v; want %d", i, at, err, size)
			}
			var got Record
			if got, rest, err = Next(rest); err != nil || !sameRecord(got, want) {
				t.Fatalf("record %d: %+v, %v; want %+v", i, got, err, want)
			}
			size += want.Size()
		}
		if len(rest) != 0 {
			t.Fatalf("%d bytes left", len(rest))
		}
		if _, err := Skip(payload, len(rs)+1); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("skip past the end: %v", err)
		}
	})
}

// TestTrimming is what a receiver does with a frame of which it has the first items: the sum after
// those must meet its own, the rest must lead to the frame's.
func TestTrimming(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := rapid.SliceOfN(genRecord(), 1, 12).Draw(t, "records")
		payload := payloadOf(rs...)
		has := rapid.IntRange(0, len(rs)).Draw(t, "has")
		h := sealed(Header{Kind: Data, First: 10}, Sum(5), payload, len(rs))
		at, err := Skip(payload, has)
		if err != nil {
			t.Fatal(err)
		}
		if h.Before.Add(payload[:at]).Add(payload[at:]) != h.After {
			t.Fatal("the parts do not lead to the sum of the whole")
		}
		trimmed := Header{Kind: Data, First: h.First + uint64(has), Count: h.Count - uint32(has), Before: h.Before.Add(payload[:at]), After: h.After}
		_, rest, err := Decode(Append(nil, trimmed, payload[at:]))
		if has == len(rs) {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("a frame of no items: %v", err)
			}
			return
		}
		if err != nil || trimmed.Last() != h.Last() || !bytes.Equal(rest, payloadOf(rs[has:]...)) {
			t.Fatalf("trimmed to %+v: %v", trimmed, err)
		}
	})
}

// TestDecodedSlicesCannotGrowIntoTheNext guards those that append to a key or value.
func TestDecodedSlicesCannotGrowIntoTheNext(t *testing.T) {
	payload := payloadOf(records()...)
	want := bytes.Clone(payload)
	r, _, err := Next(payload)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{r.Key, r.Headers, r.Value} {
		_ = append(b, "overwritten"...)
	}
	if !bytes.Equal(payload, want) {
		t.Error("appending to a part of a record changed the payload")
	}
}

func TestHeaders(t *testing.T) {
	r := records()[0]
	if got := string(r.Header("topic")); got != "plant/a/1" {
		t.Errorf("topic %q", got)
	}
	if got := r.Header(""); got == nil || len(got) != 0 {
		t.Errorf("empty header %v", got)
	}
	if r.Header("other") != nil || (Record{}).Header("topic") != nil {
		t.Error("a header that is not there")
	}
	for n := range r.Headers {
		cut := Record{Headers: r.Headers[:n]}
		if got := cut.Header("topic"); got != nil && string(got) != "plant/a/1" {
			t.Errorf("headers cut to %d bytes: topic %q", n, got)
		}
	}
	for _, c := range []struct {
		name  string
		value []byte
		ok    bool
	}{
		{strings.Repeat("n", 255), make([]byte, math.MaxUint16), true},
		{strings.Repeat("n", 256), nil, false},
		{"n", make([]byte, math.MaxUint16+1), false},
	} {
		got, ok := AppendHeader([]byte("x"), c.name, c.value)
		if ok != c.ok || !ok && string(got) != "x" {
			t.Errorf("header of %d and %d bytes: %v", len(c.name), len(c.value), ok)
		}
	}
}

// A key that is too long is refused on reading too: it came from a guest, or the bytes are damaged.
func TestLongKeyIsRefused(t *testing.T) {
	b := AppendRecord(nil, Record{Key: make([]byte, MaxKey+1)})
	if _, _, err := Next(b); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "key of 8193 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestRecordLimits(t *testing.T) {
	for _, c := range []struct {
		r    Record
		says string
	}{
		{Record{}, ""},
		{Record{Key: make([]byte, MaxKey), Headers: make([]byte, math.MaxUint16)}, ""},
		{Record{Value: make([]byte, MaxRecord-recordFixed)}, ""},
		{Record{Key: make([]byte, MaxKey+1)}, "key of 8193 bytes, at most 8192"},
		{Record{Headers: make([]byte, math.MaxUint16+1)}, "headers of 65536 bytes, at most 65535"},
		{Record{Value: make([]byte, MaxRecord-recordFixed+1)}, "record of 262145 bytes, at most 262144"},
	} {
		err := c.r.Check()
		if (err == nil) != (c.says == "") || err != nil && err.Error() != c.says {
			t.Errorf("%v, want %q", err, c.says)
		}
		if err == nil {
			if got, rest, err := Next(AppendRecord(nil, c.r)); err != nil || len(rest) > 0 || !sameRecord(got, c.r) {
				t.Errorf("a record at the limit does not come back: %v", err)
			}
		}
	}
}

func TestMarks(t *testing.T) {
	for _, m := range []Mark{
		{Kind: Barrier, Value: 7}, {Kind: Watermark, Value: math.MaxUint64}, {Kind: Tick}, {Kind: End},
		{Kind: Control, Value: 1, Body: []byte("x")}, {Kind: Control},
	} {
		got, err := DecodeMark(AppendMark(nil, m))
		if err != nil || got.Kind != m.Kind || got.Value != m.Value || !bytes.Equal(got.Body, m.Body) {
			t.Errorf("%+v came back as %+v, %v", m, got, err)
		}
	}
	for _, b := range [][]byte{
		nil, make([]byte, 8), AppendMark(nil, Mark{Kind: Data}), AppendMark(nil, Mark{}), AppendMark(nil, Mark{Kind: End + 1}),
		AppendMark(nil, Mark{Kind: Barrier, Body: []byte("x")}),
	} {
		if m, err := DecodeMark(b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%x read as %+v, %v", b, m, err)
		}
	}
}
