package node

import (
	"time"

	"github.com/weir-stream/weir/storage"
)

// damaged tells of a file that was set aside.
func (a *Agent) damaged(what string, d *storage.Damage) {
	if d == nil {
		return
	}
	a.notices.add(what + ": " + d.Error())
	a.log.Error("a damaged file was set aside", "what", what, "error", d)
}

// ago says for display how long ago a time was, in milliseconds since 1970 by the clock of the coordinator.
func (a *Agent) ago(ms int64) string {
	if ms == 0 {
		return "at an unknown time"
	}
	return max(0, time.Duration(a.now()-ms)*time.Millisecond).Round(time.Second).String() + " ago"
}
