package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// cutFS is a file system in memory that knows what is durable. After the power is cut, every call
// fails; after gives the file system that the machine finds when it comes back.
type cutFS struct {
	mu       sync.Mutex
	names    map[string]*inode
	durable  map[string]*inode
	pending  []nameChange // since the directory was synced
	ops      int          // calls that change something
	cutAt    int          // the call that is cut short; 0: none
	cut      bool
	locked   bool  // the disk can only be read
	room     int64 // bytes that files may take; 0: no limit
	syncFail func(name string) bool
	damage   bool // a failed sync also damages what the disk had in the block
	open     int  // files
}

type nameChange struct {
	name string
	node *inode // nil: removed
}

type inode struct {
	data   []byte // as programs see it
	synced []byte // as the disk has it
	writes []write
}

// write is a change that is not durable: bytes at an offset, or, if data is nil, a new size.
type write struct {
	off  int64
	data []byte
}

func (w write) apply(b []byte) []byte {
	if w.data == nil {
		return resize(b, w.off)
	}
	if need := w.off + int64(len(w.data)); need > int64(len(b)) {
		b = resize(b, need)
	}
	copy(b[w.off:], w.data)
	return b
}

func resize(b []byte, n int64) []byte {
	if n <= int64(len(b)) {
		return b[:n:n]
	}
	return append(b, make([]byte, n-int64(len(b)))...)
}

// lock makes the disk one that can only be read, or lifts that.
func (c *cutFS) lock(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.locked = on
}

var errCut = errors.New("power cut")

func newCutFS() *cutFS {
	return &cutFS{names: map[string]*inode{}, durable: map[string]*inode{}}
}

// step counts a call. It returns an error when there is no power, and whether this very call is cut
// short.
func (c *cutFS) step() (short bool, err error) {
	if c.cut {
		return false, errCut
	}
	if c.locked {
		return false, syscall.EROFS
	}
	c.ops++
	if c.ops == c.cutAt {
		c.cut = true
		return true, nil
	}
	return false, nil
}

// used is the room that files take, in blocks as on a disk if the block is above 1.
func (c *cutFS) used() int64 {
	var n int64
	for _, node := range c.names {
		n += int64(len(node.data))
	}
	return n
}

func (c *cutFS) OpenFile(name string, flag int) (file, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return nil, errCut
	}
	node := c.names[name]
	if node == nil {
		if flag&os.O_CREATE == 0 {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		if _, err := c.step(); err != nil {
			return nil, err
		}
		node = &inode{}
		c.names[name] = node
		c.pending = append(c.pending, nameChange{name, node})
	}
	if flag&os.O_TRUNC != 0 && len(node.data) > 0 {
		node.data = nil
		node.writes = append(node.writes, write{})
	}
	c.open++
	return &cutFile{c, name, node, flag&(os.O_RDWR|os.O_WRONLY) != 0}, nil
}

func (c *cutFS) Rename(from, to string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.step(); err != nil {
		return err
	}
	node := c.names[from]
	if node == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	delete(c.names, from)
	c.names[to] = node
	c.pending = append(c.pending, nameChange{to, node}, nameChange{from, nil})
	return nil
}

func (c *cutFS) Remove(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.step(); err != nil {
		return err
	}
	if c.names[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	delete(c.names, name)
	c.pending = append(c.pending, nameChange{name, nil})
	return nil
}

func (c *cutFS) List(string) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return nil, errCut
	}
	var names []string
	for n := range c.names {
		names = append(names, filepath.Base(n))
	}
	slices.Sort(names)
	return names, nil
}

func (c *cutFS) MkdirAll(string) error { return nil }

func (c *cutFS) SyncDir(string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	short, err := c.step()
	if err != nil {
		return err
	}
	if short {
		return errCut
	}
	for _, p := range c.pending {
		applyName(c.durable, p)
	}
	c.pending = nil
	return nil
}

func applyName(names map[string]*inode, p nameChange) {
	if p.node == nil {
		delete(names, p.name)
	} else {
		names[p.name] = p.node
	}
}

// after is what the machine finds after a power cut: of all that was not synced, names in their
// order and bytes in any, some has reached the disk. A nil rng means nothing has.
func (c *cutFS) after(rng *rand.Rand) *cutFS {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := maps.Clone(c.durable)
	if rng != nil {
		for _, p := range c.pending[:rng.Intn(len(c.pending)+1)] {
			applyName(names, p)
		}
	}
	next := newCutFS()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		node := names[name]
		b := slices.Clone(node.synced)
		for _, w := range node.writes {
			if rng == nil || rng.Intn(2) == 0 {
				continue
			}
			b = w.torn(rng).apply(b)
		}
		n := &inode{data: slices.Clone(b), synced: b}
		next.names[name], next.durable[name] = n, n
	}
	return next
}

// torn is a part of a write: from a random place to another.
func (w write) torn(rng *rand.Rand) write {
	if len(w.data) == 0 || rng.Intn(3) == 0 {
		return w
	}
	from := 0
	if rng.Intn(2) == 0 {
		from = rng.Intn(len(w.data))
	}
	to := from + rng.Intn(len(w.data)-from+1)
	return write{w.off + int64(from), append([]byte{}, w.data[from:to]...)}
}

type cutFile struct {
	fs       *cutFS
	name     string
	node     *inode
	writable bool
}

func (f *cutFile) ReadAt(b []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.fs.cut {
		return 0, errCut
	}
	if off >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.node.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *cutFile) WriteAt(b []byte, off int64) (int, error) {
	c := f.fs
	c.mu.Lock()
	defer c.mu.Unlock()
	if !f.writable {
		panic("write to a file opened for reading: " + f.name)
	}
	short, err := c.step()
	if err != nil {
		return 0, err
	}
	data := b
	if short {
		data = b[:len(b)/2]
		err = errCut
	}
	if grow := off + int64(len(data)) - int64(len(f.node.data)); c.room > 0 && grow > 0 {
		if free := max(0, c.room-c.used()); grow > free {
			data = data[:max(0, int64(len(data))-(grow-free))]
			err = &fs.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
		}
	}
	if len(data) > 0 {
		w := write{off, slices.Clone(data)}
		f.node.data = w.apply(f.node.data)
		f.node.writes = append(f.node.writes, w)
	}
	return len(data), err
}

func (f *cutFile) Truncate(size int64) error {
	c := f.fs
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.step(); err != nil {
		return err
	}
	f.node.data = resize(f.node.data, size)
	f.node.writes = append(f.node.writes, write{off: size})
	return nil
}

func (f *cutFile) Sync() error {
	c := f.fs
	c.mu.Lock()
	defer c.mu.Unlock()
	short, err := c.step()
	if err != nil {
		return err
	}
	if short {
		return errCut
	}
	if c.syncFail != nil && c.syncFail(f.name) {
		f.lose()
		return fmt.Errorf("sync %s: %w", f.name, syscall.EIO)
	}
	for _, w := range f.node.writes {
		f.node.synced = w.apply(f.node.synced)
	}
	f.node.writes = nil
	return nil
}

// lose is a failed sync: what was written never reaches the disk though it can be read, and, if so
// set, the block where it began is damaged on the disk from that block's start.
func (f *cutFile) lose() {
	for _, w := range f.node.writes {
		if w.data == nil || !f.fs.damage {
			continue
		}
		from := w.off / blockSize * blockSize
		for i := from; i < min(w.off, int64(len(f.node.synced))); i++ {
			f.node.synced[i] ^= 0xa5
		}
	}
	f.node.writes = nil
}

func (f *cutFile) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return int64(len(f.node.data)), nil
}

func (f *cutFile) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.fs.open--
	return nil
}

// image is the content of all files.
func (c *cutFS) image() map[string][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := map[string][]byte{}
	for name, node := range c.names {
		m[name] = slices.Clone(node.data)
	}
	return m
}

// ofImage is a file system with these files, all durable.
func ofImage(m map[string][]byte) *cutFS {
	c := newCutFS()
	for name, b := range m {
		n := &inode{data: slices.Clone(b), synced: slices.Clone(b)}
		c.names[name], c.durable[name] = n, n
	}
	return c
}

func TestCutFSForgetsWhatWasNotSynced(t *testing.T) {
	c := newCutFS()
	f, err := c.OpenFile("d/a", os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt([]byte("abc"), 0)
	if n := len(c.after(nil).image()); n != 0 {
		t.Fatalf("%d files without a sync of the directory", n)
	}
	c.SyncDir("d")
	if got := c.after(nil).image()["d/a"]; len(got) != 0 {
		t.Fatalf("%q without a sync", got)
	}
	f.Sync()
	f.WriteAt([]byte("x"), 1)
	if got := c.after(nil).image()["d/a"]; string(got) != "abc" {
		t.Fatalf("%q, want what was synced", got)
	}
}
