package lossy

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// journal knows what of the files below a directory is not durable yet: every write, truncation and change of a
// name that has not been followed by an fsync of the file, or of the directory that has the name. At a power cut
// it takes back what the disk had not got.
//
// A write is held as long as no fsync covers it; after [writeBack] it is durable all the same, as with an
// operating system that writes back.
type journal struct {
	dir   string // what it is about
	trash string // what names that were given up led to
	soft  func(path string) bool
	now   func() time.Time

	mu     sync.Mutex
	files  map[uint64]*dirtyFile // by inode number
	names  []nameChange
	kept   int   // files in trash so far
	room   int64 // bytes that files may grow by
	narrow bool  // room counts
}

const (
	// writeBack is how long an operating system holds dirty pages by default.
	writeBack = 30 * time.Second
	// maxDirty bounds what is held of one file, in bytes.
	maxDirty = 64 << 20
	pageSize = 4096
)

// dirtyFile is one with changes that are not durable. It is held open, so that its name does not matter.
type dirtyFile struct {
	f       *os.File
	changes []change
	bytes   int
}

// change is one write, or, if data is nil, a truncation.
type change struct {
	at      time.Time
	off     int64
	data    []byte
	before  []byte // what was at off, as far as there was anything; of a truncation what was cut off
	size    int64  // before
	newSize int64  // of a truncation
}

// nameChange is a change in a directory. Undone in reverse order they give the names before.
type nameChange struct {
	at   time.Time
	kind nameKind
	path string // the new name, or the one that was removed
	from string // of a rename
	kept string // what path led to before, in trash; empty: nothing
}

type nameKind int

const (
	made    nameKind = iota // a file or a directory
	removed                 // a file
	moved
	cleared // a directory
)

// newJournal makes one. Names below directories for which soft says so become durable with any file's fsync, as
// they do on a journaling file system; all others need an fsync of their directory.
func newJournal(dir, trash string, soft func(path string) bool) *journal {
	return &journal{dir: dir, trash: trash, soft: soft, now: time.Now, files: map[uint64]*dirtyFile{}}
}

func inode(f *os.File) (uint64, int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	return info.Sys().(*syscall.Stat_t).Ino, info.Size(), nil
}

// write writes to a file and notes what was there. On a narrow disk it writes what finds room.
func (j *journal) write(f *os.File, data []byte, off int64) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	d, size, err := j.dirty(f)
	if err != nil {
		return 0, err
	}
	if grows := off + int64(len(data)) - size; j.narrow && grows > 0 {
		if fits := int64(len(data)) - max(0, grows-j.room); fits <= 0 {
			return 0, syscall.ENOSPC
		} else {
			data = data[:fits]
		}
		j.room -= max(0, off+int64(len(data))-size)
	}
	c := change{at: j.now(), off: off, data: append([]byte{}, data...), size: size}
	if n := min(int64(len(data)), size-off); n > 0 {
		c.before = make([]byte, n)
		if _, err := d.f.ReadAt(c.before, off); err != nil {
			return 0, err
		}
	}
	n, err := d.f.WriteAt(data, off)
	if err != nil {
		return n, err
	}
	d.add(c)
	return n, nil
}

func (j *journal) truncate(f *os.File, to int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	d, size, err := j.dirty(f)
	if err != nil {
		return err
	}
	c := change{at: j.now(), size: size, newSize: to}
	if to < size {
		c.before = make([]byte, size-to)
		if _, err := d.f.ReadAt(c.before, to); err != nil {
			return err
		}
	} else if j.narrow && to-size > j.room {
		return syscall.ENOSPC
	}
	if err := d.f.Truncate(to); err != nil {
		return err
	}
	if j.narrow {
		j.room -= to - size
	}
	d.add(c)
	return nil
}

// dirty finds or makes the entry of a file, and its size.
func (j *journal) dirty(f *os.File) (*dirtyFile, int64, error) {
	ino, size, err := inode(f)
	if err != nil {
		return nil, 0, err
	}
	if d := j.files[ino]; d != nil {
		return d, size, nil
	}
	own, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	d := &dirtyFile{f: own}
	j.files[ino] = d
	return d, size, nil
}

func (d *dirtyFile) add(c change) {
	d.changes = append(d.changes, c)
	d.bytes += len(c.data) + len(c.before)
	old := 0
	for old < len(d.changes)-1 && (d.bytes > maxDirty || c.at.Sub(d.changes[old].at) > writeBack) {
		d.bytes -= len(d.changes[old].data) + len(d.changes[old].before)
		old++
	}
	d.changes = d.changes[old:]
}

// synced notes that a file has been fsynced.
func (j *journal) synced(f *os.File) error {
	ino, _, err := inode(f)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if d := j.files[ino]; d != nil {
		d.f.Close()
		delete(j.files, ino)
	}
	j.settle(func(c nameChange) bool { return j.soft(c.path) })
	return nil
}

// syncedDir notes that a directory has been fsynced.
func (j *journal) syncedDir(dir string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.settle(func(c nameChange) bool { return filepath.Dir(c.path) == dir })
}

// settle makes changes of names durable.
func (j *journal) settle(durable func(nameChange) bool) {
	var rest []nameChange
	for _, c := range j.names {
		if !durable(c) && j.now().Sub(c.at) < writeBack {
			rest = append(rest, c)
			continue
		}
		if c.kept != "" {
			os.Remove(c.kept) // best effort: only space is lost
		}
	}
	j.names = rest
}

// name changes names by do and notes it. What path leads to is kept, if it is to be overwritten or removed.
func (j *journal) name(kind nameKind, from, path string, do func() error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := nameChange{at: j.now(), kind: kind, path: path, from: from}
	info, err := os.Lstat(path)
	there := err == nil
	if kind == made && there {
		return do() // nothing new
	}
	if there && info.Mode().IsRegular() {
		j.kept++
		c.kept = filepath.Join(j.trash, fmt.Sprint(j.kept))
		if err := os.Link(path, c.kept); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		if c.kept != "" {
			os.Remove(c.kept)
		}
		return err
	}
	if j.narrow && c.kept != "" {
		j.room += info.Size()
	}
	j.names = append(j.names, c)
	return nil
}

// limit lets files grow by no more than so many bytes together; negative: by anything.
func (j *journal) limit(bytes int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.narrow, j.room = bytes >= 0, max(0, bytes)
}

// left is how many bytes files may still grow by; false: the journal knows no limit.
func (j *journal) left() (int64, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(0, j.room), j.narrow
}

// Lost says what a power cut took.
type Lost struct {
	Files, Writes, Names int
	Bytes                int64
}

// String is for people.
func (l Lost) String() string {
	return fmt.Sprintf("%d unsynced writes (%d bytes) of %d files and %d names lost", l.Writes, l.Bytes, l.Files, l.Names)
}

// cut takes back what is not durable: of each file all of it, none, all but a beginning, or some pages; of each
// directory all names changed since some moment. Nobody may have the files open for writing.
func (j *journal) cut(r *rand.Rand) (lost Lost, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	// In an order that does not depend on the map's, so that chance decides alike.
	for _, ino := range sortedKeys(j.files) {
		d := j.files[ino]
		if len(d.changes) > 0 {
			lost.Files++
			if err := d.forget(r, &lost); err != nil {
				return lost, fmt.Errorf("power cut: %s: %w", d.f.Name(), err)
			}
		}
		d.f.Close()
		delete(j.files, ino)
	}
	upto := map[string]int{} // how many of a directory's changes survive
	count := map[string]int{}
	for _, c := range j.names {
		count[filepath.Dir(c.path)]++
	}
	for _, dir := range sortedKeys(count) {
		upto[dir] = r.IntN(count[dir] + 1)
		if r.IntN(3) == 0 {
			upto[dir] = 0
		}
	}
	for i := len(j.names) - 1; i >= 0; i-- {
		c, dir := j.names[i], filepath.Dir(j.names[i].path)
		if count[dir]--; count[dir] < upto[dir] {
			continue
		}
		lost.Names++
		if err := c.undo(); err != nil {
			return lost, fmt.Errorf("power cut: %w", err)
		}
	}
	j.settle(func(nameChange) bool { return true })
	return lost, nil
}

// undo gives a name back what it had.
func (c nameChange) undo() error {
	var err error
	switch c.kind {
	case made:
		err = os.Remove(c.path)
		if e, ok := err.(*os.PathError); ok && e.Err == syscall.ENOTEMPTY {
			err = nil // what is in it is durable, and so is it
		}
	case moved:
		err = os.Rename(c.path, c.from)
	case cleared:
		err = os.Mkdir(c.path, 0o755)
	}
	if os.IsNotExist(err) {
		err = nil // it went with its directory
	}
	if err == nil && c.kept != "" {
		if err = os.Link(c.kept, c.path); os.IsExist(err) || os.IsNotExist(err) {
			err = nil
		}
	}
	return err
}

// forget takes the changes back and applies again those that the disk had got.
func (d *dirtyFile) forget(r *rand.Rand, lost *Lost) error {
	for i := len(d.changes) - 1; i >= 0; i-- {
		c := d.changes[i]
		off := c.off
		if c.data == nil {
			off = c.newSize
		}
		if err := d.f.Truncate(c.size); err != nil {
			return err
		}
		if len(c.before) > 0 {
			if _, err := d.f.WriteAt(c.before, off); err != nil {
				return err
			}
		}
	}
	how, n := r.IntN(4), len(d.changes)
	torn := -1
	switch how {
	case 0:
		n = 0
	case 1: // the system had just written everything back
	case 2:
		n = r.IntN(n + 1)
		torn = n - 1
	}
	for i, c := range d.changes {
		switch {
		case i >= n:
			lost.Writes++
			lost.Bytes += int64(len(c.data))
			continue
		case c.data == nil:
			if err := d.f.Truncate(c.newSize); err != nil {
				return err
			}
			continue
		}
		whole := true
		for at := 0; at < len(c.data); {
			end := min(len(c.data), at+pageSize-int((c.off+int64(at))%pageSize))
			piece := c.data[at:end]
			if how == 3 && r.IntN(2) == 0 {
				whole = false
				lost.Bytes += int64(len(piece))
				at = end
				continue
			}
			if i == torn && end == len(c.data) {
				piece = piece[:r.IntN(len(piece)+1)]
				whole = whole && len(piece) == end-at
				lost.Bytes += int64(end - at - len(piece))
			}
			if _, err := d.f.WriteAt(piece, c.off+int64(at)); err != nil && err != io.EOF {
				return err
			}
			at = end
		}
		if !whole {
			lost.Writes++
		}
	}
	return nil
}

// below tells whether a path is in a folder of a directory, at any depth.
func below(dir, folder string) func(path string) bool {
	prefix := filepath.Join(dir, folder) + string(filepath.Separator)
	return func(path string) bool { return strings.HasPrefix(path, prefix) }
}
