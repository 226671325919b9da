package signing

import (
	"crypto/ed25519"
	"encoding/base64"
	"strings"
	"testing"
)

func TestSignatures(t *testing.T) {
	private, public, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParsePrivate(private)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := ParsePublic(public)
	if err != nil {
		t.Fatal(err)
	}
	short, err := ParsePublic([]byte(base64.StdEncoding.EncodeToString(pub) + "\n"))
	if err != nil || !short.Equal(pub) {
		t.Fatalf("in base64: %v", err)
	}
	_, foreign, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := Operator(key, "count", "1.0.0", "sha256:aa")
	if err := Check(s); err != nil {
		t.Error(err)
	}
	keys := []ed25519.PublicKey{foreign.Public().(ed25519.PublicKey), pub}
	for _, c := range []struct {
		name, version, digest string
		signatures            []string
		want                  bool
	}{
		{"count", "1.0.0", "sha256:aa", []string{"nonsense", s}, true},
		{"count", "1.0.0", "sha256:ab", []string{s}, false},
		{"count", "1.0.1", "sha256:aa", []string{s}, false},
		{"coun", "t@1.0.0", "sha256:aa", []string{s}, false},
		{"count", "1.0.0", "sha256:aa", nil, false},
	} {
		if got := Verify(keys, c.signatures, c.name, c.version, c.digest); got != c.want {
			t.Errorf("%s@%s of %s: %v", c.name, c.version, c.digest, got)
		}
	}
	if Verify(keys[:1], []string{s}, "count", "1.0.0", "sha256:aa") {
		t.Error("a foreign key verifies")
	}
	if err := Check(s[:20]); err == nil {
		t.Error("half a signature is one")
	}
	for _, bad := range []string{"", "x", string(public), strings.Replace(string(private), "M", "N", 1)} {
		if _, err := ParsePrivate([]byte(bad)); err == nil {
			t.Errorf("a private key: %q", bad)
		}
	}
	for _, bad := range []string{"", "x", string(private), "AAAA"} {
		if _, err := ParsePublic([]byte(bad)); err == nil {
			t.Errorf("a public key: %q", bad)
		}
	}
}
