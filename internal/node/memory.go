package node

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryBytes is how much memory the agent may have: that of the machine, or less, where the control group that it runs
// in, as in a container, or GOMEMLIMIT allows less; 0: it is not known. Root is where the file system begins.
func memoryBytes(root string) int64 {
	least := min(machineBytes(root), debug.SetMemoryLimit(-1))
	for _, limit := range groupLimits(root) {
		least = min(least, limit)
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}

// machineBytes is the machine's memory; [math.MaxInt64] if it is not known.
func machineBytes(root string) int64 {
	var kib int64
	b, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return math.MaxInt64
	}
	if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &kib); err != nil || kib <= 0 || kib > math.MaxInt64>>10 {
		return math.MaxInt64
	}
	return kib << 10
}

// groupLimits are the limits of the process's control group and of those that it is in, of either version of control groups.
// (https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.max; cgroup-v1/memory.html, memory.limit_in_bytes.)
func groupLimits(root string) (limits []int64) {
	b, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(fields) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		if fields[1] != "" {
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
			if !strings.Contains(","+fields[1]+",", ",memory,") {
				continue
			}
		}
		limits = append(limits, limitsAlong(filepath.Join(root, mount), fields[2], file)...)
	}
	return limits
}

// limitsAlong reads a file of a group and of all above it. Within a container the path may be that of the machine,
// which is not to be seen there: what is mounted is the container's own group.
func limitsAlong(mount, path, file string) (limits []int64) {
	for path = filepath.Clean("/" + path); ; path = filepath.Dir(path) {
		if b, err := os.ReadFile(filepath.Join(mount, path, file)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 { // else "max"
				limits = append(limits, n)
			}
		}
		if path == "/" {
			return limits
		}
	}
}
