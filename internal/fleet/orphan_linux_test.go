package fleet

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// An agent and the directory do not outlive a parent that is killed.
func TestParentKilled(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "BEHAVIOUR=parent")
	cmd.Stderr = os.Stderr
	out := must[fs.File](t)(pipe(cmd))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var dir string
	_, err = fmt.Fscan(bufio.NewReader(out), &pid, &dir)
	if killed := cmd.Process.Kill(); err != nil || killed != nil {
		t.Fatal(err, killed)
	}
	cmd.Wait()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(pollEvery) {
		_, err := os.Stat(dir)
		if ended(pid) && errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d ended: %v; directory %s: %v", pid, ended(pid), dir, err)
		}
	}
}

func pipe(cmd *exec.Cmd) (fs.File, error) {
	r, w, err := os.Pipe()
	cmd.Stdout = w
	return r, err
}

// ended also takes a process for ended that nobody has waited for.
func ended(pid int) bool {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return true
	}
	var state rune
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	var n int
	var name string
	fmt.Sscanf(string(b), "%d %s %c", &n, &name, &state)
	return state == 'Z' || state == 'X'
}
