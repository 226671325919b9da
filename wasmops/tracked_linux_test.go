//go:build linux && (amd64 || arm64 || riscv64)

package wasmops

import "testing"

func breakTracking(l *linear) {
	if l.tracked != nil {
		l.tracked.broken = true
	}
}

// Where the kernel answers, large memories are tracked, and looking at what was written is all a freeze does.
func TestLargeMemoryIsTracked(t *testing.T) {
	if !canTrack() {
		_, err := pagemap()
		t.Logf("memories are compared here: %v", err)
		if err == nil {
			t.Fatal("the kernel tells what was written, and nobody asks")
		}
		return
	}
	l := newLinear(t, trackFrom-wasmPage, 2*trackFrom, false)
	if l.tracked != nil {
		t.Fatal("a small memory is tracked")
	}
	l.buffer[5*pageSize] = 1
	l.Reallocate(2 * trackFrom)
	if l.tracked == nil {
		t.Fatal("a large memory is not tracked")
	}
	written := func(want int) {
		t.Helper()
		ranges, ok := l.tracked.written(2 * trackFrom / pageSize)
		n := 0
		for _, r := range ranges {
			n += (r.to - r.from) * pageSize
		}
		if !ok || n != want*kernelPage {
			t.Fatalf("%v were written (%v), want %d pages of the kernel", ranges, ok, want)
		}
	}
	written(1)
	if got := l.freeze(false); len(got) != 1 {
		t.Fatalf("%d changes", len(got))
	}
	written(1) // it may be written again soon
	if got := l.freeze(false); len(got) != 0 {
		t.Fatalf("%d changes", len(got))
	}
	written(0)
}
