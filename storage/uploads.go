package storage

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ErrGap says that bytes do not follow those that are there.
var ErrGap = errors.New("bytes before these are missing")

// ErrRefused says that an upload cannot be what it is said to be: its name, its size, or how many bytes come.
var ErrRefused = errors.New("refused")

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

	mu      sync.Mutex // guards what follows, and the uploads' touched; it is not held while an upload is written to
	uploads map[string]*upload
}

type upload struct {
	name, path string
	size       int64
	touched    time.Time    // when the last byte came, or somebody last tried
	have       atomic.Int64 // written to under mu

	mu      sync.Mutex // guards what follows, and the file
	durable bool       // its name is
	gone    bool
}

const partSuffix = ".part"

// OpenUploads opens a directory of unfinished uploads or makes it. What in it cannot be looked at or removed is left
// alone, and told: nobody needs it, as an upload that is not there begins anew.
func OpenUploads(dir string, limits UploadLimits) (u *Uploads, left []error, err error) {
	return openUploads(dir, disk{}, limits, time.Now)
}

func openUploads(dir string, fsys fileSystem, limits UploadLimits, now func() time.Time) (_ *Uploads, left []error, err error) {
	u := &Uploads{dir: dir, fs: fsys, limits: limits, now: now, uploads: map[string]*upload{}}
	if err := fsys.MkdirAll(dir); err != nil {
		return nil, nil, fmt.Errorf("uploads in %s: %w", dir, err)
	}
	files, err := fsys.List(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("uploads in %s: %w", dir, err)
	}
	for _, file := range files {
		if err := u.load(file); err != nil {
			left = append(left, fmt.Errorf("uploads in %s: %s: %w", dir, file, err))
		}
	}
	return u, left, nil
}

// load takes up an unfinished upload; what is none is removed.
func (u *Uploads) load(file string) error {
	path := filepath.Join(u.dir, file)
	hexed, sized, _ := strings.Cut(strings.TrimSuffix(file, partSuffix), ".")
	size, err := strconv.ParseInt(sized, 10, 64)
	up := &upload{name: digestPrefix + hexed, path: path, size: size, touched: u.now()}
	if err != nil || up.path != u.pathOf(up.name, size) || !ValidDigest(up.name) || u.uploads[up.name] != nil {
		return u.fs.Remove(path)
	}
	f, err := u.fs.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	have, err := f.Size()
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	up.have.Store(have)
	if have > size || size > u.limits.Size {
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

func (u *Uploads) pathOf(name string, size int64) string {
	return filepath.Join(u.dir, strings.TrimPrefix(name, digestPrefix)+"."+strconv.FormatInt(size, 10)+partSuffix)
}

// Have is how many bytes have come of a blob, from its beginning on; 0 if it is not being uploaded.
func (u *Uploads) Have(name string) int64 {
	if up := u.find(name); up != nil {
		return up.have.Load()
	}
	return 0
}

func (u *Uploads) find(name string) *upload {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.uploads[name]
}

// Write adds bytes that begin at an offset of a blob of size bytes in all, and returns how many there are then. What is
// there already is skipped; bytes that leave a gap are refused with an error that wraps [ErrGap], ones beyond the
// bounds with [ErrBusy], what cannot be with [ErrRefused]. A disk that fills up keeps what found room. The bytes are durable after [Uploads.Sync].
func (u *Uploads) Write(name string, size, offset int64, b []byte) (have int64, err error) {
	up, err := u.begin(name, size)
	if err != nil {
		return 0, fmt.Errorf("upload %s: %w", name, err)
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	have = up.have.Load()
	switch {
	case up.gone:
		return 0, fmt.Errorf("upload %s: %w: it was given up meanwhile", name, ErrGap)
	case offset > have:
		return have, fmt.Errorf("upload %s: %w: there are %d, and these begin at %d", name, ErrGap, have, offset)
	case offset+int64(len(b)) > size:
		return have, fmt.Errorf("upload %s: %w: it has more than the %d bytes that it was to have", name, ErrRefused, size)
	}
	if offset+int64(len(b)) <= have {
		return have, nil
	}
	err = u.open(up, func(f file) error {
		n, err := f.WriteAt(b[have-offset:], have)
		have = up.have.Add(int64(n))
		return err
	})
	if err != nil {
		err = fmt.Errorf("upload %s: %w", name, err)
	}
	return have, err
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
	case !ValidDigest(name):
		return nil, fmt.Errorf("%w: not %s and 64 hexadecimal digits in lower case", ErrRefused, digestPrefix)
	case size < 1 || size > u.limits.Size:
		return nil, fmt.Errorf("%w: %d bytes: not between 1 and %d", ErrRefused, size, u.limits.Size)
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
	defer delete(u.uploads, up.name)
	return u.drop(up)
}

// drop gives up what has come, if it is still there. The caller holds the upload's mu; it is in the list until then, so that
// nobody begins another one in its file.
func (u *Uploads) drop(up *upload) error {
	up.gone = true
	up.have.Store(0)
	if err := u.fs.Remove(up.path); err != nil && !isMissing(err) {
		return err
	}
	return nil
}

// Sync makes durable what has come of a blob.
func (u *Uploads) Sync(name string) error {
	up := u.find(name)
	if up == nil {
		return nil
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	if up.gone || up.have.Load() == 0 {
		return nil
	}
	err := u.open(up, file.Sync)
	if err == nil && !up.durable {
		err = u.fs.SyncDir(u.dir)
		up.durable = err == nil
	}
	if err != nil {
		return fmt.Errorf("upload %s: %w", name, err)
	}
	return nil
}

// Finish puts a blob of which all bytes have come among the others, if they match the digest. Else what has come is given
// up, and the error wraps [ErrCorrupt]. One that is among the others already is fine.
func (u *Uploads) Finish(name string, into *Blobs) error {
	u.mu.Lock()
	up := u.uploads[name]
	if up != nil {
		up.touched = u.now() // nobody gives it up meanwhile
	}
	u.mu.Unlock()
	if up == nil {
		return finished(name, into)
	}
	done, err := u.finish(up, into)
	if done {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.uploads[name] == up {
			delete(u.uploads, name)
		}
	}
	return err
}

// finish says whether the upload is over.
func (u *Uploads) finish(up *upload, into *Blobs) (done bool, err error) {
	up.mu.Lock()
	defer up.mu.Unlock()
	if up.gone {
		return true, finished(up.name, into)
	}
	if have := up.have.Load(); have < up.size {
		return false, fmt.Errorf("upload %s: %w: %d of %d bytes have come", up.name, ErrGap, have, up.size)
	}
	err = into.adopt(up.name, up.path)
	if err == nil || errors.Is(err, ErrCorrupt) {
		return true, errors.Join(err, u.drop(up))
	}
	return false, err
}

// finished says nothing of a blob that is there, and else that nothing has come of it.
func finished(name string, into *Blobs) error {
	has, err := into.Has(name)
	if err == nil && !has {
		err = fmt.Errorf("upload %s: %w: nothing has come of it", name, ErrGap)
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
	defer u.mu.Unlock()
	for _, up := range u.uploads {
		n += up.have.Load()
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
