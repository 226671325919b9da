package fleet

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestUsage(t *testing.T) {
	pid := os.Getpid()
	before, err := CPUTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	for used := before; used < before+20*time.Millisecond; {
		if used, err = CPUTime(pid); err != nil {
			t.Fatal(err)
		}
	}
	anonymous, err := Memory(pid, "RssAnon")
	if err != nil {
		t.Fatal(err)
	}
	now, err := Memory(pid, "VmRSS")
	if err != nil {
		t.Fatal(err)
	}
	most, err := Memory(pid, "VmHWM")
	if err != nil {
		t.Fatal(err)
	}
	const mib = 1 << 20
	if anonymous < mib || anonymous > now+mib || now > most+mib {
		t.Errorf("%d bytes, %d of no file, %d at most", now, anonymous, most)
	}
	if _, err := Memory(pid, "VmNone"); err == nil || !strings.Contains(err.Error(), "VmNone") {
		t.Errorf("what there is not: %v", err)
	}
	for _, err := range []error{of(CPUTime(1 << 30)), of(Memory(1<<30, "VmRSS"))} {
		if err == nil {
			t.Error("a process that there is not has used something")
		}
	}
}

func of[T any](_ T, err error) error { return err }
