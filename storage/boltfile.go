package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// What a bbolt file looks like, as far as walking it needs. It is in the byte order of the machine.
const (
	boltMagic     = 0xED0CDAED
	boltFormat    = 2
	boltPage      = 16 // bytes of a page's header, of an element, of a bucket's root
	boltMeta      = 64
	boltBranch    = 0x01
	boltLeaf      = 0x02
	boltFreelist  = 0x10
	boltBucket    = 0x01
	boltMaxDepth  = 64 // a tree of 2^64 pages with two children each
	boltNoList    = ^uint64(0)
	boltManyFree  = 0xFFFF
	boltMinPage   = 512
	boltMaxPage   = 64 << 10
	boltMaxBucket = 8 // buckets within buckets; ours are three deep
)

// examineBolt walks all of a bbolt file and says what is wrong with its structure: then bbolt would
// panic or read beyond the end of its map. The content of values is not its business.
func examineBolt(path string) error {
	bad := func(err error) error { return fmt.Errorf("%w: %s: %w", ErrCorrupt, path, err) }
	info, err := os.Stat(path) // first: to open a pipe would wait for ever
	if err != nil {
		return bad(err)
	}
	if !info.Mode().IsRegular() {
		return bad(errors.New("not a regular file"))
	}
	f, err := os.Open(path)
	if err != nil {
		return bad(err)
	}
	defer f.Close()
	w := &boltWalk{f: f, size: info.Size()}
	if err := w.walk(); err != nil {
		return bad(err)
	}
	return nil
}

type boltWalk struct {
	f        io.ReaderAt
	size     int64
	pageSize int64
	top      uint64 // pages from here on are not in use
	seen     []bool // by page
}

var native = binary.NativeEndian

type boltMetaPage struct {
	root, freelist, top, tx uint64
	pageSize                int64
}

func (w *boltWalk) walk() error {
	meta, err := w.meta()
	if err != nil {
		return err
	}
	w.pageSize, w.top = meta.pageSize, meta.top
	if w.top < 4 || w.top > uint64(w.size/w.pageSize) {
		return fmt.Errorf("%d pages in use, the file has %d", w.top, w.size/w.pageSize)
	}
	w.seen = make([]bool, w.top)
	w.seen[0], w.seen[1] = true, true
	if err := w.tree(meta.root, 0, 0, keyRange{}); err != nil {
		return err
	}
	return w.free(meta.freelist)
}

// meta returns the newest valid one of the two meta pages.
func (w *boltWalk) meta() (boltMetaPage, error) {
	first, err := w.metaAt(0)
	if err != nil {
		// The second one stands a page further, whatever a page is.
		for size := int64(boltMinPage); size <= boltMaxPage; size *= 2 {
			if m, err := w.metaAt(size); err == nil && m.pageSize == size {
				return m, nil
			}
		}
		return first, err
	}
	second, err := w.metaAt(first.pageSize)
	if err == nil && second.tx > first.tx {
		return second, nil
	}
	return first, nil
}

func (w *boltWalk) metaAt(off int64) (boltMetaPage, error) {
	var b [boltPage + boltMeta]byte
	if _, err := w.f.ReadAt(b[:], off); err != nil {
		return boltMetaPage{}, fmt.Errorf("read meta page at offset %d: %w", off, err)
	}
	m := b[boltPage:]
	sum := fnv.New64a()
	sum.Write(m[:boltMeta-8])
	switch {
	case native.Uint32(m) != boltMagic || native.Uint32(m[4:]) != boltFormat:
		return boltMetaPage{}, fmt.Errorf("no meta page at offset %d", off)
	case native.Uint64(m[boltMeta-8:]) != sum.Sum64():
		return boltMetaPage{}, fmt.Errorf("meta page at offset %d does not match its checksum", off)
	}
	p := boltMetaPage{
		root: native.Uint64(m[16:]), freelist: native.Uint64(m[32:]), top: native.Uint64(m[40:]),
		tx: native.Uint64(m[48:]), pageSize: int64(native.Uint32(m[8:])),
	}
	if p.pageSize < boltMinPage || p.pageSize > boltMaxPage || p.pageSize&(p.pageSize-1) != 0 {
		return p, fmt.Errorf("page size of %d bytes", p.pageSize)
	}
	return p, nil
}

// page reads a page with its overflow and checks that it is where it says, and there only once.
func (w *boltWalk) page(id uint64) ([]byte, error) {
	if id < 2 || id >= w.top {
		return nil, fmt.Errorf("page %d, there are %d", id, w.top)
	}
	var head [boltPage]byte
	if _, err := w.f.ReadAt(head[:], int64(id)*w.pageSize); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	over := uint64(native.Uint32(head[12:]))
	if native.Uint64(head[:]) != id || over >= w.top-id {
		return nil, fmt.Errorf("page %d says that it is page %d with %d more", id, native.Uint64(head[:]), over)
	}
	for i := id; i <= id+over; i++ {
		if w.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		w.seen[i] = true
	}
	b := make([]byte, (over+1)*uint64(w.pageSize))
	if _, err := w.f.ReadAt(b, int64(id)*w.pageSize); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	return b, nil
}

// keyRange is what keys a page may have, by the pages above it: from one on, nil for any, and below
// another, nil for no end. Without it a search could go another way than a walk. What is under another page
// begins with the key that is said there: with another one a commit would add the page again.
type keyRange struct {
	from, below []byte
	under       bool
}

func (r keyRange) has(key []byte) bool {
	return bytes.Compare(key, r.from) >= 0 && (r.below == nil || bytes.Compare(key, r.below) < 0)
}

func (r keyRange) first(key []byte) bool { return !r.under || bytes.Equal(key, r.from) }

// tree walks the pages below id; depth counts pages, level buckets.
func (w *boltWalk) tree(id uint64, depth, level int, keys keyRange) error {
	if depth > boltMaxDepth || level > boltMaxBucket {
		return fmt.Errorf("page %d lies too deep", id)
	}
	b, err := w.page(id)
	if err != nil {
		return err
	}
	switch native.Uint16(b[8:]) {
	case boltBranch:
		err = w.branch(b, depth, level, keys)
	case boltLeaf:
		err = w.leaf(b, level, keys)
	default:
		err = fmt.Errorf("flags %#x", native.Uint16(b[8:]))
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (w *boltWalk) branch(b []byte, depth, level int, keys keyRange) error {
	n := int(native.Uint16(b[10:]))
	if n == 0 || boltPage*(n+1) > len(b) {
		return fmt.Errorf("branch of %d elements", n)
	}
	starts := make([][]byte, n, n+1)
	for i := range n {
		at := boltPage * (i + 1)
		key, err := cut(b, at, native.Uint32(b[at:]), native.Uint32(b[at+4:]))
		if err != nil {
			return err
		}
		if i > 0 && bytes.Compare(starts[i-1], key) >= 0 || !keys.has(key) || i == 0 && !keys.first(key) {
			return fmt.Errorf("key of element %d is out of order", i)
		}
		starts[i] = key
	}
	starts = append(starts, keys.below)
	for i := range n {
		at := boltPage * (i + 1)
		if err := w.tree(native.Uint64(b[at+8:]), depth+1, level, keyRange{starts[i], starts[i+1], true}); err != nil {
			return err
		}
	}
	return nil
}

func (w *boltWalk) leaf(b []byte, level int, keys keyRange) error {
	n := int(native.Uint16(b[10:]))
	if boltPage*(n+1) > len(b) {
		return fmt.Errorf("leaf of %d elements", n)
	}
	var before []byte
	for i := range n {
		at := boltPage * (i + 1)
		flags, pos, keyLen, valueLen := native.Uint32(b[at:]), native.Uint32(b[at+4:]), native.Uint32(b[at+8:]), native.Uint32(b[at+12:])
		key, err := cut(b, at, pos, keyLen)
		if err != nil {
			return err
		}
		value, err := cut(b, at+int(keyLen), pos, valueLen)
		if err != nil {
			return err
		}
		if i > 0 && bytes.Compare(before, key) >= 0 || !keys.has(key) || i == 0 && !keys.first(key) {
			return fmt.Errorf("key of element %d is out of order", i)
		}
		before = key
		if flags > boltBucket {
			return fmt.Errorf("element %d with flags %#x", i, flags)
		}
		if flags == boltBucket {
			if err := w.bucket(value, level+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// bucket walks a bucket within a leaf: a root page, or, if that is 0, a page in the value itself.
func (w *boltWalk) bucket(value []byte, level int) error {
	if len(value) < boltPage {
		return fmt.Errorf("bucket of %d bytes", len(value))
	}
	if root := native.Uint64(value); root != 0 {
		return w.tree(root, 0, level, keyRange{})
	}
	page := value[boltPage:]
	if len(page) < boltPage || native.Uint64(page) != 0 || native.Uint16(page[8:]) != boltLeaf || native.Uint32(page[12:]) != 0 || level > boltMaxBucket {
		return errors.New("malformed bucket in a leaf")
	}
	return w.leaf(page, level, keyRange{})
}

// cut is the slice at pos beyond the element at offset at.
func cut(b []byte, at int, pos, n uint32) ([]byte, error) {
	from := uint64(at) + uint64(pos)
	if from+uint64(n) > uint64(len(b)) {
		return nil, fmt.Errorf("element with %d bytes at %d of %d", n, from, len(b))
	}
	return b[from : from+uint64(n)], nil
}

func (w *boltWalk) free(id uint64) error {
	if id == boltNoList {
		return nil
	}
	b, err := w.page(id)
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	n, at := uint64(native.Uint16(b[10:])), uint64(boltPage)
	if n == boltManyFree {
		n, at = native.Uint64(b[boltPage:]), boltPage+8
	}
	if native.Uint16(b[8:]) != boltFreelist || n > (uint64(len(b))-at)/8 {
		return fmt.Errorf("page %d: malformed list of free pages", id)
	}
	before := uint64(1)
	for i := range n {
		free := native.Uint64(b[at+8*i:])
		if free <= before || free >= w.top || w.seen[free] {
			return fmt.Errorf("page %d: page %d is not free", id, free)
		}
		before = free
	}
	return nil
}
