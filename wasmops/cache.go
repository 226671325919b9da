package wasmops

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"
)

// diskCache is a directory of compiled modules, one file each. Machine code read from a worn flash must not run, and
// a damaged entry would make its module fail for ever, so each file's checksum is kept in an index
// and files that do not match are removed when the cache is opened: they are compiled again.
type diskCache struct {
	dir    string
	wazero wazero.CompilationCache

	mu    sync.Mutex // guards files and the index on disk
	files map[string]cachedFile
}

// cachedFile describes a file by its path below the directory.
type cachedFile struct {
	Size   int64  `json:"size"` // bytes
	Sum    uint32 `json:"crc32c"`
	Module string `json:"module,omitempty"` // digest of the module that it was compiled of; empty: not known
}

// same says whether a file is as the index has it.
func (f cachedFile) same(o cachedFile) bool { return f.Size == o.Size && f.Sum == o.Sum }

const (
	cacheIndex = "index.json"
	// cacheLimit bounds the directory in bytes when it is opened: some 30 Go operators.
	cacheLimit = 512 << 20
)

func openDiskCache(dir string) (*diskCache, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	c := &diskCache{dir: dir, files: map[string]cachedFile{}}
	index, err := os.ReadFile(filepath.Join(dir, cacheIndex))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	known := map[string]cachedFile{}
	if json.Unmarshal(index, &known) != nil { // absent or damaged: nothing is trusted
		clear(known)
	}
	if err := c.keep(known); err != nil {
		return nil, err
	}
	c.wazero, err = wazero.NewCompilationCacheWithDir(dir)
	return c, err
}

// keep removes all files but those that match what is known and fit into the limit, newest first.
func (c *diskCache) keep(known map[string]cachedFile) error {
	found, err := c.list()
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b listed) int { return b.modified.Compare(a.modified) })
	total := int64(0)
	for _, f := range found {
		sum, err := checksum(filepath.Join(c.dir, f.path))
		if err != nil {
			return err
		}
		if want, ok := known[f.path]; ok && want.same(sum) && total+sum.Size <= cacheLimit {
			total += sum.Size
			c.files[f.path] = want
			continue
		}
		if err := os.Remove(filepath.Join(c.dir, f.path)); err != nil {
			return err
		}
	}
	return nil
}

type listed struct {
	path     string
	modified time.Time
}

// list returns all files below the directory except the index. One that is gone by the time it is looked at was
// a temporary one of a compilation that goes on meanwhile.
func (c *diskCache) list() (found []listed, err error) {
	err = filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(c.dir, path)
		if err != nil || name == cacheIndex {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		found = append(found, listed{name, info.ModTime()})
		return nil
	})
	return found, err
}

func checksum(path string) (cachedFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return cachedFile{}, err
	}
	defer f.Close()
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(h, f)
	return cachedFile{Size: n, Sum: h.Sum32()}, err
}

// record adds new files to the index. It is called after each compilation, of which there is one at a time: so they
// are the module's.
func (c *diskCache) record(module string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := c.list()
	if err != nil {
		return err
	}
	added := false
	for _, f := range found {
		if _, known := c.files[f.path]; known || filepath.Ext(f.path) == ".tmp" {
			continue
		}
		sum, err := checksum(filepath.Join(c.dir, f.path))
		if err != nil {
			return err
		}
		sum.Module = module
		c.files[f.path] = sum
		added = true
	}
	if !added {
		return nil
	}
	return c.writeIndex()
}

// tidy removes the files of modules that are not to be kept and returns how many bytes are left and were freed. Files
// of modules that are not known stay: they are bounded by the limit, and go when the engine changes.
func (c *diskCache) tidy(keep func(module string) bool) (left, freed int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for path, f := range c.files {
		left += f.Size
		if f.Module == "" || keep(f.Module) {
			continue
		}
		if err := os.Remove(filepath.Join(c.dir, path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		delete(c.files, path)
		left, freed = left-f.Size, freed+f.Size
	}
	if freed > 0 {
		errs = append(errs, c.writeIndex())
	}
	return left, freed, errors.Join(errs...)
}

// writeIndex replaces the index. It need not be durable: an entry that it lacks is compiled again.
func (c *diskCache) writeIndex() error {
	data, err := json.Marshal(c.files)
	if err != nil {
		return err
	}
	temp := filepath.Join(c.dir, cacheIndex+".tmp")
	if err := os.WriteFile(temp, data, 0o644); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(c.dir, cacheIndex)); err != nil {
		return fmt.Errorf("replace index: %w", err)
	}
	return nil
}
