package node

import (
	"errors"
	"time"

	wnats "github.com/weir-stream/weir/transport/nats"
)

// Pace at which the embedded server is looked at, and started anew if it has stopped writing.
const (
	mendEvery = time.Second
	// mendAtMost is the longest pause after a start: whoever uses the server loses the connection each time.
	mendAtMost = 5 * time.Minute
	// mendForgets is how long all must be well until the pause is a short one again.
	mendForgets = 10 * time.Minute
	// downAtMost is the longest pause after a start that failed: nobody is served meanwhile, and what the start lacks,
	// such as an address that another process has, may come back at any time.
	downAtMost = 30 * time.Second
)

// mendPace says when the server may be started anew. Times are of the agent's stopwatch.
type mendPace struct {
	last  time.Duration // when it was started, or its start failed; 0: never
	pause time.Duration // after that
	down  bool          // its start failed
}

// due says whether it may be started anew now.
func (p *mendPace) due(now time.Duration) bool { return p.last == 0 || now-p.last >= p.pause }

// well notes that it writes.
func (p *mendPace) well(now time.Duration) {
	if now-p.last > mendForgets {
		*p = mendPace{}
	}
}

// started notes that it was started anew.
func (p *mendPace) started(now time.Duration) { p.note(now, false, mendAtMost) }

// failed notes that it was stopped and did not start.
func (p *mendPace) failed(now time.Duration) { p.note(now, true, downAtMost) }

func (p *mendPace) note(now time.Duration, down bool, most time.Duration) {
	if down != p.down {
		p.pause = 0
	}
	p.last, p.pause, p.down = max(now, 1), min(max(2*p.pause, mendEvery), most), down
}

// mendServer starts the embedded server anew after the disk was full, or took no writes, until the agent ends.
func (a *Agent) mendServer() {
	var pace mendPace
	said := ""
	aside := len(a.server.SetAside())
	for sleep(a.life, mendEvery) {
		reason := a.server.StoreError()
		if reason == nil {
			pace.well(a.stopwatch())
			continue
		}
		if !pace.due(a.stopwatch()) {
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
			pace.started(a.stopwatch())
			said = ""
		case errors.Is(err, wnats.ErrNotStarted):
			if !pace.down {
				a.log.Error("the embedded NATS server was stopped and does not start: it is tried again by itself", "stopped because", reason, "error", err)
			}
			pace.failed(a.stopwatch())
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
	return serverNotice(a.server.StoreError())
}

func serverNotice(err error) []string {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, wnats.ErrNotStarted):
		return []string{"embedded NATS server: there is none, checkpoints wait, and other agents are not served: " + err.Error() +
			"; it is tried again by itself, every " + downAtMost.String() + " at least"}
	}
	return []string{"embedded NATS server: checkpoints wait, since it does not write its files; it starts again by itself when the disk takes writes: " +
		"make room, or make it writable: " + err.Error()}
}
