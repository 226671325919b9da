package node

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
)

// TestLoggedBefore: how far an agent's log had come is remembered when the agent is back with another one, and
// while it has none.
func TestLoggedBefore(t *testing.T) {
	var p peers
	p.init()
	of := func(log uint64, last abs.Position) sign {
		s := sign{Name: "g1"}
		if log != 0 {
			s.Logged = logged{Log: log, Last: map[string]abs.Position{"j/text@g1": last}}
		}
		return s
	}
	began := time.Now()
	for i, s := range []sign{of(0, 0), of(7, 10), of(7, 20), of(0, 0), of(8, 2), of(8, 3), of(0, 0)} {
		p.hear(s)
		pos, at := p.loggedBefore("g1", "j/text@g1")
		if want := map[bool]abs.Position{true: 20}[i >= 4]; pos != want || want != 0 && (at.Before(began) || at.After(p.seen("g1"))) {
			t.Errorf("after sign %d: position %d at %v", i, pos, at)
		}
	}
	if pos, _ := p.loggedBefore("g1", "j/other@g1"); pos != 0 {
		t.Errorf("of another task: %d", pos)
	}
	p.remove("g1")
	if pos, _ := p.loggedBefore("g1", "j/text@g1"); pos != 0 {
		t.Errorf("of an agent that was removed: %d", pos)
	}
}

// TestLossesAreForgotten: with their job, and no others.
func TestLossesAreForgotten(t *testing.T) {
	copies, _, err := storage.OpenCopies(filepath.Join(t.TempDir(), "local.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer copies.Close()
	a := &Agent{copies: copies}
	for key, task := range map[string]string{"1": "job/a@g1", "2": "job/a@g2", "3": "jobs/a@g1"} {
		if err := a.putCopy(copyLoss, key, lossCopy{Task: task}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.forgetCopies("job"); err != nil {
		t.Fatal(err)
	}
	var left []string
	err = copies.List(copyLoss, func(key string, _ []byte) error {
		left = append(left, key)
		return nil
	})
	if err != nil || !slices.Equal(left, []string{"3"}) {
		t.Errorf("%v are left, %v", left, err)
	}
}

// TestDamagedLosses: a copy that cannot be read keeps no task from running and hides no other one. It is set aside, once,
// and the agent says so.
func TestDamagedLosses(t *testing.T) {
	copies, _, err := storage.OpenCopies(filepath.Join(t.TempDir(), "local.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer copies.Close()
	a := &Agent{copies: copies, name: "g1", log: slog.New(slog.DiscardHandler)}
	if err := a.putCopy(copyLoss, "1", lossCopy{"job/a@g1", api.Loss{Source: "a", Generation: 2}}); err != nil {
		t.Fatal(err)
	}
	if err := copies.Put(copyLoss, "2", []byte("{no JSON")); err != nil {
		t.Fatal(err)
	}
	r := &runner{a: a, name: "job/a@g1"}
	for range 2 {
		if err := r.loadLosses(); err != nil || len(r.losses) != 1 || r.losses[0].Source != "a" {
			t.Fatalf("losses %+v, %v", r.losses, err)
		}
	}
	if said := a.notices.list(); len(said) != 1 || !strings.Contains(said[0], "set aside") {
		t.Errorf("it says %q", said)
	}
	if kept, _, err := copies.Get(copyUnread, copyLoss+"/2"); string(kept) != "{no JSON" || err != nil {
		t.Errorf("set aside: %q, %v", kept, err)
	}
}
