package dataflow

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// entrySample is a log entry: its bytes, written down, and what they say.
type entrySample struct {
	name    string
	hex     string
	encoded []byte
	want    any
}

func (e ingestEntry) encode() []byte {
	var b []byte
	if e.marks != nil {
		b = append(binary.AppendUvarint(nil, uint64(len(e.marks))), e.marks...)
	}
	return append(append(b, ingestHead(e.stamp, e.count, e.ids, e.cursor)...), e.payload...)
}

// decoders gives each kind of entry its decoder.
var decoders = map[string]func([]byte) (any, error){
	"ingest":  func(b []byte) (any, error) { return decodeIngest(b) },
	"marked":  func(b []byte) (any, error) { return decodeMarked(b) },
	"barrier": func(b []byte) (any, error) { return decodeBarrier(b) },
	"order":   func(b []byte) (any, error) { return decodeOrder(b) },
	"control": func(b []byte) (any, error) { return decodeControl(b) },
	"handed":  func(b []byte) (any, error) { return decodeHanded(b) },
	"reserve": func(b []byte) (any, error) { return decodeReserve(b) },
	"cut":     func(b []byte) (any, error) { return decodeCut(b) },
	"sink":    func(b []byte) (any, error) { return decodeSink(b) },
	"tick":    func(b []byte) (any, error) { return decodeTick(b) },
	"replay":  func(b []byte) (any, error) { return decodeReplay(b) },
	"give up": func(b []byte) (any, error) { return decodeGiveUp(b) },
}

func encodeAny(e any) []byte {
	switch e := e.(type) {
	case ingestEntry:
		return e.encode()
	case barrierEntry:
		return e.encode()
	case orderEntry:
		return e.encode(nil)
	case abs.Event:
		return encodeControl(e)
	case handedEntry:
		return e.encode()
	case reserveEntry:
		return e.encode()
	case sinkEntry:
		return e.encode()
	case cutEntry:
		return e.encode()
	case tickEntry:
		return e.encode()
	case replayEntry:
		return e.encode()
	case giveUpEntry:
		return e.encode()
	}
	panic("an entry of no kind")
}

func entrySamples() []entrySample {
	letter := frame.AppendRecord(nil, frame.Record{Key: []byte("k"), Value: []byte("v")})
	sample := func(name, hexed string, e any) entrySample { return entrySample{name, hexed, encodeAny(e), e} }
	return []entrySample{
		sample("ingest", "0068e5cf8b010000"+"02"+"04"+"01610162"+"02"+"3432"+"7061796c6f6164",
			ingestEntry{1700000000000, 2, []byte("\x01a\x01b"), []byte("42"), []byte("payload"), nil}),
		sample("ingest", "ffffffffffffffff"+"00"+"00"+"00", ingestEntry{-1, 0, []byte{}, []byte{}, []byte{}, nil}),
		sample("marked", "0e"+"01058877665544332211"+"0201fe01"+"0068e5cf8b010000"+"01"+"00"+"00"+"70",
			ingestEntry{1700000000000, 1, []byte{}, []byte{}, []byte("p"), appendMarks(nil, []Mark{{Key: 5, Value: 0x1122334455667788}, {Drop: true, Key: 1, Value: 255}})}),
		sample("barrier", "07"+"00", barrierEntry{7, false}),
		sample("barrier", "ac02"+"01", barrierEntry{300, true}),
		sample("order", "0068e5cf8b010000"+"05"+"8094ebdc03"+"c801", orderEntry{1700000000000, 5, 1_000_000_000, 200}),
		sample("control", "03"+"09", abs.Event{Kind: abs.OnAbort, Epoch: 9}),
		sample("control", "05"+"8001"+"67617465", abs.Event{Kind: abs.OnDetach, Epoch: 128, Agent: "gate"}),
		sample("handed", "02"+"d804"+"8877665544332211", handedEntry{2, 600, 0x1122334455667788}),
		sample("reserve", "01"+"8180808080808080"+"8001", reserveEntry{1, 1 | 1<<63}),
		sample("cut", "e807"+"07", cutEntry{1000, 7}),
		sample("sink", "01"+"8020"+"e807", sinkEntry{1, 4096, 1000}),
		sample("tick", "0068e5cf8b010000"+"01", tickEntry{1700000000000, true}),
		sample("tick", "ffffffffffffffff"+"00", tickEntry{-1, false}),
		sample("replay", "0068e5cf8b010000"+"05"+"312d322d33"+hex.EncodeToString(letter), replayEntry{1700000000000, Letter{Key: "1-2-3", Record: letter}}),
		sample("give up", "90a10f"+"0c"+"74726170", giveUpEntry{250000, 12, "trap"}),
	}
}

// TestEntriesGolden pins the format: logs outlive versions.
func TestEntriesGolden(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range entrySamples() {
		seen[s.name] = true
		mustEqual(t, s.name, hex.EncodeToString(s.encoded), s.hex)
		got, err := decoders[s.name](s.encoded)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if !reflect.DeepEqual(got, s.want) {
			t.Fatalf("%s: got %+v, want %+v", s.name, got, s.want)
		}
	}
	for name := range decoders {
		if !seen[name] {
			t.Errorf("no sample of a %s entry", name)
		}
	}
}

// TestEntriesCutOff: an entry that ends before its last fixed field is an error.
func TestEntriesCutOff(t *testing.T) {
	tail := map[string]int{"ingest": len("payload"), "marked": len("p"), "control": len("gate"), "give up": len("trap")}
	for _, s := range entrySamples() {
		whole := len(s.encoded)
		if rest, open := tail[s.name]; open {
			whole -= min(rest, len(s.encoded))
		}
		for n := range whole {
			if s.name == "control" && n >= 2 {
				continue // what is left is a shorter entry
			}
			if _, err := decoders[s.name](s.encoded[:n]); !errors.Is(err, errEntry) {
				t.Errorf("%s cut to %d bytes of %d: %v", s.name, n, len(s.encoded), err)
			}
		}
	}
}

func TestEntriesRefuseWhatIsOutOfRange(t *testing.T) {
	huge := []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
	over := append(bytes.Clone(huge[:9]), 0x7f)
	stamp := make([]byte, 8)
	for _, c := range []struct {
		name string
		data []byte
	}{
		{"ingest", append(stamp, huge...)},
		{"ingest", append(append(bytes.Clone(stamp), 1), huge...)},
		{"ingest", append(append(bytes.Clone(stamp), 1, 0), huge...)},
		{"order", append(stamp, huge...)},
		{"order", append(append(bytes.Clone(stamp), 1), over...)},
		{"order", append(append(bytes.Clone(stamp), 1, 1), huge...)},
		{"handed", huge},
		{"reserve", huge},
		{"sink", huge},
		{"give up", append([]byte{1}, huge...)},
		{"barrier", over},
	} {
		if e, err := decoders[c.name](c.data); !errors.Is(err, errEntry) {
			t.Errorf("%s of %x: %+v, %v", c.name, c.data, e, err)
		}
	}
	if e, err := decodeReserve(append([]byte{1}, huge...)); err != nil || e.number != math.MaxUint64 {
		t.Errorf("the highest number: %v, %v", e, err)
	}
}

// FuzzEntries wants of every decoder that what decodes says the same when encoded and decoded again,
// and that all else is an error of the known kind.
func FuzzEntries(f *testing.F) {
	for _, s := range entrySamples() {
		f.Add(s.encoded)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, decode := range decoders {
			e, err := decode(bytes.Clone(b))
			if err != nil {
				if !errors.Is(err, errEntry) {
					t.Fatalf("%s: error of another kind: %v", name, err)
				}
				continue
			}
			again, err := decode(encodeAny(e))
			if err != nil || !reflect.DeepEqual(again, e) {
				t.Fatalf("%s: %+v became %+v, %v", name, e, again, err)
			}
		}
	})
}
