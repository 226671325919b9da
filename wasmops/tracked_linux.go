//go:build linux && (amd64 || arm64 || riscv64)

package wasmops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tracked is a memory of which the kernel knows the pages that were written. The shadow is a file in memory
// (memfd_create(2)). The memory is a private mapping of it: a page is the file's until it is written, and from
// then on a copy of its own, which /proc/self/pagemap tells (Documentation/admin-guide/mm/pagemap.rst of the
// Linux kernel, bits 61 to 63). So a freeze need only look at pages that were written, and a page that was
// not is in memory once. A page once written stays a copy, and is compared at each freeze, until it is found
// as it was; then it is given up (madvise(2), MADV_DONTNEED) and shows the file again: pages that are written
// again and again cost no faults.
type tracked struct {
	memory []byte // private: the guest's
	shadow []byte // shared: the file
	broken bool   // the kernel has refused an answer: everything is compared

	raw    []byte // of pagemap
	ranges []pageRange
}

// pagemap is the kernel's account of this process's pages, opened once.
var pagemap = sync.OnceValues(func() (*os.File, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, err
	}
	if err := probe(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
})

// kernelPage is what the kernel tracks, in bytes; a multiple of pageSize where tracking is used.
var kernelPage = os.Getpagesize()

// newTracked makes a memory that can hold so many bytes, all zero. It fails where the kernel does not tell
// what was written.
func newTracked(limit uint64) (*tracked, error) {
	f, err := pagemap()
	if err != nil {
		return nil, err
	}
	return mapTracked(f, limit)
}

func mapTracked(_ *os.File, limit uint64) (*tracked, error) {
	fd, err := unix.MemfdCreate("weir-memory", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(fd) // the mappings keep the file
	if err := unix.Ftruncate(fd, int64(limit)); err != nil {
		return nil, fmt.Errorf("ftruncate: %w", err)
	}
	t := &tracked{}
	if t.shadow, err = unix.Mmap(fd, 0, int(limit), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	if t.memory, err = unix.Mmap(fd, 0, int(limit), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_NORESERVE); err != nil {
		t.close()
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return t, nil
}

// probe looks whether the kernel tells what it should: not all systems that call themselves Linux do.
func probe(f *os.File) error {
	if kernelPage%pageSize != 0 || wasmPage%kernelPage != 0 {
		return fmt.Errorf("kernel pages of %d bytes", kernelPage)
	}
	t, err := mapTracked(f, 4*wasmPage)
	if err != nil {
		return err
	}
	defer t.close()
	each := kernelPage / pageSize
	const pages = 4 * wasmPage / pageSize
	expect := func(want ...pageRange) error {
		got, err := t.ask(f, pages)
		if err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
			err = fmt.Errorf("the kernel says that pages %v were written, %v were", got, want)
		}
		return err
	}
	t.shadow[0], t.shadow[wasmPage] = 1, 1
	read := t.memory[0] + t.memory[2*wasmPage] // mapped, and not written
	first := expect()
	t.memory[wasmPage]++
	t.memory[3*wasmPage-1]++
	at, last := wasmPage/pageSize, 3*wasmPage/pageSize
	second := expect(pageRange{at, at + each}, pageRange{last - each, last})
	t.shadow[wasmPage] = 2
	t.drop([]pageRange{{at, at + each}})
	third := expect(pageRange{last - each, last})
	if read != 1 || t.memory[wasmPage] != 2 || t.memory[3*wasmPage-1] != 1 || t.broken {
		return errors.New("a private mapping does not show what it should")
	}
	return errors.Join(first, second, third)
}

// holds says whether there is room for so many bytes.
func (t *tracked) holds(size uint64) bool { return t != nil && size <= uint64(len(t.memory)) }

// page is a page of the shadow.
func (t *tracked) page(n int) []byte { return t.shadow[n*pageSize : (n+1)*pageSize] }

// written returns the pages among the first so many that are copies of their own, in order; they are the
// receiver's until the next call. False: the kernel does not say.
func (t *tracked) written(pages int) ([]pageRange, bool) {
	f, err := pagemap()
	if err != nil || t.broken {
		return nil, false
	}
	ranges, err := t.ask(f, pages)
	t.broken = err != nil
	return ranges, err == nil
}

// Bits of a page in pagemap.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61 // or shared
	entryBytes  = 8
	askAtOnce   = 8192 // pages: their entries fit into the second cache
)

func (t *tracked) ask(f *os.File, pages int) ([]pageRange, error) {
	if t.raw == nil {
		t.raw = make([]byte, askAtOnce*entryBytes)
	}
	t.ranges = t.ranges[:0]
	each := kernelPage / pageSize
	first := int64(uintptr(unsafe.Pointer(unsafe.SliceData(t.memory)))) / int64(kernelPage)
	total := pages / each
	for from := 0; from < total; from += askAtOnce {
		b := t.raw[:min(askAtOnce, total-from)*entryBytes]
		if _, err := f.ReadAt(b, (first+int64(from))*entryBytes); err != nil {
			return nil, fmt.Errorf("/proc/self/pagemap: %w", err)
		}
		for i := from; len(b) > 0; i++ {
			e := binary.LittleEndian.Uint64(b)
			b = b[entryBytes:]
			if e&(pagePresent|pageSwapped) == 0 || e&pageOfFile != 0 {
				continue
			}
			if last := len(t.ranges) - 1; last >= 0 && t.ranges[last].to == i*each {
				t.ranges[last].to += each
			} else {
				t.ranges = append(t.ranges, pageRange{i * each, (i + 1) * each})
			}
		}
	}
	return t.ranges, nil
}

// maxDrops bounds the calls of one freeze, of which other processors hear.
const maxDrops = 64

// drop gives up copies, when all pages are equal to the shadow: those of the ranges, and, if there are many
// ranges, also what lies between neighbouring ones. What is no whole page of the kernel stays.
func (t *tracked) drop(cold []pageRange) {
	each := kernelPage / pageSize
	group := (len(cold) + maxDrops - 1) / maxDrops
	for len(cold) > 0 && !t.broken {
		n := min(group, len(cold))
		from, to := (cold[0].from+each-1)/each*kernelPage, cold[n-1].to/each*kernelPage
		if from < to {
			t.broken = unix.Madvise(t.memory[from:to], unix.MADV_DONTNEED) != nil
		}
		cold = cold[n:]
	}
}

func (t *tracked) close() {
	for _, m := range [][]byte{t.memory, t.shadow} {
		if m != nil {
			if err := unix.Munmap(m); err != nil {
				panic(fmt.Sprintf("munmap: %v", err)) // of what mmap has given
			}
		}
	}
	t.memory, t.shadow = nil, nil
}
