package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/weir-stream/weir/abs"
	wnats "github.com/weir-stream/weir/transport/nats"
)

func TestBundle(t *testing.T) {
	var b bundle
	want := map[abs.TaskID]string{}
	for i := range 300 { // the list alone is longer than a reader's buffer
		task := abs.TaskID(fmt.Sprintf("count:%d", i))
		want[task] = strings.Repeat(fmt.Sprint(i%10), i*7%900)
		b.add(task, []byte(want[task]))
	}
	all, err := io.ReadAll(b.reader())
	if err != nil {
		t.Fatal(err)
	}
	for task, pack := range want {
		got := readMember(t, all, task)
		if got != pack {
			t.Fatalf("%s: %d bytes, want %d", task, len(got), len(pack))
		}
	}
	for name, damaged := range map[string][]byte{
		"cut in the list": all[:100], "cut in the packs": all[:len(all)-10_000], "empty": nil, "of another format": []byte("WEIRPAK\n{}\n"),
	} {
		if r, err := openMember(io.NopCloser(bytes.NewReader(damaged)), "count:299"); err == nil {
			t.Errorf("%s: opened: %v", name, r)
		}
	}
	if _, err := openMember(io.NopCloser(bytes.NewReader(all)), "other"); err == nil || !strings.Contains(err.Error(), "other") {
		t.Errorf("a task that is not in it: %v", err)
	}
}

func readMember(t *testing.T, bundle []byte, task abs.TaskID) string {
	t.Helper()
	r, err := openMember(io.NopCloser(iotest.OneByteReader(bytes.NewReader(bundle))), task)
	if err != nil {
		t.Fatal(err)
	}
	pack, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return string(pack)
}

func TestPackNames(t *testing.T) {
	bundle := packName("j", bundleOwner("g-1"), 2, 17) + ".3.9"
	for _, c := range []struct {
		name, object string
		member       abs.TaskID
		owner        abs.TaskID
		id           packID
	}{
		{packName("j", "count/0", 2, 5), "j/count/0/2-5", "", "count/0", packID{2, 5}},
		{memberName(bundle, "count/0"), "j/@g-1/2-17.3.9", "count/0", "@g-1", packID{2, 17}},
	} {
		object, member := splitPack(c.name)
		owner, id, ok := parsePack(object, "j")
		if object != c.object || member != c.member || owner != c.owner || id != c.id || !ok {
			t.Errorf("%s: %s %s %s %v %v", c.name, object, member, owner, id, ok)
		}
	}
	for _, other := range []string{"jj/a/1-2", "j/1-2", "j/a/x", "j"} {
		if _, _, ok := parsePack(other, "j"); ok {
			t.Errorf("%s is taken for a pack of job j", other)
		}
	}
}

// TestPackOutOfReach: the object store has said that there is no bundle, and is out of reach when it is asked for the pack
// alone. The pack may be there, so nobody takes it for bad.
func TestPackOutOfReach(t *testing.T) {
	name := memberName("j/@hub/1-5.1.1", "count/0")
	for _, second := range []error{wnats.ErrUnavailable, wnats.ErrNotFound} {
		_, err := storedPack(name, func(object string) (io.ReadCloser, error) {
			if object == name {
				return nil, second
			}
			return nil, wnats.ErrNotFound
		})
		if !errors.Is(err, second) || badReplica(context.Background(), err) != (second == wnats.ErrNotFound) {
			t.Errorf("%v, then %v: %v", wnats.ErrNotFound, second, err)
		}
	}
}
