package nats

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func blockRecord(seq uint64, data int) []byte {
	b := make([]byte, blockHeader+data+blockChecksum)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	binary.LittleEndian.PutUint64(b[blockSeqAt:], seq)
	return b
}

func TestImplausibleSequencesAreFound(t *testing.T) {
	for _, test := range []struct {
		name string
		seqs []uint64
		bad  bool
	}{
		{"none", nil, false},
		{"with gaps", []uint64{5, 6, 900}, false},
		{"beginning high", []uint64{1 << 50, 1<<50 + 1}, false},
		{"flipped high", []uint64{5, 6, 7 | 1<<40, 8}, true},
		{"first flipped high", []uint64{1<<50 ^ 1<<49, 1<<50 + 1}, false},
		{"first flipped", []uint64{1, 1<<50 + 1}, true},
		{"erased", []uint64{5, 6 | flagErased, 7}, false},
		{"deletion elsewhere", []uint64{5, 1<<40 | flagDeletion, 6}, false},
		{"going back", []uint64{5, 4, 1 << 20}, false},
	} {
		var b []byte
		for i, seq := range test.seqs {
			b = append(b, blockRecord(seq, 10*i)...)
		}
		if err := checkBlock(bytes.NewReader(b), int64(len(b))); (err != nil) != test.bad {
			t.Errorf("%s: %v", test.name, err)
		}
		if err := checkBlock(bytes.NewReader(b), int64(len(b))/2); err != nil && !test.bad {
			t.Errorf("half of %s: %v", test.name, err)
		}
	}
}

func FuzzBlocks(f *testing.F) {
	f.Add(append(blockRecord(1, 0), blockRecord(2, 30)...))
	f.Add([]byte("cmp and what is no record after it"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// It may say what it likes, but must come to an end.
		_ = checkBlock(bytes.NewReader(b), int64(len(b)))
	})
}
