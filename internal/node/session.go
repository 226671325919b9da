package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// Pace of the control plane.
const (
	identityEvery = 5 * time.Second
	aliveEvery    = 2 * time.Second
	// goneAfter without a sign of life an agent counts as gone.
	goneAfter = 7 * time.Second
	// lookPatience bounds the wait for tasks to have looked through their logs, before an agent tells
	// a control plane that has lost its memory which epochs there have been.
	lookPatience = 30 * time.Second
	nobodyTries  = 3 * time.Second
)

var errAnotherCluster = errors.New("the control plane is another one now")

// errNamesake says that another live agent has this agent's name.
var errNamesake = errors.New("another live agent has this name")

// runSessions keeps the agent in touch with the control plane: a session lasts until the control
// plane is lost or becomes another one.
func (a *Agent) runSessions() {
	wait := minBackoff
	for a.life.Err() == nil {
		began := time.Now()
		err := a.session(a.life)
		if a.life.Err() != nil {
			return
		}
		if errors.Is(err, errNamesake) || errors.Is(err, errNobody) {
			a.fail(err)
			return
		}
		if time.Since(began) > healthyAfter {
			wait = minBackoff
		}
		a.log.Warn("control plane session ended and begins anew", "reason", err)
		if !sleep(a.life, wait) {
			return
		}
		wait = min(2*wait, nobodyTries)
	}
}

func (a *Agent) session(ctx context.Context) error {
	if err := a.conn.WaitConnected(ctx); err != nil {
		return err
	}
	cl, err := a.touch(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(a.checkNamesake(ctx), a.checkReplaced(ctx)); err != nil {
		return err
	}
	if err := a.mergeCopies(ctx, cl); err != nil {
		return fmt.Errorf("bring local copies to the control plane: %w", err)
	}
	if err := a.announce(ctx, cl.ID); err != nil {
		return err
	}
	stop, err := a.conn.Serve("status/"+a.name, a.answerStatus)
	if err != nil {
		return err
	}
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	caughtUp := make(chan struct{})
	var once sync.Once
	g.Go(func() error {
		w := agentWatch{a: a}
		return a.conn.KV(wnats.Agents).Watch(ctx, "", w.on)
	})
	g.Go(func() error {
		return a.conn.KV(wnats.Operators).Watch(ctx, "", a.onOperator)
	})
	g.Go(func() error {
		return a.conn.KV(wnats.Jobs).Watch(ctx, "", func(e wnats.Event) error {
			if e.CaughtUp {
				once.Do(func() { close(caughtUp) })
				return nil
			}
			return a.onJob(e)
		})
	})
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-caughtUp:
		}
		w := epochWatch{a: a}
		return a.conn.KV(wnats.Checkpoints).Watch(ctx, kindEpoch, w.on)
	})
	g.Go(func() error { return a.checkIdentity(ctx, cl.ID) })
	a.setCluster(cl.ID)
	defer a.setCluster("")
	return g.Wait()
}

func (a *Agent) setCluster(id string) {
	if id != "" {
		a.forgetAsk() // terms may begin anew with a control plane
	}
	a.modules.mu.Lock()
	a.modules.inTouch = a.stopwatch()
	a.modules.mu.Unlock()
	a.clusterMu.Lock()
	a.cluster = id
	a.clusterMu.Unlock()
	signal(a.wakeLeader)
}

// currentCluster is the identity of the control plane that the agent is in touch with, or empty.
func (a *Agent) currentCluster() string {
	a.clusterMu.Lock()
	defer a.clusterMu.Unlock()
	return a.cluster
}

// checkIdentity ends the session when the control plane has been replaced under it.
func (a *Agent) checkIdentity(ctx context.Context, id string) error {
	for sleep(ctx, identityEvery) {
		cl, err := a.conn.Ensure(ctx)
		if errors.Is(err, wnats.ErrUnavailable) {
			continue
		}
		if err != nil {
			return err
		}
		if cl.ID != id || len(cl.Created) > 0 {
			return errAnotherCluster
		}
	}
	return ctx.Err()
}

// checkNamesake refuses to be a second agent of a name, on another directory or on a copy of the same.
func (a *Agent) checkNamesake(ctx context.Context) error {
	e, err := a.conn.KV(wnats.Agents).Get(ctx, wnats.Key(a.name))
	if errors.Is(err, wnats.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var rec agentRecord
	if json.Unmarshal(e.Value, &rec) != nil {
		return nil
	}
	same := rec.Instance == a.dir.Identity().Instance
	if !same {
		a.tellLabels(rec.Labels)
	}
	ctx, cancel := context.WithTimeout(ctx, nobodyTries)
	defer cancel()
	reply, err := a.conn.Call(ctx, "status/"+a.name, nil)
	if err != nil {
		if !same {
			a.log.Warn("the name belonged to another directory, whose agent does not answer; this one takes it over", "name", a.name)
		}
		return nil
	}
	var other api.Status
	if json.Unmarshal(reply, &other) == nil && other.Agent.Started.Equal(a.began) {
		return nil // this process, in an earlier session
	}
	if same {
		return fmt.Errorf("%w: agent %q has run on a copy of this directory since %s (HTTP %s); a copy is no second agent, and what it takes in is lost: stop that one, or start this one on an empty directory with a name of its own",
			errNamesake, a.name, other.Agent.Started.Format(time.RFC3339), other.Agent.Addresses.HTTP)
	}
	if a.takesOver() {
		return errors.Join(fmt.Errorf("%w: agent %q is up, on another directory, so its place cannot be taken: name the agent whose device is lost, or stop that one first", errNamesake, a.name), a.letGo())
	}
	return fmt.Errorf("%w: agent %q runs on another directory; give this one another name with --name", errNamesake, a.name)
}

func (a *Agent) announce(ctx context.Context, cluster string) error {
	ad := a.addresses()
	rec := agentRecord{
		Name: a.name, Instance: a.dir.Identity().Instance, Labels: a.opt.Labels, Version: a.opt.Version, Cluster: cluster,
		Starts: uint64(a.dir.Incarnation()), StartedMS: a.began.UnixMilli(), HTTP: ad.HTTP, NATS: ad.NATS, MQTT: ad.MQTT,
	}
	if a.opt.Leaf != "" {
		rec.NATS, rec.MQTT, rec.MQTTLeaf = "", "", ad.MQTT != "" // for its own device only
	}
	value, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if _, err := a.conn.KV(wnats.Agents).Put(ctx, wnats.Key(a.name), value); err != nil {
		return err
	}
	a.peers.put(rec)
	return nil
}

// mergeCopies brings what this agent knows to the control plane, where it is missing or older: after
// the loss of the server's files the control plane comes back from the agents' copies.
func (a *Agent) mergeCopies(ctx context.Context, cl wnats.Cluster) error {
	known, _, err := a.copies.Get(copyCluster, "id")
	if err != nil {
		return err
	}
	lost := string(known) != cl.ID || len(cl.Created) > 0
	if lost {
		if err := a.mergeOperators(ctx); err != nil {
			return err
		}
		if err := a.mergeBlobs(ctx); err != nil {
			return err
		}
	}
	for _, h := range a.hosted() {
		if err := a.mergeEpochs(ctx, h, lost); err != nil {
			return err
		}
		if err := a.mergeJob(ctx, h.record()); err != nil {
			return err
		}
	}
	if lost { // behind the records that name them
		if err := a.claimCopies(ctx); err != nil {
			return err
		}
	}
	return a.copies.Put(copyCluster, "id", []byte(cl.ID))
}

// mergeJob stores a job's record unless the control plane has it or a newer one.
func (a *Agent) mergeJob(ctx context.Context, rec jobRecord) error {
	kv, key := a.conn.KV(wnats.Jobs), wnats.Key(rec.Name)
	return merge(ctx, kv, key, rec, func(theirs []byte) (bool, error) {
		var have jobRecord
		if err := json.Unmarshal(theirs, &have); err != nil {
			return false, err
		}
		return rec.newer(have), nil
	})
}

// merge stores ours under a key if it has no value or ours is newer.
func merge(ctx context.Context, kv *wnats.KV, key string, ours any, newer func(theirs []byte) (bool, error)) error {
	value, err := json.Marshal(ours)
	if err != nil {
		return err
	}
	for {
		e, err := kv.Get(ctx, key)
		switch {
		case errors.Is(err, wnats.ErrNotFound):
			_, err = kv.Create(ctx, key, value)
		case err == nil:
			var yes bool
			if yes, err = newer(e.Value); err == nil && yes {
				_, err = kv.Update(ctx, key, value, e.Revision)
			}
		}
		if !errors.Is(err, wnats.ErrConflict) {
			return err
		}
	}
}

// mergeEpochs stores the manifests that this agent has copies of. If the control plane has lost its
// memory, it also notes the highest epoch that this agent's tasks know of, so that none is used twice.
func (a *Agent) mergeEpochs(ctx context.Context, h *hostedJob, lost bool) error {
	if !lost {
		return nil
	}
	kv := a.conn.KV(wnats.Checkpoints)
	h.mu.Lock()
	records := h.sortedEpochs()
	h.mu.Unlock()
	for _, rec := range records {
		if !rec.Manifest() {
			continue
		}
		err := merge(ctx, kv, epochKey(h.name, rec.Epoch), rec, func(theirs []byte) (bool, error) {
			var have abs.EpochRecord
			if err := json.Unmarshal(theirs, &have); err != nil {
				return false, err
			}
			best := abs.Rebuild([]abs.EpochRecord{have, rec})[0]
			return best.State != have.State || best.Term != have.Term, nil
		})
		if err != nil {
			return err
		}
	}
	return a.mergeNewestEpoch(ctx, h, records)
}

func (a *Agent) mergeNewestEpoch(ctx context.Context, h *hostedJob, records []abs.EpochRecord) error {
	newest := h.newestEpoch(ctx)
	for _, rec := range records {
		if rec.Epoch >= newest && rec.Manifest() {
			return nil
		}
	}
	if newest == 0 {
		return nil
	}
	rec := abs.EpochRecord{
		Epoch: newest, Generation: h.record().Generation, State: abs.Aborted,
		Reason: "the control plane was lost while it ran",
	}
	return merge(ctx, a.conn.KV(wnats.Checkpoints), epochKey(h.name, newest), rec, func([]byte) (bool, error) { return false, nil })
}

// newestEpoch is the highest epoch that the job's tasks here know of, once they have looked through
// their logs.
func (h *hostedJob) newestEpoch(ctx context.Context) abs.Epoch {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	var newest abs.Epoch
	for _, r := range h.tasks() {
		for {
			e, looked := r.newestEpoch()
			newest = max(newest, e)
			if looked || !sleep(ctx, tickEvery) {
				break
			}
		}
	}
	return newest
}

// newestEpoch also counts as looked when the task fails or waits, since it then has no log to speak of.
func (r *runner) newestEpoch() (abs.Epoch, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running == nil {
		return 0, r.state != "restoring"
	}
	return r.running.NewestEpoch()
}

func (a *Agent) mergeOperators(ctx context.Context) error {
	return a.copies.List(copyOperator, func(key string, value []byte) error {
		var rec operatorRecord
		if err := json.Unmarshal(value, &rec); err != nil {
			return fmt.Errorf("copy of operator %s: %w", key, err)
		}
		return merge(ctx, a.conn.KV(wnats.Operators), key, rec, func(theirs []byte) (bool, error) {
			var have operatorRecord
			if err := json.Unmarshal(theirs, &have); err != nil {
				return false, err
			}
			return rec.Changes > have.Changes, nil
		})
	})
}

// mergeBlobs stores modules and imported packs that the object stores lack.
func (a *Agent) mergeBlobs(ctx context.Context) error {
	names, err := a.blobs.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := a.mergeBlob(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) mergeBlob(ctx context.Context, name string) error {
	objects, object := a.conn.Objects(wnats.Modules), name
	if pack, ok := packOfBlob(name); ok {
		objects, object = a.conn.Objects(wnats.Snapshots), pack
	}
	if _, err := objects.Has(ctx, object); !errors.Is(err, wnats.ErrNotFound) {
		return err
	}
	r, _, err := a.blobs.Open(name)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := objects.Put(ctx, object, r); err != nil && !errors.Is(err, wnats.ErrConflict) {
		return err
	}
	return nil
}

// onJob takes a change of a job's record.
func (a *Agent) onJob(e wnats.Event) error {
	if e.Deleted {
		return nil // jobs end by their state; the key's own end means nothing
	}
	var rec jobRecord
	if err := json.Unmarshal(e.Value, &rec); err != nil {
		a.log.Error("job record cannot be read and is ignored", "key", e.Key, "error", err)
		return nil
	}
	defer signal(a.wakeLeader)
	a.news.Lock()
	defer a.news.Unlock()
	return a.takeJob(rec)
}

func (a *Agent) onOperator(e wnats.Event) error {
	if e.Deleted || e.CaughtUp {
		return nil
	}
	return a.copies.Put(copyOperator, e.Key, e.Value)
}

// agentWatch takes records of agents. Those that are there at first are kept in one transaction, and one that is kept
// already in none: every agent keeps all of them, and whenever it is in touch again they all come again.
type agentWatch struct {
	a      *Agent
	first  []storage.Copy
	caught bool
}

func (w *agentWatch) on(e wnats.Event) error {
	a := w.a
	if e.CaughtUp {
		first := w.first
		if w.caught, w.first = true, nil; len(first) == 0 {
			return nil
		}
		return a.copies.PutAll(first...)
	}
	if e.Deleted {
		names, err := wnats.SplitKey(e.Key)
		if err != nil || len(names) != 1 || names[0] == a.name {
			return nil
		}
		return a.forgetPeer(names[0])
	}
	var rec agentRecord
	if err := json.Unmarshal(e.Value, &rec); err != nil {
		a.log.Error("agent record cannot be read and is ignored", "key", e.Key, "error", err)
		return nil
	}
	a.peers.put(rec)
	kept, err := a.keptPeer(rec.Name, e.Value)
	if err != nil || kept {
		return err
	}
	news := []storage.Copy{{Kind: copyGone, Key: rec.Name}, {Kind: copyAgent, Key: rec.Name, Value: e.Value}}
	if !w.caught {
		w.first = append(w.first, news...)
		return nil
	}
	return a.copies.PutAll(news...)
}

// keptPeer says whether just this record of an agent is kept, and the agent is not among those that were taken out. A
// copy that is damaged is not: it is kept again, which heals it.
func (a *Agent) keptPeer(name string, record []byte) (bool, error) {
	have, known, err := a.copies.Get(copyAgent, name)
	gone := false
	if err == nil {
		_, gone, err = a.copies.Get(copyGone, name)
	}
	if errors.Is(err, storage.ErrCorrupt) {
		return false, nil
	}
	return known && !gone && bytes.Equal(have, record), err
}

// epochWatch gives epochs to their jobs: what is there at first by number, then as it changes.
type epochWatch struct {
	a      *Agent
	first  []jobEpoch
	caught bool
}

type jobEpoch struct {
	job string
	rec abs.EpochRecord
}

func (w *epochWatch) on(e wnats.Event) error {
	if e.CaughtUp {
		w.caught = true
		sort.Slice(w.first, func(i, j int) bool { return w.first[i].rec.Epoch < w.first[j].rec.Epoch })
		for _, f := range w.first {
			if err := w.a.takeEpoch(f); err != nil {
				return err
			}
		}
		w.first = nil
		return nil
	}
	if e.Deleted {
		return nil
	}
	names, err := wnats.SplitKey(e.Key)
	if err != nil || len(names) != 3 {
		return nil
	}
	je := jobEpoch{job: names[1]}
	if je.rec, err = abs.DecodeRecord(e.Value); err != nil {
		w.a.log.Error("epoch record cannot be read and is ignored", "key", e.Key, "error", err)
		return nil
	}
	if !w.caught {
		w.first = append(w.first, je)
		return nil
	}
	return w.a.takeEpoch(je)
}

// takeEpoch gives a record to its job. One that is news before the job's own record has come fetches it.
func (a *Agent) takeEpoch(je jobEpoch) error {
	h := a.hostedJob(je.job)
	if h == nil || h.record().Generation < je.rec.Generation {
		e, err := a.conn.KV(wnats.Jobs).Get(a.life, wnats.Key(je.job))
		if errors.Is(err, wnats.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := a.onJob(wnats.Event{Entry: e}); err != nil {
			return err
		}
		if h = a.hostedJob(je.job); h == nil {
			return nil
		}
	}
	a.news.Lock()
	defer a.news.Unlock()
	return h.epoch(je.rec)
}
