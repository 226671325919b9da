package nats

import (
	"net"
	"sync"
	"testing"
)

// proxy passes connections on to a server and can cut them.
type proxy struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	gate sync.RWMutex // held for writing: nothing passes

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to, conns: make(map[net.Conn]struct{})}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) accept() {
	for {
		a, err := p.l.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", p.to)
		if err != nil {
			a.Close()
			continue
		}
		p.mu.Lock()
		p.conns[a], p.conns[b] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() { p.pass(a, b) })
		p.wg.Go(func() { p.pass(b, a) })
	}
}

func (p *proxy) pass(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			break
		}
		p.gate.RLock()
		_, err = to.Write(buf[:n])
		p.gate.RUnlock()
		if err != nil {
			break
		}
	}
	to.Close()
	from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, to)
	delete(p.conns, from)
}

// cut breaks all connections there are.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}
