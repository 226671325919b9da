package mqtt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"time"
)

// backoff bounds the waits between attempts to connect. They double from min to max and are drawn
// from the upper half, so that many agents do not come back in step.
type backoff struct{ min, max time.Duration }

// connectBackoff: a tenth of a second is not felt by anyone after a short cut; half a minute is what
// an operator who has repaired a broker will wait.
var connectBackoff = backoff{100 * time.Millisecond, 30 * time.Second}

// steady is how long a connection must have lasted for the next wait to be short again. Two clients
// with one name end each other's connections as fast as they come.
const steady = 5 * time.Second

// wait is the time before attempt n, counted from 0; half is drawn.
func (b backoff) wait(n int, draw func(n int64) int64) time.Duration {
	d := b.max
	if n < 32 && b.min<<n < b.max {
		d = b.min << n
	}
	return d/2 + time.Duration(draw(int64(d/2)+1))
}

// link keeps a connection to a broker: it connects, again and again, and hands each session to its
// owner. The state is for Status and for the log, which hears of an outage once.
type link struct {
	broker  Broker
	url     *url.URL
	clean   bool
	backoff backoff
	deps    Deps
	open    opener

	mu        sync.Mutex // guards all below
	connected bool
	connects  uint64
	outage    int64  // since when, milliseconds since 1970; 0: connected or never tried
	lastError string // of the outage
}

// opener makes connections that are admitted.
func (d Deps) opener() opener {
	if d.Admit == nil {
		return open
	}
	return func(ctx context.Context, b Broker, u *url.URL) (net.Conn, error) {
		conn, err := open(ctx, b, u)
		if err != nil {
			return nil, err
		}
		return d.Admit(conn)
	}
}

func newLink(b Broker, clean bool, deps Deps) (*link, error) {
	b, u, err := b.check()
	if err != nil {
		return nil, err
	}
	if deps.Clock == nil {
		return nil, errors.New("no clock given")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	deps.Log = deps.Log.With("broker", u.String(), "client", b.ClientID)
	return &link{broker: b, url: u, clean: clean, backoff: connectBackoff, deps: deps, open: deps.opener()}, nil
}

// errRenew is how an owner ends a session to get one without a past.
var errRenew = errors.New("the session begins anew")

// start runs the link until stop is called, which returns when it has ended: whoever uses the sessions may need them longer
// than ctx lasts.
func (l *link) start(ctx context.Context) (sessions chan *session, stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	sessions, ended := make(chan *session), make(chan struct{})
	go func() {
		defer close(ended)
		l.run(ctx, sessions)
	}()
	return sessions, func() {
		cancel()
		<-ended
	}
}

// run connects until ctx ends. Each session goes to sessions and is run here. One that its owner has
// failed with errRenew is followed by one that the broker begins from scratch.
func (l *link) run(ctx context.Context, sessions chan<- *session) {
	reset := false
	for attempt := 0; ctx.Err() == nil; attempt++ {
		if attempt > 0 && !sleep(ctx, l.backoff.wait(attempt-1, rand.Int64N)) {
			return
		}
		s, err := l.dial(ctx, &reset)
		if err != nil {
			l.failed(ctx, err)
			continue
		}
		began := time.Now()
		l.noteConnected()
		select {
		case sessions <- s:
		case <-ctx.Done():
			s.conn.Close()
			l.noteFinished()
			return
		}
		err = s.run(ctx)
		if errors.Is(err, errFinished) {
			l.noteFinished()
			return
		}
		if errors.Is(err, errRenew) {
			l.noteFinished()
			reset, attempt = true, -1
			continue
		}
		if time.Since(began) >= steady {
			attempt = 0
		}
		l.failed(ctx, err)
	}
}

func (l *link) dial(ctx context.Context, reset *bool) (*session, error) {
	if *reset {
		if err := l.forget(ctx); err != nil {
			return nil, err
		}
		*reset = false
	}
	return dial(ctx, l.open, l.broker, l.url, l.clean)
}

// sleep is false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// failed notes a failed attempt or a lost connection, and says so if it is the first of an outage.
func (l *link) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // the end was asked for
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.connected
	l.connected, l.lastError = false, err.Error()
	if l.outage != 0 {
		return
	}
	l.outage = l.deps.Clock()
	if was {
		l.deps.Log.Warn("connection lost; trying again until it is back", "error", err)
		return
	}
	l.deps.Log.Warn("cannot connect; trying again until it works", "error", err)
}

func (l *link) noteConnected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connected = true
	l.connects++
}

func (l *link) noteFinished() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connected = false
}

// useful ends an outage: the connection does what it is for.
func (l *link) useful(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.outage == 0 {
		l.deps.Log.Info(what)
	} else {
		l.deps.Log.Info(what, "outage", time.Duration(l.deps.Clock()-l.outage)*time.Millisecond)
	}
	l.outage, l.lastError = 0, ""
}

// LinkStatus is the state of a connection to a broker.
type LinkStatus struct {
	Broker    string // URL without password
	Client    string
	Connected bool
	Connects  uint64
	// OutageSince is when the present outage began, in milliseconds since 1970; 0 if there is none.
	OutageSince int64
	// LastError says what the last attempt of the outage met.
	LastError string
}

func (l *link) status() LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LinkStatus{l.url.String(), l.broker.ClientID, l.connected, l.connects, l.outage, l.lastError}
}

// forget makes the broker drop the session that it keeps for this client.
func (l *link) forget(ctx context.Context) error {
	s, err := dial(ctx, l.open, l.broker, l.url, true)
	if err != nil {
		return fmt.Errorf("mqtt: forget session %q at %s: %w", l.broker.ClientID, l.url, err)
	}
	s.finish()
	if err := s.run(ctx); err != nil && !errors.Is(err, errFinished) {
		return fmt.Errorf("mqtt: forget session %q at %s: %w", l.broker.ClientID, l.url, err)
	}
	return nil
}
