package direct

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// Errors that callers may branch on.
var (
	// ErrFull says that a limit of the stream has been reached.
	ErrFull = errors.New("the stream is full")
	// ErrUnavailable says that the receiver has not opened its stream yet.
	ErrUnavailable = errors.New("the receiver has not opened its stream")
	// ErrLost says that a place of another stream was named.
	ErrLost = errors.New("the place is not of this stream")
	// ErrClosed says that the output is closed.
	ErrClosed = errors.New("the output is closed")
)

// errAllFull says that the limit of all streams together has been reached.
var errAllFull = fmt.Errorf("%w: the agent's streams", ErrFull)

// DefaultChannelFrames is how many frames a stream takes per channel, if [Options] do not say. It is a backstop, far
// above what credit lets lie there; the steady bound is the purge after each counting checkpoint.
const DefaultChannelFrames = 1 << 16

// Options limit the streams.
type Options struct {
	ChannelFrames int // per channel; 0: [DefaultChannelFrames]
	Bytes         int // of all frames of a stream; 0: no limit
	Total         int // of all streams; 0: no limit
	Least         int // of a channel's frames that are taken whatever the two before say, in bytes
	Log           *slog.Logger
}

// Streams are the streams of one process.
type Streams struct {
	opt   Options
	bytes atomic.Int64 // in all streams

	mu      sync.Mutex
	streams map[name]*stream
}

var _ dataflow.Streams = (*Streams)(nil)

// New returns streams of which none is open.
func New(opt Options) *Streams {
	opt.ChannelFrames = cmp.Or(opt.ChannelFrames, DefaultChannelFrames)
	return &Streams{opt: opt, streams: map[name]*stream{}}
}

type name struct {
	job  string
	gen  abs.Generation
	task abs.TaskID
}

// hold returns the stream of a name for one more end, for each of which drop is called once.
func (s *Streams) hold(n name) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.streams[n]
	if st == nil {
		st = &stream{owner: s, name: n, opt: s.opt, lanes: map[int]*lane{}, senders: map[int]*output{}}
		s.streams[n] = st
	}
	st.ends++
	return st
}

func (s *Streams) drop(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.ends--; st.ends == 0 {
		delete(s.streams, st.name)
		st.end()
	}
}

// relieve makes room for so many bytes in all streams together, and returns how many are free by it.
func (s *Streams) relieve(bytes int) (freed int) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.streams))
	s.mu.Unlock()
	for _, st := range all {
		if freed < bytes {
			freed += st.relieve(-1, bytes-freed)
		}
	}
	return freed
}

// OpenInput opens a task's input stream, which one input may have open at a time. Frames of channels that are not
// named are dropped.
func (s *Streams) OpenInput(_ context.Context, job string, gen abs.Generation, task abs.TaskID, channels []int) (dataflow.Input, error) {
	st := s.hold(name{job, gen, task})
	in := newInput(s, st, channels)
	if !st.open(in) {
		s.drop(st)
		return nil, fmt.Errorf("input of %s: it is open already", task)
	}
	go in.run()
	return in, nil
}

// OpenOutput opens a task's output channels.
func (s *Streams) OpenOutput(_ context.Context, job string, gen abs.Generation, to map[int]abs.TaskID) (dataflow.Output, error) {
	o := newOutput(s)
	for channel, task := range to {
		st := s.hold(name{job, gen, task})
		o.streams[channel] = st
		st.attach(channel, o)
	}
	o.wg.Go(o.run)
	return o, nil
}

// stream is what lies between the ends of a task's channels. All frames are in one list, in order of arrival, and
// those of a channel in one of its own, so that both reading and purging take time for what they take only.
type stream struct {
	owner *Streams
	name  name
	opt   Options
	ends  int // open, guarded by the mutex of Streams

	mu          sync.Mutex
	made        bool // an input has been opened; before, nothing is taken
	ended       bool // all ends have been closed
	first, last *entry
	lanes       map[int]*lane // by channel
	bytes       int
	seq         uint64 // of the last frame ever taken
	in          *input
	senders     map[int]*output // by channel
	free        *entry          // entries to be used again, linked by next
	spare       int             // how many
}

// entry is a frame in the stream.
type entry struct {
	prev, next *entry
	behind     *entry // the channel's next one
	channel    int
	seq        uint64
	frame      []byte
}

// lane is the frames of one channel.
type lane struct {
	first, last *entry
	count       int
	bytes       int
	below       abs.Seq // the receiver has consumed all numbers below, as it said last in this reading; 0: it has not
	void        uint64  // the last place delivered when it asked for what it lacks again: it holds none up to there
}

// maxSpare bounds the entries that are kept for frames to come.
const maxSpare = 1024

func (st *stream) open(in *input) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.in != nil {
		return false
	}
	st.made, st.in = true, in
	in.begin()
	return true
}

// leave detaches an input: nothing is delivered to it from outside any more, and it delivers none of the frames, which
// may be purged now without its knowing.
func (st *stream) leave() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.in.next, st.in.drained = nil, true
	st.in = nil
}

// end lets the contents go.
func (st *stream) end() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ended = true
	st.owner.bytes.Add(-int64(st.bytes))
	st.first, st.last, st.free, st.lanes, st.bytes = nil, nil, nil, map[int]*lane{}, 0
}

func (st *stream) attach(channel int, o *output) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.senders[channel] = o
}

func (st *stream) detach(channel int, o *output) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.senders[channel] == o {
		delete(st.senders, channel)
	}
}

// granted notes what a receiver has consumed, and returns the channel's sender, nil if there is none.
func (st *stream) granted(in *input, g dataflow.Grant) *output {
	st.mu.Lock()
	defer st.mu.Unlock()
	if l := st.lanes[g.Channel]; l != nil && st.in == in {
		l.below = g.Next
		if g.Rewind {
			l.void = in.seen
		}
	}
	return st.senders[g.Channel]
}

// ask tells the receiver that a sender wants grants.
func (st *stream) ask() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.in != nil {
		signal(st.in.asked)
	}
}

// put adds a copy of a frame. If there is no room, what has been consumed goes: the checkpoint by which it may go
// needs a barrier that would not come in. Nor may one channel's frames keep out those of another that the receiver
// waits for before it takes them, as it does in replay; therefore [Options.Least].
func (st *stream) put(channel int, frame []byte) error {
	own := append([]byte(nil), frame...) // not cleared first, unlike that of make
	err := st.add(channel, own)
	if errors.Is(err, ErrFull) && st.relieve(channel, max(len(own), st.opt.Bytes/ease)) > 0 {
		err = st.add(channel, own)
	}
	if errors.Is(err, errAllFull) && st.owner.relieve(max(len(own), st.opt.Total/ease)) > 0 {
		err = st.add(channel, own)
	}
	return err
}

// ease is the share of a limit that is made free at a time, as its inverse: what need not go is not made again by a
// sender if the receiver is started anew.
const ease = 8

// relieve lets frames of so many bytes go that the receiver has consumed, although no checkpoint counts that has them, or
// that lie beyond a gap: the sender makes them again if the receiver is started anew from before them, or to fill the
// gap. Those of the channel that lacks room go first, until it has some. It returns how many bytes are free by it.
func (st *stream) relieve(channel, bytes int) (freed int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if l := st.lanes[channel]; l != nil {
		for l.over() && (freed < bytes || l.count > st.opt.ChannelFrames-st.opt.ChannelFrames/ease-1) {
			freed += st.unlink(l)
		}
	}
	for _, l := range st.lanes {
		for freed < bytes && l.over() {
			freed += st.unlink(l)
		}
	}
	return freed
}

// over says that the receiver does not need the channel's first frame any more as long as it does not go back.
func (l *lane) over() bool {
	if l.first == nil || l.first.seq <= l.void {
		return l.first != nil
	}
	h, err := frame.DecodeHeader(l.first.frame)
	return err == nil && h.Last() < uint64(l.below)
}

// add adds a frame, which is the stream's own from then on.
func (st *stream) add(channel int, own []byte) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	l := st.lanes[channel]
	if l == nil {
		l = &lane{}
		st.lanes[channel] = l
	}
	spared := l.bytes+len(own) <= st.opt.Least
	switch {
	case st.ended:
		return ErrClosed
	case !st.made:
		return ErrUnavailable
	case l.count >= st.opt.ChannelFrames:
		return fmt.Errorf("%w: it has %d frames of channel %d", ErrFull, l.count, channel)
	case st.opt.Bytes > 0 && st.bytes+len(own) > st.opt.Bytes && !spared:
		return fmt.Errorf("%w: it has %d bytes of at most %d", ErrFull, st.bytes, st.opt.Bytes)
	}
	if held := st.owner.bytes.Add(int64(len(own))); st.opt.Total > 0 && held > int64(st.opt.Total) && !spared {
		st.owner.bytes.Add(-int64(len(own)))
		return fmt.Errorf("%w have %d bytes of at most %d", errAllFull, held-int64(len(own)), st.opt.Total)
	}
	st.seq++
	e := st.entry()
	e.channel, e.seq, e.frame = channel, st.seq, own
	st.link(l, e)
	if st.in != nil {
		st.in.arrived(e)
	}
	return nil
}

func (st *stream) entry() *entry {
	e := st.free
	if e == nil {
		return &entry{}
	}
	st.free, e.next = e.next, nil
	st.spare--
	return e
}

func (st *stream) link(l *lane, e *entry) {
	if st.last == nil {
		st.first = e
	} else {
		st.last.next, e.prev = e, st.last
	}
	st.last = e
	if l.last == nil {
		l.first = e
	} else {
		l.last.behind = e
	}
	l.last = e
	l.count++
	l.bytes += len(e.frame)
	st.bytes += len(e.frame)
}

// purge removes a channel's frames up to and including the one at seq.
func (st *stream) purge(channel int, seq uint64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	l := st.lanes[channel]
	for l != nil && l.first != nil && l.first.seq <= seq {
		st.unlink(l)
	}
}

// unlink removes a channel's first frame and returns its size in bytes.
func (st *stream) unlink(l *lane) (bytes int) {
	e := l.first
	bytes = len(e.frame)
	if l.first = e.behind; l.first == nil {
		l.last = nil
	}
	l.count--
	l.bytes -= len(e.frame)
	st.bytes -= len(e.frame)
	st.owner.bytes.Add(-int64(len(e.frame)))
	if e.prev == nil {
		st.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		st.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	if st.in != nil && st.in.next == e {
		st.in.next = e.next
	}
	*e = entry{}
	if st.spare < maxSpare {
		e.next, st.free = st.free, e
		st.spare++
	}
	return bytes
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
