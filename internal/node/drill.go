package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

// drills are what the agent can do to itself, in the order in which they are listed.
var drills = []api.Drill{
	{Kind: api.DrillKill, Ends: true,
		Does: "ends the agent's process with SIGKILL, as a crash would; whatever supervises it must start it again. Nothing that was written is lost"},
	{Kind: api.DrillPowerCut, Ends: true,
		Does: "tears a write to the agent's input log at some byte, as when the power goes, and ends the process with SIGKILL; whatever supervises it must start it again. The operating system keeps what else was written: what a disk forgets is only seen with the plug pulled"},
	{Kind: api.DrillLinkFlap,
		Does: "ends the agent's connections to NATS and to MQTT brokers and lets it make none for a while; other agents that use its NATS server, and clients of its broker, keep theirs"},
	{Kind: api.DrillDiskFull,
		Does: "refuses writes to the agent's input log, as if the disk were full, for a while; nothing is written to the disk"},
	{Kind: api.DrillClockBack,
		Does: "sets the clock that the agent reads back by an hour for a while, and then right again; the machine's clock stays as it is"},
}

// Limits of drills.
const (
	// drillNotice is how long the process lasts after the answer, so that it is received.
	drillNotice = 300 * time.Millisecond
	// tearWithin is how long a write is waited for that can be torn.
	tearWithin     = 2 * time.Second
	drillBackwards = time.Hour
)

// drill is the state of drills. The zero value is ready.
type drill struct {
	mu      sync.Mutex
	running string // kind; empty: none

	shift atomic.Int64 // milliseconds that the clock is read back by
	full  atomic.Bool
	tear  atomic.Bool
	torn  chan struct{} // closed when a write has been torn
	links gate
}

// room is how many of so many bytes a write to the log finds room for.
func (d *drill) room(next func(int) int, bytes int) int {
	if d.full.Load() {
		return 0
	}
	if d.tear.Load() {
		d.mu.Lock()
		defer d.mu.Unlock()
		select {
		case <-d.torn:
			return 0 // the power is gone
		default:
			close(d.torn)
			return rand.IntN(bytes + 1)
		}
	}
	if next != nil {
		return next(bytes)
	}
	return bytes
}

// notices tell of the drill that is under way.
func (d *drill) notices() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running == "" {
		return nil
	}
	return []string{"the drill " + d.running + " is under way"}
}

// gate stands between the agent and the outside. It is open or shut.
type gate struct {
	mu    sync.Mutex
	shut  bool
	conns map[*gatedConn]bool
}

var errDrill = errors.New("a drill keeps links down")

// gatedConn is a connection that the gate ends when it is shut.
type gatedConn struct {
	net.Conn
	gate *gate
}

// Close ends the connection.
func (c *gatedConn) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.conns, c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}

// admit lets a new connection through, or ends it.
func (g *gate) admit(conn net.Conn) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return nil, errors.Join(errDrill, conn.Close())
	}
	if g.conns == nil {
		g.conns = map[*gatedConn]bool{}
	}
	c := &gatedConn{conn, g}
	g.conns[c] = true
	return c, nil
}

// set shuts the gate, which ends all connections, or opens it.
func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut = shut; shut {
		for c := range g.conns {
			_ = c.Conn.Close() // whoever uses it hears of it
		}
		clear(g.conns)
	}
}

// Drills implements [web.Fleet].
func (a *Agent) Drills(context.Context) ([]api.Drill, error) { return drills, nil }

// Drill implements [web.Fleet]: it begins, and returns at once.
func (a *Agent) Drill(_ context.Context, o api.DrillOrder) (api.DrillBegun, error) {
	var what *api.Drill
	for i := range drills {
		if drills[i].Kind == o.Kind {
			what = &drills[i]
		}
	}
	switch {
	case what == nil:
		return api.DrillBegun{}, api.Invalid("agent drill --list shows what there is", "no drill %q", o.Kind)
	case !o.Sure:
		return api.DrillBegun{}, api.Invalid(`send "sure": true`, "the drill %s %s", o.Kind, what.Does)
	case !what.Ends && (o.Seconds < 1 || o.Seconds > api.MaxDrillSeconds):
		return api.DrillBegun{}, api.Invalid("", "a drill lasts 1 to %d seconds, not %d", api.MaxDrillSeconds, o.Seconds)
	}
	d := &a.drill
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running != "" {
		return api.DrillBegun{}, api.Conflict("wait until it is over", "the drill %s is under way", d.running)
	}
	d.running = o.Kind
	a.log.Warn("a drill begins", "drill", o.Kind, "seconds", o.Seconds)
	a.background(func() { a.play(a.life, o) })
	return api.DrillBegun{
		Drill: *what, Agent: a.name, PID: os.Getpid(), Starts: uint64(a.dir.Incarnation()), Seconds: o.Seconds,
		Supervised: os.Getenv("INVOCATION_ID") != "",
	}, nil
}

// play does it.
func (a *Agent) play(ctx context.Context, o api.DrillOrder) {
	d, lasts := &a.drill, time.Duration(o.Seconds)*time.Second
	switch o.Kind {
	case api.DrillKill, api.DrillPowerCut:
		if !sleep(ctx, drillNotice) {
			return
		}
		if o.Kind == api.DrillPowerCut {
			torn := make(chan struct{})
			d.mu.Lock()
			d.torn = torn
			d.mu.Unlock()
			d.tear.Store(true)
			select {
			case <-torn:
			case <-time.After(tearWithin): // nothing is being written
			}
		}
		a.kill()
		return
	case api.DrillLinkFlap:
		d.links.set(true)
		sleep(ctx, lasts)
		d.links.set(false)
	case api.DrillDiskFull:
		d.full.Store(true)
		sleep(ctx, lasts)
		d.full.Store(false)
	case api.DrillClockBack:
		d.shift.Store(drillBackwards.Milliseconds())
		sleep(ctx, lasts)
		d.shift.Store(0)
	}
	d.mu.Lock()
	d.running = ""
	d.mu.Unlock()
	a.log.Warn("the drill is over", "drill", o.Kind)
}

// kill ends this process, unless a test has put something in its place.
func (a *Agent) kill() {
	if a.opt.Kill != nil {
		a.opt.Kill()
		return
	}
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill() // it does not return
	}
}
