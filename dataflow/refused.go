package dataflow

import "regexp"

// refusedBy is how the reason of a record that an operator refused begins: what [recordError] and [GuestError] say. A
// reason is in the task's log, as text, and is read from there again in every replay.
var refusedBy = regexp.MustCompile(`^record \d+ of the batch: operator ([^:]+): `)

// RefusedBy is the operator that refused a record that was given up for this reason; empty: none did, but the source
// did not take it, a sink could not hand it over, or it was no record but a timer or a watermark.
func RefusedBy(reason string) string {
	if m := refusedBy.FindStringSubmatch(reason); m != nil {
		return m[1]
	}
	return ""
}
