package demo

import (
	"context"
	"sync"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/weir-stream/weir/internal/fleet"
)

// watcher receives what the sinks publish, in a session that outlives its connections: what is published
// while it is away comes afterwards.
type watcher struct {
	broker, id, topic string
	take              func(topic string, payload []byte)

	once       sync.Once
	subscribed chan struct{} // closed when the broker has confirmed the subscription
}

func newWatcher(broker, id, topic string, take func(string, []byte)) *watcher {
	return &watcher{broker: broker, id: id, topic: topic, take: take, subscribed: make(chan struct{})}
}

// run receives until ctx ends, and then removes the session: nobody would take what the broker kept.
func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := w.connect(false)
		if err != nil {
			fleet.Sleep(ctx, redialEvery)
			continue
		}
		c.hold(ctx)
	}
	if c, err := w.connect(true); err == nil {
		c.client.Disconnect(0)
	}
}

// connect also subscribes, unless the session is to be removed. A subscription made again changes nothing.
func (w *watcher) connect(clean bool) (*connection, error) {
	opt := clientOptions(w.broker, w.id)
	opt.SetCleanSession(clean)
	opt.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
		if !clean {
			w.take(m.Topic(), m.Payload())
		}
	})
	c, err := connect(opt)
	if err != nil || clean {
		return c, err
	}
	if err := done(c.client.Subscribe(w.topic, 1, nil), ackPatience); err != nil {
		c.client.Disconnect(0)
		return nil, err
	}
	w.once.Do(func() { close(w.subscribed) })
	return c, nil
}
