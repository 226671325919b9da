package node

import "time"

// Pace at which the embedded server is looked at, and started anew if it has stopped writing.
const (
	mendEvery = time.Second
	// mendAtMost is the longest pause after a start: whoever uses the server loses the connection each time.
	mendAtMost = 5 * time.Minute
	// mendForgets is how long all must be well until the pause is a short one again.
	mendForgets = 10 * time.Minute
)

// mendServer starts the embedded server anew after the disk was full, or took no writes, until the agent ends.
func (a *Agent) mendServer() {
	var last time.Duration // of the stopwatch, when it was started anew
	pause, said := mendEvery, ""
	aside := len(a.server.SetAside())
	for sleep(a.life, mendEvery) {
		reason := a.server.StoreError()
		if reason == nil {
			if a.stopwatch()-last > mendForgets {
				pause = mendEvery
			}
			continue
		}
		if last > 0 && a.stopwatch()-last < pause {
			continue
		}
		mended, err := a.server.Mend()
		for _, path := range a.server.SetAside()[aside:] {
			a.notices.add("NATS: damaged files were set aside as " + path)
			aside++
		}
		switch {
		case mended:
			a.log.Warn("the embedded NATS server was started anew: its files are written again", "were not because", reason)
			last, pause, said = a.stopwatch(), min(2*pause, mendAtMost), ""
		case err != nil && err.Error() != said:
			said = err.Error()
			a.log.Error("the embedded NATS server does not write its files, and cannot be started anew yet", "why", reason, "error", err)
		}
	}
}

// serverNotices tell that the embedded server does not write.
func (a *Agent) serverNotices() []string {
	if a.server == nil {
		return nil
	}
	err := a.server.StoreError()
	if err == nil {
		return nil
	}
	return []string{"embedded NATS server: checkpoints wait, since it does not write its files; it starts again by itself when the disk takes writes: " +
		"make room, or make it writable: " + err.Error()}
}
