// Package lossy has a disk for trials: it forgets at a power cut what was not fsynced, and can be full, slow, or for
// reading only ([Disk]).
package lossy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Disk is a directory on a file system of its own (FUSE), which knows what has been fsynced. Everything that a
// process writes below Dir goes to Backing at once; [Disk.PowerCut] takes back what was not fsynced.
type Disk struct {
	Dir     string // for the process under trial
	Backing string // the same files, for everybody else

	server  *fuse.Server
	journal *journal
	slow    atomic.Int64 // nanoseconds that an fsync takes longer
	locked  atomic.Bool  // nothing can be written
}

// ErrNoDisk says that this machine does not let a file system be mounted.
var ErrNoDisk = errors.New("no file system can be mounted here")

// New mounts one below dir, under a name. soft names a folder whose files' names become durable with any fsync,
// as a server's that counts on a journaling file system.
func New(dir, name, soft string) (*Disk, error) {
	d := &Disk{Dir: filepath.Join(dir, name), Backing: filepath.Join(dir, name+".disk")}
	trash := filepath.Join(dir, name+".gone")
	for _, made := range []string{d.Dir, d.Backing, trash} {
		if err := os.Mkdir(made, 0o755); err != nil {
			return nil, err
		}
	}
	d.journal = newJournal(d.Backing, trash, below(d.Backing, soft))
	var st syscall.Stat_t
	if err := syscall.Stat(d.Backing, &st); err != nil {
		return nil, err
	}
	root := &fs.LoopbackRoot{Path: d.Backing, Dev: uint64(st.Dev)}
	top := &diskNode{LoopbackNode: &fs.LoopbackNode{RootData: root}, disk: d}
	root.RootNode = top
	var none time.Duration
	server, err := fs.Mount(d.Dir, top, &fs.Options{
		EntryTimeout: &none, AttrTimeout: &none, NegativeTimeout: &none, // the files change below it at a power cut
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "weir-trial", Name: "weir-trial", MaxWrite: 1 << 20},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDisk, err)
	}
	d.server = server
	return d, nil
}

// Close unmounts it. What is on it stays in Backing.
func (d *Disk) Close() error { return d.server.Unmount() }

// PowerCut forgets what was not fsynced. The processes that wrote it must be gone.
func (d *Disk) PowerCut(r *rand.Rand) (Lost, error) { return d.journal.cut(r) }

// Fill leaves room for so many bytes more.
func (d *Disk) Fill(room int64) { d.journal.limit(room) }

// Free lifts the limit of [Disk.Fill].
func (d *Disk) Free() { d.journal.limit(-1) }

// Slow makes each fsync take so much longer.
func (d *Disk) Slow(by time.Duration) { d.slow.Store(int64(by)) }

// ReadOnly makes every write and every change of a name fail, also of open files, as after a disk's failure the file
// system is remounted for reading only; or lifts that.
func (d *Disk) ReadOnly(on bool) { d.locked.Store(on) }

// change does something that changes the disk, unless it can only be read.
func (d *Disk) change(do func() error) syscall.Errno {
	if d.locked.Load() {
		return syscall.EROFS
	}
	return fs.ToErrno(do())
}

// diskNode is a file or directory.
type diskNode struct {
	*fs.LoopbackNode
	disk *Disk
}

// WrapChild implements [fs.NodeWrapChilder].
func (n *diskNode) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	if node, ok := ops.(*fs.LoopbackNode); ok {
		return &diskNode{LoopbackNode: node, disk: n.disk}
	}
	return ops
}

func (n *diskNode) path() string {
	return filepath.Join(n.RootData.Path, n.Path(n.RootData.RootNode.EmbeddedInode()))
}

func (n *diskNode) child(name string) string { return filepath.Join(n.path(), name) }

// named changes names by do, by way of the journal.
func (n *diskNode) named(kind nameKind, from, path string, do func() error) syscall.Errno {
	return n.disk.change(func() error { return n.disk.journal.name(kind, from, path, do) })
}

// Open opens a file; a truncation that comes with it is noted.
func (n *diskNode) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&(syscall.O_ACCMODE|syscall.O_TRUNC) != syscall.O_RDONLY && n.disk.locked.Load() {
		return nil, 0, syscall.EROFS
	}
	f, err := os.OpenFile(n.path(), int(flags&^(syscall.O_APPEND|syscall.O_TRUNC|fuse.FMODE_EXEC)), 0)
	if err != nil {
		return nil, 0, fs.ToErrno(err)
	}
	h := &diskFile{LoopbackFile: fs.NewLoopbackFileFromOS(f), f: f, disk: n.disk}
	if flags&syscall.O_TRUNC != 0 {
		if err := n.disk.journal.truncate(f, 0); err != nil {
			f.Close()
			return nil, 0, fs.ToErrno(err)
		}
	}
	return h, 0, 0
}

// Create makes a file.
func (n *diskNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (node *fs.Inode, _ fs.FileHandle, _ uint32, errno syscall.Errno) {
	var f *os.File
	errno = n.named(made, "", n.child(name), func() (err error) {
		f, err = os.OpenFile(n.child(name), int(flags&^(syscall.O_APPEND|syscall.O_TRUNC))|os.O_CREATE, os.FileMode(mode&0o777))
		return err
	})
	if errno != 0 {
		return nil, nil, 0, errno
	}
	if node, errno = n.Lookup(ctx, name, out); errno != 0 {
		f.Close()
		return nil, nil, 0, errno
	}
	return node, &diskFile{LoopbackFile: fs.NewLoopbackFileFromOS(f), f: f, disk: n.disk}, 0, 0
}

// Mkdir makes a directory.
func (n *diskNode) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	errno := n.named(made, "", n.child(name), func() error { return os.Mkdir(n.child(name), os.FileMode(mode&0o777)) })
	if errno != 0 {
		return nil, errno
	}
	return n.Lookup(ctx, name, out)
}

// Unlink removes a file's name.
func (n *diskNode) Unlink(_ context.Context, name string) syscall.Errno {
	return n.named(removed, "", n.child(name), func() error { return syscall.Unlink(n.child(name)) })
}

// Rmdir removes a directory.
func (n *diskNode) Rmdir(_ context.Context, name string) syscall.Errno {
	return n.named(cleared, "", n.child(name), func() error { return syscall.Rmdir(n.child(name)) })
}

// Rename gives a file another name.
func (n *diskNode) Rename(_ context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	into, ok := to.(*diskNode)
	if !ok || flags != 0 {
		return syscall.EXDEV
	}
	from, path := n.child(name), into.child(newName)
	return n.named(moved, from, path, func() error { return os.Rename(from, path) })
}

// Link and Symlink are not had: nothing under trial uses them, and a power cut would have to take them back.
func (n *diskNode) Link(context.Context, fs.InodeEmbedder, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return nil, syscall.ENOTSUP
}

// Symlink is not had, see Link.
func (n *diskNode) Symlink(context.Context, string, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return nil, syscall.ENOTSUP
}

// Setattr notes truncations.
func (n *diskNode) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if n.disk.locked.Load() {
		return syscall.EROFS
	}
	if size, ok := in.GetSize(); ok {
		f, open := h.(*diskFile)
		if !open {
			file, err := os.OpenFile(n.path(), os.O_RDWR, 0)
			if err != nil {
				return fs.ToErrno(err)
			}
			defer file.Close()
			f = &diskFile{f: file}
		}
		if err := n.disk.journal.truncate(f.f, int64(size)); err != nil {
			return fs.ToErrno(err)
		}
		in.Valid &^= fuse.FATTR_SIZE
	}
	return n.LoopbackNode.Setattr(ctx, nil, in, out)
}

// OpendirHandle opens a directory.
func (n *diskNode) OpendirHandle(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	list, errno := fs.NewLoopbackDirStream(n.path())
	if errno != 0 {
		return nil, 0, errno
	}
	return &diskDir{list.(dirStream), n}, 0, 0
}

// dirStream is what go-fuse's own can do.
type dirStream interface {
	fs.FileReaddirenter
	fs.FileSeekdirer
	fs.FileReleasedirer
}

// diskDir is an open directory.
type diskDir struct {
	dirStream
	node *diskNode
}

// Fsyncdir makes the names in it durable, as far as the trial is concerned.
func (d *diskDir) Fsyncdir(context.Context, uint32) syscall.Errno {
	time.Sleep(time.Duration(d.node.disk.slow.Load()))
	d.node.disk.journal.syncedDir(d.node.path())
	return 0
}

// Statfs tells of the limit too.
func (n *diskNode) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	errno := n.LoopbackNode.Statfs(ctx, out)
	if left, limited := n.disk.journal.left(); limited && out.Bsize > 0 {
		out.Bavail = uint64(left) / uint64(out.Bsize)
		out.Bfree = out.Bavail
	}
	return errno
}

// CopyFileRange is not had: the journal would not see it. The system copies by reading and writing instead.
func (n *diskNode) CopyFileRange(context.Context, fs.FileHandle, uint64, *fs.Inode, fs.FileHandle, uint64, uint64, uint64) (uint32, syscall.Errno) {
	return 0, syscall.ENOTSUP
}

// diskFile is an open file.
type diskFile struct {
	*fs.LoopbackFile
	f    *os.File
	disk *Disk
}

// Write goes through the journal.
func (f *diskFile) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	n := 0
	errno := f.disk.change(func() (err error) {
		n, err = f.disk.journal.write(f.f, data, off)
		return err
	})
	return uint32(n), errno
}

// Fsync makes the file durable, as far as the trial is concerned: no real power is cut.
func (f *diskFile) Fsync(context.Context, uint32) syscall.Errno {
	time.Sleep(time.Duration(f.disk.slow.Load()))
	return f.disk.change(func() error { return f.disk.journal.synced(f.f) })
}

// Allocate is not had, so that the system writes zeros instead.
func (f *diskFile) Allocate(context.Context, uint64, uint64, uint32) syscall.Errno {
	return syscall.ENOTSUP
}

// PassthroughFd keeps the kernel from going around the journal.
func (f *diskFile) PassthroughFd() (int, bool) { return 0, false }
