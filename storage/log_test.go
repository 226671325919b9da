package storage

import (
	"context"
	"testing"

	"github.com/weir-stream/weir/dataflow"
)

func openLog(t *testing.T, dir string, opt LogOptions) *Log {
	t.Helper()
	l, err := OpenLog(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mustStream(t *testing.T, l *Log, name string) *LogStream {
	t.Helper()
	s, err := l.Stream(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAppendCloseOpenFollow(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, LogOptions{})
	s := mustStream(t, l, "job/a")
	pos, err := s.Append(dataflow.EntryIngest, []byte("hel"), []byte("lo"))
	if err != nil || pos != 1 {
		t.Fatalf("append: %d, %v", pos, err)
	}
	if err := l.WaitSynced(context.Background(), pos); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openLog(t, dir, LogOptions{})
	s = mustStream(t, l, "job/a")
	f, err := s.Follow(0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, ok, err := f.Next()
	if err != nil || !ok || e.Pos != 1 || e.Kind != dataflow.EntryIngest || string(e.Data) != "hello" {
		t.Fatalf("next: %+v, %v, %v", e, ok, err)
	}
	if pos, _ := s.Append(dataflow.EntryBarrier); pos != 2 {
		t.Fatalf("position %d after a clean close", pos)
	}
}
