package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/native"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
	"github.com/weir-stream/weir/wasmops"
)

// moduleFiles finds modules in the agent's directory.
type moduleFiles struct{ blobs *storage.Blobs }

// Open implements [wasmops.Modules].
func (m moduleFiles) Open(digest string) ([]byte, error) {
	return m.blobs.Get(digest)
}

// operators makes operators of both kinds.
type operators struct{ guests dataflow.Operators }

// New implements [dataflow.Operators].
func (o operators) New(ctx context.Context, spec dataflow.OperatorSpec, state dataflow.StateReader) (dataflow.Operator, error) {
	if strings.HasPrefix(spec.Digest, native.Prefix) {
		return native.Operators{}.New(ctx, spec, state)
	}
	return o.guests.New(ctx, spec, state)
}

// blobOfPack is the name of a pack among the agent's files; packs come there by import.
func blobOfPack(pack string) string { return "pack:" + pack }

func packOfBlob(blob string) (string, bool) { return strings.CutPrefix(blob, "pack:") }

// checkModule checks a module that was uploaded before, if there is a digest, else one that it reads and keeps here. Its
// bytes are in memory no longer than that: to bring them to the hub may take long.
func (a *Agent) checkModule(ctx context.Context, digest string, module io.Reader) (*wasmops.Module, error) {
	if digest != "" {
		return a.uploadedModule(ctx, digest)
	}
	release, err := a.bodies.take(ctx, bodiesAtOnce)
	if err != nil {
		return nil, busy()
	}
	defer release()
	b, err := io.ReadAll(io.LimitReader(module, wasmops.DefaultModuleLimit+1))
	if err != nil {
		return nil, err
	}
	m, err := a.checkBytes(ctx, b)
	if err != nil {
		return nil, err
	}
	a.touchModule(m.Digest)
	if _, err := a.blobs.Get(m.Digest); err != nil { // it is not here, or damaged
		if err := a.blobs.PutBytes(m.Digest, b); err != nil {
			return nil, a.uploadFailed(m.Digest, int64(m.Size), err)
		}
	}
	return m, nil
}

func (a *Agent) checkBytes(ctx context.Context, b []byte) (*wasmops.Module, error) {
	m, err := a.host.Check(ctx, b)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, busy()
	case err != nil:
		return nil, api.Invalid("sdk/go/doc.go says how one is built", "%v", err)
	}
	return m, nil
}

// storeModule puts a module that is here where all agents find it.
func (a *Agent) storeModule(ctx context.Context, digest string) error {
	if err := a.inTouch(ctx); err != nil {
		return err
	}
	if err := a.claimModule(ctx, digest); err != nil {
		return api.Unavailable("", "module not stored: %v", err)
	}
	return nil
}

// PushModule implements [web.Operators].
func (a *Agent) PushModule(ctx context.Context, digest string, module io.Reader) (api.Module, error) {
	m, err := a.checkModule(ctx, digest, module)
	if err != nil {
		return api.Module{}, err
	}
	kept := api.Module{Digest: m.Digest, Bytes: int64(m.Size)}
	return kept, a.storeModule(ctx, kept.Digest)
}

// PushOperator implements [web.Operators].
func (a *Agent) PushOperator(ctx context.Context, name, version, digest string, module io.Reader) (api.Operator, error) {
	if err := api.CheckOperatorName(name, version); err != nil {
		return api.Operator{}, err
	}
	m, err := a.checkModule(ctx, digest, module)
	if err != nil {
		return api.Operator{}, err
	}
	rec := operatorRecord{
		Name: name, Version: version, Digest: m.Digest, Bytes: int64(m.Size), PushedMS: a.now(),
		Imports: m.Imports, Globals: m.Globals(), MemoryBytes: m.MinMemory,
	}
	if err := a.storeModule(ctx, rec.Digest); err != nil {
		return api.Operator{}, err
	}
	return a.register(ctx, rec)
}

// register stores a version's record, and claims the module that it names.
func (a *Agent) register(ctx context.Context, rec operatorRecord) (api.Operator, error) {
	_, err := a.conn.KV(wnats.Operators).Create(ctx, wnats.Key(rec.Name, rec.Version), mustJSON(rec))
	if errors.Is(err, wnats.ErrConflict) {
		if rec, err = a.sameOperator(ctx, rec); err != nil {
			return api.Operator{}, err
		}
	}
	if err != nil {
		return api.Operator{}, api.Unavailable("", "operator not registered: %v", err)
	}
	if err := a.claimModule(ctx, rec.Digest); err != nil {
		return api.Operator{}, api.Unavailable("push it again", "operator %s@%s is registered; whether its module is where all agents find it is not known: %v", rec.Name, rec.Version, err)
	}
	return a.operator(rec), nil
}

// sameOperator is the record that there is of a version that is pushed again. One that was removed is back then.
func (a *Agent) sameOperator(ctx context.Context, rec operatorRecord) (operatorRecord, error) {
	have, err := a.operatorRecord(ctx, rec.Name, rec.Version)
	switch {
	case err != nil:
		return rec, controlPlaneAway(err)
	case have.Digest == rec.Digest:
		if err := a.setRemoved(ctx, rec.Name, rec.Version, 0); err != nil {
			return rec, api.Unavailable("", "operator %s@%s was removed and is not registered again: %v", rec.Name, rec.Version, err)
		}
		have.RemovedMS = 0
		return *have, nil
	case have.RemovedMS != 0:
		return rec, api.Conflict("push it under another version", "operator %s@%s was removed, and was other bytes (%s); a version never stands for others", rec.Name, rec.Version, have.Digest)
	}
	return rec, api.Conflict("push it under another version", "operator %s@%s exists with other bytes (%s); versions are immutable", rec.Name, rec.Version, have.Digest)
}

// setRemoved notes in a version's record when it was removed; 0: it is not.
func (a *Agent) setRemoved(ctx context.Context, name, version string, ms int64) error {
	kv, key := a.conn.KV(wnats.Operators), wnats.Key(name, version)
	for {
		e, err := kv.Get(ctx, key)
		if err != nil {
			return err
		}
		var rec operatorRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			return fmt.Errorf("operator record %s: %w", e.Key, err)
		}
		if (rec.RemovedMS == 0) == (ms == 0) {
			return nil
		}
		rec.RemovedMS, rec.Changes = ms, rec.Changes+1
		if _, err = kv.Update(ctx, key, mustJSON(rec), e.Revision); !errors.Is(err, wnats.ErrConflict) {
			return err
		}
	}
}

// RemoveOperator implements [web.Operators]. A job that is applied meanwhile looks at the versions that it names once
// its record is stored, and this looks at the jobs again once the versions are marked: so one of them sees the other,
// and the version stays.
func (a *Agent) RemoveOperator(ctx context.Context, name, version string) ([]api.Operator, error) {
	if err := a.inTouch(ctx); err != nil {
		return nil, err
	}
	list, err := a.operatorRecords(ctx, wnats.Key(name))
	if err != nil {
		return nil, controlPlaneAway(err)
	}
	list = slices.DeleteFunc(list, func(r operatorRecord) bool {
		return r.RemovedMS != 0 || version != "" && r.Version != version
	})
	switch {
	case len(list) == 0 && version != "":
		return nil, api.NotFound("agent operator list shows what there is", "there is no operator %s@%s", name, version)
	case len(list) == 0:
		return nil, api.NotFound("agent operator list shows what there is", "there is no operator %s", name)
	}
	err = a.checkUnused(ctx, list)
	if err == nil {
		err = a.removeOperators(ctx, list)
	}
	if err != nil {
		return nil, err
	}
	out := []api.Operator{}
	for _, rec := range list {
		out = append(out, a.operator(rec))
	}
	return out, nil
}

// removeOperators marks versions as removed, unless a job uses one of them by then.
func (a *Agent) removeOperators(ctx context.Context, list []operatorRecord) error {
	now := a.now()
	for _, rec := range list {
		if err := a.setRemoved(ctx, rec.Name, rec.Version, now); err != nil {
			return api.Unavailable("", "operator %s@%s is not removed: %v", rec.Name, rec.Version, err)
		}
	}
	used := a.checkUnused(ctx, list)
	if used == nil {
		return nil
	}
	for _, rec := range list {
		if err := a.setRemoved(ctx, rec.Name, rec.Version, 0); err != nil {
			return api.Unavailable("push it again, which brings it back", "operator %s@%s is removed and should not be, since a job that uses it was applied meanwhile: %v", rec.Name, rec.Version, err)
		}
	}
	return used
}

// checkUnused refuses versions that jobs use.
func (a *Agent) checkUnused(ctx context.Context, list []operatorRecord) error {
	jobs, err := a.jobRecords(ctx)
	if err != nil {
		return controlPlaneAway(err)
	}
	for _, rec := range list {
		var users []string
		for _, job := range jobs {
			if job.needs(rec.Digest) {
				users = append(users, job.Name)
			}
		}
		if slices.Sort(users); len(users) > 0 {
			return api.Conflict(
				"a job uses what it runs, has run since it was last drained, and may go back to; delete it, or stop it and apply it with another version",
				"operator %s@%s is used by job %s", rec.Name, rec.Version, strings.Join(users, ", job "))
		}
	}
	return nil
}

// operatorRecords are those of the control plane, removed ones included; the prefix is a key or a part of it.
func (a *Agent) operatorRecords(ctx context.Context, prefix string) ([]operatorRecord, error) {
	entries, err := a.conn.KV(wnats.Operators).List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := make([]operatorRecord, len(entries))
	for i, e := range entries {
		if err := json.Unmarshal(e.Value, &out[i]); err != nil {
			return nil, fmt.Errorf("operator record %s: %w", e.Key, err)
		}
	}
	return out, nil
}

func (a *Agent) operatorRecord(ctx context.Context, name, version string) (*operatorRecord, error) {
	e, err := a.conn.KV(wnats.Operators).Get(ctx, wnats.Key(name, version))
	if err != nil {
		return nil, err
	}
	var rec operatorRecord
	return &rec, json.Unmarshal(e.Value, &rec)
}

func (a *Agent) operator(rec operatorRecord) api.Operator {
	var used []string
	for _, h := range a.hosted() {
		if job := h.record(); job.needs(rec.Digest) {
			used = append(used, job.Name)
		}
	}
	slices.Sort(used)
	return api.Operator{
		Name: rec.Name, Version: rec.Version, Digest: rec.Digest, Bytes: rec.Bytes, Pushed: millis(rec.PushedMS),
		Unused: len(used) == 0, UsedBy: used, Signatures: len(rec.Signatures), Imports: append([]string{}, rec.Imports...), Globals: rec.Globals, MemoryBytes: rec.MemoryBytes,
	}
}

// needs says whether the job may need a module: for what it runs or has run since it was drained, or for what comes next.
func (r jobRecord) needs(digest string) bool {
	return r.State != jobDeleted && (slices.Contains(r.digests(), digest) || r.Next != nil && r.Next.needs(digest))
}

// Operators implements [web.Operators].
func (a *Agent) Operators(ctx context.Context) ([]api.Operator, error) { return a.operators(ctx, "") }

// Operator implements [web.Operators].
func (a *Agent) Operator(ctx context.Context, name string) ([]api.Operator, error) {
	list, err := a.operators(ctx, wnats.Key(name))
	if err == nil && len(list) == 0 {
		return nil, api.NotFound("agent operator list shows what there is", "there is no operator %s", name)
	}
	return list, err
}

func (a *Agent) operators(ctx context.Context, prefix string) ([]api.Operator, error) {
	if err := a.inTouch(ctx); err != nil {
		return nil, err
	}
	records, err := a.operatorRecords(ctx, prefix)
	if err != nil {
		return nil, controlPlaneAway(err)
	}
	out := []api.Operator{}
	for _, rec := range records {
		if rec.RemovedMS == 0 {
			out = append(out, a.operator(rec))
		}
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].Name < out[j].Name || out[i].Name == out[j].Name && out[i].Pushed.Before(out[j].Pushed)
	})
	return out, nil
}
