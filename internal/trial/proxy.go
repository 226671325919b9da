package trial

import (
	"io"
	"net"
	"sync"
	"time"
)

// Cut is one way in which a connection ends.
type Cut int

// The ways of a proxy.
const (
	Close Cut = iota // both ends are told
	Reset            // at once, with what is under way lost
	Drop             // what is sent vanishes, and nobody is told
	Stall            // nothing is taken any more, and nobody is told
	Cuts  = iota
)

// String is for people.
func (c Cut) String() string { return [...]string{"close", "reset", "drop", "stall"}[c] }

// Proxy stands between clients and a server: it ends their connections, slows them down, and refuses new ones. The
// zero values of its fields may be changed before [Proxy.Run] only.
type Proxy struct {
	// Watch, if set, gets all that the server sends on each connection, and reads it to its end.
	Watch func(io.Reader)
	// Silent bounds how long a connection of which nobody was told that it is cut stays open.
	Silent time.Duration

	ln     net.Listener
	target string

	mu    sync.Mutex
	pairs map[*pair]bool
	down  bool
	slow  pace
	ended bool
	wait  sync.WaitGroup
}

// pace is how slow a link is.
type pace struct {
	delay time.Duration // of everything
	rate  int           // bytes a second; 0: any
}

// defaultSilent is beyond any client's patience.
const defaultSilent = time.Minute

// NewProxy listens on a port of its own, for a server at target.
func NewProxy(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &Proxy{Silent: defaultSilent, ln: ln, target: target, pairs: map[*pair]bool{}}, nil
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Close ends everything; Run returns.
func (p *Proxy) Close() {
	p.ln.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for c := range p.pairs {
		c.end(false)
	}
}

// Run serves until Close is called, and returns when all connections have ended.
func (p *Proxy) Run() {
	defer p.wait.Wait()
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refused := p.down || p.ended
		p.mu.Unlock()
		if refused {
			c.Close()
			continue
		}
		b, err := net.Dial("tcp", p.target)
		if err != nil {
			c.Close()
			continue
		}
		p.serve(&pair{proxy: p, client: c.(*net.TCPConn), server: b.(*net.TCPConn), over: make(chan struct{})})
	}
}

func (p *Proxy) serve(one *pair) {
	p.mu.Lock()
	p.pairs[one] = true
	if p.ended {
		one.end(false)
	}
	p.mu.Unlock()
	var watch *io.PipeWriter
	if p.Watch != nil {
		var read *io.PipeReader
		read, watch = io.Pipe()
		p.wait.Go(func() {
			p.Watch(read)
			io.Copy(io.Discard, read)
		})
	}
	p.wait.Go(one.toServer)
	p.wait.Go(func() {
		one.toClient(watch)
		p.mu.Lock()
		delete(p.pairs, one)
		p.mu.Unlock()
	})
}

// Refuse closes new connections at once, as if nobody listened, or takes them again.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = refuse
}

// Slow delays what passes from now on, and lets no more than rate bytes a second through in either direction of a
// connection; zeros lift that.
func (p *Proxy) Slow(delay time.Duration, rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = pace{delay, rate}
}

// CutAll ends all connections that there are and says how many. The server's end of one that nobody is told of is
// closed after a while, since a broker lets a session have one connection only.
func (p *Proxy) CutAll(how Cut) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		switch how {
		case Close, Reset:
			c.end(how == Reset)
		default:
			c.mu.Lock()
			c.cut, c.mode = true, how
			c.mu.Unlock()
			p.wait.Go(func() {
				t := time.NewTimer(p.Silent)
				defer t.Stop()
				select {
				case <-c.over:
				case <-t.C: // the client gave up long before
					c.end(true)
				}
			})
		}
	}
	return len(p.pairs)
}

// pair is one connection of a client and the one to the server that belongs to it.
type pair struct {
	proxy          *Proxy
	client, server *net.TCPConn

	mu    sync.Mutex
	mode  Cut // Drop or Stall, if cut
	cut   bool
	reset bool
	over  chan struct{} // closed when the connection ends
	once  sync.Once
}

const (
	// lastWords bounds how long what a server sends is read when its client is gone: a broker ends the
	// connection at once.
	lastWords = 30 * time.Second
	// packet is as much as is forwarded at once: a cut falls anywhere.
	packet = 1500
	// packetSlow is as much on a slow link, where each packet waits.
	packetSlow = 16 << 10
)

// gone says whether something read is to vanish. While nothing is to be taken it waits. On a slow link it waits as
// long as n bytes take.
func (c *pair) gone(n int, since *time.Time) bool {
	c.mu.Lock()
	is, mode := c.cut, c.mode
	c.mu.Unlock()
	if is && mode == Stall {
		<-c.over
	}
	c.proxy.mu.Lock()
	slow := c.proxy.slow
	c.proxy.mu.Unlock()
	now := time.Now()
	wait := time.Duration(0)
	if now.Sub(*since) > slow.delay { // what comes close behind shares its delay
		wait = slow.delay
	}
	*since = now
	if slow.rate > 0 {
		wait += time.Duration(n) * time.Second / time.Duration(slow.rate)
	}
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-c.over:
		case <-t.C:
		}
	}
	return is
}

func (c *pair) buffer() []byte { return make([]byte, packetSlow) }

// size is how much of a buffer is used at once.
func (c *pair) size() int {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	if c.proxy.slow == (pace{}) {
		return packet
	}
	return packetSlow
}

// toServer forwards until the connection ends.
func (c *pair) toServer() {
	defer c.end(false)
	var last time.Time
	for buf := c.buffer(); ; {
		n, err := c.client.Read(buf[:c.size()])
		if err != nil {
			return
		}
		if c.gone(n, &last) {
			continue
		}
		if _, err := c.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// toClient forwards until the server ends the connection, or, when the client has, until it says nothing more.
// Everything goes to watch.
func (c *pair) toClient(watch *io.PipeWriter) {
	var last time.Time
	for buf := c.buffer(); ; {
		n, err := c.server.Read(buf[:c.size()])
		if watch != nil {
			watch.Write(buf[:n])
		}
		if err != nil {
			break
		}
		if c.gone(n, &last) {
			continue
		}
		if _, err := c.client.Write(buf[:n]); err != nil {
			c.end(false)
		}
	}
	if watch != nil {
		watch.Close()
	}
	c.end(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reset {
		c.server.SetLinger(0)
	}
	c.server.Close()
}

func (c *pair) end(reset bool) {
	c.once.Do(func() {
		c.mu.Lock()
		c.reset = reset
		c.mu.Unlock()
		if reset {
			c.client.SetLinger(0)
		} else {
			c.server.CloseWrite()
		}
		c.client.Close()
		c.server.SetReadDeadline(time.Now().Add(lastWords))
		close(c.over)
	})
}
