package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// errReplicaBad says that the replica that a task needs is damaged or incomplete, and there is no other one.
var errReplicaBad = errors.New("the replica is damaged or incomplete, and there is no other one that would do")

// badReplica says of an error that the replica's content is to blame: to try again would not help. What cannot be
// reached may still be whole.
func badReplica(ctx context.Context, err error) bool {
	bad := errors.Is(err, storage.ErrCorrupt) || errors.Is(err, wnats.ErrNotFound) || errors.Is(err, wnats.ErrDamaged)
	return bad && !errors.Is(err, wnats.ErrUnavailable) && ctx.Err() == nil
}

// openPacks opens packs, oldest first; close closes those that were opened.
func (a *Agent) openPacks(ctx context.Context, names []string) (readers []io.Reader, closeAll func(), err error) {
	var open []io.Closer
	closeAll = func() {
		for _, c := range open {
			_ = c.Close() // they were read from
		}
	}
	for _, n := range names {
		r, err := a.openPack(ctx, n)
		if err != nil {
			closeAll()
			return nil, func() {}, err
		}
		readers, open = append(readers, r), append(open, r)
	}
	return readers, closeAll, nil
}

// importPacks puts packs into the store as one part of a task. Ones that turn out to be damaged are noted, so that
// nothing is built upon them.
func (a *Agent) importPacks(ctx context.Context, task string, names []string) (info dataflow.PartInfo, err error) {
	defer func() { a.noteBad(ctx, names, err) }()
	readers, closeAll, err := a.openPacks(ctx, names)
	if err != nil {
		return info, err
	}
	defer closeAll()
	return a.store.ImportPacks(task, readers...)
}

// checkPacks reads packs to their end.
func (a *Agent) checkPacks(ctx context.Context, names []string) (err error) {
	defer func() { a.noteBad(ctx, names, err) }()
	readers, closeAll, err := a.openPacks(ctx, names)
	if err != nil {
		return err
	}
	defer closeAll()
	return storage.CheckPacks(readers...)
}

func (a *Agent) noteBad(ctx context.Context, names []string, err error) {
	if err == nil || len(names) == 0 || !badReplica(ctx, err) {
		return
	}
	a.badPacks.Store(names[len(names)-1], true)
	a.log.Error("a replica cannot be used", "pack", names[len(names)-1], "error", err)
}

// builtOnBad says whether a chain of packs begins with one that is known to end in a bad pack.
func (a *Agent) builtOnBad(packs []string) bool {
	return slices.ContainsFunc(packs, func(p string) bool {
		_, bad := a.badPacks.Load(p)
		return bad
	})
}

// spare are the parts, newest first, from which a source may begin in place of one whose replica is bad: replicated
// ones of the same generation that are older. What lies between is lost with the rest that only the old device knew.
func (a *Agent) spare(ctx context.Context, job string, task abs.TaskID, than abs.Part) ([]abs.Part, error) {
	entries, err := a.conn.KV(wnats.Checkpoints).List(ctx, wnats.Key(kindEpoch, job))
	if err != nil {
		return nil, err
	}
	var parts []abs.Part
	for _, e := range entries {
		rec, err := abs.DecodeRecord(e.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Key, err)
		}
		p, ok := rec.Parts[task]
		if ok && rec.State == abs.Replicated && p.Generation == than.Generation && p.Version < than.Version && len(p.Packs) > 0 {
			parts = append(parts, p)
		}
	}
	slices.SortFunc(parts, func(a, b abs.Part) int {
		switch {
		case a.Version > b.Version:
			return -1
		case a.Version < b.Version:
			return 1
		}
		return 0
	})
	return slices.CompactFunc(parts, func(a, b abs.Part) bool { return a.Version == b.Version }), nil
}

// importBase puts the part that a task begins a generation with into the store. A replaced source whose newest
// replica is bad begins with an older one; any other task has to begin with what the others have it in their parts.
func (a *Agent) importBase(ctx context.Context, rec jobRecord, task abs.TaskID, part abs.Part) (info dataflow.PartInfo, why string, err error) {
	name := rec.Name + "/" + string(task)
	info, err = a.importPacks(ctx, name, part.Packs)
	if err == nil || !badReplica(ctx, err) {
		return info, "", err
	}
	newest := err
	if t := rec.Plan.Task(task); t.Replaced && t.Source != nil {
		spare, err := a.spare(ctx, rec.Name, task, part)
		if err != nil {
			return info, "", err
		}
		for _, p := range spare {
			switch info, err = a.importPacks(ctx, name, p.Packs); {
			case err == nil:
				return info, fmt.Sprintf("the replica of epoch %d is damaged, and that of epoch %d was taken instead", part.Epoch, p.Epoch), nil
			case !badReplica(ctx, err):
				return info, "", err
			}
		}
	}
	return info, "", fmt.Errorf("%w: %w", errReplicaBad, newest)
}

const (
	// scrubSmall is the size in bytes of objects that are read at the beginning of a term; larger ones are read when
	// scrubLater has passed, so that a server that has just started has less to do.
	scrubSmall = 1 << 20
	scrubLater = time.Minute
)

// scrub reads what the newest checkpoints have in the object store, once in a term, that is, also after each start of
// the server. What is damaged is removed: an agent whose pack is gone stores its next one whole, and the time to
// notice is while it still can.
func (l *lead) scrub(ctx context.Context) error {
	for l.a.currentCluster() == "" {
		if !sleep(ctx, pollEvery) {
			return nil
		}
	}
	for _, large := range []bool{false, true} {
		if large && !sleep(ctx, scrubLater) {
			return nil
		}
		for _, h := range l.a.hosted() {
			if err := l.scrubJob(ctx, h.name, large); err != nil && ctx.Err() == nil {
				l.a.log.Warn("replicas not looked through", "job", h.name, "error", err)
			}
		}
	}
	return nil
}

func (l *lead) scrubJob(ctx context.Context, job string, large bool) error {
	entries, err := l.a.conn.KV(wnats.Checkpoints).List(ctx, wnats.Key(kindEpoch, job))
	if err != nil {
		return err
	}
	var newest abs.EpochRecord
	for _, e := range entries {
		rec, err := abs.DecodeRecord(e.Value)
		if err != nil {
			return fmt.Errorf("%s: %w", e.Key, err)
		}
		if rec.State == abs.Replicated && rec.Epoch >= newest.Epoch {
			newest = rec
		}
	}
	seen := map[string]bool{}
	for _, p := range newest.Parts {
		for _, pack := range p.Packs {
			object, _ := splitPack(pack)
			if seen[object] {
				continue
			}
			seen[object] = true
			if err := l.scrubObject(ctx, object, large); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *lead) scrubObject(ctx context.Context, name string, large bool) error {
	objects := l.a.conn.Objects(wnats.Snapshots)
	o, err := objects.Has(ctx, name)
	if errors.Is(err, wnats.ErrNotFound) {
		return nil
	}
	if err != nil || large != (o.Size > scrubSmall) {
		return err
	}
	r, err := objects.Get(ctx, name)
	if err == nil {
		_, err = io.Copy(io.Discard, r)
		err = errors.Join(err, r.Close())
	}
	if err == nil || !badReplica(ctx, err) {
		return err
	}
	if _, gone := objects.Has(ctx, name); errors.Is(gone, wnats.ErrNotFound) {
		return nil // a newer checkpoint counts, and this was given up while it was read
	}
	l.a.log.Error("a replica is damaged and removed: the agent stores the next one whole", "object", name, "error", err)
	l.a.notices.add(fmt.Sprintf("object store: replica %s was damaged and removed: %v", name, err))
	return objects.Delete(ctx, name)
}

// checkReplica makes sure that the parts of tasks that have lost theirs are to be had.
func (a *Agent) checkReplica(ctx context.Context, rec jobRecord, base abs.Epoch) error {
	var gone []string
	var manifest abs.EpochRecord
	for _, t := range rec.Plan.Tasks {
		if !t.Replaced {
			continue
		}
		if manifest.State == "" {
			e, err := a.conn.KV(wnats.Checkpoints).Get(ctx, epochKey(rec.Name, base))
			if err != nil {
				return a.failure(rec.Name, fmt.Errorf("manifest of checkpoint %d: %w", base, err))
			}
			if manifest, err = abs.DecodeRecord(e.Value); err != nil {
				return err
			}
		}
		part, ok := manifest.Parts[t.ID]
		if !ok {
			continue
		}
		why, err := a.replicaOf(ctx, rec.Name, t.ID, t.Source != nil, part)
		if err != nil {
			return a.failure(rec.Name, err)
		}
		if why != "" {
			gone = append(gone, fmt.Sprintf("%s (%s)", t.ID, why))
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return api.Conflict(
		fmt.Sprintf("bring the object store back (directory nats of the agent that runs the server), or give up the state of the whole job: agent job delete %s --force, then apply it", rec.Name),
		"job %s cannot go on from checkpoint %d: the replica is gone or damaged, too: %s", rec.Name, base, strings.Join(gone, ", "))
}

// replicaOf reads the replica that a task would begin with, and says what is wrong with it; empty: nothing.
func (a *Agent) replicaOf(ctx context.Context, job string, task abs.TaskID, source bool, part abs.Part) (why string, err error) {
	if len(part.Packs) == 0 {
		return "it was never stored", nil
	}
	err = a.checkPacks(ctx, part.Packs)
	if err == nil || !badReplica(ctx, err) {
		return "", err
	}
	why = err.Error()
	if !source {
		return why, nil
	}
	spare, err := a.spare(ctx, job, task, part)
	if err != nil {
		return "", err
	}
	for _, p := range spare {
		if err := a.checkPacks(ctx, p.Packs); err == nil || !badReplica(ctx, err) {
			return "", err
		}
	}
	return why, nil
}
