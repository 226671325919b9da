package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/extract"
	"github.com/weir-stream/weir/dataflow/frame"
)

// logged is an ingest log in memory. It is full until room is given.
type logged struct {
	mu     sync.Mutex
	lines  []string
	keys   []string
	ids    []byte
	dead   []string
	cursor []byte
	full   int    // refusals to come
	unkept int    // dead letters that are not kept, to come
	unable func() // called for each of them; nil: nothing is
	ended  bool
	more   chan struct{} // signalled after each append
}

func newLogged() *logged { return &logged{more: make(chan struct{}, 1)} }

func (l *logged) Append(b dataflow.IngestBatch, durable func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full > 0 {
		l.full--
		return dataflow.ErrLogFull
	}
	for rest := b.Payload; len(rest) > 0; {
		r, after, err := frame.Next(rest)
		if err != nil {
			return err
		}
		l.lines, l.keys = append(l.lines, string(r.Value)), append(l.keys, string(r.Key))
		rest = after
	}
	l.cursor, l.ids = bytes.Clone(b.Cursor), append(l.ids, b.IDs...)
	durable()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return nil
}

func (l *logged) DeadLetter(_ frame.Record, reason string, durable func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unkept > 0 {
		l.unkept--
		if l.unable != nil {
			l.unable()
		}
		return errors.New("the disk is full")
	}
	l.dead = append(l.dead, reason)
	durable()
	return nil
}

func (l *logged) Cursor() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cursor
}

func (l *logged) End() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	return nil
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "|")
}

func fileSource(t *testing.T, cfg FileSourceConfig) *FileSource {
	t.Helper()
	s, err := NewFileSource(cfg, Deps{Clock: func() int64 { return 1000 }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFileSourceReadsToTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	write(t, path, "a\nb\r\n\nlast without end")
	l := newLogged()
	l.full = 2
	s := fileSource(t, FileSourceConfig{Path: path})
	if err := s.Run(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := l.text(); got != "a|b|last without end" || !l.ended {
		t.Fatalf("lines %q, ended %v", got, l.ended)
	}
	if st := s.Status(); st.Offset != int64(len("a\nb\r\n\nlast without end")) || !st.Ended {
		t.Fatalf("status %+v", st)
	}
}

func TestFileSourceGoesOnAtItsOffset(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	text := "one\ntwo\nthree\n"
	write(t, path, text)
	for at := 0; at <= len(text); at++ {
		if at > 0 && text[at-1] != '\n' {
			continue
		}
		l := newLogged()
		l.cursor, _ = json.Marshal(cursor{int64(at)})
		if err := fileSource(t, FileSourceConfig{Path: path}).Run(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		want := strings.Join(strings.Fields(text[at:]), "|")
		if got := l.text(); got != want {
			t.Errorf("from %d: %q, want %q", at, got, want)
		}
	}
}

func TestFileSourceShorterFileIsAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	write(t, path, "new\n")
	l := newLogged()
	l.cursor = []byte(`{"offset":100}`)
	if err := fileSource(t, FileSourceConfig{Path: path}).Run(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := l.text(); got != "new" {
		t.Fatalf("lines %q", got)
	}
}

func TestFileSourceFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := newLogged()
	done := make(chan error, 1)
	s := fileSource(t, FileSourceConfig{Path: path, Follow: true})
	go func() { done <- s.Run(ctx, l) }()
	write(t, path, "a\nhalf")
	<-l.more
	if got := l.text(); got != "a" {
		t.Fatalf("lines %q", got)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(" whole\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	<-l.more
	if got := l.text(); got != "a|half whole" || l.ended {
		t.Fatalf("lines %q, ended %v", got, l.ended)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestFileSourceKeysIDsAndDeadLetters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	write(t, path, `{"k":"x","n":1}`+"\n"+`{"n":2}`+"\n"+strings.Repeat("z", frame.MaxRecord+10)+"\n"+`{"k":"y","n":3}`+"\n")
	l := newLogged()
	cfg := FileSourceConfig{Path: path, Key: extract.KeyRule{Kind: extract.KeyJSON, Path: "k"}, ID: "n"}
	if err := fileSource(t, cfg).Run(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(l.keys, "|"); got != "x|y" || string(l.ids) != "\x011\x013" {
		t.Fatalf("keys %q, ids %q", got, l.ids)
	}
	if len(l.dead) != 2 || !strings.Contains(l.dead[0], `"k"`) {
		t.Fatalf("dead letters %q", l.dead)
	}
}

// TestFileSourceWaitsForADeadLetter: a letter that cannot be kept now, since the disk is full, is not lost, and nothing
// behind its line is logged before it is kept.
func TestFileSourceWaitsForADeadLetter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	write(t, path, `{"k":"x"}`+"\n"+`{"n":2}`+"\n"+`{"k":"y"}`+"\n")
	cfg := FileSourceConfig{Path: path, Key: extract.KeyRule{Kind: extract.KeyJSON, Path: "k"}}
	l := newLogged()
	l.unkept = 2
	s := fileSource(t, cfg)
	if err := s.Run(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(l.keys, "|"); got != "x|y" || len(l.dead) != 1 || s.Status().DeadLetter != 1 {
		t.Fatalf("keys %q, dead letters %q, status %+v", got, l.dead, s.Status())
	}
	l = newLogged()
	ctx, cancel := context.WithCancel(t.Context())
	l.unkept, l.unable = math.MaxInt, cancel
	if err := fileSource(t, cfg).Run(ctx, l); err != nil || l.cursor != nil || len(l.keys) > 0 {
		t.Fatalf("it ended with %v and has logged %q up to %s", err, l.keys, l.cursor)
	}
}

func TestFileSourceRefusesADamagedCursor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	write(t, path, "a\n")
	l := newLogged()
	l.cursor = []byte("?")
	var syntax *json.SyntaxError
	if err := fileSource(t, FileSourceConfig{Path: path}).Run(t.Context(), l); !errors.As(err, &syntax) {
		t.Fatalf("error %v", err)
	}
}

func (l *logged) Marks(durable func()) map[uint64]uint64 { durable(); return nil }
