package main

import (
	"fmt"

	"github.com/weir-stream/weir/internal/api"
)

// recoveryTable is how tasks have last come back; nil if none has.
func recoveryTable(tasks []api.Task) *table {
	t := newTable("CAME BACK", "LEVEL", "AT", "FROM EPOCH", "REPLAYED", "HELD BACK", "COMPARED", "REPEATED", "TOOK", "WHY")
	some := false
	for _, k := range tasks {
		r := k.Recovery
		if r == nil {
			continue
		}
		some = true
		repeated := fmt.Sprint(r.Repeated)
		if r.Unknown {
			repeated = "unknown"
		}
		t.add(k.ID, r.Level, timeText(r.At), r.Epoch, r.ReplayedRecords, r.HeldBack, r.Compared, repeated, msText(r.TookMS), r.Reason)
	}
	if !some {
		return nil
	}
	return t
}
