package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/internal/api"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// Checkpoint implements [web.Checkpoints].
func (a *Agent) Checkpoint(ctx context.Context, name string, epoch uint64) (api.CheckpointDetail, error) {
	if err := a.inTouch(ctx); err != nil {
		return api.CheckpointDetail{}, err
	}
	h := a.hostedJob(name)
	if h == nil || h.record().State == jobDeleted {
		return api.CheckpointDetail{}, a.failure(name, wnats.ErrNotFound)
	}
	entries, err := a.conn.KV(wnats.Checkpoints).List(ctx, wnats.Key(kindEpoch, name))
	if err != nil {
		return api.CheckpointDetail{}, a.failure(name, err)
	}
	var newest *abs.EpochRecord
	for _, e := range entries {
		var rec abs.EpochRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			return api.CheckpointDetail{}, fmt.Errorf("checkpoint of job %s: %w", name, err)
		}
		if epoch == 0 && rec.State != abs.Committed && rec.State != abs.Replicated || epoch != 0 && uint64(rec.Epoch) != epoch {
			continue
		}
		if newest == nil || rec.Epoch > newest.Epoch {
			newest = &rec
		}
	}
	if newest == nil {
		return api.CheckpointDetail{}, api.NotFound("agent checkpoint list shows which there are", "job %s has no checkpoint %d", name, epoch)
	}
	d := api.CheckpointDetail{Checkpoint: checkpointOf(name, *newest)}
	if plan := h.record().Plan; h.record().Generation == newest.Generation {
		var channels []abs.PlannedChannel
		sources := map[abs.TaskID]bool{}
		for _, c := range plan.Channels {
			channels = append(channels, abs.PlannedChannel{ID: c.ID, From: c.From, To: c.To, Back: c.Back})
		}
		for _, t := range plan.Tasks {
			sources[t.ID] = t.Source != nil
		}
		d.Channels = cutsOf(*newest, channels, sources)
	}
	for _, id := range slices.Sorted(maps.Keys(newest.Parts)) {
		if newest.Parts[id].Epoch < newest.Epoch {
			d.Kept = append(d.Kept, string(id))
		}
	}
	return d, nil
}

// cutsOf is what a manifest says of every channel.
func cutsOf(rec abs.EpochRecord, channels []abs.PlannedChannel, sources map[abs.TaskID]bool) (out []api.ChannelCut) {
	for _, c := range channels {
		to := rec.Parts[c.To].Cut
		out = append(out, api.ChannelCut{
			ID: string(c.ID), From: string(c.From), To: string(c.To), Source: sources[c.From], Back: c.Back,
			Sent: uint64(rec.Parts[c.From].Cut.Sent[c.ID]), Consumed: uint64(max(to.Consumed[c.ID], to.Logged[c.ID])),
		})
	}
	slices.SortFunc(out, func(a, b api.ChannelCut) int {
		switch {
		case a.ID < b.ID:
			return -1
		case a.ID > b.ID:
			return 1
		}
		return 0
	})
	return out
}
