package nats

import "syscall"

// available is how many bytes the disk of a directory has left for this process; known is false if it does not tell.
func available(dir string) (bytes uint64, known bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil || st.Blocks == 0 {
		return 0, false
	}
	return st.Bavail * uint64(st.Bsize), true
}
