package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weir-stream/weir/abs"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// touch finds the control plane and its identity. One that has gone back behind what this agent knows of it, as a
// server does that is restored from an old copy of its files, gets another identity: then every agent brings to it
// what it has, and the coordinator starts nothing before all have done so.
func (a *Agent) touch(ctx context.Context) (wnats.Cluster, error) {
	cl, err := a.conn.Ensure(ctx)
	if err != nil {
		return cl, err
	}
	if known, _, err := a.copies.Get(copyCluster, "id"); err != nil || string(known) != cl.ID || len(cl.Created) > 0 {
		return cl, err // all is brought to it in any case
	}
	why, err := a.wentBack(ctx)
	if err != nil || why == "" {
		return cl, err
	}
	a.log.Error("the control plane has gone back, as if its server had been restored from an old copy of its files; all agents bring to it what they know", "why", why)
	a.notices.add("the control plane had gone back and was brought up to date by the agents: " + why)
	if err := a.conn.Renew(ctx, cl.ID); err != nil {
		return cl, err
	}
	return a.conn.Ensure(ctx)
}

// wentBack says what of the agent's copies the control plane has forgotten although it cannot have; empty: nothing.
func (a *Agent) wentBack(ctx context.Context) (why string, err error) {
	for _, h := range a.hosted() {
		if why, err = a.jobWentBack(ctx, h); why != "" || err != nil {
			return why, err
		}
	}
	return "", nil
}

// jobWentBack compares a job's record and the newest manifest that this agent has of it with what the control plane
// has. Both only go forward there, and a copy is made of what it had.
func (a *Agent) jobWentBack(ctx context.Context, h *hostedJob) (why string, err error) {
	rec := h.record()
	e, err := a.conn.KV(wnats.Jobs).Get(ctx, wnats.Key(rec.Name))
	if errors.Is(err, wnats.ErrNotFound) {
		return "", nil // it was deleted long ago, or is brought back with its record
	}
	if err != nil {
		return "", err
	}
	var theirs jobRecord
	if err := json.Unmarshal(e.Value, &theirs); err != nil {
		return "", fmt.Errorf("job %s: %w", rec.Name, err)
	}
	switch {
	case rec.newer(theirs):
		return fmt.Sprintf("job %s was in generation %d, revision %d, and is in generation %d, revision %d there",
			rec.Name, rec.Generation, rec.Revision, theirs.Generation, theirs.Revision), nil
	case theirs.State == jobDeleted || theirs.Since > rec.Generation:
		return "", nil // its epochs are gone
	}
	manifests := h.manifests()
	if len(manifests) == 0 {
		return "", nil
	}
	return a.epochWentBack(ctx, rec.Name, manifests[len(manifests)-1])
}

// epochWentBack compares a manifest with what the control plane has of its epoch, which is kept for many epochs.
func (a *Agent) epochWentBack(ctx context.Context, job string, ours abs.EpochRecord) (why string, err error) {
	kv := a.conn.KV(wnats.Checkpoints)
	e, err := kv.Get(ctx, epochKey(job, ours.Epoch))
	switch {
	case err == nil:
		theirs, err := abs.DecodeRecord(e.Value)
		if err == nil && (theirs.Term < ours.Term || theirs.State == abs.Started) {
			why = fmt.Sprintf("epoch %d of job %s was %s in term %d, and is %s in term %d there", ours.Epoch, job, ours.State, ours.Term, theirs.State, theirs.Term)
		}
		return why, err
	case !errors.Is(err, wnats.ErrNotFound):
		return "", err
	}
	entries, err := kv.List(ctx, wnats.Key(kindEpoch, job))
	if err != nil {
		return "", err
	}
	var newest abs.Epoch
	for _, e := range entries {
		rec, err := abs.DecodeRecord(e.Value)
		if err != nil {
			return "", fmt.Errorf("%s: %w", e.Key, err)
		}
		newest = max(newest, rec.Epoch)
	}
	if newest > ours.Epoch+keptRecords {
		return "", nil // it has been tidied away
	}
	return fmt.Sprintf("epoch %d of job %s was %s, and the newest there is %d", ours.Epoch, job, ours.State, newest), nil
}
