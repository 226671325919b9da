package frame

import (
	"bytes"
	"errors"
	"testing"
)

// FuzzDecode wants that what decodes encodes to the same bytes, and that all else is an error of the
// known kinds.
func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		f.Add(Append(nil, s.header, s.payload), false)
		f.Add(Append(nil, s.header, s.payload), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, sealHeader bool) {
		if sealHeader && len(b) >= HeaderSize {
			// Lets the fuzzer get past the checksum of the header.
			b = reseal(bytes.Clone(b))
		}
		h, payload, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if got := Append(nil, h, payload); !bytes.Equal(got, b) {
			t.Fatalf("%x decoded and encoded is %x", b, got)
		}
		if h.Last() < h.First {
			t.Fatalf("items %d to %d", h.First, h.Last())
		}
	})
}

// FuzzNext walks any bytes as a payload.
func FuzzNext(f *testing.F) {
	f.Add(payloadOf(records()...))
	f.Fuzz(func(t *testing.T, payload []byte) {
		n, err := Count(payload)
		var again []byte
		for rest := payload; len(rest) > 0; {
			r, left, errNext := Next(rest)
			if errNext != nil {
				if err == nil || !errors.Is(errNext, ErrCorrupt) {
					t.Fatalf("Next %v, Count %v", errNext, err)
				}
				break
			}
			if r.Size() != len(rest)-len(left) {
				t.Fatalf("record of %d bytes took %d", r.Size(), len(rest)-len(left))
			}
			for name := range 3 {
				r.Header("topic"[:name])
			}
			again = AppendRecord(again, r)
			rest = left
		}
		if !bytes.HasPrefix(payload, again) || err == nil && len(again) != len(payload) {
			t.Fatalf("%x walked and encoded is %x", payload, again)
		}
		if at, skipErr := Skip(payload, n); skipErr != nil || at != len(again) {
			t.Fatalf("Skip of %d records: %d, %v; Next took %d bytes", n, at, skipErr, len(again))
		}
	})
}

// FuzzDecodeMark wants that what decodes encodes to the same bytes.
func FuzzDecodeMark(f *testing.F) {
	f.Add(AppendMark(nil, Mark{Kind: Control, Value: 3, Body: []byte("body")}))
	f.Add(AppendMark(nil, Mark{Kind: Barrier, Value: 1 << 60}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMark(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if got := AppendMark(nil, m); !bytes.Equal(got, b) {
			t.Fatalf("%x decoded and encoded is %x", b, got)
		}
	})
}
