//go:build !linux

package node

// diskRoom is how many bytes the disk of a directory has left for this process, and whether it can only be read;
// known is false if it does not tell.
func diskRoom(string) (free int64, readOnly, known bool) { return 0, false, false }
