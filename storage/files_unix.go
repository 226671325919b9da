//go:build unix

package storage

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}

func isOverQuota(err error) bool { return errors.Is(err, syscall.EDQUOT) }

// lockFile takes an exclusive lock that ends with the file's last descriptor, so that no stale lock
// survives a crash. It reports false if another process holds it.
func lockFile(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// unlockFile ends a lock that closing the descriptor does not end: a mapping of the file that is
// still there keeps it.
func unlockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }
