package main

import (
	"fmt"
	"strings"

	"github.com/weir-stream/weir/internal/api"
)

// lossTable is what was lost with devices that are gone; nil if nothing was.
func lossTable(tasks []api.Task) *table {
	t := newTable("LOST WITH A DEVICE", "SOURCE", "GENERATION", "LOG ENTRIES", "OF WHICH RECEIVED")
	some := false
	for _, k := range tasks {
		for _, l := range k.Losses {
			some = true
			t.add(k.ID, l.Source, l.Generation, lostEntries(l), lostReceived(l))
		}
	}
	if !some {
		return nil
	}
	return t
}

func lostEntries(l api.Loss) string {
	from := fmt.Sprintf("after %d (epoch %d)", l.AfterPosition, l.Epoch)
	switch {
	case l.HeardPosition > l.AfterPosition:
		return fmt.Sprintf("%s to %d at least, heard of at %s; the end is not known", from, l.HeardPosition, timeText(l.Heard))
	case l.HeardPosition > 0:
		return fmt.Sprintf("%s; none was heard of until %s, later ones are not known", from, timeText(l.Heard))
	}
	return from + "; the end is not known"
}

func lostReceived(l api.Loss) string {
	var parts []string
	for _, r := range l.Received {
		parts = append(parts, fmt.Sprintf("items %d to %d of %s", r.First, r.Last, r.Channel))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// lettersTable is what went of dead letters with devices that are gone; nil if nothing did.
func lettersTable(lost []api.LostLetters) *table {
	if len(lost) == 0 {
		return nil
	}
	t := newTable("DEAD LETTERS LOST WITH AGENT", "GENERATION", "HOW MANY")
	for _, l := range lost {
		agent := l.Agent
		if agent == "" {
			agent = "(earlier ones)"
		}
		t.add(agent, l.Generation, lostLettersText(l))
	}
	return t
}

func lostLettersText(l api.LostLetters) string {
	if l.Heard.IsZero() && l.Letters == 0 {
		return "not known: nothing had been heard of them"
	}
	if l.Heard.IsZero() {
		return fmt.Sprintf("%d at least; of some devices nothing had been heard", l.Letters)
	}
	return fmt.Sprintf("%d that had not been replayed, heard of at %s; later ones are not known", l.Letters, timeText(l.Heard))
}

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
