package nats

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"time"

	"github.com/weir-stream/weir/abs"
)

// DefaultLeaseTTL is how long a holder may be silent before another one takes its lease over.
const DefaultLeaseTTL = 6 * time.Second

// LeaseOptions configure a [Lease].
type LeaseOptions struct {
	// Name of the lease, a key of the bucket [Meta].
	Name string
	// Holder is this agent's name, for others to see.
	Holder string
	// Instance, if set, is the identity of a holder that can only run once at a time: what an earlier
	// life of it held is taken over at once.
	Instance string
	// TTL is how long a holder may be silent; 0: [DefaultLeaseTTL]. The same for all agents.
	TTL time.Duration
	// Floor returns the highest term that this agent knows of; the lease is taken with a higher one,
	// even if the bucket has lost what was in it. Nil: 0.
	Floor func() abs.Term
}

// Lease is held by one agent at a time. It is kept by compare-and-set on a key: the holder writes it
// every third of its time to live; who sees it unchanged for that time by its own clock takes it over
// with the next term. The holder stops acting when it has not managed to write it for two thirds of
// the time, counted from before the last write that succeeded, hence before another can begin, however
// the clocks are set, as long as they run equally fast within a third. A machine that sleeps does not
// count that time: what is done under a lease must carry its term, so that an old one is refused.
type Lease struct {
	kv  *KV
	key string
	opt LeaseOptions
	// nonce tells this holder from a namesake and, without an instance, from an earlier life of itself.
	nonce string
}

// Lease returns a lease; [Lease.Run] strives for it.
func (c *Conn) Lease(opt LeaseOptions) *Lease {
	if opt.TTL <= 0 {
		opt.TTL = DefaultLeaseTTL
	}
	nonce := opt.Instance
	if nonce == "" {
		nonce = rand.Text()
	}
	return &Lease{kv: c.KV(Meta), key: Key("lease", opt.Name), opt: opt, nonce: nonce}
}

// LeaseState is what the key holds.
type LeaseState struct {
	Holder string   `json:"holder"` // empty: given back
	Term   abs.Term `json:"term"`
	Nonce  string   `json:"nonce"`
	// Beat grows with every write, so that each differs from the one before.
	Beat uint64 `json:"beat"`
}

// State returns who holds the lease according to the key; [ErrNotFound] if nobody ever did.
func (l *Lease) State(ctx context.Context) (LeaseState, error) {
	e, err := l.kv.Get(ctx, l.key)
	if err != nil {
		return LeaseState{}, err
	}
	return decodeLease(e.Value), nil
}

// decodeLease reads the key's value. An unreadable one counts as given back, at term 0.
func decodeLease(b []byte) LeaseState {
	var s LeaseState
	if err := json.Unmarshal(b, &s); err != nil {
		return LeaseState{}
	}
	return s
}

// Run strives for the lease until ctx ends. While it is held it calls lead with the term and a
// context that ends when the lease is lost; lead must then return at once, and Run waits for that
// before it strives again. If lead returns by itself, the lease is given back and Run returns what
// lead returned. If ctx ends, the lease is given back and Run returns ctx's error.
func (l *Lease) Run(ctx context.Context, lead func(ctx context.Context, term abs.Term) error) error {
	for {
		h, err := l.acquire(ctx)
		if err != nil {
			return err
		}
		if ended, err := l.hold(ctx, h, lead); ended {
			return err
		}
	}
}

// held is a lease in our hands.
type held struct {
	state   LeaseState
	rev     uint64
	renewed time.Time // from before the write that succeeded last
}

// acquire waits until the lease is ours or ctx ends.
func (l *Lease) acquire(ctx context.Context) (held, error) {
	var seen uint64 // revision that has been unchanged since
	var since time.Time
	for {
		e, err := l.get(ctx)
		if err == nil && e.Revision != seen {
			seen, since = e.Revision, time.Now()
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			seen = 0 // the time we did not see does not count
		}
		if l.free(e, err, since) {
			if h, err := l.take(ctx, e); err == nil {
				return h, nil
			}
		}
		if err := sleep(ctx, l.opt.TTL/4); err != nil {
			return held{}, err
		}
	}
}

// free decides whether the lease may be taken: it was never held, was given back, was
// taken by a write of ours whose answer was lost, or has not been renewed for its time to live.
func (l *Lease) free(e Entry, err error, since time.Time) bool {
	switch {
	case errors.Is(err, ErrNotFound):
		return true
	case err != nil:
		return false
	}
	s := decodeLease(e.Value)
	return s.Holder == "" || s.Nonce == l.nonce || time.Since(since) >= l.opt.TTL
}

// take writes the next term by compare-and-set.
func (l *Lease) take(ctx context.Context, e Entry) (held, error) {
	term := decodeLease(e.Value).Term
	if l.opt.Floor != nil {
		term = max(term, l.opt.Floor())
	}
	h := held{state: LeaseState{Holder: l.opt.Holder, Term: term + 1, Nonce: l.nonce}, rev: e.Revision}
	return l.write(ctx, h)
}

// get and write bound each request to a third of the time to live, so that one that hangs does not
// cost the lease.
func (l *Lease) get(ctx context.Context) (Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opt.TTL/3)
	defer cancel()
	return l.kv.Get(ctx, l.key)
}

func (l *Lease) write(ctx context.Context, h held) (held, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opt.TTL/3)
	defer cancel()
	h.state.Beat++
	value, err := json.Marshal(h.state)
	if err != nil {
		panic(err) // a struct of strings and numbers
	}
	begin := time.Now()
	var rev uint64
	if h.rev == 0 {
		rev, err = l.kv.Create(ctx, l.key, value)
	} else {
		rev, err = l.kv.Update(ctx, l.key, value, h.rev)
	}
	if err != nil {
		return h, err
	}
	h.rev, h.renewed = rev, begin
	return h, nil
}

// hold runs lead while the lease is renewed. Ended says that there is nothing more to strive for: ctx
// has ended or lead has returned by itself; the lease is then given back.
func (l *Lease) hold(ctx context.Context, h held, lead func(context.Context, abs.Term) error) (ended bool, err error) {
	leading, lose := context.WithCancel(ctx)
	defer lose()
	expiry := time.AfterFunc(l.left(h), lose)
	defer expiry.Stop()
	returned := make(chan error, 1)
	go func() { returned <- lead(leading, h.state.Term) }() // waited for below
	wait := l.opt.TTL / 3
	for leading.Err() == nil {
		select {
		case err := <-returned:
			if leading.Err() != nil {
				return ctx.Err() != nil, ctx.Err()
			}
			l.giveBack(ctx, h)
			return true, err
		case <-leading.Done():
		case <-time.After(wait):
			next, err := l.renew(leading, h)
			switch {
			case err == nil && expiry.Stop():
				h, wait = next, l.opt.TTL/3
				expiry.Reset(l.left(h))
			case errors.Is(err, ErrConflict):
				lose()
			default:
				wait = l.opt.TTL / 12 // try again while there is time
			}
		}
	}
	<-returned
	if ctx.Err() != nil {
		l.giveBack(ctx, h)
	}
	return ctx.Err() != nil, ctx.Err()
}

// left is how long the lease may still be acted on.
func (l *Lease) left(h held) time.Duration {
	return l.opt.TTL*2/3 - time.Since(h.renewed)
}

// renew writes the lease. A write of ours whose answer was lost makes the next one fail: then the
// key still holds our term and nonce, and we go on from its revision.
func (l *Lease) renew(ctx context.Context, h held) (held, error) {
	next, err := l.write(ctx, h)
	if !errors.Is(err, ErrConflict) {
		return next, err
	}
	e, gerr := l.get(ctx)
	if gerr != nil {
		return h, gerr
	}
	if s := decodeLease(e.Value); s.Nonce != l.nonce || s.Term != h.state.Term {
		return h, err
	}
	h.rev = e.Revision
	return l.write(ctx, h)
}

// giveBack lets another one take the lease at once. It is a courtesy: it may fail.
func (l *Lease) giveBack(ctx context.Context, h held) {
	h.state.Holder = ""
	_, _ = l.write(context.WithoutCancel(ctx), h)
}
