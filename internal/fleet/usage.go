package fleet

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPUTime is the processor time that a process has used, of all its threads, to a hundredth of a second. It needs Linux.
func CPUTime(pid int) (time.Duration, error) {
	file := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const user, system = 11, 12 // behind the name: the 14th and 15th of proc(5), in hundredths of a second
	if len(fields) <= system {
		return 0, fmt.Errorf("%s: %d fields behind the name", file, len(fields))
	}
	var used time.Duration
	for _, f := range []int{user, system} {
		n, err := strconv.ParseInt(fields[f], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		used += time.Duration(n) * 10 * time.Millisecond
	}
	return used, nil
}

// Memory says how much memory a process has, in bytes, by the names of proc(5): VmRSS is what it has now, RssAnon what of that
// is no file's, VmHWM the most that it has had. It needs Linux.
func Memory(pid int, name string) (int64, error) {
	file := fmt.Sprintf("/proc/%d/status", pid)
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, name+": %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("%s does not name %s", file, name)
}
