package storage

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/dataflow"
	bolt "go.etcd.io/bbolt"
)

// openStore opens a store that is checked and closed when the test ends.
func openStore(t testing.TB, path string) *Store {
	t.Helper()
	s, damage, err := OpenStore(path)
	if err != nil || damage != nil {
		t.Fatal(err, damage)
	}
	t.Cleanup(func() {
		if err := s.Check(); err != nil && !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		s.Close()
	})
	return s
}

func newStore(t testing.TB) *Store {
	t.Helper()
	return openStore(t, filepath.Join(t.TempDir(), "state.db"))
}

func change(key, value string) dataflow.Change {
	return dataflow.Change{Space: dataflow.SpaceKeyed, Key: []byte(key), Value: []byte(value)}
}

func gone(key string) dataflow.Change {
	return dataflow.Change{Space: dataflow.SpaceKeyed, Key: []byte(key)}
}

func save(t testing.TB, s *Store, v dataflow.Version, full bool, changes ...dataflow.Change) {
	t.Helper()
	if err := s.Save(dataflow.PartInfo{Task: "j/a", Version: v, Full: full}, changes); err != nil {
		t.Fatal(err)
	}
}

func load(t testing.TB, s *Store, v dataflow.Version) string {
	t.Helper()
	return visited(t, func(visit func(dataflow.Change) error) error { return s.Load("j/a", v, visit) })
}

func changes(t testing.TB, s *Store, since, upto dataflow.Version) string {
	t.Helper()
	return visited(t, func(visit func(dataflow.Change) error) error { return s.Changes("j/a", since, upto, visit) })
}

// visited prints what is visited, in order.
func visited(t testing.TB, f func(func(dataflow.Change) error) error) string {
	t.Helper()
	var list []string
	err := f(func(c dataflow.Change) error {
		if c.Value == nil {
			list = append(list, fmt.Sprintf("-%s", c.Key))
		} else {
			list = append(list, fmt.Sprintf("%s=%s", c.Key, c.Value))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, " ")
}

func versions(t testing.TB, s *Store) []dataflow.Version {
	t.Helper()
	parts, err := s.Parts("j/a")
	if err != nil {
		t.Fatal(err)
	}
	var list []dataflow.Version
	for _, p := range parts {
		list = append(list, p.Version)
	}
	return list
}

func same[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}

func TestSaveLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := openStore(t, path)
	first := dataflow.PartInfo{
		Task: "j/a", Version: 1, Generation: 3, Epoch: 0, Pos: 17, Full: true, Meta: []byte{0, 1},
	}
	if err := s.Save(first, []dataflow.Change{change("b", "1"), change("a", "1"), change("", "")}); err != nil {
		t.Fatal(err)
	}
	second := dataflow.PartInfo{Task: "j/a", Version: 2, Generation: 3, Epoch: 9, Local: true, Pos: 99}
	if err := s.Save(second, []dataflow.Change{change("b", "2"), gone("a"), change("c", "")}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		same(t, "version 1", load(t, s, 1), "= a=1 b=1")
		same(t, "version 2", load(t, s, 2), "= b=2 c=")
		parts, err := s.Parts("j/a")
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []dataflow.PartInfo{first, second} {
			want.Bytes = parts[i].Bytes
			same(t, "part", parts[i], want)
		}
		if parts[0].Bytes == 0 {
			t.Error("the part has no size")
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
		if err := s.Save(first, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("save after close: %v", err)
		}
		s = openStore(t, path)
	}
}

// TestOrder: keys are visited by space and key, whatever bytes they have.
func TestOrder(t *testing.T) {
	s := newStore(t)
	rng := rand.New(rand.NewSource(1))
	want := map[string]bool{}
	var list []dataflow.Change
	for range 300 {
		key := make([]byte, rng.Intn(6))
		for i := range key {
			key[i] = []byte{0, 1, 0xff, 0xfe, 'a'}[rng.Intn(5)]
		}
		space := dataflow.Space(1 + rng.Intn(3))
		list = append(list, dataflow.Change{Space: space, Key: key, Value: key})
		want[string(append([]byte{byte(space)}, key...))] = true
	}
	save(t, s, 1, true, list...)
	var got []string
	err := s.Load("j/a", 1, func(c dataflow.Change) error {
		if !bytes.Equal(c.Key, c.Value) {
			t.Errorf("key %x has value %x", c.Key, c.Value)
		}
		got = append(got, string(append([]byte{byte(c.Space)}, c.Key...)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Errorf("%d keys, want %d in order", len(got), len(want))
	}
}

func TestFullPartHidesOlderKeys(t *testing.T) {
	s := newStore(t)
	save(t, s, 1, true, change("a", "1"), change("b", "1"))
	save(t, s, 2, false, change("c", "2"))
	save(t, s, 3, true, change("b", "3"), gone("x"))
	save(t, s, 4, false, change("d", "4"))
	same(t, "version 2", load(t, s, 2), "a=1 b=1 c=2")
	same(t, "version 4", load(t, s, 4), "b=3 d=4")
	if err := s.Drop("j/a", []dataflow.Version{4}); err != nil {
		t.Fatal(err)
	}
	same(t, "version 4", load(t, s, 4), "b=3 d=4")
	same(t, "entries", entries(t, s), 2)
}

// entries counts the key versions that are stored.
func entries(t testing.TB, s *Store) int {
	t.Helper()
	n := 0
	err := s.db.view(func(tx *bolt.Tx) error {
		v, err := s.task(tx, "j/a")
		if err != nil {
			return err
		}
		return v.keys.ForEach(func(_, _ []byte) error { n++; return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestVersionsMustAscendAndBeginFull(t *testing.T) {
	s := newStore(t)
	if err := s.Save(dataflow.PartInfo{Task: "j/a", Version: 1}, nil); err == nil {
		t.Error("the first part was not full")
	}
	save(t, s, 2, true)
	for _, v := range []dataflow.Version{0, 1, 2} {
		if err := s.Save(dataflow.PartInfo{Task: "j/a", Version: v}, nil); err == nil {
			t.Errorf("version %d was saved after 2", v)
		}
	}
	if err := s.Save(dataflow.PartInfo{Version: 3}, nil); err == nil {
		t.Error("a part without task was saved")
	}
	if err := s.Save(dataflow.PartInfo{Task: "j/a", Version: 3}, []dataflow.Change{{Space: 3, Key: make([]byte, MaxStateKey+1), Value: nil}}); err == nil {
		t.Error("too long a key was saved")
	}
	save(t, s, 3, false, dataflow.Change{Space: 3, Key: make([]byte, MaxStateKey), Value: []byte("x")})
	same(t, "versions", versions(t, s), []dataflow.Version{2, 3})
}

func TestNoSuchPart(t *testing.T) {
	s := newStore(t)
	none := func(dataflow.Change) error { return nil }
	for range 2 {
		if err := s.Load("j/a", 7, none); !errors.Is(err, ErrNoPart) {
			t.Error(err)
		}
		if err := s.Changes("j/a", 0, 7, none); !errors.Is(err, ErrNoPart) {
			t.Error(err)
		}
		if err := s.Drop("j/a", []dataflow.Version{7}); !errors.Is(err, ErrNoPart) {
			t.Error(err)
		}
		if parts, err := s.Parts("j/none"); err != nil || parts != nil {
			t.Error(parts, err)
		}
		if err := errors.Join(s.Reject("j/none", 7, "x"), s.Reject("j/a", 7, "x"), s.DropTask("j/none")); err != nil {
			t.Error(err)
		}
		save(t, s, dataflow.Version(versionsCount(t, s)+1), true, change("a", "1"))
	}
}

func versionsCount(t testing.TB, s *Store) int { return len(versions(t, s)) }

func TestReject(t *testing.T) {
	s := newStore(t)
	save(t, s, 1, true, change("a", "1"))
	save(t, s, 2, false, change("a", "2"))
	save(t, s, 3, false, change("b", "3"))
	if err := s.Reject("j/a", 2, "replay differs"); err != nil {
		t.Fatal(err)
	}
	same(t, "versions", versions(t, s), []dataflow.Version{1})
	rejected, err := s.Rejected("j/a")
	if err != nil || len(rejected) != 2 || rejected[0].Reason != "replay differs" || !strings.Contains(rejected[1].Reason, "version 2") {
		t.Fatal(rejected, err)
	}
	if err := s.Load("j/a", 3, func(dataflow.Change) error { return nil }); !errors.Is(err, ErrNoPart) {
		t.Errorf("a part that builds upon a rejected one is loaded: %v", err)
	}
	save(t, s, 4, false, change("c", "4")) // since version 1, which was restored
	same(t, "version 4", load(t, s, 4), "a=1 c=4")
	same(t, "changes", changes(t, s, 1, 4), "c=4")
	if err := s.Drop("j/a", []dataflow.Version{4}); err != nil {
		t.Fatal(err)
	}
	same(t, "version 4", load(t, s, 4), "a=1 c=4")
	same(t, "entries", entries(t, s), 2)
	if rejected, _ := s.Rejected("j/a"); len(rejected) != 0 {
		t.Errorf("still rejected: %v", rejected)
	}
}

func TestDropKeepsTheNewest(t *testing.T) {
	s := newStore(t)
	save(t, s, 1, true, change("a", "1"), change("b", "1"))
	save(t, s, 2, false, change("a", "2"))
	save(t, s, 3, false, gone("b"))
	if err := s.Drop("j/a", []dataflow.Version{1}); err != nil {
		t.Fatal(err)
	}
	same(t, "versions", versions(t, s), []dataflow.Version{1, 3})
	same(t, "version 1", load(t, s, 1), "a=1 b=1")
	same(t, "version 3", load(t, s, 3), "a=2")
	same(t, "changes", changes(t, s, 1, 3), "a=2 -b")
	if err := s.Drop("j/a", nil); err != nil {
		t.Fatal(err)
	}
	same(t, "version 3", load(t, s, 3), "a=2")
	same(t, "entries", entries(t, s), 1)
}

func TestDropOfSeveralTasks(t *testing.T) {
	s := newStore(t)
	for v := range dataflow.Version(3) {
		for _, task := range []string{"j/a", "j/b", "j/c"} {
			info := dataflow.PartInfo{Task: task, Version: v + 1, Full: v == 0}
			if err := s.Save(info, []dataflow.Change{change("k", fmt.Sprint(v+1)), change(fmt.Sprint(v), "")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := func(task string) int {
		parts, err := s.Parts(task)
		if err != nil {
			t.Fatal(err)
		}
		return len(parts)
	}
	err := s.DropAll(Kept{"j/a", []dataflow.Version{3}}, Kept{"j/b", []dataflow.Version{9}})
	if err == nil || left("j/a") != 3 || left("j/b") != 3 {
		t.Fatalf("with a version that is not there: %v, %d and %d parts", err, left("j/a"), left("j/b"))
	}
	if err := s.DropAll(Kept{"j/a", []dataflow.Version{3}}, Kept{"j/b", []dataflow.Version{2}}); err != nil {
		t.Fatal(err)
	}
	same(t, "parts of a, b and c", []int{left("j/a"), left("j/b"), left("j/c")}, []int{1, 2, 3})
	same(t, "version 3", load(t, s, 3), "0= 1= 2= k=3")
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestChanges(t *testing.T) {
	s := newStore(t)
	save(t, s, 1, true, change("a", "1"), change("b", "1"), change("c", "1"))
	save(t, s, 2, false, change("a", "2"), gone("b"))
	save(t, s, 3, false, change("a", "3"), change("b", ""))
	save(t, s, 4, true, change("z", "4"))
	same(t, "0 to 3", changes(t, s, 0, 3), "a=3 b= c=1")
	same(t, "1 to 2", changes(t, s, 1, 2), "a=2 -b")
	same(t, "1 to 3", changes(t, s, 1, 3), "a=3 b=")
	same(t, "0 to 4", changes(t, s, 0, 4), "z=4")
	if err := s.Changes("j/a", 3, 4, nil); !errors.Is(err, ErrNeedFull) {
		t.Errorf("over a full part: %v", err)
	}
	if err := s.Changes("j/a", 3, 2, nil); err == nil {
		t.Error("backwards")
	}
}

func TestVisitErrorsAndPanicsComeBack(t *testing.T) {
	s := newStore(t)
	save(t, s, 1, true, change("a", "1"))
	stop := errors.New("stop")
	if err := s.Load("j/a", 1, func(dataflow.Change) error { return stop }); !errors.Is(err, stop) || errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	func() {
		defer func() {
			if p := recover(); p != "broken invariant" {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = s.Load("j/a", 1, func(dataflow.Change) error { panic("broken invariant") })
	}()
	same(t, "afterwards", load(t, s, 1), "a=1")
}

// TestStoreModel runs random calls on a store and on a model of it.
func TestStoreModel(t *testing.T) {
	for seed := range int64(10) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { storeModel(t, seed) })
	}
}

type storeState struct {
	v     dataflow.Version
	floor dataflow.Version
	state map[string]string
}

func storeModel(t *testing.T, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	path := filepath.Join(t.TempDir(), "state.db")
	s := openStore(t, path)
	var parts []storeState // usable
	highest := dataflow.Version(0)
	for range 60 {
		switch k := rng.Intn(10); {
		case k < 5:
			highest++
			next := storeState{v: highest, floor: highest, state: map[string]string{}}
			full := len(parts) == 0 || rng.Intn(6) == 0
			if !full {
				last := parts[len(parts)-1]
				next.floor, next.state = last.floor, maps.Clone(last.state)
			}
			var list []dataflow.Change
			for range rng.Intn(12) {
				key := fmt.Sprint("k", rng.Intn(15))
				if rng.Intn(4) == 0 {
					list = append(list, gone(key))
					delete(next.state, key)
				} else {
					value := fmt.Sprint(highest, "-", rng.Intn(100))
					if rng.Intn(2) == 0 {
						value += strings.Repeat("x", rng.Intn(40_000))
					}
					list = append(list, change(key, value))
					next.state[key] = value
				}
			}
			save(t, s, highest, full, list...)
			parts = append(parts, next)
		case k < 6 && len(parts) > 1:
			v := parts[rng.Intn(len(parts))].v
			if err := s.Reject("j/a", v, "test"); err != nil {
				t.Fatal(err)
			}
			parts = slices.DeleteFunc(parts, func(p storeState) bool { return p.v == v || p.v > v && p.floor <= v })
		case k < 8 && len(parts) > 0:
			var keep []dataflow.Version
			parts = slices.DeleteFunc(parts, func(p storeState) bool {
				if rng.Intn(2) == 0 {
					keep = append(keep, p.v)
					return false
				}
				return p.v != parts[len(parts)-1].v
			})
			if err := s.Drop("j/a", keep); err != nil {
				t.Fatal(err)
			}
		case k < 9:
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, path)
		}
		compareStore(t, s, parts)
	}
}

func compareStore(t *testing.T, s *Store, parts []storeState) {
	t.Helper()
	var want []dataflow.Version
	for i, p := range parts {
		want = append(want, p.v)
		same(t, fmt.Sprint("version ", p.v), load(t, s, p.v), sorted(p.state))
		if i == 0 || parts[i-1].v < p.floor {
			continue
		}
		// The changes, applied to the older one, give the newer one.
		state := maps.Clone(parts[i-1].state)
		err := s.Changes("j/a", parts[i-1].v, p.v, func(c dataflow.Change) error {
			if delete(state, string(c.Key)); c.Value != nil {
				state[string(c.Key)] = string(c.Value)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprint("changes to ", p.v), sorted(state), sorted(p.state))
	}
	same(t, "versions", versions(t, s), want)
	if t.Failed() {
		t.FailNow()
	}
}

func sorted(state map[string]string) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(state)) {
		list = append(list, k+"="+state[k])
	}
	return strings.Join(list, " ")
}

// storeFile is the content of a store's file, closed, and what its newest version says.
func storeFile(t testing.TB) (content []byte, state string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	s := openStore(t, path)
	var list []dataflow.Change
	for i := range 40 {
		list = append(list, change(fmt.Sprintf("key-%02d", i), strings.Repeat("v", i*i)))
	}
	save(t, s, 1, true, list...)
	save(t, s, 2, false, list[3:9]...)
	save(t, s, 3, false, gone("key-20"), change("new", "3"))
	state = load(t, s, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	meta, err := (&boltWalk{f: bytes.NewReader(content)}).meta()
	if err != nil {
		t.Fatal(err)
	}
	return content[:int64(meta.top)*meta.pageSize], state
}

func TestDamagedFileIsSetAside(t *testing.T) {
	whole, _ := storeFile(t)
	zeroed := slices.Clone(whole)
	clear(zeroed[:2*os.Getpagesize()])
	noise := make([]byte, len(whole))
	rand.New(rand.NewSource(1)).Read(noise)
	cases := map[string][]byte{
		"empty": {}, "one byte": {1}, "half": whole[:len(whole)/2], "less than two pages": whole[:5000],
		"last byte missing": whole[:len(whole)-1], "zeros": make([]byte, len(whole)), "meta pages zeroed": zeroed, "noise": noise,
	}
	for name, content := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			for n := 1; n <= 2; n++ {
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
				s, damage, err := OpenStore(path)
				if err != nil {
					t.Fatal(err)
				}
				if damage == nil || !errors.Is(damage, ErrCorrupt) || damage.SetAside != fmt.Sprintf("%s.damaged-%d", path, n) ||
					damage.Size != int64(len(content)) || damage.Modified.IsZero() || !strings.Contains(damage.Error(), path) {
					t.Fatalf("damage %+v", damage)
				}
				if kept, err := os.ReadFile(damage.SetAside); err != nil || !bytes.Equal(kept, content) {
					t.Fatal("what was set aside is another file", err)
				}
				save(t, s, 1, true, change("a", "1"))
				same(t, "fresh", load(t, s, 1), "a=1")
				s.Close()
			}
		})
	}
	t.Run("directory", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state.db")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		s, damage, err := OpenStore(path)
		if err != nil || damage == nil {
			t.Fatal(damage, err)
		}
		s.Close()
	})
}

// TestFlippedBitsInTheFile flips one bit here and there. Whatever it hits: no panic, and no wrong
// state without an error.
func TestFlippedBitsInTheFile(t *testing.T) {
	whole, state := storeFile(t)
	path := filepath.Join(t.TempDir(), "state.db")
	refused, noticed, harmless := 0, 0, 0
	for i := 0; i < len(whole); i += 67 {
		content := slices.Clone(whole)
		content[i] ^= 1 << (i % 8)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := tryDatabase(path, storeFormat, storeBooks)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
		if err != nil {
			refused++
			continue
		}
		s := &Store{db: db}
		var got []string
		err = s.Load("j/a", 3, func(c dataflow.Change) error {
			got = append(got, fmt.Sprintf("%s=%s", c.Key, c.Value))
			return nil
		})
		switch {
		case err != nil:
			noticed++
		case strings.Join(got, " ") != state:
			t.Errorf("byte %d flipped: another state, and no error", i)
		default:
			harmless++
		}
		// What can be opened can be used on: without the parts that do not load, from a full one on.
		for _, p := range versions(t, s) {
			if err := s.Load("j/a", p, func(dataflow.Change) error { return nil }); err != nil {
				if err := s.Reject("j/a", p, "damaged"); err != nil {
					t.Fatalf("byte %d flipped: reject %d: %v", i, p, err)
				}
			}
		}
		highest, err := s.Highest("j/a")
		if err != nil {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
		next := highest + 1
		if err := s.Save(dataflow.PartInfo{Task: "j/a", Version: next, Full: true}, []dataflow.Change{change("key-05", "4")}); err != nil {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
		if err := s.Drop("j/a", nil); err != nil {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
		if err := s.Check(); err != nil {
			t.Errorf("byte %d flipped: %v", i, err)
		}
		same(t, "state afterwards", load(t, s, next), "key-05=4")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 || noticed == 0 || harmless == 0 {
		t.Errorf("refused at open %d, noticed at load %d, harmless %d: the test reaches not all of them", refused, noticed, harmless)
	}
}

// TestFileDamagedWhileOpen: bbolt panics or faults on it; the store says so and refuses to go on.
func TestFileDamagedWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, damage, err := OpenStore(path)
	if err != nil || damage != nil {
		t.Fatal(damage, err)
	}
	save(t, s, 1, true, change("a", strings.Repeat("x", 100_000)))
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	if err := s.Load("j/a", 1, func(dataflow.Change) error { return nil }); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("load: %v", err)
	}
	if err := s.Save(dataflow.PartInfo{Task: "j/a", Version: 2}, nil); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("save: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, damage, err = OpenStore(path)
	if err != nil || damage == nil {
		t.Fatal(damage, err)
	}
	s.Close()
}

func TestNewerStoreFormatIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	db, _, err := openDatabase(path, storeFormat+1, content{begin: func(*bolt.Tx) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	db.close()
	if _, damage, err := OpenStore(path); err == nil || damage != nil || !strings.Contains(err.Error(), "this build reads") {
		t.Fatal(damage, err)
	}
}

func TestWrittenCountsPages(t *testing.T) {
	s := newStore(t)
	before := s.Written()
	save(t, s, 1, true, change("a", strings.Repeat("x", 1<<20)))
	if n := s.Written() - before; n < 1<<20 || n > 1<<21 {
		t.Errorf("%d bytes written for 1 MiB", n)
	}
	before = s.Written()
	load(t, s, 1)
	if s.Written() != before {
		t.Error("reading wrote")
	}
}

func pages(n, step int) []dataflow.Change {
	var list []dataflow.Change
	for i := range n {
		page := make([]byte, 4096)
		rand.New(rand.NewSource(int64(i))).Read(page)
		at := i * step
		list = append(list, dataflow.Change{Space: dataflow.SpaceMemory, Key: []byte{0, 0, 0, byte(at >> 16), byte(at >> 8), byte(at)}, Value: page})
	}
	return list
}

func BenchmarkSave(b *testing.B) {
	small := []dataflow.Change{change("key", strings.Repeat("v", 200))}
	for _, c := range []struct {
		name string
		list []dataflow.Change
	}{{"200B", small}, {"5pages", pages(5, 1)}, {"750pages", pages(750, 3)}, {"6400pages", pages(6400, 1)}} {
		b.Run(c.name, func(b *testing.B) {
			s := newStore(b)
			save(b, s, 1, true, pages(8000, 1)...)
			v := dataflow.Version(1)
			size := 0
			for _, x := range c.list {
				size += len(x.Value)
			}
			b.SetBytes(int64(size))
			before := s.Written()
			var dropped int64
			for b.Loop() {
				v++
				save(b, s, v, false, c.list...)
				b.StopTimer()
				at := s.Written()
				if err := s.Drop("j/a", nil); err != nil {
					b.Fatal(err)
				}
				dropped += s.Written() - at
				b.StartTimer()
			}
			b.ReportMetric(float64(s.Written()-before-dropped)/float64(b.N), "written/op")
			b.ReportMetric(float64(dropped)/float64(b.N), "dropwritten/op")
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	s := newStore(b)
	list := pages(8000, 1)
	save(b, s, 1, true, list...)
	b.SetBytes(int64(len(list)) * 4096)
	for b.Loop() {
		if err := s.Load("j/a", 1, func(dataflow.Change) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// SaveAll saves all parts or none.
func TestSaveAll(t *testing.T) {
	s := newStore(t)
	a := Part{dataflow.PartInfo{Task: "j/a", Version: 1, Full: true}, []dataflow.Change{{Space: dataflow.SpaceKeyed, Key: []byte("k"), Value: []byte("1")}}}
	b := Part{dataflow.PartInfo{Task: "j/b", Version: 1, Full: true}, []dataflow.Change{{Space: dataflow.SpaceKeyed, Key: []byte("k"), Value: []byte("2")}}}
	if err := s.SaveAll(a, Part{dataflow.PartInfo{Task: "j/b"}, nil}); err == nil {
		t.Fatal("a part without a version was saved")
	}
	if parts, err := s.Parts("j/a"); err != nil || len(parts) != 0 {
		t.Fatalf("half of what failed is there: %v, %v", parts, err)
	}
	if err := s.SaveAll(a, b); err != nil {
		t.Fatal(err)
	}
	again := a
	again.Info.Version = 2
	if err := s.SaveAll(again, b); err == nil { // b's version does not ascend
		t.Fatal("a version was saved twice")
	}
	for task, want := range map[string]string{"j/a": "1", "j/b": "2"} {
		parts, err := s.Parts(task)
		if err != nil || len(parts) != 1 {
			t.Fatalf("parts of %s: %v, %v", task, parts, err)
		}
		got := ""
		if err := s.Load(task, 1, func(c dataflow.Change) error { got += string(c.Value); return nil }); err != nil || got != want {
			t.Fatalf("state of %s: %q, %v", task, got, err)
		}
	}
}
