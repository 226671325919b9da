package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Damage reports a file that could not be used and was set aside.
type Damage struct {
	File     string    // its own name
	SetAside string    // the name it has now
	Reason   error     // wraps ErrCorrupt
	Size     int64     // in bytes
	Modified time.Time // when it was last written to: the age of what is lost
}

func (d *Damage) Error() string {
	return fmt.Sprintf("%s (%d bytes, written %s) was set aside as %s: %v",
		d.File, d.Size, d.Modified.UTC().Format(time.RFC3339), d.SetAside, d.Reason)
}

func (d *Damage) Unwrap() error { return d.Reason }

// maxSetAside bounds the damaged files of one name; beyond it the disk needs a person.
const maxSetAside = 1000

// SetAside renames a file or directory to NAME.damaged-N with the first N that is free, makes that
// durable and returns the new name. Nothing is deleted.
func SetAside(name string) (string, error) {
	for n := 1; n <= maxSetAside; n++ {
		to := fmt.Sprintf("%s.damaged-%d", name, n)
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		if err := os.Rename(name, to); err != nil {
			return "", fmt.Errorf("set %s aside: %w", name, err)
		}
		return to, syncDir(filepath.Dir(name))
	}
	return "", fmt.Errorf("set %s aside: there are %d damaged files of that name: move them away", name, maxSetAside)
}

// boltLockWait is how long an open waits for another holder of the file. The directory's lock keeps
// other agents out, so there is none but by mistake.
const boltLockWait = time.Second

// database is a bbolt file that is verified before it is used. bbolt panics on pages that are not
// what they should be, partly in goroutines of its own where nobody can catch it, so its structure
// is walked first; what happens to the file later is caught in view and update.
type database struct {
	path     string
	db       *bolt.DB
	readOnly bool

	mu     sync.Mutex
	file   *os.File // bbolt's own descriptor: closing it is all that is left after a panic
	failed error

	base    atomic.Int64 // bytes written before bbolt's counter starts
	commits atomic.Int64
}

// content is what a kind of file has in it.
type content struct {
	begin  func(*bolt.Tx) error            // runs in one transaction when the file is new
	verify func(*bolt.Tx, *database) error // of a file that is there; its errors about damage wrap ErrCorrupt
}

// PutAside sets a damaged file or directory aside and says what it was.
func PutAside(name string, reason error) (*Damage, error) {
	size, modified := sizeOf(name)
	if info, err := os.Lstat(name); err == nil && modified.IsZero() {
		modified = info.ModTime() // a directory without a file
	}
	to, err := SetAside(name)
	if err != nil {
		return nil, errors.Join(reason, err)
	}
	return &Damage{File: name, SetAside: to, Reason: reason, Size: size, Modified: modified}, nil
}

// openDatabase opens the file or makes it. A damaged file is set aside and replaced by a new one.
func openDatabase(path string, format uint64, of content) (*database, *Damage, error) {
	_, err := os.Lstat(path)
	if isMissing(err) {
		d, err := createDatabase(path, format, of)
		return d, nil, err
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", path, err)
	}
	d, err := tryDatabase(path, format, of)
	if err == nil {
		return d, nil, nil
	}
	if !errors.Is(err, ErrCorrupt) {
		return nil, nil, err
	}
	damage, err := PutAside(path, err)
	if err != nil {
		return nil, nil, err
	}
	d, err = createDatabase(path, format, of)
	return d, damage, err
}

// tryDatabase opens an existing file. Errors about its content wrap ErrCorrupt.
func tryDatabase(path string, format uint64, of content) (*database, error) {
	if err := examineBolt(path); err != nil {
		return nil, err
	}
	d := &database{path: path}
	if err := d.open(); err != nil {
		return nil, err
	}
	err := d.view(func(tx *bolt.Tx) error {
		if err := checkFormat(tx, path, format); err != nil {
			return err
		}
		return of.verify(tx, d)
	})
	if err != nil {
		_ = d.close()
		return nil, err
	}
	return d, nil
}

// createDatabase makes the file under another name first, so that a file which is empty or has no
// content is always damage and never a start that was cut short.
func createDatabase(path string, format uint64, of content) (*database, error) {
	tmp := path + tmpSuffix
	if err := os.Remove(tmp); err != nil && !isMissing(err) {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	fresh := &database{path: tmp}
	if err := fresh.open(); err != nil {
		return nil, err
	}
	err := fresh.update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucketFormat)
		if err != nil {
			return err
		}
		if err := b.Put(keyVersion, formatValue(format)); err != nil {
			return err
		}
		return of.begin(tx)
	})
	if closeErr := fresh.close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	d := &database{path: path}
	d.base.Store(fresh.written())
	return d, d.open()
}

var (
	bucketFormat = []byte("format")
	keyVersion   = []byte("version")
)

// formatValue is a format's version and a checksum: a flipped bit must not look like a newer format.
func formatValue(format uint64) []byte {
	b := binary.BigEndian.AppendUint64(nil, format)
	return binary.BigEndian.AppendUint64(b, xxh3.Hash(b))
}

func checkFormat(tx *bolt.Tx, path string, format uint64) error {
	var value []byte
	if b := tx.Bucket(bucketFormat); b != nil {
		value = b.Get(keyVersion)
	}
	if len(value) != 16 || !bytes.Equal(value, formatValue(binary.BigEndian.Uint64(value))) {
		return fmt.Errorf("%w: %s has no format version", ErrCorrupt, path)
	}
	if v := binary.BigEndian.Uint64(value); v != format {
		return fmt.Errorf("%s has format version %d, this build reads %d: use the build that wrote it, or a newer one", path, v, format)
	}
	return nil
}

func (d *database) open() error {
	opt := &bolt.Options{
		Timeout:  boltLockWait,
		ReadOnly: d.readOnly,
		// Commits stay cheap when much has been freed. The free list itself is written with each
		// commit: without it bbolt scans the whole file whenever a transaction is rolled back, in a
		// goroutine whose panic on a damaged page ends the process.
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: initialMap(),
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag, mode)
			d.file = f
			return f, err
		},
	}
	err := d.guard(func() (err error) {
		d.db, err = bolt.Open(d.path, 0o640, opt)
		if err != nil {
			return fmt.Errorf("open %s: %w", d.path, err)
		}
		d.db.AllocSize = growStep
		return nil
	})
	if errors.Is(err, ErrCorrupt) {
		err = errors.Join(err, d.close()) // else the file stays locked
	}
	return err
}

// initialMap is how much address space a file gets at first: a file that outgrows its map makes a
// writer wait for all readers. Address space is scarce only where pointers are small.
func initialMap() int {
	if strconv.IntSize == 32 {
		return 16 << 20
	}
	return 256 << 20
}

// growStep is by how many bytes the file grows.
const growStep = 1 << 20

// view runs a read transaction.
func (d *database) view(f func(*bolt.Tx) error) error {
	if err := d.usable(); err != nil {
		return err
	}
	return d.guard(func() error { return d.db.View(f) })
}

// update runs a write transaction, which is durable when it returns without error.
func (d *database) update(f func(*bolt.Tx) error) error {
	if err := d.usable(); err != nil {
		return err
	}
	err := d.guard(func() error { return d.db.Update(f) })
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return ErrClosed
	}
	if err == nil {
		d.commits.Add(1)
	}
	return err
}

func (d *database) usable() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// callerPanic carries a panic of a caller's function through guard unchanged.
type callerPanic struct{ value any }

// guard turns a panic of bbolt, and a fault in the mapped file, into an error that wraps ErrCorrupt.
// After it the database's locks cannot be trusted, so it refuses all further work.
func (d *database) guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case callerPanic:
			panic(p.value)
		default:
			err = fmt.Errorf("%w: %s: %v", ErrCorrupt, d.path, p)
			d.mu.Lock()
			d.failed = err
			d.mu.Unlock()
		}
	}()
	return f()
}

// shield lets the panics of a caller's function through guard.
func shield[T any](f func(T) error) func(T) error {
	return func(x T) error {
		defer func() {
			if p := recover(); p != nil {
				panic(callerPanic{p})
			}
		}()
		return f(x)
	}
}

// written is how many bytes went to the file: the pages of each transaction and its meta page.
func (d *database) written() int64 {
	if d.db == nil {
		return d.base.Load()
	}
	stats := d.db.Stats()
	pages := stats.TxStats.GetPageAlloc()
	return d.base.Load() + pages + d.commits.Load()*int64(os.Getpagesize())
}

func (d *database) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed != nil && !errors.Is(d.failed, ErrClosed) {
		// bbolt's own locks may be held for ever, and its map stays; the lock on the file is what the
		// next open needs free.
		d.failed = ErrClosed
		if d.file == nil {
			return nil
		}
		return errors.Join(unlockFile(d.file), d.file.Close())
	}
	if d.failed != nil {
		return nil
	}
	d.failed = ErrClosed
	return d.db.Close()
}

// check runs bbolt's own consistency check.
func (d *database) check() error {
	return d.view(func(tx *bolt.Tx) error {
		var first error
		for err := range tx.Check() {
			if first == nil {
				first = fmt.Errorf("%w: %s: %w", ErrCorrupt, d.path, err)
			}
		}
		return first
	})
}
