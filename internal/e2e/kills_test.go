//go:build mosquitto

package e2e

import (
	"testing"
	"time"
)

// TestRandomKills kills agents ten times at random while readings stream in.
func TestRandomKills(t *testing.T) {
	s := newSite(t)
	lasts := duration(t, "WEIR_E2E_TIME", 30*time.Second)
	plan := outages(s.rand, 10, len(s.fleet.Agents()), lasts)
	published := s.feed(lasts + 2*time.Second)
	s.disturb(plan)
	published()
	s.settle()
	s.judge()
}
