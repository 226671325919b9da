package nats

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Limits of a connection.
const (
	// dialTimeout bounds one attempt to connect, and so how long [Connect] may take.
	dialTimeout = 2 * time.Second
	// writeTimeout is how long a write may hang before the connection counts as lost.
	writeTimeout = 3 * time.Second
	// pingInterval and maxPings: a connection that is silently gone is noticed within 10 s.
	pingInterval = 5 * time.Second
	maxPings     = 1
	// firstBackoff and lastBackoff bound the pause between attempts: short for a server that
	// restarts, a few seconds for one that is away, so that a fleet does not press on its hub.
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 5 * time.Second
	// requestTimeout bounds a request to the server when the caller's context has no earlier end.
	requestTimeout = 5 * time.Second
)

// Errors that callers branch on.
var (
	// ErrUnavailable says that the server cannot be reached or did not answer in time. Whether a
	// write took place is then unknown.
	ErrUnavailable = errors.New("NATS is not available")
	// ErrNotFound says that there is no such key, object or bucket.
	ErrNotFound = errors.New("not found")
	// ErrConflict says that the key exists already, or has another revision than expected.
	ErrConflict = errors.New("changed by another writer")
	// ErrLost says that a bucket or stream is gone or is another one than before.
	ErrLost = errors.New("lost by the server")
	// ErrFull says that a stream does not take a frame because of a limit.
	ErrFull = errors.New("stream is full")
	// ErrBusy says that too many frames wait to be sent.
	ErrBusy = errors.New("too many frames under way")
	// ErrClosed says that this end has been closed.
	ErrClosed = errors.New("closed")
)

// ConnectOptions say what to connect to.
type ConnectOptions struct {
	// URL of the server, or several with commas between; may hold user and password. Ignored if
	// Server is set.
	URL string
	// User and Password if they are not in the URL.
	User, Password string
	// Server is an embedded server, connected to within the process.
	Server *Server
	// Name of the client, for the server's listings.
	Name string
	// Prefix of all subjects, streams and buckets; empty: [DefaultPrefix]. The same for all agents.
	Prefix string
	// Domain is the hub's JetStream domain, for an agent whose server is a leaf node of it: the control plane is
	// there. What the agent's own tasks receive comes through streams of its own server.
	Domain string
	// Log; nil: slog's default.
	Log *slog.Logger
	// Admit, if not nil, takes each new connection and gives the one that is used instead, or an error.
	Admit func(net.Conn) (net.Conn, error)
}

// dialer makes connections that are admitted.
type dialer struct {
	server *Server // nil: by TCP
	admit  func(net.Conn) (net.Conn, error)
}

// Dial implements [nats.CustomDialer].
func (d dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, dialTimeout)
	if err != nil {
		return nil, err
	}
	return d.admit(conn)
}

// InProcessConn implements [nats.InProcessConnProvider].
func (d dialer) InProcessConn() (net.Conn, error) {
	conn, err := d.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	return d.admit(conn)
}

// State is whether the server can be reached.
type State struct {
	Connected bool
	// Err is why not, or what ended the connection last; nil if nothing ever did.
	Err error
	// Since is when Connected last changed, or when Connect was called.
	Since time.Time
}

// Conn is an agent's connection to NATS. It consists of two: one for frames and grants, one for the
// rest, since the server handles what comes in on a connection in order, and a frame must not wait
// until a snapshot of megabytes is on disk.
type Conn struct {
	names   names
	domain  string
	log     *slog.Logger
	control *link
	data    *link
}

// Connect connects, or keeps trying in the background if the server is unreachable, for ever. It
// fails only if the options are wrong, and returns within a few seconds in any case.
func Connect(opt ConnectOptions) (*Conn, error) {
	if opt.Prefix == "" {
		opt.Prefix = DefaultPrefix
	}
	if err := checkPrefix(opt.Prefix); err != nil {
		return nil, fmt.Errorf("NATS: %w", err)
	}
	if opt.URL == "" && opt.Server == nil {
		return nil, errors.New("NATS: neither a URL nor an embedded server to connect to")
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	c := &Conn{names: names{opt.Prefix}, domain: opt.Domain, log: opt.Log}
	var wg sync.WaitGroup
	var errControl, errData error
	wg.Go(func() { c.control, errControl = dial(opt, "control", opt.Domain, true) })
	wg.Go(func() { c.data, errData = dial(opt, "data", "", false) })
	wg.Wait()
	if err := errors.Join(errControl, errData); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// State is whether both connections stand; if not, what is known of the first one that does not.
func (c *Conn) State() State {
	if s := c.control.status(); !s.Connected {
		return s
	}
	return c.data.status()
}

// Changed is signalled (capacity 1) when State may have changed. Call stop when done with it.
func (c *Conn) Changed() (changed <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	c.control.subscribe(ch)
	c.data.subscribe(ch)
	return ch, func() { c.control.unsubscribe(ch); c.data.unsubscribe(ch) }
}

// WaitConnected waits until the server is reached or ctx ends; the error then says what is wrong.
func (c *Conn) WaitConnected(ctx context.Context) error {
	changed, stop := c.Changed()
	defer stop()
	for {
		s := c.State()
		if s.Connected {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err()), s.Err)
		}
	}
}

// Close ends both connections at once; whatever uses them must have been closed before.
func (c *Conn) Close() {
	for _, l := range []*link{c.control, c.data} {
		if l != nil {
			l.close()
		}
	}
}

// link is one connection and what is known of its state.
type link struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	api    string // prefix of JetStream's API
	closed chan struct{}

	mu        sync.Mutex
	state     State
	changes   uint64 // counts connects and disconnects
	listeners map[chan struct{}]struct{}
	requests  map[*context.CancelFunc]struct{} // to be ended when the connection is lost
}

// dial makes a link to a JetStream domain, the server's own if it is empty; loud says whether it logs outages, which both links would see.
func dial(opt ConnectOptions, role, domain string, loud bool) (*link, error) {
	l := &link{
		api:       jetstream.DefaultAPIPrefix,
		closed:    make(chan struct{}),
		state:     State{Since: time.Now()},
		listeners: make(map[chan struct{}]struct{}),
		requests:  make(map[*context.CancelFunc]struct{}),
	}
	url, server := opt.URL, "embedded server"
	options := []nats.Option{
		nats.Name(opt.Name + " " + role),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.CustomReconnectDelay(backoff),
		nats.IgnoreAuthErrorAbort(), nats.ReconnectBufSize(-1), nats.SkipHostLookup(),
		nats.Timeout(dialTimeout), nats.FlusherTimeout(writeTimeout),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(maxPings),
		nats.ClosedHandler(func(*nats.Conn) { close(l.closed) }),
	}
	if opt.User != "" {
		options = append(options, nats.UserInfo(opt.User, opt.Password))
	}
	if opt.Server != nil {
		url = nats.DefaultURL // not used, must parse
		u := opt.Server.internal
		var in nats.InProcessConnProvider = opt.Server
		if opt.Admit != nil {
			in = dialer{opt.Server, opt.Admit}
		}
		options = append(options, nats.InProcessServer(in), nats.UserInfo(u.Name, u.Password))
	} else {
		server = redact(opt.URL)
		if opt.Admit != nil {
			options = append(options, nats.SetCustomDialer(dialer{admit: opt.Admit}))
		}
	}
	log := opt.Log.With("server", server)
	options = append(options, l.handlers(log, loud)...)
	nc, err := nats.Connect(url, options...)
	if err != nil {
		return nil, fmt.Errorf("NATS at %s: %w", server, err)
	}
	l.nc = nc
	if !nc.IsConnected() {
		l.firstFailure(log, nc.LastError(), loud)
	}
	if domain != "" {
		l.api = "$JS." + domain + ".API."
	}
	l.js, err = newJetStream(nc, domain)
	if err != nil {
		l.close()
		return nil, fmt.Errorf("NATS at %s: %w", server, err)
	}
	return l, nil
}

func newJetStream(nc *nats.Conn, domain string) (jetstream.JetStream, error) {
	limit := jetstream.WithDefaultTimeout(requestTimeout)
	if domain != "" {
		return jetstream.NewWithDomain(nc, domain, limit)
	}
	return jetstream.New(nc, limit)
}

// handlers keep the link's state. The first failure of an outage is logged, and its end.
func (l *link) handlers(log *slog.Logger, loud bool) []nats.Option {
	failed := func(_ *nats.Conn, err error) {
		if err == nil || errors.Is(err, nats.ErrConnectionClosed) {
			err = errors.New("connection ended")
		}
		if l.set(false, err) && loud {
			log.Warn(unreachable, "error", err)
		}
	}
	connected := func(*nats.Conn) {
		if l.set(true, nil) && loud {
			log.Info("NATS is connected")
		}
	}
	return []nats.Option{
		nats.ConnectHandler(connected), nats.ReconnectHandler(connected),
		nats.DisconnectErrHandler(failed), nats.ReconnectErrHandler(failed),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrAuthorization) {
				log.Error("NATS refuses: check the user's permissions", "error", err)
			}
		}),
	}
}

// firstFailure notes why the first attempt failed, of which the library tells no handler.
func (l *link) firstFailure(log *slog.Logger, err error, loud bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil || l.state.Connected || l.state.Err != nil {
		return // a handler was faster
	}
	l.state.Err = err
	if loud {
		log.Warn(unreachable, "error", err)
	}
}

// unreachable is logged once per outage.
const unreachable = "NATS is unreachable; trying again until it is reached"

// set stores the state and tells the listeners. It reports the first failure of an outage, and every
// connect.
func (l *link) set(connected bool, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	news := connected || l.state.Connected || l.state.Err == nil
	if connected != l.state.Connected {
		l.state.Connected, l.state.Since = connected, time.Now()
	}
	if err != nil {
		l.state.Err = err
	}
	l.changes++
	for ch := range l.listeners {
		signal(ch)
	}
	for cancel := range l.requests {
		if !connected {
			(*cancel)()
		}
	}
	return news
}

// request runs f, which asks the server for something, within requestTimeout, and ends it with the
// connection, since no answer comes then: the library would wait for it. Errors are translated.
func (l *link) request(ctx context.Context, f func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	l.mu.Lock()
	l.requests[&cancel] = struct{}{}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.requests, &cancel)
	}()
	err := f(bounded)
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return fmt.Errorf("%w: connection lost", ErrUnavailable)
	}
	return translate(err)
}

// signal leaves one signal in a queue of capacity 1.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (l *link) status() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// connects counts the changes of the connection: whoever finds another count has missed one.
func (l *link) connects() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

func (l *link) subscribe(ch chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners[ch] = struct{}{}
}

func (l *link) unsubscribe(ch chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.listeners, ch)
}

func (l *link) close() {
	l.nc.Close()
	<-l.closed
}

// backoff is the pause before the n-th attempt: it doubles up to lastBackoff, of which it takes a
// random part between one half and the whole, so that agents do not come back in step.
func backoff(n int) time.Duration {
	d := lastBackoff
	if n < 16 && firstBackoff<<n < lastBackoff {
		d = firstBackoff << n
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return d/2 + time.Duration(binary.LittleEndian.Uint64(b[:])%uint64(d/2+1))
}

// sleep waits for d, or less if ctx ends, which it reports.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// translate gives an error of the libraries the meaning that callers branch on.
func translate(err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, ErrUnavailable), errors.Is(err, ErrFull),
		errors.Is(err, ErrLost), errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound), errors.Is(err, ErrDamaged):
		return err
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrObjectNotFound),
		errors.Is(err, jetstream.ErrKeyDeleted), errors.Is(err, jetstream.ErrMsgNotFound):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: %w", ErrLost, err)
	case errors.Is(err, jetstream.ErrKeyExists), errors.Is(err, jetstream.ErrKeyRevisionMismatch):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case errors.As(err, &api) && api.Code != 503:
		return err
	case errors.Is(err, jetstream.ErrInvalidKey), errors.Is(err, jetstream.ErrInvalidBucketName),
		errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject):
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
