package fleet

import (
	"errors"
	"io"
	"os"
	"os/exec"
)

// TempDir is a directory that is removed with everything in it when Remove is called, or when this
// process ends without that, however it ends.
type TempDir struct {
	Path string

	sweeper *exec.Cmd // nil: no shell on this machine
	hold    io.Closer // the sweeper's input
}

// sweep waits for the end of its input, which comes with the end of the process that holds the other
// side, and removes the directory. Processes that end at the same time may still add to it, hence the
// repetition.
const sweep = `read -r _; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$1" && exit; sleep 0.2; done`

// NewTempDir makes a directory whose name begins with prefix.
func NewTempDir(prefix string) (*TempDir, error) {
	path, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, err
	}
	t := &TempDir{Path: path}
	sh, err := exec.LookPath("sh")
	if err != nil {
		return t, nil
	}
	cmd := exec.Command(sh, "-c", sweep, "sweep", path)
	cmd.SysProcAttr = apart()
	hold, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	t.sweeper, t.hold = cmd, hold
	return t, nil
}

// Remove removes the directory. Nothing may write into it any more.
func (t *TempDir) Remove() error {
	err := os.RemoveAll(t.Path)
	if t.sweeper != nil {
		err = errors.Join(err, t.hold.Close(), t.sweeper.Wait())
	}
	return err
}
