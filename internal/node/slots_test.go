package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
)

// TestTriesAreBounded: operators of more job files than there are places are not tried, and the request is told so; the next
// one is, when there is a place again.
func TestTriesAreBounded(t *testing.T) {
	s := newShelf(t)
	a := s.agent("a")
	a.life = s.ctx
	file, err := job.Parse("job.yaml", []byte("name: j\nsources: {s: {generator: {records: 1, rate: 1}}}\noperators: {o: {native: count, from: s}}\nsinks: {k: {log: {}, from: o}}\n"))
	s.must(err)
	var places []func()
	for range triesAtOnce {
		release, err := a.trying.take(s.ctx, triesAtOnce)
		s.must(err)
		places = append(places, release)
	}
	gone, leave := context.WithCancel(s.ctx)
	leave()
	for range 20 { // if there were a place, chance would decide between it and the request's end
		if untried, err := a.tried(gone, file, nil); err != nil || len(untried) != 1 || !strings.Contains(untried[0], "were not tried") {
			t.Fatalf("%v, %v", untried, err)
		}
	}
	a.workers.Wait() // nothing goes on
	places[0]()
	if untried, err := a.tried(s.ctx, file, nil); err != nil || len(untried) != 0 {
		t.Errorf("%v, %v", untried, err)
	}
	a.workers.Wait()
	for range bodiesAtOnce {
		_, err := a.bodies.take(s.ctx, bodiesAtOnce)
		s.must(err)
	}
	var e *api.Error
	if _, err := a.PushModule(gone, "", strings.NewReader("x")); !errors.As(err, &e) || e.Status != 503 {
		t.Errorf("%v", err)
	}
}

// TestFullDiskIsSaid: to who uploads, with what is there.
func TestFullDiskIsSaid(t *testing.T) {
	s := newShelf(t)
	a := s.agent("g1")
	var e *api.Error
	err := a.uploadFailed(digestOf("a"), 900, fmt.Errorf("upload: %w", syscall.ENOSPC))
	if !errors.As(err, &e) || e.Status != 507 || !strings.Contains(e.Message, "the disk of agent g1 is full: 0 of 900 bytes") || strings.Contains(e.Hint, "what is there") {
		t.Errorf("%+v", err)
	}
	if _, err := a.uploads.Write(digestOf("a"), 900, 0, make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	err = a.uploadFailed(digestOf("a"), 900, fmt.Errorf("upload: %w", syscall.ENOSPC))
	if !errors.As(err, &e) || !strings.Contains(e.Message, ": 9 of 900 bytes") || !strings.Contains(e.Hint, "what is there is kept for up to a day") {
		t.Errorf("%+v", err)
	}
}

// TestBadDiskIsNobodysMistake: what the agent's disk refuses is no mistake of who uploads, registers, or pushes whole.
func TestBadDiskIsNobodysMistake(t *testing.T) {
	s := newShelf(t)
	a := s.agent("g1")
	dir, wasm, digest := t.TempDir(), module("a"), digestOf("a")
	var left []error
	var err error
	a.blobs, err = storage.OpenBlobs(dir)
	s.must(err)
	a.uploads, left, err = storage.OpenUploads(dir, uploadLimits)
	s.must(errors.Join(append(left, err)...))
	for _, name := range []string{strings.Replace(digest, ":", "%3a", 1), fmt.Sprintf("%s.%d.part", strings.TrimPrefix(digest, "sha256:"), len(wasm))} {
		s.must(os.MkdirAll(filepath.Join(dir, name), 0o750))
	}
	_, err = a.PushModule(s.ctx, "", bytes.NewReader(wasm))
	errs := map[string]error{"pushed whole": err}
	_, errs["registered"] = a.PushModule(s.ctx, digest, nil)
	s.must(os.Remove(filepath.Join(dir, strings.Replace(digest, ":", "%3a", 1))))
	_, errs["uploaded"] = a.Upload(s.ctx, digest, int64(len(wasm)), 0, bytes.NewReader(wasm))
	for what, err := range errs {
		var e *api.Error
		if err == nil || errors.As(err, &e) || !strings.Contains(err.Error(), "agent g1") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{"size": a.uploadFailed(digest, 9, storage.ErrRefused), "name": checkDigest("sha256:12")} {
		if !api.IsInvalid(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	var e *api.Error
	if err := a.uploadFailed(digest, 9, storage.ErrBusy); !errors.As(err, &e) || e.Status != 503 {
		t.Errorf("too many at once: %v", err)
	}
	s.must(os.WriteFile(filepath.Join(dir, strings.Replace(digest, ":", "%3a", 1)), wasm[1:], 0o600))
	if _, err := a.PushModule(s.ctx, digest, nil); !errors.As(err, &e) || e.Status != 409 || !strings.Contains(e.Message, "damaged") {
		t.Errorf("registered, damaged: %v", err)
	}
	if st, err := a.Uploaded(s.ctx, digest); err != nil || st.Complete {
		t.Errorf("it does not begin anew: %+v, %v", st, err)
	}
	if _, err := a.Uploaded(s.ctx, "what not"); !api.IsInvalid(err) || len(a.modules.touched) > 1 {
		t.Errorf("%v; %v", err, a.modules.touched)
	}
}

// TestUploadAtTheSameTime: who sends the last piece that another request has finished meanwhile is told that all is there.
func TestUploadAtTheSameTime(t *testing.T) {
	s := newShelf(t)
	a := s.agent("g1")
	wasm, digest := module("a"), digestOf("a")
	size := int64(len(wasm))
	sent := false
	st, err := a.Upload(s.ctx, digest, size, 0, readerFunc(func(b []byte) (int, error) {
		if !sent {
			sent = true
			return copy(b, wasm), nil
		}
		if st, err := a.Upload(s.ctx, digest, size, 0, bytes.NewReader(wasm)); err != nil || !st.Complete {
			t.Errorf("the other: %+v, %v", st, err)
		}
		return 0, io.EOF
	}))
	if err != nil || !st.Complete || st.Bytes != size {
		t.Errorf("%+v, %v", st, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
