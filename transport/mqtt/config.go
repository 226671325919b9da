package mqtt

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// Broker says which broker to connect to and as whom.
type Broker struct {
	// URL is tcp, mqtt, ssl, tls, mqtts, ws or wss://host[:port]. The default port is 1883, with
	// TLS 8883. A user and password in it are used if User is empty.
	URL string
	// ClientID names the session at the broker. It must be stable across restarts and used by one
	// connection only: the broker ends the older one of two.
	ClientID string
	User     string
	Password string
	// PasswordFile is read at every connect, if set; its line end is not part of the password.
	PasswordFile string
	// CAFile, CertFile and KeyFile are PEM files for TLS, all optional, read at every connect.
	CAFile, CertFile, KeyFile string
	// KeepAlive is the time after which silence means a lost connection, 30 s if zero. Half of it
	// passes between pings.
	KeepAlive time.Duration
}

// Deps are what a source or a sink needs of its agent.
type Deps struct {
	// Clock is the time in milliseconds since 1970.
	Clock func() int64
	Log   *slog.Logger
	// Admit, if not nil, takes each new connection to a broker and gives the one that is used instead, or an error.
	Admit func(net.Conn) (net.Conn, error)
}

const (
	defaultKeepAlive = 30 * time.Second
	// maxKeepAlive is what the protocol's 16 bits of seconds hold (MQTT 3.1.1, 3.1.2.10).
	maxKeepAlive = 65535 * time.Second
	// maxString is the protocol's bound on topics, identifiers and passwords (1.5.3).
	maxString = 65535
)

var defaultPorts = map[string]string{
	"tcp": "1883", "mqtt": "1883", "ssl": "8883", "tls": "8883", "mqtts": "8883", "ws": "80", "wss": "443",
}

// check completes the broker's defaults and reports what is wrong with it.
func (b Broker) check() (Broker, *url.URL, error) {
	u, err := url.Parse(b.URL)
	if err != nil {
		return b, nil, errors.New("broker: the URL cannot be read; write tcp://host:port") // err may hold the password
	}
	port, ok := defaultPorts[u.Scheme]
	if !ok || u.Hostname() == "" {
		return b, nil, fmt.Errorf("broker %q: write tcp, ssl, ws or wss://host[:port]", u.Redacted())
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), port)
	}
	if b.User == "" && u.User != nil {
		b.User = u.User.Username()
		b.Password, _ = u.User.Password()
	}
	u.User = nil
	switch {
	case b.ClientID == "" || len(b.ClientID) > maxString || !utf8.ValidString(b.ClientID):
		return b, nil, fmt.Errorf("broker %s: client id %q: give a stable text of 1–%d bytes", u, b.ClientID, maxString)
	case b.User == "" && (b.Password != "" || b.PasswordFile != ""):
		return b, nil, fmt.Errorf("broker %s: a password without a user; give both", u)
	case (b.CertFile == "") != (b.KeyFile == ""):
		return b, nil, fmt.Errorf("broker %s: a TLS certificate and its key belong together; give both files", u)
	case b.KeepAlive < 0 || b.KeepAlive > maxKeepAlive:
		return b, nil, fmt.Errorf("broker %s: keep-alive of %s, at most %s", u, b.KeepAlive, maxKeepAlive)
	}
	if b.KeepAlive == 0 {
		b.KeepAlive = defaultKeepAlive
	}
	return b, u, nil
}

// password is read anew for each connection, so that a changed file takes effect.
func (b Broker) password() (string, error) {
	if b.PasswordFile == "" {
		return b.Password, nil
	}
	text, err := os.ReadFile(b.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("password file: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", fmt.Errorf("password file: %s is empty", b.PasswordFile)
	}
	return password, nil
}

func (b Broker) tls(host string) (*tls.Config, error) {
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if b.CAFile != "" {
		pem, err := os.ReadFile(b.CAFile)
		if err != nil {
			return nil, fmt.Errorf("TLS authorities: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("TLS authorities: %s holds no certificate in PEM form", b.CAFile)
		}
	}
	if b.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(b.CertFile, b.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("TLS certificate %s and key %s: %w", b.CertFile, b.KeyFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// checkFilter reports why a topic filter is not one (MQTT 3.1.1, 4.7).
func checkFilter(filter string) error {
	if filter == "" || len(filter) > maxString || !utf8.ValidString(filter) || strings.ContainsRune(filter, 0) {
		return fmt.Errorf("topic %q: give 1–%d bytes of UTF-8 without NUL", filter, maxString)
	}
	levels := strings.Split(filter, "/")
	for i, l := range levels {
		if strings.Contains(l, "#") && (l != "#" || i != len(levels)-1) {
			return fmt.Errorf("topic %q: # stands alone and last", filter)
		}
		if strings.Contains(l, "+") && l != "+" {
			return fmt.Errorf("topic %q: + stands alone between slashes", filter)
		}
	}
	return nil
}

// checkTopic reports why a message cannot be published to a topic (MQTT 3.1.1, 3.3.2.1).
func checkTopic(topic []byte) error {
	switch {
	case len(topic) == 0:
		return errors.New("the topic is empty")
	case len(topic) > maxString:
		return fmt.Errorf("the topic has %d bytes, at most %d", len(topic), maxString)
	case !utf8.Valid(topic):
		return fmt.Errorf("the topic %q is not UTF-8", topic)
	}
	for _, c := range topic {
		if c == '+' || c == '#' || c == 0 {
			return fmt.Errorf("the topic %q contains %q", topic, c)
		}
	}
	return nil
}
