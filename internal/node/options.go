// Package node assembles an agent: its stores, its connections, its tasks, and its part in the
// control plane.
package node

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"github.com/weir-stream/weir/internal/api"
)

// Default listeners of an agent that runs the embedded server.
const (
	DefaultNATSListen = "127.0.0.1:4222"
	DefaultMQTTListen = "127.0.0.1:1883"
	DefaultHTTP       = "127.0.0.1:8080"
	// Off as MQTTListen means no MQTT listener.
	Off = "off"
)

// Credential is a user and a password; zero is none.
type Credential struct {
	User     string
	Password string
}

// IsZero tells whether there is none.
func (c Credential) IsZero() bool { return c == Credential{} }

// String hides the password.
func (c Credential) String() string { return c.User }

// GoString hides the password.
func (c Credential) GoString() string { return fmt.Sprintf("Credential{%q}", c.User) }

// Auth is who may use an agent's listeners. Without a credential a listener asks for none, and is
// refused anywhere but on a loopback address.
type Auth struct {
	// NATS is asked for by the embedded server, or given to the server of Options.NATS.
	NATS Credential
	// Leaf is given to the hub of Options.Leaf.
	Leaf Credential
	MQTT Credential
	HTTP Credential
}

// Options says how to run an agent.
type Options struct {
	// Data is the agent's directory, made if missing.
	Data string
	// Name is the agent's name. Empty: the one stored in Data, else the host's name.
	Name   string
	Labels map[string]string
	// Replace is the name of an agent whose device was lost: an agent on an empty directory takes the name,
	// and what the other one alone knew is given up. On a directory that has been an agent's it is a name only.
	Replace string
	// NATS is the URL of a NATS server with JetStream, perhaps several with commas between them.
	// Empty: the embedded server.
	NATS string
	// Leaf is the URL at which a hub takes leaf nodes: the embedded server joins it. Empty: it joins none.
	Leaf string
	// LeafListen is HOST:PORT where the embedded server takes leaf nodes; empty: it takes none.
	LeafListen string
	// NATSListen, MQTTListen and HTTP are HOST:PORT; port 0 picks a free one. Empty NATSListen and
	// MQTTListen: the defaults, or none if NATS is set. Empty HTTP: the default.
	NATSListen string
	MQTTListen string // also Off
	HTTP       string
	Auth       Auth
	// TrustedKeys, if there are any, sign what this agent loads.
	TrustedKeys []ed25519.PublicKey
	// Version of the program, for others to see.
	Version string
	// Clock is the time in milliseconds since 1970; nil: that of the machine.
	Clock func() int64
	// LogRoom says how many of so many bytes a write to the input log finds room for; nil: what the disk has.
	LogRoom func(bytes int) int
	// LogBudget is how many bytes the input log may take; 0: the default of package storage.
	LogBudget int64
	// Kill ends the process in a drill; nil: with SIGKILL.
	Kill func()
}

// Embedded tells whether the agent runs its own NATS server.
func (o Options) Embedded() bool { return o.NATS == "" }

// WithDefaults fills in the listeners that were left out.
func (o Options) WithDefaults() Options {
	if o.HTTP == "" {
		o.HTTP = DefaultHTTP
	}
	if !o.Embedded() {
		o.MQTTListen = Off
		return o
	}
	if o.NATSListen == "" {
		o.NATSListen = DefaultNATSListen
	}
	if o.MQTTListen == "" {
		o.MQTTListen = DefaultMQTTListen
	}
	return o
}

// labelPattern is what values of labels may be; they become parts of topics.
var labelPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)

// Validate reports everything that is wrong with the options, before defaults are filled in. It
// looks at nothing but the options themselves.
func (o Options) Validate() error {
	errs := []error{o.validateIdentity(), o.validateTopology()}
	d := o.WithDefaults()
	errs = append(errs, validateListen("--http", d.HTTP, "auth.http", d.Auth.HTTP))
	if d.NATSListen != "" && d.Embedded() {
		errs = append(errs, validateListen("--nats-listen", d.NATSListen, "auth.nats", d.Auth.NATS))
	}
	if d.LeafListen != "" && d.Embedded() {
		errs = append(errs, validateListen("--leaf-listen", d.LeafListen, "auth.nats", d.Auth.NATS))
	}
	if d.MQTTListen != Off {
		errs = append(errs, validateListen("--mqtt-listen", d.MQTTListen, "auth.mqtt", d.Auth.MQTT))
	}
	return errors.Join(errs...)
}

func (o Options) validateIdentity() error {
	var errs []error
	if o.Data == "" {
		errs = append(errs, errors.New("--data is missing: name the agent's directory"))
	}
	if o.Name != "" && !api.NamePattern.MatchString(o.Name) {
		errs = append(errs, fmt.Errorf("--name %q: use up to 64 letters, digits, - and _, the first a letter or digit", o.Name))
	}
	if o.Replace != "" && !api.NamePattern.MatchString(o.Replace) {
		errs = append(errs, fmt.Errorf("--replace %q: it is the name of an agent", o.Replace))
	}
	if o.Replace != "" && o.Name != "" && o.Name != o.Replace {
		errs = append(errs, fmt.Errorf("--replace %s with --name %s: the agent takes the name of the one that it replaces; leave --name out", o.Replace, o.Name))
	}
	for k, v := range o.Labels {
		if !api.NamePattern.MatchString(k) || !labelPattern.MatchString(v) {
			errs = append(errs, fmt.Errorf("--label %s=%s: use up to 64 letters, digits, - and _ (in the value also .), the first a letter or digit", k, v))
		}
	}
	return errors.Join(errs...)
}

func (o Options) validateTopology() error {
	if o.Embedded() {
		return o.validateLeaf()
	}
	var errs []error
	for part := range strings.SplitSeq(o.NATS, ",") {
		errs = append(errs, validateNATSURL("--nats", strings.TrimSpace(part)))
	}
	if o.Leaf != "" || o.LeafListen != "" {
		errs = append(errs, errors.New("--leaf and --leaf-listen are about the embedded server, which does not run with --nats; leave one of them out"))
	}
	if o.NATSListen != "" {
		errs = append(errs, errors.New("--nats-listen with --nats: an agent that uses another NATS server runs none itself; leave one of them out"))
	}
	if o.MQTTListen != "" && o.MQTTListen != Off {
		errs = append(errs, errors.New("--mqtt-listen with --nats: the MQTT listener is part of the embedded server, which does not run; leave one of them out"))
	}
	if !o.Auth.MQTT.IsZero() {
		errs = append(errs, errors.New("auth.mqtt with --nats: there is no MQTT listener to protect; a job's MQTT sources and sinks name their own user and password_file"))
	}
	return errors.Join(errs...)
}

func (o Options) validateLeaf() error {
	if (o.Auth.Leaf.User == "") != (o.Auth.Leaf.Password == "") {
		return errors.New("auth.leaf: needs both a user and a password")
	}
	switch {
	case o.Leaf == "" && !o.Auth.Leaf.IsZero():
		return errors.New("auth.leaf without --leaf: there is no hub to give it to")
	case o.Leaf == "":
		return nil
	case o.LeafListen != "":
		return errors.New("--leaf with --leaf-listen: a leaf node takes no leaf nodes of its own; leave one of them out")
	}
	return validateNATSURL("--leaf", o.Leaf)
}

// validateNATSURL never repeats the URL, which may hold a password.
func validateNATSURL(flag, s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Errorf("%s: not a URL; write nats://HOST:PORT, or nats://USER:PASSWORD@HOST:PORT with special characters percent-encoded", flag)
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
	default:
		return fmt.Errorf("%s: scheme %q is none of nats, tls, ws, wss; write nats://HOST:PORT", flag, u.Scheme)
	}
	if u.Hostname() == "" {
		return fmt.Errorf("%s: no host in the URL; write nats://HOST:PORT", flag)
	}
	return nil
}

func validateListen(flag, addr, key string, cred Credential) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%s %q: write HOST:PORT, for example 127.0.0.1:0", flag, addr)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%s %q: %q is not a port", flag, addr, port)
	}
	if (cred.User == "") != (cred.Password == "") {
		return fmt.Errorf("%s: needs both a user and a password", key)
	}
	if loopback(host) || !cred.IsZero() {
		return nil
	}
	return fmt.Errorf("%s %s listens wider than this machine and asks for no password: set %s (user, password_file) in the --config file, or listen on 127.0.0.1", flag, addr, key)
}

// loopback does not resolve names: what a name means may change after the check.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
