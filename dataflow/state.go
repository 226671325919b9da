package dataflow

import (
	"encoding/json"
	"fmt"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// taskMeta is the part of a snapshot that is the task's own: numbers and checksums of its channels,
// the aligner, and what its sinks have not confirmed. Channels and sinks are named, not numbered:
// indexes belong to a generation.
type taskMeta struct {
	Stamp  int64  `json:"stamp"`
	Cursor []byte `json:"cursor,omitempty"` // of the source
	Marks  []byte `json:"marks,omitempty"`  // of the source, as in marks.go
	Final  bool   `json:"final,omitempty"`  // the part is of the barrier that ended the source's generation
	Ended  bool   `json:"ended,omitempty"`  // End was sent on every output
	// Draining: the part is the last one of its generation, and what comes back to the task, a loop head,
	// is left to the next.
	Draining bool            `json:"draining,omitempty"`
	Epoch    abs.Epoch       `json:"epoch"` // last barrier sent
	Log      uint64          `json:"log"`   // that the part's position is of
	Aligner  abs.State       `json:"aligner"`
	Aligned  []abs.ChannelID `json:"aligned,omitempty"` // channels that had delivered the barrier
	// Logged is the last number of every back edge that the part's loop log holds.
	Logged map[abs.ChannelID]abs.Seq `json:"logged,omitempty"`
	In     map[abs.ChannelID]inMeta  `json:"in,omitempty"`
	Out    map[abs.ChannelID]outMeta `json:"out,omitempty"`
	Sinks  map[string]sinkMeta       `json:"sinks,omitempty"`
	// Upgraded names the versions of the operators that the state is of.
	Upgraded Upgraded `json:"upgraded,omitzero"`
	// Of event time. A part from before there was any lacks it: nothing has come then.
	Watermark *int64      `json:"watermark,omitempty"` // nil: none yet
	Told      *int64      `json:"told,omitempty"`      // the last one sent
	ToldIdle  bool        `json:"told_idle,omitempty"`
	Source    *sourceTime `json:"source,omitempty"`
	// Drained: the part is the last one of its generation, and nothing has come behind its barrier.
	Drained bool `json:"drained,omitempty"`
}

type inMeta struct {
	Next  abs.Seq   `json:"next"`
	Sum   frame.Sum `json:"sum"`
	Ended bool      `json:"ended,omitempty"`
	// Watermark is the last one that came, nil: none has.
	Watermark *int64 `json:"watermark,omitempty"`
	Idle      bool   `json:"idle,omitempty"`
}

// someTime and timeOr turn a watermark into what the state has of it, and back.
func someTime(w int64) *int64 {
	if w == NoTime {
		return nil
	}
	return &w
}

func timeOr(w *int64) int64 {
	if w == nil {
		return NoTime
	}
	return *w
}

type outMeta struct {
	Sent     abs.Seq   `json:"sent"`
	Sum      frame.Sum `json:"sum"`
	Reserved abs.Seq   `json:"reserved"`
}

type sinkMeta struct {
	Index     int       `json:"index"` // in the generation that took the part: the log names sinks by it
	Next      abs.Seq   `json:"next"`
	Sum       frame.Sum `json:"sum"`
	Handed    abs.Seq   `json:"handed"`
	HandedSum frame.Sum `json:"handed_sum"`
	// Sent and Received are of a sink that resumes: how far it may have sent, and the other side has received.
	Sent     abs.Seq `json:"sent,omitempty"`
	Received abs.Seq `json:"received,omitempty"`
	// Outbox holds the encoded records after Handed; it makes the part independent of the broker.
	Outbox [][]byte `json:"outbox,omitempty"`
}

func (t *Task) meta() taskMeta {
	m := taskMeta{
		Stamp: t.stamp, Cursor: t.cursor, Marks: encodeMarks(t.marks), Final: t.final, Ended: t.ended, Draining: t.draining, Epoch: t.epoch, Log: t.env.Log.ID(), Aligner: t.aligner.State(),
		In: map[abs.ChannelID]inMeta{}, Out: map[abs.ChannelID]outMeta{}, Sinks: map[string]sinkMeta{}, Upgraded: t.upgraded,
	}
	m.Watermark, m.Told, m.ToldIdle, m.Drained = someTime(t.watermark), someTime(t.told), t.toldIdle, t.drained
	if t.source != (sourceTime{}) {
		source := t.source
		m.Source = &source
	}
	for _, c := range t.inbox.chans {
		m.In[c.ID] = inMeta{c.next, c.sum, c.ended, someTime(c.time.watermark), c.time.idle}
	}
	for _, o := range t.outs {
		m.Out[o.ID] = outMeta{o.next - 1, o.sum, max(o.reserved, o.reserving)}
	}
	for _, p := range t.chain.sinks {
		sm := sinkMeta{Index: p.index, Next: p.next, Sum: p.sum, Handed: p.handed, HandedSum: p.handedSum, Sent: p.resume.sending, Received: p.resume.logged}
		for _, it := range p.items {
			if p.held != nil {
				break // it is in SpaceOutbox
			}
			sm.Outbox = append(sm.Outbox, it.record)
		}
		m.Sinks[p.name] = sm
	}
	return m
}

// forgetSent makes sinks that resume begin anew: the part is of another log, and what was sent since is
// not known here.
func (m taskMeta) forgetSent() {
	for name, s := range m.Sinks {
		s.Sent, s.Received = 0, 0
		m.Sinks[name] = s
	}
}

// tellAgain makes the task, in a new generation, tell its receivers once more how far event time has come: some of
// them may be new.
func (m *taskMeta) tellAgain() {
	m.Told, m.ToldIdle, m.Drained = nil, false, false
	if m.Source != nil {
		source := *m.Source
		source.Sent, source.Idle = nil, false
		m.Source = &source
	}
}

func (m taskMeta) encode() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("task state cannot be encoded: %v", err))
	}
	return b
}

// cut is what the task has sent and consumed.
func (t *Task) cut() abs.Cut {
	cut := abs.Cut{Sent: map[abs.ChannelID]abs.Seq{}, Consumed: map[abs.ChannelID]abs.Seq{}}
	for _, c := range t.inbox.chans {
		cut.Consumed[c.ID] = c.next - 1
	}
	for _, o := range t.outs {
		cut.Sent[o.ID] = o.next - 1
	}
	return cut
}

// LogOf reads from a saved part of which log its position is.
func LogOf(p PartInfo) (id uint64, err error) {
	m, err := decodeMeta(p)
	return m.Log, err
}

// ReportOf reads from a saved part what its task reported of it.
func ReportOf(p PartInfo) (PartReport, error) {
	m, err := decodeMeta(p)
	if err != nil {
		return PartReport{}, err
	}
	cut := abs.Cut{Sent: map[abs.ChannelID]abs.Seq{}, Consumed: map[abs.ChannelID]abs.Seq{}, Logged: m.Logged}
	for id, c := range m.In {
		cut.Consumed[id] = c.Next - 1
	}
	for id, o := range m.Out {
		cut.Sent[id] = o.Sent
	}
	return PartReport{Info: p, Cut: cut, Aligned: m.Aligned, Ended: m.Ended}, nil
}

func decodeMeta(p PartInfo) (m taskMeta, err error) {
	if err := json.Unmarshal(p.Meta, &m); err != nil {
		return m, fmt.Errorf("task %s: state of snapshot %d cannot be read: %w", p.Task, p.Version, err)
	}
	return m, nil
}
