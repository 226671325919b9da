package node_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-stream/weir/internal/api"
)

// newestPacks does something to the newest object in the store of snapshots that an agent has put there.
func (s *site) newestPacks(agent string, do func(js jetstream.JetStream, store jetstream.ObjectStore, o *jetstream.ObjectInfo) error) {
	s.t.Helper()
	nc, err := nats.Connect("nats://" + s.at.NATS)
	if err != nil {
		s.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	store, err := js.ObjectStore(s.t.Context(), "weir-snapshots")
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := store.List(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	var newest *jetstream.ObjectInfo
	for _, o := range list {
		if strings.HasPrefix(o.Name, "lines/@"+agent+"/") && (newest == nil || o.ModTime.After(newest.ModTime)) {
			newest = o
		}
	}
	if newest == nil {
		s.t.Fatalf("no object of %s among %d", agent, len(list))
	}
	if err := do(js, store, newest); err != nil {
		s.t.Fatal(err)
	}
}

// altered puts other bytes in the place of an object's, of the same length.
func altered(s *site) func(jetstream.JetStream, jetstream.ObjectStore, *jetstream.ObjectInfo) error {
	return func(js jetstream.JetStream, _ jetstream.ObjectStore, o *jetstream.ObjectInfo) error {
		st, err := js.Stream(s.t.Context(), "OBJ_weir-snapshots")
		if err != nil {
			return err
		}
		chunks := "$O.weir-snapshots.C." + o.NUID
		m, err := st.GetLastMsgForSubject(s.t.Context(), chunks)
		if err != nil {
			return err
		}
		b := bytes.Clone(m.Data)
		b[len(b)-12] ^= 4
		if err := st.DeleteMsg(s.t.Context(), m.Sequence); err != nil {
			return err
		}
		_, err = js.Publish(s.t.Context(), chunks, b)
		return err
	}
}

func missing(s *site) func(jetstream.JetStream, jetstream.ObjectStore, *jetstream.ObjectInfo) error {
	return func(_ jetstream.JetStream, store jetstream.ObjectStore, o *jetstream.ObjectInfo) error {
		return store.Delete(s.t.Context(), o.Name)
	}
}

// TestDamagedReplica: a gateway's device is lost, and its newest replica is damaged: it goes on from the one before
// it. When the hub's snapshots are lost and its replica is, too, the job stops and says what to do, before anything
// has been given up; with the object store brought back it goes on.
func TestDamagedReplica(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.begin()
	s.replicated("lines")
	s.replicated("lines")
	newest := s.newest()
	s.newestPacks("g2", altered(s))
	s.lose("g2")
	s.failed("text@g2")
	if _, err := s.reapply(api.JobSource{Replace: []string{"g2"}}); err != nil {
		t.Fatal(err)
	}
	r := s.recovered("text@g2", "L3")
	if r.Epoch == 0 || r.Epoch >= newest || !strings.Contains(r.Reason, "damaged") {
		t.Errorf("epoch %d is the newest, and g2 began so: %+v", newest, r)
	}
	lost := s.task("text@g2").Losses
	if len(lost) != 1 || lost[0].Source != "text" || lost[0].Epoch != r.Epoch || lost[0].AfterPosition == 0 || lost[0].Generation != 2 ||
		len(lost[0].Received) != 1 || lost[0].Received[0].Channel != "text@g2.out>total/0.0" || lost[0].Received[0].First > lost[0].Received[0].Last {
		t.Errorf("lost with the device: %+v", lost)
	}
	s.write("g2", "b")
	s.last("now", "b", 3)
	s.replicated("lines")

	s.newestPacks("g1", missing(s))
	s.lose("g1")
	s.failed("text@g1")
	if _, err := s.reapply(api.JobSource{Replace: []string{"g1"}}); err != nil {
		t.Fatal(err)
	}
	if r := s.recovered("text@g1", "L3"); !strings.Contains(r.Reason, "damaged") {
		t.Errorf("g1 began so: %+v", r)
	}
	s.write("g1", "a")
	s.last("now", "a", 3)
	s.replicated("lines")

	// Of a streamed task no older part would do.
	files, copied := filepath.Join(s.opts["center"].Data, "nats"), s.path("copy")
	s.stop("center")
	if err := os.CopyFS(copied, os.DirFS(files)); err != nil {
		t.Fatal(err)
	}
	s.start("center")
	s.newestPacks("hub", altered(s))
	s.stop("hub")
	empty(t, filepath.Join(s.opts["hub"].Data, "state.db"))
	s.start("hub")
	if why := s.failed("total/0"); !strings.Contains(why, "replica cannot be used") || !strings.Contains(why, "--replace hub") {
		t.Errorf("the hub says %q", why)
	}
	j, err := s.client.Job(t.Context(), "lines")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.reapply(api.JobSource{Replace: []string{"hub"}}); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("replaced with a damaged replica: %v", err)
	}
	if now, err := s.client.Job(t.Context(), "lines"); err != nil || now.Generation != j.Generation || s.task("total/0").Restarts != 0 {
		t.Errorf("%+v, %v", now, err)
	}
	s.write("g1", "a")
	s.stop("hub")
	s.stop("center")
	if err := errors.Join(os.RemoveAll(files), os.CopyFS(files, os.DirFS(copied))); err != nil {
		t.Fatal(err)
	}
	s.start("center")
	s.start("hub")
	s.last("now", "a", 4)
	s.recovered("total/0", "L2")
}

// TestDamagedReplicaFile flips bits in the server's file of the store of snapshots.
func TestDamagedReplicaFile(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.begin()
	s.replicated("lines")
	s.stop("center")
	root := filepath.Join(s.opts["center"].Data, "nats")
	hits := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.Contains(path, "OBJ_weir-snapshots") || !strings.HasSuffix(path, ".blk") {
			return err
		}
		b, err := os.ReadFile(path)
		for at := 0; err == nil; { // the beginning of every pack's compressed part
			i := bytes.Index(b[at:], []byte{0x28, 0xb5, 0x2f, 0xfd})
			if i < 0 {
				break
			}
			b[at+i+9] ^= 8
			at, hits = at+i+4, hits+1
		}
		return errors.Join(err, os.WriteFile(path, b, 0o600))
	})
	if err != nil || hits == 0 {
		t.Fatalf("%d packs found, %v", hits, err)
	}
	s.start("center")
	s.stop("hub")
	empty(t, filepath.Join(s.opts["hub"].Data, "state.db"))
	s.start("hub")
	t.Log(s.failed("total/0"))
}
