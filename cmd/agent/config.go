package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/weir-stream/weir/internal/node"
)

// Limits of files that name how an agent runs: far above what a person writes.
const (
	maxConfigBytes   = 64 << 10
	maxPasswordBytes = 4 << 10
)

// configFile is the file of `agent run --config`.
type configFile struct {
	Auth struct {
		NATS *credentialConfig `yaml:"nats"`
		Leaf *credentialConfig `yaml:"leaf"`
		MQTT *credentialConfig `yaml:"mqtt"`
		HTTP *credentialConfig `yaml:"http"`
	} `yaml:"auth"`
	// TrustedKeys sign what the agent loads: files of public keys, or keys in base64. Left out: it loads all.
	TrustedKeys []string `yaml:"trusted_keys"`
	// trusts: the file has trusted_keys, which may be empty.
	trusts bool
}

// credentialConfig names a user and a file that holds nothing but the password.
type credentialConfig struct {
	User         string `yaml:"user"`
	PasswordFile string `yaml:"password_file"` // relative to the configuration file
}

// loadConfig reads a configuration file, and the password files and keys that it names. No path: nothing.
func loadConfig(path string) (auth node.Auth, trusted []ed25519.PublicKey, err error) {
	if path == "" {
		return auth, nil, nil
	}
	data, err := readSmall(path, maxConfigBytes)
	if err != nil {
		return auth, nil, usage("", "--config: %w", err)
	}
	c, err := parseConfig(path, data)
	if err != nil {
		return auth, nil, usage("known keys: auth.nats, auth.leaf, auth.mqtt, auth.http, each with user and password_file; trusted_keys", "%w", err)
	}
	if auth, err = c.loadAuth(path); err != nil {
		return auth, nil, err
	}
	trusted, err = c.loadTrusted(path)
	return auth, trusted, err
}

// loadAuth reads the password files.
func (c configFile) loadAuth(path string) (auth node.Auth, err error) {
	dir := filepath.Dir(path)
	for _, one := range []struct {
		key  string
		from *credentialConfig
		to   *node.Credential
	}{
		{"auth.nats", c.Auth.NATS, &auth.NATS},
		{"auth.leaf", c.Auth.Leaf, &auth.Leaf},
		{"auth.mqtt", c.Auth.MQTT, &auth.MQTT},
		{"auth.http", c.Auth.HTTP, &auth.HTTP},
	} {
		if one.from == nil {
			continue
		}
		if *one.to, err = one.from.load(dir); err != nil {
			return node.Auth{}, usage("", "%s: %s: %w", path, one.key, err)
		}
	}
	return auth, nil
}

// parseConfig never repeats a value of the file: somebody may have put a password there.
func parseConfig(path string, data []byte) (c configFile, err error) {
	defer func() {
		if p := recover(); p != nil { // the YAML parser panics on some malformed files
			c, err = configFile{}, fmt.Errorf("%s: malformed YAML", path)
		}
	}()
	err = yaml.UnmarshalWithOptions(data, &c, yaml.Strict())
	if err == nil || errors.Is(err, io.EOF) {
		var keys map[string]any // a key without a value leaves nothing behind in a list
		if err := yaml.Unmarshal(data, &keys); err != nil {
			return configFile{}, fmt.Errorf("%s: malformed YAML", path)
		}
		_, c.trusts = keys["trusted_keys"]
		return c, nil
	}
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil {
		at := y.GetToken().Position
		return configFile{}, fmt.Errorf("%s:%d:%d: %s", path, at.Line, at.Column, y.GetMessage())
	}
	return configFile{}, fmt.Errorf("%s: malformed YAML", path)
}

func (c credentialConfig) load(dir string) (node.Credential, error) {
	if c.User == "" || c.PasswordFile == "" {
		return node.Credential{}, errors.New("needs both user and password_file")
	}
	file := c.PasswordFile
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	data, err := readSmall(file, maxPasswordBytes)
	if err != nil {
		return node.Credential{}, fmt.Errorf("password_file: %w", err)
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" {
		return node.Credential{}, fmt.Errorf("password_file %s is empty", file)
	}
	return node.Credential{User: c.User, Password: password}, nil
}

// readSmall reads a file that must not be larger than limit bytes. Its errors name the file.
func readSmall(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %s", path, bytesText(limit))
	}
	return data, nil
}
