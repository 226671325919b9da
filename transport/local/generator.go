package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/extract"
	"github.com/weir-stream/weir/dataflow/frame"
)

// GeneratorConfig says what a generator makes. Equal configurations make equal records.
type GeneratorConfig struct {
	// Records is how many are made in all; then the input ends. 0: no end.
	Records uint64
	// Rate is how many records a second; 0: as many as the task takes.
	Rate int
	// Keys is how many keys there are, k0, k1 and so on, each as likely as any other. For the key rule the
	// key stands where a message's topic does. At least 1.
	Keys int
	// Size of a value in bytes, reached by padding; values that are longer stay so.
	Size int
	// Seed and Name decide which records are made: two sources with different names make different ones.
	Seed uint64
	Name string
	// Stamp adds the time at which the record was made, microseconds since 1970, as the field "t".
	Stamp bool
	Key   extract.KeyRule
	ID    string // JSON path; empty: none
	Time  extract.TimeRule
}

// Bounds of a generator.
const (
	// generatorBatch of records, in bytes, become one entry of the log.
	generatorBatch = 32 << 10
	// generatorPace is how often a generator with a rate makes what is due.
	generatorPace = 2 * time.Millisecond
	// generatorLead is how many bytes of records may wait in the log for the task: enough to keep it busy over
	// a pause, little enough that a barrier, which goes behind them, is soon taken.
	generatorLead = 1 << 20
	// leadPause is how often a generator looks whether the task has come nearer.
	leadPause = time.Millisecond
)

// GeneratorStatus is a snapshot of a source's counters.
type GeneratorStatus struct {
	Offset uint64 // records made, over all lives of the source
	Ended  bool
}

// GeneratorSource makes records of its own, for tests of load and for trying a job. Record n is a function
// of the configuration and n, its value {"n":5,"v":57.31}; the state is the number of the next one, logged
// with each batch, so that every record is made once, across kills (the offset-based source of Carbone et
// al. 2015, section 6). It implements [dataflow.Source].
type GeneratorSource struct {
	cfg  GeneratorConfig
	deps Deps

	mu     sync.Mutex
	status GeneratorStatus
}

// NewGeneratorSource checks the configuration.
func NewGeneratorSource(cfg GeneratorConfig, deps Deps) (*GeneratorSource, error) {
	deps, err := deps.check()
	if err == nil && (cfg.Keys < 1 || cfg.Rate < 0 || cfg.Size < 0 || cfg.Size > frame.MaxRecord/2) {
		err = fmt.Errorf("%d keys, %d records a second of %d bytes: at least one key, and at most %d bytes", cfg.Keys, cfg.Rate, cfg.Size, frame.MaxRecord/2)
	}
	if err := errors.Join(err, cfg.Key.Check(), cfg.Time.Check()); err != nil {
		return nil, fmt.Errorf("generator: %w", err)
	}
	return &GeneratorSource{cfg: cfg, deps: deps}, nil
}

// Status may be called at any time.
func (s *GeneratorSource) Status() GeneratorStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// generatorCursor is where the source stands.
type generatorCursor struct {
	Next uint64 `json:"next"`
}

// Run makes records until ctx ends or the end has been logged.
func (s *GeneratorSource) Run(ctx context.Context, in dataflow.Ingest) error {
	var at generatorCursor
	if c := in.Cursor(); len(c) > 0 {
		if err := json.Unmarshal(c, &at); err != nil {
			return fmt.Errorf("generator: cursor: %w", err)
		}
	}
	s.note(at.Next, false)
	b := generatorBuilder{cfg: s.cfg, salt: salt(s.cfg.Seed, s.cfg.Name)}
	begun, first := time.Now(), at.Next
	for ctx.Err() == nil {
		upto := s.due(first, time.Since(begun))
		if at.Next >= upto && s.cfg.Records > 0 && at.Next >= s.cfg.Records {
			return s.end(ctx, in)
		}
		if at.Next >= upto {
			if !pause(ctx, generatorPace) {
				return nil
			}
			continue
		}
		if !s.near(ctx) {
			return nil
		}
		var err error
		if at.Next, err = b.fill(at.Next, upto, s.deps.Clock()); err != nil {
			return fmt.Errorf("generator: %w", err)
		}
		if !s.log(ctx, &b, at, in) {
			return nil
		}
	}
	return nil
}

// due is the number before which records may be made, so long after the source was started.
func (s *GeneratorSource) due(first uint64, since time.Duration) uint64 {
	last := uint64(math.MaxUint64)
	if s.cfg.Records > 0 {
		last = s.cfg.Records
	}
	if s.cfg.Rate == 0 {
		return last
	}
	return min(last, first+uint64(since.Seconds()*float64(s.cfg.Rate)))
}

// near waits until the task has come near to the end of its log; false if ctx ended.
func (s *GeneratorSource) near(ctx context.Context) bool {
	if s.deps.Lag == nil {
		return true
	}
	for s.deps.Lag() > max(1, generatorLead/uint64(max(s.cfg.Size, 32))) {
		if !pause(ctx, leadPause) {
			return false
		}
	}
	return true
}

// log appends the batch, however long the log is full; false if ctx ended.
func (s *GeneratorSource) log(ctx context.Context, b *generatorBuilder, at generatorCursor, in dataflow.Ingest) bool {
	c, err := json.Marshal(at)
	if err != nil {
		panic(err) // a number
	}
	for {
		err := in.Append(dataflow.IngestBatch{Payload: b.payload, Count: b.count, IDs: b.ids, Cursor: c}, func() {})
		if err == nil {
			s.note(at.Next, false)
			return true
		}
		if !pause(ctx, fullWait) {
			return false
		}
	}
}

// end logs the end of the input.
func (s *GeneratorSource) end(ctx context.Context, in dataflow.Ingest) error {
	for in.End() != nil {
		if !pause(ctx, fullWait) {
			return nil
		}
	}
	s.note(s.cfg.Records, true)
	return nil
}

func (s *GeneratorSource) note(offset uint64, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = GeneratorStatus{offset, ended}
}

// generatorBuilder makes batches in a buffer that it uses again.
type generatorBuilder struct {
	cfg  GeneratorConfig
	salt uint64

	payload, ids []byte
	count        int
	key, value   []byte
}

// fill makes a batch of records from next on, before upto, and returns the number after them.
func (b *generatorBuilder) fill(next, upto uint64, now int64) (uint64, error) {
	b.payload, b.ids, b.count = b.payload[:0], b.ids[:0], 0
	us := time.Now().UnixMicro()
	for ; next < upto && len(b.payload) < generatorBatch; next++ {
		r := mix(b.salt + next*0x9e3779b97f4a7c15)
		b.key = strconv.AppendUint(append(b.key[:0], 'k'), r%uint64(b.cfg.Keys), 10)
		b.value = b.appendValue(b.value[:0], next, r>>32, us)
		rec := frame.Record{Key: b.key, Time: now, Value: b.value}
		if b.cfg.Key.Kind != extract.KeyTopic {
			key, err := b.cfg.Key.Key(string(b.key), b.value)
			if err != nil {
				return next, err
			}
			rec.Key = []byte(key)
		}
		var err error
		if b.cfg.Time.Path != "" {
			rec.Time, err = b.cfg.Time.Time(b.value, now)
		}
		if err = errors.Join(err, rec.Check()); err != nil {
			return next, err
		}
		b.payload = frame.AppendRecord(b.payload, rec)
		b.count++
		if b.cfg.ID != "" {
			b.ids = dataflow.AppendID(b.ids, extract.ID(b.cfg.ID, b.value))
		}
	}
	return next, nil
}

// appendValue writes {"n":5,"v":57.31}, v from 0 to 100, with "t" and "pad" where they are asked for.
func (b *generatorBuilder) appendValue(dst []byte, n, r uint64, us int64) []byte {
	dst = strconv.AppendUint(append(dst, `{"n":`...), n, 10)
	hundredths := r % 10000
	dst = strconv.AppendUint(append(dst, `,"v":`...), hundredths/100, 10)
	dst = append(dst, '.', byte('0'+hundredths/10%10), byte('0'+hundredths%10))
	if b.cfg.Stamp {
		dst = strconv.AppendInt(append(dst, `,"t":`...), us, 10)
	}
	const around = len(`,"pad":""}`)
	if missing := b.cfg.Size - len(dst) - around; missing > 0 {
		dst = append(dst, `,"pad":"`...)
		for ; missing > 0; missing-- {
			dst = append(dst, 'x')
		}
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

// salt begins the sequence of a source (FNV-1a of the name, over the seed).
func salt(seed uint64, name string) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return mix(h ^ mix(seed))
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
