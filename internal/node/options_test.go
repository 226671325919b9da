package node

import (
	"fmt"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	secret := Credential{User: "u", Password: "hunter2"}
	tests := []struct {
		name string
		opt  Options
		want []string // parts of the error; none: valid
	}{
		{"least", Options{Data: "d"}, nil},
		{"nothing", Options{}, []string{"--data is missing"}},
		{"names", Options{Data: "d", Name: "a b", Labels: map[string]string{"ro.le": "x", "y": "+"}}, []string{`--name "a b"`, "--label ro.le=x", "--label y=+"}},
		{"free ports", Options{Data: "d", HTTP: "127.0.0.1:0", NATSListen: "[::1]:0", MQTTListen: "localhost:0"}, nil},
		{"MQTT off", Options{Data: "d", MQTTListen: Off}, nil},
		{"addresses", Options{Data: "d", HTTP: "8080", NATSListen: "127.0.0.1:x", MQTTListen: "127.0.0.1:70000"}, []string{`--http "8080": write HOST:PORT`, `"x" is not a port`, `"70000" is not a port`}},
		{"wide", Options{Data: "d", HTTP: ":8080", NATSListen: "0.0.0.0:4222", MQTTListen: "10.0.0.5:1883"}, []string{"set auth.http", "set auth.nats", "set auth.mqtt"}},
		{"a name is not known to be loopback", Options{Data: "d", HTTP: "gateway:8080"}, []string{"set auth.http"}},
		{"wide with passwords", Options{Data: "d", HTTP: ":8080", NATSListen: "0.0.0.0:4222", MQTTListen: "[::]:1883", Auth: Auth{NATS: secret, MQTT: secret, HTTP: secret}}, nil},
		{"half a credential", Options{Data: "d", Auth: Auth{HTTP: Credential{User: "u"}}}, []string{"auth.http: needs both"}},
		{"client", Options{Data: "d", NATS: "nats://hub:4222, tls://u:hunter2@other", MQTTListen: Off, Auth: Auth{NATS: secret}}, nil},
		{"client that listens", Options{Data: "d", NATS: "nats://hub", NATSListen: "127.0.0.1:1", MQTTListen: "127.0.0.1:2"}, []string{"--nats-listen with --nats", "--mqtt-listen with --nats"}},
		{"client with auth.mqtt", Options{Data: "d", NATS: "nats://hub", Auth: Auth{MQTT: secret}}, []string{"auth.mqtt with --nats"}},
		{"scheme", Options{Data: "d", NATS: "http://hub"}, []string{`scheme "http"`}},
		{"no host", Options{Data: "d", NATS: "nats://u:hunter2@"}, []string{"no host"}},
		{"not a URL", Options{Data: "d", NATS: "nats://u:hunter2@[x"}, []string{"not a URL"}},
	}
	for _, k := range tests {
		err := k.opt.Validate()
		if len(k.want) == 0 && err != nil {
			t.Errorf("%s: %v", k.name, err)
		}
		text := fmt.Sprint(err)
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s: tells a password: %s", k.name, text)
		}
		for _, w := range k.want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: %s\nlacks %q", k.name, text, w)
			}
		}
		if n := strings.Count(text, "\n") + 1; len(k.want) > 0 && n != len(k.want) {
			t.Errorf("%s: %d errors, want %d: %s", k.name, n, len(k.want), text)
		}
	}
}

func TestDefaults(t *testing.T) {
	o := Options{}.WithDefaults()
	if o.HTTP != DefaultHTTP || o.NATSListen != DefaultNATSListen || o.MQTTListen != DefaultMQTTListen {
		t.Errorf("embedded: %+v", o)
	}
	o = Options{NATS: "nats://hub"}.WithDefaults()
	if o.HTTP != DefaultHTTP || o.NATSListen != "" || o.MQTTListen != Off {
		t.Errorf("client: %+v", o)
	}
}

func TestCredentialHidesItsPassword(t *testing.T) {
	o := Options{Auth: Auth{HTTP: Credential{User: "u", Password: "hunter2"}}}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, o); strings.Contains(s, "hunter2") {
			t.Errorf("%s: %s", format, s)
		}
	}
}
