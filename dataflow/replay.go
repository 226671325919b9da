package dataflow

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// A record that an operator has refused was processed by nobody in its task: the state is as before it. So it is
// replayed by an entry of the log that holds it whole, and goes through the chain from the place where it once came
// in. The entry marks the letter, again in every replay of the log, and before a part is saved that contains it: a
// letter that is not marked was not replayed, but for an entry that the log still holds.
//
// Event time is where it is when the letter is processed: what was late then is late now. A letter moves no watermark,
// and keeps no source from being idle. A call that time made due, and that was given up, is no record, and is not
// replayed: what it was about is in the operator's state, or gone from it.

// Letter is a dead letter that is to be processed again.
type Letter struct {
	Key    string // under which it was kept
	Record []byte // in frame encoding
	// Replayed is the mark that it bore when this was asked for, 0 for none. If it bears another one when its turn
	// comes, it was replayed meanwhile, and is not again.
	Replayed abs.Position
}

// letterKey names a record that was given up: the log, since another one, after a loss, has the same positions, the
// position of its entry, its index there, and, in a streamed task, the operator and the input that it was for.
func (t *Task) letterKey(pos abs.Position, index int, to []Target) string {
	key := fmt.Sprintf("%x-%d-%d", t.env.Log.ID(), pos, index)
	if t.spec.Source && sameTargets(to, t.spec.Entry) || len(to) != 1 || to[0].Kind != ToOp {
		return key
	}
	return fmt.Sprintf("%s@%s.%d", key, t.spec.Ops[to[0].Index].Operator.Name, to[0].Input)
}

func sameTargets(a, b []Target) bool {
	return slices.EqualFunc(a, b, func(x, y Target) bool { return x.Kind == y.Kind && x.Index == y.Index && x.Input == y.Input })
}

// letterPlace is what a key begins with; those from before logs were named have no log.
var letterPlace = regexp.MustCompile(`^(?:[0-9a-f]+-)?[0-9]+-([0-9]+)$`)

// letterTargets is where a letter goes again.
func (t *Task) letterTargets(key string) ([]Target, error) {
	place, to, streamed := strings.Cut(key, "@")
	at := letterPlace.FindStringSubmatch(place)
	if at == nil {
		return nil, fmt.Errorf("dead letter %s was refused by no operator, and only those can be replayed", key)
	}
	if index, err := strconv.ParseUint(at[1], 10, 64); err != nil || index >= timeCalls {
		return nil, fmt.Errorf("dead letter %s is no record but a timer, a watermark or the end of the input on which an operator failed: it cannot be replayed", key)
	}
	if !streamed && t.spec.Source {
		return t.spec.Entry, nil
	}
	if !streamed && len(t.spec.Inputs) > 0 { // from before keys named the operator
		for _, in := range t.spec.Inputs {
			if !sameTargets([]Target{in.To}, []Target{t.spec.Inputs[0].To}) {
				return nil, fmt.Errorf("dead letter %s does not say for which input of the task it was", key)
			}
		}
		return []Target{t.spec.Inputs[0].To}, nil
	}
	dot := strings.LastIndexByte(to, '.')
	input, err := strconv.Atoi(to[dot+1:])
	if dot < 0 || err != nil || input < 0 {
		return nil, fmt.Errorf("dead letter %s was refused by no operator, and only those can be replayed", key)
	}
	for i, op := range t.spec.Ops {
		if op.Operator.Name == to[:dot] && input < len(op.Operator.Inputs) {
			return []Target{{Kind: ToOp, Index: i, Input: input}}, nil
		}
	}
	return nil, fmt.Errorf("dead letter %s was for operator %s, which the task has no more", key, to[:dot])
}

// CanReplay says why the task cannot take a letter of that key; nil: it can. It may be called from any goroutine.
func (t *Task) CanReplay(key string) error {
	_, err := t.letterTargets(key)
	return err
}

// Replay asks the task to process letters again. One that it has been given already, and that is not marked
// yet, it passes over.
func (t *Task) Replay(letters ...Letter) {
	t.mail.post(func() {
		for _, l := range letters {
			queued := slices.ContainsFunc(t.letters, func(q Letter) bool { return q.Key == l.Key })
			if _, logged := t.replayed[l.Key]; !queued && !logged {
				t.letters = append(t.letters, l)
			}
		}
	})
}

// replayEntry is a letter in the log: stamp (8 bytes, ms), length of its key (uvarint), key, record.
type replayEntry struct {
	stamp int64
	Letter
}

func (e replayEntry) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(e.stamp))
	b = append(binary.AppendUvarint(b, uint64(len(e.Key))), e.Key...)
	return append(b, e.Record...)
}

func decodeReplay(b []byte) (e replayEntry, err error) {
	r := entryReader{b: b}
	e.stamp = r.i64()
	e.Key = string(r.bytes(r.uvarint()))
	e.Record = r.b
	if r.err != nil {
		return e, r.err
	}
	if n, err := frame.Skip(e.Record, 1); err != nil || n != len(e.Record) {
		return e, fmt.Errorf("%w: letter %q is not one record", errEntry, e.Key)
	}
	return e, nil
}

// replayDue logs a letter that waits to be replayed; a streamed task then takes it at once. None is taken while
// the generation ends: a letter would be marked whose effect the next one does not have.
func (t *Task) replayDue() (bool, error) {
	if len(t.letters) == 0 || t.ended || t.draining || t.final || t.lastEpoch != 0 && t.epoch == t.lastEpoch {
		return false, nil
	}
	if t.follow != nil && !t.spec.Source { // what the log holds comes first
		return false, nil
	}
	l := t.letters[0]
	if at, err := t.env.Dead.ReplayedAt(t.spec.Name(), l.Key); err != nil {
		return false, err
	} else if _, err := t.letterTargets(l.Key); err != nil || at != l.Replayed {
		t.letters = t.letters[1:]
		return true, nil
	}
	e := replayEntry{max(t.stamp, t.env.Clock()), l}
	pos, err := t.env.Log.Append(EntryReplay, e.encode())
	if err != nil {
		return false, ignoreFull(err)
	}
	t.letters = t.letters[1:]
	t.replayed[l.Key] = pos
	if t.spec.Source {
		return true, nil
	}
	return true, t.replay(pos, e)
}

// replay takes a letter of the log. A source may have logged one behind the final barrier of its generation before it
// came to that: then the next generation processes it, whose operators may be other ones. If this one goes on after
// all, it does so before anything else. Behind the end of the input a letter has no effect.
func (t *Task) replay(pos abs.Position, e replayEntry) error {
	t.pos = pos
	switch {
	case t.ended:
		return nil
	case t.final:
		t.heldLetters = append(t.heldLetters, heldLetter{pos, e})
		return nil
	}
	return t.redo(pos, e)
}

// redo processes a letter.
func (t *Task) redo(pos abs.Position, e replayEntry) error {
	to, err := t.letterTargets(e.Key)
	if err != nil {
		return fmt.Errorf("log entry %d: %w", pos, err)
	}
	t.pos, t.stamp = pos, max(t.stamp, e.stamp)
	t.letterMarks = append(t.letterMarks, letterMark{pos, e.Key})
	return t.process(pos, to, Batch{Stamp: t.stamp, Count: 1, Payload: e.Record})
}

// heldLetter is one that was logged behind the final barrier of a generation.
type heldLetter struct {
	pos abs.Position
	replayEntry
}

// goOn says that the final epoch was aborted: the entry at a position shows that the generation goes on.
func (t *Task) goOn(pos abs.Position) error {
	t.final = false
	return t.releaseLetters(pos)
}

// releaseLetters processes the letters that were held back. What is made of them follows from the entry at a position.
func (t *Task) releaseLetters(pos abs.Position) error {
	held := t.heldLetters
	t.heldLetters = nil
	for _, l := range held {
		t.unsure.add(l.pos, pos)
		if err := t.redo(l.pos, l.replayEntry); err != nil {
			return err
		}
	}
	return nil
}

// letterMark is a letter to be marked as replayed, once the log is synced past the entry that says so.
type letterMark struct {
	pos abs.Position
	key string
}

// mark marks letters that have been replayed.
func (t *Task) mark(synced abs.Position) error {
	for len(t.letterMarks) > 0 && t.letterMarks[0].pos <= synced {
		m := t.letterMarks[0]
		if err := t.env.Dead.Replayed(t.spec.Name(), m.key, m.pos); err != nil {
			return err
		}
		t.letterMarks = t.letterMarks[1:]
		if t.replayed[m.key] == m.pos {
			delete(t.replayed, m.key)
		}
	}
	return nil
}

// forgetReplays takes back what a streamed task has replayed beyond the part that its generation begins with, nil for
// none: that is void.
func (t *Task) forgetReplays(old *PartInfo) error {
	if t.spec.Source {
		return nil
	}
	clear(t.replayed)
	switch {
	case old == nil && t.env.RolledBack:
		return t.env.Dead.Unreplayed(t.spec.Name(), 0)
	case old == nil || !t.env.BaseHere: // positions are of a log that is not here
		return nil
	}
	return t.env.Dead.Unreplayed(t.spec.Name(), old.Pos)
}
