package main

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/signing"
)

// maxKeyBytes is far above what a key in PEM has.
const maxKeyBytes = 16 << 10

type operatorKeygenCmd struct {
	File string `arg:"" placeholder:"KEYFILE" help:"Where the private key goes; the public one goes beside it, as KEYFILE.pub."`
	output
}

// Help is what `agent operator keygen --help` says besides the flags.
func (operatorKeygenCmd) Help() string {
	return `An ed25519 key in PEM, as openssl genpkey -algorithm ed25519 makes it too. Keep the private key where operators
are built; trusted_keys in the configuration of the agents takes the public one.`
}

// Run implements the command.
func (c operatorKeygenCmd) Run(_ context.Context, p *program) error {
	private, public, err := signing.Generate()
	if err != nil {
		return err
	}
	key, err := signing.ParsePublic(public)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		path string
		text []byte
		mode os.FileMode
	}{{c.File + ".pub", public, 0o644}, {c.File, private, 0o600}} {
		f, err := os.OpenFile(part.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, part.mode)
		if errors.Is(err, os.ErrExist) {
			return usage("a key is not overwritten; name another file", "%w", err)
		}
		if err != nil {
			return usage("", "%w", err)
		}
		_, err = f.Write(part.text)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	text := base64.StdEncoding.EncodeToString(key)
	if c.JSON {
		return p.printJSON(map[string]string{"private": c.File, "public": c.File + ".pub", "key": text})
	}
	_, err = fmt.Fprintf(p.stdout, "private key %s, public key %s: %s\n", c.File, c.File+".pub", text)
	return err
}

// signer signs the registered version of a module.
type signer func(ctx context.Context, cl *api.Client, o api.Operator) (api.Operator, error)

// newSigner reads the key and the module. Nothing is registered yet when a key does not do.
func newSigner(keyFile string, module io.ReaderAt) (signer, error) {
	text, err := readSmall(keyFile, maxKeyBytes)
	if err != nil {
		return nil, usage("agent operator keygen makes a key", "--sign: %w", err)
	}
	key, err := signing.ParsePrivate(text)
	if err != nil {
		return nil, usage("agent operator keygen makes one", "--sign %s: %w", keyFile, err)
	}
	// The digest is that of the file here: an agent's word for it is not signed.
	digest, err := digestOf(module)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, cl *api.Client, o api.Operator) (api.Operator, error) {
		if digest != o.Digest {
			return o, fmt.Errorf("the agent has %s@%s as %s, the file is %s", o.Name, o.Version, o.Digest, digest)
		}
		return cl.SignOperator(ctx, o.Name, o.Version, signing.Operator(key, o.Name, o.Version, digest))
	}, nil
}

// loadTrusted reads the keys that a configuration file trusts: files in PEM, relative to it, each with one key or
// several, or keys in base64.
func (c configFile) loadTrusted(path string) (keys []ed25519.PublicKey, err error) {
	if !c.trusts {
		return nil, nil
	}
	for i, text := range c.TrustedKeys {
		some, err := signing.ParsePublics([]byte(text))
		if err != nil {
			file := text
			if !filepath.IsAbs(file) {
				file = filepath.Join(filepath.Dir(path), file)
			}
			var pem []byte
			if pem, err = readSmall(file, maxKeyBytes); err == nil {
				some, err = signing.ParsePublics(pem)
			}
		}
		if err == nil && len(some) == 0 {
			err = errors.New("it holds no key")
		}
		if err != nil {
			return nil, usage("give the file of a public key, or the key in base64; agent operator keygen makes both", "%s: trusted_keys, number %d: %s", path, i+1, strings.TrimSpace(err.Error()))
		}
		keys = append(keys, some...)
	}
	if len(keys) == 0 {
		return nil, usage("name keys, or leave trusted_keys out to trust every module", "%s: trusted_keys is empty", path)
	}
	return keys, nil
}
