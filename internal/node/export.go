package node

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/native"
	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	wnats "github.com/weir-stream/weir/transport/nats"
)

// An exported checkpoint is a tar file:
//
//	weir.json            exportHead
//	operators/N          operatorRecord
//	modules/DIGEST       modules of the job
//	packs/NAME           packs of the manifest's parts
//	end                  the SHA-256 of all bytes before it, in hexadecimal
//
// A file without its end was cut off.
const (
	exportFormat = 1
	headName     = "weir.json"
	endName      = "end"
	// importLimit bounds one member of an exported file, in bytes.
	importLimit = 4 << 30
)

type exportHead struct {
	Format int             `json:"format"`
	Job    jobRecord       `json:"job"`
	Epoch  abs.EpochRecord `json:"epoch"`
}

// ExportCheckpoint implements [web.Checkpoints].
func (a *Agent) ExportCheckpoint(ctx context.Context, name string, epoch uint64, w io.Writer) error {
	h := a.hostedJob(name)
	if h == nil || h.record().State == jobDeleted {
		return a.failure(name, wnats.ErrNotFound)
	}
	rec, err := a.exportable(ctx, h, abs.Epoch(epoch))
	if err != nil {
		return err
	}
	return a.export(ctx, h.record(), rec, w)
}

// exportable finds a checkpoint whose parts are all in the object store; epoch 0 is the newest.
func (a *Agent) exportable(ctx context.Context, h *hostedJob, epoch abs.Epoch) (abs.EpochRecord, error) {
	entries, err := a.conn.KV(wnats.Checkpoints).List(ctx, wnats.Key(kindEpoch, h.name))
	if err != nil {
		return abs.EpochRecord{}, a.failure(h.name, err)
	}
	var best abs.EpochRecord
	for _, e := range entries {
		var rec abs.EpochRecord
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			return best, err
		}
		if rec.State == abs.Replicated && (epoch == 0 || rec.Epoch == epoch) && rec.Epoch >= best.Epoch {
			best = rec
		}
	}
	switch {
	case best.State == "" && epoch == 0:
		return best, api.NotFound("wait for one, or set checkpoint.replicate in the job file", "job %s has no replicated checkpoint", h.name)
	case best.State == "":
		return best, api.NotFound("agent checkpoint list shows which there are", "job %s has no replicated checkpoint %d", h.name, epoch)
	}
	return best, nil
}

func (a *Agent) export(ctx context.Context, job jobRecord, rec abs.EpochRecord, w io.Writer) error {
	job.State, job.Final, job.Base = jobStopped, rec.Epoch, 0
	e := newExport(w)
	if err := e.add(headName, mustJSON(exportHead{exportFormat, job, rec})); err != nil {
		return err
	}
	if err := a.exportOperators(e, job); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, p := range rec.Parts {
		for _, pack := range p.Packs {
			if seen[pack] {
				continue
			}
			seen[pack] = true
			if err := a.exportPack(ctx, e, pack); err != nil {
				return err
			}
		}
	}
	return e.close()
}

func (a *Agent) exportOperators(e *export, job jobRecord) error {
	seen := map[string]bool{}
	for _, t := range job.plan().Tasks {
		for _, op := range t.Ops {
			if seen[op.Digest] {
				continue
			}
			seen[op.Digest] = true
			if strings.HasPrefix(op.Digest, native.Prefix) {
				continue
			}
			if err := a.exportModule(e, op.Digest); err != nil {
				return err
			}
			if name, version, ok := strings.Cut(op.Module, "@"); ok {
				if rec, err := a.operatorRecord(a.life, name, version); err == nil {
					if err := e.add("operators/"+op.Module, mustJSON(rec)); err != nil {
						return err
					}
				}
			}
		}
	}
	for _, d := range job.digests() {
		if seen[d] || strings.HasPrefix(d, native.Prefix) {
			continue
		}
		seen[d] = true
		if err := a.exportModule(e, d); err != nil {
			return err
		}
	}
	for d := range job.Earlier { // which a part of an older generation may need
		if seen[d] {
			continue
		}
		if err := a.exportModule(e, d); err != nil && !errors.Is(err, wnats.ErrNotFound) {
			return err
		}
	}
	return nil
}

func (a *Agent) exportModule(e *export, digest string) error {
	if err := a.fetchModule(a.life, digest); err != nil {
		return err
	}
	b, err := a.blobs.Get(digest)
	if err != nil {
		return err
	}
	return e.add("modules/"+digest, b)
}

func (a *Agent) exportPack(ctx context.Context, e *export, pack string) error {
	r, err := a.openPack(ctx, pack)
	if err != nil {
		return err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return e.add("packs/"+pack, b)
}

// export writes the members of an exported file.
type export struct {
	sum hash.Hash
	tar *tar.Writer
	out io.Writer
}

func newExport(w io.Writer) *export {
	e := &export{sum: sha256.New(), out: w}
	e.tar = tar.NewWriter(w)
	return e
}

func (e *export) add(name string, b []byte) error {
	if err := e.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(b))}); err != nil {
		return err
	}
	sumMember(e.sum, name, b)
	_, err := e.tar.Write(b)
	return err
}

func sumMember(h hash.Hash, name string, b []byte) {
	fmt.Fprintf(h, "%s %d\n", name, len(b))
	h.Write(b)
}

func (e *export) close() error {
	sum := []byte(hex.EncodeToString(e.sum.Sum(nil)))
	if err := e.add(endName, sum); err != nil {
		return err
	}
	return e.tar.Close()
}

// Imported says what an import found in the file.
type Imported struct {
	Job   string `json:"job"`
	Epoch uint64 `json:"epoch"`
	Tasks int    `json:"tasks"`
}

// ImportCheckpoint puts an exported checkpoint into the directory of an agent that does not run. The
// job is there as a stopped one; applying it again starts it from the checkpoint. Nothing is written
// before the whole file has been read and checked.
func ImportCheckpoint(ctx context.Context, file io.Reader, dir string) (Imported, error) {
	im, err := readExport(file)
	if err != nil {
		return Imported{}, err
	}
	d, err := storage.OpenDir(dir)
	if err != nil {
		return Imported{}, err
	}
	err = im.write(d)
	return Imported{im.head.Job.Name, uint64(im.head.Epoch.Epoch), len(im.head.Epoch.Parts)}, errors.Join(err, d.Close())
}

type exported struct {
	head    exportHead
	members map[string][]byte
}

func readExport(file io.Reader) (*exported, error) {
	im := &exported{members: map[string][]byte{}}
	sum := sha256.New()
	for r := tar.NewReader(file); ; {
		hdr, err := r.Next()
		if err == io.EOF {
			return nil, errors.New("the file was cut off: it has no end; export it again")
		}
		if err != nil {
			return nil, fmt.Errorf("not an exported checkpoint: %w", err)
		}
		b, err := io.ReadAll(io.LimitReader(r, importLimit))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", hdr.Name, err)
		}
		if hdr.Name == endName {
			if string(b) != hex.EncodeToString(sum.Sum(nil)) {
				return nil, errors.New("the file is damaged: its checksum differs; copy or export it again")
			}
			break
		}
		sumMember(sum, hdr.Name, b)
		im.members[hdr.Name] = b
	}
	if err := json.Unmarshal(im.members[headName], &im.head); err != nil {
		return nil, fmt.Errorf("not an exported checkpoint: %s: %w", headName, err)
	}
	if im.head.Format != exportFormat {
		return nil, fmt.Errorf("format %d, this program reads %d: use the version of agent that exported it", im.head.Format, exportFormat)
	}
	return im, nil
}

// importedCluster stands for the control plane of what was imported, which has been in none.
const importedCluster = "imported"

// write stores modules and packs first, the job that refers to them last.
func (im *exported) write(d *storage.Dir) (err error) {
	blobs, err := storage.OpenBlobs(d.BlobsPath())
	if err != nil {
		return err
	}
	copies, damage, err := storage.OpenCopies(d.CopiesPath())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copies.Close()) }()
	if damage != nil {
		return damage
	}
	if err := im.checkNewer(copies); err != nil {
		return err
	}
	var list []storage.Copy
	for name, b := range im.members {
		kind, rest, _ := strings.Cut(name, "/")
		switch kind {
		case "modules":
			err = blobs.PutBytes(rest, b)
		case "packs":
			err = blobs.PutBytes(blobOfPack(rest), b)
		case "operators":
			op, version, _ := strings.Cut(rest, "@")
			list = append(list, storage.Copy{Kind: copyOperator, Key: wnats.Key(op, version), Value: b})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	job := im.head.Job.Name
	im.head.Job.Dirs = nil // what dead letters they have is not lost by this
	list = append(list,
		storage.Copy{Kind: copyEpoch, Key: epochKey(job, im.head.Epoch.Epoch), Value: mustJSON(epochCopy{job, im.head.Epoch})},
		storage.Copy{Kind: copyJob, Key: job, Value: mustJSON(im.head.Job)},
		storage.Copy{Kind: copyCluster, Key: "id", Value: []byte(importedCluster)},
	)
	return copies.PutAll(list...)
}

// checkNewer refuses to put a checkpoint under a job that the directory has already.
func (im *exported) checkNewer(copies *storage.Copies) error {
	value, ok, err := copies.Get(copyJob, im.head.Job.Name)
	if err != nil || !ok {
		return err
	}
	var have jobRecord
	if err := json.Unmarshal(value, &have); err != nil {
		return err
	}
	if have.State == jobDeleted && im.head.Job.newer(have) {
		return nil
	}
	return fmt.Errorf("the directory has job %s (generation %d, %s) already: use another directory, or delete that job first", have.Name, have.Generation, have.State)
}
