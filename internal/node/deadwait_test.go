package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// refusing refuses so many letters.
type refusing struct {
	dataflow.DeadLetters
	times int
	err   error
	calls int
	stop  context.CancelFunc // called at each refusal; nil: nothing is
}

func (r *refusing) Put(string, string, frame.Record, string) error {
	r.calls++
	if r.calls > r.times {
		return nil
	}
	if r.stop != nil {
		r.stop()
	}
	return r.err
}

func (r *refusing) Replayed(string, string, abs.Position) error {
	return r.Put("", "", frame.Record{}, "")
}
func (r *refusing) Unreplayed(string, abs.Position) error { return r.Put("", "", frame.Record{}, "") }

// TestPatientLetters: a task waits for a disk that takes no dead letter, until it does or the task ends, and for
// nothing else.
func TestPatientLetters(t *testing.T) {
	for _, err := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EDQUOT, syscall.EIO} {
		r := &refusing{times: 1, err: fmt.Errorf("dead letter: %w", err)}
		p := patientLetters{r, t.Context(), slog.New(slog.DiscardHandler)}
		if err := errors.Join(p.Put("", "", frame.Record{}, ""), p.Replayed("", "", 1), p.Unreplayed("", 1)); err != nil || r.calls != 4 {
			t.Errorf("%v after %d calls", err, r.calls)
		}
	}
	other := errors.New("another")
	r := &refusing{times: 9, err: other}
	p := patientLetters{r, t.Context(), slog.New(slog.DiscardHandler)}
	if err := p.Put("", "", frame.Record{}, ""); !errors.Is(err, other) || r.calls != 1 {
		t.Errorf("%v after %d calls", err, r.calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r = &refusing{times: 9, err: syscall.ENOSPC, stop: cancel}
	p = patientLetters{r, ctx, slog.New(slog.DiscardHandler)}
	if err := p.Put("", "", frame.Record{}, ""); !errors.Is(err, context.Canceled) || r.calls != 1 {
		t.Errorf("%v after %d calls", err, r.calls)
	}
}
