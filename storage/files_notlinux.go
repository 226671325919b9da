//go:build !linux

package storage

import "os"

func syncData(f *os.File) error { return f.Sync() }
