package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen; it is met only by a failure.
const patience = 2 * time.Minute

const clockNow = 1700000000000

func deps(out *bytes.Buffer) Deps {
	d := Deps{Clock: func() int64 { return clockNow }}
	if out != nil {
		d.Log = slog.New(slog.NewTextHandler(out, nil))
	}
	return d
}

type events struct {
	handed chan abs.Seq
	ready  chan struct{}
}

func (e *events) Handed(n abs.Seq) { e.handed <- n }
func (e *events) Ready()           { e.ready <- struct{}{} }
func (e *events) Received(abs.Seq) {}

func (e *events) waitHanded(t *testing.T, upto abs.Seq) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case n := <-e.handed:
			if n == upto {
				return
			}
		case <-late:
			t.Fatalf("%d was not handed over", upto)
		}
	}
}

// start runs a sink; the function that it returns stops it and returns what Run returned.
func start(t *testing.T, s dataflow.Sink) (*events, func() error) {
	t.Helper()
	ev := &events{make(chan abs.Seq, 4096), make(chan struct{}, 4096)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, ev) }()
	t.Cleanup(cancel)
	select {
	case <-ev.ready:
	case <-time.After(patience):
		t.Fatal("the sink does not run")
	}
	return ev, func() error { cancel(); return <-ended }
}

func items(values ...string) []dataflow.SinkItem {
	var out []dataflow.SinkItem
	for i, v := range values {
		out = append(out, dataflow.SinkItem{Number: abs.Seq(i + 1), Channel: "a>b", Record: frame.Record{Key: []byte("k"), Value: []byte(v)}})
	}
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFileLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.jsonl")
	s, err := NewFileSink(FileSinkConfig{Path: path, Line: `{"n":{number},"k":"{key}","v":{value}}`}, deps(nil))
	if err != nil {
		t.Fatal(err)
	}
	if s.Offer(items("1")) != 0 {
		t.Error("a sink that does not run takes items")
	}
	ev, stop := start(t, s)
	if n := s.Offer(items("1", "{\n}")); n != 2 {
		t.Fatalf("took %d", n)
	}
	ev.waitHanded(t, 2)
	want := `{"n":1,"k":"k","v":1}` + "\n" + `{"n":2,"k":"k","v":{ }}` + "\n"
	if got := read(t, path); got != want {
		t.Errorf("got %q", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if st := s.Status(); st.Handed != 2 || st.Bytes != int64(len(want)) || st.Waiting != 0 {
		t.Errorf("status %+v", st)
	}
}

func TestFileCutsTornLastLine(t *testing.T) {
	long := strings.Repeat("x", 3*tailBlock/2)
	for _, c := range []struct{ before, kept string }{
		{"", ""},
		{"a\nb\n", "a\nb\n"},
		{"a\nb", "a\n"},
		{"torn", ""},
		{"a\n" + long, "a\n"},
		{long, ""},
		{long + "\n", long + "\n"},
		{"a\n\x00\x00\x00", "a\n"},
	} {
		path := filepath.Join(t.TempDir(), "out")
		if err := os.WriteFile(path, []byte(c.before), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := NewFileSink(FileSinkConfig{Path: path}, deps(nil))
		if err != nil {
			t.Fatal(err)
		}
		ev, stop := start(t, s)
		s.Offer(items("new"))
		ev.waitHanded(t, 1)
		stop()
		if got := read(t, path); got != c.kept+"new\n" {
			t.Errorf("%.20q: became %.20q", c.before, got)
		}
		if got := s.Status().Torn; got != int64(len(c.before)-len(c.kept)) {
			t.Errorf("%.20q: %d bytes cut", c.before, got)
		}
	}
}

func TestFileIsSyncedBeforeHanded(t *testing.T) {
	f := &brokenFile{}
	s, ev, stop := startOn(t, f, nil)
	s.Offer(items("a"))
	ev.waitHanded(t, 1)
	if f.synced != "a\n" {
		t.Errorf("on disk are %q", f.synced)
	}
	stop()
}

func TestFileTriesAgain(t *testing.T) {
	var out bytes.Buffer
	f := &brokenFile{fail: map[string]int{"write": 2, "sync": 2, "truncate": 1}}
	s, ev, stop := startOn(t, f, &out)
	s.Offer(items("a", "b"))
	ev.waitHanded(t, 2)
	if f.synced != "a\nb\n" {
		t.Errorf("on disk are %q", f.synced)
	}
	if st := s.Status(); st.FailingSince != 0 || st.LastError != "" {
		t.Errorf("status %+v", st)
	}
	stop()
	if n := strings.Count(out.String(), "level=WARN"); n != 1 {
		t.Errorf("said %d times:\n%s", n, out.String())
	}
}

func TestFileStopsWhileFailing(t *testing.T) {
	f := &brokenFile{fail: map[string]int{"sync": 1 << 30}, failed: make(chan struct{}, 1)}
	s, _, stop := startOn(t, f, nil)
	s.Offer(items("a"))
	<-f.failed
	stop()
	if f.text != "" {
		t.Errorf("left %q in the file though it was not handed over", f.text)
	}
	if st := s.Status(); st.FailingSince != clockNow || st.LastError != "no space for sync" {
		t.Errorf("status %+v", st)
	}
}

// startOn runs a file sink on a file double.
func startOn(t *testing.T, f file, out *bytes.Buffer) (*FileSink, *events, func() error) {
	s, err := NewFileSink(FileSinkConfig{Path: "double"}, deps(out))
	if err != nil {
		t.Fatal(err)
	}
	s.retryMin, s.retryMax = time.Millisecond, time.Millisecond
	ev, stop := start(t, onFile{s, f})
	return s, ev, stop
}

type onFile struct {
	*FileSink
	f file
}

func (o onFile) Run(ctx context.Context, ev dataflow.SinkEvents) error {
	return o.deliver(ctx, o.f, 0, ev)
}

// brokenFile fails an operation so many times; a failed write leaves half of it.
type brokenFile struct {
	mu     sync.Mutex
	fail   map[string]int
	failed chan struct{}
	text   string
	synced string
}

func (f *brokenFile) fails(op string) error {
	if f.fail[op] == 0 {
		return nil
	}
	f.fail[op]--
	select {
	case f.failed <- struct{}{}:
	default:
	}
	return fmt.Errorf("no space for %s", op)
}

func (f *brokenFile) WriteAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at != int64(len(f.text)) {
		return 0, errors.New("not at the end")
	}
	if err := f.fails("write"); err != nil {
		f.text += string(b[:len(b)/2])
		return len(b) / 2, err
	}
	f.text += string(b)
	return len(b), nil
}

func (f *brokenFile) ReadAt([]byte, int64) (int, error) { return 0, errors.New("not read") }

func (f *brokenFile) Truncate(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails("truncate"); err != nil {
		return err
	}
	f.text = f.text[:n]
	return nil
}

func (f *brokenFile) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails("sync"); err != nil {
		return err
	}
	f.synced = f.text
	return nil
}

func (f *brokenFile) Close() error { return nil }

func TestFileErrors(t *testing.T) {
	for want, cfg := range map[string]FileSinkConfig{
		"no path":                   {},
		"unknown placeholder {kye}": {Path: "p", Line: "{kye}"},
	} {
		if _, err := NewFileSink(cfg, deps(nil)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "none", "out"), t.TempDir()} {
		s, err := NewFileSink(FileSinkConfig{Path: path}, deps(nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(context.Background(), &events{}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
	}
}

func TestLogSink(t *testing.T) {
	var out bytes.Buffer
	s, err := NewLogSink(LogSinkConfig{Name: "alarms", Line: "{key}={value}"}, deps(&out))
	if err != nil {
		t.Fatal(err)
	}
	ev, stop := start(t, s)
	if n := s.Offer(items("1", "2")); n != 2 {
		t.Fatalf("took %d", n)
	}
	ev.waitHanded(t, 2)
	if err := stop(); err != nil {
		t.Error(err)
	}
	text := out.String()
	if strings.Count(text, "sink=alarms") != 2 || !strings.Contains(text, `"k=1"`) || strings.Index(text, "k=1") > strings.Index(text, "k=2") {
		t.Errorf("logged %s", text)
	}
	if s.Handed() != 2 {
		t.Errorf("handed %d", s.Handed())
	}
	if _, err := NewLogSink(LogSinkConfig{Line: "{x}"}, deps(nil)); err == nil {
		t.Error("an unknown placeholder is taken")
	}
}

func TestLargeOfferIsTakenInParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	s, err := NewFileSink(FileSinkConfig{Path: path}, deps(nil))
	if err != nil {
		t.Fatal(err)
	}
	ev, stop := start(t, s)
	var values []string
	for i := range 3 * maxItems {
		values = append(values, fmt.Sprint(i))
	}
	rest := items(values...)
	for len(rest) > 0 {
		n := s.Offer(rest)
		if n > maxItems {
			t.Fatalf("holds %d", n)
		}
		if rest = rest[n:]; n == 0 {
			<-ev.ready
		}
	}
	ev.waitHanded(t, 3*maxItems)
	stop()
	if got := read(t, path); got != strings.Join(values, "\n")+"\n" {
		t.Errorf("%d bytes are not the lines", len(got))
	}
}
