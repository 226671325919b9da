package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/dataflow/native"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// Pace of work that is tried again.
const (
	workRetry = 500 * time.Millisecond
	// workTries bounds a job of the background: after it, the next epoch or session takes it up.
	workTries = 20
)

// startWorkers starts what runs beside the tasks.
func (a *Agent) startWorkers() {
	a.background(func() { a.ticker.run(a.life) })
	a.background(func() { a.saves.batches(a.life, a.saveAll) })
	a.background(func() { a.acks.batches(a.life, a.sendAcks) })
	a.background(func() { a.replicas.batches(a.life, a.replicateAll) })
	a.background(func() { a.purges.each(a.life, func(p purgeJob) { p.run(a.life) }) })
}

// saveJob is a part to be made durable. One goroutine saves all: the file takes one writer at a time.
type saveJob struct {
	info    dataflow.PartInfo
	changes []dataflow.Change
	done    func(error)
}

func (a *Agent) save(info dataflow.PartInfo, changes []dataflow.Change, done func(error)) {
	a.saves.push(saveJob{info, changes, done})
}

// saveBytes bounds what is saved in one transaction, so that a large part delays no small one much.
const saveBytes = 4 << 20

// saveAll saves what has gathered, several parts in one transaction. If that fails each is tried alone,
// so that one that cannot be saved holds up no other.
func (a *Agent) saveAll(jobs []saveJob) {
	for len(jobs) > 0 {
		n, size := 0, int64(0)
		for n < len(jobs) && (n == 0 || size+jobs[n].info.Bytes <= saveBytes) {
			size += jobs[n].info.Bytes
			n++
		}
		var parts []storage.Part
		for _, j := range jobs[:n] {
			parts = append(parts, storage.Part{Info: j.info, Changes: j.changes})
		}
		err := a.store.SaveAll(parts...)
		for _, j := range jobs[:n] {
			if err != nil && n > 1 {
				a.saveAlone(j)
			} else {
				a.saved(j, err)
			}
		}
		jobs = jobs[n:]
	}
}

func (a *Agent) saveAlone(j saveJob) { a.saved(j, a.store.Save(j.info, j.changes)) }

func (a *Agent) saved(j saveJob, err error) {
	switch news := a.unsaved.note(j.info.Task, err, a.stopwatch()); {
	case news && err != nil:
		a.log.Error("snapshot not saved: it will be tried again", "task", j.info.Task, "epoch", uint64(j.info.Epoch), "error", err)
	case news:
		a.log.Info("snapshots are saved again", "task", j.info.Task, "epoch", uint64(j.info.Epoch))
	}
	if errors.Is(err, storage.ErrCorrupt) && !a.begunAnew { // no later one would be saved either
		a.fail(fmt.Errorf("%w: %w", errBeginAnew, err))
	}
	j.done(err)
	if err == nil && j.info.Local {
		if err := a.dropAlone(j.info); err != nil {
			a.log.Warn("older snapshots not dropped: the next checkpoint that counts does it", "task", j.info.Task, "error", err)
		}
	}
}

// dropAlone drops the snapshots that a task took alone before one of them.
func (a *Agent) dropAlone(newest dataflow.PartInfo) error {
	parts, err := a.store.Parts(newest.Task)
	if err != nil {
		return err
	}
	var keep []dataflow.Version
	for _, p := range parts {
		if !p.Local || p.Version >= newest.Version {
			keep = append(keep, p.Version)
		}
	}
	if len(keep) == len(parts) {
		return nil
	}
	return a.store.Drop(newest.Task, keep)
}

// ackJob is an acknowledgement to be written.
type ackJob struct {
	job string
	ack abs.Ack
}

// ackList is acknowledgements of tasks of one agent for one epoch: those that came together share a
// key, since every write to KV is fsynced. The key bears the name of the first task.
type ackList struct {
	Acks []abs.Ack `json:"acks"`
}

// sendAcks writes acknowledgements, those of a job and epoch together.
func (a *Agent) sendAcks(jobs []ackJob) {
	for len(jobs) > 0 {
		first, rest := jobs[0], jobs[:0:0]
		var list ackList
		for _, j := range jobs {
			if j.job == first.job && j.ack.Epoch == first.ack.Epoch {
				list.Acks = append(list.Acks, j.ack)
			} else {
				rest = append(rest, j)
			}
		}
		a.sendAckList(first.job, list)
		jobs = rest
	}
}

func (a *Agent) sendAckList(job string, list ackList) {
	key := ackKey(job, list.Acks[0].Epoch, list.Acks[0].Task)
	a.attempt("acknowledgements", key, func(ctx context.Context) error {
		kv := a.conn.KV(wnats.Checkpoints)
		_, err := kv.Create(ctx, key, mustJSON(list))
		if errors.Is(err, wnats.ErrConflict) {
			return mergeAcks(ctx, kv, key, list)
		}
		return err
	})
}

// mergeAcks adds acknowledgements to those of an earlier life of this agent. The first one of a task
// holds, unless it was a failure, since an initial epoch takes a later one in its place, or is of an
// earlier life of the job.
func mergeAcks(ctx context.Context, kv *wnats.KV, key string, list ackList) error {
	e, err := kv.Get(ctx, key)
	if err != nil {
		return err
	}
	var have ackList
	if err := json.Unmarshal(e.Value, &have); err != nil {
		return err
	}
	changed := false
	for _, ack := range list.Acks {
		i := slices.IndexFunc(have.Acks, func(h abs.Ack) bool { return h.Task == ack.Task })
		switch {
		case i < 0:
			have.Acks, changed = append(have.Acks, ack), true
		case have.Acks[i].Generation < ack.Generation, have.Acks[i].Failed != "" && ack.Failed == "":
			have.Acks[i], changed = ack, true
		}
	}
	if !changed {
		return nil
	}
	_, err = kv.Update(ctx, key, mustJSON(have), e.Revision)
	return err
}

// attempt tries something on the control plane until it succeeds, or often enough: what is given up
// is taken up again by the next session.
func (a *Agent) attempt(what, key string, f func(context.Context) error) bool {
	var err error
	for range workTries {
		if err = f(a.life); err == nil {
			return true
		}
		if !sleep(a.life, workRetry) {
			return false
		}
	}
	a.log.Warn("not written to the control plane: the next session tries again", "what", what, "key", key, "error", err)
	return false
}

// answer gives what a record asks of a task and the task already has: after a reconnect, or a restart.
func (a *Agent) answer(r *runner, rec abs.EpochRecord) {
	switch rec.State {
	case abs.Started:
		rep, ok := r.report(rec.Epoch)
		if !ok && rec.Initial {
			rep, ok = r.initialReport()
		}
		if ok {
			ack := r.ackOf(rep)
			ack.Epoch = rec.Epoch
			a.acks.push(ackJob{r.rec.Name, ack})
		}
	case abs.Committed:
		part, ok := rec.Parts[r.task.ID]
		if ok && r.rec.Plan.Checkpoint.Replicate && len(part.Packs) == 0 {
			a.replicas.push(replicaJob{r, rec.Epoch, part})
		}
	}
}

// fetchModule makes sure that a module is on this agent, so that it boots offline.
func (a *Agent) fetchModule(ctx context.Context, digest string) error {
	if strings.HasPrefix(digest, native.Prefix) {
		return nil
	}
	a.touchModule(digest)
	switch _, err := a.blobs.Get(digest); {
	case err == nil:
		return nil
	case errors.Is(err, storage.ErrCorrupt):
		a.log.Warn("a module's copy is damaged and fetched again", "digest", digest, "error", err)
		if err := a.blobs.Delete(digest); err != nil {
			return fmt.Errorf("module %s: %w", digest, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("module %s: %w", digest, err)
	}
	r, err := a.conn.Objects(wnats.Modules).Get(ctx, digest)
	if err != nil {
		return fmt.Errorf("module %s: %w", digest, err)
	}
	defer r.Close()
	if err := a.blobs.Put(digest, r); err != nil {
		return fmt.Errorf("module %s: %w", digest, err)
	}
	return nil
}

// basePart finds the part that a new generation of a task starts from: here, else in the replica. It says why if it
// is another one than the checkpoint's.
func (a *Agent) basePart(ctx context.Context, h *hostedJob, rec jobRecord, task abs.TaskID, local []dataflow.PartInfo) (_ *dataflow.PartInfo, why string, err error) {
	manifest, err := a.manifest(ctx, h, rec.Base)
	if err != nil {
		return nil, "", err
	}
	part, ok := manifest.Parts[task]
	if !ok {
		return nil, "", nil // a task that is new in this generation
	}
	for i, p := range local {
		if uint64(p.Version) == part.Version && p.Generation == part.Generation && p.Epoch == part.Epoch {
			return &local[i], "", nil
		}
	}
	if len(part.Packs) == 0 {
		return nil, "", fmt.Errorf("checkpoint %d of job %s has no replica of task %s, and this agent does not have the part", rec.Base, rec.Name, task)
	}
	name := rec.Name + "/" + string(task)
	if err := a.store.DropTask(name); err != nil {
		return nil, "", err
	}
	info, why, err := a.importBase(ctx, rec, task, part)
	if err != nil {
		return nil, "", fmt.Errorf("checkpoint %d of job %s: part of task %s: %w", rec.Base, rec.Name, task, err)
	}
	return &info, why, nil
}

func (a *Agent) manifest(ctx context.Context, h *hostedJob, e abs.Epoch) (abs.EpochRecord, error) {
	h.mu.Lock()
	rec, ok := h.epochs[e]
	h.mu.Unlock()
	if ok && rec.Manifest() {
		return rec, nil
	}
	entry, err := a.conn.KV(wnats.Checkpoints).Get(ctx, epochKey(h.name, e))
	if err != nil {
		return rec, fmt.Errorf("manifest of checkpoint %d of job %s: %w", e, h.name, err)
	}
	return rec, json.Unmarshal(entry.Value, &rec)
}

// forgetSessions removes the sessions that a deleted job's task keeps at its brokers. It is a courtesy:
// a broker that is away keeps them.
func (a *Agent) forgetSessions(h *hostedJob, rec jobRecord, t *job.Task) {
	r, err := newRunner(a, h, rec, t)
	if err != nil {
		return
	}
	if t.Source != nil {
		if _, err := r.source(); err != nil {
			return
		}
	}
	for _, s := range t.Sinks {
		if _, err := r.sink(s); err != nil {
			return
		}
	}
	a.background(func() {
		ctx, cancel := context.WithTimeout(a.life, 10*time.Second)
		defer cancel()
		if err := r.forgetSessions(ctx); err != nil {
			r.log.Warn("a session at a broker was not removed: it may queue messages", "error", err)
		}
	})
}
