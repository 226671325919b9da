package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/web"
	"github.com/weir-stream/weir/storage"
	"github.com/weir-stream/weir/transport/direct"
	wnats "github.com/weir-stream/weir/transport/nats"
	"github.com/weir-stream/weir/wasmops"
)

// Kinds of local copies.
const (
	copyJob      = "job"      // jobRecord by name
	copyEpoch    = "epoch"    // epochCopy by epochKey: manifests
	copyOperator = "operator" // operatorRecord by key
	copyAgent    = "agent"    // agentRecord by name
	copyGone     = "gone"     // nothing, by name of an agent that was taken out of the fleet
	copyDead     = "dead"     // deadRecord
	copyLetters  = "letters"  // []heardLetters by name of an agent that is silent
	copyCluster  = "cluster"  // identity of the control plane that the copies were merged into
)

// streamBytes bounds a task's input stream, in bytes of memory: what is consumed stays in it until a
// checkpoint counts, or half of that is full, more while the task replays. At the limit senders wait.
const streamBytes = 256 << 20

// channelBytes is what a channel within the process may hold in any case, in bytes: more than three of the largest
// frames, since a run that a replay takes at once may lie in as many, if its sender has cut it in other places.
const channelBytes = 1 << 20

// Agent is one agent. Run makes it and runs it.
type Agent struct {
	opt   Options
	name  string
	log   *slog.Logger
	began time.Time

	dir     *storage.Dir
	entries *storage.Log
	store   *storage.Store
	copies  *storage.Copies
	blobs   *storage.Blobs
	host    *wasmops.Host
	modules modules
	uploads *storage.Uploads

	bodies, checking, trying slots // of requests
	guests                   *guestObserver
	dead                     *deadLetters

	server  *wnats.Server // nil: none
	conn    *wnats.Conn
	streams dataflow.Streams // through NATS
	within  dataflow.Streams // between tasks of this agent
	httpAt  string

	life       context.Context // of everything that runs
	workers    sync.WaitGroup
	saves      *queue[saveJob]
	acks       *queue[ackJob]
	replicas   *queue[replicaJob]
	purges     *queue[purgeJob]
	savepoints *queue[savepointAsk]
	failed     chan error // what ends the agent
	begunAnew  bool       // in vain: the snapshots' file was damaged, and opening it has found nothing
	notices    noticeBoard
	leader     leader
	peers      peers
	takeover   atomic.Bool // the directory was begun in the place of another one
	cluster    string
	clusterMu  sync.Mutex
	mu         sync.Mutex
	news       sync.Mutex // held while a record of a job or an epoch is taken: they come from two watches
	jobs       map[string]*hostedJob
	ready      chan struct{}
	wakeLeader chan struct{}
	ticker     ticker
	disk       diskMeter
	unsaved    unsaved
	clocks     steadyClocks
	drill      drill
	stirred    chan struct{} // a task has changed that was quiet
	askMu      sync.Mutex    // of the next three
	ask        ask           // the coordinator's that is being answered, or was
	mark       abs.Position  // of the log when it was heard
	askedIn    abs.Term      // the highest of which an ask was heard, of whatever control plane
	asked      chan struct{} // there is something to ask, or to answer
	badPacks   sync.Map      // names of packs that were found to be damaged, by this process
	bundles    uint64        // that this process has stored; the replicas' worker's own
}

// Run runs an agent until ctx ends. Errors about its directory, its listeners and its options come
// at once; everything outside that is unreachable is tried again for ever. When its snapshots' file turns out to be
// damaged it begins anew, which sets the file aside.
func Run(ctx context.Context, opt Options, log *slog.Logger) error {
	if err := opt.Validate(); err != nil {
		return err
	}
	for anew := false; ; anew = true {
		err := runOnce(ctx, opt, log, anew)
		if !errors.Is(err, errBeginAnew) || ctx.Err() != nil {
			return err
		}
		log.Error("the agent begins anew", "error", err)
	}
}

// errBeginAnew says that the agent's files have to be opened again.
var errBeginAnew = errors.New("a file of the agent is damaged")

func runOnce(ctx context.Context, opt Options, log *slog.Logger, anew bool) error {
	a, err := newAgent(opt, log, anew)
	if err != nil {
		return err
	}
	return a.live(ctx)
}

func newAgent(opt Options, log *slog.Logger, anew bool) (*Agent, error) {
	opt = opt.WithDefaults()
	data, err := filepath.Abs(opt.Data)
	if err != nil {
		return nil, err
	}
	opt.Data = data
	a := &Agent{
		opt: opt, log: log, began: time.Now(), jobs: map[string]*hostedJob{}, ready: make(chan struct{}),
		wakeLeader: make(chan struct{}, 1), stirred: make(chan struct{}, 1), asked: make(chan struct{}, 1),
		saves: newQueue[saveJob](), acks: newQueue[ackJob](), replicas: newQueue[replicaJob](), purges: newQueue[purgeJob](),
		savepoints: newQueue[savepointAsk](), failed: make(chan error, 1), begunAnew: anew,
	}
	a.peers.init()
	return a, nil
}

func (a *Agent) live(ctx context.Context) error {
	defer a.closeStores()
	if err := a.openStores(ctx); err != nil {
		return err
	}
	return a.run(ctx)
}

func (a *Agent) run(ctx context.Context) error {
	listener, err := net.Listen("tcp", a.opt.HTTP)
	if err != nil {
		return fmt.Errorf("listen for HTTP on %s: %w; choose another address with --http", a.opt.HTTP, err)
	}
	a.httpAt = listener.Addr().String()
	if err := a.openNATS(); err != nil {
		return errors.Join(err, listener.Close())
	}
	defer a.closeNATS()
	if err := a.announceAddresses(); err != nil {
		return errors.Join(err, listener.Close())
	}
	life, cancel := context.WithCancel(ctx)
	a.life = life
	// In the order of what follows from what: everything is told to end, the sessions that could start
	// tasks have ended, the tasks have, and what tasks had begun in the background has.
	defer a.workers.Wait()
	defer a.stopJobs()
	defer a.workers.Wait()
	defer cancel()
	a.startWorkers()
	if err := errors.Join(a.loadPeers(), a.startLocalJobs()); err != nil {
		return errors.Join(err, listener.Close())
	}
	before, _ := a.peers.get(a.name)
	a.tellLabels(before.Labels)
	close(a.ready)
	a.background(a.keepAlive)
	a.background(a.runSessions)
	a.background(a.runLeader)
	a.background(a.meterDisk)
	a.background(a.sweepCopies)
	if a.server != nil {
		a.background(a.tidyOwnStreams)
		a.background(a.mendServer)
	}
	srv := web.New(web.Options{Backend: a, Log: a.log, User: a.opt.Auth.HTTP.User, Password: a.opt.Auth.HTTP.Password})
	return a.serve(life, cancel, srv, listener)
}

// serve answers requests until ctx ends or the agent fails.
func (a *Agent) serve(ctx context.Context, cancel context.CancelFunc, srv *web.Server, l net.Listener) error {
	served := make(chan error, 1)
	a.background(func() { served <- srv.Run(ctx, l) })
	select {
	case err := <-served:
		return err
	case err := <-a.failed:
		cancel()
		return errors.Join(err, <-served)
	}
}

// fail ends the agent with an error.
func (a *Agent) fail(err error) {
	select {
	case a.failed <- err:
	default:
	}
}

// openStores opens everything in the agent's directory.
func (a *Agent) openStores(ctx context.Context) error {
	dir, err := storage.OpenDir(a.opt.Data)
	if err != nil {
		return err
	}
	a.dir = dir
	anew := dir.Identity().Name == ""
	if err := a.takeName(); err != nil {
		return err
	}
	a.log = a.log.With("agent", a.name)
	if err := a.openLog(dir.LogPath()); err != nil {
		return fmt.Errorf("input log: %w", err)
	}
	store, damage, err := storage.OpenStore(dir.StatePath())
	if err != nil {
		return fmt.Errorf("snapshots: %w", err)
	}
	a.store = store
	a.begunAnew = a.begunAnew && damage == nil
	a.damaged("snapshots", damage)
	a.copies, damage, err = storage.OpenCopies(dir.CopiesPath())
	if err != nil {
		return fmt.Errorf("local copies: %w", err)
	}
	a.damaged("local copies", damage)
	if err := a.takeOver(anew); err != nil {
		return err
	}
	if a.blobs, err = storage.OpenBlobs(dir.BlobsPath()); err != nil {
		return fmt.Errorf("modules and packs: %w", err)
	}
	var left []error
	if a.uploads, left, err = storage.OpenUploads(dir.UploadsPath(), uploadLimits); err != nil {
		return err
	}
	for _, err := range left {
		a.log.Warn("something among the unfinished uploads cannot be used or removed, and is left alone", "error", err)
	}
	if a.dead, err = openDeadLetters(a.copies, a.now); err != nil {
		return err
	}
	for _, n := range a.dead.notices() {
		a.log.Warn(n)
	}
	a.guests = newGuestObserver(a.log)
	a.host, err = wasmops.NewHost(ctx, wasmops.Options{
		Modules: moduleFiles{a.blobs}, CacheDir: filepath.Join(dir.Path(), "cache"), Observer: a.guests,
	})
	return err
}

// openLog opens the input log. A damaged one is set aside: the tasks whose snapshots are of it stop and say
// so, and the agent goes on without them.
func (a *Agent) openLog(path string) error {
	var err error
	opt := storage.LogOptions{Budget: a.opt.LogBudget, Room: func(bytes int) int { return a.drill.room(a.opt.LogRoom, bytes) }}
	if a.entries, err = storage.OpenLog(path, opt); !errors.Is(err, storage.ErrCorrupt) {
		return err
	}
	damage, err := storage.PutAside(path, err)
	if err != nil {
		return err
	}
	a.damaged("input log, without which tasks that need it stop", damage)
	a.entries, err = storage.OpenLog(path, opt)
	return err
}

// takeName settles the agent's name: given, else stored, else the host's.
func (a *Agent) takeName() error {
	a.name = cmp.Or(a.opt.Name, a.opt.Replace)
	if a.name == "" {
		a.name = a.dir.Identity().Name
	}
	if a.name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("host name: %w; give a name with --name", err)
		}
		a.name = plainName(host)
	}
	if !api.NamePattern.MatchString(a.name) {
		return fmt.Errorf("the host's name %q cannot be an agent's: give one with --name", a.name)
	}
	if stored := a.dir.Identity().Name; stored != "" && stored != a.name {
		return fmt.Errorf("--name %s: the directory %s belongs to agent %s; leave --name out, or use another directory", a.name, a.opt.Data, stored)
	}
	return a.dir.SetName(a.name)
}

// takeOver notes of a directory that is begun anew that it takes the place of another one, whatever comes
// between. A directory that has been an agent's is what it is.
func (a *Agent) takeOver(anew bool) error {
	if anew && a.opt.Replace != "" {
		if err := a.copies.Put(copyTakeover, a.name, []byte("1")); err != nil {
			return fmt.Errorf("local copies: %w", err)
		}
	}
	_, pending, err := a.copies.Get(copyTakeover, a.name)
	a.takeover.Store(pending)
	return err
}

// plainName replaces what a host's name may have and an agent's may not.
func plainName(host string) string {
	b := []byte(host)
	for i, c := range b {
		if c == '.' {
			b[i] = '-'
		}
	}
	return string(b[:min(len(b), 64)])
}

func (a *Agent) closeStores() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var errs []error
	if a.host != nil {
		errs = append(errs, a.host.Close(ctx))
	}
	if a.copies != nil {
		errs = append(errs, a.copies.Close())
	}
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	if a.entries != nil {
		errs = append(errs, a.entries.Close())
	}
	if a.dir != nil {
		errs = append(errs, a.dir.Close())
	}
	if err := errors.Join(errs...); err != nil {
		a.log.Error("closing the agent's files", "error", err)
	}
}

// openNATS starts the embedded server, if there is to be one, and connects.
func (a *Agent) openNATS() error {
	conn := wnats.ConnectOptions{Name: a.name, Log: a.log, Admit: a.drill.links.admit}
	if a.opt.Embedded() {
		opt := wnats.ServerOptions{
			Name: a.name, Dir: filepath.Join(a.dir.Path(), "nats"), Listen: a.opt.NATSListen, MQTTListen: a.opt.MQTTListen, Log: a.log,
		}
		if c := a.opt.Auth.NATS; !c.IsZero() {
			opt.Users = append(opt.Users, wnats.User{Name: c.User, Password: c.Password})
		}
		conn.Domain = leafOptions(&opt, a.opt, a.name)
		if c := a.opt.Auth.MQTT; !c.IsZero() {
			opt.MQTTUsers = append(opt.MQTTUsers, wnats.User{Name: c.User, Password: c.Password})
		}
		server, err := wnats.StartServer(opt)
		if err != nil {
			return err
		}
		a.server, conn.Server = server, server
		for _, path := range server.SetAside() {
			a.notices.add("NATS: damaged files were set aside as " + path)
		}
	} else {
		conn.URL, conn.User, conn.Password = a.opt.NATS, a.opt.Auth.NATS.User, a.opt.Auth.NATS.Password
	}
	c, err := wnats.Connect(conn)
	if err != nil {
		a.closeNATS()
		return err
	}
	a.conn = c
	a.streams = c.Streams(wnats.StreamOptions{Bytes: streamBytes})
	if a.within == nil {
		a.within = direct.New(direct.Options{Bytes: streamBytes, Total: withinBytes(memoryBytes("/")), Least: channelBytes, Log: a.log})
	}
	return nil
}

func (a *Agent) closeNATS() {
	if a.conn != nil {
		a.conn.Close()
	}
	if a.server != nil {
		a.server.Shutdown()
	}
}

func (a *Agent) addresses() api.Addresses {
	ad := api.Addresses{HTTP: a.httpAt}
	if a.server != nil {
		ad.NATS, ad.MQTT, ad.Leaf = a.server.ClientAddr(), a.server.MQTTAddr(), a.server.LeafAddr()
	}
	return ad
}

// announceAddresses prints the addresses and writes them to addresses.json, by rename so that a
// reader never sees half a file.
func (a *Agent) announceAddresses() error {
	ad := a.addresses()
	a.log.Info("agent is up", "data", a.opt.Data, "http", ad.HTTP, "nats", ad.NATS, "mqtt", ad.MQTT, "version", a.opt.Version)
	b, err := json.MarshalIndent(ad, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(a.opt.Data, "addresses.json")
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	return os.Rename(path+".new", path)
}

// ownMQTT is the address of this agent's MQTT listener, empty if it has none.
func (a *Agent) ownMQTT() string {
	if a.server == nil {
		return ""
	}
	return a.server.MQTTAddr()
}

// now is the wall clock in milliseconds since 1970. It never decides what a task computes: it goes
// into the log first.
func (a *Agent) now() int64 {
	back := a.drill.shift.Load()
	if a.opt.Clock != nil {
		return a.opt.Clock() - back
	}
	return time.Now().UnixMilli() - back
}

// stopwatch is monotonic.
func (a *Agent) stopwatch() time.Duration { return time.Since(a.began) }

// background runs f and lets Run wait for it.
func (a *Agent) background(f func()) {
	a.workers.Add(1)
	go func() {
		defer a.workers.Done()
		f()
	}()
}

// startLocalJobs starts what the agent has copies of, reachable or not (P7).
func (a *Agent) startLocalJobs() error {
	var records []jobRecord
	err := a.copies.List(copyJob, func(key string, value []byte) error {
		var rec jobRecord
		if err := json.Unmarshal(value, &rec); err != nil {
			return fmt.Errorf("copy of job %s: %w", key, err)
		}
		records = append(records, rec)
		return nil
	})
	if err != nil {
		return err
	}
	for _, rec := range records {
		h, err := a.loadJob(rec)
		if err != nil {
			return fmt.Errorf("job %s: %w", rec.Name, err)
		}
		a.mu.Lock()
		a.jobs[rec.Name] = h
		a.mu.Unlock()
	}
	return nil
}

func (a *Agent) stopJobs() {
	for _, h := range a.hosted() {
		h.stopRunners()
	}
}

func (a *Agent) hosted() []*hostedJob {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*hostedJob
	for _, h := range a.jobs {
		out = append(out, h)
	}
	return out
}

func (a *Agent) hostedJob(name string) *hostedJob {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.jobs[name]
}

// takeJob takes a job's record from KV.
func (a *Agent) takeJob(rec jobRecord) error {
	h := a.hostedJob(rec.Name)
	if h != nil {
		return h.apply(rec)
	}
	h, err := a.loadJob(rec)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.jobs[rec.Name] = h
	a.mu.Unlock()
	return nil
}

// epochCopy is a manifest as an agent keeps it.
type epochCopy struct {
	Job    string          `json:"job"`
	Record abs.EpochRecord `json:"record"`
}

func (a *Agent) putCopy(kind, key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return a.copies.Put(kind, key, b)
}

// forgetCopies drops the manifests and losses of a deleted job; its record stays, as a tombstone.
func (a *Agent) forgetCopies(job string) error {
	var keys []string
	err := a.copies.List(copyEpoch, func(key string, value []byte) error {
		var c epochCopy
		if err := json.Unmarshal(value, &c); err != nil || c.Job == job {
			keys = append(keys, key)
		}
		return nil
	})
	for _, k := range keys {
		err = errors.Join(err, a.copies.Delete(copyEpoch, k))
	}
	return errors.Join(err, a.forgetLosses(job))
}
