package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/storage"
)

// keptManifests is how many manifests of a job an agent keeps copies of: the newest, the one before
// it that may be the newest to count, and one to fall back on.
const keptManifests = 3

// hostedJob is a job as this agent has it: its record, the manifests it knows, and the runners of its
// own tasks. Records reach it one at a time (see Agent.news).
type hostedJob struct {
	a    *Agent
	name string

	mu      sync.Mutex
	rec     jobRecord
	runners map[abs.TaskID]*runner
	epochs  map[abs.Epoch]abs.EpochRecord // newest records seen, manifests and the one in flight
	counted abs.Epoch                     // the newest epoch that was acted on
}

// load brings back what the agent had stored of the job.
func (a *Agent) loadJob(rec jobRecord) (*hostedJob, error) {
	h := &hostedJob{a: a, name: rec.Name, runners: map[abs.TaskID]*runner{}, epochs: map[abs.Epoch]abs.EpochRecord{}}
	err := a.copies.List(copyEpoch, func(key string, value []byte) error {
		var c epochCopy
		if err := json.Unmarshal(value, &c); err != nil {
			return fmt.Errorf("copy of epoch %s: %w", key, err)
		}
		if c.Job == rec.Name {
			h.epochs[c.Record.Epoch] = c.Record
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h, h.apply(rec)
}

// apply takes a record of the job: it is stored before anything is done for it.
func (h *hostedJob) apply(rec jobRecord) error {
	h.mu.Lock()
	old := h.rec
	h.mu.Unlock()
	if old.Name != "" && !rec.newer(old) {
		return nil
	}
	if old.Name != "" && old.State != jobDeleted && (rec.State == jobDeleted || old.Generation < rec.Since) {
		h.stopRunners()
		if err := h.forget(old); err != nil {
			return err
		}
	}
	if err := h.a.putCopy(copyJob, rec.Name, rec); err != nil {
		return err
	}
	if old.Generation != rec.Generation || !rec.live() {
		if rec.State != jobDeleted && !rec.RolledBack {
			h.emptySinks()
		}
		h.stopRunners()
	}
	h.mu.Lock()
	h.rec = rec
	h.mu.Unlock()
	if !rec.live() {
		return nil
	}
	for _, r := range h.tasks() {
		r.want(rec)
	}
	err := h.startRunners(rec)
	signal(h.a.stirred) // what has failed in another generation has not in this one
	return err
}

func (h *hostedJob) startRunners(rec jobRecord) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.runners) > 0 {
		return nil
	}
	for _, t := range rec.Plan.On(h.a.name) {
		r, err := newRunner(h.a, h, rec, t)
		if err != nil {
			return err
		}
		for _, e := range h.sortedEpochs() {
			if e.Generation == rec.Generation {
				r.epoch(e)
			}
		}
		h.runners[t.ID] = r
		r.start(h.a.life)
		r.want(rec)
	}
	return nil
}

func (h *hostedJob) sortedEpochs() []abs.EpochRecord {
	var out []abs.EpochRecord
	for _, e := range h.epochs {
		out = append(out, e)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Epoch < out[j].Epoch })
	return out
}

// sinkPatience bounds the wait of a job that has ended for its sinks.
const sinkPatience = 10 * time.Second

// emptySinks waits until the sinks have handed over what the tasks have made. What they have not is in
// the checkpoint and is sent when the job is applied again.
func (h *hostedJob) emptySinks() {
	ctx, cancel := context.WithTimeout(h.a.life, sinkPatience)
	defer cancel()
	for _, r := range h.tasks() {
		if len(r.task.Sinks) == 0 {
			continue
		}
		for sleep(ctx, 2*tickEvery) && r.unhanded() > 0 {
		}
		if n := r.unhanded(); n > 0 {
			r.log.Warn("sinks have not taken everything; the rest is in the checkpoint and is sent when the job is applied again", "records", n)
		}
	}
}

// unhanded is how many records the task's sinks have not confirmed.
func (r *runner) unhanded() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running == nil || len(r.task.Sinks) == 0 {
		return 0
	}
	return r.running.Status().Unhanded
}

// manifests are the checkpoints that are known here, by epoch.
func (h *hostedJob) manifests() []abs.EpochRecord {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(h.sortedEpochs(), func(r abs.EpochRecord) bool { return !r.Manifest() })
}

// stopRunners ends the job's tasks on this agent.
func (h *hostedJob) stopRunners() {
	h.mu.Lock()
	runners := h.runners
	h.runners = map[abs.TaskID]*runner{}
	h.mu.Unlock()
	for _, r := range runners {
		r.stop()
	}
}

// forget removes what the agent has of a deleted job.
func (h *hostedJob) forget(rec jobRecord) error {
	for _, t := range rec.Plan.On(h.a.name) {
		name := rec.Name + "/" + string(t.ID)
		h.a.forgetSessions(h, rec, t)
		if err := h.a.entries.DropStream(name); err != nil {
			return err
		}
		if err := dropSpools(h.a.entries, name, 0); err != nil {
			return err
		}
		if err := h.a.store.DropTask(name); err != nil {
			return err
		}
		h.a.clocks.forget(name)
	}
	if err := h.a.dead.forget(rec.Name); err != nil {
		return err
	}
	h.mu.Lock()
	h.epochs, h.counted = map[abs.Epoch]abs.EpochRecord{}, 0
	h.mu.Unlock()
	return h.a.forgetCopies(rec.Name)
}

func (h *hostedJob) record() jobRecord {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rec
}

func (h *hostedJob) tasks() []*runner {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*runner
	for _, r := range h.runners {
		out = append(out, r)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].task.ID < out[j].task.ID })
	return out
}

// epoch takes an epoch's record, in the order of epochs. A manifest is stored before it is acted on.
// What a record asks for is answered even if it is no news: the answer may have been lost with the
// process or the connection.
func (h *hostedJob) epoch(rec abs.EpochRecord) error {
	h.mu.Lock()
	known, seen := h.epochs[rec.Epoch]
	h.mu.Unlock()
	if seen && reflect.DeepEqual(known, rec) {
		for _, r := range h.tasks() {
			if rec.Generation == r.rec.Generation {
				h.a.answer(r, rec)
			}
		}
		return nil
	}
	if rec.Manifest() {
		if err := h.a.putCopy(copyEpoch, epochKey(h.name, rec.Epoch), epochCopy{h.name, rec}); err != nil {
			return err
		}
	}
	h.mu.Lock()
	h.epochs[rec.Epoch] = rec
	job := h.rec
	h.mu.Unlock()
	if err := h.forgetEpochs(); err != nil {
		return err
	}
	for _, r := range h.tasks() {
		if rec.Generation == r.rec.Generation {
			r.epoch(rec)
			h.a.answer(r, rec)
		}
	}
	if rec.Counts(job.Plan.Checkpoint.Replicate) {
		return h.count(rec)
	}
	return nil
}

// forgetEpochs drops records that are neither among the newest manifests nor newer than them.
func (h *hostedJob) forgetEpochs() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var manifests, savepoints []abs.Epoch
	for e, r := range h.epochs {
		switch {
		case r.Manifest() && r.Savepoint == "":
			manifests = append(manifests, e)
		case r.Manifest():
			savepoints = append(savepoints, e)
		}
	}
	sort.Slice(savepoints, func(i, j int) bool { return savepoints[i] > savepoints[j] })
	kept := savepoints[:min(len(savepoints), keptSavepoints)]
	if len(manifests) <= keptManifests {
		return nil
	}
	sort.Slice(manifests, func(i, j int) bool { return manifests[i] > manifests[j] })
	oldest := manifests[keptManifests-1]
	for e, r := range h.epochs {
		if e >= oldest || slices.Contains(kept, e) {
			continue
		}
		if r.Manifest() {
			if err := h.a.copies.Delete(copyEpoch, epochKey(h.name, e)); err != nil {
				return err
			}
		}
		delete(h.epochs, e)
	}
	return nil
}

// count gives up what a checkpoint that counts has made needless: log entries, snapshots, frames.
func (h *hostedJob) count(rec abs.EpochRecord) error {
	h.mu.Lock()
	done := rec.Epoch <= h.counted && h.counted != 0
	h.counted = max(h.counted, rec.Epoch)
	h.mu.Unlock()
	if done {
		return nil
	}
	var keep []storage.Kept
	for _, r := range h.tasks() {
		part, ok := rec.Parts[r.task.ID]
		if !ok || part.Generation != r.rec.Generation || rec.Generation != r.rec.Generation {
			continue
		}
		r.mu.Lock()
		task := r.running
		r.mu.Unlock()
		if task != nil {
			task.Counted(part.Pos)
		}
		if err := r.entries.Truncate(part.Pos); err != nil {
			return fmt.Errorf("truncate the log of %s: %w", r.name, err)
		}
		kept, err := r.needless(part)
		if err != nil {
			return err
		}
		if len(kept) > 0 {
			keep = append(keep, storage.Kept{Task: r.name, Versions: kept})
		}
		r.purge(part)
	}
	if rec.Generation == h.record().Generation && h.runs() {
		if err := h.a.tookOver(); err != nil {
			return err
		}
	}
	if len(keep) == 0 {
		return nil
	}
	return h.a.store.DropAll(keep...)
}

// runs says whether the agent has tasks of the job, and all of them run.
func (h *hostedJob) runs() bool {
	tasks := h.tasks()
	return len(tasks) > 0 && !slices.ContainsFunc(tasks, func(r *runner) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.running == nil
	})
}

// countedPart is the log position of the task's part in the newest checkpoint that counts; 0 if none is
// known of the generation.
func (h *hostedJob) countedPart(gen abs.Generation, task abs.TaskID) abs.Position {
	h.mu.Lock()
	defer h.mu.Unlock()
	var pos abs.Position
	for _, rec := range h.epochs {
		part, ok := rec.Parts[task]
		if ok && rec.Generation == gen && part.Generation == gen && rec.Counts(h.rec.Plan.Checkpoint.Replicate) {
			pos = max(pos, part.Pos)
		}
	}
	return pos
}

// Old snapshots are dropped some at a time, since every transaction costs a device tens of kilobytes.
const (
	dropParts = 4
	dropBytes = 1 << 20
)

// dropped is how many bytes of changes the parts below a version hold.
func dropped(parts []dataflow.PartInfo, below uint64) int64 {
	var n int64
	for _, p := range parts {
		if uint64(p.Version) < below {
			n += p.Bytes
		}
	}
	return n
}

// needless returns the snapshots to keep if it is time to drop those before a part that counts.
func (r *runner) needless(part abs.Part) (keep []dataflow.Version, err error) {
	parts, err := r.a.store.Parts(r.name)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if uint64(p.Version) >= part.Version {
			keep = append(keep, p.Version)
		}
	}
	if len(parts)-len(keep) < dropParts && dropped(parts, part.Version) < dropBytes {
		return nil, nil
	}
	return keep, nil
}

// purge lets the task forget what lies before a part that counts, and removes it from the input stream.
func (r *runner) purge(part abs.Part) {
	r.mu.Lock()
	task, input := r.running, r.input
	r.mu.Unlock()
	if task == nil {
		return
	}
	task.Truncated(part.Pos, part.Cut.Sent)
	if input == nil {
		return
	}
	task.Purgeable(part.Cut.Consumed, func(seqs map[int]uint64, reading uint64) {
		if len(seqs) > 0 {
			for channel, seq := range seqs {
				r.a.purges.push(purgeJob{r.log, input, map[int]uint64{channel: seq}, func(err error) {
					if err != nil {
						task.Unpurged(channel, seq, reading)
					}
				}})
			}
		}
	})
}

// purgeJob is frames of an input stream that are needed no more.
type purgeJob struct {
	log   *slog.Logger
	input dataflow.Input
	seqs  map[int]uint64 // by channel
	done  func(error)
}

func (p purgeJob) run(ctx context.Context) {
	for channel, seq := range p.seqs {
		err := p.input.Purge(ctx, channel, seq)
		p.done(err)
		if err != nil && ctx.Err() == nil {
			p.log.Warn("frames not purged from the input stream: the next checkpoint tries again", "channel", channel, "error", err)
		}
	}
}
