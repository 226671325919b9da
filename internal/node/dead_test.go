package node

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/storage"
)

// TestDeadLettersListed: whatever is kept is listed, large letters cut, and the answer stays within
// what a message between agents can carry.
func TestDeadLettersListed(t *testing.T) {
	copies, damage, err := storage.OpenCopies(filepath.Join(t.TempDir(), "copies.db"))
	if err != nil || damage != nil {
		t.Fatal(err, damage)
	}
	t.Cleanup(func() { _ = copies.Close() })
	clock := int64(0)
	d, err := openDeadLetters(copies, func() int64 { clock++; return clock })
	if err != nil {
		t.Fatal(err)
	}
	topic, _ := frame.AppendHeader(nil, job.TopicHeader, []byte(strings.Repeat("t", 60_000)))
	put := func(key string, rec frame.Record) {
		t.Helper()
		if err := d.Put("j/in@g1", key, rec, "why"); err != nil {
			t.Fatal(err)
		}
	}
	put("small", frame.Record{Key: []byte("k"), Value: []byte("v")})
	for _, key := range []string{"a", "b", "c"} { // control characters take six bytes each in JSON
		put(key, frame.Record{Headers: topic, Value: bytes.Repeat([]byte{1}, 150_000)})
	}
	put("oversized", frame.Record{Key: bytes.Repeat([]byte("k"), 100_000), Headers: topic, Value: make([]byte, 1<<20)})

	got := d.newest("j", 100)
	var sizes []int
	for _, l := range got {
		sizes = append(sizes, l.Bytes)
	}
	if len(got) != 5 || got[0].Key == nil || string(got[0].Value) != "v" || got[0].Bytes != 1 {
		t.Fatalf("listed letters of %v bytes", sizes)
	}
	for _, l := range got[1:] {
		if len(l.Topic) != 60_000 || len(l.Value) != shownBytes {
			t.Errorf("a letter of %d bytes: topic of %d, value of %d shown", l.Bytes, len(l.Topic), len(l.Value))
		}
	}
	if got[1].Bytes != 150_000 || !strings.Contains(got[4].Reason, "the first 4096 bytes") {
		t.Errorf("bytes %v, reason %q", sizes, got[4].Reason)
	}
	if n := len(mustJSON(got)); n > 600<<10 {
		t.Errorf("the answer has %d bytes", n)
	}
	if last := d.newest("j", 1); len(last) != 1 || last[0].Reason != got[4].Reason {
		t.Errorf("the newest one: %v", last)
	}
}
