package nats

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/weir-stream/weir/dataflow/frame"
)

// MaxMessage is the largest message that the server takes, in bytes: a frame of the largest payload,
// with ample room for subject, headers and growth.
const MaxMessage = 1 << 20

var _ [MaxMessage - 2*(frame.HeaderSize+frame.MaxPayload)]byte

// Defaults of the embedded server.
const (
	// DefaultMQTTAckWait is how long the MQTT listener waits for an acknowledgement before it sends a
	// message again. The server's own default, 30 s, is how long a restarted source would wait for
	// what it had not acknowledged.
	DefaultMQTTAckWait = 2 * time.Second
	// DefaultMQTTMaxAckPending is how many unacknowledged messages a subscription may have: enough
	// for a source that acknowledges once per group commit (5 ms) at 100,000 messages per second. The
	// sum over a session's subscriptions is limited to 65,535 by the protocol.
	DefaultMQTTMaxAckPending = 1024
)

// Limits of the embedded server.
const (
	// serverWriteDeadline is how long the server waits for a client to read before it drops it.
	serverWriteDeadline = 10 * time.Second
	// authTimeoutSeconds is how long a client may take to say who it is.
	authTimeoutSeconds = 5
)

// User is a name and a password.
type User struct{ Name, Password string }

// ServerOptions configure the embedded server.
type ServerOptions struct {
	// Dir is where JetStream keeps its files, in a subdirectory "jetstream".
	Dir string
	// Name of the server, unique in a cluster. MQTT sessions need it to stay the same.
	Name string
	// Listen is the host:port for NATS clients; port 0 picks a free one; empty: in process only.
	Listen string
	// MQTTListen is the host:port for MQTT clients; empty or "off": none.
	MQTTListen string
	// Users who may connect as NATS clients; none: everybody without credentials may.
	Users []User
	// MQTTUsers may connect as MQTT clients; none: everybody without credentials may.
	MQTTUsers []User
	// LeafListen is the host:port at which leaf nodes join; empty: none. They need one of Users.
	LeafListen string
	// LeafURL is the hub that this server joins as a leaf node; empty: none. LeafUser is who it says it is there,
	// unless the URL does.
	LeafURL  string
	LeafUser User
	// Domain is the JetStream domain; a hub and its leaf nodes need different ones.
	Domain string
	// Prefix as in [ConnectOptions]: MQTT clients may not touch what is under it.
	Prefix string
	// MaxMemory and MaxStore bound JetStream, in bytes; 0: three quarters of what the machine has.
	MaxMemory, MaxStore int64
	// MQTTAckWait and MQTTMaxAckPending; 0: [DefaultMQTTAckWait], [DefaultMQTTMaxAckPending].
	MQTTAckWait       time.Duration
	MQTTMaxAckPending uint16
	// Log takes the server's warnings and errors; nil: slog's default.
	Log *slog.Logger
}

// Server is an embedded NATS server with JetStream.
type Server struct {
	at       listeners
	internal User
	opt      ServerOptions // with the addresses that the listeners have

	mending sync.Mutex // held while the server is started anew, or stopped for good
	stopped bool       // for good; under mending

	mu       sync.Mutex
	srv      *natsserver.Server // another one after each [Server.Mend]
	logs     *serverLog
	setAside []string
}

// listeners are addresses, host:port; empty: there is no such listener.
type listeners struct{ client, mqtt, leaf string }

// ErrListen is wrapped by the error about an address that cannot be listened on.
var ErrListen = errors.New("cannot listen")

// StartServer starts the server and returns when its listeners accept connections. JetStream files
// that do not load are set aside under another name and reported (see [Server.SetAside]); the server
// then starts without them. An address in use is an error that names it and wraps [ErrListen].
func StartServer(opt ServerOptions) (*Server, error) {
	if opt.Dir == "" || opt.Name == "" {
		return nil, errors.New("embedded NATS server: a directory and a name are needed")
	}
	if opt.Prefix == "" {
		opt.Prefix = DefaultPrefix
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	if err := os.MkdirAll(opt.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	aside, err := repair(opt)
	if err != nil {
		return nil, err
	}
	s, err := startOnce(opt, User{Name: "in-process-" + rand.Text(), Password: rand.Text()})
	if err != nil {
		return nil, err
	}
	s.setAside = aside
	return s, nil
}

// startOnce makes and starts one server, to which internal connects within the process. An error that wraps
// errStore is about JetStream's files.
func startOnce(opt ServerOptions, internal User) (*Server, error) {
	s := &Server{opt: opt, internal: internal}
	opts, err := serverOptions(opt, s.internal)
	if err != nil {
		return nil, err
	}
	ns, err := natsserver.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	log := &serverLog{log: opt.Log}
	ns.SetLoggerV2(log, false, false, false)
	s.srv, s.logs = ns, log
	if err := countStart(opt.Dir); err != nil {
		return nil, err
	}
	started := startGuarded(ns)
	if started == nil && opt.LeafURL != "" && log.failed(opt) == nil {
		started = enableAccounts(ns)
	}
	if err := errors.Join(started, log.failed(opt)); err != nil {
		s.Shutdown()
		return nil, errors.Join(err, forgetStarts(opt.Dir))
	}
	s.listens(opts)
	return s, forgetStarts(opt.Dir)
}

// listens notes the addresses, which stay the same for good: clients know them.
func (s *Server) listens(opts *natsserver.Options) {
	if !opts.DontListen {
		s.at.client = net.JoinHostPort(opts.Host, strconv.Itoa(s.srv.Addr().(*net.TCPAddr).Port))
		s.opt.Listen = s.at.client
	}
	if opts.MQTT.Port != 0 {
		s.at.mqtt = net.JoinHostPort(opts.MQTT.Host, strconv.Itoa(opts.MQTT.Port))
		s.opt.MQTTListen = s.at.mqtt
	}
	if opts.LeafNode.Port != 0 {
		s.at.leaf = net.JoinHostPort(opts.LeafNode.Host, strconv.Itoa(opts.LeafNode.Port))
		s.opt.LeafListen = s.at.leaf
	}
}

// startGuarded turns a panic of the server's start, which reads files that may be damaged, into an error.
func startGuarded(ns *natsserver.Server) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v", errStore, p)
		}
	}()
	ns.Start()
	return nil
}

func serverOptions(opt ServerOptions, internal User) (*natsserver.Options, error) {
	o := &natsserver.Options{
		ServerName: opt.Name, StoreDir: opt.Dir, JetStream: true, SyncAlways: true,
		JetStreamDomain: opt.Domain, JetStreamMaxMemory: opt.MaxMemory, JetStreamMaxStore: opt.MaxStore,
		DisableJetStreamBanner: true, NoSigs: true, MaxPayload: MaxMessage,
		WriteDeadline: serverWriteDeadline, AuthTimeout: authTimeoutSeconds,
	}
	if err := checkPrefix(opt.Prefix); err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	var err error
	if opt.Listen == "" {
		o.DontListen = true
		o.Host, o.Port = "127.0.0.1", -1
	} else if o.Host, o.Port, err = listenAddress("NATS", opt.Listen); err != nil {
		return nil, err
	}
	if err := mqttOptions(&o.MQTT, opt); err != nil {
		return nil, err
	}
	if err := leafOptions(&o.LeafNode, opt); err != nil {
		return nil, err
	}
	if err := checkUsers(opt); err != nil {
		return nil, err
	}
	addUsers(o, opt, internal)
	return o, nil
}

// checkUsers refuses names that the server's one table of users cannot hold.
func checkUsers(opt ServerOptions) error {
	seen := make(map[string]bool)
	for _, u := range append(append([]User(nil), opt.Users...), opt.MQTTUsers...) {
		switch {
		case u.Name == "" || u.Password == "":
			return fmt.Errorf("embedded NATS server: user %q: a name and a password are needed", u.Name)
		case seen[u.Name]:
			return fmt.Errorf("embedded NATS server: user %q is named twice; NATS and MQTT users need different names", u.Name)
		}
		seen[u.Name] = true
	}
	return nil
}

func mqttOptions(o *natsserver.MQTTOpts, opt ServerOptions) (err error) {
	if opt.MQTTListen == "" || opt.MQTTListen == "off" {
		return nil
	}
	o.Host, o.Port, err = listenAddress("MQTT", opt.MQTTListen)
	if o.AckWait = opt.MQTTAckWait; o.AckWait == 0 {
		o.AckWait = DefaultMQTTAckWait
	}
	if o.MaxAckPending = opt.MQTTMaxAckPending; o.MaxAckPending == 0 {
		o.MaxAckPending = DefaultMQTTMaxAckPending
	}
	return err
}

func leafOptions(o *natsserver.LeafNodeOpts, opt ServerOptions) (err error) {
	if opt.LeafListen != "" {
		if o.Host, o.Port, err = listenAddress("leaf nodes", opt.LeafListen); err != nil {
			return err
		}
	}
	if opt.LeafURL == "" {
		return nil
	}
	u, err := url.Parse(opt.LeafURL)
	if err != nil || u.Host == "" {
		return fmt.Errorf("leaf URL %q: want nats://host:port", redact(opt.LeafURL))
	}
	if opt.LeafUser.Name != "" && u.User == nil {
		u.User = url.UserPassword(opt.LeafUser.Name, opt.LeafUser.Password)
	}
	o.Remotes = []*natsserver.RemoteLeafOpts{{URLs: []*url.URL{u}, LocalAccount: leafAccount, IgnoreDiscoveredServers: true}}
	o.ReconnectInterval = leafReconnect
	return nil
}

// leafAccount is the account of a leaf node that is joined to its hub. MQTT clients are in another one: what
// they publish stays on the leaf node's own broker, and the two brokers' sessions know nothing of each other.
const leafAccount = "weir"

// leafReconnect is the pause between attempts to join the hub.
const leafReconnect = 2 * time.Second

// enableAccounts gives JetStream to both accounts of a leaf node.
func enableAccounts(ns *natsserver.Server) error {
	weir, err := ns.LookupAccount(leafAccount)
	if err != nil {
		return fmt.Errorf("embedded NATS server: account %s: %w", leafAccount, err)
	}
	for _, a := range []*natsserver.Account{ns.GlobalAccount(), weir} {
		if err := a.EnableJetStream(nil, nil); err != nil {
			return fmt.Errorf("%w: account %s: %w", errStore, a.Name, err)
		}
	}
	return nil
}

// LeafState says whether the server, as a leaf node, has joined its hub.
func (s *Server) LeafState() (joined bool, err error) {
	srv, logs := s.running()
	return srv.NumLeafNodes() > 0, logs.leafError()
}

// listenAddress splits host:port; the server takes port −1 for a free one.
func listenAddress(what, addr string) (string, int, error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("%s listener %q: want host:port: %w", what, addr, err)
	}
	port, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%s listener %q: port %q is not a number up to 65535", what, addr, p)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	if port == 0 {
		return host, -1, nil
	}
	return host, int(port), nil
}

// addUsers fills the server's table of users. Each may only connect in the way meant for it, and
// MQTT clients may not touch the control plane or the streams, which topics could otherwise name.
func addUsers(o *natsserver.Options, opt ServerOptions, internal User) {
	standard := []string{jwt.ConnectionTypeStandard, jwt.ConnectionTypeLeafnode, jwt.ConnectionTypeInProcess}
	var account *natsserver.Account // nil: the only one
	if opt.LeafURL != "" {
		account = natsserver.NewAccount(leafAccount)
		o.Accounts = append(o.Accounts, account)
	}
	add := func(u User, perm *natsserver.Permissions, types ...string) {
		allowed := make(map[string]struct{}, len(types))
		for _, t := range types {
			allowed[t] = struct{}{}
		}
		o.Users = append(o.Users, &natsserver.User{
			Username: u.Name, Password: u.Password, Permissions: perm, AllowedConnectionTypes: allowed, Account: account,
		})
	}
	add(internal, nil, jwt.ConnectionTypeInProcess)
	for _, u := range opt.Users {
		add(u, nil, standard...)
	}
	if len(opt.Users) == 0 {
		o.NoAuthUser = "anybody-" + rand.Text()
		add(User{Name: o.NoAuthUser, Password: rand.Text()}, nil, standard...)
	}
	if o.MQTT.Port == 0 {
		return
	}
	account = nil
	perm := mqttPermissions(opt.Prefix)
	for _, u := range opt.MQTTUsers {
		add(u, perm, jwt.ConnectionTypeMqtt)
	}
	if len(opt.MQTTUsers) == 0 {
		o.MQTT.NoAuthUser = "anybody-" + rand.Text()
		add(User{Name: o.MQTT.NoAuthUser, Password: rand.Text()}, perm, jwt.ConnectionTypeMqtt)
	}
}

// mqttPermissions denies what no topic may reach: a topic "$KV/weir-jobs/x" is the subject
// "$KV.weir-jobs.x".
func mqttPermissions(prefix string) *natsserver.Permissions {
	deny := []string{"$KV.>", "$O.>", "$JS.API.>", "$SYS.>", prefix + ".s.>", prefix + ".g.>", prefix + ".a.>",
		prefix + ".call.>", prefix + ".say.>"}
	return &natsserver.Permissions{
		Publish:   &natsserver.SubjectPermission{Deny: deny},
		Subscribe: &natsserver.SubjectPermission{Deny: deny},
	}
}

// ClientURL is the URL for NATS clients, without credentials; empty if there is no listener.
func (s *Server) ClientURL() string {
	if s.at.client == "" {
		return ""
	}
	return "nats://" + s.at.client
}

// ClientAddr is the host:port that NATS clients connect to; empty if there is no listener.
func (s *Server) ClientAddr() string { return s.at.client }

// MQTTAddr is the host:port that MQTT clients connect to; empty if there is no listener.
func (s *Server) MQTTAddr() string { return s.at.mqtt }

// LeafAddr is the host:port at which leaf nodes join; empty if there is no listener.
func (s *Server) LeafAddr() string { return s.at.leaf }

// running is the server of the moment.
func (s *Server) running() (*natsserver.Server, *serverLog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srv, s.logs
}

// InProcessConn makes a connection within the process. [Connect] uses it.
func (s *Server) InProcessConn() (net.Conn, error) {
	srv, _ := s.running()
	return srv.InProcessConn()
}

// SetAside lists where JetStream files that did not load were moved to at the start, and whenever the server was
// started anew. What was in them is lost to this server: say so.
func (s *Server) SetAside() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.setAside)
}

// Shutdown stops the server and returns when it has stopped.
func (s *Server) Shutdown() {
	s.mending.Lock()
	defer s.mending.Unlock()
	s.stopped = true
	s.halt()
}

func (s *Server) halt() {
	srv, _ := s.running()
	srv.Shutdown()
	srv.WaitForShutdown()
}

// redact takes the password out of a URL for messages.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(unreadable URL)"
	}
	return u.Redacted()
}

// serverLog passes the server's warnings and errors on and keeps the first fatal one, which the
// server expects not to return.
type serverLog struct {
	log   *slog.Logger
	mu    sync.Mutex
	fatal string
	leaf  string // the last error about joining the hub
	store string // the first error of a write to JetStream's files
	down  error  // why the server that was stopped does not start
	limit bool   // JetStream said that it has as much on disk as it may
}

// leafError is why the hub was not joined the last time that it was not; nil if nothing is known.
func (l *serverLog) leafError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaf == "" {
		return nil
	}
	return errors.New(l.leaf)
}

// noteLeaf keeps what is said about joining the hub and says whether it is that, and news.
func (l *serverLog) noteLeaf(text string) (about, news bool) {
	if !strings.Contains(strings.ToLower(text), "leafnode") && !strings.Contains(text, "Leafz") {
		return false, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	news = l.leaf != text
	l.leaf = text
	return true, news
}

// failed is why the server did not start, nil if it did.
func (l *serverLog) failed(opt ServerOptions) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	msg := l.fatal
	switch {
	case msg == "":
		return nil
	case strings.HasPrefix(msg, "Can't start JetStream"):
		return fmt.Errorf("%w in %s: %s", errStore, opt.Dir, msg)
	case strings.Contains(msg, "MQTT"):
		return listenError("MQTT", opt.MQTTListen, msg)
	case strings.Contains(msg, "leafnode"):
		return listenError("leaf nodes", opt.LeafListen, msg)
	case strings.Contains(msg, "listening on port"):
		return listenError("NATS", opt.Listen, msg)
	}
	return fmt.Errorf("embedded NATS server: %s", msg)
}

func listenError(what, addr, msg string) error {
	return fmt.Errorf("%w on %s for %s clients: %s; free it or choose another address", ErrListen, addr, what, msg)
}

func (l *serverLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatal == "" {
		l.fatal = fmt.Sprintf(format, v...)
	}
}

func (l *serverLog) Errorf(format string, v ...any) {
	text := strings.TrimSpace(fmt.Sprintf(format, v...))
	l.noteStore(text)
	if about, news := l.noteLeaf(text); about && !news {
		return // an attempt to join the hub, every few seconds
	}
	l.log.Error("NATS server: " + text)
}

// Warnf leaves out that passwords are kept in memory in plain text: they come from the agent's own
// files or are random.
func (l *serverLog) Warnf(format string, v ...any) {
	if !strings.HasPrefix(format, "Plaintext passwords") {
		text := strings.TrimSpace(fmt.Sprintf(format, v...))
		l.noteStore(text)
		l.log.Warn("NATS server: " + text)
	}
}

// Noticef, Debugf and Tracef say what an agent's log has no use for.
func (l *serverLog) Noticef(string, ...any) {}

// Debugf says nothing.
func (l *serverLog) Debugf(string, ...any) {}

// Tracef says nothing.
func (l *serverLog) Tracef(string, ...any) {}

// errStore is wrapped by errors about JetStream's files, as against listeners and options.
var errStore = errors.New("JetStream does not start")

func storeDir(dir string) string { return filepath.Join(dir, natsserver.JetStreamStoreDir) }
