package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/internal/api"
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
	if !errors.As(err, &e) || e.Status != 507 || !strings.Contains(e.Message, "the disk of agent g1 is full: 0 of 900 bytes") || e.Hint == "" {
		t.Errorf("%+v", err)
	}
}
