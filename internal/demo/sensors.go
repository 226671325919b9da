package demo

import (
	"context"
	"fmt"
	"sync"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"golang.org/x/sync/errgroup"

	"github.com/weir-stream/weir/internal/fleet"
)

// Limits of the patience of sensors and of the one who watches.
const (
	// dialPatience and ackPatience are far above what an answer takes on one machine, and short enough
	// to try again while it starts.
	dialPatience = 2 * time.Second
	ackPatience  = 5 * time.Second
	// writePatience is how long the client may hold on to a reading after its connection was lost.
	writePatience = time.Second
	redialEvery   = 200 * time.Millisecond
	// links is how many connections the sensors share.
	links = 4
)

// sensor is a simulated sensor. It sends one reading at a time, until the broker has acknowledged it.
type sensor struct {
	name    string
	gateway string
	link    *link
	seq     uint64 // of its last reading; its own goroutine's while it runs
}

// field is all sensors.
type field struct {
	sensors []*sensor
	links   []*link
	every   time.Duration // between two readings of a sensor
	sent    func(sensor string, seq uint64)
	stopped chan struct{} // closed by stop
}

// newField makes n sensors at a broker, which take turns among the gateways.
func newField(broker string, gateways []string, n int, every time.Duration, sent func(string, uint64)) *field {
	f := &field{every: every, sent: sent, stopped: make(chan struct{})}
	for i := range links {
		f.links = append(f.links, newLink(broker, fmt.Sprintf("sensors-%d", i)))
	}
	for i := range n {
		f.sensors = append(f.sensors, &sensor{
			name: fmt.Sprintf("s%03d", i+1), gateway: gateways[i%len(gateways)], link: f.links[i%links],
		})
	}
	return f
}

// of tells which sensors send to a gateway.
func (f *field) of(gateway string) func(name string) bool {
	names := map[string]bool{}
	for _, s := range f.sensors {
		names[s.name] = s.gateway == gateway
	}
	return func(name string) bool { return names[name] }
}

// run lets the sensors send until stop is called; it returns when the broker has acknowledged all that
// they sent, or with the error of ctx.
func (f *field) run(ctx context.Context) error {
	connected, disconnect := context.WithCancel(ctx)
	var conns sync.WaitGroup
	for _, l := range f.links {
		conns.Go(func() { l.run(connected) })
	}
	g, sending := errgroup.WithContext(ctx)
	for i, s := range f.sensors {
		first := f.every * time.Duration(i) / time.Duration(len(f.sensors))
		g.Go(func() error { return s.run(sending, f, first) })
	}
	err := g.Wait()
	disconnect()
	conns.Wait()
	return err
}

// again makes the sensors, which have stopped, ready to go on after their last readings. Nobody notes
// any more what they send.
func (f *field) again() *field {
	return &field{sensors: f.sensors, links: f.links, every: f.every, sent: func(string, uint64) {}, stopped: make(chan struct{})}
}

// stop lets every sensor finish the reading that it is sending, and no more.
func (f *field) stop() { close(f.stopped) }

func (s *sensor) run(ctx context.Context, f *field, first time.Duration) error {
	if !fleet.Sleep(ctx, first) {
		return ctx.Err()
	}
	t := time.NewTicker(f.every)
	defer t.Stop()
	for {
		s.seq++
		if err := s.send(ctx, s.seq); err != nil {
			return err
		}
		f.sent(s.name, s.seq)
		select {
		case <-f.stopped:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

// send sends a reading until the broker has acknowledged it. What is sent again is the same to the byte.
func (s *sensor) send(ctx context.Context, seq uint64) error {
	topic := "sensors/" + s.gateway + "/" + s.name
	payload := fmt.Sprintf(`{"seq":%d,"celsius":%d.%d}`, seq, 20+seq%5, seq%10)
	for ctx.Err() == nil {
		c, err := s.link.wait(ctx)
		if err != nil {
			return err
		}
		if c.publish(ctx, topic, payload) {
			return nil
		}
	}
	return ctx.Err()
}

// link is a connection that is made again whenever it is lost.
type link struct {
	broker, id string

	mu      sync.Mutex
	now     *connection   // nil: none
	changed chan struct{} // closed and replaced when now changes
}

// connection is one connection of a link.
type connection struct {
	client mqtt.Client
	lost   chan struct{} // closed when it is lost
}

func newLink(broker, id string) *link {
	return &link{broker: broker, id: id, changed: make(chan struct{})}
}

func (l *link) set(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = c
	close(l.changed)
	l.changed = make(chan struct{})
}

// wait returns the connection as soon as there is one.
func (l *link) wait(ctx context.Context) (*connection, error) {
	for {
		l.mu.Lock()
		c, changed := l.now, l.changed
		l.mu.Unlock()
		if c != nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
}

func (l *link) run(ctx context.Context) {
	for ctx.Err() == nil {
		opt := clientOptions(l.broker, l.id)
		opt.SetCleanSession(true)
		c, err := connect(opt)
		if err != nil {
			fleet.Sleep(ctx, redialEvery)
			continue
		}
		l.set(c)
		c.hold(ctx)
		l.set(nil)
	}
}

// publish tells whether the broker acknowledged a message.
func (c *connection) publish(ctx context.Context, topic, payload string) bool {
	token := c.client.Publish(topic, 1, false, payload)
	t := time.NewTimer(ackPatience)
	defer t.Stop()
	select {
	case <-token.Done():
		return token.Error() == nil
	case <-c.lost:
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// hold keeps the connection until it is lost or ctx ends.
func (c *connection) hold(ctx context.Context) {
	select {
	case <-c.lost:
	case <-ctx.Done():
	}
	c.client.Disconnect(0)
}

// clientOptions are those of a client that leaves it to others to connect again.
func clientOptions(broker, id string) *mqtt.ClientOptions {
	opt := mqtt.NewClientOptions()
	opt.AddBroker(broker).SetClientID(id).SetAutoReconnect(false).SetConnectRetry(false)
	opt.SetConnectTimeout(dialPatience).SetWriteTimeout(writePatience)
	return opt
}

func connect(opt *mqtt.ClientOptions) (*connection, error) {
	c := &connection{lost: make(chan struct{})}
	opt.SetConnectionLostHandler(func(mqtt.Client, error) { close(c.lost) })
	c.client = mqtt.NewClient(opt)
	if err := done(c.client.Connect(), dialPatience); err != nil {
		c.client.Disconnect(0)
		return nil, err
	}
	return c, nil
}

func done(t mqtt.Token, patience time.Duration) error {
	if !t.WaitTimeout(patience) {
		return fmt.Errorf("no answer from the broker within %s", patience)
	}
	return t.Error()
}
