package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/template"
	"github.com/weir-stream/weir/dataflow/window"
)

// FileSinkConfig says which file gets the lines.
type FileSinkConfig struct {
	// Path of the file; it is made if it is not there, its directory is not.
	Path string
	// Line is a template (see [template]); empty: {value}. A line break in what it expands to
	// becomes a space, which in JSON changes nothing. A field that the value does not have becomes nothing.
	Line string
}

// Waits between attempts to write when the file cannot be written: from what a busy disk needs to
// what an operator waits who has made room.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
)

// tailBlock is how much of the file's end is read at once, in bytes, when looking for its last line.
const tailBlock = 64 << 10

// FileSinkStatus is a snapshot of a file sink.
type FileSinkStatus struct {
	Handed uint64 // items on disk since the sink was made
	Bytes  int64  // length of the file
	Torn   int64  // bytes of a torn last line that were cut when the sink started
	// FailingSince is when writing began to fail, in milliseconds since 1970; 0 if it works.
	FailingSince int64
	LastError    string
	Waiting      int // items taken and not handed over
}

// FileSink appends one line per item and hands items over once the file is synced. It implements
// [dataflow.Sink]. A write that fails is tried again for ever, and what it left is cut off first:
// the file always holds whole lines in order.
type FileSink struct {
	path   string
	line   template.Template
	deps   Deps
	window *window.Window
	// retryMin and retryMax are fields so that tests need not wait.
	retryMin, retryMax time.Duration

	mu     sync.Mutex
	status FileSinkStatus
}

// file is what a file sink needs of its file.
type file interface {
	io.WriterAt
	io.ReaderAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

// NewFileSink compiles the template. The file is opened by Run.
func NewFileSink(cfg FileSinkConfig, deps Deps) (*FileSink, error) {
	deps, err := deps.check()
	if err != nil {
		return nil, fmt.Errorf("file sink %s: %w", cfg.Path, err)
	}
	if cfg.Path == "" {
		return nil, errors.New("file sink: no path; name a file")
	}
	line, err := parseLine(cfg.Line)
	if err != nil {
		return nil, fmt.Errorf("file sink %s: %w", cfg.Path, err)
	}
	deps.Log = deps.Log.With("file", cfg.Path)
	return &FileSink{
		path: cfg.Path, line: line, deps: deps, window: window.New(maxItems, maxBytes),
		retryMin: retryMin, retryMax: retryMax,
	}, nil
}

// Offer takes items if the sink runs and has room.
func (s *FileSink) Offer(items []dataflow.SinkItem) int { return s.window.Offer(items) }

// Status may be called at any time.
func (s *FileSink) Status() FileSinkStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Waiting = s.window.Len()
	return st
}

// Run writes until ctx ends, and then returns nil. It fails if the file cannot be opened.
func (s *FileSink) Run(ctx context.Context, ev dataflow.SinkEvents) error {
	f, size, err := open(s.path)
	if err != nil {
		return fmt.Errorf("file sink: %w", err)
	}
	defer f.Close()
	whole, err := wholeLines(f, size)
	if err != nil {
		return fmt.Errorf("file sink: last line of %s: %w", s.path, err)
	}
	if whole < size {
		if err := f.Truncate(whole); err != nil {
			return fmt.Errorf("file sink: cutting the torn last line of %s: %w", s.path, err)
		}
		s.deps.Log.Warn("cut a torn last line", "bytes", size-whole)
	}
	s.noteFile(whole, size-whole)
	return s.deliver(ctx, f, whole, ev)
}

// open opens or makes the file; a new one's name is synced too.
func open(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err == nil && info.Size() == 0 {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// wholeLines is the length of the file up to and including its last line break.
func wholeLines(f io.ReaderAt, size int64) (int64, error) {
	buf := make([]byte, tailBlock)
	for end := size; end > 0; {
		from := max(0, end-tailBlock)
		b := buf[:end-from]
		if n, err := f.ReadAt(b, from); n < len(b) {
			return 0, err
		}
		if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		end = from
	}
	return 0, nil
}

func (s *FileSink) deliver(ctx context.Context, f file, size int64, ev dataflow.SinkEvents) error {
	var text []byte
	handOver(ctx, s.window, ev, func(items []dataflow.SinkItem) bool {
		text = text[:0]
		for _, it := range items {
			text = s.appendLine(text, it)
		}
		if !s.write(ctx, f, size, text) {
			return false
		}
		size += int64(len(text))
		s.noteHanded(size, len(items))
		return true
	})
	return nil
}

func (s *FileSink) appendLine(dst []byte, it dataflow.SinkItem) []byte {
	at := len(dst)
	dst, _ = s.line.Append(dst, fields(it)) // what the value does not have is left out
	for i, c := range dst[at:] {
		if c == '\n' {
			dst[at+i] = ' '
		}
	}
	return append(dst, '\n')
}

// write appends text at size and syncs, again and again until it works; false if ctx ended first.
func (s *FileSink) write(ctx context.Context, f file, size int64, text []byte) bool {
	for wait := s.retryMin; ; wait = min(2*wait, s.retryMax) {
		err := writeSynced(f, size, text)
		if err == nil {
			s.noteWorks()
			return true
		}
		s.noteFailing(err)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			// The next start would cut a torn line, but not whole lines of a torn batch.
			if err := f.Truncate(size); err != nil {
				s.deps.Log.Warn("cannot cut off a failed write; its lines may come twice", "error", err)
			}
			return false
		case <-t.C:
		}
	}
}

// writeSynced writes at a place, so that an attempt overwrites what a failed one has left.
func writeSynced(f file, size int64, text []byte) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	if _, err := f.WriteAt(text, size); err != nil {
		return err
	}
	return f.Sync()
}

func (s *FileSink) noteFile(size, torn int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Bytes, s.status.Torn = size, torn
}

func (s *FileSink) noteHanded(size int64, items int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Bytes = size
	s.status.Handed += uint64(items)
}

func (s *FileSink) noteFailing(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.LastError = err.Error()
	if s.status.FailingSince == 0 {
		s.status.FailingSince = s.deps.Clock()
		s.deps.Log.Warn("cannot write; trying again until it works", "error", err)
	}
}

func (s *FileSink) noteWorks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.FailingSince != 0 {
		s.deps.Log.Info("writing works again")
	}
	s.status.FailingSince, s.status.LastError = 0, ""
}
