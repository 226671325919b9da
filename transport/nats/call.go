package nats

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
)

// call subjects are under the prefix: <prefix>.call.<name>, <prefix>.say.<name>.

// Serve answers calls to a name until stop is called. Handle runs on the subscription's goroutine,
// one call at a time.
func (c *Conn) Serve(name string, handle func(request []byte) []byte) (stop func(), err error) {
	sub, err := c.control.nc.Subscribe(c.names.prefix+".call."+encodeToken(name), func(m *nats.Msg) {
		_ = m.Respond(handle(m.Data)) // the caller has a deadline and may ask again
	})
	if err != nil {
		return nil, fmt.Errorf("serve calls to %s: %w", name, translate(err))
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// Call asks whoever serves a name. [ErrUnavailable] if nobody does or NATS is not reachable.
func (c *Conn) Call(ctx context.Context, name string, request []byte) ([]byte, error) {
	m, err := c.control.nc.RequestWithContext(ctx, c.names.prefix+".call."+encodeToken(name), request)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", name, translate(err))
	}
	return m.Data, nil
}

// Say publishes to everybody who listens to a name, best effort: what is said must be repeated.
func (c *Conn) Say(name string, message []byte) {
	_ = c.control.nc.Publish(c.names.prefix+".say."+encodeToken(name), message)
}

// Listen calls hear, on the subscription's goroutine, with what is said under a name.
func (c *Conn) Listen(name string, hear func(message []byte)) (stop func(), err error) {
	sub, err := c.control.nc.Subscribe(c.names.prefix+".say."+encodeToken(name), func(m *nats.Msg) { hear(m.Data) })
	if err != nil {
		return nil, fmt.Errorf("listen to %s: %w", name, translate(err))
	}
	return func() { _ = sub.Unsubscribe() }, nil
}
