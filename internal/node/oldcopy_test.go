package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-stream/weir/internal/api"
)

// TestServerFromAnOldCopy: the control plane's server is stopped, and comes back with the files that it had some
// checkpoints ago. What it forgot the agents bring back: no epoch's number is used twice, and a job that was applied
// since is there again. Sums are exact, also when agents start anew and when snapshots come from the replica.
func TestServerFromAnOldCopy(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.begin()
	files, copied := filepath.Join(s.opts["center"].Data, "nats"), s.path("copy")
	s.stop("center")
	if err := os.CopyFS(copied, os.DirFS(files)); err != nil {
		t.Fatal(err)
	}
	s.start("center")
	s.write("g1", "a")
	for range 6 {
		s.replicated("lines")
	}
	newest := s.newest()
	other := newFiles(t)
	other.write(t, "{\"k\":\"a\"}\n")
	s.mustApply(strings.Replace(other.job(true, ""), "name: lines", "name: other", 1))
	s.write("g2", "b")
	s.wants("now", "a1 b1 a2 b2 a3 b3")

	s.stop("center")
	if err := errors.Join(os.RemoveAll(files), os.CopyFS(files, os.DirFS(copied))); err != nil {
		t.Fatal(err)
	}
	s.start("center")
	s.write("g1", "a")
	s.wants("now", "a1 b1 a2 b2 a3 b3 a4")
	s.until("the agents have brought back what the server forgot", func() (bool, string) {
		_, err := s.client.CheckpointNow(t.Context(), "lines", "", patience)
		return err == nil, fmt.Sprint(err)
	})
	if st, err := s.client.Status(t.Context()); err != nil || !strings.Contains(strings.Join(st.Notices, "\n"), "had gone back") {
		t.Errorf("the server's agent says %q, %v", st.Notices, err)
	}
	if now := s.newest(); now <= newest {
		t.Errorf("epoch %d comes after %d", now, newest)
	}
	s.state("other", api.JobRunning)
	s.wants("held", "a1 b1 a2 b2 a3 b3 a4")
	for _, name := range []string{"hub", "g1"} {
		s.stop(name)
		s.start(name)
	}
	s.write("g1", "a")
	s.wants("now", "a1 b1 a2 b2 a3 b3 a4 a5")
	s.replicated("lines")
	s.stop("hub")
	empty(t, filepath.Join(s.opts["hub"].Data, "state.db"))
	s.start("hub")
	s.write("g2", "b")
	s.wants("now", "a1 b1 a2 b2 a3 b3 a4 a5 b4")
	s.recovered("total/0", "L2")
	s.replicated("lines")
	s.onceByNumber("held", "a1 b1 a2 b2 a3 b3 a4 a5 b4")
	s.wants("near-g1", "a1 a2 a3 a4 a5")
	s.wants("near-g2", "b1 b2 b3 b4")
	for _, id := range []string{"text@g1", "text@g2", "total/0"} {
		if task := s.task(id); task.Restarts != 0 {
			t.Errorf("%+v", task)
		}
	}
}

// newest is the newest epoch of the job.
func (s *site) newest() uint64 {
	s.t.Helper()
	list, err := s.client.Checkpoints(s.t.Context(), "lines")
	if err != nil || len(list) == 0 {
		s.t.Fatal(fmt.Sprint(list, err))
	}
	var newest uint64
	for _, c := range list {
		newest = max(newest, c.Epoch)
	}
	return newest
}
