//go:build tmpfs

package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
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
		return err == nil && api.Up(list) == 2, fmt.Sprint(list, err)
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

// TestSmallDiskOfTheServer: what the hub's embedded server keeps is on the full disk, too, twice, and the hub is
// booted in vain while the disk is full. When there is room again records and checkpoints go on; of the gateway nothing is restarted,
// and of the hub nothing but what booted.
func TestSmallDiskOfTheServer(t *testing.T) {
	disk := smallDisk(t, 64<<20)
	s := newOfflineSiteAt(t, false, filepath.Join(disk, "data"))
	goesOn := func() {
		t.Helper()
		s.write(100)
		s.comesNear()
		s.comesFar()
		s.hub.until("a checkpoint counts", func() (bool, string) {
			_, err := s.hub.client.CheckpointNow(t.Context(), "offline", "", patience)
			return err == nil, fmt.Sprint(err) // no coordinator answers while agents connect again
		})
		s.hub.until("it says no more of it", func() (bool, string) {
			st, err := s.hub.client.Status(t.Context())
			return err == nil && len(st.Notices) == 0, strings.Join(st.Notices, "\n")
		})
		s.nothingRestarted()
	}
	goesOn()
	for range 2 {
		free := fill(t, disk)
		s.write(100)
		s.hub.until("it says that the server does not write", func() (bool, string) {
			st, err := s.hub.client.Status(t.Context())
			said := strings.Join(st.Notices, "\n")
			return err == nil && st.Ready && strings.Contains(said, "starts again by itself"), said
		})
		free()
		goesOn()
	}
	// A server that boots on a full disk does not blame its files.
	s.hub.stop()
	free := fill(t, disk)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := node.Run(ctx, node.Options{Data: s.hubDir, NATSListen: "127.0.0.1:0", MQTTListen: node.Off, HTTP: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
	if err != nil && !strings.Contains(err.Error(), "no space left") {
		t.Errorf("on a full disk it ended with: %v", err)
	}
	s.write(100)
	free()
	s.bootHub()
	s.up.set(false, s.hub.at.NATS)
	goesOn()
}

// TestReadOnlyMount: an agent whose disk is mounted for reading only does not start, and says why; the doctor looks at
// its directory all the same and says what to do; mounted for writing, it goes on.
func TestReadOnlyMount(t *testing.T) {
	disk, f := smallDisk(t, 64<<20), newFiles(t)
	dir := filepath.Join(disk, "data")
	remount := func(flags uintptr) {
		t.Helper()
		if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	a := start(t, dir)
	a.mustApply(f.job(true, ""))
	f.write(t, "{\"k\":\"a\"}\n")
	f.wants(a, a1)
	a.stop()
	remount(syscall.MS_RDONLY)
	err := node.Run(t.Context(), node.Options{Data: dir, NATSListen: "127.0.0.1:0", MQTTListen: node.Off, HTTP: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
	if !errors.Is(err, syscall.EROFS) {
		t.Errorf("it ended with: %v", err)
	}
	d, err := node.Diagnose(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range d.Items {
		if want := map[bool]string{true: node.DiagnosedLocked, false: node.DiagnosedFine}[i.Name == "disk"]; i.State != want {
			t.Errorf("%+v, want %s", i, want)
		}
	}
	remount(0)
	a = start(t, dir)
	f.write(t, "{\"k\":\"b\"}\n")
	f.wants(a, a1, b1)
	a.replicated("lines")
}
