package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/signing"
)

// TestKeygenAndTrustedKeys: what keygen writes is what --sign and trusted_keys take; a key is never overwritten, and
// a list that trusts nobody is a mistake.
func TestKeygenAndTrustedKeys(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "key.pem")
	var out bytes.Buffer
	p := &program{stdout: &out, stderr: &out}
	if err := (operatorKeygenCmd{File: file}).Run(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if err := (operatorKeygenCmd{File: file}).Run(t.Context(), p); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("overwritten: %v", err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	key, err := signing.ParsePrivate(text)
	if err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(file + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := signing.Generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"both.pub": "# the old one\n" + string(other) + "# the new one\n" + string(public), "cut.pub": string(public) + string(other[:60]), "comment.pub": "# -----\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, said, _ := strings.Cut(strings.TrimSpace(out.String()), ".pub: ")
	load := func(yaml string) (int, error) {
		path := filepath.Join(dir, "agent.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		_, keys, err := loadConfig(path)
		for _, k := range keys {
			if !signing.Verify(keys, []string{signing.Operator(key, "n", "1", "d")}, "n", "1", "d") {
				t.Errorf("key %s does not verify", base64.StdEncoding.EncodeToString(k))
			}
		}
		return len(keys), err
	}
	for _, c := range []struct {
		yaml string
		keys int
		want string
	}{
		{"trusted_keys: [key.pem.pub]", 1, ""},
		{"trusted_keys: ['" + said + "', key.pem.pub]", 2, ""},
		{"auth: {}", 0, ""},
		{"trusted_keys: [both.pub]", 2, ""},
		{"trusted_keys: [cut.pub]", 0, "number 1: key 2: no public key in PEM"},
		{"trusted_keys: [comment.pub]", 0, "number 1: it holds no key"},
		{"trusted_keys: []", 0, "trusted_keys is empty"},
		{"trusted_keys:", 0, "trusted_keys is empty"},
		{"trusted_keys: null", 0, "trusted_keys is empty"},
		{"trusted_keys: ['']", 0, "number 1: "},
		{"trusted_keys: [key.pem]", 0, "number 1: PRIVATE KEY in PEM, a public key is wanted"},
		{"trusted_keys: [nowhere.pub]", 0, "nowhere.pub"},
	} {
		n, err := load(c.yaml)
		if n != c.keys || c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %d keys, %v", c.yaml, n, err)
		}
	}
	if _, keys, err := loadConfig(""); keys != nil || err != nil {
		t.Errorf("no file: %v, %v", keys, err)
	}
}

// TestPushAndSign: one command registers a module and signs it, by the digest of the file.
func TestPushAndSign(t *testing.T) {
	dir := t.TempDir()
	keyFile, module := filepath.Join(dir, "key.pem"), filepath.Join(dir, "m.wasm")
	p := &program{stdout: io.Discard, stderr: io.Discard}
	if err := (operatorKeygenCmd{File: keyFile}).Run(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(module, []byte("\x00asm and more"), 0o600); err != nil {
		t.Fatal(err)
	}
	var digest, signature string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var answer any
		switch {
		case strings.Contains(r.URL.Path, "/uploads/"):
			sum := sha256.Sum256(body)
			digest = "sha256:" + hex.EncodeToString(sum[:])
			answer = api.Upload{Digest: digest, Bytes: int64(len(body)), Complete: r.Method == http.MethodPatch}
		default:
			if strings.HasSuffix(r.URL.Path, "/signature") {
				signature = string(body)
			}
			answer = api.Operator{Name: "n", Version: "1", Digest: digest}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()
	c := operatorPushCmd{File: module, Name: "n", Version: "1", Sign: keyFile, remote: remote{Server: srv.URL}}
	if err := c.Run(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(keyFile + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	key, err := signing.ParsePublic(public)
	if err != nil {
		t.Fatal(err)
	}
	if !signing.Verify([]ed25519.PublicKey{key}, []string{signature}, "n", "1", digest) {
		t.Errorf("signature %q of %s does not verify", signature, digest)
	}
}
