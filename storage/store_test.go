package storage

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/weir-stream/weir/dataflow"
)

func openStore(t *testing.T, path string) *Store {
	t.Helper()
	s, damage, err := OpenStore(path)
	if err != nil || damage != nil {
		t.Fatal(err, damage)
	}
	t.Cleanup(func() {
		if err := s.Check(); err != nil && err != ErrClosed {
			t.Error(err)
		}
		s.Close()
	})
	return s
}

func newStore(t *testing.T) *Store { return openStore(t, filepath.Join(t.TempDir(), "state.db")) }

func change(key, value string) dataflow.Change {
	return dataflow.Change{Space: dataflow.SpaceKeyed, Key: []byte(key), Value: []byte(value)}
}

func gone(key string) dataflow.Change {
	return dataflow.Change{Space: dataflow.SpaceKeyed, Key: []byte(key)}
}

func save(t *testing.T, s *Store, v dataflow.Version, full bool, changes ...dataflow.Change) {
	t.Helper()
	if err := s.Save(dataflow.PartInfo{Task: "j/a", Version: v, Full: full, Meta: []byte("m")}, changes); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, s *Store, v dataflow.Version) string {
	t.Helper()
	var b bytes.Buffer
	err := s.Load("j/a", v, func(c dataflow.Change) error {
		fmt.Fprintf(&b, "%d:%s=%s ", c.Space, c.Key, c.Value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestSaveLoad(t *testing.T) {
	s := newStore(t)
	save(t, s, 1, true, change("b", "1"), change("a", "1"), change("", ""))
	save(t, s, 2, false, change("b", "2"), gone("a"), change("c", ""))
	if got, want := load(t, s, 1), "3:= 3:a=1 3:b=1 "; got != want {
		t.Errorf("version 1 is %q, want %q", got, want)
	}
	if got, want := load(t, s, 2), "3:= 3:b=2 3:c= "; got != want {
		t.Errorf("version 2 is %q, want %q", got, want)
	}
}
