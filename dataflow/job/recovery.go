package job

// Recovery says which ways back a job takes without being asked. All of them give something up, so that by
// default it stops and says what to do.
type Recovery struct {
	// Replace: where a device has come back under its name without its log, or its snapshots, its tasks go
	// on from their newest replicated ones.
	Replace Policy `json:"replace,omitempty"`
	// Restart: where replay has differed, or a gap cannot be refilled, the streamed tasks go back to the newest
	// checkpoint that counts.
	Restart Policy `json:"restart,omitempty"`
}

// Policy says whether something is done without being asked.
type Policy string

// Policies.
const (
	Manual    Policy = "manual"
	Automatic Policy = "automatic"
)

func (r *reader) recovery(o *object) (rec Recovery) {
	f, ok := o.get("recovery")
	if !ok {
		return rec
	}
	sub, ok := r.object(f.node, f.at, "recovery", "replace", "restart")
	if !ok {
		return rec
	}
	rec.Replace = Policy(r.choice(sub, "replace", string(Manual), string(Automatic)))
	rec.Restart = Policy(r.choice(sub, "restart", string(Manual), string(Automatic)))
	return rec
}
