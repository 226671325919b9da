package frame

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// sample is a frame whose bytes are pinned by testdata/NAME.hex.
type sample struct {
	name    string
	header  Header
	payload []byte
}

func records() []Record {
	headers, _ := AppendHeader(nil, "topic", []byte("plant/a/1"))
	headers, _ = AppendHeader(headers, "", nil)
	return []Record{
		{Time: 1_700_000_000_000, Key: []byte("sensor-1"), Headers: headers, Value: []byte(`{"v":1.5}`)},
		{Time: -1},
		{Time: 1<<63 - 1, Key: []byte{0, 0xff}, Value: bytes.Repeat([]byte{7}, 20)},
	}
}

func payloadOf(rs ...Record) []byte {
	var p []byte
	for _, r := range rs {
		p = AppendRecord(p, r)
	}
	return p
}

// sealed is the header with checksum and count of a payload that starts after before.
func sealed(h Header, before Sum, payload []byte, count int) Header {
	h.Before, h.After, h.Count = before, before.Add(payload), uint32(count)
	return h
}

func samples() []sample {
	all := []sample{}
	add := func(name string, h Header, payload []byte, count int) {
		all = append(all, sample{name, sealed(h, Sum(0).Add([]byte("earlier items")), payload, count), payload})
	}
	add("data", Header{Kind: Data, Generation: 2, Incarnation: 3, First: 1001, Epoch: 41, Watermark: 1_699_999_999_999}, payloadOf(records()...), 3)
	for kind, m := range map[Kind]Mark{
		Barrier:   {Kind: Barrier, Value: 42},
		Watermark: {Kind: Watermark, Value: 1_700_000_000_000},
		Tick:      {Kind: Tick, Value: 1_700_000_000_001},
		Control:   {Kind: Control, Value: 9, Body: []byte(`{"abort":42}`)},
		End:       {Kind: End},
	} {
		add(kind.String(), Header{Kind: kind, Generation: 1, Incarnation: 1, First: 1, Epoch: 42, Watermark: NoWatermark}, AppendMark(nil, m), 1)
	}
	return all
}

func hexLines(b []byte) string {
	var s strings.Builder
	for len(b) > 0 {
		n := min(16, len(b))
		fmt.Fprintf(&s, "%x\n", b[:n])
		b = b[n:]
	}
	return s.String()
}

// TestFormatIsPinned fails when the bytes of the format change in either direction.
func TestFormatIsPinned(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			path := filepath.Join("testdata", s.name+".hex")
			got := Append(nil, s.header, s.payload)
			if *update {
				if err := os.WriteFile(path, []byte(hexLines(got)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("encoded\n%swant\n%s", hexLines(got), text)
			}
			h, payload, err := Decode(want)
			if err != nil || h != s.header || !bytes.Equal(payload, s.payload) {
				t.Errorf("decoded %+v, %x, %v; want %+v, %x", h, payload, err, s.header, s.payload)
			}
		})
	}
}
