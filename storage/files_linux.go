package storage

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData is fdatasync: the size is made durable where reading the data back needs it, the times
// are not, which saves a write of the inode where nothing grew.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err != unix.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
