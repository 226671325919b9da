package lossy

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCutKeepsWhatWasSynced: at random writes, truncations, fsyncs and power cuts, each byte of a file is afterwards
// what it was at the last fsync or something that was written there since, and nothing else; without an fsync since
// the file was made it may be gone, and with one of the directory since it was renamed it has its new name.
func TestCutKeepsWhatWasSynced(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 0))
		j, dir := testJournal(t)
		path := filepath.Join(dir, "f")
		f := testCreate(t, j, path)
		syncDir(j, dir)
		synced, now := []byte{}, []byte{}
		may := []map[byte]bool{} // what each byte may be after a cut
		for range 60 {
			switch r.IntN(5) {
			case 0, 1:
				off := r.Int64N(int64(len(now)) + 2000)
				data := bytes.Repeat([]byte{byte(1 + r.IntN(250))}, 1+r.IntN(9000))
				if n, err := j.write(f, data, off); n != len(data) || err != nil {
					t.Fatal(n, err)
				}
				now = grown(now, int(off)+len(data))
				copy(now[off:], data)
				for len(may) < len(now) {
					may = append(may, map[byte]bool{0: true}) // a hole
				}
				for i, b := range data {
					may[int(off)+i][b] = true
				}
			case 2:
				to := r.IntN(len(now) + 1000)
				if err := j.truncate(f, int64(to)); err != nil {
					t.Fatal(err)
				}
				now = grown(now, to)[:to]
				for len(may) < to {
					may = append(may, map[byte]bool{0: true})
				}
				for _, m := range may[min(to, len(may)):] {
					m[0] = true
				}
			case 3:
				if err := j.synced(f); err != nil {
					t.Fatal(err)
				}
				synced = bytes.Clone(now)
				may = nil
				for _, b := range synced {
					may = append(may, map[byte]bool{b: true})
				}
			case 4:
				if r.IntN(3) > 0 {
					continue
				}
				clean := bytes.Equal(now, synced) && len(j.files) == 0
				if _, err := j.cut(r); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(path)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if clean && !bytes.Equal(got, synced) {
					t.Fatalf("seed %d: what was synced is not what is there", seed)
				}
				for i, b := range got {
					if i >= len(may) || !may[i][b] {
						t.Fatalf("seed %d: byte %d is %d, which was never written there since the last fsync", seed, i, b)
					}
				}
				now, synced, may = bytes.Clone(got), bytes.Clone(got), nil
				for _, b := range got {
					may = append(may, map[byte]bool{b: true})
				}
			}
		}
		f.Close()
	}
}

func grown(b []byte, n int) []byte {
	if n > len(b) {
		b = append(b, make([]byte, n-len(b))...)
	}
	return b
}

func testJournal(t *testing.T) (*journal, string) {
	t.Helper()
	top := t.TempDir()
	dir, trash := filepath.Join(top, "d"), filepath.Join(top, "gone")
	for _, d := range []string{dir, trash, filepath.Join(dir, "soft")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return newJournal(dir, trash, below(dir, "soft")), dir
}

func testCreate(t *testing.T, j *journal, path string) *os.File {
	t.Helper()
	var f *os.File
	err := j.name(made, "", path, func() (err error) {
		f, err = os.Create(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func syncDir(j *journal, dir string) { j.syncedDir(dir) }

func testRename(t *testing.T, j *journal, from, to string) {
	t.Helper()
	if err := j.name(moved, from, to, func() error { return os.Rename(from, to) }); err != nil {
		t.Fatal(err)
	}
}

// names lists a directory.
func names(t *testing.T, dir string) string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, e := range all {
		if e.IsDir() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		s = append(s, e.Name()+"="+string(b))
	}
	return strings.Join(s, " ")
}

// TestCutOfNames: a file is replaced by rename. Until the directory is fsynced a power cut leaves the one or the
// other, afterwards the new one; a file removed without it may be back.
func TestCutOfNames(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		j, dir := testJournal(t)
		put := func(name, text string) {
			f := testCreate(t, j, filepath.Join(dir, name))
			if _, err := j.write(f, []byte(text), 0); err != nil {
				t.Fatal(err)
			}
			if err := j.synced(f); err != nil {
				t.Fatal(err)
			}
		}
		put("a", "old")
		put("b", "other")
		syncDir(j, dir)
		put("a.tmp", "new")
		testRename(t, j, filepath.Join(dir, "a.tmp"), filepath.Join(dir, "a"))
		durable := seed%2 == 0
		if durable {
			syncDir(j, dir)
		}
		if err := j.name(removed, "", filepath.Join(dir, "b"), func() error { return os.Remove(filepath.Join(dir, "b")) }); err != nil {
			t.Fatal(err)
		}
		if _, err := j.cut(r); err != nil {
			t.Fatal(err)
		}
		got := names(t, dir)
		seen[fmt.Sprint(durable, " ", got)]++
		if durable && !strings.HasPrefix(got, "a=new") {
			t.Fatalf("seed %d: %s", seed, got)
		}
		if left := names(t, j.trash); left != "" {
			t.Fatalf("seed %d: left in trash: %s", seed, left)
		}
	}
	for _, want := range []string{"true a=new", "true a=new b=other", "false a=new", "false a=new b=other", "false a=old a.tmp=new b=other", "false a=old b=other"} {
		if seen[want] == 0 {
			t.Errorf("never seen: %q; seen: %v", want, seen)
		}
		delete(seen, want)
	}
	if len(seen) > 0 {
		t.Errorf("seen too: %v", seen)
	}
}

// TestSoftNames become durable with the fsync of any file, and everything does in time.
func TestSoftNames(t *testing.T) {
	j, dir := testJournal(t)
	a := testCreate(t, j, filepath.Join(dir, "soft", "a"))
	testCreate(t, j, filepath.Join(dir, "b"))
	if err := j.synced(a); err != nil {
		t.Fatal(err)
	}
	if len(j.names) != 1 || j.names[0].path != filepath.Join(dir, "b") {
		t.Fatalf("not durable: %v", j.names)
	}
	later := time.Now().Add(2 * writeBack)
	j.now = func() time.Time { return later }
	if err := j.synced(a); err != nil {
		t.Fatal(err)
	}
	if len(j.names) != 0 {
		t.Fatalf("not durable after a while: %v", j.names)
	}
}

// TestNarrow: files grow by what there is room for; what is removed gives room.
func TestNarrow(t *testing.T) {
	j, dir := testJournal(t)
	f := testCreate(t, j, filepath.Join(dir, "f"))
	j.limit(100)
	write := func(n int, off int64, want int) {
		t.Helper()
		got, err := j.write(f, make([]byte, n), off)
		if got != want || (want == 0) != (err != nil) {
			t.Fatalf("wrote %d of %d bytes at %d, %v; want %d", got, n, off, err, want)
		}
	}
	write(80, 0, 80)
	write(80, 40, 60)
	write(10, 100, 0)
	write(100, 0, 100) // it does not grow
	if err := j.truncate(f, 50); err != nil {
		t.Fatal(err)
	}
	write(60, 50, 50)
	j.limit(-1)
	write(1000, 100, 1000)
}
