package node

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/internal/api"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// A job whose first generation has no committed checkpoint has done nothing: no source receives before that one. So
// a corrected job file takes its place, whatever it changes, without a drain, which could never end if a task cannot
// start. The coordinator decides it: it alone commits the checkpoint, and not at the same time. Where the generation
// has begun after all, the job goes on as it is.

// unbegun says whether a job is in its first generation and that has no committed checkpoint.
func (a *Agent) unbegun(ctx context.Context, rec jobRecord) (bool, error) {
	if rec.Generation != rec.Since || rec.Base != 0 || rec.RolledBack {
		return false, nil
	}
	entries, err := a.conn.KV(wnats.Checkpoints).List(ctx, wnats.Key(kindEpoch, rec.Name))
	if err != nil {
		return false, a.failure(rec.Name, err)
	}
	for _, e := range entries {
		r, err := abs.DecodeRecord(e.Value)
		if err != nil {
			return false, err
		}
		if r.Manifest() {
			return false, nil
		}
	}
	return true, nil
}

// applyInstead asks the coordinator to put a record in the place of a generation that has not begun.
func (a *Agent) applyInstead(ctx context.Context, out api.Applied, rec jobRecord) (api.Applied, error) {
	rec.Unbegun = true
	if _, err := a.changeState(ctx, rec.Name, jobStopping, &rec); err != nil {
		return out, err
	}
	for {
		now, err := a.jobRecord(ctx, rec.Name)
		switch {
		case err == nil && now.Generation == rec.Generation:
			out.Created = true
			return a.started(ctx, out, rec)
		case err == nil && now.Next == nil, errors.Is(err, wnats.ErrNotFound):
			return out, api.Conflict("look at it and apply it again", "job %s has begun meanwhile, or was changed by somebody else", rec.Name)
		}
		if !sleep(ctx, pollEvery) {
			return out, a.notStarted(rec, ctx.Err())
		}
	}
}

// supplant does what [Agent.applyInstead] asks for.
func (l *lead) supplant(ctx context.Context, j *led) {
	kv, key := l.a.conn.KV(wnats.Jobs), wnats.Key(j.rec.Name)
	e, err := kv.Get(ctx, key)
	if err != nil {
		return
	}
	var rec jobRecord
	if json.Unmarshal(e.Value, &rec) != nil || rec.State != jobStopping || rec.Generation != j.rec.Generation || rec.Next == nil || !rec.Next.Unbegun {
		return
	}
	yes, err := l.a.unbegun(ctx, rec)
	if err == nil && yes {
		err = l.a.deleteState(ctx, rec.Name, rec.Generation)
	}
	switch {
	case err != nil:
	case yes:
		next := *rec.Next
		next.Revision, next.Since, next.Unbegun = 1, next.Generation, false
		_, err = kv.Update(ctx, key, mustJSON(next), e.Revision)
	default:
		rec.State, rec.Next, rec.Revision = jobRunning, nil, rec.Revision+1
		_, err = kv.Update(ctx, key, mustJSON(rec), e.Revision)
	}
	if err != nil {
		l.a.log.Warn("a job file does not take the place of another one yet: it will be tried again", "job", rec.Name, "error", err)
		return
	}
	l.drop(rec.Name)
}
