package storage

import (
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
	"sync"
	"time"
)

// ErrGap says that bytes do not follow those that are there.
var ErrGap = errors.New("bytes before these are missing")

// ErrBusy says that there are as many unfinished uploads as may be, and all of them go on.
var ErrBusy = errors.New("too many uploads at once")

// UploadLimits bound what uploads that have not ended may take.
type UploadLimits struct {
	Size  int64         // bytes of one
	Total int64         // bytes of all, each with the size that it is to have
	Age   time.Duration // since the last byte: older ones are given up
	// Busy is since the last byte: one that is younger makes no room for another one.
	Busy time.Duration
}

// Uploads keeps what has come of blobs, each a file that grows at its end, so that an upload goes on where it broke off,
// also after a restart. A blob is named by its digest; whoever sends it may do so several times at once: each byte is
// taken from who brings it first, and the digest decides in the end. Methods may be called from any goroutine.
type Uploads struct {
	dir    string
	fs     fileSystem
	limits UploadLimits
	now    func() time.Time

	mu      sync.Mutex // guards what follows, and the uploads' touched
	uploads map[string]*upload
}

type upload struct {
	name, path string
	size       int64
	touched    time.Time // when the last byte came

	mu   sync.Mutex // guards what follows, and the file
	have int64
	gone bool
}

const partSuffix = ".part"

// OpenUploads opens a directory of unfinished uploads or makes it.
func OpenUploads(dir string, limits UploadLimits) (*Uploads, error) {
	return openUploads(dir, disk{}, limits, time.Now)
}

func openUploads(dir string, fsys fileSystem, limits UploadLimits, now func() time.Time) (*Uploads, error) {
	u := &Uploads{dir: dir, fs: fsys, limits: limits, now: now, uploads: map[string]*upload{}}
	if err := fsys.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("uploads in %s: %w", dir, err)
	}
	files, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("uploads in %s: %w", dir, err)
	}
	for _, file := range files {
		if err := u.load(file); err != nil {
			return nil, fmt.Errorf("uploads in %s: %s: %w", dir, file, err)
		}
	}
	return u, nil
}

// load takes up an unfinished upload; what is none is removed.
func (u *Uploads) load(file string) error {
	path := filepath.Join(u.dir, file)
	hexed, sized, _ := strings.Cut(strings.TrimSuffix(file, partSuffix), ".")
	size, err := strconv.ParseInt(sized, 10, 64)
	up := &upload{name: digestPrefix + hexed, path: path, size: size, touched: u.now()}
	if err != nil || up.path != u.pathOf(up.name, size) || !isSum(up.name) || u.uploads[up.name] != nil {
		return u.fs.Remove(path)
	}
	f, err := u.fs.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	up.have, err = f.Size()
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if up.have > size || size > u.limits.Size {
		return u.fs.Remove(path)
	}
	if d, ok := u.fs.(interface {
		Modified(string) (time.Time, error)
	}); ok {
		if at, err := d.Modified(path); err == nil && at.Before(up.touched) { // else the clock was set back
			up.touched = at
		}
	}
	u.uploads[up.name] = up
	return nil
}

// isSum says whether a name is a digest in the form that it has.
func isSum(name string) bool {
	hexed, ok := strings.CutPrefix(name, digestPrefix)
	raw, err := hex.DecodeString(hexed)
	return ok && err == nil && len(raw) == 32 && hexed == strings.ToLower(hexed)
}

func (u *Uploads) pathOf(name string, size int64) string {
	return filepath.Join(u.dir, strings.TrimPrefix(name, digestPrefix)+"."+strconv.FormatInt(size, 10)+partSuffix)
}

// Have is how many bytes have come of a blob, from its beginning on; 0 if it is not being uploaded.
func (u *Uploads) Have(name string) int64 {
	u.mu.Lock()
	up := u.uploads[name]
	u.mu.Unlock()
	if up == nil {
		return 0
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	return up.have
}

// Write adds bytes that begin at an offset of a blob of size bytes in all, and returns how many there are then. What is
// there already is skipped; bytes that leave a gap are refused with an error that wraps [ErrGap], ones beyond the
// bounds with [ErrBusy]. A disk that fills up keeps what found room. The bytes are durable after [Uploads.Sync].
func (u *Uploads) Write(name string, size, offset int64, b []byte) (have int64, err error) {
	up, err := u.begin(name, size)
	if err != nil {
		return 0, fmt.Errorf("upload %s: %w", name, err)
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	switch {
	case up.gone:
		return 0, fmt.Errorf("upload %s: %w: it was given up meanwhile", name, ErrGap)
	case offset > up.have:
		return up.have, fmt.Errorf("upload %s: %w: there are %d, and these begin at %d", name, ErrGap, up.have, offset)
	case offset+int64(len(b)) > size:
		return up.have, fmt.Errorf("upload %s: it has more than the %d bytes that it was to have", name, size)
	}
	if offset+int64(len(b)) <= up.have {
		return up.have, nil
	}
	err = u.open(up, func(f file) error {
		n, err := f.WriteAt(b[up.have-offset:], up.have)
		up.have += int64(n)
		return err
	})
	if err != nil {
		err = fmt.Errorf("upload %s: %w", name, err)
	}
	return up.have, err
}

func (u *Uploads) open(up *upload, do func(file) error) error {
	f, err := u.fs.OpenFile(up.path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close())
}

// begin finds an upload, or makes room for it. One that is to have another size begins anew.
func (u *Uploads) begin(name string, size int64) (*upload, error) {
	switch {
	case !isSum(name):
		return nil, fmt.Errorf("not %s and 64 hexadecimal digits in lower case", digestPrefix)
	case size < 1 || size > u.limits.Size:
		return nil, fmt.Errorf("%d bytes: not between 1 and %d", size, u.limits.Size)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	up := u.uploads[name]
	if up != nil && up.size != size {
		if err := u.remove(up); err != nil {
			return nil, err
		}
		up = nil
	}
	if up == nil {
		if err := u.makeRoom(size); err != nil {
			return nil, err
		}
		up = &upload{name: name, path: u.pathOf(name, size), size: size}
		u.uploads[name] = up
	}
	up.touched = u.now()
	return up, nil
}

// makeRoom gives uploads up that have rested for longest until another one fits. The caller holds mu.
func (u *Uploads) makeRoom(size int64) error {
	for {
		var total int64
		var oldest *upload
		for _, up := range u.uploads {
			total += up.size
			if oldest == nil || up.touched.Before(oldest.touched) {
				oldest = up
			}
		}
		switch {
		case total+size <= u.limits.Total:
			return nil
		case oldest == nil || u.now().Sub(oldest.touched) < u.limits.Busy:
			return fmt.Errorf("%w: %d bytes are on their way, and there may be %d", ErrBusy, total, u.limits.Total)
		}
		if err := u.remove(oldest); err != nil {
			return err
		}
	}
}

// remove gives an upload up. The caller holds mu.
func (u *Uploads) remove(up *upload) error {
	up.mu.Lock()
	defer up.mu.Unlock()
	up.gone, up.have = true, 0
	delete(u.uploads, up.name)
	if err := u.fs.Remove(up.path); err != nil && !isMissing(err) {
		return err
	}
	return nil
}

// Sync makes durable what has come of a blob.
func (u *Uploads) Sync(name string) error {
	u.mu.Lock()
	up := u.uploads[name]
	u.mu.Unlock()
	if up == nil {
		return nil
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	if up.gone || up.have == 0 {
		return nil
	}
	if err := u.open(up, file.Sync); err != nil {
		return fmt.Errorf("upload %s: %w", name, err)
	}
	return nil
}

// Finish puts a blob of which all bytes have come among the others, if they match the digest. Else what has come is given
// up, and the error wraps [ErrCorrupt]. One that is among the others already is fine.
func (u *Uploads) Finish(name string, into *Blobs) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	up := u.uploads[name]
	if up == nil {
		if has, err := into.Has(name); err != nil || has {
			return err
		}
		return fmt.Errorf("upload %s: %w: nothing has come of it", name, ErrGap)
	}
	up.mu.Lock()
	have := up.have
	up.mu.Unlock()
	if have < up.size {
		return fmt.Errorf("upload %s: %w: %d of %d bytes have come", name, ErrGap, have, up.size)
	}
	err := into.adopt(name, up.path)
	if err == nil || errors.Is(err, ErrCorrupt) {
		err = errors.Join(err, u.remove(up))
	}
	return err
}

// Collect gives up what has rested for too long.
func (u *Uploads) Collect() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	var errs []error
	for _, up := range u.uploads {
		if u.now().Sub(up.touched) >= u.limits.Age {
			errs = append(errs, u.remove(up))
		}
	}
	return errors.Join(errs...)
}

// Bytes is how many bytes of unfinished uploads there are.
func (u *Uploads) Bytes() (n int64) {
	u.mu.Lock()
	names := make([]string, 0, len(u.uploads))
	for name := range u.uploads {
		names = append(names, name)
	}
	u.mu.Unlock()
	slices.Sort(names)
	for _, name := range names {
		n += u.Have(name)
	}
	return n
}

// IsFull says of an error that the disk has no room.
func IsFull(err error) bool { return isFull(err) }

func checkSum(name string, r io.Reader) error {
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return err
	}
	if got := digestPrefix + hex.EncodeToString(sum.Sum(nil)); got != name {
		return fmt.Errorf("%w: the content has digest %s", ErrCorrupt, got)
	}
	return nil
}

// adopt makes a file a blob, if its content matches the digest; else the error wraps [ErrCorrupt]. The file is gone from
// where it was if it succeeds.
func (b *Blobs) adopt(name, from string) error {
	path, err := b.fileOf(name)
	if err != nil {
		return err
	}
	f, err := b.fs.OpenFile(from, os.O_RDWR)
	if err != nil {
		return fmt.Errorf("blob %s: %w", name, err)
	}
	size, err := f.Size()
	if err == nil {
		err = checkSum(name, io.NewSectionReader(f, 0, size))
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = b.fs.Rename(from, path)
	}
	if err == nil {
		b.written.Add(size)
		err = b.fs.SyncDir(b.dir)
	}
	if err != nil {
		return fmt.Errorf("blob %s in %s: %w", name, b.dir, err)
	}
	return nil
}
