package fleet

import "syscall"

// attributes let a process die with the thread that started it, and keep the terminal's signals from it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// apart lets a process outlive the one that started it.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
