package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-stream/weir/abs"
)

// Inspection is what the files of a data directory say. Nothing is written when they are looked at, so
// that what is damaged gets no worse.
type Inspection struct {
	Path     string
	Identity Identity
	Starts   uint32
	Items    []Inspected
	Log      LogReport
	// Store and Copies are open for reading, nil where they cannot be read. Close closes them.
	Store  *Store
	Copies *Copies

	unlock func() error
}

// Inspected is one part of a data directory.
type Inspected struct {
	Name     string // "identity", "log", "snapshots", "local copies", "modules and packs", "set aside"
	Path     string
	Bytes    int64
	Modified time.Time
	Detail   string
	// Err is what is wrong; nil: nothing is. One that wraps [ErrCorrupt] is damage.
	Err error
}

// LogReport is what a log's files hold.
type LogReport struct {
	ID       uint64 // as [LogStream.ID]
	Segments int
	Bytes    int64
	Last     abs.Position
	Closed   bool // by the agent, not cut off
	Streams  map[string]StreamInfo
}

// ErrNoAgent says that a directory is not one of an agent.
var ErrNoAgent = errors.New("is no directory of an agent")

// Inspect looks at a data directory whose agent does not run. It fails if there is no such directory,
// or an agent uses it.
func Inspect(dir string) (*Inspection, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s %w: give the one that agent run --data was given", dir, ErrNoAgent)
	}
	if _, err := os.Stat(filepath.Join(path, formatName)); isMissing(err) {
		return nil, fmt.Errorf("%s %w: it has no file %s", dir, ErrNoAgent, formatName)
	}
	unlock, err := lockToRead(path)
	if err != nil {
		return nil, err
	}
	in := &Inspection{Path: path, unlock: unlock}
	d := &Dir{path: path}
	for _, name := range []string{formatName, identityName} {
		if info, err := os.Stat(filepath.Join(path, name)); err == nil && !info.Mode().IsRegular() {
			return nil, errors.Join(fmt.Errorf("%w: %s in %s is no regular file", ErrCorrupt, name, path), unlock())
		}
	}
	in.add("identity", filepath.Join(path, identityName), in.identity(d))
	if in.Items[0].Err != nil && !errors.Is(in.Items[0].Err, ErrCorrupt) {
		return in, nil // of a newer version: nothing else can be understood
	}
	in.Log, err = inspectLog(d.LogPath())
	in.add("log", d.LogPath(), err)
	in.Store, err = readStore(d.StatePath())
	in.add("snapshots", d.StatePath(), err)
	in.Copies, err = readCopies(d.CopiesPath())
	in.add("local copies", d.CopiesPath(), err)
	detail, err := inspectBlobs(d.BlobsPath())
	in.add("modules and packs", d.BlobsPath(), err)
	in.Items[len(in.Items)-1].Detail = detail
	in.addSetAside()
	return in, nil
}

// Close closes what Inspect has opened, and lets agents use the directory again.
func (in *Inspection) Close() error {
	errs := []error{in.unlock()}
	if in.Store != nil {
		errs = append(errs, in.Store.Close())
	}
	if in.Copies != nil {
		errs = append(errs, in.Copies.Close())
	}
	return errors.Join(errs...)
}

func (in *Inspection) add(name, path string, err error) {
	item := Inspected{Name: name, Path: path, Err: err}
	item.Bytes, item.Modified = sizeOf(path)
	in.Items = append(in.Items, item)
}

// sizeOf is how much a file or directory holds, and when it was last written to.
func sizeOf(path string) (bytes int64, modified time.Time) {
	_ = filepath.WalkDir(path, func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return nil // what cannot be read is reported by whoever reads it
		}
		if info, err := e.Info(); err == nil && !e.IsDir() {
			bytes += info.Size()
			if info.ModTime().After(modified) {
				modified = info.ModTime()
			}
		}
		return nil
	})
	return bytes, modified
}

// lockToRead makes sure that no agent uses a directory meanwhile, without writing to it.
func lockToRead(path string) (unlock func() error, err error) {
	f, err := os.Open(filepath.Join(path, lockName))
	if isMissing(err) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the lock of %s cannot be read: %w", path, err)
	}
	ok, err := lockSoon(f)
	if err == nil && !ok {
		b := make([]byte, 32)
		n, _ := f.ReadAt(b, 0) // for the message only
		err = fmt.Errorf("an agent uses %s (process %s): stop it first", path, strings.TrimSpace(string(b[:n])))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}

func (in *Inspection) identity(d *Dir) error {
	b, err := os.ReadFile(filepath.Join(d.path, formatName))
	if err != nil {
		return err
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case err != nil || v < 1:
		return fmt.Errorf("%w: %s does not hold a format version", ErrCorrupt, filepath.Join(d.path, formatName))
	case v > dirFormat:
		return fmt.Errorf("format version %d, this build reads up to %d: use the build that wrote it, or a newer one", v, dirFormat)
	}
	name := filepath.Join(d.path, identityName)
	if b, err = os.ReadFile(name); err != nil {
		return err
	}
	var id identityFile
	err = json.Unmarshal(b, &id)
	if err == nil && id.Instance == "" {
		err = errors.New("no instance id")
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, name, err)
	}
	in.Identity, in.Starts = Identity{Name: id.Name, Instance: id.Instance}, id.Incarnation
	return nil
}

// inspectLog verifies a log's files like [OpenLog], and changes none.
func inspectLog(dir string) (LogReport, error) {
	r := LogReport{Streams: map[string]StreamInfo{}}
	if _, err := os.Stat(dir); err != nil {
		return r, err
	}
	l := &Log{opt: LogOptions{}.withDefaults(), dir: dir}
	found, err := l.examine()
	if err != nil {
		return r, err
	}
	r.ID, r.Segments, r.Last, r.Closed = found.log, len(found.segs), found.last, found.closed
	for _, s := range found.segs {
		r.Bytes += s.length
	}
	for id, s := range found.streams {
		info := StreamInfo{Name: s.name, Front: s.front, Last: s.front}
		for _, seg := range found.segs {
			if of, ok := seg.streams[id]; ok {
				info.Last = max(info.Last, of.last)
			}
		}
		r.Streams[s.name] = info
	}
	return r, nil
}

// readDatabase opens an existing file for reading only, once it is verified.
func readDatabase(path string, format uint64) (*database, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	if err := examineBolt(path); err != nil {
		return nil, err
	}
	d := &database{path: path, readOnly: true}
	if err := d.open(); err != nil {
		return nil, err
	}
	if err := d.view(func(tx *bolt.Tx) error { return checkFormat(tx, path, format) }); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func readStore(path string) (*Store, error) {
	db, err := readDatabase(path, storeFormat)
	if err != nil {
		return nil, err
	}
	s := &Store{db: db}
	return s, s.Check()
}

func readCopies(path string) (*Copies, error) {
	db, err := readDatabase(path, copiesFormat)
	if err != nil {
		return nil, err
	}
	c := &Copies{db: db}
	return c, c.Check()
}

// inspectBlobs reads every module and pack.
func inspectBlobs(dir string) (detail string, err error) {
	if _, err := os.Stat(dir); err != nil {
		return "", err
	}
	b := &Blobs{dir: dir, fs: disk{}}
	names, err := b.List()
	if err != nil {
		return "", err
	}
	var errs []error
	for _, name := range names {
		if _, err := b.Get(name); err != nil {
			errs = append(errs, err)
		}
	}
	return fmt.Sprintf("%d files", len(names)), errors.Join(errs...)
}

func (in *Inspection) addSetAside() {
	names, err := filepath.Glob(filepath.Join(in.Path, "*.damaged-*"))
	if err != nil {
		return // only for a malformed pattern
	}
	for _, name := range names {
		in.add("set aside", name, nil)
	}
}
