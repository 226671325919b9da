package mqtt

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// securedServer wants a user and a password, and TLS with a client's certificate if mutual.
func securedServer(t *testing.T, pair tls.Certificate, secured, mutual bool) (tcp, websocket string) {
	t.Helper()
	o := &server.Options{
		ServerName: "test", Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir(),
		Username: "u", Password: "secret",
	}
	o.MQTT.Host, o.MQTT.Port = "127.0.0.1", -1
	o.Websocket.Host, o.Websocket.Port, o.Websocket.NoTLS = "127.0.0.1", -1, !secured
	tcp, websocket = "tcp", "ws"
	if secured {
		tcp, websocket = "ssl", "wss"
		c := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		if mutual {
			c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
			c.ClientCAs.AddCert(pair.Leaf)
		}
		o.MQTT.TLSConfig, o.MQTT.TLSTimeout = c, 20
		o.Websocket.TLSConfig = c.Clone()
	}
	serve(t, o)
	return fmt.Sprintf("%s://127.0.0.1:%d", tcp, o.MQTT.Port), fmt.Sprintf("%s://127.0.0.1:%d/mqtt", websocket, o.Websocket.Port)
}

// TestAccess: every way to reach a real broker and to say who one is, and what is said to whoever lacks
// something.
func TestAccess(t *testing.T) {
	pair, certFile, keyFile := writeCertificate(t)
	for name, c := range map[string]struct{ secured, mutual bool }{
		"plain": {}, "TLS": {secured: true}, "mutual TLS": {secured: true, mutual: true},
	} {
		t.Run(name, func(t *testing.T) {
			tcp, websocket := securedServer(t, pair, c.secured, c.mutual)
			for kind, url := range map[string]string{"tcp": tcp, "websocket": websocket} {
				t.Run(kind, func(t *testing.T) {
					good := Broker{URL: url, ClientID: "c-" + kind, User: "u", Password: "secret"}
					if c.secured {
						good.CAFile = certFile
					}
					if c.mutual {
						good.CertFile, good.KeyFile = certFile, keyFile
					}
					s := quick(t, SourceConfig{Broker: good, QoS: 1}, testDeps(nil))
					run := startSource(t, s, newLog(false))
					until(t, "receiving", func() bool { return s.Status().State == SourceReceiving })
					if err := run.stop(t); err != nil {
						t.Error(err)
					}
					refused := map[string]func(*Broker){
						"password": func(b *Broker) { b.Password = "guessed" },
						"user":     func(b *Broker) { b.User, b.Password = "", "" },
					}
					if c.secured {
						refused["authorities"] = func(b *Broker) { b.CAFile = "" }
					}
					if c.mutual {
						refused["certificate"] = func(b *Broker) { b.CertFile, b.KeyFile = "", "" }
					}
					for what, change := range refused {
						bad := good
						change(&bad)
						s := quick(t, SourceConfig{Broker: bad, QoS: 1}, testDeps(nil))
						run := startSource(t, s, newLog(false))
						until(t, "refusal for want of the "+what, func() bool { return s.Status().Link.LastError != "" })
						if st := s.Status(); st.Link.Connects != 0 || strings.Contains(st.Link.LastError, "guessed") {
							t.Errorf("%s: %+v", what, st.Link)
						}
						if err := run.stop(t); err != nil {
							t.Error(err)
						}
					}
				})
			}
		})
	}
}
