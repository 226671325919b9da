//go:build mosquitto

package e2e

import (
	"net"
	"sync"
	"testing"
	"time"
)

// cut is one way in which a connection ends.
type cut int

// The ways of a proxy.
const (
	closes  cut = iota // both ends are told
	resets             // at once, with what is under way lost
	drops              // what is sent vanishes, and nobody is told
	stalls             // nothing is taken any more, and nobody is told
	waysOut = iota
)

func (c cut) String() string { return [...]string{"close", "reset", "drop", "stall"}[c] }

// proxy stands between a client and a broker and ends their connections.
type proxy struct {
	ln     net.Listener
	target string

	mu    sync.Mutex
	pairs map[*pair]bool
	wait  sync.WaitGroup
}

// pair is one connection of a client and the one to the broker that belongs to it.
type pair struct {
	client, broker *net.TCPConn

	mu   sync.Mutex
	mode cut // drops or stalls, if cut
	cut  bool
	over chan struct{} // closed when the connection ends
	once sync.Once
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{ln: ln, target: target, pairs: map[*pair]bool{}}
	p.wait.Go(p.serve)
	t.Cleanup(func() {
		ln.Close()
		p.mu.Lock()
		for c := range p.pairs {
			c.end(false)
		}
		p.mu.Unlock()
		p.wait.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.ln.Addr().String() }

func (p *proxy) serve() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", p.target)
		if err != nil {
			c.Close()
			continue
		}
		one := &pair{client: c.(*net.TCPConn), broker: b.(*net.TCPConn), over: make(chan struct{})}
		p.mu.Lock()
		p.pairs[one] = true
		p.mu.Unlock()
		p.wait.Go(func() { one.copy(one.broker, one.client) })
		p.wait.Go(func() {
			one.copy(one.client, one.broker)
			p.mu.Lock()
			delete(p.pairs, one)
			p.mu.Unlock()
		})
	}
}

// copy forwards until the connection ends.
func (c *pair) copy(to, from *net.TCPConn) {
	defer c.end(false)
	buf := make([]byte, 1500) // as much as a packet of the network, so that a cut falls anywhere
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		c.mu.Lock()
		gone, mode := c.cut, c.mode
		c.mu.Unlock()
		switch {
		case gone && mode == drops:
			continue
		case gone:
			<-c.over
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (c *pair) end(reset bool) {
	c.once.Do(func() {
		if reset {
			c.client.SetLinger(0)
			c.broker.SetLinger(0)
		}
		c.client.Close()
		c.broker.Close()
		close(c.over)
	})
}

// cutAll ends all connections that there are. The broker's end of one that nobody is told of is closed
// after a while, since a broker lets a session have one connection only.
func (p *proxy) cutAll(how cut) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		switch how {
		case closes, resets:
			c.end(how == resets)
		default:
			c.mu.Lock()
			c.cut, c.mode = true, how
			c.mu.Unlock()
			p.wait.Go(func() {
				select {
				case <-c.over:
				case <-time.After(stuckAfter): // the client gave up long before
					c.end(true)
				}
			})
		}
	}
	return len(p.pairs)
}
