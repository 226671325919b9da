package node

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow/frame"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
)

// TestDamagedLetters: letters that cannot be read keep nobody from starting. They are counted, told of and shown as they
// are, not replayed, and go with their job.
func TestDamagedLetters(t *testing.T) {
	copies, damage, err := storage.OpenCopies(filepath.Join(t.TempDir(), "copies.db"))
	if err != nil || damage != nil {
		t.Fatal(err, damage)
	}
	t.Cleanup(func() { _ = copies.Close() })
	const task = "j/total/0"
	for key, value := range map[string]string{
		"1-0": `{"task":"j/total`, "2-0": "null", "3-0": `{"task":"other/total/0","at_ms":5}`, "4-0": `{"task":"j/total/0","at_ms":5,"record":"AAAA"}`,
	} {
		if err := copies.Put(copyDead, task+"/"+key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := openDeadLetters(copies, func() int64 { return 7 })
	if err != nil {
		t.Fatal(err)
	}
	if said := fmt.Sprint(d.notices()); !strings.Contains(said, "4 cannot be read") {
		t.Errorf("notices: %s", said)
	}
	if l := diagnoseLetters(copies); l.State != DiagnosedDamaged || l.Detail != "4 of 4 cannot be read: j/total/0/1-0, j/total/0/2-0, j/total/0/3-0, …" {
		t.Errorf("doctor: %+v", l)
	}
	if err := d.Put(task, "5-0", frame.Record{Key: []byte("k"), Value: []byte("v")}, "why"); err != nil {
		t.Fatal(err)
	}
	if n := d.count(task); n != 5 {
		t.Errorf("%d letters are counted", n)
	}
	list := d.newest("j", 10).Letters
	if len(list) != 5 || len(d.newest("other", 10).Letters) != 0 || list[4].Reason != "why" {
		t.Fatalf("listed: %+v", list)
	}
	for i, l := range list[:4] {
		if l.ID != fmt.Sprint("total/0/", i+1, "-0") || l.Task != "total/0" || !l.At.IsZero() || !strings.HasPrefix(l.Reason, "the dead letter cannot be read") || l.Bytes == 0 {
			t.Errorf("listed: %+v", l)
		}
	}
	if got := string(list[1].Value); got != "null" {
		t.Errorf("what is kept is shown as %q", got)
	}

	if err := d.Unreplayed(task, 0); err != nil {
		t.Errorf("a task begins again: %v", err)
	}
	if err := d.Replayed(task, "1-0", 9); err != nil {
		t.Errorf("a letter is marked: %v", err)
	}
	ids, records, err := d.chosen(replayRequest{Job: "j"})
	if err != nil || len(ids) != 5 {
		t.Fatalf("to replay: %v, %v", ids, err)
	}
	var a Agent
	for i, id := range ids[:4] {
		if why := a.redo(nil, replayRequest{Job: "j", Replay: api.Replay{Again: true}}, id, records[i]); !strings.Contains(why, "cannot be read") {
			t.Errorf("%s is not replayed since %q", id, why)
		}
	}
	if err := d.Put("jj/in@g1", "1-0", frame.Record{}, "why"); err != nil {
		t.Fatal(err)
	}
	if err := d.forget("j"); err != nil || len(d.newest("j", 10).Letters) != 0 || len(d.notices()) != 0 || d.count(task) != 0 {
		t.Errorf("after the job is deleted: %+v, %q, %v", d.newest("j", 10).Letters, d.notices(), err)
	}
	if l := diagnoseLetters(copies); l.State != DiagnosedFine || l.Detail != "1, all of which can be read" {
		t.Errorf("doctor: %+v", l)
	}
	if len(d.newest("jj", 10).Letters) != 1 || d.count("jj/in@g1") != 1 {
		t.Error("another job's letter is gone")
	}
}

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

	got := d.newest("j", 100).Letters
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
	if last := d.newest("j", 1); len(last.Letters) != 1 || last.Letters[0].Reason != got[4].Reason || last.Kept != 5 {
		t.Errorf("the newest one: %v", last)
	}
	for i := range 5 {
		put(fmt.Sprint("more", i), frame.Record{Headers: topic, Value: []byte("v")})
	}
	if some := d.newest("j", 100); len(some.Letters) >= 10 || len(some.Letters) < 5 || some.Kept != 10 {
		t.Errorf("%d letters with topics of 60 KB fit the answer, %d are kept", len(some.Letters), some.Kept)
	}
}
