package node

import (
	"testing"
	"time"
)

// TestSteadyClock: it is the wall clock, goes on from where it was while that one is behind, and takes up with it again.
func TestSteadyClock(t *testing.T) {
	var wall, watch int64
	c := &steadyClock{wall: func() int64 { return wall }, stopwatch: func() time.Duration { return time.Duration(watch) * time.Millisecond }}
	for i, s := range []struct {
		wall, watch, raise, want int64
	}{
		{wall: 1000, watch: 0, want: 1000},
		{wall: 1500, watch: 500, want: 1500},
		{wall: 900, watch: 600, want: 1500}, // set back
		{wall: 901, watch: 601, want: 1500},
		{wall: 1000, watch: 700, want: 1590},
		{wall: 1100, watch: 2000, want: 2760},
		{wall: 2761, watch: 2001, want: 2761}, // there again
		{wall: 9000, watch: 2002, want: 9000}, // set ahead
		{wall: 2763, watch: 2003, want: 9000}, // and right
		{wall: 3763, watch: 3003, want: 9900},
		{wall: 3763, watch: 3003, raise: 20000, want: 20000}, // the log is further
		{wall: 4763, watch: 4003, want: 20900},
		{wall: 4763, watch: 4003, raise: 20000, want: 20900},
		{wall: 20899, watch: 4004, want: 20900},
		{wall: 20901, watch: 4005, want: 20901},
	} {
		wall, watch = s.wall, s.watch
		if s.raise > 0 {
			c.raise(s.raise)
		}
		if got := c.now(); got != s.want {
			t.Fatalf("step %d: it is %d, want %d", i, got, s.want)
		}
	}
}
