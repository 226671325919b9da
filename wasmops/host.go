package wasmops

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/weir-stream/weir/dataflow"
)

// Modules is where a host finds modules.
type Modules interface {
	// Open returns the bytes of the module of that digest (see [Digest]).
	Open(digest string) ([]byte, error)
}

// LogLevel is the level of a guest's log line.
type LogLevel uint8

// Levels of log lines.
const (
	LogDebug LogLevel = iota
	LogInfo
	LogWarn
	LogError
)

func (l LogLevel) String() string {
	return [...]string{"debug", "info", "warn", "error"}[min(l, LogError)]
}

// Observer is told what guests say. Its methods are called by the goroutines that run the instances,
// within a call, and must not block. What is replayed is said again.
type Observer interface {
	// Log is called for each line within the instance's rate.
	Log(task, operator string, level LogLevel, text string)
	// LogDropped counts lines beyond the rate.
	LogDropped(task, operator string, lines int)
	// Count adds to a counter that the guest names.
	Count(task, operator, counter string, delta int64)
	// Gauge sets a gauge that the guest names.
	Gauge(task, operator, gauge string, value float64)
}

// Options of a host. Zero values mean the defaults.
type Options struct {
	Modules     Modules       // where New finds modules; Check needs none
	Observer    Observer      // may be nil
	CacheDir    string        // for compiled modules; empty: none. Nothing else may write there.
	ModuleLimit int           // bytes, default [DefaultModuleLimit]
	MemoryLimit int64         // bytes per instance, default [DefaultMemoryLimit]
	OutputLimit int64         // bytes per batch, default [DefaultOutputLimit]
	KeyedLimit  int64         // bytes per instance, default [DefaultKeyedLimit]
	TimeLimit   time.Duration // per batch, default [DefaultTimeLimit]
	LogRate     int64         // lines per second of an instance's clock, default [DefaultLogRate]
	Timers      int64         // of an instance, default [DefaultTimers]
	Interpreter bool          // never compile to machine code; implied where the compiler is not supported

	measure measure
	compare bool // snapshots by comparing alone
}

// measure is how benchmarks compare ways to stop a guest that does not end.
type measure uint8

const (
	metered measure = iota // what is used
	unstoppable
	watched // the engine's own way, WithCloseOnContextDone
)

func (o Options) withDefaults() (Options, error) {
	o.ModuleLimit = orDefault(o.ModuleLimit, DefaultModuleLimit)
	o.MemoryLimit = orDefault(o.MemoryLimit, DefaultMemoryLimit)
	o.OutputLimit = orDefault(o.OutputLimit, DefaultOutputLimit)
	o.KeyedLimit = orDefault(o.KeyedLimit, DefaultKeyedLimit)
	o.TimeLimit = orDefault(o.TimeLimit, DefaultTimeLimit)
	o.LogRate = orDefault(o.LogRate, DefaultLogRate)
	o.Timers = orDefault(o.Timers, DefaultTimers)
	if _, err := o.limits(dataflow.Limits{}); err != nil {
		return o, err
	}
	if o.Observer == nil {
		o.Observer = silent{}
	}
	return o, nil
}

func orDefault[T ~int | ~int64](v, fallback T) T {
	if v == 0 {
		return fallback
	}
	return v
}

type silent struct{}

func (silent) Log(string, string, LogLevel, string)  {}
func (silent) LogDropped(string, string, int)        {}
func (silent) Count(string, string, string, int64)   {}
func (silent) Gauge(string, string, string, float64) {}

// Host makes instances of modules. Each module is compiled once and shared by its instances.
type Host struct {
	opt   Options
	rt    wazero.Runtime
	cache *diskCache // nil: none

	// compiling has a place for the one compilation that goes on: each takes two threads, and for a large module
	// hundreds of megabytes.
	compiling chan struct{}

	mu      sync.Mutex // guards what follows
	modules map[string]*loaded
	loading map[string]chan struct{} // by digest; closed when it has ended
	idle    []string                 // digests of modules without an instance, longest idle first
	hurried int                      // compilations that wait for their place, or go on, for operators that are to run
	giveWay context.CancelFunc       // breaks off the check that is being compiled; nil: none is
}

// loaded is a compiled module.
type loaded struct {
	module   *Module
	compiled wazero.CompiledModule
	uses     int
}

var _ dataflow.Operators = (*Host)(nil)

// NewHost makes a host. The context is used while it is made.
func NewHost(ctx context.Context, opt Options) (*Host, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("operator host: %w", err)
	}
	config := wazero.NewRuntimeConfig() // the compiler where there is one for this machine
	if opt.Interpreter {
		config = wazero.NewRuntimeConfigInterpreter()
	}
	config = config.WithCoreFeatures(api.CoreFeaturesV2).
		WithMemoryLimitPages(MaxMemoryLimit / wasmPage).
		WithDebugInfoEnabled(false)
	if opt.measure == watched {
		config = config.WithCloseOnContextDone(true)
	}
	h := &Host{opt: opt, modules: map[string]*loaded{}, loading: map[string]chan struct{}{}, compiling: make(chan struct{}, 1)}
	if opt.CacheDir != "" {
		if h.cache, err = openDiskCache(opt.CacheDir); err != nil {
			return nil, fmt.Errorf("operator host: cache of compiled modules: %w", err)
		}
		config = config.WithCompilationCache(h.cache.wazero)
	}
	h.rt = wazero.NewRuntimeWithConfig(ctx, config)
	if err := defineImports(ctx, h.rt); err != nil {
		return nil, errors.Join(err, h.Close(ctx))
	}
	return h, nil
}

// Close frees the compiled modules. All instances must have been closed.
func (h *Host) Close(ctx context.Context) error {
	err := h.rt.Close(ctx)
	if h.cache != nil {
		err = errors.Join(err, h.cache.wazero.Close(ctx))
	}
	return err
}

// Tidy removes from the cache on disk what was compiled of modules whose digests are not to be kept. It returns how
// many bytes the cache has left and how many were freed. A module that is in use stays so.
func (h *Host) Tidy(keep func(digest string) bool) (left, freed int64, err error) {
	if h.cache == nil {
		return 0, 0, nil
	}
	if left, freed, err = h.cache.tidy(keep); err != nil {
		err = fmt.Errorf("operator host: cache of compiled modules: %w", err)
	}
	return left, freed, err
}

// Check prepares and compiles a module without making an instance: what [Host.New] would refuse is
// refused here. It takes seconds for a large module that is not in the cache. One module is compiled at a time; the
// others wait, or end with ctx. A check gives its place to an operator that is to run, and begins again after it.
func (h *Host) Check(ctx context.Context, wasm []byte) (*Module, error) {
	m, err := prepare(wasm, h.opt)
	if err != nil {
		return nil, err
	}
	for {
		compiled, gaveWay, err := h.check(ctx, m)
		switch {
		case gaveWay:
		case err != nil:
			return nil, err
		default:
			return m, compiled.Close(ctx)
		}
	}
}

func (h *Host) check(ctx context.Context, m *Module) (compiled wazero.CompiledModule, gaveWay bool, err error) {
	done, err := h.place(ctx, m)
	if err != nil {
		return nil, false, err
	}
	defer done()
	broken, giveWay := context.WithCancel(ctx)
	defer giveWay()
	h.mu.Lock()
	if gaveWay = h.hurried > 0; !gaveWay {
		h.giveWay = giveWay
	}
	h.mu.Unlock()
	if gaveWay {
		return nil, true, nil
	}
	compiled, err = h.compileNow(broken, m)
	h.mu.Lock()
	h.giveWay = nil
	h.mu.Unlock()
	return compiled, err != nil && broken.Err() != nil && ctx.Err() == nil, err
}

// place waits for the one place in which a module is compiled; done gives it back.
func (h *Host) place(ctx context.Context, m *Module) (done func(), err error) {
	select {
	case h.compiling <- struct{}{}:
		return func() { <-h.compiling }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("module %s waits for others to be compiled: %w", m.Digest, ctx.Err())
	}
}

// hurry says that a module is to be compiled, or has been, for an operator that is to run.
func (h *Host) hurry(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hurried += n; h.hurried > 0 && h.giveWay != nil {
		h.giveWay()
	}
}

// compile compiles a module for an operator that is to run.
func (h *Host) compile(ctx context.Context, m *Module) (wazero.CompiledModule, error) {
	h.hurry(1)
	defer h.hurry(-1)
	done, err := h.place(ctx, m)
	if err != nil {
		return nil, err
	}
	defer done()
	return h.compileNow(ctx, m)
}

func (h *Host) compileNow(ctx context.Context, m *Module) (wazero.CompiledModule, error) {
	limited, cancel := context.WithTimeout(ctx, maxCompile)
	defer cancel()
	limited = experimental.WithCompilationWorkers(limited, 2) // one alone would not look at the context
	compiled, err := h.rt.CompileModule(limited, m.code)
	var disk *fs.PathError
	if h.cache != nil && errors.As(err, &disk) {
		// Only what keeps it for the next start has failed, on a full disk for one: it is compiled, and found so now.
		compiled, err = h.rt.CompileModule(limited, m.code)
	}
	if limited.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("module %s takes longer than %s to compile", m.Digest, maxCompile)
	}
	if err != nil {
		return nil, fmt.Errorf("module %s is not valid: %w", m.Digest, err)
	}
	if h.cache != nil {
		_ = h.cache.record(m.Digest) // what is not in the index is compiled again at the next start, which is no harm
	}
	return compiled, nil
}

// acquire returns the compiled module of a digest; release gives it back.
func (h *Host) acquire(ctx context.Context, digest string) (*loaded, error) {
	for {
		l, wait := h.have(digest)
		if l != nil {
			return l, nil
		}
		if wait == nil {
			return h.loadNow(ctx, digest)
		}
		select {
		case <-wait: // whose load may have failed for a reason of its own
		case <-ctx.Done():
			return nil, fmt.Errorf("module %s: %w", digest, ctx.Err())
		}
	}
}

// have returns a module that is loaded, or what to wait for while somebody else loads it; neither: the caller does.
func (h *Host) have(digest string) (*loaded, chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.modules[digest]; l != nil {
		l.uses++
		h.idle = slices.DeleteFunc(h.idle, func(d string) bool { return d == digest })
		return l, nil
	}
	if wait := h.loading[digest]; wait != nil {
		return nil, wait
	}
	h.loading[digest] = make(chan struct{})
	return nil, nil
}

// loadNow loads a module for whoever waits for it.
func (h *Host) loadNow(ctx context.Context, digest string) (*loaded, error) {
	l, err := h.load(ctx, digest)
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.loading[digest])
	delete(h.loading, digest)
	if err != nil {
		return nil, err
	}
	l.uses = 1
	h.modules[digest] = l
	return l, nil
}

func (h *Host) load(ctx context.Context, digest string) (*loaded, error) {
	wasm, err := h.opt.Modules.Open(digest)
	if err != nil {
		return nil, fmt.Errorf("open module %s: %w", digest, err)
	}
	m, err := prepare(wasm, h.opt)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", digest, err)
	}
	if m.Digest != digest {
		return nil, fmt.Errorf("module %s: its bytes have the digest %s: the stored copy is damaged", digest, m.Digest)
	}
	compiled, err := h.compile(ctx, m)
	if err != nil {
		return nil, err
	}
	return &loaded{module: m, compiled: compiled}, nil
}

func (h *Host) release(ctx context.Context, l *loaded) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.uses--; l.uses > 0 {
		return nil
	}
	h.idle = append(h.idle, l.module.Digest)
	if len(h.idle) <= maxIdleModules {
		return nil
	}
	oldest := h.idle[0]
	h.idle = h.idle[1:]
	compiled := h.modules[oldest].compiled
	delete(h.modules, oldest)
	return compiled.Close(ctx)
}

// New makes an instance of an operator: a fresh one, or one that goes on from state. A failure of
// the module's own code is a [dataflow.GuestError].
func (h *Host) New(ctx context.Context, spec dataflow.OperatorSpec, state dataflow.StateReader) (dataflow.Operator, error) {
	in, err := h.newInstance(ctx, spec, state)
	if err != nil {
		return nil, err
	}
	return in, nil
}

func (h *Host) newInstance(ctx context.Context, spec dataflow.OperatorSpec, state dataflow.StateReader) (*Instance, error) {
	limits, err := h.opt.limits(spec.Limits)
	if err != nil {
		return nil, fmt.Errorf("operator %s: %w", spec.Name, err)
	}
	l, err := h.acquire(ctx, spec.Digest)
	if err != nil {
		return nil, fmt.Errorf("operator %s: %w", spec.Name, err)
	}
	in := &Instance{
		host: h, loaded: l, spec: spec, limits: limits, linear: linear{limit: uint64(limits.memory), compare: h.opt.compare}, keyed: newKeyedState(), timers: newTimers(),
		random: newRandom(spec.Task, spec.Name), counters: map[string]struct{}{}, logTokens: limits.logBurst(),
	}
	in.ctx = experimental.WithMemoryAllocator(context.WithoutCancel(ctx), &in.linear)
	in.calls = callContext{context.Background(), in}
	if err := in.instantiate(); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	switch {
	case state == nil:
		err = in.initialize()
	case spec.Fresh:
		err = in.inherit(state)
	default:
		err = in.restore(state)
	}
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}
