package wasmops

import (
	"fmt"

	"github.com/weir-stream/weir/dataflow"
)

// maxMigration bounds what one version hands to the next, in bytes.
const maxMigration = 16 << 20

// CanMigrate says whether the module gives its variables to another version (out), and takes those of
// another (in).
func (m *Module) CanMigrate() (out, in bool) { return m.migrateOut, m.migrateIn }

// migration is what the module that left the state gives to this one: nil, false if either of them has no
// hook for it. The old module is made again from the state for that, and closed.
func (in *Instance) migration(state dataflow.StateReader) ([]byte, bool, error) {
	if !in.loaded.module.migrateIn {
		return nil, false, nil
	}
	saved, ok, err := savedInstance(state)
	if err != nil || !ok {
		return nil, false, err
	}
	spec := in.spec
	spec.Digest, spec.Fresh = saved.digest, false
	spec.Limits.Memory = 0 // that of the old version may have been larger
	old, err := in.host.newInstance(in.ctx, spec, func(visit func(dataflow.Change) error) error {
		return state(visit)
	})
	if err != nil {
		return nil, false, fmt.Errorf("operator %s: the old version, for its %s: %w", in.spec.Name, exportMigrateOut, err)
	}
	defer old.Close()
	if !old.loaded.module.migrateOut {
		return nil, false, nil
	}
	if _, err := old.call(phaseMigrate, old.limits.start(), old.mod.ExportedFunction(exportMigrateOut)); err != nil {
		return nil, false, err
	}
	at := old.stack[0]
	if at == 1<<64-1 {
		if old.reason == "" {
			old.reason = "returned -1"
		}
		return nil, false, old.failure("%s: %s", exportMigrateOut, old.reason)
	}
	ptr, size := uint32(at>>32), uint32(at)
	if size > maxMigration {
		return nil, false, old.failure("%s gives %d bytes, at most %d", exportMigrateOut, size, maxMigration)
	}
	b, ok := old.mod.Memory().Read(ptr, size)
	if !ok {
		return nil, false, old.failure("%s: %d bytes at %d are not in its memory", exportMigrateOut, size, ptr)
	}
	return append([]byte{}, b...), true, nil
}

// take gives the guest what the old version gave.
func (in *Instance) take(migrated []byte) error {
	ptr, err := in.write(migrated)
	if err != nil {
		return err
	}
	status, err := in.call(phaseMigrate, in.limits.start(), in.mod.ExportedFunction(exportMigrateIn), uint64(ptr), uint64(len(migrated)))
	if err != nil {
		return err
	}
	if err := in.checkStatus(exportMigrateIn, status); err != nil {
		return err
	}
	in.linear.extend()
	return nil
}

// savedInstance reads what the state says of the instance that left it; false if that was no module's.
func savedInstance(state dataflow.StateReader) (s savedGlobals, ok bool, err error) {
	err = state(func(c dataflow.Change) error {
		if c.Space != dataflow.SpaceGlobal || string(c.Key) != globalKey || c.Value == nil {
			return nil
		}
		var err error
		s, err = decodeGlobals(c.Value)
		ok = true
		return err
	})
	if err != nil {
		return s, false, fmt.Errorf("%w: %w", errState, err)
	}
	return s, ok, nil
}
