package storage

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/weir-stream/weir/dataflow"
	"github.com/zeebo/xxh3"
)

// The format of a pack; the package documentation has the table.
const (
	packMagic   = "WEIRPAK"
	packVersion = 1
	packFixed   = 12 // magic, version, length of the header
	// maxPackHeader bounds the header, most of which is the task's own state.
	maxPackHeader = 64 << 20
	// maxPackValue bounds one value of state.
	maxPackValue = 256 << 20
	// packWindow bounds the memory that reading a pack takes besides its content.
	packWindow = 1 << 20
)

// WritePack writes a part for the replica: the whole state at upto if since is 0, else what changed
// after since. Both must be usable parts and stay so meanwhile. It fails with [ErrNeedFull] as
// Changes does. No transaction is held open while w is written to.
func (s *Store) WritePack(w io.Writer, task string, since, upto dataflow.Version) error {
	p, err := s.partOf(task, upto)
	if err != nil {
		return err
	}
	if err := writePack(w, p.info, since, func(visit func(dataflow.Change) error) error {
		return s.Changes(task, since, upto, visit)
	}); err != nil {
		return fmt.Errorf("pack of task %s, versions %d to %d: %w", task, since, upto, err)
	}
	return nil
}

func (s *Store) partOf(task string, v dataflow.Version) (part, error) {
	d := &diff{s: s, task: task, upto: v}
	err := d.begin()
	return d.part, err
}

func writePack(w io.Writer, info dataflow.PartInfo, since dataflow.Version, changes func(func(dataflow.Change) error) error) error {
	info.Full = since == 0
	if _, err := w.Write(packHeader(info, since)); err != nil {
		return err
	}
	z, err := encoder(w)
	if err != nil {
		return err
	}
	defer func() {
		z.Reset(nil)
		encoders.Put(z)
	}()
	body := &packWriter{z: z, sum: xxh3.New()}
	err = changes(body.change)
	if err == nil {
		err = body.end()
	}
	if closeErr := z.Close(); err == nil {
		err = closeErr
	}
	return err
}

// encoders are kept for the next pack: a new one clears more memory than most packs have bytes.
var encoders sync.Pool

func encoder(w io.Writer) (*zstd.Encoder, error) {
	if z, ok := encoders.Get().(*zstd.Encoder); ok {
		z.Reset(w)
		return z, nil
	}
	return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(packWindow))
}

// packHeader is the part of a pack that is not compressed.
func packHeader(info dataflow.PartInfo, since dataflow.Version) []byte {
	b := append([]byte(packMagic), packVersion, 0, 0, 0, 0)
	b = binary.AppendUvarint(b, uint64(since))
	b = binary.AppendUvarint(b, uint64(info.Version))
	b = binary.AppendUvarint(b, uint64(len(info.Task)))
	b = append(b, info.Task...)
	b = appendPart(b, part{info: info})
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)+8-packFixed))
	return binary.LittleEndian.AppendUint64(b, xxh3.Hash(b))
}

type packWriter struct {
	z     io.Writer
	sum   *xxh3.Hasher
	count uint64
	buf   []byte
}

func (p *packWriter) change(c dataflow.Change) error {
	b := append(p.buf[:0], byte(c.Space))
	b = binary.AppendUvarint(b, uint64(len(c.Key)))
	b = append(b, c.Key...)
	if c.Value == nil {
		b = append(b, 0)
	} else {
		b = binary.AppendUvarint(b, uint64(len(c.Value))+1)
		b = append(b, c.Value...)
	}
	p.buf = b
	p.count++
	p.sum.Write(b)
	_, err := p.z.Write(b)
	return err
}

func (p *packWriter) end() error {
	b := append(p.buf[:0], 0)
	b = binary.LittleEndian.AppendUint64(b, p.count)
	b = binary.LittleEndian.AppendUint64(b, p.sum.Sum64())
	_, err := p.z.Write(b)
	return err
}

// ReadPack reads a pack and verifies it. Info is that of the part at upto, Full if the pack holds the
// whole state. Bytes that are not a whole, undamaged pack are an error that wraps [ErrCorrupt].
func ReadPack(r io.Reader) (info dataflow.PartInfo, since dataflow.Version, changes []dataflow.Change, err error) {
	info, since, err = readPack(r, func(c dataflow.Change) error {
		changes = append(changes, c)
		return nil
	})
	if err != nil {
		return info, since, nil, err
	}
	return info, since, changes, nil
}

func readPack(r io.Reader, visit func(dataflow.Change) error) (dataflow.PartInfo, dataflow.Version, error) {
	info, since, err := readPackHeader(r)
	if err != nil {
		return info, since, packError(err)
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(packWindow))
	if err != nil {
		return info, since, packError(err)
	}
	defer z.Close()
	body := &packReader{z: bufio.NewReaderSize(z, 64<<10), sum: xxh3.New()}
	if err := body.read(visit); err != nil {
		return info, since, packError(err)
	}
	return info, since, nil
}

func packError(err error) error {
	if errors.Is(err, ErrCorrupt) {
		return err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: pack: %w", ErrCorrupt, err)
}

func readPackHeader(r io.Reader) (dataflow.PartInfo, dataflow.Version, error) {
	var none dataflow.PartInfo
	b := make([]byte, packFixed)
	if _, err := io.ReadFull(r, b); err != nil {
		return none, 0, err
	}
	if string(b[:7]) != packMagic {
		return none, 0, errors.New("these bytes are not a pack")
	}
	if b[7] != packVersion {
		return none, 0, fmt.Errorf("pack of format %d, this build reads %d", b[7], packVersion)
	}
	n := binary.LittleEndian.Uint32(b[8:])
	if n < 8 || n > maxPackHeader {
		return none, 0, fmt.Errorf("header of %d bytes", n)
	}
	rest, err := readExactly(r, int(n))
	if err != nil {
		return none, 0, err
	}
	b = append(b, rest...)
	end := len(b) - 8
	if xxh3.Hash(b[:end]) != binary.LittleEndian.Uint64(b[end:]) {
		return none, 0, errors.New("header does not match its checksum")
	}
	return parsePackHeader(b[packFixed:end])
}

func parsePackHeader(b []byte) (dataflow.PartInfo, dataflow.Version, error) {
	f := &fields{b: b}
	since := dataflow.Version(f.uvarint(math.MaxUint64))
	version := dataflow.Version(f.uvarint(math.MaxUint64))
	task := string(f.bytes(f.count()))
	if f.bad || version == 0 || since >= version || task == "" {
		return dataflow.PartInfo{}, 0, errors.New("malformed header")
	}
	p, err := parsePart(f.b)
	if err != nil {
		return dataflow.PartInfo{}, 0, err
	}
	if p.info.Full != (since == 0) {
		return dataflow.PartInfo{}, 0, errors.New("header disagrees with itself about being full")
	}
	p.info.Task, p.info.Version = task, version
	return p.info, since, nil
}

// readExactly reads n bytes, whose number is not trusted: memory grows with what is really there.
func readExactly(r io.Reader, n int) ([]byte, error) {
	const step = 1 << 20
	b := make([]byte, 0, min(n, step))
	for len(b) < n {
		at := len(b)
		b = append(b, make([]byte, min(step, n-at))...)
		if _, err := io.ReadFull(r, b[at:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

type packReader struct {
	z     *bufio.Reader
	sum   *xxh3.Hasher
	count uint64
}

func (p *packReader) read(visit func(dataflow.Change) error) error {
	for {
		space, err := p.z.ReadByte()
		if err != nil {
			return err
		}
		if space == 0 {
			return p.end()
		}
		c, err := p.change(space)
		if err != nil {
			return err
		}
		if err := visit(c); err != nil {
			return err
		}
	}
}

func (p *packReader) change(space byte) (dataflow.Change, error) {
	p.sum.Write([]byte{space})
	p.count++
	key, err := p.bytes(MaxStateKey, 0)
	if err != nil {
		return dataflow.Change{}, err
	}
	value, err := p.bytes(maxPackValue+1, 1)
	if err != nil {
		return dataflow.Change{}, err
	}
	return dataflow.Change{Space: dataflow.Space(space), Key: key, Value: value}, nil
}

// bytes reads a length, from which off is taken, and so many bytes; nil if the length is below off.
func (p *packReader) bytes(limit, off uint64) ([]byte, error) {
	n, err := binary.ReadUvarint(p.z)
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, fmt.Errorf("key or value of %d bytes, at most %d", n, limit)
	}
	p.sum.Write(binary.AppendUvarint(nil, n))
	if n < off {
		return nil, nil
	}
	b, err := readExactly(p.z, int(n-off))
	if err != nil {
		return nil, err
	}
	p.sum.Write(b)
	return b, nil
}

func (p *packReader) end() error {
	b, err := readExactly(p.z, 16)
	if err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(b) != p.count || binary.LittleEndian.Uint64(b[8:]) != p.sum.Sum64() {
		return errors.New("content does not match its count and checksum")
	}
	if _, err := p.z.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("bytes after the end (%v)", err)
	}
	return nil
}

// ImportPacks puts a full pack and the increments that follow it into the store as one full part of
// the given task with the version, epoch and state of the last pack. All packs are read and verified
// before anything is written; memory for the whole state is needed. The version must be above all
// that the task has had: a task whose parts are to be replaced is dropped before.
func (s *Store) ImportPacks(task string, packs ...io.Reader) (dataflow.PartInfo, error) {
	info, changes, err := mergePacks(packs)
	if err != nil {
		return info, fmt.Errorf("import packs of task %s: %w", task, err)
	}
	info.Task, info.Full = task, true
	return info, s.Save(info, changes)
}

// mergePacks applies packs one after the other.
func mergePacks(packs []io.Reader) (dataflow.PartInfo, []dataflow.Change, error) {
	var last dataflow.PartInfo
	state := map[string]dataflow.Change{}
	for i, r := range packs {
		info, since, changes, err := ReadPack(r)
		if err == nil {
			err = follows(i, last, info, since)
		}
		if err != nil {
			return info, nil, fmt.Errorf("pack %d of %d: %w", i+1, len(packs), err)
		}
		last = info
		for _, c := range changes {
			key := string(append([]byte{byte(c.Space)}, c.Key...))
			if c.Value == nil {
				delete(state, key)
			} else {
				state[key] = c
			}
		}
	}
	if len(packs) == 0 {
		return last, nil, errors.New("no packs")
	}
	changes := make([]dataflow.Change, 0, len(state))
	for _, c := range state {
		changes = append(changes, c)
	}
	return last, changes, nil
}

// follows says whether a pack of a chain is the next one after that of last.
func follows(i int, last, info dataflow.PartInfo, since dataflow.Version) error {
	switch {
	case i == 0 && since != 0:
		return fmt.Errorf("%w: it holds changes since version %d: the first must be full", ErrCorrupt, since)
	case i > 0 && (since != last.Version || info.Task != last.Task):
		return fmt.Errorf("%w: it holds changes of task %s since version %d, the one before it is task %s, version %d",
			ErrCorrupt, info.Task, since, last.Task, last.Version)
	}
	return nil
}

// CheckPacks reads a full pack and the increments that follow it, and fails, wrapping [ErrCorrupt], if
// [Store.ImportPacks] would. It needs no memory for the state.
func CheckPacks(packs ...io.Reader) error {
	var last dataflow.PartInfo
	for i, r := range packs {
		info, since, err := readPack(r, func(dataflow.Change) error { return nil })
		if err == nil {
			err = follows(i, last, info, since)
		}
		if err != nil {
			return fmt.Errorf("pack %d of %d: %w", i+1, len(packs), err)
		}
		last = info
	}
	if len(packs) == 0 {
		return errors.New("no packs")
	}
	return nil
}
