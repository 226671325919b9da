package mqtt

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"
)

// writeCertificate makes a certificate for 127.0.0.1 that signs itself, and its files.
func writeCertificate(t *testing.T) (pair tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if pair, err = tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		t.Fatal(err)
	}
	return pair, certFile, keyFile
}

func TestTLSWithClientCertificate(t *testing.T) {
	pair, certFile, keyFile := writeCertificate(t)
	d := newDouble(t)
	b := d.broker("c")
	b.URL = strings.Replace(b.URL, "tcp", "ssl", 1)
	b.CAFile, b.CertFile, b.KeyFile = certFile, certFile, keyFile
	b.User, b.PasswordFile = "u", filepath.Join(t.TempDir(), "password")
	s := quick(t, SourceConfig{Broker: b}, testDeps(nil))
	run := startSource(t, s, newLog(false))
	until(t, "missing password file in the status", func() bool { return strings.Contains(s.Status().Link.LastError, b.PasswordFile) })
	if err := os.WriteFile(b.PasswordFile, []byte("secret\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	conn, err := d.ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(pair.Leaf)
	p := &peer{t: t, conn: tls.Server(conn, &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: roots, ClientAuth: tls.RequireAnyClientCert,
	})}
	if c, ok := p.read().(*packets.ConnectPacket); !ok || c.Username != "u" || string(c.Password) != "secret" {
		t.Fatalf("CONNECT %v", c)
	}
	p.connack(false, 0)
	p.suback()
	p.publish(0, 0, false, "t", "x")
	until(t, "logged", func() bool { return s.Status().Logged == 1 })
	p.end(run)
}

func TestTLSRefusesAStranger(t *testing.T) {
	pair, _, _ := writeCertificate(t)
	d := newDouble(t)
	b := d.broker("c")
	b.URL = strings.Replace(b.URL, "tcp", "mqtts", 1)
	s := quick(t, SourceConfig{Broker: b}, testDeps(nil))
	run := startSource(t, s, newLog(false))
	conn, err := d.ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}}).Handshake(); err == nil {
		t.Error("an unknown certificate is accepted")
	}
	conn.Close()
	until(t, "error in the status", func() bool { return strings.Contains(s.Status().Link.LastError, "certificate") })
	d.ln.Close()
	if err := run.stop(t); err != nil {
		t.Error(err)
	}
}
