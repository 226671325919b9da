package nats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestEnsure(t *testing.T) {
	c := connect(t, ConnectOptions{Server: startServer(t, ServerOptions{})})
	ctx := testContext(t)
	type result struct {
		cl  Cluster
		err error
	}
	results := make(chan result, 4)
	for range cap(results) { // agents that boot together
		go func() {
			cl, err := c.Ensure(ctx)
			results <- result{cl, err}
		}()
	}
	var id string
	created := map[string]int{}
	for range cap(results) {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		if id == "" {
			id = r.cl.ID
		}
		if r.cl.ID != id || id == "" {
			t.Errorf("identities %q and %q", id, r.cl.ID)
		}
		for _, name := range r.cl.Created {
			created[name]++
		}
	}
	for _, b := range buckets {
		if created[string(b)] != 1 {
			t.Errorf("bucket %s created %d times", b, created[string(b)])
		}
	}
	if err := c.control.js.DeleteStream(ctx, "KV_weir-jobs"); err != nil {
		t.Fatal(err)
	}
	cl, err := c.Ensure(ctx)
	if err != nil || cl.ID == id || !slices.Equal(cl.Created, []string{"jobs"}) {
		t.Errorf("after the loss of a bucket: %+v, %v", cl, err)
	}
	id = cl.ID
	if again, err := c.Ensure(ctx); err != nil || again.ID != id || again.Created != nil {
		t.Errorf("a second time: %+v, %v", again, err)
	}
	st, err := c.control.js.Stream(ctx, "KV_weir-checkpoints")
	if err == nil {
		err = st.Purge(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if cl, err = c.Ensure(ctx); err != nil || cl.ID == id || !slices.Equal(cl.Created, []string{"checkpoints"}) {
		t.Errorf("after the loss of what was in a bucket: %+v, %v", cl, err)
	}
	id = cl.ID
	if err := c.control.js.DeleteObjectStore(ctx, "weir-modules"); err != nil {
		t.Fatal(err)
	}
	if cl, err = c.Ensure(ctx); err != nil || cl.ID == id || !slices.Equal(cl.Created, []string{"modules"}) {
		t.Errorf("after the loss of an object store: %+v, %v", cl, err)
	}
	id = cl.ID
	if err := c.control.js.DeleteStream(ctx, "KV_weir-meta"); err != nil {
		t.Fatal(err)
	}
	if cl, err := c.Ensure(ctx); err != nil || cl.ID == id {
		t.Errorf("after the loss of all: %+v, %v", cl, err)
	}
}

func TestKeyValue(t *testing.T) {
	kv, ctx := inProcess(t).KV(Jobs), testContext(t)
	key := Key("job", "ä b/c.*>", "")
	fails := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
	}
	_, err := kv.Get(ctx, key)
	fails(err, ErrNotFound)
	_, err = kv.Update(ctx, key, []byte("v"), 12)
	fails(err, ErrConflict)
	rev, err := kv.Create(ctx, key, []byte("one"))
	fails(err, nil)
	_, err = kv.Create(ctx, key, []byte("again"))
	fails(err, ErrConflict)
	next, err := kv.Update(ctx, key, []byte("two"), rev)
	fails(err, nil)
	_, err = kv.Update(ctx, key, []byte("stale"), rev)
	fails(err, ErrConflict)
	fails(kv.DeleteRevision(ctx, key, rev), ErrConflict)
	e, err := kv.Get(ctx, key)
	fails(err, nil)
	if e.Key != key || string(e.Value) != "two" || e.Revision != next {
		t.Errorf("got %+v", e)
	}
	fails(kv.DeleteRevision(ctx, key, next), nil)
	_, err = kv.Get(ctx, key)
	fails(err, ErrNotFound)
	_, err = kv.Create(ctx, key, []byte("anew"))
	fails(err, nil)
	for _, k := range []string{Key("job", "x"), Key("job", "y"), Key("jobs")} {
		_, err = kv.Put(ctx, k, []byte(k))
		fails(err, nil)
	}
	fails(kv.Delete(ctx, Key("job", "y")), nil)
	fails(kv.Delete(ctx, Key("job", "z")), nil)
	keys, err := kv.Keys(ctx, Key("job"))
	fails(err, nil)
	if want := []string{key, Key("job", "x")}; !slices.Equal(keys, want) {
		t.Errorf("keys %q, want %q", keys, want)
	}
	names, err := SplitKey(keys[0])
	fails(err, nil)
	if names[1] != "ä b/c.*>" || names[2] != "" {
		t.Errorf("names %q", names)
	}
	empty, err := kv.Keys(ctx, Key("none"))
	if err != nil || len(empty) != 0 {
		t.Errorf("got %v, %v", empty, err)
	}
}

// What is dropped is gone without a trace, for a restarted server too, its neighbours stay, and its keys can be made again.
func TestDrop(t *testing.T) {
	r := newRestartable(t)
	c := connect(t, ConnectOptions{URL: r.ClientURL()})
	before := ensure(t, c)
	ctx, kv := testContext(t), c.KV(Checkpoints)
	put := func(key string) {
		t.Helper()
		if _, err := kv.Put(ctx, key, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, want ...string) {
		t.Helper()
		got, err := kv.Keys(ctx, "")
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", when, got, err, want)
		}
	}
	for i := range 20 {
		put(Key("a", "job", "1", fmt.Sprint(i)))
	}
	for _, key := range []string{Key("a", "job", "1"), Key("a", "job", "10", "0"), Key("a", "other", "1", "0"), Key("r", "job", "1", "0")} {
		put(key)
	}
	for range 2 { // the second time there is nothing
		if err := kv.Drop(ctx, Key("a", "job", "1")); err != nil {
			t.Fatal(err)
		}
	}
	rest := []string{"a.job.1", "a.job.10.0", "a.other.1.0", "r.job.1.0"}
	want("dropped", rest...)
	st, err := c.control.js.Stream(ctx, "KV_"+kv.name())
	if err != nil {
		t.Fatal(err)
	}
	if n := st.CachedInfo().State.Msgs; n != uint64(len(rest)+1) { // and the bucket's identity
		t.Errorf("%d messages are kept for %d keys", n, len(rest))
	}
	r.restart(false)
	if after := ensure(t, c); after.ID != before.ID {
		t.Error("the control plane has another identity")
	}
	want("the server was started anew", rest...)
	if _, err := kv.Create(ctx, Key("a", "job", "1", "3"), []byte("y")); err != nil {
		t.Errorf("a key that was dropped is not made again: %v", err)
	}
}

func TestConcurrentUpdatesAllCount(t *testing.T) {
	kv, ctx := inProcess(t).KV(Jobs), testContext(t)
	if _, err := kv.Create(ctx, "n", []byte{0}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for done := 0; done < 10; {
				e, err := kv.Get(ctx, "n")
				if err == nil {
					_, err = kv.Update(ctx, "n", []byte{e.Value[0] + 1}, e.Revision)
				}
				if err == nil {
					done++
				} else if !errors.Is(err, ErrConflict) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if e, err := kv.Get(ctx, "n"); err != nil || e.Value[0] != 40 {
		t.Errorf("got %+v, %v", e, err)
	}
}

// watching runs a watch and shows its events.
type watching struct {
	t      testing.TB
	events chan Event
	ended  chan error
}

func watchBucket(t testing.TB, kv *KV, prefix string) *watching {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watching{t: t, events: make(chan Event, 100), ended: make(chan error, 1)}
	var wg sync.WaitGroup
	wg.Go(func() {
		w.ended <- kv.Watch(ctx, prefix, func(e Event) error {
			select {
			case w.events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return w
}

// want waits for an event: "key=value", "-key" or "caught up".
func (w *watching) want(want string) {
	w.t.Helper()
	select {
	case e := <-w.events:
		got := e.Key + "=" + string(e.Value)
		if e.Deleted {
			got = "-" + e.Key
		}
		if e.CaughtUp {
			got = "caught up"
		}
		if got != want {
			w.t.Fatalf("event %q, want %q", got, want)
		}
	case err := <-w.ended:
		w.t.Fatalf("watch ended: %v", err)
	case <-time.After(patience):
		w.t.Fatalf("no event, want %q", want)
	}
}

func (w *watching) wantEnd(want error) {
	w.t.Helper()
	select {
	case err := <-w.ended:
		if !errors.Is(err, want) {
			w.t.Fatalf("watch ended with %v, want %v", err, want)
		}
	case <-time.After(patience):
		w.t.Fatal("watch goes on")
	}
}

func put(t testing.TB, kv *KV, key, value string) {
	t.Helper()
	ctx := testContext(t)
	for {
		_, err := kv.Put(ctx, key, []byte(value))
		if err == nil {
			return
		}
		if !errors.Is(err, ErrUnavailable) || sleep(ctx, firstBackoff) != nil {
			t.Fatal(err)
		}
	}
}

func TestWatch(t *testing.T) {
	kv, ctx := inProcess(t).KV(Agents), testContext(t)
	empty := watchBucket(t, kv, "")
	empty.want("caught up")
	put(t, kv, "a.1", "x")
	put(t, kv, "a.2", "y")
	put(t, kv, "ab", "z")
	put(t, kv, "a.1", "x2")
	if err := kv.Delete(ctx, "a.2"); err != nil {
		t.Fatal(err)
	}
	for _, e := range []string{"a.1=x", "a.2=y", "ab=z", "a.1=x2", "-a.2"} {
		empty.want(e)
	}
	w := watchBucket(t, kv, "a")
	w.want("a.1=x2")
	w.want("caught up")
	put(t, kv, "ab", "z2")
	put(t, kv, "a", "root")
	w.want("a=root")
	empty.want("ab=z2")
	stop := errors.New("enough")
	if err := kv.Watch(ctx, "", func(Event) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

func TestWatchAcrossRestart(t *testing.T) {
	server := newRestartable(t)
	c := connect(t, ConnectOptions{URL: server.ClientURL()})
	id := ensure(t, c).ID
	kv := c.KV(Agents)
	put(t, kv, "a", "1")
	w := watchBucket(t, kv, "")
	w.want("a=1")
	w.want("caught up")
	server.restart(false)
	put(t, kv, "b", "2")
	w.want("b=2")
	if got := ensure(t, c).ID; got != id {
		t.Errorf("identity %s after a restart, %s before", got, id)
	}
	server.restart(true)
	w.wantEnd(ErrLost)
	cl := ensure(t, c)
	if cl.ID == id || len(cl.Created) != len(buckets)+len(stores) {
		t.Errorf("got %+v after the loss of all", cl)
	}
	if _, err := kv.Get(testContext(t), "a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// What changes while the connection is cut is given afterwards, once.
func TestWatchAcrossCutConnection(t *testing.T) {
	server := startServer(t, ServerOptions{Listen: "127.0.0.1:0"})
	proxy := newProxy(t, server.ClientAddr())
	direct := connect(t, ConnectOptions{Server: server})
	ensure(t, direct)
	w := watchBucket(t, connect(t, ConnectOptions{URL: "nats://" + proxy.addr()}).KV(Agents), "")
	w.want("caught up")
	kv := direct.KV(Agents)
	for n := range 5 {
		proxy.cut()
		put(t, kv, "k", fmt.Sprint(n))
		w.want("k=" + fmt.Sprint(n))
	}
	proxy.cut()
	if err := kv.Delete(testContext(t), "k"); err != nil {
		t.Fatal(err)
	}
	w.want("-k")
}

func TestWatchEndsWhenTheBucketIsReplaced(t *testing.T) {
	c := inProcess(t)
	w := watchBucket(t, c.KV(Jobs), "")
	w.want("caught up")
	ctx := testContext(t)
	if err := c.control.js.DeleteStream(ctx, "KV_weir-jobs"); err != nil {
		t.Fatal(err)
	}
	ensure(t, c)
	w.wantEnd(ErrLost)
	if err := c.control.js.DeleteStream(ctx, "KV_weir-jobs"); err != nil {
		t.Fatal(err)
	}
	if err := c.KV(Jobs).Watch(ctx, "", func(Event) error { return nil }); !errors.Is(err, ErrLost) {
		t.Errorf("watch of a missing bucket: %v", err)
	}
	kv := c.KV(Jobs)
	if _, err := kv.Get(ctx, "k"); !errors.Is(err, ErrLost) {
		t.Errorf("get from a missing bucket: %v", err)
	}
}

func TestObjects(t *testing.T) {
	c := inProcess(t)
	o, ctx := c.Objects(Snapshots), testContext(t)
	for _, size := range []int{0, 1, chunkSize, 3*chunkSize + 17} {
		content := make([]byte, size)
		rand.New(rand.NewSource(int64(size))).Read(content)
		name := fmt.Sprintf("job/task@a/%d", size)
		put, err := o.Put(ctx, name, bytes.NewReader(content))
		if err != nil || put.Size != int64(size) {
			t.Fatalf("%+v, %v", put, err)
		}
		if _, err := o.Put(ctx, name, strings.NewReader("other")); !errors.Is(err, ErrConflict) {
			t.Errorf("second put under one name: %v", err)
		}
		if has, err := o.Has(ctx, name); err != nil || has != put {
			t.Errorf("has %+v, %v, want %+v", has, err, put)
		}
		r, err := o.Get(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("size %d: got %d bytes, %v", size, len(got), err)
		}
		r.Close()
	}
	list, err := o.List(ctx)
	if err != nil || len(list) != 4 || list[0].Name != "job/task@a/0" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := o.Delete(ctx, "job/task@a/1"); err != nil {
		t.Fatal(err)
	}
	names := []string{"none", "job/task@a/0", "job/task@a/1", fmt.Sprintf("job/task@a/%d", chunkSize)}
	if gone, err := o.Missing(ctx, names); err != nil || fmt.Sprint(gone) != "[none job/task@a/1]" {
		t.Errorf("missing are %v, %v", gone, err)
	}
	many := append(slices.Repeat([]string{"job/task@a/0"}, lookedUpAtOnce), names...)
	if gone, err := o.Missing(ctx, many); err != nil || fmt.Sprint(gone) != "[none job/task@a/1]" {
		t.Errorf("of many %v are missing, %v", gone, err)
	}
	if gone, err := o.Missing(ctx, nil); err != nil || len(gone) != 0 {
		t.Errorf("of none %v are missing, %v", gone, err)
	}
	if err := o.Delete(ctx, "job/task@a/1"); err != nil {
		t.Errorf("second delete: %v", err)
	}
	if _, err := o.Has(ctx, "job/task@a/1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if _, err := o.Get(ctx, "job/task@a/1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	st, err := c.control.js.Stream(ctx, o.stream())
	if err != nil {
		t.Fatal(err)
	}
	if n := st.CachedInfo().State.Msgs; n != 3+1+4 { // descriptions and chunks of the other three
		t.Errorf("%d messages in the store: the deleted object has left something", n)
	}
}

// TestTouchOrDelete: of an object that is touched and deleted at the same time either the touch or the deletion fails,
// in each order of what they do.
func TestTouchOrDelete(t *testing.T) {
	c := inProcess(t)
	o, ctx := c.Objects(Modules), testContext(t)
	content := strings.Repeat("m", 2*chunkSize)
	put := func() Object {
		t.Helper()
		put, err := o.Put(ctx, "m", strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		return put
	}
	whole := func(what string) {
		t.Helper()
		r, err := o.Get(ctx, "m")
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if b, err := io.ReadAll(r); err != nil || string(b) != content {
			t.Fatalf("%s: %d bytes, %v", what, len(b), err)
		}
	}
	touch := func() {
		t.Helper()
		if err := o.Touch(ctx, "m"); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(was Object, want bool) {
		t.Helper()
		if did, err := o.DeleteRevision(ctx, was); did != want || err != nil {
			t.Fatalf("deleted: %v, %v", did, err)
		}
	}
	if err := o.Touch(ctx, "m"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("touch of what is not there: %v", err)
	}
	old := put()
	touch()
	remove(old, false)
	whole("touched since it was seen")
	now, err := o.Has(ctx, "m")
	if err != nil || now.Revision <= old.Revision || now.Size != old.Size || now.Digest != old.Digest {
		t.Fatalf("%+v, was %+v, %v", now, old, err)
	}
	remove(now, true)
	if err := o.Touch(ctx, "m"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("touch of what was deleted: %v", err)
	}
	remove(now, false)
	again := put()
	remove(now, false)
	whole("stored anew since it was seen")
	remove(again, true)
	st, err := c.control.js.Stream(ctx, o.stream())
	if err != nil || st.CachedInfo().State.Msgs != 0 {
		t.Fatalf("something is left: %+v, %v", st.CachedInfo().State, err)
	}

	// At the same time: whoever has said that it succeeded is right.
	for range 30 {
		seen := put()
		touched, start := make(chan error, 1), make(chan struct{})
		go func() {
			<-start
			touched <- o.Touch(ctx, "m")
		}()
		close(start)
		did, err := o.DeleteRevision(ctx, seen)
		if err != nil {
			t.Fatal(err)
		}
		switch err := <-touched; {
		case err == nil && !did:
			whole("touched")
			if err := o.Delete(ctx, "m"); err != nil {
				t.Fatal(err)
			}
		case errors.Is(err, ErrNotFound) && did:
		default:
			t.Fatalf("deleted: %v; touched: %v", did, err)
		}
	}
}

// TestPutsAtOnce: of several that store one name at the same time one succeeds, and nothing is left of the others.
func TestPutsAtOnce(t *testing.T) {
	c := inProcess(t)
	o, ctx := c.Objects(Modules), testContext(t)
	const puts = 4
	var gate sync.WaitGroup
	gate.Add(puts)
	ended := make(chan error, puts)
	for range puts {
		go func() {
			// All have asked whether the name is taken before any has stored its description.
			_, err := o.Put(ctx, "m", io.MultiReader(strings.NewReader("mod"), meeting{&gate}, strings.NewReader("ule")))
			ended <- err
		}()
	}
	won := 0
	for range puts {
		switch err := <-ended; {
		case err == nil:
			won++
		case !errors.Is(err, ErrConflict):
			t.Error(err)
		}
	}
	st, err := c.control.js.Stream(ctx, o.stream())
	if err != nil || won != 1 || st.CachedInfo().State.Msgs != 2 {
		t.Errorf("%d puts succeeded, %d messages in the store, want a chunk and a description; %v", won, st.CachedInfo().State.Msgs, err)
	}
}

// meeting is an empty reader that waits for the others.
type meeting struct{ others *sync.WaitGroup }

func (m meeting) Read([]byte) (int, error) {
	m.others.Done()
	m.others.Wait()
	return 0, io.EOF
}

func TestDamagedObjectIsNoticed(t *testing.T) {
	c := inProcess(t)
	o, ctx := c.Objects(Snapshots), testContext(t)
	for name, damage := range map[string]func(jetstream.Stream, uint64, string) error{
		"missing": func(st jetstream.Stream, seq uint64, _ string) error { return st.DeleteMsg(ctx, seq) },
		"other": func(st jetstream.Stream, seq uint64, subject string) error {
			if err := st.DeleteMsg(ctx, seq); err != nil {
				return err
			}
			_, err := c.control.js.Publish(ctx, subject, make([]byte, chunkSize))
			return err
		},
	} {
		if _, err := o.Put(ctx, name, bytes.NewReader(make([]byte, 2*chunkSize))); err != nil {
			t.Fatal(err)
		}
		r, err := o.Get(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		or := r.(*objectReader)
		m, err := or.stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(or.subject))
		if err != nil {
			t.Fatal(err)
		}
		if name == "other" {
			m.Sequence++ // of two equal chunks the second one, then bytes that were not stored
			or.want[0]++
		}
		if err := damage(or.stream, m.Sequence, or.subject); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); err == nil {
			t.Errorf("%s: damage was not noticed", name)
		}
	}
}

func TestCutOffPutIsCleaned(t *testing.T) {
	c := inProcess(t)
	o, ctx := c.Objects(Modules), testContext(t)
	if _, err := o.Put(ctx, "whole", strings.NewReader("whole")); err != nil {
		t.Fatal(err)
	}
	// What a Put leaves whose agent loses power.
	for range 3 {
		if _, err := c.control.js.Publish(ctx, o.chunks()+"CUTOFF", []byte("chunk")); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := o.Clean(ctx, time.Hour); n != 0 || err != nil {
		t.Fatalf("cleaned %d, %v: it may still be under way", n, err)
	}
	if n, err := o.Clean(ctx, 0); n != 1 || err != nil {
		t.Fatalf("cleaned %d, %v", n, err)
	}
	if n, err := o.Clean(ctx, 0); n != 0 || err != nil {
		t.Fatalf("cleaned %d, %v", n, err)
	}
	if _, err := o.Has(ctx, "whole"); err != nil {
		t.Error(err)
	}
	broken := errors.New("disk is broken")
	if _, err := o.Put(ctx, "half", io.MultiReader(strings.NewReader("x"), failing{broken})); err == nil {
		t.Error("put of a broken file succeeded")
	}
	if _, err := o.Has(ctx, "half"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
