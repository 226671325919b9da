package wasmops

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-stream/weir/dataflow"
)

// counting counts how often each module is opened.
type counting struct {
	library
	opened atomic.Int64
}

func (c *counting) Open(digest string) ([]byte, error) {
	c.opened.Add(1)
	return c.library.Open(digest)
}

// variant is the minimal operator with n more functions.
func variant(n int) []byte {
	b := minimal()
	for range n {
		b.fn("", sig(nil))
	}
	return b.wasm()
}

func TestInstancesShareAModule(t *testing.T) {
	modules := &counting{library: shelf(variant(0))}
	h := newHost(t, Options{Modules: modules})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			in, err := h.New(context.Background(), dataflow.OperatorSpec{Name: "o", Digest: Digest(variant(0))}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if err := in.Process(batch(1, "x"), nil); err != nil {
				t.Error(err)
			}
			if err := in.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := modules.opened.Load(); n != 1 {
		t.Errorf("module was opened %d times", n)
	}
}

func TestIdleModulesAreBounded(t *testing.T) {
	modules := &counting{library: library{}}
	h := newHost(t, Options{Modules: modules})
	use := func(n int) {
		t.Helper()
		wasm := variant(n)
		modules.library[Digest(wasm)] = wasm
		closeInstance(t, newInstance(t, h, dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm)}, nil))
	}
	for n := range maxIdleModules + 3 {
		use(n)
	}
	if len(h.modules) != maxIdleModules || len(h.idle) != maxIdleModules {
		t.Errorf("%d modules and %d idle, want %d", len(h.modules), len(h.idle), maxIdleModules)
	}
	before := modules.opened.Load()
	use(maxIdleModules + 2) // still there
	if modules.opened.Load() != before {
		t.Error("a module that was used a moment ago was opened again")
	}
	use(0) // longest idle, closed
	if modules.opened.Load() != before+1 {
		t.Error("the module that was idle for longest was kept")
	}
}

func TestDamagedModuleIsRefused(t *testing.T) {
	digest := Digest(variant(1))
	h := newHost(t, Options{Modules: library{digest: variant(2)}})
	_, err := h.New(context.Background(), dataflow.OperatorSpec{Name: "o", Digest: digest}, nil)
	if err == nil || !strings.Contains(err.Error(), "the stored copy is damaged") {
		t.Errorf("error %v", err)
	}
	h = newHost(t, Options{Modules: library{digest: []byte("junk")}})
	if _, err = h.New(context.Background(), dataflow.OperatorSpec{Name: "o", Digest: digest}, nil); err == nil {
		t.Error("junk is taken for a module")
	}
}

// TestFailedInstanceIsReleased checks that what fails to start keeps no module.
func TestFailedInstanceIsReleased(t *testing.T) {
	wasm := minimal().body(exportInit, 0).wasm()
	h := newHost(t, Options{Modules: shelf(wasm)})
	for range 3 {
		_, err := h.New(context.Background(), dataflow.OperatorSpec{Name: "o", Digest: Digest(wasm)}, nil)
		if guest := (*dataflow.GuestError)(nil); !errors.As(err, &guest) {
			t.Fatalf("error %v", err)
		}
	}
	if l := h.modules[Digest(wasm)]; l.uses != 0 {
		t.Errorf("%d uses of a module without an instance", l.uses)
	}
}

// cachedFiles are the compiled modules in a cache.
func cachedFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "wazero-*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func useCache(t *testing.T, dir string) {
	t.Helper()
	ctx := context.Background()
	h, err := NewHost(ctx, Options{CacheDir: dir, Modules: shelf(variant(0))})
	if err != nil {
		t.Fatal(err)
	}
	in := newInstance(t, h, dataflow.OperatorSpec{Name: "o", Digest: Digest(variant(0))}, nil)
	if _, err := process(in, batch(1, "x")); err != nil {
		t.Error(err)
	}
	closeInstance(t, in)
	if err := h.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestCacheIsUsed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "modules")
	useCache(t, dir)
	files := cachedFiles(t, dir)
	if len(files) != 1 {
		t.Fatalf("%d files in the cache", len(files))
	}
	before, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	useCache(t, dir)
	after, err := os.Stat(files[0])
	if err != nil || !os.SameFile(before, after) || len(cachedFiles(t, dir)) != 1 {
		t.Errorf("the entry was written again: %v", err)
	}
}

// TestDamagedCacheIsCompiledAgain flips bytes of the cached machine code and of its header, and
// damages the index: none of it may reach the processor or stop the host.
func TestDamagedCacheIsCompiledAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "modules")
	useCache(t, dir)
	file := cachedFiles(t, dir)[0]
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for at := 0; at < len(good); at += max(1, len(good)/40) {
		bad := slices.Clone(good)
		bad[at] ^= 0x10
		write(file, bad)
		useCache(t, dir)
		if now, err := os.ReadFile(file); err != nil || slices.Equal(now, bad) {
			t.Fatalf("byte %d flipped: the damaged entry was kept: %v", at, err)
		}
	}
	write(file, good[:len(good)/2])
	useCache(t, dir)
	write(filepath.Join(dir, cacheIndex), []byte("{"))
	useCache(t, dir)
	write(filepath.Join(dir, "leftover.tmp"), []byte("x"))
	useCache(t, dir)
	if _, err := os.Stat(filepath.Join(dir, "leftover.tmp")); err == nil {
		t.Error("an unknown file was kept")
	}
}

// TestCacheThatCannotBeWritten: a module is compiled and used all the same, as on a full disk.
func TestCacheThatCannotBeWritten(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "modules")
	h, err := NewHost(ctx, Options{CacheDir: dir, Modules: shelf(variant(0))})
	if err != nil {
		t.Fatal(err)
	}
	// Nothing is there to be read, and nothing can be written.
	made, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(made) != 1 {
		t.Fatal(made, err)
	}
	if err := errors.Join(os.Remove(made[0]), os.Symlink(filepath.Join(dir, "nowhere"), made[0])); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		in := newInstance(t, h, dataflow.OperatorSpec{Name: "o", Digest: Digest(variant(0))}, nil)
		if _, err := process(in, batch(1, "x")); err != nil {
			t.Error(err)
		}
		closeInstance(t, in)
	}
	if err := h.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestCacheThatCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := NewHost(context.Background(), Options{CacheDir: file}); err == nil || !strings.Contains(err.Error(), "cache of compiled modules") {
		t.Errorf("error %v", err)
	}
}

// TestOneCompilationAtATime: while one goes on, others wait, or end with their context; what is compiled already is to be
// had meanwhile.
func TestOneCompilationAtATime(t *testing.T) {
	modules := &counting{library: shelf(variant(0), variant(1))}
	h := newHost(t, Options{Modules: modules, CacheDir: t.TempDir()})
	spec := func(n int) dataflow.OperatorSpec {
		return dataflow.OperatorSpec{Name: "o", Digest: Digest(variant(n))}
	}
	closeInstance(t, newInstance(t, h, spec(0), nil))
	h.compiling <- struct{}{} // one goes on
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 6)
	for range 3 {
		go func() {
			_, err := h.Check(ctx, variant(1))
			ended <- err
		}()
		go func() {
			_, err := h.New(ctx, spec(1), nil)
			ended <- err
		}()
	}
	closeInstance(t, newInstance(t, h, spec(0), nil))
	cancel()
	for range 6 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("while another module is compiled: %v", err)
		}
	}
	<-h.compiling
	closeInstance(t, newInstance(t, h, spec(1), nil))
}

// TestTidyCache: what was compiled of a module goes with it, and stays away; what is kept is found at the next start.
func TestTidyCache(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, Options{CacheDir: dir})
	for n := range 3 {
		if _, err := h.Check(context.Background(), variant(n)); err != nil {
			t.Fatal(err)
		}
	}
	files := func(h *Host) (modules []string) {
		t.Helper()
		found, err := h.cache.list()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			modules = append(modules, h.cache.files[f.path].Module)
		}
		slices.Sort(modules)
		return modules
	}
	if got := files(h); len(slices.Compact(got)) != 3 || got[0] == "" {
		t.Fatalf("compiled are %q", got)
	}
	left, freed, err := h.Tidy(func(digest string) bool { return digest == Digest(variant(1)) })
	if err != nil || left == 0 || freed == 0 {
		t.Fatalf("%d left, %d freed, %v", left, freed, err)
	}
	want := []string{Digest(variant(1))}
	if got := files(h); !slices.Equal(got, want) {
		t.Errorf("compiled are %q", got)
	}
	again := newHost(t, Options{CacheDir: dir})
	if got := files(again); !slices.Equal(got, want) {
		t.Errorf("at the next start: %q", got)
	}
	if now, freed, err := again.Tidy(func(string) bool { return true }); now != left || freed != 0 || err != nil {
		t.Errorf("%d left, were %d; %d freed; %v", now, left, freed, err)
	}
	bare, err := NewHost(context.Background(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := bare.Tidy(nil); err != nil {
		t.Errorf("without a cache: %v", err)
	}
	if err := bare.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestChecksGiveWay: an operator that is to run does not wait for a module that is only checked; the check begins again.
func TestChecksGiveWay(t *testing.T) {
	h := newHost(t, Options{Modules: shelf(variant(0))})
	h.compiling <- struct{}{} // a check goes on
	broken, giveWay := context.WithCancel(t.Context())
	h.mu.Lock()
	h.giveWay = giveWay
	h.mu.Unlock()
	made := make(chan error, 1)
	go func() {
		in, err := h.newInstance(context.Background(), dataflow.OperatorSpec{Name: "o", Digest: Digest(variant(0))}, nil)
		if err == nil {
			err = in.Close()
		}
		made <- err
	}()
	<-broken.Done()
	h.mu.Lock()
	h.giveWay = nil
	h.mu.Unlock()

	<-h.compiling
	if err := <-made; err != nil {
		t.Error(err)
	}

	// A check that has its turn while an operator waits lets it pass.
	m, err := prepare(variant(1), h.opt)
	if err != nil {
		t.Fatal(err)
	}
	h.hurry(1)
	if _, gaveWay, err := h.check(t.Context(), m); !gaveWay || err != nil {
		t.Errorf("gave way: %v, %v", gaveWay, err)
	}
	h.hurry(-1)
	compiled, gaveWay, err := h.check(t.Context(), m)
	if gaveWay || err != nil {
		t.Fatalf("gave way: %v, %v", gaveWay, err)
	}
	if err := compiled.Close(t.Context()); err != nil {
		t.Error(err)
	}

	// One that was broken off begins again.
	checked := make(chan error, 1)
	go func() {
		_, err := h.Check(t.Context(), variant(50_000))
		checked <- err
	}()
	for broken := false; !broken && len(checked) == 0; runtime.Gosched() {
		h.mu.Lock()
		if broken = h.giveWay != nil; broken {
			h.giveWay()
		}
		h.mu.Unlock()
	}
	if err := <-checked; err != nil {
		t.Error(err)
	}
}
