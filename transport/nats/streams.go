package nats

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
)

// Keys of a stream's metadata beside metaID.
const (
	metaJob        = "weir-job"
	metaGeneration = "weir-generation"
	metaTask       = "weir-task"
)

const (
	// DefaultChannelFrames is how many frames a stream takes per channel. It is a backstop, far above
	// what credit lets lie there; the steady bound is the purge after each counting checkpoint.
	DefaultChannelFrames = 1 << 16
	// firstSeqShift makes a stream's first sequence from its time of creation in milliseconds, so
	// that sequences of a stream made anew lie above those of the last one: a late Purge then removes
	// nothing of it. A stream would have to take a million frames per second to catch up.
	firstSeqShift = 10
)

// StreamOptions say how streams are made. Those that exist stay as they are.
type StreamOptions struct {
	// File keeps streams on disk, persisted without waiting, instead of in memory. They then survive
	// a restart of the server, which saves the senders from sending again, and the machine's memory.
	File bool
	// ChannelFrames bounds the frames per channel; 0: [DefaultChannelFrames].
	ChannelFrames int64
	// Bytes bounds the whole stream; 0: only the server's own limits do.
	Bytes int64
}

// Streams opens the ends of channels. It is a [dataflow.Streams].
type Streams struct {
	conn *Conn
	opt  StreamOptions
	log  *slog.Logger
}

var _ dataflow.Streams = (*Streams)(nil)

// Streams returns the streams of the connection.
func (c *Conn) Streams(opt StreamOptions) *Streams {
	if opt.ChannelFrames <= 0 {
		opt.ChannelFrames = DefaultChannelFrames
	}
	return &Streams{conn: c, opt: opt, log: c.log}
}

// Stream describes a task's stream, as far as needed to find those that no plan has any more.
type Stream struct {
	Name       string // in JetStream
	Job        string
	Generation abs.Generation
	Task       abs.TaskID
	Bytes      uint64 // in the stream now
	Frames     uint64 // in the stream now
}

// config is that of a new stream. No window for duplicates beyond the least that the server
// allows: nothing is published with a message id.
func (s *Streams) config(job string, gen abs.Generation, task abs.TaskID) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name:     s.conn.names.stream(job, gen, task),
		Subjects: []string{s.conn.names.frames(job, gen, task) + ".*"},
		Storage:  jetstream.MemoryStorage, Replicas: 1, Retention: jetstream.LimitsPolicy,
		Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgsPerSubject: s.opt.ChannelFrames,
		MaxMsgs: -1, MaxBytes: -1, MaxConsumers: -1, Duplicates: 100 * time.Millisecond,
		FirstSeq: uint64(time.Now().UnixMilli()) << firstSeqShift,
		Metadata: map[string]string{
			metaID: rand.Text(), metaJob: job, metaTask: string(task),
			metaGeneration: strconv.FormatUint(uint64(gen), 10),
		},
	}
	if s.opt.Bytes > 0 {
		cfg.MaxBytes = s.opt.Bytes
	}
	if s.opt.File {
		cfg.Storage, cfg.PersistMode = jetstream.FileStorage, jetstream.AsyncPersistMode
	}
	return cfg
}

// ensure creates a task's stream if it is missing.
func (s *Streams) ensure(ctx context.Context, job string, gen abs.Generation, task abs.TaskID) error {
	cfg := s.config(job, gen, task)
	err := s.conn.data.request(ctx, func(ctx context.Context) error {
		_, err := s.conn.data.js.Stream(ctx, cfg.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			_, err = s.conn.data.js.CreateStream(ctx, cfg)
		}
		return err
	})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return fmt.Errorf("stream %s: %w", cfg.Name, err)
	}
	return nil
}

// List returns all tasks' streams under the prefix.
func (s *Streams) List(ctx context.Context) ([]Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	lister := s.conn.data.js.ListStreams(ctx, jetstream.WithStreamListSubject(s.conn.names.prefix+".s.>"))
	var all []Stream
	for info := range lister.Info() {
		gen, err := strconv.ParseUint(info.Config.Metadata[metaGeneration], 10, 32)
		if err != nil {
			continue // not made here
		}
		all = append(all, Stream{
			Name: info.Config.Name, Job: info.Config.Metadata[metaJob], Generation: abs.Generation(gen),
			Task: abs.TaskID(info.Config.Metadata[metaTask]), Bytes: info.State.Bytes, Frames: info.State.Msgs,
		})
	}
	if err := lister.Err(); err != nil {
		return nil, fmt.Errorf("list of streams: %w", translate(err))
	}
	return all, nil
}

// Delete removes the streams of one generation of a job. Whoever still reads them makes them anew:
// stop the tasks first.
func (s *Streams) Delete(ctx context.Context, job string, gen abs.Generation) error {
	all, err := s.List(ctx)
	if err != nil {
		return err
	}
	for _, st := range all {
		if st.Job == job && st.Generation == gen {
			if err := s.DeleteStream(ctx, st.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// DeleteStream removes one stream by its name in JetStream; it is no error if it is not there.
func (s *Streams) DeleteStream(ctx context.Context, name string) error {
	err := s.conn.data.request(ctx, func(ctx context.Context) error { return s.conn.data.js.DeleteStream(ctx, name) })
	if err != nil && !errors.Is(err, ErrLost) {
		return fmt.Errorf("delete stream %s: %w", name, err)
	}
	return nil
}

// purgeRequest is the body of a purge request (JetStream API): messages of the subject below seq.
type purgeRequest struct {
	Filter   string `json:"filter"`
	Sequence uint64 `json:"seq"`
}

// purge removes a subject's messages up to and including the one at seq.
func (s *Streams) purge(ctx context.Context, stream, subject string, seq uint64) error {
	body, err := json.Marshal(purgeRequest{Filter: subject, Sequence: seq + 1})
	if err != nil {
		panic(err) // a struct of a string and a number
	}
	err = s.conn.data.request(ctx, func(ctx context.Context) error {
		resp, err := s.conn.data.nc.RequestWithContext(ctx, s.conn.data.api+"STREAM.PURGE."+stream, body)
		if err == nil {
			_, err = decodeResponse(resp.Data)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("purge of %s: %w", subject, err)
	}
	return nil
}

// response is what the server answers to a publish or a purge.
type response struct {
	Stream string              `json:"stream"`
	Error  *jetstream.APIError `json:"error"`
}

// decodeResponse reads an answer: the stream that took the message, or why not.
func decodeResponse(b []byte) (string, error) {
	if stream, ok := plainResponse(b); ok {
		return stream, nil
	}
	var r response
	if err := json.Unmarshal(b, &r); err != nil {
		return "", fmt.Errorf("%w: answer of the server: %w", ErrUnavailable, err)
	}
	if r.Error == nil {
		return r.Stream, nil
	}
	return "", refusal(r.Error)
}

// plainResponse reads the answer that every frame gets, {"stream":"S","domain":"D","seq":5}, the domain only if
// there is one, without a JSON decoder; false if it is not exactly that.
func plainResponse(b []byte) (stream string, ok bool) {
	name, rest, ok := plainField(b, `{"stream":"`)
	if !ok || len(name) == 0 {
		return "", false
	}
	if _, after, ok := plainField(rest, `,"domain":"`); ok {
		rest = after
	}
	rest, ok = bytes.CutPrefix(rest, []byte(`,"seq":`))
	if !ok || len(rest) < 2 || rest[0] == '0' || rest[len(rest)-1] != '}' {
		return "", false
	}
	for _, c := range rest[:len(rest)-1] {
		if c < '0' || c > '9' {
			return "", false
		}
	}
	return string(name), true
}

// plainField reads a string without escapes, in ASCII, behind a prefix and up to behind its quote.
func plainField(b []byte, prefix string) (value, rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(b, []byte(prefix))
	end := bytes.IndexByte(rest, '"')
	if !ok || end < 0 {
		return nil, nil, false
	}
	for _, c := range rest[:end] {
		if c < ' ' || c > '~' || c == '\\' {
			return nil, nil, false
		}
	}
	return rest[:end], rest[end+1:], true
}

// Error codes of JetStream that say that a limit has been reached.
const (
	codeMemoryExceeded  = 10028 // insufficient memory of the server
	codeStoreFailed     = 10077 // a limit of the stream
	codeStorageExceeded = 10047 // insufficient storage of the server
	codeResources       = 10023 // insufficient resources
	codeAccountExceeded = 10002 // limits of the account
)

// refusal gives the server's error the meaning that callers branch on.
func refusal(e *jetstream.APIError) error {
	switch e.ErrorCode {
	case codeStoreFailed, codeMemoryExceeded, codeStorageExceeded, codeResources, codeAccountExceeded:
		return fmt.Errorf("%w: %w", ErrFull, e)
	case jetstream.JSErrCodeStreamNotFound:
		return fmt.Errorf("%w: %w", ErrLost, e)
	}
	if e.Code == 503 {
		return fmt.Errorf("%w: %w", ErrUnavailable, e)
	}
	return e
}
