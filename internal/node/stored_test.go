package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/job"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// noise is a value that cannot be compressed, of so many bytes.
func noise(seed string, bytes int) []byte {
	var b []byte
	for len(b) < bytes {
		sum := sha256.Sum256(append([]byte(seed), b...))
		b = append(b, sum[:]...)
	}
	return b[:bytes]
}

// replicaSite replicates the parts of one task.
type replicaSite struct {
	t   *testing.T
	ctx context.Context
	r   *runner
}

func newReplicaSite(t *testing.T) *replicaSite {
	ctx, conn := controlPlane(t)
	dir, err := storage.OpenDir(filepath.Join(t.TempDir(), "agent"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	store, _, err := storage.OpenStore(dir.StatePath())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	blobs, err := storage.OpenBlobs(dir.BlobsPath())
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{name: "g", conn: conn, store: store, dir: dir, blobs: blobs, log: slog.New(slog.DiscardHandler)}
	h := &hostedJob{a: a, name: "j", epochs: map[abs.Epoch]abs.EpochRecord{}}
	return &replicaSite{t, ctx, &runner{a: a, job: h, rec: jobRecord{Name: "j", Generation: 1}, task: &job.Task{ID: "t"}, name: "j/t"}}
}

// save makes a part of an epoch durable, which has changed so many bytes.
func (s *replicaSite) save(epoch uint64, bytes int) {
	s.t.Helper()
	info := dataflow.PartInfo{Task: "j/t", Version: dataflow.Version(epoch), Epoch: abs.Epoch(epoch), Generation: 1, Full: epoch == 1}
	seed := strings.Repeat("x", int(epoch))
	if err := s.r.a.store.Save(info, []dataflow.Change{{Space: dataflow.SpaceKeyed, Key: []byte(seed), Value: noise(seed, bytes)}}); err != nil {
		s.t.Fatal(err)
	}
}

// replicate stores the part of an epoch and returns the packs that are acknowledged, which are all there and whole.
func (s *replicaSite) replicate(epoch uint64) []string {
	s.t.Helper()
	part := abs.Part{Epoch: abs.Epoch(epoch), Generation: 1, Version: epoch}
	if _, err := s.r.a.replicate(s.ctx, []replicaJob{{s.r, abs.Epoch(epoch), part}}); err != nil {
		s.t.Fatal(err)
	}
	e, err := s.r.a.conn.KV(wnats.Checkpoints).Get(s.ctx, replicaKey("j", abs.Epoch(epoch), "t"))
	if err != nil {
		s.t.Fatal(err)
	}
	acks, err := decodeReplicas(e.Value)
	if err != nil || len(acks) != 1 {
		s.t.Fatalf("%d acknowledgements, %v", len(acks), err)
	}
	if err := s.r.a.checkPacks(s.ctx, acks[0].Packs); err != nil {
		s.t.Errorf("what is acknowledged of epoch %d cannot be used: %v", epoch, err)
	}
	return acks[0].Packs
}

// counts lets the agent know of a checkpoint that names these packs.
func (s *replicaSite) counts(epoch uint64, packs []string) {
	part := abs.Part{Epoch: abs.Epoch(epoch), Generation: 1, Version: epoch, Packs: packs}
	s.r.job.epochs[abs.Epoch(epoch)] = abs.EpochRecord{
		Epoch: abs.Epoch(epoch), Generation: 1, State: abs.Replicated, Parts: map[abs.TaskID]abs.Part{"t": part},
	}
}

func (s *replicaSite) remove(pack string) {
	s.t.Helper()
	object, _ := splitPack(pack)
	if err := s.r.a.conn.Objects(wnats.Snapshots).Delete(s.ctx, object); err != nil {
		s.t.Fatal(err)
	}
}

// TestReplicaUponWhatIsGone: an object that has just been there is gone from the store when the next pack would continue
// it: that one is stored whole. No acknowledgement names what is not there.
func TestReplicaUponWhatIsGone(t *testing.T) {
	s := newReplicaSite(t)
	s.save(1, 100)
	one := s.replicate(1)
	s.counts(1, one)
	s.save(2, 100)
	two := s.replicate(2)
	if len(two) != 2 || two[0] != one[0] {
		t.Fatalf("%v continues %v", two, one)
	}
	s.counts(2, two)
	s.remove(one[0])
	s.save(3, 100)
	if three := s.replicate(3); len(three) != 1 {
		t.Errorf("%v continues what is gone", three)
	}

	ack := abs.ReplicaAck{Task: "t", Epoch: 4, Generation: 1, Version: 4, Packs: []string{one[0], two[1]}}
	err := s.r.a.ackReplicas(s.ctx, replicaJob{s.r, 4, abs.Part{}}, ack)
	object, _ := splitPack(one[0])
	if err == nil || !strings.Contains(err.Error(), object) {
		t.Errorf("an acknowledgement of what is gone: %v", err)
	}
	if keys, err := s.r.a.conn.KV(wnats.Checkpoints).Keys(s.ctx, replicaKey("j", 4, "t")); err != nil || len(keys) != 0 {
		t.Errorf("acknowledged: %v, %v", keys, err)
	}
}

// TestLargeReplicaIsStoredAgain: a pack that continues another one is in the store, and the agent ended before it
// acknowledged it. What it continues is gone when the agent tries again: the whole pack is not taken for the one that is
// there.
func TestLargeReplicaIsStoredAgain(t *testing.T) {
	s := newReplicaSite(t)
	s.save(1, 100)
	one := s.replicate(1)
	s.counts(1, one)
	s.save(2, 2*bundledPack)
	two := s.replicate(2)
	if len(two) != 2 {
		t.Fatalf("%v continues %v", two, one)
	}
	s.remove(one[0])
	if again := s.replicate(2); len(again) != 1 || slices.Contains(two, again[0]) {
		t.Errorf("%v, after %v", again, two)
	}
}

// TestImportedReplicaIsForAll: a part of a task was stored in one object with others. An agent that has imported the
// exported checkpoint brings its packs to another control plane, each alone; there an agent that has imported nothing
// restores its task from them.
func TestImportedReplicaIsForAll(t *testing.T) {
	from := newReplicaSite(t)
	from.save(1, 100)
	packs := from.replicate(1)
	if object, task := splitPack(packs[0]); object == "" || task != "t" {
		t.Fatalf("%v is no part of an object", packs)
	}
	r, err := from.r.a.openPack(from.ctx, packs[0])
	if err != nil {
		t.Fatal(err)
	}
	pack, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}

	to := newReplicaSite(t)
	if _, err := to.r.a.importPacks(to.ctx, "j/t", packs); !errors.Is(err, wnats.ErrNotFound) {
		t.Fatalf("before it is brought: %v", err)
	}
	blobs, err := storage.OpenBlobs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := blobs.PutBytes(blobOfPack(packs[0]), pack); err != nil {
		t.Fatal(err)
	}
	imported := &Agent{conn: to.r.a.conn, blobs: blobs}
	if err := imported.mergeBlobs(to.ctx); err != nil {
		t.Fatal(err)
	}
	info, err := to.r.a.importPacks(to.ctx, "j/t", packs)
	if err != nil || info.Epoch != 1 || info.Version != 1 {
		t.Errorf("%+v, %v", info, err)
	}
}
