package main

import (
	"strings"
	"testing"
)

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte("auth:\n  http: {user: u, password_file: p}\n"))
	f.Add([]byte("auth: ["))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := parseConfig("f.yaml", data); err != nil && !strings.HasPrefix(err.Error(), "f.yaml:") {
			t.Errorf("the error does not name the file: %v", err)
		}
	})
}
