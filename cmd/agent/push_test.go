package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/web"
	"github.com/weir-stream/weir/internal/web/webtest"
)

// TestPushGoesOn: where the connection breaks the command waits, longer each time, says so, and goes on; after too many
// times it says what is there, and the next one sends only the rest.
func TestPushGoesOn(t *testing.T) {
	srv := web.New(web.Options{Backend: webtest.New(1), Log: slog.New(slog.DiscardHandler)})
	var breaks, sent atomic.Int64 // pieces that will break, bytes of pieces
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			if breaks.Add(-1) >= 0 {
				panic(http.ErrAbortHandler)
			}
			sent.Add(r.ContentLength)
		}
		srv.ServeHTTP(w, r)
	}))
	defer agent.Close()
	const size = 5<<19 + 17
	file := filepath.Join(t.TempDir(), "x.wasm")
	if err := os.WriteFile(file, bytes.Repeat([]byte("w"), size), 0o600); err != nil {
		t.Fatal(err)
	}
	push := func() (code int, stderr string, waits []time.Duration) {
		var out, errs bytes.Buffer
		p := program{stdout: &out, stderr: &errs, parts: spoken()}
		p.parts.wait = func(_ context.Context, d time.Duration) error {
			waits = append(waits, d)
			return nil
		}
		code = p.main(t.Context(), []string{"operator", "push", file, "--name", "n", "--version", "1", "--server", agent.URL})
		return code, errs.String(), waits
	}
	breaks.Store(1 << 20)
	code, stderr, waits := push()
	if code != 1 || len(waits) != 9 || waits[0] != 500*time.Millisecond || waits[1] != time.Second || waits[8] != 20*time.Second {
		t.Errorf("exits %d after waits %v", code, waits)
	}
	for _, want := range []string{"x.wasm: 0 B of 2.5 MiB are there; no answer", "going on in 2s", "it broke off 10 times in a row; 0 of 2621457 bytes are on the agent", "the same command goes on from there"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%s\nlacks %q", stderr, want)
		}
	}
	breaks.Store(2)
	if code, stderr, waits := push(); code != 0 || len(waits) != 2 {
		t.Errorf("exits %d after waits %v: %s", code, waits, stderr)
	}
	if sent.Load() != size {
		t.Errorf("%d bytes were sent of %d", sent.Load(), size)
	}
	if code, stderr, _ := push(); code != 0 || stderr != "" || sent.Load() != size {
		t.Errorf("exits %d, %d bytes were sent: %s", code, sent.Load(), stderr)
	}
}

// TestPushOnAFullDisk: to try again would not help, so it is said at once.
func TestPushOnAFullDisk(t *testing.T) {
	agent := serve(t, web.Options{})
	file := filepath.Join(t.TempDir(), "x.wasm")
	if err := os.WriteFile(file, make([]byte, 5<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	p := program{stdout: &out, stderr: &errs, parts: spoken()}
	p.parts.wait = func(context.Context, time.Duration) error {
		t.Error("it waits")
		return nil
	}
	if code := p.main(t.Context(), []string{"operator", "push", file, "--name", "n", "--version", "1", "--server", agent.URL}); code != 1 || !strings.HasSuffix(errs.String(), ": the disk is full\n  make room\n") {
		t.Errorf("exits %d: %s", code, errs.String())
	}
}
