package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

// checkModule reads and checks a module.
func (a *Agent) checkModule(ctx context.Context, module io.Reader) ([]byte, *wasmops.Module, error) {
	b, err := io.ReadAll(io.LimitReader(module, wasmops.DefaultModuleLimit+1))
	if err != nil {
		return nil, nil, err
	}
	m, err := a.host.Check(ctx, b)
	if err != nil {
		return nil, nil, api.Invalid("sdk/go/doc.go says how one is built", "%v", err)
	}
	return b, m, nil
}

// storeModule puts a module where all agents find it, and here.
func (a *Agent) storeModule(ctx context.Context, digest string, b []byte) error {
	if err := a.inTouch(ctx); err != nil {
		return err
	}
	if err := a.blobs.PutBytes(digest, b); err != nil {
		return err
	}
	objects := a.conn.Objects(wnats.Modules)
	if _, err := objects.Has(ctx, digest); err == nil {
		return nil
	}
	if _, err := objects.Put(ctx, digest, bytes.NewReader(b)); err != nil && !errors.Is(err, wnats.ErrConflict) {
		return api.Unavailable("", "module not stored: %v", err)
	}
	return nil
}

// PushModule implements [web.Operators].
func (a *Agent) PushModule(ctx context.Context, module io.Reader) (api.Module, error) {
	b, m, err := a.checkModule(ctx, module)
	if err != nil {
		return api.Module{}, err
	}
	return api.Module{Digest: m.Digest, Bytes: int64(len(b))}, a.storeModule(ctx, m.Digest, b)
}

// PushOperator implements [web.Operators].
func (a *Agent) PushOperator(ctx context.Context, name, version string, module io.Reader) (api.Operator, error) {
	if !namePattern.MatchString(name) || !versionPattern.MatchString(version) {
		return api.Operator{}, api.Invalid("names have up to 64 letters, digits, - and _; versions also . and +", "operator %s@%s cannot be named so", name, version)
	}
	b, m, err := a.checkModule(ctx, module)
	if err != nil {
		return api.Operator{}, err
	}
	rec := operatorRecord{
		Name: name, Version: version, Digest: m.Digest, Bytes: int64(len(b)), PushedMS: a.now(),
		Imports: m.Imports, Globals: m.Globals(), MemoryBytes: m.MinMemory,
	}
	if err := a.storeModule(ctx, m.Digest, b); err != nil {
		return api.Operator{}, err
	}
	_, err = a.conn.KV(wnats.Operators).Create(ctx, wnats.Key(name, version), mustJSON(rec))
	if errors.Is(err, wnats.ErrConflict) {
		have, err := a.operatorRecord(ctx, name, version)
		if err != nil {
			return api.Operator{}, controlPlaneAway(err)
		}
		if have.Digest != rec.Digest {
			return api.Operator{}, api.Conflict("push it under another version", "operator %s@%s exists with other bytes (%s); versions are immutable", name, version, have.Digest)
		}
		return a.operator(*have), nil
	}
	if err != nil {
		return api.Operator{}, api.Unavailable("", "operator not registered: %v", err)
	}
	return a.operator(rec), nil
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
	entries, err := a.conn.KV(wnats.Operators).List(ctx, prefix)
	if err != nil {
		return nil, controlPlaneAway(err)
	}
	out := []api.Operator{}
	for _, e := range entries {
		var rec operatorRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			return nil, err
		}
		out = append(out, a.operator(rec))
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].Name < out[j].Name || out[i].Name == out[j].Name && out[i].Pushed.Before(out[j].Pushed)
	})
	return out, nil
}
