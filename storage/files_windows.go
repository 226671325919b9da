package storage

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// syncDir does nothing: the file system keeps its directories in a journal.
func syncDir(string) error { return nil }

func isOverQuota(err error) bool { return errors.Is(err, windows.ERROR_DISK_FULL) }

func lockFile(f *os.File) (bool, error) {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return false, nil
	}
	return err == nil, err
}

func unlockFile(f *os.File) error {
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &windows.Overlapped{OffsetHigh: 1})
}
