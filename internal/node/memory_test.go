package node

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

// TestMemoryBytes: what a control group allows counts where it is less than the machine has, whichever version of groups it
// is, and whether the path of the group is the machine's or the container's.
func TestMemoryBytes(t *testing.T) {
	const machine = "MemTotal:        8388608 kB\nMemFree: 17 kB\n" // 8 GiB
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing is known":     {nil, 0},
		"no groups":            {map[string]string{"proc/meminfo": machine}, 8 << 30},
		"not readable":         {map[string]string{"proc/meminfo": "MemFree: 17 kB\n"}, 0},
		"version 2, container": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "268435456\n"}, 256 << 20},
		"version 2, no limit":  {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 8 << 30},
		"version 2, a group above has the limit": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "0::/system.slice/agent.service\n",
			"sys/fs/cgroup/system.slice/memory.max": "1073741824\n", "sys/fs/cgroup/system.slice/agent.service/memory.max": "max\n",
		}, 1 << 30},
		"version 2, its own is less": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "0::/system.slice/agent.service\n",
			"sys/fs/cgroup/system.slice/memory.max": "1073741824\n", "sys/fs/cgroup/system.slice/agent.service/memory.max": "536870912\n",
		}, 512 << 20},
		"version 2, more than the machine": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "17179869184\n"}, 8 << 30},
		"version 1": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "11:cpu,cpuacct:/other\n4:memory:/box\n1:name=systemd:/x\n",
			"sys/fs/cgroup/memory/box/memory.limit_in_bytes": "134217728\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/other/memory.limit_in_bytes": "1\n",
		}, 128 << 20},
		"version 1, container that is told the machine's path": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "4:memory:/docker/abc\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "134217728\n",
		}, 128 << 20},
		"the machine is not known": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "268435456\n"}, 256 << 20},
	} {
		root := t.TempDir()
		for path, text := range c.files {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := memoryBytes(root); got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
		if len(c.files) > 1 {
			was := debug.SetMemoryLimit(64 << 20)
			if got := memoryBytes(root); got != 64<<20 {
				t.Errorf("%s, with GOMEMLIMIT of 64 MiB: %d bytes", name, got)
			}
			debug.SetMemoryLimit(was)
		}
	}
	for memory, want := range map[int64]int{0: maxWithin, math.MaxInt64: maxWithin, 256 << 20: 32 << 20} {
		if got := withinBytes(memory); got != want {
			t.Errorf("of %d bytes of memory: %d, want %d", memory, got, want)
		}
	}
}
