package wasmops

import (
	"bytes"
	"fmt"
	"strings"
)

// text is what a guest writes to its standard output and error: lines for the log, and the reason
// when it exits.
type text struct {
	line  [3][]byte // begun on a descriptor
	start []byte    // of what was written to descriptor 2 in this call
}

func (t *text) write(in *Instance, fd uint32, b []byte) {
	if fd == 2 {
		t.start = append(t.start, b[:min(len(b), maxLogText-len(t.start))]...)
	}
	for len(b) > 0 {
		in.charge(fuelLine)
		line, rest, ended := bytes.Cut(b, []byte("\n"))
		in.charge(len(line) >> bulkShift)
		t.line[fd] = append(t.line[fd], line[:min(len(line), maxLogText-len(t.line[fd]))]...)
		if ended {
			t.flush(in, fd)
		}
		b = rest
	}
}

func (t *text) flush(in *Instance, fd uint32) {
	if len(t.line[fd]) == 0 {
		return
	}
	level := LogInfo
	if fd == 2 {
		level = LogWarn
	}
	in.log(level, string(t.line[fd]))
	t.line[fd] = t.line[fd][:0]
}

// end flushes what a call has left.
func (t *text) end(in *Instance) {
	t.flush(in, 1)
	t.flush(in, 2)
	t.start = t.start[:0]
}

// said is what the guest wrote to descriptor 2 in this call about why it ends: from where a panic
// begins if one does, up to its stack trace.
func (t *text) said() string {
	said := string(t.start)
	for _, begin := range []string{"panic: ", "fatal error: ", "thread '"} {
		if i := strings.Index(said, begin); i >= 0 {
			said = said[i:]
			break
		}
	}
	said, _, _ = strings.Cut(said, "\n\n")
	return strings.TrimSpace(said)
}

func (t *text) exitReason(code uint32) string {
	return strings.TrimSuffix(fmt.Sprintf("exited with code %d: %s", code, t.said()), ": ")
}
