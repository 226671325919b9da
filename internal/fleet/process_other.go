//go:build !linux

package fleet

import "syscall"

// attributes are the default ones: here a process outlives one that is killed.
func attributes() *syscall.SysProcAttr { return nil }

func apart() *syscall.SysProcAttr { return nil }
