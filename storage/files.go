package storage

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ErrCorrupt is wrapped by every error about stored bytes that are not what was written. The error
// names the file and, where there is one, the offset.
var ErrCorrupt = errors.New("corrupt data")

// ErrClosed is returned by calls on something that has been closed.
var ErrClosed = errors.New("storage is closed")

// fileSystem is what log and blobs need of a disk. Tests put one in its place that forgets what was
// not synced, tears writes and fills up.
type fileSystem interface {
	OpenFile(name string, flag int) (file, error)
	Rename(from, to string) error
	Remove(name string) error
	// List returns the names in a directory.
	List(dir string) ([]string, error)
	MkdirAll(dir string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
}

type file interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	// Sync makes the data and the size durable; times need not be.
	Sync() error
	Size() (int64, error)
	Close() error
}

// disk is the fileSystem of the operating system.
type disk struct{}

func (disk) OpenFile(name string, flag int) (file, error) {
	f, err := os.OpenFile(name, flag, 0o640)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

func (disk) Rename(from, to string) error { return os.Rename(from, to) }
func (disk) Remove(name string) error     { return os.Remove(name) }
func (disk) MkdirAll(dir string) error    { return os.MkdirAll(dir, 0o750) }

func (disk) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// Modified is when a file was last written to, by the machine's clock.
func (disk) Modified(name string) (time.Time, error) {
	info, err := os.Stat(name)
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

func (disk) SyncDir(dir string) error { return syncDir(dir) }

type diskFile struct{ *os.File }

func (f diskFile) Sync() error { return syncData(f.File) }

func (f diskFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// writeWhole makes a file appear under its name with all of its content or not at all, also across
// a power cut: a temporary file, synced, renamed, its directory synced. If it fails, renamed says
// that it may be there all the same.
func writeWhole(fsys fileSystem, name string, content []byte) (renamed bool, err error) {
	tmp := name + tmpSuffix
	f, err := fsys.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return false, err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = fsys.Remove(tmp) // best effort: a leftover is removed at the next open
		return false, err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		_ = fsys.Remove(tmp) // as above
		return true, err
	}
	return true, fsys.SyncDir(filepath.Dir(name))
}

const tmpSuffix = ".tmp"

func isFull(err error) bool    { return errors.Is(err, syscall.ENOSPC) || isOverQuota(err) }
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// tightDisk is one on which not every write finds room.
type tightDisk struct {
	fileSystem
	room func(bytes int) int
}

func (d tightDisk) OpenFile(name string, flag int) (file, error) {
	f, err := d.fileSystem.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return tightFile{f, d.room}, nil
}

type tightFile struct {
	file
	room func(bytes int) int
}

// WriteAt writes what finds room, as a disk does that fills up in the middle of a write.
func (f tightFile) WriteAt(b []byte, off int64) (int, error) {
	room := f.room(len(b))
	if room >= len(b) {
		return f.file.WriteAt(b, off)
	}
	n, err := f.file.WriteAt(b[:room], off)
	if err == nil {
		err = syscall.ENOSPC
	}
	return n, err
}
