package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	wnats "github.com/weir-stream/weir/transport/nats"
)

// TestMendPace: a server that does not start is tried again after a second at first, ever later, and never later than
// half a minute; one that does, and stops writing again, seldom.
func TestMendPace(t *testing.T) {
	tries := func(p *mendPace, note func(time.Duration), upto time.Duration) (at []int) {
		for now := time.Second; now <= upto; now += time.Second {
			if p.due(now) {
				at = append(at, int(now/time.Second))
				note(now)
			}
		}
		return at
	}
	var p mendPace
	if got := fmt.Sprint(tries(&p, p.failed, 2*time.Minute)); got != "[1 2 4 8 16 32 62 92]" {
		t.Errorf("failed starts at %s", got)
	}
	if !p.down {
		t.Error("it is not known to be down")
	}
	p.started(2 * time.Minute)
	if p.down || p.due(2*time.Minute) || !p.due(2*time.Minute+mendEvery) {
		t.Errorf("after a start that went well: %+v", p)
	}
	p = mendPace{}
	if got := tries(&p, p.started, time.Hour); len(got) > 20 || got[1] != 2 || got[len(got)-1]-got[len(got)-2] != int(mendAtMost/time.Second) {
		t.Errorf("starts at %d", got)
	}
	if p.well(p.last + mendForgets); p.due(p.last) {
		t.Error("it has forgotten too early")
	}
	if p.well(p.last + mendForgets + 1); !p.due(0) {
		t.Error("it has not forgotten")
	}
}

// TestServerNotice: one that does not run is told from one that does not write.
func TestServerNotice(t *testing.T) {
	if serverNotice(nil) != nil {
		t.Error("a notice of nothing")
	}
	for want, err := range map[string]error{
		"make room": errors.New("no space left"),
		"every 30s": fmt.Errorf("%w: address in use", wnats.ErrNotStarted),
	} {
		if got := strings.Join(serverNotice(err), ""); !strings.Contains(got, want) || !strings.Contains(got, err.Error()) {
			t.Errorf("%v: %q", err, got)
		}
	}
}
