package project

import (
	"syscall"
	"time"
)

// cpuTime is what the process has used of its processors: a busy machine makes it look slower than it is.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
