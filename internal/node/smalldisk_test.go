//go:build tmpfs

package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/node"
)

// smallDisk mounts a file system of its own, for which the test must be root.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Fatalf("mount a small disk: %v (this test needs root)", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill leaves no room on the disk; the returned function gives it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size >= 1; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSmallDisk: the whole of a gateway's disk is full while it takes records, saves snapshots, and over a
// restart. Nothing is lost or doubled, nothing crashes, and when
// there is room again all goes on.
func TestSmallDisk(t *testing.T) {
	hubDir, dir := t.TempDir(), smallDisk(t, 64<<20)
	hub := startWith(t, node.Options{Data: hubDir, Name: "hub", NATSListen: "127.0.0.1:0", Labels: map[string]string{"role": "hub"}})
	boot := func() *agent {
		return startWith(t, node.Options{Data: filepath.Join(dir, "data"), Name: "gate", NATS: "nats://" + hub.at.NATS, Labels: map[string]string{"role": "gateway"}})
	}
	a := boot()
	hub.until("both agents are there", func() (bool, string) {
		list, err := hub.client.Agents(t.Context())
		return err == nil && len(list) == 2 && list[0].State == "up" && list[1].State == "up", fmt.Sprint(list, err)
	})
	s := &offlineSite{t: t, hub: hub, gate: a, in: newFiles(t)}
	s.near, s.far = filepath.Join(t.TempDir(), "near"), filepath.Join(t.TempDir(), "far")
	hub.mustApply(fmt.Sprintf(offlineJob, s.in.in, s.near, s.far))
	s.write(500)
	s.comesNear()
	s.comesFar()

	tell := func() {
		t.Helper()
		s.gate.until("it says that there is no room", func() (bool, string) {
			st, err := s.gate.client.Status(t.Context())
			return err == nil && st.Ready && strings.Contains(strings.Join(st.Notices, "\n"), "no space left"), fmt.Sprint(st.Notices, err)
		})
	}
	free := fill(t, dir)
	s.write(500)
	tell()
	if _, err := hub.client.CheckpointNow(t.Context(), "offline", "", time.Second); err == nil {
		t.Error("a checkpoint was taken without room for it")
	}
	free()
	s.comesNear()
	s.comesFar()
	hub.replicated("offline")

	free = fill(t, dir)
	s.write(500)
	tell()
	s.gate.stop()
	free()
	s.gate = boot()
	s.write(500)
	s.comesNear()
	s.comesFar()
	hub.replicated("offline")
}

// TestSmallDiskOfTheServer: what the embedded server keeps is on the full disk, too. Records go on when there is
// room again; for checkpoints the agent says that it must be started again, and then they do.
func TestSmallDiskOfTheServer(t *testing.T) {
	dir, f := filepath.Join(smallDisk(t, 64<<20), "data"), newFiles(t)
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, a1)
	free := fill(t, filepath.Dir(dir))
	f.write(t, "{\"k\":\"b\"}\n")
	a.until("it says that the server does not write", func() (bool, string) {
		st, err := a.client.Status(t.Context())
		said := strings.Join(st.Notices, "\n")
		return err == nil && strings.Contains(said, "started again"), said
	})
	free()
	f.wants(a, a1, b1)
	a.stop()
	a = start(t, dir)
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, a1, b1, a2)
	a.replicated("lines")
}
