package wasmops

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weir-stream/weir/dataflow"
)

// globalKey is the one key in [dataflow.SpaceGlobal].
const globalKey = "instance"

// globalVersion is the version of its encoding: version (1), digest length (1), digest, then
// little-endian memory size in bytes, clock in nanoseconds, stamp in milliseconds, random position (8
// each), address and size of the input buffer (4 each), number of globals (4), the globals (8 each).
const globalVersion = 1

// zeroPage is what a page that is not in a snapshot holds.
var zeroPage = make([]byte, pageSize)

// shadow is a copy of the memory as it was at the last freeze, in chunks of a WebAssembly page, so
// that growing never copies. Fresh chunks are zero: a page that is zero and was never saved is unchanged.
type shadow struct {
	chunks [][]byte
}

// grow extends the shadow to size bytes and touches its pages: a first touch while freezing would
// cost a fault per page.
func (s *shadow) grow(size uint32) {
	for len(s.chunks) < int(size/wasmPage) {
		chunk := make([]byte, wasmPage)
		for i := 0; i < len(chunk); i += pageSize {
			chunk[i] = 0
		}
		s.chunks = append(s.chunks, chunk)
	}
}

func (s *shadow) page(n int) []byte {
	const perChunk = wasmPage / pageSize
	at := n % perChunk * pageSize
	return s.chunks[n/perChunk][at : at+pageSize]
}

// Freeze returns what changed since the last call, or since the instance was restored; a fresh
// instance's first call returns all, as does full. Only between calls of Process.
func (in *Instance) Freeze(full bool) ([]dataflow.Change, error) {
	if in.phase != phaseRest {
		return nil, fmt.Errorf("operator %s: its instance is lost and cannot be frozen", in.spec.Name)
	}
	changes := in.linear.freeze(full)
	if globals := in.encodeGlobals(); full || !bytes.Equal(globals, in.frozen) {
		in.frozen = globals
		changes = append(changes, dataflow.Change{
			Space: dataflow.SpaceGlobal, Key: []byte(globalKey), Value: bytes.Clone(globals),
		})
	}
	in.keyed.freeze(full, func(key string, value []byte) {
		changes = append(changes, dataflow.Change{Space: dataflow.SpaceKeyed, Key: []byte(key), Value: value})
	})
	return in.timers.freeze(full, changes), nil
}

// Copy returns all of the state, as Freeze does if it is asked for all, and changes nothing of what the next Freeze
// returns. Only between calls of Process. The changes own their memory.
func (in *Instance) Copy() ([]dataflow.Change, error) {
	if in.phase != phaseRest {
		return nil, fmt.Errorf("operator %s: its instance is lost and cannot be copied", in.spec.Name)
	}
	changes := append(in.linear.copy(), dataflow.Change{
		Space: dataflow.SpaceGlobal, Key: []byte(globalKey), Value: in.encodeGlobals(),
	})
	in.keyed.all(func(key string, value []byte) {
		changes = append(changes, dataflow.Change{Space: dataflow.SpaceKeyed, Key: []byte(key), Value: value})
	})
	return in.timers.copy(changes), nil
}

// view is the guest's whole memory; it goes stale when the guest runs.
func (in *Instance) view() []byte {
	size := in.mod.Memory().Size()
	mem, ok := in.mod.Memory().Read(0, size)
	if !ok {
		panic(fmt.Sprintf("operator %s: memory of %d bytes cannot be read", in.spec.Name, size))
	}
	return mem
}

func (in *Instance) encodeGlobals() []byte {
	digest := in.loaded.module.Digest
	b := append([]byte{globalVersion, byte(len(digest))}, digest...)
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(in.mod.Memory().Size()))
	b = le.AppendUint64(b, uint64(in.clock.now))
	b = le.AppendUint64(b, uint64(in.clock.stamp))
	b = le.AppendUint64(b, in.random.pos)
	b = le.AppendUint32(b, in.inputAt)
	b = le.AppendUint32(b, in.inputSize)
	b = le.AppendUint32(b, uint32(len(in.globals)))
	for _, g := range in.globals {
		b = le.AppendUint64(b, g.Get())
	}
	return b
}

// errState is wrapped by errors about state that cannot be restored.
var errState = errors.New("saved state cannot be restored")

// restore brings a new instance to saved state: memory is written whole, also over the module's data
// segments, and no guest code runs. Memory that was allowed once stays, if the limit has been lowered
// since; it does not grow.
func (in *Instance) restore(state dataflow.StateReader) error {
	err := in.restoreAll(state)
	if errors.Is(err, errLowered) {
		err = state(func(c dataflow.Change) error {
			if c.Space != dataflow.SpaceGlobal || string(c.Key) != globalKey || c.Value == nil {
				return nil
			}
			s, err := decodeGlobals(c.Value)
			in.linear.limit = max(in.linear.limit, min(s.memory, MaxMemoryLimit))
			return err
		})
		if err == nil {
			err = in.restoreAll(state)
		}
	}
	if err != nil {
		return fmt.Errorf("operator %s: %w: %w", in.spec.Name, errState, err)
	}
	in.keyed.settle()
	in.timers.settle()
	in.linear.adopt()
	return nil
}

// errLowered says that saved memory is larger than the limit.
var errLowered = errors.New("it is above the limit (limits.memory)")

func (in *Instance) restoreAll(state dataflow.StateReader) error {
	clear(in.view())
	seen := false
	err := state(func(c dataflow.Change) error {
		switch {
		case c.Value == nil: // a tombstone says no more than absence
			return nil
		case c.Space == dataflow.SpaceMemory:
			return in.restorePage(c)
		case c.Space == dataflow.SpaceGlobal && string(c.Key) == globalKey:
			seen = true
			return in.restoreGlobals(c.Value)
		case c.Space == dataflow.SpaceKeyed:
			in.keyed.put(c.Key, c.Value, 1<<62)
			return nil
		case c.Space == dataflow.SpaceTimer:
			return in.timers.restore(c)
		}
		return fmt.Errorf("unknown key %q in space %d", c.Key, c.Space)
	})
	switch {
	case err != nil:
		return err
	case !seen:
		return errors.New("it has no globals")
	}
	return in.linkExpiries()
}

// inherit takes the keyed state and the timers that another module or configuration has left, and initializes the instance,
// which then finds them, and what the old module hands over of its variables. The clock and the position in the
// random numbers go on.
func (in *Instance) inherit(state dataflow.StateReader) error {
	migrated, migrates, err := in.migration(state)
	if err != nil {
		return err
	}
	saved, known, err := savedInstance(state)
	if err != nil {
		return fmt.Errorf("operator %s: %w", in.spec.Name, err)
	}
	if known {
		in.clock, in.random.pos = saved.clock, saved.random
	}
	err = state(func(c dataflow.Change) error {
		switch {
		case c.Value == nil:
		case c.Space == dataflow.SpaceKeyed:
			in.keyed.put(c.Key, c.Value, 1<<62)
		case c.Space == dataflow.SpaceTimer:
			return in.timers.restore(c)
		}
		return nil
	})
	if err == nil {
		err = in.linkExpiries()
	}
	if err != nil {
		return fmt.Errorf("operator %s: %w: %w", in.spec.Name, errState, err)
	}
	if err := in.initialize(); err != nil || !migrates {
		return err
	}
	return in.take(migrated)
}

func (in *Instance) restorePage(c dataflow.Change) error {
	if len(c.Key) != 4 || len(c.Value) != pageSize {
		return fmt.Errorf("page with a key of %d and a value of %d bytes", len(c.Key), len(c.Value))
	}
	at := uint64(binary.BigEndian.Uint32(c.Key)) * pageSize
	if err := in.growTo(at + pageSize); err != nil {
		return err
	}
	if !in.mod.Memory().Write(uint32(at), c.Value) {
		return fmt.Errorf("page at %d is not in memory", at)
	}
	return nil
}

// growTo grows the memory to at least size bytes.
func (in *Instance) growTo(size uint64) error {
	have := uint64(in.mod.Memory().Size())
	if size <= have {
		return nil
	}
	pages := (size - have + wasmPage - 1) / wasmPage
	if pages > 1<<16 {
		return fmt.Errorf("memory of %d bytes", size)
	}
	if _, ok := in.mod.Memory().Grow(uint32(pages)); !ok {
		return fmt.Errorf("memory of %d bytes: %w", size, errLowered)
	}
	return nil
}

func (in *Instance) restoreGlobals(b []byte) error {
	s, err := decodeGlobals(b)
	if err != nil {
		return err
	}
	if s.digest != in.loaded.module.Digest {
		return fmt.Errorf("it is of module %s, the operator now uses %s", s.digest, in.loaded.module.Digest)
	}
	if len(s.globals) != len(in.globals) {
		return fmt.Errorf("%d globals, the module has %d", len(s.globals), len(in.globals))
	}
	if err := in.growTo(s.memory); err != nil {
		return err
	}
	if size := uint64(in.mod.Memory().Size()); size != s.memory {
		return fmt.Errorf("memory of %d bytes, the module has %d", s.memory, size)
	}
	for i, g := range in.globals {
		g.Set(s.globals[i])
	}
	in.clock, in.random.pos = s.clock, s.random
	in.inputAt, in.inputSize = s.inputAt, s.inputSize
	in.frozen = bytes.Clone(b)
	return nil
}

// savedGlobals is the decoded value of globalKey.
type savedGlobals struct {
	digest             string
	memory             uint64 // bytes
	clock              clock
	random             uint64
	inputAt, inputSize uint32
	globals            []uint64
}

func decodeGlobals(b []byte) (s savedGlobals, err error) {
	if len(b) < 2 {
		return s, fmt.Errorf("globals of %d bytes", len(b))
	}
	if b[0] != globalVersion {
		return s, fmt.Errorf("globals of version %d, this build reads %d", b[0], globalVersion)
	}
	const fixed = 4*8 + 3*4
	n := int(b[1])
	if len(b) < 2+n+fixed {
		return s, fmt.Errorf("globals of %d bytes", len(b))
	}
	s.digest = string(b[2 : 2+n])
	b = b[2+n:]
	le := binary.LittleEndian
	s.memory = le.Uint64(b)
	s.clock = clock{now: int64(le.Uint64(b[8:])), stamp: int64(le.Uint64(b[16:]))}
	s.random = le.Uint64(b[24:])
	s.inputAt, s.inputSize = le.Uint32(b[32:]), le.Uint32(b[36:])
	if s.clock.stamp < 0 || s.clock.stamp > maxStamp || s.clock.now < s.clock.stamp*1e6 {
		return s, fmt.Errorf("clock of %d ns at %d ms", s.clock.now, s.clock.stamp)
	}
	if uint64(s.inputAt)+uint64(s.inputSize) > s.memory {
		return s, fmt.Errorf("buffer of %d bytes at %d in memory of %d", s.inputSize, s.inputAt, s.memory)
	}
	count := uint64(le.Uint32(b[40:]))
	if b = b[fixed:]; uint64(len(b)) != 8*count {
		return s, fmt.Errorf("%d globals in %d bytes", count, len(b))
	}
	for ; len(b) > 0; b = b[8:] {
		s.globals = append(s.globals, le.Uint64(b))
	}
	return s, nil
}
