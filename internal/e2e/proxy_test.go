//go:build mosquitto

package e2e

import (
	"io"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"
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

// proxy stands between clients and a broker and ends their connections. It sees what the broker sends.
type proxy struct {
	ln     net.Listener
	target string

	mu    sync.Mutex
	pairs map[*pair]bool
	wait  sync.WaitGroup
	seen  seen
}

// seen is what a broker sent of QoS 2. Payloads name messages.
type seen struct {
	mu       sync.Mutex
	ids      map[uint16]string // the message last sent under an identifier, of the one session of QoS 2
	released map[string]bool   // PUBREL was sent
	// wrong are those that were sent again although PUBREL had been, which a broker must not do (MQTT 3.1.1,
	// 4.3.3) and no client can recognise: the identifier is free.
	wrong map[string]bool
}

// watch follows what the broker sends on one connection.
func (s *seen) watch(r io.Reader) {
	for {
		p, err := packets.ReadPacket(r)
		if err != nil {
			io.Copy(io.Discard, r)
			return
		}
		s.mu.Lock()
		switch p := p.(type) {
		case *packets.PublishPacket:
			if p.Qos == 2 {
				s.ids[p.MessageID] = string(p.Payload)
				if s.released[string(p.Payload)] {
					s.wrong[string(p.Payload)] = true
				}
			}
		case *packets.PubrelPacket:
			if payload, known := s.ids[p.MessageID]; known {
				s.released[payload] = true
			}
		}
		s.mu.Unlock()
	}
}

func (s *seen) wrongly() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.wrong)
}

// pair is one connection of a client and the one to the broker that belongs to it.
type pair struct {
	client, broker *net.TCPConn

	mu    sync.Mutex
	mode  cut // drops or stalls, if cut
	cut   bool
	reset bool
	over  chan struct{} // closed when the connection ends
	once  sync.Once
}

// lastWords bounds how long what a broker sends is read when its client is gone: it ends the connection at once.
const lastWords = 30 * time.Second

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{ln: ln, target: target, pairs: map[*pair]bool{}, seen: seen{ids: map[uint16]string{}, released: map[string]bool{}, wrong: map[string]bool{}}}
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
		read, write := io.Pipe()
		p.wait.Go(func() { p.seen.watch(read) })
		p.wait.Go(func() { one.toBroker() })
		p.wait.Go(func() {
			one.toClient(write)
			p.mu.Lock()
			delete(p.pairs, one)
			p.mu.Unlock()
		})
	}
}

// packet is as much as is forwarded at once: a cut falls anywhere.
const packet = 1500

// gone says whether something read is to vanish. While nothing is to be taken it waits.
func (c *pair) gone() bool {
	c.mu.Lock()
	is, mode := c.cut, c.mode
	c.mu.Unlock()
	if is && mode == stalls {
		<-c.over
	}
	return is
}

// toBroker forwards until the connection ends.
func (c *pair) toBroker() {
	defer c.end(false)
	for buf := make([]byte, packet); ; {
		n, err := c.client.Read(buf)
		if err != nil {
			return
		}
		if c.gone() {
			continue
		}
		if _, err := c.broker.Write(buf[:n]); err != nil {
			return
		}
	}
}

// toClient forwards until the broker ends the connection, or, when the client has, until it says nothing
// more. Everything goes to watch.
func (c *pair) toClient(watch *io.PipeWriter) {
	defer watch.Close()
	for buf := make([]byte, packet); ; {
		n, err := c.broker.Read(buf)
		watch.Write(buf[:n])
		if err != nil {
			break
		}
		if c.gone() {
			continue
		}
		if _, err := c.client.Write(buf[:n]); err != nil {
			c.end(false)
		}
	}
	c.end(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reset {
		c.broker.SetLinger(0)
	}
	c.broker.Close()
}

func (c *pair) end(reset bool) {
	c.once.Do(func() {
		c.mu.Lock()
		c.reset = reset
		c.mu.Unlock()
		if reset {
			c.client.SetLinger(0)
		} else {
			c.broker.CloseWrite()
		}
		c.client.Close()
		c.broker.SetReadDeadline(time.Now().Add(lastWords))
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
