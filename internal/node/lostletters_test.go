package node

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
)

// TestLettersHeard: of each directory that an agent has had the last word counts.
func TestLettersHeard(t *testing.T) {
	var p peers
	p.init()
	say := func(dir string, n uint64) {
		p.hear(sign{Name: "g1", Dir: dir, Letters: map[string]uint64{"j": n}})
	}
	of := func(dir, now string) string {
		h, ok := p.lettersIn("g1", dir, now)
		return fmt.Sprint(h.Count["j"], ok)
	}
	if got := of("a", "b"); got != "0 false" {
		t.Errorf("before anything was heard: %s", got)
	}
	for _, n := range []uint64{1, 5, 3} {
		say("a", n)
	}
	say("b", 7)
	p.hear(sign{Name: "g1"}) // of a version that does not tell
	for _, c := range []struct{ dir, now, want string }{
		{"a", "b", "3 true"}, {"b", "c", "7 true"}, {"c", "b", "0 false"}, {"", "b", "3 true"}, {"", "c", "7 true"},
	} {
		if got := of(c.dir, c.now); got != c.want {
			t.Errorf("in %q, now in %q: %s, want %s", c.dir, c.now, got, c.want)
		}
	}
	p.remove("g1")
	if got := of("b", ""); got != "7 true" {
		t.Errorf("of an agent that was taken out: %s", got)
	}
}

// TestLostLettersAreBounded: the oldest entries are added up, and nothing is said to be known that is not.
func TestLostLettersAreBounded(t *testing.T) {
	var list []lostLetters
	for n := range maxLostLetters + 2 {
		l := lostLetters{fmt.Sprint(n), api.LostLetters{Agent: fmt.Sprint("g", n), Letters: 1}}
		if n != 1 {
			l.Heard = time.UnixMilli(int64(n) + 1)
		}
		list = append(list, l)
	}
	list = boundLetters(list)
	if len(list) != maxLostLetters || list[0].Agent != "" || list[0].Letters != 3 || !list[0].Heard.IsZero() || list[1].Agent != "g3" {
		t.Errorf("%d entries, begin with %+v", len(list), list[:2])
	}
}

// TestLettersOfTheRemovedAreForgotten: what was heard of an agent that was taken out of the fleet is kept as long as a job
// is to note what went with it, and no longer.
func TestLettersOfTheRemovedAreForgotten(t *testing.T) {
	copies, damage, err := storage.OpenCopies(filepath.Join(t.TempDir(), "copies.db"))
	if err != nil || damage != nil {
		t.Fatal(err, damage)
	}
	t.Cleanup(func() { _ = copies.Close() })
	job := &hostedJob{rec: jobRecord{Name: "j", State: jobRunning, Dirs: map[string]string{"g1": "a"}}}
	a := &Agent{copies: copies, log: slog.New(slog.DiscardHandler), ready: make(chan struct{}), jobs: map[string]*hostedJob{"j": job}}
	a.peers.init()
	for _, name := range []string{"g1", "g2"} {
		a.peers.hear(sign{Name: name, Dir: "a", Letters: map[string]uint64{"j": 1}})
	}
	known := func(when, name string, want bool) {
		t.Helper()
		_, heard := a.peers.lettersIn(name, "a", "")
		_, kept, err := copies.Get(copyLetters, name)
		if heard != want || kept != want || err != nil {
			t.Errorf("%s: %s heard %v, kept %v, %v", when, name, heard, kept, err)
		}
	}
	if err := a.forgetPeer("g1"); err != nil {
		t.Fatal(err)
	}
	known("before the jobs are loaded", "g1", true)
	close(a.ready)
	a.keepLetters()
	known("before the job is applied", "g1", true)
	job.rec.Dirs = map[string]string{"g3": "c"}
	a.keepLetters()
	known("then", "g1", false)
	if _, ok := a.peers.lettersNow("g2"); !ok {
		t.Error("what was heard of an agent in the fleet is gone")
	}
}
