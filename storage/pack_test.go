package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow"
)

func packOf(t testing.TB, s *Store, since, upto dataflow.Version) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.WritePack(&b, "j/a", since, upto); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// packedStore has three versions, with large and small values.
func packedStore(t testing.TB) *Store {
	t.Helper()
	s := newStore(t)
	var list []dataflow.Change
	for i := range 50 {
		list = append(list, change(fmt.Sprintf("k%02d", i), strings.Repeat(fmt.Sprint(i), i*20)))
	}
	save(t, s, 1, true, list...)
	save(t, s, 2, false, change("k03", ""), gone("k04"), change("new", "2"))
	info := dataflow.PartInfo{Task: "j/a", Version: 3, Epoch: 12, Generation: 2, Pos: 77, Meta: []byte("meta")}
	if err := s.Save(info, []dataflow.Change{gone("new"), change("k04", "back"), change("z", "3")}); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPacksCarryAPartOver(t *testing.T) {
	s := packedStore(t)
	full, one, two, both := packOf(t, s, 0, 1), packOf(t, s, 1, 2), packOf(t, s, 2, 3), packOf(t, s, 1, 3)
	for name, packs := range map[string][][]byte{
		"one by one": {full, one, two}, "two at once": {full, both}, "whole": {packOf(t, s, 0, 3)},
	} {
		other := newStore(t)
		var readers []io.Reader
		for _, p := range packs {
			readers = append(readers, bytes.NewReader(p))
		}
		info, err := other.ImportPacks("j/a", readers...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if info.Version != 3 || info.Epoch != 12 || info.Generation != 2 || info.Pos != 77 || string(info.Meta) != "meta" || !info.Full {
			t.Errorf("%s: part %+v", name, info)
		}
		same(t, name, load(t, other, 3), load(t, s, 3))
		save(t, other, 4, false, gone("z"))
		if strings.Contains(load(t, other, 4), "z=") {
			t.Error("an increment on an imported part is not seen")
		}
	}
}

func TestReadPack(t *testing.T) {
	s := packedStore(t)
	info, since, list, err := ReadPack(bytes.NewReader(packOf(t, s, 1, 3)))
	if err != nil || since != 1 || info.Version != 3 || info.Full || info.Task != "j/a" {
		t.Fatal(info, since, err)
	}
	same(t, "changes", visited(t, func(visit func(dataflow.Change) error) error {
		for _, c := range list {
			if err := visit(c); err != nil {
				return err
			}
		}
		return nil
	}), "k03= k04=back -new z=3")
}

func TestImportRefusesWhatDoesNotFit(t *testing.T) {
	s := packedStore(t)
	full, one, two := packOf(t, s, 0, 1), packOf(t, s, 1, 2), packOf(t, s, 2, 3)
	broken := slices.Clone(two)
	broken[len(broken)/2] ^= 1
	for name, packs := range map[string][][]byte{
		"none": {}, "no full one": {one, two}, "a gap": {full, two}, "order": {full, two, one}, "damage": {full, one, broken},
	} {
		other := newStore(t)
		var readers []io.Reader
		for _, p := range packs {
			readers = append(readers, bytes.NewReader(p))
		}
		if _, err := other.ImportPacks("j/a", readers...); err == nil {
			t.Errorf("%s was taken", name)
		}
		if parts, _ := other.Parts("j/a"); len(parts) > 0 {
			t.Errorf("%s left %v", name, parts)
		}
	}
	if _, err := s.ImportPacks("j/a", bytes.NewReader(full)); err == nil {
		t.Error("an old version was imported over newer ones")
	}
	if err := s.WritePack(io.Discard, "j/a", 3, 9); !errors.Is(err, ErrNoPart) {
		t.Error(err)
	}
	save(t, s, 4, true)
	if err := s.WritePack(io.Discard, "j/a", 3, 4); !errors.Is(err, ErrNeedFull) {
		t.Error(err)
	}
}

func TestEveryDamageToAPackIsFound(t *testing.T) {
	pack := packOf(t, packedStore(t), 0, 3)
	info, since, list, err := ReadPack(bytes.NewReader(pack))
	if err != nil {
		t.Fatal(err)
	}
	harmless := 0
	for i := range pack {
		if _, _, _, err := ReadPack(bytes.NewReader(pack[:i])); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d of %d: %v", i, len(pack), err)
		}
		bad := slices.Clone(pack)
		bad[i] ^= 1 << (i % 8)
		info2, since2, list2, err := ReadPack(bytes.NewReader(bad))
		if errors.Is(err, ErrCorrupt) {
			continue
		}
		// The compression has bits that mean nothing.
		if err != nil || fmt.Sprint(info, since, list) != fmt.Sprint(info2, since2, list2) {
			t.Fatalf("bit flipped in byte %d: %v", i, err)
		}
		harmless++
	}
	if harmless > len(pack)/4 {
		t.Errorf("%d of %d flipped bits were not found", harmless, len(pack))
	}
	if _, _, _, err := ReadPack(bytes.NewReader(append(slices.Clone(pack), 0))); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("a byte more: %v", err)
	}
	newer := slices.Clone(pack)
	newer[7]++
	if _, _, _, err := ReadPack(bytes.NewReader(newer)); err == nil || !strings.Contains(err.Error(), "this build reads") {
		t.Fatal(err)
	}
}

// TestChangesInManyTransactions: more than one batch is visited whole and in order, with the store
// written to meanwhile.
func TestChangesInManyTransactions(t *testing.T) {
	s := newStore(t)
	list := pages(3000, 1)
	save(t, s, 1, true, list...)
	save(t, s, 2, false, list[500:2900]...)
	v := dataflow.Version(2)
	for _, since := range []dataflow.Version{0, 1} {
		n := 0
		var before []byte
		err := s.Changes("j/a", since, 2, func(c dataflow.Change) error {
			if n++; n%700 == 0 {
				v++
				save(t, s, v, false, list[n])
			}
			if bytes.Compare(before, c.Key) >= 0 {
				t.Fatalf("key %x after %x", c.Key, before)
			}
			before = bytes.Clone(c.Key)
			return nil
		})
		if want := []int{3000, 2400}[since]; err != nil || n != want {
			t.Errorf("since %d: %d changes, want %d, %v", since, n, want, err)
		}
	}
}

// TestSlowUploadKeepsNoPages: however long it takes to read a pack, the pages that newer parts give up are used again
// meanwhile, and the file does not grow.
func TestSlowUploadKeepsNoPages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := openStore(t, path)
	defer s.Close()
	random := rand.New(rand.NewSource(1))
	value := func() []byte {
		b := make([]byte, 100_000)
		random.Read(b)
		return b
	}
	var all []dataflow.Change
	for i := range 3 * diffBatch / 100_000 { // more than what is copied at once
		all = append(all, dataflow.Change{Space: dataflow.SpaceKeyed, Key: fmt.Appendf(nil, "key-%03d", i), Value: value()})
	}
	save(t, s, 1, true, all...)
	v := dataflow.Version(1)
	churn := func() int64 {
		t.Helper()
		for range 100 { // 10 MB in all
			v++
			save(t, s, v, false, dataflow.Change{Space: dataflow.SpaceKeyed, Key: []byte("key-000"), Value: value()})
			if err := s.Drop("j/a", []dataflow.Version{1, v}); err != nil {
				t.Fatal(err)
			}
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	churn()
	before := churn()
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := s.WritePack(w, "j/a", 0, 1)
		w.Close()
		written <- err
	}()
	if _, err := io.CopyN(io.Discard, r, 10_000); err != nil { // it has begun, and waits for its reader
		t.Fatal(err)
	}
	// Kept pages would be 10 MB more. Which of the free ones bbolt takes is up to chance, and so is now and then a step more.
	if after := churn(); after > before+5*growStep {
		t.Errorf("the file had %d KiB, and has %d", before>>10, after>>10)
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

func FuzzReadPack(f *testing.F) {
	s := packedStore(f)
	f.Add(packOf(f, s, 0, 3))
	f.Add(packOf(f, s, 1, 2))
	f.Add([]byte(packMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		info, since, list, err := ReadPack(bytes.NewReader(b))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		var again bytes.Buffer
		err = writePack(&again, info, since, func(visit func(dataflow.Change) error) error {
			for _, c := range list {
				if err := visit(c); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		info2, since2, list2, err := ReadPack(&again)
		if err != nil || fmt.Sprint(info, since, list) != fmt.Sprint(info2, since2, list2) {
			t.Fatal("another pack when written again", err)
		}
	})
}

func FuzzPart(f *testing.F) {
	f.Add(appendPart(nil, part{info: dataflow.PartInfo{Epoch: 3, Meta: []byte("x")}, count: 9, sum: 1 << 60}))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePart(b)
		if err != nil {
			return
		}
		if q, err := parsePart(appendPart(nil, p)); err != nil || fmt.Sprint(p) != fmt.Sprint(q) {
			t.Fatal(p, q, err)
		}
	})
}

func FuzzBoltFile(f *testing.F) {
	f.Add(make([]byte, 64), uint32(0))
	f.Add([]byte{1, 2, 3}, uint32(8200))
	whole, _ := storeFile(f)
	f.Fuzz(func(t *testing.T, noise []byte, at uint32) {
		content := slices.Clone(whole)
		copy(content[int(at)%len(content):], noise)
		w := &boltWalk{f: bytes.NewReader(content), size: int64(len(content))}
		_ = w.walk() // it ends, and reads nothing beyond the file
	})
}
