package demo

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-stream/weir/internal/fleet"
)

// revivePause is how long an agent stays down that somebody has killed.
const revivePause = time.Second

// stay keeps the sensors sending and the agents running until ctx ends. An agent that somebody kills is
// started again.
func (s *stage) stay(ctx context.Context) error {
	s.out.text(s.invitation())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.field.again().run(ctx) })
	for _, a := range s.fleet.Agents() {
		g.Go(func() error { return s.revive(ctx, a) })
	}
	return g.Wait()
}

func (s *stage) revive(ctx context.Context, a *fleet.Agent) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.Gone():
		}
		s.out.event("%s is gone and starts again in %s", a.Name, revivePause)
		if !fleet.Sleep(ctx, revivePause) {
			return ctx.Err()
		}
		if err := a.Start(); err != nil {
			return err
		}
		s.out.event("%s runs as process %d", a.Name, a.PID())
	}
}

// invitation is what to try next.
func (s *stage) invitation() string {
	var b strings.Builder
	url := s.hub.URL()
	host, port, _ := strings.Cut(s.hub.MQTT, ":")
	fmt.Fprintf(&b, "\nEverything is left running in %s, and the sensors go on. Try, in another terminal:\n\n", s.dir)
	for _, c := range []string{
		"job show demo --server " + url,
		"checkpoint list demo --server " + url,
		"agents list --server " + url,
		"status --server " + s.gateways[0].URL(),
		"job plan " + filepath.Join(s.dir, "demo.yaml") + " --server " + url,
	} {
		fmt.Fprintf(&b, "  %s %s\n", s.program, c)
	}
	fmt.Fprintf(&b, "  mosquitto_sub -h %s -p %s -t 'counts/#' -v\n", host, port)
	for _, a := range s.fleet.Agents() {
		fmt.Fprintf(&b, "  kill -9 %d  # %s; it is started again\n", a.PID(), a.Name)
	}
	b.WriteString("\nInterrupt (Ctrl-C) to stop everything and remove the directory.\n")
	return b.String()
}
