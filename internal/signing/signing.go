// Package signing signs operators with ed25519 (RFC 8032), so that a device runs only what the holder of a key has
// registered.
//
// What is signed names the module's digest and the version that it is registered as:
//
//	"weir operator v1" | 0 | name | "@" | version | 0 | digest
//
// so that a signature is worth nothing for other bytes, for another name or version, or in another protocol. Private
// keys are PKCS #8 in PEM, as `openssl genpkey -algorithm ed25519` writes them; public keys are PKIX in PEM, or the 32
// bytes in base64.
package signing

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
)

// domain keeps these signatures apart from all others made with the key.
const domain = "weir operator v1"

// message is what is signed.
func message(name, version, digest string) []byte {
	return []byte(domain + "\x00" + name + "@" + version + "\x00" + digest)
}

// Operator signs a version of an operator; the signature is in base64.
func Operator(key ed25519.PrivateKey, name, version, digest string) string {
	return base64.StdEncoding.EncodeToString(ed25519.Sign(key, message(name, version, digest)))
}

// Check refuses what is no signature.
func Check(signature string) error {
	b, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || len(b) != ed25519.SignatureSize {
		return fmt.Errorf("not an ed25519 signature: %d bytes in base64 are wanted", ed25519.SignatureSize)
	}
	return nil
}

// Verify says whether one of the signatures is by one of the keys.
func Verify(keys []ed25519.PublicKey, signatures []string, name, version, digest string) bool {
	m := message(name, version, digest)
	for _, s := range signatures {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil || len(b) != ed25519.SignatureSize {
			continue
		}
		for _, k := range keys {
			if ed25519.Verify(k, m, b) {
				return true
			}
		}
	}
	return false
}

// Generate makes a key: private and public in PEM.
func Generate() (private, public []byte, err error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	pubDER, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pubDER}), nil
}

// ParsePrivate reads a private key. Its errors repeat nothing of it.
func ParsePrivate(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("not a private key in PEM (PKCS #8)")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("a private key that cannot be read")
	}
	ed, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a private key of another kind (%T), ed25519 is wanted", key)
	}
	return ed, nil
}

// ParsePublic reads a public key, in PEM or base64.
func ParsePublic(text []byte) (ed25519.PublicKey, error) {
	keys, err := ParsePublics(text)
	if err == nil && len(keys) != 1 {
		err = fmt.Errorf("%d public keys, one is wanted", len(keys))
	}
	if err != nil {
		return nil, err
	}
	return keys[0], nil
}

// ParsePublics reads public keys: one or several in PEM, one after the other, or one in base64. What stands between
// keys in PEM may be a comment, a line that begins with #, and nothing else: a key that is cut off is a mistake.
func ParsePublics(text []byte) (keys []ed25519.PublicKey, err error) {
	rest := bytes.TrimSpace(text)
	if !bytes.Contains(rest, []byte("-----")) {
		b, err := base64.StdEncoding.DecodeString(string(rest))
		if err != nil || len(b) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("neither a public key in PEM nor %d bytes in base64", ed25519.PublicKeySize)
		}
		return []ed25519.PublicKey{b}, nil
	}
	which := func(err error) error {
		if len(keys) == 0 {
			return err
		}
		return fmt.Errorf("key %d: %w", len(keys)+1, err)
	}
	for rest = skipComments(rest); len(rest) > 0; rest = skipComments(rest) {
		block, after := pem.Decode(rest)
		if block == nil || !bytes.HasPrefix(rest, []byte("-----BEGIN "+block.Type+"-----")) {
			return nil, which(errors.New("no public key in PEM"))
		}
		key, err := publicOf(block)
		if err != nil {
			return nil, which(err)
		}
		keys, rest = append(keys, key), after
	}
	return keys, nil
}

// skipComments takes blank lines and comments off the front.
func skipComments(text []byte) []byte {
	for {
		text = bytes.TrimSpace(text)
		if !bytes.HasPrefix(text, []byte("#")) {
			return text
		}
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
}

func publicOf(block *pem.Block) (ed25519.PublicKey, error) {
	if block.Type != "PUBLIC KEY" {
		return nil, fmt.Errorf("%s in PEM, a public key is wanted", block.Type)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("a public key that cannot be read: %w", err)
	}
	ed, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("a public key of another kind (%T), ed25519 is wanted", key)
	}
	return ed, nil
}
