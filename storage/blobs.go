package storage

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// digestPrefix starts the names of blobs that are named by their content.
const digestPrefix = "sha256:"

// maxBlobFile bounds a name's escaped form so that it and a temporary file's number fit into a file
// name of 255 bytes.
const maxBlobFile = 230

// Blobs keeps modules and packs as files, each whole under its name or not there. A blob named
// "sha256:" and 64 hexadecimal digits is checked against its name when it is put and when it is
// opened. Methods may be called from any goroutine.
type Blobs struct {
	dir     string
	fs      fileSystem
	next    atomic.Uint64 // number of the next temporary file
	written atomic.Int64
}

// OpenBlobs opens a directory of blobs or makes it, and removes what unfinished puts have left.
func OpenBlobs(dir string) (*Blobs, error) { return openBlobs(dir, disk{}) }

func openBlobs(dir string, fs fileSystem) (*Blobs, error) {
	b := &Blobs{dir: dir, fs: fs}
	if err := fs.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("blobs in %s: %w", dir, err)
	}
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("blobs in %s: %w", dir, err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, tmpSuffix) {
			_ = fs.Remove(filepath.Join(dir, n)) // best effort: it is tried again at the next open
		}
	}
	return b, nil
}

// Digest is the name of a blob with this content.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return digestPrefix + hex.EncodeToString(sum[:])
}

func isDigest(name string) bool { return strings.HasPrefix(name, digestPrefix) }

// ValidDigest says whether a name is a digest in the form that [Digest] gives it.
func ValidDigest(name string) bool {
	hexed, ok := strings.CutPrefix(name, digestPrefix)
	raw, err := hex.DecodeString(hexed)
	return ok && err == nil && len(raw) == sha256.Size && hexed == strings.ToLower(hexed)
}

// fileOf is the path of a blob. Names that look like a digest but are none are refused.
func (b *Blobs) fileOf(name string) (string, error) {
	if n := len(escapeName(name)); n == 0 || n > maxBlobFile {
		return "", fmt.Errorf("blobs in %s: name of %d bytes, as a file %d: it must have 1 to %d", b.dir, len(name), n, maxBlobFile)
	}
	if isDigest(name) && !ValidDigest(name) {
		return "", fmt.Errorf("blobs in %s: %q is not %s and 64 hexadecimal digits in lower case", b.dir, name, digestPrefix)
	}
	return filepath.Join(b.dir, escapeName(name)), nil
}

// escapeName makes a file name: letters, digits, '-' and '_' stay, dots too but at the start, all
// other bytes become % and two digits.
func escapeName(name string) string {
	var s strings.Builder
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_':
			s.WriteByte(c)
		case c == '.' && i > 0 && !strings.HasSuffix(name, tmpSuffix):
			s.WriteByte(c)
		default:
			fmt.Fprintf(&s, "%%%02x", c)
		}
	}
	return s.String()
}

func unescapeName(file string) (string, bool) {
	var s strings.Builder
	for i := 0; i < len(file); i++ {
		if file[i] != '%' {
			s.WriteByte(file[i])
			continue
		}
		if i+3 > len(file) {
			return "", false
		}
		c, err := strconv.ParseUint(file[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		s.WriteByte(byte(c))
		i += 2
	}
	return s.String(), escapeName(s.String()) == file
}

// Put stores a blob durably, in place of one of that name. Content that does not match a digest is
// refused with an error that wraps [ErrCorrupt].
func (b *Blobs) Put(name string, r io.Reader) error {
	path, err := b.fileOf(name)
	if err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d%s", path, b.next.Add(1), tmpSuffix)
	if err := b.fill(tmp, name, r); err != nil {
		_ = b.fs.Remove(tmp) // best effort: it is tried again at the next open
		return fmt.Errorf("put blob %s in %s: %w", name, b.dir, err)
	}
	err = b.fs.Rename(tmp, path)
	if err == nil {
		err = b.fs.SyncDir(b.dir)
	}
	if err != nil {
		return fmt.Errorf("put blob %s in %s: %w", name, b.dir, err)
	}
	return nil
}

func (b *Blobs) fill(tmp, name string, r io.Reader) error {
	f, err := b.fs.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	sum := sha256.New()
	w := &offsetWriter{f: f}
	_, err = io.Copy(io.MultiWriter(w, sum), r)
	b.written.Add(w.off)
	if err == nil && isDigest(name) && digestPrefix+hex.EncodeToString(sum.Sum(nil)) != name {
		err = fmt.Errorf("%w: the content has digest %x", ErrCorrupt, sum.Sum(nil))
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

type offsetWriter struct {
	f   file
	off int64
}

func (w *offsetWriter) Write(p []byte) (int, error) {
	n, err := w.f.WriteAt(p, w.off)
	w.off += int64(n)
	return n, err
}

// Get reads a blob whole; a digest is checked. A missing one is an error for which
// errors.Is(err, fs.ErrNotExist) holds.
func (b *Blobs) Get(name string) ([]byte, error) {
	f, size, err := b.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content := make([]byte, size)
	if _, err := f.ReadAt(content, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read blob %s in %s: %w", name, b.dir, err)
	}
	if isDigest(name) && Digest(content) != name {
		return nil, b.damaged(name)
	}
	return content, nil
}

func (b *Blobs) damaged(name string) error {
	return fmt.Errorf("%w: blob %s in %s does not match its digest: fetch it again", ErrCorrupt, name, b.dir)
}

// Open opens a blob for reading and returns its size in bytes. The content of a digest is checked
// first, which reads all of it.
func (b *Blobs) Open(name string) (io.ReadSeekCloser, int64, error) {
	f, size, err := b.open(name)
	if err != nil {
		return nil, 0, err
	}
	if isDigest(name) {
		if err := checkSum(name, io.NewSectionReader(f, 0, size)); err != nil {
			return nil, 0, errors.Join(fmt.Errorf("read blob %s in %s: %w", name, b.dir, err), f.Close())
		}
	}
	return &blobReader{io.NewSectionReader(f, 0, size), f}, size, nil
}

type blobReader struct {
	*io.SectionReader
	f file
}

func (r *blobReader) Close() error { return r.f.Close() }

func (b *Blobs) open(name string) (file, int64, error) {
	path, err := b.fileOf(name)
	if err != nil {
		return nil, 0, err
	}
	f, err := b.fs.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return nil, 0, fmt.Errorf("blob %s: %w", name, err)
	}
	size, err := f.Size()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("blob %s: %w", name, err), f.Close())
	}
	return f, size, nil
}

// Has says whether a blob is there, without checking its content.
func (b *Blobs) Has(name string) (bool, error) {
	f, _, err := b.open(name)
	if isMissing(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// Size is a blob's size in bytes. A missing one is an error for which errors.Is(err, fs.ErrNotExist) holds.
func (b *Blobs) Size(name string) (int64, error) {
	f, size, err := b.open(name)
	if err != nil {
		return 0, err
	}
	return size, f.Close()
}

// List returns the names of all blobs, sorted.
func (b *Blobs) List() ([]string, error) {
	files, err := b.fs.List(b.dir)
	if err != nil {
		return nil, fmt.Errorf("blobs in %s: %w", b.dir, err)
	}
	var names []string
	for _, f := range files {
		if name, ok := unescapeName(f); ok && !strings.HasSuffix(f, tmpSuffix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Delete removes a blob, if it is there.
func (b *Blobs) Delete(name string) error {
	path, err := b.fileOf(name)
	if err != nil {
		return err
	}
	if err := b.fs.Remove(path); err != nil && !isMissing(err) {
		return fmt.Errorf("delete blob %s in %s: %w", name, b.dir, err)
	}
	return b.fs.SyncDir(b.dir)
}

// PutBytes stores a blob of known content.
func (b *Blobs) PutBytes(name string, content []byte) error {
	return b.Put(name, bytes.NewReader(content))
}

// Written is how many bytes were written to the disk since it was opened.
func (b *Blobs) Written() int64 { return b.written.Load() }
