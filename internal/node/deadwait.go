package node

import (
	"context"
	"errors"
	"log/slog"
	"syscall"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// patientLetters are the dead letters of a task, for which it waits as long as the disk takes none: on such a disk it
// could do nothing else, and a restart would not help it.
type patientLetters struct {
	dataflow.DeadLetters
	ctx context.Context
	log *slog.Logger
}

// Put implements [dataflow.DeadLetters].
func (p patientLetters) Put(task, key string, rec frame.Record, reason string) error {
	return p.insist(func() error { return p.DeadLetters.Put(task, key, rec, reason) })
}

// Replayed implements [dataflow.DeadLetters].
func (p patientLetters) Replayed(task, key string, at abs.Position) error {
	return p.insist(func() error { return p.DeadLetters.Replayed(task, key, at) })
}

// Unreplayed implements [dataflow.DeadLetters].
func (p patientLetters) Unreplayed(task string, after abs.Position) error {
	return p.insist(func() error { return p.DeadLetters.Unreplayed(task, after) })
}

// insist tries until the disk takes it, it fails for another reason, or the task is told to end.
func (p patientLetters) insist(f func() error) error {
	for said := false; ; said = true {
		err := f()
		if err == nil || !diskRefuses(err) {
			return err
		}
		if !said {
			p.log.Error("a dead letter cannot be kept: the task waits until the disk takes it", "error", err)
		}
		if !sleep(p.ctx, workRetry) {
			return errors.Join(err, p.ctx.Err())
		}
	}
}

// diskRefuses says of an error that it is a disk's that is full, can only be read or does not work.
func diskRefuses(err error) bool {
	for _, e := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EDQUOT, syscall.EIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
