package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/native"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/signing"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// maxSignatures of one version of an operator: of keys that follow each other.
const maxSignatures = 8

// errUntrusted says that a module is not signed by a key that this agent trusts.
var errUntrusted = errors.New("not signed by a key that this agent trusts (trusted_keys)")

// trusted makes operators of modules that this agent trusts. What is loaded is checked each time, from the agent's
// own copy of the registry, so it holds offline, and for jobs that were there before the keys.
type trusted struct {
	a      *Agent
	makers dataflow.Operators
}

// New implements [dataflow.Operators].
func (t trusted) New(ctx context.Context, spec dataflow.OperatorSpec, state dataflow.StateReader) (dataflow.Operator, error) {
	if err := t.a.trusts(ctx, spec.Module, spec.Digest); err != nil {
		return nil, fmt.Errorf("operator %s: module %s (%s) is refused: %w", spec.Name, spec.Module, spec.Digest, err)
	}
	return t.makers.New(ctx, spec, state)
}

// trusts says why a module must not be loaded here; nil: it may.
func (a *Agent) trusts(ctx context.Context, module, digest string) error {
	if len(a.opt.TrustedKeys) == 0 || strings.HasPrefix(digest, native.Prefix) {
		return nil
	}
	name, version, registered := strings.Cut(module, "@")
	if !registered {
		return fmt.Errorf("%w: a file is not, register it with agent operator push --sign", errUntrusted)
	}
	rec, err := a.copyOfOperator(ctx, name, version)
	if err != nil {
		return err
	}
	if rec.Digest != digest || !signing.Verify(a.opt.TrustedKeys, rec.Signatures, name, version, digest) {
		return errUntrusted
	}
	return nil
}

// copyOfOperator is a registry entry: this agent's copy, or, if it has none yet, or one without a signature, the
// control plane's.
func (a *Agent) copyOfOperator(ctx context.Context, name, version string) (rec operatorRecord, err error) {
	value, ok, err := a.copies.Get(copyOperator, wnats.Key(name, version))
	if err != nil {
		return rec, err
	}
	if ok {
		if err := json.Unmarshal(value, &rec); err != nil {
			return rec, fmt.Errorf("copy of operator %s@%s: %w", name, version, err)
		}
		if len(rec.Signatures) > 0 || a.currentCluster() == "" {
			return rec, nil
		}
	}
	now, err := a.operatorRecord(ctx, name, version)
	switch {
	case errors.Is(err, wnats.ErrNotFound):
		return rec, nil
	case err != nil && ok:
		return rec, nil
	case err != nil:
		return rec, err
	}
	return *now, nil
}

// SignOperator implements [web.Operators].
func (a *Agent) SignOperator(ctx context.Context, name, version, signature string) (api.Operator, error) {
	if err := signing.Check(signature); err != nil {
		return api.Operator{}, api.Invalid("agent operator push --sign makes one", "%v", err)
	}
	if err := a.inTouch(ctx); err != nil {
		return api.Operator{}, err
	}
	kv, key := a.conn.KV(wnats.Operators), wnats.Key(name, version)
	for {
		e, err := kv.Get(ctx, key)
		if errors.Is(err, wnats.ErrNotFound) {
			return api.Operator{}, api.NotFound("push it first", "there is no operator %s@%s", name, version)
		}
		if err != nil {
			return api.Operator{}, controlPlaneAway(err)
		}
		var rec operatorRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			return api.Operator{}, err
		}
		if rec.RemovedMS != 0 {
			return api.Operator{}, api.NotFound("push it again, which brings it back", "operator %s@%s was removed", name, version)
		}
		if slices.Contains(rec.Signatures, signature) {
			return a.operator(rec), nil
		}
		if len(rec.Signatures) == maxSignatures {
			return api.Operator{}, api.Conflict("push it under a new version", "%s@%s has %d signatures, and no more can be kept", name, version, maxSignatures)
		}
		rec.Signatures = append(rec.Signatures, signature)
		_, err = kv.Update(ctx, key, mustJSON(rec), e.Revision)
		if errors.Is(err, wnats.ErrConflict) {
			continue
		}
		if err != nil {
			return api.Operator{}, api.Unavailable("", "signature of %s@%s not stored: %v", name, version, err)
		}
		return a.operator(rec), nil
	}
}
