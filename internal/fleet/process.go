package fleet

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is one run of a program that does not outlive this one. A goroutine of its own owns the command.
type Process struct {
	cmd     *exec.Cmd
	started time.Time
	gone    chan struct{} // closed when it has ended, after err was set
	err     error         // how it ended
}

// StartProcess starts a command in a process group of its own, so that the terminal's signals are for
// who started it alone. The goroutine that starts it keeps its thread until the command has ended: the
// operating system kills the command when that thread ends, as it does with this process.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = attributes()
	p := &Process{cmd: cmd, started: time.Now(), gone: make(chan struct{})}
	began := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		began <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.gone)
		}
	}()
	return p, <-began
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Started is when the process began.
func (p *Process) Started() time.Time { return p.started }

// Gone is closed when the process has ended.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Err is how the process ended, once it is gone: nil for exit code 0.
func (p *Process) Err() error { return p.err }

// Signal tells the process something, if it has not ended.
func (p *Process) Signal(s os.Signal) {
	// An error says that it has ended, which whoever waits for Gone finds out.
	_ = p.cmd.Process.Signal(s)
}

// Kill kills the process with SIGKILL, if it runs, and returns when it is gone.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.gone
}
