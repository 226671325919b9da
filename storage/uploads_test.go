package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// uploading is a directory of uploads with a clock, and the blobs that they become.
type uploading struct {
	*Uploads
	t     *testing.T
	dir   string
	blobs *Blobs
	clock time.Time
	room  int // bytes that a write may still take; below 0: any
}

func newUploading(t *testing.T) *uploading {
	u := &uploading{t: t, dir: t.TempDir(), clock: time.Now(), room: -1}
	u.reopen()
	return u
}

func (u *uploading) reopen() {
	u.t.Helper()
	var err error
	if u.blobs, err = OpenBlobs(filepath.Join(u.dir, "blobs")); err != nil {
		u.t.Fatal(err)
	}
	full := datedDisk{tightDisk{disk{}, func(n int) int {
		if u.room < 0 {
			return n
		}
		take := min(n, u.room)
		u.room -= take
		return take
	}}, disk{}}
	limits := UploadLimits{Size: 1000, Total: 2000, Age: 24 * time.Hour, Busy: time.Minute}
	var left []error
	if u.Uploads, left, err = openUploads(filepath.Join(u.dir, "uploads"), full, limits, func() time.Time { return u.clock }); err != nil || len(left) > 0 {
		u.t.Fatal(err, left)
	}
}

// datedDisk also knows when files were written.
type datedDisk struct {
	tightDisk
	dates disk
}

func (d datedDisk) Modified(name string) (time.Time, error) { return d.dates.Modified(name) }

func (u *uploading) write(name string, size, offset int, b []byte, want int) {
	u.t.Helper()
	if have, err := u.Write(name, int64(size), int64(offset), b); err != nil || have != int64(want) {
		u.t.Fatalf("%d bytes are there, want %d; %v", have, want, err)
	}
}

func (u *uploading) files() (names []string) {
	list, err := os.ReadDir(filepath.Join(u.dir, "uploads"))
	if err != nil {
		u.t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func letters(n int, letter string) ([]byte, string) {
	b := bytes.Repeat([]byte(letter), n)
	return b, Digest(b)
}

// TestUploadGoesOn: from what is there, across a restart, whoever sends what; gaps are refused; in the end it is a blob.
func TestUploadGoesOn(t *testing.T) {
	u := newUploading(t)
	b, name := letters(900, "x")
	u.write(name, 900, 0, b[:100], 100)
	u.write(name, 900, 50, b[50:300], 300)
	u.write(name, 900, 0, b[:200], 300)
	if have, err := u.Write(name, 900, 301, b[301:400]); !errors.Is(err, ErrGap) || have != 300 {
		t.Fatalf("a gap: %d, %v", have, err)
	}
	if err := u.Finish(name, u.blobs); !errors.Is(err, ErrGap) {
		t.Fatalf("finished early: %v", err)
	}
	if err := u.Sync(name); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(u.dir, "uploads", "other"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	u.reopen()
	if have := u.Have(name); have != 300 || u.Bytes() != 300 {
		t.Fatalf("after a restart %d bytes are there, %d of all", have, u.Bytes())
	}
	u.write(name, 900, 300, b[300:], 900)
	if _, err := u.Write(name, 900, 900, []byte("y")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "more than the 900 bytes") {
		t.Errorf("beyond its end: %v", err)
	}
	for range 2 { // a second one who has sent it
		if err := u.Finish(name, u.blobs); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := u.blobs.Get(name); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if f := u.files(); len(f) != 0 || u.Have(name) != 0 {
		t.Errorf("left are %v", f)
	}
}

// TestUploadOfOtherBytes: what does not match its digest is given up, and may come again.
func TestUploadOfOtherBytes(t *testing.T) {
	u := newUploading(t)
	b, name := letters(100, "x")
	u.write(name, 100, 0, bytes.Repeat([]byte("y"), 100), 100)
	if err := u.Finish(name, u.blobs); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("other bytes: %v", err)
	}
	if has, err := u.blobs.Has(name); has || err != nil || len(u.files()) != 0 {
		t.Fatalf("it is there: %v, %v, %v", has, err, u.files())
	}
	u.write(name, 90, 0, b[:90], 90) // somebody takes it for shorter
	u.write(name, 100, 0, b[:50], 50)
	u.write(name, 100, 50, b[50:], 100)
	if err := u.Finish(name, u.blobs); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sha256:12", "../x", strings.ToUpper(name), ""} {
		if _, err := u.Write(name, 10, 0, []byte("x")); !errors.Is(err, ErrRefused) {
			t.Errorf("%q is a name: %v", name, err)
		}
	}
	for _, size := range []int64{0, -1, 1001} {
		if _, err := u.Write(name, size, 0, nil); !errors.Is(err, ErrRefused) {
			t.Errorf("%d is a size: %v", size, err)
		}
	}
}

// TestUploadsAreBounded: in bytes, by giving up what has rested for longest, but nothing that goes on; and in age, also over a
// restart.
func TestUploadsAreBounded(t *testing.T) {
	u := newUploading(t)
	names := map[string]string{}
	add := func(letter string) error {
		b, name := letters(1000, letter)
		names[letter] = name
		_, err := u.Write(name, 1000, 0, b[:10])
		return err
	}
	wants := func(some string) {
		t.Helper()
		got := ""
		for _, l := range []string{"a", "b", "c", "d"} {
			if u.Have(names[l]) > 0 {
				got += l
			}
		}
		if got != some || len(u.files()) != len(some) {
			t.Errorf("there are %q, %v, want %q", got, u.files(), some)
		}
	}
	if err := errors.Join(add("a"), add("b")); err != nil {
		t.Fatal(err)
	}
	if err := add("c"); !errors.Is(err, ErrBusy) {
		t.Fatalf("a third one: %v", err)
	}
	u.clock = u.clock.Add(59 * time.Second)
	if err := add("a"); err != nil { // goes on
		t.Fatal(err)
	}
	u.clock = u.clock.Add(time.Second)
	if err := add("c"); err != nil {
		t.Fatal(err)
	}
	wants("ac")
	u.clock = time.Now().Add(23 * time.Hour)
	u.reopen()
	if err := errors.Join(add("c"), u.Collect()); err != nil {
		t.Fatal(err)
	}
	wants("ac")
	u.clock = time.Now().Add(24 * time.Hour)
	if err := u.Collect(); err != nil {
		t.Fatal(err)
	}
	wants("c")
}

// TestUploadOnAFullDisk: what found room stays, and the upload goes on when there is more.
func TestUploadOnAFullDisk(t *testing.T) {
	u := newUploading(t)
	b, name := letters(500, "x")
	u.write(name, 500, 0, b[:100], 100)
	u.room = 37
	have, err := u.Write(name, 500, 100, b[100:])
	if !IsFull(err) || have != 137 {
		t.Fatalf("%d bytes, %v", have, err)
	}
	u.reopen()
	u.room = -1
	if have := u.Have(name); have != 137 {
		t.Fatalf("%d bytes are there", have)
	}
	u.write(name, 500, 137, b[137:], 500)
	if err := u.Finish(name, u.blobs); err != nil {
		t.Fatal(err)
	}
}

// TestUploadsAtOnce: several send the same at the same time, in pieces of their own.
func TestUploadsAtOnce(t *testing.T) {
	u := newUploading(t)
	b := make([]byte, 1000)
	for i := range b {
		b[i] = byte(i * 7)
	}
	name := Digest(b)
	var wg sync.WaitGroup
	for piece := 1; piece <= 8; piece++ {
		wg.Go(func() {
			for have := 0; have < len(b); {
				n, err := u.Write(name, 1000, int64(have), b[have:min(have+piece*13, len(b))])
				if errors.Is(err, ErrGap) { // it was finished by another one
					break
				}
				if err != nil {
					t.Error(err)
					return
				}
				have = int(n)
			}
			if err := u.Finish(name, u.blobs); err != nil && !errors.Is(err, ErrGap) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r, _, err := u.blobs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, b) {
		t.Error(fmt.Errorf("%d bytes, %w", len(got), err))
	}
}

// TestUploadAfterAPowerCut: what was synced is there, under its name.
func TestUploadAfterAPowerCut(t *testing.T) {
	limits := UploadLimits{Size: 1000, Total: 2000, Age: time.Hour, Busy: time.Minute}
	fs := newCutFS()
	b, name := letters(900, "x")
	for _, upto := range []int{300, 900} {
		u, left, err := openUploads("uploads", fs, limits, time.Now)
		if err != nil || len(left) > 0 {
			t.Fatal(err, left)
		}
		have := u.Have(name)
		if _, err := u.Write(name, 900, have, b[have:upto]); err != nil {
			t.Fatal(err)
		}
		if err := u.Sync(name); err != nil {
			t.Fatal(err)
		}
		fs = fs.after(nil)
		if u, _, err = openUploads("uploads", fs, limits, time.Now); err != nil || u.Have(name) != int64(upto) {
			t.Fatalf("%d bytes of %d are there after a power cut, %v", u.Have(name), upto, err)
		}
	}
}

// TestUploadsThatCannotBeLookedAt: a directory in the place of an upload, and one that cannot be removed, are told and
// left alone; what is beyond the bounds, or its own size, is removed; others go on.
func TestUploadsThatCannotBeLookedAt(t *testing.T) {
	u := newUploading(t)
	b, name := letters(500, "x")
	u.write(name, 500, 0, b[:100], 100)
	for _, dir := range []string{"other/x", filepath.Base(u.pathOf(Digest([]byte("y")), 500)) + "/x"} {
		if err := os.MkdirAll(filepath.Join(u.dir, "uploads", dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for of, size := range map[string]int{"large": 1001, "longer than it was to be": 9} {
		if err := os.WriteFile(u.pathOf(Digest([]byte(of)), int64(size)), make([]byte, 10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again, left, err := OpenUploads(filepath.Join(u.dir, "uploads"), UploadLimits{Size: 1000, Total: 2000, Age: time.Hour})
	if err != nil || len(left) == 0 || !strings.Contains(left[len(left)-1].Error(), "other") {
		t.Fatal(left, err)
	}
	if have := again.Have(name); have != 100 || again.Bytes() != 100 || len(u.files()) != 3 {
		t.Errorf("%d bytes are there, %d in all, %v", have, again.Bytes(), u.files())
	}
}

// hookedDisk calls a function before a file gets its name.
type hookedDisk struct {
	fileSystem
	renames func()
}

func (d hookedDisk) Rename(from, to string) error {
	d.renames()
	return d.fileSystem.Rename(from, to)
}

// TestUploadsWhileOneIsFinished: who looks at uploads, or begins another one, does not wait for the disk.
func TestUploadsWhileOneIsFinished(t *testing.T) {
	u := newUploading(t)
	b, name := letters(500, "x")
	u.write(name, 500, 0, b, 500)
	other, otherName := letters(500, "y")
	renames := 0
	blobs, err := openBlobs(filepath.Join(u.dir, "blobs"), hookedDisk{disk{}, func() {
		renames++
		looked := make(chan error, 1)
		go func() {
			if n := u.Bytes() + u.Have(name); n != 1000 {
				t.Errorf("%d bytes, twice", n)
			}
			_, err := u.Write(otherName, 500, 0, other[:10])
			looked <- err
		}()
		select {
		case err := <-looked:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("they wait")
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Finish(name, blobs); err != nil || renames != 1 {
		t.Fatal(err, renames)
	}
}
