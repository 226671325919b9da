package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/extract"
	"github.com/weir-stream/weir/dataflow/frame"
)

// FileSourceConfig says which file is read and how its lines become records.
type FileSourceConfig struct {
	// Path of the file. For the key rule it stands where a message's topic does.
	Path string
	// Follow waits for lines to be appended; else the input ends at the end of the file.
	Follow bool
	Key    extract.KeyRule
	ID     string // JSON path; empty: none
	Time   extract.TimeRule
}

// Bounds of a file source.
const (
	// fileBatch of lines, in bytes, become one entry of the log.
	fileBatch = 32 << 10
	// followEvery is how often a followed file is looked at, and a file that is not there yet.
	followEvery = 200 * time.Millisecond
	// fullWait is the pause before a full log is tried again.
	fullWait = 200 * time.Millisecond
)

// FileSourceStatus is a snapshot of a source's counters since it was made.
type FileSourceStatus struct {
	Lines      uint64 // read
	DeadLetter uint64
	Offset     int64 // bytes of the file that are in the log
	Ended      bool
}

// FileSource reads a file line by line. Its state is an offset, logged with each batch: it goes on
// exactly behind the last line in the log, so every line counts once (the offset-based source of
// Carbone et al. 2015, section 6). A file that has become shorter than its offset is another one and
// is read from its beginning. It implements [dataflow.Source].
type FileSource struct {
	cfg  FileSourceConfig
	deps Deps

	mu     sync.Mutex
	status FileSourceStatus
}

// NewFileSource checks the configuration. The file is opened by Run.
func NewFileSource(cfg FileSourceConfig, deps Deps) (*FileSource, error) {
	deps, err := deps.check()
	if err != nil {
		return nil, fmt.Errorf("file source %s: %w", cfg.Path, err)
	}
	if cfg.Path == "" {
		return nil, errors.New("file source: no path; name a file")
	}
	if err := errors.Join(cfg.Key.Check(), cfg.Time.Check()); err != nil {
		return nil, fmt.Errorf("file source %s: %w", cfg.Path, err)
	}
	deps.Log = deps.Log.With("file", cfg.Path)
	return &FileSource{cfg: cfg, deps: deps}, nil
}

// Status may be called at any time.
func (s *FileSource) Status() FileSourceStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// cursor is where the source stands.
type cursor struct {
	Offset int64 `json:"offset"`
}

// Run reads until ctx ends or, if the file is not followed, its end has been logged.
func (s *FileSource) Run(ctx context.Context, in dataflow.Ingest) error {
	var at cursor
	if c := in.Cursor(); len(c) > 0 {
		if err := json.Unmarshal(c, &at); err != nil {
			return fmt.Errorf("file source: cursor of %s: %w", s.cfg.Path, err)
		}
	}
	f, err := s.open(ctx)
	if err != nil || f == nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("file source: %w", err)
	}
	if st.Size() < at.Offset {
		s.deps.Log.Warn("the file is shorter than what was read of it: it is another one and is read from its beginning", "bytes", st.Size(), "read", at.Offset)
		at.Offset = 0
	}
	if _, err := f.Seek(at.Offset, io.SeekStart); err != nil {
		return fmt.Errorf("file source: %w", err)
	}
	return s.read(ctx, bufio.NewReaderSize(f, frame.MaxRecord), at, in)
}

// open waits for the file to be there.
func (s *FileSource) open(ctx context.Context) (*os.File, error) {
	said := false
	for {
		f, err := os.Open(s.cfg.Path)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("file source: %w", err)
		}
		if !said {
			said = true
			s.deps.Log.Warn("the file is not there; waiting for it")
		}
		if !pause(ctx, followEvery) {
			return nil, nil
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// read gathers lines into batches and logs them.
func (s *FileSource) read(ctx context.Context, r *bufio.Reader, at cursor, in dataflow.Ingest) error {
	var b batch
	partial := 0 // bytes of a line that has no end yet
	for ctx.Err() == nil {
		line, err := r.ReadSlice('\n')
		switch {
		case err == nil:
			at.Offset += int64(partial + len(line))
			if !s.add(ctx, &b, b.whole(line), in) {
				return nil
			}
			partial = 0
		case errors.Is(err, bufio.ErrBufferFull):
			partial += b.part(line)
			continue
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("file source: %w", err)
		default:
			partial += b.part(line)
			if !s.cfg.Follow && partial > 0 { // a last line without an end
				at.Offset += int64(partial)
				if !s.add(ctx, &b, b.whole(nil), in) {
					return nil
				}
				partial = 0
			}
		}
		if len(b.payload) < fileBatch && err == nil {
			continue
		}
		if !s.log(ctx, &b, at, in) {
			return nil
		}
		if errors.Is(err, io.EOF) {
			if !s.cfg.Follow {
				return s.end(ctx, in)
			}
			if !pause(ctx, followEvery) {
				return nil
			}
		}
	}
	return nil
}

// batch is lines on their way into the log.
type batch struct {
	payload []byte
	ids     []byte
	count   int
	lines   int    // read, those refused included
	line    []byte // the beginning of a line that did not come at once
}

// part keeps the beginning of a line, of one that is too long only so much that it is refused.
func (b *batch) part(p []byte) int {
	if len(b.line) <= frame.MaxRecord {
		b.line = append(b.line, p...)
	}
	return len(p)
}

// whole returns the line that ends with p, without its line break.
func (b *batch) whole(p []byte) []byte {
	if len(b.line) > 0 {
		p = append(b.line, p...)
		b.line = nil
	}
	for len(p) > 0 && (p[len(p)-1] == '\n' || p[len(p)-1] == '\r') {
		p = p[:len(p)-1]
	}
	return p
}

// add makes a record of a line; one that cannot be taken becomes a dead letter. It is false if ctx ended before.
func (s *FileSource) add(ctx context.Context, b *batch, line []byte, in dataflow.Ingest) bool {
	s.mu.Lock()
	s.status.Lines++
	s.mu.Unlock()
	b.lines++
	if len(line) == 0 {
		return true
	}
	rec := frame.Record{Value: line, Time: s.deps.Clock()}
	key, err := s.cfg.Key.Key(s.cfg.Path, line)
	rec.Key = []byte(key)
	if err == nil {
		rec.Time, err = s.cfg.Time.Time(line, rec.Time)
	}
	if err == nil {
		err = rec.Check()
	}
	if err != nil {
		return s.refuse(ctx, rec, err, in)
	}
	b.payload = frame.AppendRecord(b.payload, rec)
	b.count++
	if s.cfg.ID != "" {
		id := extract.ID(s.cfg.ID, line)
		b.ids = dataflow.AppendID(b.ids, id)
	}
	return true
}

// refuse keeps a dead letter, however long the disk is full: what follows its line must not be logged before.
func (s *FileSource) refuse(ctx context.Context, rec frame.Record, reason error, in dataflow.Ingest) bool {
	for said := false; ; said = true {
		err := in.DeadLetter(rec, reason.Error(), func() {})
		if err == nil {
			break
		}
		if !said {
			s.deps.Log.Error("dead letter not kept: the source waits and tries again", "reason", reason, "error", err)
		}
		if !pause(ctx, fullWait) {
			return false
		}
	}
	s.mu.Lock()
	s.status.DeadLetter++
	s.mu.Unlock()
	return true
}

// log appends the batch with the offset behind it, however long the log is full; false if ctx ended.
func (s *FileSource) log(ctx context.Context, b *batch, at cursor, in dataflow.Ingest) bool {
	c, err := json.Marshal(at)
	if err != nil {
		panic(err) // a number
	}
	for b.lines > 0 {
		err := in.Append(dataflow.IngestBatch{Payload: b.payload, Count: b.count, IDs: b.ids, Cursor: c}, func() {})
		if err == nil {
			break
		}
		if !pause(ctx, fullWait) {
			return false
		}
	}
	b.payload, b.ids, b.count, b.lines = b.payload[:0], b.ids[:0], 0, 0
	s.mu.Lock()
	s.status.Offset = at.Offset
	s.mu.Unlock()
	return true
}

// end logs the end of the input.
func (s *FileSource) end(ctx context.Context, in dataflow.Ingest) error {
	for in.End() != nil {
		if !pause(ctx, fullWait) {
			return nil
		}
	}
	s.mu.Lock()
	s.status.Ended = true
	s.mu.Unlock()
	s.deps.Log.Info("the file has been read to its end")
	return nil
}
