package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
)

const (
	// fullPackEvery bounds the chain of packs that a restore from the replica has to read.
	fullPackEvery = 16
	// bundledPack is the size in bytes up to which a pack shares an object with others: every object
	// costs several fsynced messages, however small it is.
	bundledPack = 64 << 10
	bundleMagic = "weir bundle 1\n"
	// bundleHead bounds the list of what a bundle holds, in bytes.
	bundleHead = 1 << 20
)

// replicaJob is a part to be put into the object store.
type replicaJob struct {
	r     *runner
	epoch abs.Epoch // of the manifest
	part  abs.Part
}

// replicaList is acknowledgements of replicas of one agent for one epoch. The key bears the name of the
// first task. A later list under the same key may lack tasks of the former: an agent that starts again, or is
// told of the epoch again, stores all parts of it that the manifest does not yet name packs of.
type replicaList struct {
	Acks []abs.ReplicaAck `json:"acks"`
}

func decodeReplicas(raw []byte) ([]abs.ReplicaAck, error) {
	var list struct {
		Acks []json.RawMessage `json:"acks"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("acknowledgements of replicas: %w", err)
	}
	var acks []abs.ReplicaAck
	for _, raw := range list.Acks {
		ack, err := abs.DecodeReplicaAck(raw)
		if err != nil {
			return nil, err
		}
		acks = append(acks, ack)
	}
	return acks, nil
}

// replicateAll stores the parts that have gathered, those of a job and epoch together.
func (a *Agent) replicateAll(jobs []replicaJob) {
	for len(jobs) > 0 {
		first, rest := jobs[0], jobs[:0:0]
		var same []replicaJob
		for _, j := range jobs {
			if j.r.job == first.r.job && j.epoch == first.epoch {
				same = append(same, j)
			} else {
				rest = append(rest, j)
			}
		}
		a.attempt("replica", fmt.Sprintf("%s, epoch %d", first.r.rec.Name, first.epoch), func(ctx context.Context) (err error) {
			same, err = a.replicate(ctx, same)
			return err
		})
		jobs = rest
	}
}

// replicate stores parts of one epoch of a job as packs, and says so in KV. It returns those that could
// not be stored.
func (a *Agent) replicate(ctx context.Context, jobs []replicaJob) (left []replicaJob, err error) {
	if jobs[0].r.job.superseded(jobs[0].epoch) {
		return nil, nil
	}
	var b bundle
	var bundled []replicaJob
	var acks []abs.ReplicaAck
	var errs []error
	gone, err := a.goneChains(ctx, jobs)
	if err != nil {
		return jobs, err
	}
	for _, j := range jobs {
		packs, since := a.packsBefore(j, gone)
		pack, err := a.readPack(j.r.name, since, dataflow.Version(j.part.Version))
		ack := abs.ReplicaAck{
			Task: j.r.task.ID, Epoch: j.part.Epoch, Generation: j.part.Generation, Version: j.part.Version, Packs: packs,
		}
		switch {
		case err != nil:
		case pack.whole:
			b.add(j.r.task.ID, pack.head)
			acks, bundled = append(acks, ack), append(bundled, j)
			continue
		default:
			err = a.replicateAlone(ctx, j, ack, since, pack.reader())
			pack.close()
		}
		if err != nil {
			errs, left = append(errs, err), append(left, j)
		}
	}
	if len(acks) > 0 {
		if err := a.putBundle(ctx, jobs[0], b, acks); err != nil {
			errs, left = append(errs, err), append(left, bundled...)
		}
	}
	return left, errors.Join(errs...)
}

// packReader is a pack that is written as it is read: the state of a task may be as large as the device's memory.
type packReader struct {
	head  []byte // its first bytes
	whole bool   // these are all
	rest  *io.PipeReader
	done  chan struct{}
}

// readPack begins to write a pack and reads so much of it that a small one is whole. Others must be closed.
func (a *Agent) readPack(task string, since, upto dataflow.Version) (*packReader, error) {
	r, w := io.Pipe()
	p := &packReader{rest: r, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		w.CloseWithError(a.store.WritePack(w, task, since, upto))
	}()
	head := bytes.NewBuffer(make([]byte, 0, bundledPack+1))
	_, err := io.CopyN(head, r, bundledPack+1)
	if p.head, p.whole = head.Bytes(), err == io.EOF; p.whole {
		err = nil
	}
	if err != nil || p.whole {
		p.close()
	}
	return p, err
}

func (p *packReader) reader() io.Reader { return io.MultiReader(bytes.NewReader(p.head), p.rest) }

// close ends the writing and waits for that.
func (p *packReader) close() {
	_ = p.rest.Close() // it never fails
	<-p.done
}

// replicateAlone stores a pack as an object of its own. That it is there already is fine: the same versions are the
// same bytes. The name of one that continues another says from which version, since an earlier try may have stored it so,
// and what it continues be gone meanwhile.
func (a *Agent) replicateAlone(ctx context.Context, j replicaJob, ack abs.ReplicaAck, since dataflow.Version, pack io.Reader) error {
	name := packName(j.r.rec.Name, j.r.task.ID, j.part.Generation, j.part.Version)
	if since != 0 {
		name = fmt.Sprintf("%s.%d", name, since)
	}
	if _, err := a.conn.Objects(wnats.Snapshots).Put(ctx, name, pack); err != nil && !errors.Is(err, wnats.ErrConflict) {
		return err
	}
	ack.Packs = append(ack.Packs, name)
	return a.ackReplicas(ctx, j, ack)
}

// putBundle stores several packs as one object, under a name that is used once.
func (a *Agent) putBundle(ctx context.Context, j replicaJob, b bundle, acks []abs.ReplicaAck) error {
	a.bundles++
	name := fmt.Sprintf("%s.%d.%d", packName(j.r.rec.Name, bundleOwner(a.name), j.r.rec.Generation, uint64(j.epoch)), a.dir.Incarnation(), a.bundles)
	if _, err := a.conn.Objects(wnats.Snapshots).Put(ctx, name, b.reader()); err != nil {
		return err
	}
	for i := range acks {
		acks[i].Packs = append(acks[i].Packs, memberName(name, acks[i].Task))
	}
	return a.ackReplicas(ctx, j, acks...)
}

// ackReplicas acknowledges replicas whose packs are all in the store. It asks the server for each, and just before it says
// so: since the replicas' worker looked first, which may be hours ago on a slow link, the server may have lost its files, or
// the coordinator have removed a damaged object. If one goes after that, it is as if it went after the acknowledgement: the
// coordinator of the next term reads what newest checkpoints name, and the agent finds what it would build upon gone, and
// stores its next pack whole. The coordinator removes nothing else that an acknowledgement can name: of the
// objects that no record names only those that are older than one of the same owner that a record does (tidyPacks), while
// a chain is that of a record, which is kept for [keptRecords] epochs, or, of an agent that is away, of every
// record since.
func (a *Agent) ackReplicas(ctx context.Context, j replicaJob, acks ...abs.ReplicaAck) error {
	var packs []string
	for _, ack := range acks {
		packs = append(packs, ack.Packs...)
	}
	gone, err := a.conn.Objects(wnats.Snapshots).Missing(ctx, objectsOf(packs))
	if err != nil {
		return err
	}
	if len(gone) > 0 {
		return fmt.Errorf("replica of epoch %d: the object store has %s no more", j.epoch, strings.Join(gone, ", "))
	}
	key := replicaKey(j.r.rec.Name, j.epoch, acks[0].Task)
	_, err = a.conn.KV(wnats.Checkpoints).Put(ctx, key, mustJSON(replicaList{acks}))
	return err
}

// objectsOf are the objects that hold packs, each once.
func objectsOf(packs []string) (objects []string) {
	for _, pack := range packs {
		object, _ := splitPack(pack)
		objects = append(objects, object)
	}
	slices.Sort(objects)
	return slices.Compact(objects)
}

// goneChains asks the server which objects are gone of those that hold the newest replicas of tasks.
func (a *Agent) goneChains(ctx context.Context, jobs []replicaJob) ([]string, error) {
	var packs []string
	for _, j := range jobs {
		if last, ok := j.r.job.newestReplicated(j.r.task.ID, j.part); ok {
			packs = append(packs, last.Packs...)
		}
	}
	return a.conn.Objects(wnats.Snapshots).Missing(ctx, objectsOf(packs))
}

// packsBefore is the chain of packs that the new one continues, and its last version; none, if there
// is no such chain, or some of it is gone from the object store, or it is long, or a part taken whole came since.
func (a *Agent) packsBefore(j replicaJob, gone []string) ([]string, dataflow.Version) {
	last, ok := j.r.job.newestReplicated(j.r.task.ID, j.part)
	if !ok || len(last.Packs) == 0 || len(last.Packs) >= fullPackEvery || last.Version >= j.part.Version || a.builtOnBad(last.Packs) {
		return nil, 0
	}
	for _, pack := range last.Packs {
		if object, _ := splitPack(pack); slices.Contains(gone, object) {
			return nil, 0
		}
	}
	parts, err := a.store.Parts(j.r.name)
	if err != nil {
		return nil, 0
	}
	here := false
	for _, p := range parts {
		v := uint64(p.Version)
		here = here || v == last.Version && p.Generation == last.Generation
		if p.Full && v > last.Version && v <= j.part.Version {
			return nil, 0 // what lies before a full part is no base for what comes after
		}
	}
	if !here {
		return nil, 0
	}
	return slices.Clone(last.Packs), dataflow.Version(last.Version)
}

// newestReplicated is the newest replicated part of a task in the part's generation.
func (h *hostedJob) newestReplicated(task abs.TaskID, part abs.Part) (abs.Part, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var best abs.Part
	found := false
	for _, rec := range h.epochs {
		p, ok := rec.Parts[task]
		if !ok || rec.State != abs.Replicated || p.Generation != part.Generation || found && p.Version < best.Version {
			continue
		}
		best, found = p, true
	}
	return best, found
}

// superseded says that a newer checkpoint has been committed meanwhile.
func (h *hostedJob) superseded(e abs.Epoch) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n, rec := range h.epochs {
		if n > e && rec.Manifest() {
			return true
		}
	}
	return false
}

// openPack opens a pack: an imported one, else the object store's.
func (a *Agent) openPack(ctx context.Context, name string) (io.ReadCloser, error) {
	if r, _, err := a.blobs.Open(blobOfPack(name)); err == nil {
		return r, nil
	}
	r, err := storedPack(name, func(object string) (io.ReadCloser, error) { return a.conn.Objects(wnats.Snapshots).Get(ctx, object) })
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", name, err)
	}
	return r, nil
}

// storedPack finds a pack in the object store, alone or in a bundle.
func storedPack(name string, get func(object string) (io.ReadCloser, error)) (io.ReadCloser, error) {
	object, task := splitPack(name)
	r, err := get(object)
	switch {
	case err == nil && task != "":
		return openMember(r, task)
	case task != "" && errors.Is(err, wnats.ErrNotFound): // of a checkpoint that another agent has imported: a pack each
		if alone, e := get(name); !errors.Is(e, wnats.ErrNotFound) {
			return alone, e
		}
	}
	return r, err
}

// packName is the object that holds one pack.
func packName(job string, task abs.TaskID, gen abs.Generation, version uint64) string {
	return fmt.Sprintf("%s/%s/%d-%d", job, task, gen, version)
}

// bundleOwner stands for the task in the names of an agent's bundles; an epoch is their version.
func bundleOwner(agent string) abs.TaskID { return abs.TaskID("@" + agent) }

// memberName is the name of a pack in a bundle.
func memberName(object string, task abs.TaskID) string { return object + "#" + string(task) }

// splitPack splits a pack's name into its object and, if that is a bundle, the task.
func splitPack(name string) (object string, task abs.TaskID) {
	object, member, _ := strings.Cut(name, "#")
	return object, abs.TaskID(member)
}

type packID struct {
	gen     abs.Generation
	version uint64
}

func (p packID) before(o packID) bool {
	return p.gen < o.gen || p.gen == o.gen && p.version < o.version
}

// parsePack tells of an object of a job whose it is, the task's or the agent's, and which.
func parsePack(object, job string) (owner abs.TaskID, id packID, ok bool) {
	rest, ok := strings.CutPrefix(object, job+"/")
	i := strings.LastIndexByte(rest, '/')
	if !ok || i < 0 {
		return "", packID{}, false
	}
	if _, err := fmt.Sscanf(rest[i+1:], "%d-%d", &id.gen, &id.version); err != nil {
		return "", packID{}, false
	}
	return abs.TaskID(rest[:i]), id, true
}

// bundle is packs of several tasks in one object: a line that names the format, a line of JSON that
// lists members, and the packs one after the other.
type bundle struct {
	members []bundleMember
	packs   bytes.Buffer
}

type bundleMember struct {
	Task  abs.TaskID `json:"task"`
	Bytes int64      `json:"bytes"`
}

func (b *bundle) add(task abs.TaskID, pack []byte) {
	b.members = append(b.members, bundleMember{task, int64(len(pack))})
	b.packs.Write(pack)
}

func (b *bundle) reader() io.Reader {
	head := append([]byte(bundleMagic), mustJSON(b.members)...)
	return io.MultiReader(bytes.NewReader(append(head, '\n')), bytes.NewReader(b.packs.Bytes()))
}

// openMember reads one pack of a bundle; closing it closes the bundle. The pack carries a checksum of its
// own.
func openMember(r io.ReadCloser, task abs.TaskID) (io.ReadCloser, error) {
	pack, err := findMember(r, task)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{pack, r}, nil
}

func findMember(r io.Reader, task abs.TaskID) (io.Reader, error) {
	head := &io.LimitedReader{R: r, N: bundleHead}
	lines := bufio.NewReader(head)
	if magic, err := lines.ReadString('\n'); err != nil || magic != bundleMagic {
		return nil, fmt.Errorf("%w: the object is no bundle of packs that this version can read", storage.ErrCorrupt)
	}
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("%w: list of a bundle of packs: %w", storage.ErrCorrupt, err)
	}
	var members []bundleMember
	if err := json.Unmarshal(line, &members); err != nil {
		return nil, fmt.Errorf("%w: list of a bundle of packs: %w", storage.ErrCorrupt, err)
	}
	skip := int64(0)
	for _, m := range members {
		if m.Task == task {
			packs := io.MultiReader(io.LimitReader(lines, int64(lines.Buffered())), r)
			if _, err := io.CopyN(io.Discard, packs, skip); err != nil {
				return nil, fmt.Errorf("%w: bundle of packs: %w", storage.ErrCorrupt, err)
			}
			return io.LimitReader(packs, m.Bytes), nil
		}
		skip += m.Bytes
	}
	return nil, fmt.Errorf("%w: the bundle holds no pack of task %s", storage.ErrCorrupt, task)
}
