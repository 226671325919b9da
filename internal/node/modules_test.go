package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
	"github.com/weir-stream/weir/wasmops"
	"github.com/weir-stream/weir/wasmops/wasmtest"
)

// shelf is a control plane and agents that do nothing by themselves, so that what they do to modules can be put in order.
type shelf struct {
	t    *testing.T
	ctx  context.Context
	conn *wnats.Conn
}

func newShelf(t *testing.T) *shelf {
	ctx, conn := controlPlane(t)
	return &shelf{t, ctx, conn}
}

func (s *shelf) agent(name string) *Agent {
	s.t.Helper()
	dir := s.t.TempDir()
	a := &Agent{conn: s.conn, name: name, log: slog.New(slog.DiscardHandler), began: time.Now(), jobs: map[string]*hostedJob{}, wakeLeader: make(chan struct{}, 1)}
	var err error
	if a.blobs, err = storage.OpenBlobs(filepath.Join(dir, "blobs")); err != nil {
		s.t.Fatal(err)
	}
	if a.uploads, _, err = storage.OpenUploads(filepath.Join(dir, "uploads"), uploadLimits); err != nil {
		s.t.Fatal(err)
	}
	if a.copies, _, err = storage.OpenCopies(filepath.Join(dir, "copies")); err != nil {
		s.t.Fatal(err)
	}
	if a.host, err = wasmops.NewHost(s.ctx, wasmops.Options{Modules: moduleFiles{a.blobs}, CacheDir: filepath.Join(dir, "cache")}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := errors.Join(a.host.Close(context.Background()), a.copies.Close()); err != nil {
			s.t.Error(err)
		}
	})
	a.setCluster("here")
	return a
}

// module is a guest like no other letter's.
func module(letter string) []byte {
	return wasmtest.NewGuest().Data(16, letter).Body("weir_process", wasmtest.Code(wasmtest.Pass, wasmtest.OK)...).Wasm()
}

func digestOf(letter string) string { return wasmops.Digest(module(letter)) }

func (s *shelf) push(a *Agent, version, letter string) error {
	_, err := a.PushOperator(s.ctx, "op", version, "", bytes.NewReader(module(letter)))
	return err
}

func (s *shelf) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// record is a job's whose operator has a module.
func record(name string, gen abs.Generation, module, letter string) jobRecord {
	plan := &job.Physical{Job: name, Generation: gen, Tasks: []job.Task{{ID: "t", Agent: "a", Ops: []job.Op{{Name: "op", Module: module, Digest: digestOf(letter)}}}}}
	return jobRecord{Name: name, Generation: gen, Revision: 1, State: jobRunning, Plan: plan, Modules: map[string]string{module: digestOf(letter)}}
}

func (s *shelf) put(rec jobRecord) {
	s.t.Helper()
	_, err := s.conn.KV(wnats.Jobs).Put(s.ctx, wnats.Key(rec.Name), mustJSON(rec))
	s.must(err)
}

// stored says whether a module is in the object store, whole.
func (s *shelf) stored(letter string) bool {
	s.t.Helper()
	r, err := s.conn.Objects(wnats.Modules).Get(s.ctx, digestOf(letter))
	if errors.Is(err, wnats.ErrNotFound) {
		return false
	}
	s.must(err)
	b, err := io.ReadAll(r)
	s.must(err)
	if !bytes.Equal(b, module(letter)) {
		s.t.Fatalf("module %s has other bytes", letter)
	}
	return true
}

func (s *shelf) wantStored(what string, letters string) {
	s.t.Helper()
	for _, l := range []string{"a", "b", "c"} {
		if want := strings.Contains(letters, l); s.stored(l) != want {
			s.t.Errorf("%s: module %s is in the store: %v", what, l, !want)
		}
	}
}

// due lets a coordinator look twice, and returns what it would collect.
func (s *shelf) due(sweep *storeSweep) []wnats.Object {
	s.t.Helper()
	first, err := sweep.look(s.ctx, 0)
	s.must(err)
	early, err := sweep.look(s.ctx, moduleRest-1)
	s.must(err)
	if len(first)+len(early) > 0 {
		s.t.Fatalf("due before its time: %v %v", first, early)
	}
	due, err := sweep.look(s.ctx, moduleRest)
	s.must(err)
	return due
}

func (s *shelf) collect(a *Agent) {
	s.t.Helper()
	sweep := &storeSweep{a: a}
	s.must(sweep.collect(s.ctx, s.due(sweep)))
}

// TestModulesThatNobodyNeeds: a version, a job, what comes next for it, a trial and what it may go back to, and a part
// of an older generation keep a module; nothing else does.
func TestModulesThatNobodyNeeds(t *testing.T) {
	s := newShelf(t)
	a := s.agent("a")
	s.must(s.push(a, "1", "a"))
	for _, l := range []string{"b", "c"} { // not yet named
		_, err := a.PushModule(s.ctx, "", bytes.NewReader(module(l)))
		s.must(err)
	}
	s.put(record("j", 1, "./b.wasm", "b"))
	s.collect(a)
	s.wantStored("a version, a job", "ab")

	next := record("j", 2, "./a.wasm", "a")
	rec := record("j", 1, "./b.wasm", "b")
	rec.State, rec.Next = jobStopping, &next
	s.put(rec)
	if _, err := a.RemoveOperator(s.ctx, "op", ""); err == nil || !strings.Contains(err.Error(), "op@1 is used by job j") {
		t.Fatalf("what comes next uses it: %v", err)
	}
	_, err := a.PushModule(s.ctx, "", bytes.NewReader(module("c")))
	s.must(err)
	last := record("j", 2, "./c.wasm", "c")
	rec.Next = &last
	s.put(rec)
	s.collect(a)
	s.wantStored("what comes next", "abc")

	next.Earlier = rec.earlier()
	s.put(next)
	_, err = s.conn.KV(wnats.Checkpoints).Create(s.ctx, epochKey("j", 7), mustJSON(abs.EpochRecord{
		Epoch: 7, Term: 1, Generation: 1, State: abs.Replicated, Parts: map[abs.TaskID]abs.Part{"t": {Epoch: 7, Generation: 1, Version: 3}},
	}))
	s.must(err)
	if kept, err := a.keepEarlier(s.ctx, jobRecord{Name: "j", Generation: 4, Earlier: map[string]abs.Generation{"x": 1, "y": 2, "z": 3}}); err != nil || fmt.Sprint(kept) != "map[x:1 y:2 z:3]" {
		t.Errorf("%v, %v", kept, err)
	}
	s.collect(a)
	s.wantStored("a part of an older generation", "ab")
	for what, rec := range map[string]abs.EpochRecord{
		"what a task began with": {Epoch: 7, Generation: 2, State: abs.Replicated, Initial: true, Parts: map[abs.TaskID]abs.Part{"t": {Epoch: 7, Generation: 2}}},
		"the part of one away":   {Epoch: 7, Generation: 2, State: abs.Replicated, Parts: map[abs.TaskID]abs.Part{"t": {Epoch: 6, Generation: 2}}},
	} {
		_, err = s.conn.KV(wnats.Checkpoints).Put(s.ctx, epochKey("j", 7), mustJSON(rec))
		s.must(err)
		s.collect(a)
		s.wantStored(what, "ab")
	}
	_, err = s.conn.KV(wnats.Checkpoints).Put(s.ctx, epochKey("j", 7), mustJSON(abs.EpochRecord{
		Epoch: 7, Generation: 2, State: abs.Replicated, Parts: map[abs.TaskID]abs.Part{"t": {Epoch: 7, Generation: 2}},
	}))
	s.must(err)
	s.collect(a)
	s.wantStored("no such part", "a")

	s.must(s.push(a, "2", "b"))
	s.must(s.push(a, "3", "c"))
	rec = record("j", 3, "op@1", "a")
	v := func(letter string) []dataflow.OpVersion {
		return []dataflow.OpVersion{{Name: "op", Digest: digestOf(letter)}}
	}
	rec.Upgrade = &upgradeRecord{Number: 1, Ops: v("b"), Used: []string{digestOf("b")}, Trial: &trialRecord{Changed: []string{"op"}}}
	rec.Upgrade.Trial.Before.Ops = v("a")
	for _, now := range []jobRecord{rec, rec.afterTrial(true, "", 1), rec.afterTrial(false, "", 1)} {
		s.put(now)
		for _, version := range []string{"1", "2"} {
			if _, err := a.RemoveOperator(s.ctx, "op", version); err == nil {
				t.Errorf("version %s is removed, upgrade %+v", version, now.Upgrade)
			}
		}
	}
	_, err = a.RemoveOperator(s.ctx, "op", "3")
	s.must(err)
	s.collect(a)
	s.wantStored("a trial", "ab")
	rec.State = jobDeleted
	s.put(rec)
	_, err = a.RemoveOperator(s.ctx, "op", "")
	s.must(err)
	s.collect(a)
	s.wantStored("nothing", "")

	s.must(s.push(a, "1", "a"))
	_, err = a.RemoveOperator(s.ctx, "op", "1")
	s.must(err)
	_, err = s.conn.KV(wnats.Jobs).Put(s.ctx, wnats.Key("odd"), []byte("{"))
	s.must(err)
	if _, err := (&storeSweep{a: a}).look(s.ctx, moduleRest); err == nil {
		t.Error("a record that cannot be read names nothing")
	}
	if _, err := a.RemoveOperator(s.ctx, "op", ""); err == nil {
		t.Error("a record that cannot be read uses nothing")
	}
	s.wantStored("a record that cannot be read", "a")
}

// TestCollectionMeetsAPush: at whatever point of a collection a module is pushed or a job applied, the module is there
// afterwards, whole. Steps that are in one line happen between the same steps of the other side.
func TestCollectionMeetsAPush(t *testing.T) {
	s := newShelf(t)
	a, b := s.agent("a"), s.agent("b")
	one := &storeSweep{a: a}
	old := func() []wnats.Object { // a module that was registered once
		s.must(s.push(b, "1", "a"))
		_, err := b.RemoveOperator(s.ctx, "op", "1")
		s.must(err)
		one.seen = nil
		due := s.due(one)
		if len(due) != 1 {
			t.Fatalf("due is %v", due)
		}
		return due
	}
	check := func(what string) {
		t.Helper()
		if !s.stored("a") {
			t.Errorf("%s: the module is gone", what)
		}
		_, err := b.RemoveOperator(s.ctx, "op", "")
		if err != nil && !strings.Contains(err.Error(), "no operator") {
			t.Fatal(err)
		}
		s.must(s.conn.KV(wnats.Jobs).Delete(s.ctx, wnats.Key("j")))
	}

	due := old()
	s.must(s.push(b, "1", "a"))
	s.must(one.collect(s.ctx, due))
	check("pushed after the records were read")

	_ = old()
	s.must(s.push(b, "1", "a"))
	due, err := one.look(s.ctx, 2*moduleRest)
	if s.must(err); len(due) > 0 {
		t.Fatalf("due is %v", due)
	}
	check("pushed before that")

	due = old()
	s.must(b.storeModule(s.ctx, digestOf("a")))
	s.must(one.collect(s.ctx, due))
	if !s.stored("a") {
		t.Error("collected between the module and the record")
	}
	if again, err := one.look(s.ctx, 2*moduleRest-1); err != nil || len(again) > 0 {
		t.Errorf("due at once: %v, %v", again, err)
	}
	s.must(s.push(b, "1", "a"))
	check("collected between the module and the record")

	due = old()
	s.must(one.collect(s.ctx, due))
	if s.stored("a") {
		t.Fatal("the collection did not take it")
	}
	_, err = b.register(s.ctx, operatorRecord{Name: "op", Version: "1", Digest: digestOf("a")})
	s.must(err)
	check("collected by the time the record is written")

	due = old()
	s.must(b.putJob(s.ctx, record("j", 1, "./a.wasm", "a"), nil))
	s.must(one.collect(s.ctx, due))
	check("a job was applied")

	due = old()
	s.put(record("j", 1, "./a.wasm", "a"))
	s.must(one.collect(s.ctx, due))
	s.must(b.claimModules(s.ctx, record("j", 1, "./a.wasm", "a"), nil))
	check("collected between a job's record and its claim")

	// Two coordinators, of which one does not know that its term is over.
	due = old()
	s.must(one.collect(s.ctx, due))
	s.must(s.push(b, "1", "a"))
	s.must(one.collect(s.ctx, due))
	check("a second coordinator")

	due = old()
	s.must(one.collect(s.ctx, due))
	c := s.agent("c") // which has no copy
	if err := c.claimModules(s.ctx, record("j", 1, "./a.wasm", "a"), nil); err == nil || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("a module that is nowhere: %v", err)
	}
	if err := c.haveModules(s.ctx, record("j", 1, "./a.wasm", "a")); err == nil || !strings.Contains(err.Error(), "is not there any more") {
		t.Errorf("before the job's record is written: %v", err)
	}
}

// TestRemoveMeetsApply: a version that is removed while a job that names it is applied stays.
func TestRemoveMeetsApply(t *testing.T) {
	s := newShelf(t)
	a, b := s.agent("a"), s.agent("b")
	s.must(s.push(a, "1", "a"))
	s.must(a.setRemoved(s.ctx, "op", "1", 5))
	s.must(b.putJob(s.ctx, record("j", 1, "op@1", "a"), nil))
	if list, err := a.Operators(s.ctx); err != nil || len(list) != 1 {
		t.Fatalf("the job's record comes after the mark: %v, %v", list, err)
	}
	s.must(s.push(a, "2", "b"))
	list, err := a.operatorRecords(s.ctx, "")
	s.must(err)
	if err := a.removeOperators(s.ctx, list); err == nil || !strings.Contains(err.Error(), "op@1 is used by job j") {
		t.Fatalf("before it: %v", err)
	}
	if list, err := a.Operators(s.ctx); err != nil || len(list) != 2 {
		t.Fatalf("the job's record comes before the mark: %v, %v", list, err)
	}
	_, err = a.RemoveOperator(s.ctx, "op", "2")
	s.must(err)
	for i := range 20 {
		s.must(s.conn.KV(wnats.Jobs).Delete(s.ctx, wnats.Key("j")))
		s.must(s.push(a, "1", "a"))
		removed := make(chan error, 1)
		go func() {
			_, err := a.RemoveOperator(s.ctx, "op", "1")
			removed <- err
		}()
		s.must(b.putJob(s.ctx, record("j", 1, "op@1", "a"), nil))
		err := <-removed
		if list, _ := a.Operators(s.ctx); len(list) != 1 {
			t.Fatalf("round %d: a job uses a version that is removed (%v)", i, err)
		}
	}
}

// TestRemovedVersionsStandForTheirBytes.
func TestRemovedVersionsStandForTheirBytes(t *testing.T) {
	s := newShelf(t)
	a := s.agent("a")
	s.must(s.push(a, "1", "a"))
	s.must(s.push(a, "2", "b"))
	if _, err := a.RemoveOperator(s.ctx, "op", "3"); err == nil || !strings.Contains(err.Error(), "no operator op@3") {
		t.Errorf("%v", err)
	}
	if _, err := a.RemoveOperator(s.ctx, "none", ""); err == nil || !strings.Contains(err.Error(), "no operator none") {
		t.Errorf("%v", err)
	}
	gone, err := a.RemoveOperator(s.ctx, "op", "")
	if err != nil || len(gone) != 2 {
		t.Fatalf("%v, %v", gone, err)
	}
	if list, err := a.Operators(s.ctx); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := a.Operator(s.ctx, "op"); err == nil {
		t.Error("it is shown")
	}
	if _, err := a.RemoveOperator(s.ctx, "op", "1"); err == nil {
		t.Error("it is removed twice")
	}
	file, err := job.Parse("job.yaml", []byte("name: j\nsources: {s: {generator: {records: 1, rate: 1}}}\noperators: {o: {wasm: op@1, from: s}}\nsinks: {k: {log: {}, from: o}}\n"))
	s.must(err)
	if modules, err := a.resolve(s.ctx, file, api.JobSource{}); err != nil || len(modules) != 0 {
		t.Errorf("a job names it: %v, %v", modules, err)
	}
	if err := s.push(a, "1", "c"); err == nil || !strings.Contains(err.Error(), "op@1 was removed, and was other bytes") {
		t.Errorf("other bytes: %v", err)
	}
	s.must(s.push(a, "1", "a"))
	if list, err := a.Operators(s.ctx); err != nil || len(list) != 1 || list[0].Version != "1" {
		t.Errorf("%v, %v", list, err)
	}

	// What an agent that was away knows of it is older.
	stale := mustJSON(operatorRecord{Name: "op", Version: "2", Digest: digestOf("b")})
	s.must(a.copies.Put(copyOperator, wnats.Key("op", "2"), stale))
	s.must(a.mergeOperators(s.ctx))
	if rec, err := a.operatorRecord(s.ctx, "op", "2"); err != nil || rec.RemovedMS == 0 {
		t.Errorf("%+v, %v", rec, err)
	}
	// A control plane that has lost its files learns of it from an agent.
	known, err := s.conn.KV(wnats.Operators).Get(s.ctx, wnats.Key("op", "2"))
	s.must(err)
	s.must(a.copies.Put(copyOperator, known.Key, known.Value))
	_, err = s.conn.KV(wnats.Operators).Put(s.ctx, known.Key, stale)
	s.must(err)
	s.must(a.mergeOperators(s.ctx))
	if rec, err := a.operatorRecord(s.ctx, "op", "2"); err != nil || rec.RemovedMS == 0 {
		t.Errorf("%+v, %v", rec, err)
	}
}

// TestCopiesThatNobodyNeeds: an agent keeps what its own records name, however old they are, and gives back the rest,
// with what was compiled of it, once it has heard of changes for long enough.
func TestCopiesThatNobodyNeeds(t *testing.T) {
	s := newShelf(t)
	a := s.agent("a")
	for _, l := range []string{"a", "b", "c"} {
		s.must(s.push(a, l, l))
	}
	wants := func(what string, now time.Duration, letters string) {
		t.Helper()
		s.must(a.collectCopies(now))
		names, err := a.blobs.List()
		s.must(err)
		for _, l := range []string{"a", "b", "c"} {
			_, err := a.blobs.Get(digestOf(l))
			if has := err == nil; has != strings.Contains(letters, l) || err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: copy of %s: %v", what, l, err)
			}
		}
		kept, _, err := a.host.Tidy(func(digest string) bool {
			if !slices.Contains(names, digest) {
				t.Errorf("%s: the compiled code of %s is there", what, digest)
			}
			return true
		})
		if s.must(err); (kept > 0) != (letters != "") {
			t.Errorf("%s: %d bytes of compiled code", what, kept)
		}
	}
	later := a.stopwatch() + moduleRest
	// The agent was away when its job was given another module; its record is the old one.
	old := record("j", 1, "./a.wasm", "a")
	h := &hostedJob{a: a, name: "j", rec: old}
	a.jobs["j"] = h
	s.must(a.copies.Put(copyOperator, wnats.Key("op", "b"), mustJSON(operatorRecord{Name: "op", Version: "b", Digest: digestOf("b")})))
	wants("too early", moduleRest-1, "abc")
	a.setCluster("")
	a.modules.inTouch = 0
	wants("out of touch", later, "abc")
	a.setCluster("here")
	a.modules.inTouch = later // it has just come back
	wants("back", later, "abc")
	wants("an old job, a version", later+moduleRest, "ab")
	if a.modules.space.goneCopies != int64(len(module("c"))) || a.modules.space.goneCompiled == 0 {
		t.Errorf("%+v", a.modules.space)
	}
	h.rec = record("j", 2, "./b.wasm", "b")
	h.rec.Earlier = old.earlier()
	wants("a part of the old one", later+moduleRest, "ab")
	h.rec.Earlier = nil
	a.modules.touched = map[string]time.Duration{digestOf("a"): later + moduleRest}
	wants("wanted by a task that starts", later+moduleRest, "ab")
	wants("a new job, a version", later+2*moduleRest, "b")
	s.must(a.copies.Put(copyOperator, wnats.Key("op", "b"), mustJSON(operatorRecord{Name: "op", Version: "b", Digest: digestOf("b"), RemovedMS: 1})))
	wants("a new job", later+2*moduleRest, "b")
	h.rec.State = jobDeleted
	wants("nothing", later+2*moduleRest, "")
	s.must(a.fetchModule(s.ctx, digestOf("b")))
	a.modules.touched[digestOf("b")] = later + 2*moduleRest
	h.rec.State = jobRunning
	_, err := a.host.Check(s.ctx, module("b"))
	s.must(err)
	wants("fetched again", later+2*moduleRest, "b")
	names := ""
	for _, f := range a.moduleFamilies() {
		for _, sample := range f.Samples {
			names += fmt.Sprintf("%s %s %v\n", f.Name, sample.Labels[0].Value, sample.Value > 0)
		}
	}
	if want := "weir_modules_bytes compiled true\nweir_modules_bytes copies true\nweir_modules_bytes uploads false\nweir_modules_collected_bytes_total compiled true\n" +
		"weir_modules_collected_bytes_total copies true\nweir_modules_collected_bytes_total store false\n"; names != want {
		t.Errorf("%s", names)
	}
}

// TestClaimsAfterALoss: a control plane that has lost its files gets the modules of an agent's jobs back, although it had
// begun to collect them.
func TestClaimsAfterALoss(t *testing.T) {
	s := newShelf(t)
	a := s.agent("a")
	_, err := a.PushModule(s.ctx, "", bytes.NewReader(module("a")))
	s.must(err)
	sweep := &storeSweep{a: s.agent("b")}
	due := s.due(sweep)
	s.put(record("j", 1, "./a.wasm", "a")) // as a brings it back
	s.must(a.claimCopies(s.ctx))
	s.must(sweep.collect(s.ctx, due)) // which had read the records before
	s.wantStored("claimed", "a")
	s.must(s.conn.Objects(wnats.Modules).Delete(s.ctx, digestOf("a")))
	s.must(a.claimCopies(s.ctx))
	s.wantStored("stored again", "a")
}

// endless is the content of a module or pack that never comes to its end: it is broken off after so many pieces.
type endless struct {
	pieces int
	cut    func()
}

func (e *endless) Read(b []byte) (int, error) {
	if e.pieces--; e.pieces == 0 {
		e.cut()
	}
	return len(b), nil
}

// TestRemainsAreRemoved: what an agent has left that lost its power while it stored an object goes from either store.
func TestRemainsAreRemoved(t *testing.T) {
	s := newShelf(t)
	sweep := &storeSweep{a: s.agent("a")}
	for _, store := range []wnats.Store{wnats.Modules, wnats.Snapshots} {
		_, err := s.conn.Objects(store).Put(s.ctx, "whole", strings.NewReader("whole"))
		s.must(err)
		ctx, cut := context.WithCancel(s.ctx)
		if _, err := s.conn.Objects(store).Put(ctx, "part", &endless{20, cut}); err == nil {
			t.Fatal("an object that was broken off is stored")
		}
		if n, err := sweep.clean(s.ctx, remainsRest); n != 0 || err != nil {
			t.Fatalf("%d removed that may still be under way, %v", n, err)
		}
		for n := 0; n == 0; { // the server may still be taking in the last pieces
			n, err = sweep.clean(s.ctx, 0)
			s.must(err)
		}
		_, err = s.conn.Objects(store).Has(s.ctx, "whole")
		s.must(err)
	}
}
