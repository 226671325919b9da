//go:build mosquitto

package e2e

import (
	"io"
	"maps"
	"sync"
	"testing"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/weir-stream/weir/internal/trial"
)

// proxy stands between clients and a broker and ends their connections. It sees what the broker sends.
type proxy struct {
	*trial.Proxy
	seen seen
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

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	p := &proxy{seen: seen{ids: map[uint16]string{}, released: map[string]bool{}, wrong: map[string]bool{}}}
	var err error
	if p.Proxy, err = trial.NewProxy(target); err != nil {
		t.Fatal(err)
	}
	p.Watch, p.Silent = p.seen.watch, stuckAfter
	var run sync.WaitGroup
	run.Go(p.Run)
	t.Cleanup(func() {
		p.Close()
		run.Wait()
	})
	return p
}
