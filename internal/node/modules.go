package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/native"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// A module is in the object store, and on an agent that has a copy, as long as a record names it: a registered version
// of an operator, or a job that is not deleted, for what it runs, has run since it was drained, may go back to, and comes
// next, and for an older generation while a checkpoint that is kept has a part of it, or one that may still be of its
// modules. What no record names is collected.
//
// Who writes a record that names a module claims the module afterwards: it is touched, which gives it another
// revision, or stored again if it is gone. The coordinator notes a module's revision first, reads the records then,
// and deletes the module only if it still has that revision. So it either sees the record or misses the revision, in
// whatever order the two meet, and two coordinators that take each other for gone do no harm.
const (
	// moduleRest is for how long a module that no record names is kept: it may have been pushed for a job that is
	// about to be applied. It is measured from when the coordinator, or the agent with its copy, first saw it so.
	moduleRest = 30 * time.Minute
	sweepEvery = time.Minute
	// remainsRest is for how long nothing must have been added to what an object that was not stored whole has left in an
	// object store, as an agent that lost its power does: then it is removed. It is looked for as often.
	remainsRest = time.Hour
	// claimTries bounds how often a module is touched and stored in turn because it was taken away in between.
	claimTries = 10
)

// modules is what an agent knows of its copies of modules.
type modules struct {
	mu      sync.Mutex
	touched map[string]time.Duration // by digest: when somebody here last wanted it, on the stopwatch
	inTouch time.Duration            // since when the agent hears of changed records
	space   moduleSpace
}

// moduleSpace is what modules take on this agent's disk, in bytes, and what was given back since the process started.
type moduleSpace struct {
	copies, compiled                        int64
	goneCopies, goneCompiled, goneFromStore int64
}

// touchModule keeps the copy of a module here for a while, whether it is there already or not.
func (a *Agent) touchModule(digest string) {
	m := &a.modules
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.touched == nil {
		m.touched = map[string]time.Duration{}
	}
	m.touched[digest] = a.stopwatch()
}

// claimModule makes sure that a module that a record names is in the object store and stays there. The error is one
// of [fs.ErrNotExist] if it is neither there nor here.
func (a *Agent) claimModule(ctx context.Context, digest string) error {
	if strings.HasPrefix(digest, native.Prefix) {
		return nil
	}
	objects := a.conn.Objects(wnats.Modules)
	var err error
	for range claimTries {
		if err = objects.Touch(ctx, digest); !errors.Is(err, wnats.ErrNotFound) {
			return err
		}
		r, _, openErr := a.blobs.Open(digest)
		if openErr != nil {
			return openErr
		}
		_, err = objects.Put(ctx, digest, r)
		_ = r.Close() // it was read from
		if !errors.Is(err, wnats.ErrConflict) {
			return err
		}
	}
	return err
}

// claimCopies claims all modules that are here.
func (a *Agent) claimCopies(ctx context.Context) error {
	names, err := a.blobs.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, pack := packOfBlob(name); pack {
			continue
		}
		if err := a.claimModule(ctx, name); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, storage.ErrCorrupt) {
			return err
		}
	}
	return nil
}

// claimModules claims what a job's stored record names and its last one did not, and takes back the removal of a
// version that was removed while it was written.
func (a *Agent) claimModules(ctx context.Context, rec jobRecord, old *jobRecord) error {
	for _, d := range rec.digests() {
		if old != nil && old.needs(d) {
			continue
		}
		err := a.claimModule(ctx, d)
		if errors.Is(err, fs.ErrNotExist) {
			return api.Conflict("push it again: agent operator push, or for a file apply the job again", "job %s is stored, but its module %s is gone", rec.Name, d)
		}
		if err != nil {
			return api.Unavailable("apply it again", "job %s is stored; whether its module %s is where all agents find it is not known: %v", rec.Name, d, err)
		}
	}
	modules := maps.Clone(rec.Modules)
	if rec.Shadow != nil {
		maps.Insert(modules, maps.All(rec.Shadow.Modules))
	}
	for module := range modules {
		name, version, registered := strings.Cut(module, "@")
		if !registered {
			continue
		}
		if err := a.setRemoved(ctx, name, version, 0); err != nil && !errors.Is(err, wnats.ErrNotFound) {
			return controlPlaneAway(err)
		}
	}
	return nil
}

// haveModules makes sure that a plan's modules are here, before a record names them, but for some digests.
func (a *Agent) haveModules(ctx context.Context, rec jobRecord, but ...string) error {
	for _, d := range rec.digests() {
		if slices.Contains(but, d) {
			continue
		}
		if err := a.fetchModule(ctx, d); errors.Is(err, wnats.ErrNotFound) {
			return api.Conflict("push it again: agent operator push, or for a file apply the job again", "job %s: module %s is not there any more", rec.Name, d)
		}
	}
	return nil // one that cannot be fetched now may be there: the job says so when it starts
}

// earlier is what the next generation's record says of modules of those before it.
func (r jobRecord) earlier() map[string]abs.Generation {
	out := maps.Clone(r.Earlier)
	if out == nil {
		out = map[string]abs.Generation{}
	}
	for _, d := range r.digests() {
		if !strings.HasPrefix(d, native.Prefix) {
			out[d] = r.Generation
		}
	}
	return out
}

// keepEarlier leaves out what no part that is kept can need, so that the list does not grow for ever.
func (a *Agent) keepEarlier(ctx context.Context, rec jobRecord) (map[string]abs.Generation, error) {
	kept, err := a.keptParts(ctx, rec.Name)
	if err != nil {
		return nil, err
	}
	out := maps.Clone(rec.Earlier)
	maps.DeleteFunc(out, func(_ string, g abs.Generation) bool { return g+1 < rec.Generation && !kept.mayBeOf(g) })
	return out, nil
}

// keptParts is which generations' modules the parts of the checkpoints in the control plane may be of.
type keptParts struct {
	of map[abs.Generation]bool
	// before is the newest generation of which a part may be of any older one's modules: one that a task began with, or
	// that a task that is away has had since then, while what was made with them is being made again.
	before abs.Generation
}

// mayBeOf says whether a part may be of a module of which g is the newest generation that had it.
func (k keptParts) mayBeOf(g abs.Generation) bool {
	for of := range k.of {
		if of <= g {
			return true
		}
	}
	return g < k.before
}

func (a *Agent) keptParts(ctx context.Context, job string) (kept keptParts, err error) {
	entries, err := a.conn.KV(wnats.Checkpoints).List(ctx, wnats.Key(kindEpoch, job))
	if err != nil {
		return kept, err
	}
	kept.of = map[abs.Generation]bool{}
	for _, e := range entries {
		rec, err := abs.DecodeRecord(e.Value)
		if err != nil {
			return kept, fmt.Errorf("%s: %w", e.Key, err)
		}
		for _, p := range rec.Parts {
			if kept.of[p.Generation] = true; rec.Initial || p.Epoch != rec.Epoch {
				kept.before = max(kept.before, p.Generation)
			}
		}
	}
	return kept, nil
}

// namedModules are the modules that the control plane's records name. It fails if one of them cannot be read: then
// nothing is known to be needless.
func (a *Agent) namedModules(ctx context.Context) (map[string]bool, error) {
	named := map[string]bool{}
	operators, err := a.operatorRecords(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, rec := range operators {
		if rec.RemovedMS == 0 {
			named[rec.Digest] = true
		}
	}
	jobs, err := a.jobRecords(ctx)
	if err != nil {
		return nil, err
	}
	for i := range jobs {
		if jobs[i].State == jobDeleted {
			continue
		}
		var kept keptParts
		for r := &jobs[i]; r != nil; r = r.Next {
			for _, d := range r.digests() {
				named[d] = true
			}
			if len(r.Earlier) > 0 && kept.of == nil {
				if kept, err = a.keptParts(ctx, r.Name); err != nil {
					return nil, err
				}
			}
			for d, g := range r.Earlier {
				if kept.mayBeOf(g) {
					named[d] = true
				}
			}
		}
	}
	return named, nil
}

// jobRecords are those of the control plane.
func (a *Agent) jobRecords(ctx context.Context) ([]jobRecord, error) {
	entries, err := a.conn.KV(wnats.Jobs).List(ctx, "")
	if err != nil {
		return nil, err
	}
	out := make([]jobRecord, len(entries))
	for i, e := range entries {
		if err := json.Unmarshal(e.Value, &out[i]); err != nil {
			return nil, fmt.Errorf("job record %s: %w", e.Key, err)
		}
	}
	return out, nil
}

// storeSweep collects modules from the object store during a term, and what was left in both stores.
type storeSweep struct {
	a       *Agent
	seen    map[string]sighting // modules that no record names
	cleaned time.Duration       // when remains were looked for last; 0: not yet
}

// sighting is since when a module is seen without a name in one revision.
type sighting struct {
	revision uint64
	since    time.Duration
}

// sweepModules collects during a term.
func (a *Agent) sweepModules(ctx context.Context) error {
	s, cluster := storeSweep{a: a}, ""
	for sleep(ctx, sweepEvery) {
		now := a.currentCluster()
		if now != cluster {
			s.seen, cluster = nil, now
		}
		if now == "" {
			continue
		}
		due, err := s.look(ctx, a.stopwatch())
		if err == nil {
			err = s.collect(ctx, due)
		}
		if rest := a.stopwatch() - s.cleaned; err == nil && (s.cleaned == 0 || rest >= remainsRest) {
			_, err = s.clean(ctx, remainsRest)
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("what nobody needs in the object stores is not removed: it will be tried again", "error", err)
		}
	}
	return ctx.Err()
}

// look returns the modules that no record has named for long enough, each in the revision that it had all the time: that
// was noted before the records were read now.
func (s *storeSweep) look(ctx context.Context, now time.Duration) (due []wnats.Object, err error) {
	objects := s.a.conn.Objects(wnats.Modules)
	list, err := objects.List(ctx)
	if err != nil {
		return nil, err
	}
	named, err := s.a.namedModules(ctx)
	if err != nil {
		return nil, err
	}
	seen := map[string]sighting{}
	for _, o := range list {
		if named[o.Name] {
			continue
		}
		o, err := objects.Has(ctx, o.Name)
		if errors.Is(err, wnats.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		at, known := s.seen[o.Name]
		if !known || at.revision != o.Revision {
			at = sighting{o.Revision, now}
		}
		if seen[o.Name] = at; now-at.since >= moduleRest {
			due = append(due, o)
		}
	}
	s.seen = seen
	return due, nil
}

// collect deletes those of the modules that nobody has claimed since they were looked at.
func (s *storeSweep) collect(ctx context.Context, due []wnats.Object) error {
	var errs []error
	for _, o := range due {
		did, err := s.a.conn.Objects(wnats.Modules).DeleteRevision(ctx, o)
		if did {
			s.a.log.Info("a module that nobody needs is removed", "digest", o.Name, "bytes", o.Size)
			s.a.modules.mu.Lock()
			s.a.modules.space.goneFromStore += o.Size
			s.a.modules.mu.Unlock()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// clean removes what objects that were not stored whole have left in the object stores, if nothing was added to it for so
// long, and returns of how many.
func (s *storeSweep) clean(ctx context.Context, unused time.Duration) (sum int, err error) {
	for _, store := range []wnats.Store{wnats.Modules, wnats.Snapshots} {
		n, err := s.a.conn.Objects(store).Clean(ctx, unused)
		if sum += n; n > 0 {
			s.a.log.Info("what broken-off uploads have left in the object store is removed", "store", store, "objects", n)
		}
		if err != nil {
			return sum, err
		}
	}
	s.cleaned = s.a.stopwatch()
	return sum, nil
}

// sweepCopies collects this agent's copies of modules, and what was compiled of them, as long as the agent runs.
func (a *Agent) sweepCopies() {
	for sleep(a.life, sweepEvery) {
		if err := errors.Join(a.collectCopies(a.stopwatch()), a.uploads.Collect()); err != nil && a.life.Err() == nil {
			a.log.Warn("copies of modules that nobody needs are not removed: it will be tried again", "error", err)
		}
	}
}

// collectCopies removes what none of this agent's copies of the records has named, and nobody here has wanted, for
// long enough in which the agent heard of changed records. The records of the jobs that an agent runs are among its
// copies whether it is in touch or not.
func (a *Agent) collectCopies(now time.Duration) error {
	names, err := a.blobs.List()
	if err != nil {
		return err
	}
	named, err := a.namedHere()
	if err != nil {
		return err
	}
	here, sum := map[string]bool{}, int64(0)
	var errs []error
	for _, digest := range names {
		if _, pack := packOfBlob(digest); pack {
			continue
		}
		size, err := a.blobs.Size(digest)
		gone := false
		if err == nil && !named[digest] {
			gone, err = a.collectCopy(digest, size, now)
		}
		if !gone {
			here[digest], sum = true, sum+size
		}
		errs = append(errs, err)
	}
	compiled, freed, err := a.host.Tidy(func(digest string) bool { return here[digest] || !a.rested(digest, now) })
	a.modules.mu.Lock()
	defer a.modules.mu.Unlock()
	sp := &a.modules.space
	sp.copies, sp.compiled, sp.goneCompiled = sum, compiled, sp.goneCompiled+freed
	maps.DeleteFunc(a.modules.touched, func(d string, at time.Duration) bool { return !here[d] && now-at >= moduleRest })
	return errors.Join(append(errs, err)...)
}

// collectCopy removes a copy that nobody has wanted for long enough. Who wants it after that finds it gone, and who
// wanted it before has touched it.
func (a *Agent) collectCopy(digest string, size int64, now time.Duration) (bool, error) {
	m := &a.modules
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.rested(digest, now) || a.currentCluster() == "" {
		return false, nil
	}
	if err := a.blobs.Delete(digest); err != nil {
		return false, err
	}
	m.space.goneCopies += size
	a.log.Info("the copy of a module that nobody needs is removed", "digest", digest, "bytes", size)
	return true, nil
}

func (a *Agent) rested(digest string, now time.Duration) bool {
	a.modules.mu.Lock()
	defer a.modules.mu.Unlock()
	return a.modules.rested(digest, now)
}

func (m *modules) rested(digest string, now time.Duration) bool {
	return now-max(m.touched[digest], m.inTouch) >= moduleRest
}

// namedHere are the modules that this agent's copies of the records name.
func (a *Agent) namedHere() (map[string]bool, error) {
	named := map[string]bool{}
	err := a.copies.List(copyOperator, func(key string, value []byte) error {
		var rec operatorRecord
		if err := json.Unmarshal(value, &rec); err != nil {
			return fmt.Errorf("copy of operator %s: %w", key, err)
		}
		named[rec.Digest] = named[rec.Digest] || rec.RemovedMS == 0
		return nil
	})
	for _, h := range a.hosted() {
		rec := h.record()
		for r := &rec; r != nil && rec.State != jobDeleted; r = r.Next {
			for _, d := range append(slices.Collect(maps.Keys(r.Earlier)), r.digests()...) {
				named[d] = true
			}
		}
	}
	return named, err
}

// moduleFamilies tell what modules take, and what was given back.
func (a *Agent) moduleFamilies() []api.Family {
	a.modules.mu.Lock()
	sp := a.modules.space
	a.modules.mu.Unlock()
	of := func(name, help string, kind api.MetricKind, values map[string]int64) api.Family {
		f := api.Family{Name: name, Help: help, Kind: kind}
		for _, k := range slices.Sorted(maps.Keys(values)) {
			f.Samples = append(f.Samples, api.Sample{Labels: []api.Label{{Name: "of", Value: k}}, Value: float64(values[k])})
		}
		return f
	}
	return []api.Family{
		of("weir_modules_bytes", "What the agent's copies of modules, the machine code compiled of them, and modules that have not come whole yet take on its disk.", api.Gauge,
			map[string]int64{"copies": sp.copies, "compiled": sp.compiled, "uploads": a.uploads.Bytes()}),
		of("weir_modules_collected_bytes_total", "What was given back of modules that nobody needs any more; the object store's by the agent that coordinates.", api.Counter,
			map[string]int64{"copies": sp.goneCopies, "compiled": sp.goneCompiled, "store": sp.goneFromStore}),
	}
}
