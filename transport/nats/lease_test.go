package nats

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
)

// contender runs a lease and shows when it leads.
type contender struct {
	lease  *Lease
	terms  chan abs.Term
	cancel context.CancelFunc
	ended  chan error
}

func contend(t testing.TB, c *Conn, holder string, leading *atomic.Int32) *contender {
	ctx, cancel := context.WithCancel(context.Background())
	k := &contender{
		lease: c.Lease(LeaseOptions{Name: "coordinator", Holder: holder, TTL: time.Second}),
		terms: make(chan abs.Term, 100), cancel: cancel, ended: make(chan error, 1),
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		k.ended <- k.lease.Run(ctx, func(ctx context.Context, term abs.Term) error {
			if leading.Add(1) > 1 {
				t.Error("two lead at once")
			}
			defer leading.Add(-1)
			k.terms <- term
			<-ctx.Done()
			return nil
		})
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return k
}

func (k *contender) want(t testing.TB, above abs.Term) abs.Term {
	t.Helper()
	for {
		select {
		case term := <-k.terms:
			if term > above {
				return term
			}
			if above != 0 {
				t.Fatalf("term %d after %d", term, above)
			}
		case <-time.After(patience):
			t.Fatal("does not lead")
		}
	}
}

func TestLeaseIsTakenOverWhenGivenBack(t *testing.T) {
	c := inProcess(t)
	var leading atomic.Int32
	a := contend(t, c, "a", &leading)
	term := a.want(t, 0)
	if s, err := a.lease.State(testContext(t)); err != nil || s.Holder != "a" || s.Term < term {
		t.Errorf("%+v, %v", s, err)
	}
	b := contend(t, c, "b", &leading)
	a.cancel()
	if err := <-a.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	b.want(t, term)
}

// A holder that is cut off stops leading by itself, and only then another one takes over.
func TestLeaseIsTakenOverFromOneCutOff(t *testing.T) {
	server := startServer(t, ServerOptions{Listen: "127.0.0.1:0"})
	proxy := newProxy(t, server.ClientAddr())
	direct := connect(t, ConnectOptions{Server: server})
	ensure(t, direct)
	var leading atomic.Int32
	a := contend(t, connect(t, ConnectOptions{URL: "nats://" + proxy.addr()}), "a", &leading)
	term := a.want(t, 0)
	b := contend(t, direct, "b", &leading)
	proxy.gate.Lock() // the network hangs
	term = b.want(t, term)
	proxy.gate.Unlock()
	b.cancel()
	a.want(t, term)
}

func TestLeaseTermStaysAboveTheFloor(t *testing.T) {
	c := inProcess(t)
	l := c.Lease(LeaseOptions{Name: "x", Holder: "a", TTL: time.Second, Floor: func() abs.Term { return 41 }})
	own := errors.New("own end")
	var got abs.Term
	err := l.Run(testContext(t), func(_ context.Context, term abs.Term) error {
		got = term
		return own
	})
	if !errors.Is(err, own) || got != 42 {
		t.Errorf("term %d, %v", got, err)
	}
	if s, err := l.State(testContext(t)); err != nil || s.Holder != "" || s.Term != 42 {
		t.Errorf("not given back: %+v, %v", s, err)
	}
}

// A write whose answer is lost is ours all the same.
func TestLeaseGoesOnAfterALostAnswer(t *testing.T) {
	c := inProcess(t)
	l, ctx := c.Lease(LeaseOptions{Name: "x", Holder: "a"}), testContext(t)
	h, err := l.take(ctx, Entry{})
	if err != nil {
		t.Fatal(err)
	}
	lost, err := l.write(ctx, h)
	if err != nil {
		t.Fatal(err)
	}
	next, err := l.renew(ctx, h) // from the revision before
	if err != nil || next.rev <= lost.rev {
		t.Fatalf("%+v, %v", next, err)
	}
	other := c.Lease(LeaseOptions{Name: "x", Holder: "a"})
	if _, err := other.renew(ctx, h); !errors.Is(err, ErrConflict) {
		t.Errorf("a namesake renews it: %v", err)
	}
	e, err := l.get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if other.free(e, nil, time.Now()) || !l.free(e, nil, time.Now()) || !other.free(e, nil, time.Now().Add(-l.opt.TTL)) {
		t.Error("who may take it is decided wrongly")
	}
}

// TestLeaseReadsNoWallClock: a lease is held, and lost, by readings of the clock that does not jump. [time.Now] has
// one, and [time.Since] and [time.Time.Sub] use it, as long as nobody makes a date of it: then a clock that is set back
// by an hour would keep a dead coordinator's lease from others for an hour, and one set ahead give it to two.
func TestLeaseReadsNoWallClock(t *testing.T) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "lease.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	now := 0
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		switch sel.Sel.Name {
		case "Now", "Since":
			now++
		case "Unix", "UnixMilli", "UnixMicro", "UnixNano", "Date", "Round", "Truncate", "UTC", "Local", "In", "AddDate", "Format":
			t.Errorf("%s: %s loses the reading that does not jump", fset.Position(n.Pos()), sel.Sel.Name)
		}
		return true
	})
	if now < 4 {
		t.Errorf("only %d readings of a clock were found", now)
	}
	for key := range reflect.TypeFor[LeaseState]().Fields() { // a time in the key would be that of another's clock
		if key.Type == reflect.TypeFor[time.Time]() || key.Type == reflect.TypeFor[time.Duration]() {
			t.Errorf("the key holds %s, a time", key.Name)
		}
	}
}
