package storage

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// dirFormat is the version of a data directory's layout.
const dirFormat = 1

// Names within a data directory.
const (
	lockName     = "lock"
	formatName   = "format"
	identityName = "identity.json"
	logName      = "log"
	stateName    = "state.db"
	copiesName   = "local.db"
	blobsName    = "blobs"
	uploadsName  = "uploads"
)

// Dir is an agent's data directory, locked against other agents until it is closed.
type Dir struct {
	path string
	lock *os.File

	mu sync.Mutex
	id identityFile
}

// Identity is who the agent of a directory is.
type Identity struct {
	Name     string // of the agent; empty until SetName
	Instance string // random, made with the directory
}

type identityFile struct {
	Name        string `json:"name"`
	Instance    string `json:"instance"`
	Incarnation uint32 `json:"incarnation"`
}

// OpenDir opens a data directory or makes it, and counts the opening. Errors say what is wrong with
// the directory: it is in use by another agent, was written by a newer build, or is not writable.
func OpenDir(dir string) (*Dir, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	if err := makeDir(abs); err != nil {
		return nil, fmt.Errorf("data directory %s cannot be made: %w", dir, err)
	}
	lock, err := lockDir(abs)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	d := &Dir{path: abs, lock: lock}
	if err := d.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("data directory %s: %w", dir, err), lock.Close())
	}
	return d, nil
}

// makeDir makes a directory and its parents, each durable in the one above it.
func makeDir(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent == dir {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if err := makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	return syncDir(parent)
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("it is not writable: %w", err)
	}
	ok, err := lockSoon(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock it: %w", err), f.Close())
	}
	if !ok {
		b, _ := io.ReadAll(io.LimitReader(f, 32)) // for the message only
		who := "another agent"
		if pid := strings.TrimSpace(string(b)); pid != "" {
			who += " (process " + pid + ")"
		}
		return nil, errors.Join(fmt.Errorf("%s uses it: stop that one, or choose another directory", who), f.Close())
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(pid), 0)
	}
	if err != nil && !isFull(err) { // the number only helps people: a full disk must not stop the agent
		return nil, errors.Join(fmt.Errorf("it is not writable: %w", err), f.Close())
	}
	return f, nil
}

// lockPatience is how long a directory in use is waited for: the system takes a while to end a process
// that was killed, and who restarts it at once must not be refused.
const lockPatience = 2 * time.Second

func lockSoon(f *os.File) (ok bool, err error) {
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockPatience / 40) {
		if ok, err = lockFile(f); ok || err != nil || time.Now().After(end) {
			return ok, err
		}
	}
}

func (d *Dir) load() error {
	if err := d.checkFormat(); err != nil {
		return err
	}
	name := filepath.Join(d.path, identityName)
	b, err := os.ReadFile(name)
	switch {
	case isMissing(err):
		d.id = identityFile{Instance: newInstance()}
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(b, &d.id); err != nil || d.id.Instance == "" {
			return fmt.Errorf("%w: %s: %w: restore the file, or start with a new directory", ErrCorrupt, name, errors.Join(err, errors.New("no instance id")))
		}
	}
	if d.id.Incarnation == math.MaxUint32 {
		return errors.New("it has been opened 2^32 times, which no number of an incarnation can exceed")
	}
	d.id.Incarnation++
	return d.save(d.id)
}

func newInstance() string {
	var b [16]byte
	for i := 0; i < len(b); i += 8 {
		x := randomID()
		for j := range 8 {
			b[i+j] = byte(x >> (8 * j))
		}
	}
	return hex.EncodeToString(b[:])
}

func (d *Dir) checkFormat() error {
	name := filepath.Join(d.path, formatName)
	b, err := os.ReadFile(name)
	if isMissing(err) {
		if _, err := writeWhole(disk{}, name, []byte(strconv.Itoa(dirFormat)+"\n")); err != nil {
			return fmt.Errorf("it is not writable: %w", err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case err != nil || v < 1:
		return fmt.Errorf("%w: %s does not hold a format version: restore it, or write %d into it if this build made the directory", ErrCorrupt, name, dirFormat)
	case v > dirFormat:
		return fmt.Errorf("it has format version %d, this build reads up to %d: use the build that wrote it, or a newer one", v, dirFormat)
	}
	return nil
}

func (d *Dir) save(id identityFile) error {
	content, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	name, b := filepath.Join(d.path, identityName), append(content, '\n')
	_, err = writeWhole(disk{}, name, b)
	// An agent must start on a full disk too: take of the log's ballast, which has room for both.
	if err != nil && isFull(err) && os.Remove(filepath.Join(d.LogPath(), ballastName)) == nil {
		_, err = writeWhole(disk{}, name, b)
	}
	return err
}

// Path is the directory's absolute path.
func (d *Dir) Path() string { return d.path }

// LogPath is the directory of the input log.
func (d *Dir) LogPath() string { return filepath.Join(d.path, logName) }

// StatePath is the file of snapshots.
func (d *Dir) StatePath() string { return filepath.Join(d.path, stateName) }

// CopiesPath is the file of local copies.
func (d *Dir) CopiesPath() string { return filepath.Join(d.path, copiesName) }

// BlobsPath is the directory of modules and packs.
func (d *Dir) BlobsPath() string { return filepath.Join(d.path, blobsName) }

// UploadsPath is the directory of modules that have not come whole yet.
func (d *Dir) UploadsPath() string { return filepath.Join(d.path, uploadsName) }

// Identity is who the agent of this directory is.
func (d *Dir) Identity() Identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Identity{Name: d.id.Name, Instance: d.id.Instance}
}

// SetName stores the agent's name durably.
func (d *Dir) SetName(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := d.id
	id.Name = name
	if err := d.save(id); err != nil {
		return fmt.Errorf("data directory %s: store the agent's name: %w", d.path, err)
	}
	d.id = id
	return nil
}

// Incarnation is how often the directory has been opened, this time included.
func (d *Dir) Incarnation() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id.Incarnation
}

// Close gives the directory free for other agents.
func (d *Dir) Close() error { return d.lock.Close() }
