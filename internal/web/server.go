package web

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/weir-stream/weir/internal/api"
)

// Limits of the server, with their reasons.
const (
	// maxRequests bounds the goroutines and buffers that callers can hold; a fleet's scripts and a
	// scraper need a handful.
	maxRequests = 64
	// maxJobBytes is far above any job file written by hand or by a generator for a small fleet.
	maxJobBytes = 1 << 20
	// maxModuleBytes is the limit of modules (32 MiB) and room for the registry to say so itself.
	maxModuleBytes = 33 << 20
	// maxHeaderBytes: the API uses no large headers.
	maxHeaderBytes = 16 << 10

	// headerTimeout ends connections that say nothing.
	headerTimeout = 10 * time.Second
	// idleTimeout is above the usual scrape interval, so that a scraper keeps its connection.
	idleTimeout = 2 * time.Minute
	// shortTimeout is for requests that only look something up, in KV at worst.
	shortTimeout = 15 * time.Second
	// waitTimeout is the default for requests that wait for a checkpoint, maxWaitTimeout the most
	// that a caller may ask for.
	waitTimeout    = 60 * time.Second
	maxWaitTimeout = 30 * time.Minute
	// uploadTimeout lets a module of full size through at 1 Mbit/s.
	uploadTimeout = 5 * time.Minute
	// stallTimeout ends a download whose client takes nothing; exportTimeout one as a whole.
	stallTimeout  = 30 * time.Second
	exportTimeout = time.Hour
	// answerMargin is what a connection lives beyond the deadline of its request, to send the answer.
	answerMargin = 10 * time.Second
	// shutdownTimeout bounds how long a stop waits for requests; their contexts have ended by then.
	shutdownTimeout = 5 * time.Second
)

// Options of a server.
type Options struct {
	Backend Backend
	// User and Password are asked for by everything but /healthz and /readyz. Both empty: nothing
	// is asked for, and only requests to a loopback name are answered.
	User     string
	Password string
	Log      *slog.Logger
}

// Server answers HTTP requests.
type Server struct {
	backend Backend
	guard   guard
	log     *slog.Logger
	slots   chan struct{}
	handler http.Handler
}

// New makes a server; nothing runs until Run.
func New(opt Options) *Server {
	s := &Server{
		backend: opt.Backend,
		guard:   newGuard(opt.User, opt.Password),
		log:     opt.Log,
		slots:   make(chan struct{}, maxRequests),
	}
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &api.Error{Status: http.StatusForbidden, Message: "request from another web page refused"})
	}))
	s.handler = s.limit(cross.Handler(s.guard.wrap(jsonErrors(s.routes()))))
	return s
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Run answers on the listener until ctx ends, then ends the requests under way, and closes the
// listener. It returns nil if it ended because of ctx.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       shortTimeout + answerMargin,
		WriteTimeout:      shortTimeout + answerMargin,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve HTTP on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := srv.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	<-served
	if err != nil {
		return fmt.Errorf("stop HTTP on %s: %w", l.Addr(), err)
	}
	return nil
}

// limit turns requests beyond maxRequests away; being busy is no lack of health.
func (s *Server) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			next.ServeHTTP(w, r)
			return
		}
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			writeError(w, api.Unavailable("try again in a second", "this agent already answers %d requests", maxRequests))
		}
	})
}

// guard decides who is answered.
type guard struct {
	open     bool
	user     [sha256.Size]byte
	password [sha256.Size]byte
}

func newGuard(user, password string) guard {
	return guard{
		open:     user == "" && password == "",
		user:     sha256.Sum256([]byte(user)),
		password: sha256.Sum256([]byte(password)),
	}
}

func (g guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.check(r); err != nil {
			if err.Status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Basic realm="weir", charset="UTF-8"`)
			}
			writeError(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (g guard) check(r *http.Request) *api.Error {
	if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
		return nil
	}
	if g.open {
		return checkHost(r)
	}
	user, password, ok := r.BasicAuth()
	u, p := sha256.Sum256([]byte(user)), sha256.Sum256([]byte(password))
	// Hashes are compared, both of them always, so that the time taken tells nothing.
	same := subtle.ConstantTimeCompare(u[:], g.user[:]) & subtle.ConstantTimeCompare(p[:], g.password[:])
	if ok && same == 1 {
		return nil
	}
	message := "user and password are needed"
	if ok {
		message = "wrong user or password"
	}
	return &api.Error{
		Status:  http.StatusUnauthorized,
		Message: message,
		Hint:    "put them in the URL: --server http://USER:PASSWORD@HOST:PORT, or in WEIR_SERVER",
	}
}

// checkHost keeps web pages out that have a name resolve to this machine's loopback address.
func checkHost(r *http.Request) *api.Error {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if len(host) > 1 && host[0] == '[' {
		host = host[1 : len(host)-1]
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return &api.Error{
		Status:  http.StatusForbidden,
		Message: fmt.Sprintf("an agent without auth.http answers to loopback names only, not to %q", host),
		Hint:    "use http://127.0.0.1:PORT, or set auth.http in the agent's --config file",
	}
}
