package node

import "syscall"

// diskRoom is how many bytes the disk of a directory has left for this process, and whether it can only be read;
// known is false if it does not tell.
func diskRoom(dir string) (free int64, readOnly, known bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil || st.Blocks == 0 {
		return 0, false, false
	}
	const mountedReadOnly = 1 // ST_RDONLY
	return int64(st.Bavail) * int64(st.Bsize), st.Flags&mountedReadOnly != 0, true
}
