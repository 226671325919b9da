package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/storage"
	"github.com/weir-stream/weir/wasmops"
)

// Bounds of modules that come in.
const (
	// uploadTotal bounds unfinished uploads, in bytes of disk: four of the largest modules.
	uploadTotal = 4 * wasmops.DefaultModuleLimit
	// uploadAge is how long an upload that broke off is kept, uploadBusy since when one may give way to another.
	uploadAge  = 24 * time.Hour
	uploadBusy = time.Minute
	// bodiesAtOnce bounds the modules that come whole as the body of a request, each in memory, and checksAtOnce those that
	// are read and checked. triesAtOnce bounds the requests whose job's operators are being tried, also when nobody waits
	// for that any more.
	bodiesAtOnce = 4
	checksAtOnce = 2
	triesAtOnce  = 2
)

var uploadLimits = storage.UploadLimits{Size: wasmops.DefaultModuleLimit, Total: uploadTotal, Age: uploadAge, Busy: uploadBusy}

// slots bound how much of something goes on at once.
type slots struct {
	once sync.Once
	free chan struct{}
}

// take waits for one of n slots; release gives it back.
func (s *slots) take(ctx context.Context, n int) (release func(), err error) {
	s.once.Do(func() { s.free = make(chan struct{}, n) })
	select {
	case s.free <- struct{}{}:
		return func() { <-s.free }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// busy says that a request has waited for others in vain.
func busy() error {
	return api.Unavailable("try it again", "this agent is busy with the modules of other requests")
}

func checkDigest(digest string) error {
	if !storage.ValidDigest(digest) {
		return api.Invalid("a digest is sha256: and 64 hexadecimal digits in lower case", "%q names no module", digest)
	}
	return nil
}

// Uploaded implements [web.Operators].
func (a *Agent) Uploaded(_ context.Context, digest string) (api.Upload, error) {
	if err := checkDigest(digest); err != nil {
		return api.Upload{}, err
	}
	a.touchModule(digest)
	switch size, err := a.blobs.Size(digest); {
	case err == nil && size > 0:
		return api.Upload{Digest: digest, Bytes: size, Complete: true}, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return api.Upload{}, a.diskFailed(err)
	}
	return api.Upload{Digest: digest, Bytes: a.uploads.Have(digest)}, nil
}

// Upload implements [web.Operators]. What has come when the connection breaks stays.
func (a *Agent) Upload(ctx context.Context, digest string, size, offset int64, body io.Reader) (api.Upload, error) {
	if st, err := a.Uploaded(ctx, digest); err != nil || st.Complete {
		return st, err
	}
	var err error
	buf := make([]byte, 64<<10)
	for err == nil {
		var n int
		n, err = body.Read(buf)
		if n > 0 {
			if _, writeErr := a.uploads.Write(digest, size, offset, buf[:n]); writeErr != nil {
				return api.Upload{}, errors.Join(a.uploadFailed(digest, size, writeErr), a.uploads.Sync(digest))
			}
			offset += int64(n)
		}
	}
	if syncErr := a.uploads.Sync(digest); syncErr != nil {
		return api.Upload{}, a.uploadFailed(digest, size, syncErr)
	}
	if err != io.EOF {
		return api.Upload{}, fmt.Errorf("upload of %s broke off, %d of %d bytes are here: %w", digest, a.uploads.Have(digest), size, err)
	}
	// Another request may have finished it.
	if st, err := a.Uploaded(ctx, digest); err != nil || st.Complete || st.Bytes < size {
		return st, err
	}
	if err := a.uploads.Finish(digest, a.blobs); err != nil {
		return api.Upload{}, a.uploadFailed(digest, size, err)
	}
	return api.Upload{Digest: digest, Bytes: size, Complete: true}, nil
}

// uploadFailed says what is to be done about an upload.
func (a *Agent) uploadFailed(digest string, size int64, err error) error {
	switch {
	case storage.IsFull(err):
		have, hint := a.uploads.Have(digest), "make room on it and push again"
		if have > 0 {
			hint += ": what is there is kept for up to a day, and the rest is sent"
		}
		return &api.Error{
			Status: http.StatusInsufficientStorage, Hint: hint,
			Message: fmt.Sprintf("the disk of agent %s is full: %d of %d bytes of module %s are there: %v", a.name, have, size, digest, err),
		}
	case errors.Is(err, storage.ErrCorrupt):
		return api.Conflict("push it again: it begins anew", "what was uploaded as module %s is something else: was the file changed meanwhile? %v", digest, err)
	case errors.Is(err, storage.ErrGap):
		return &api.Error{Status: http.StatusRequestedRangeNotSatisfiable, Message: err.Error(), Hint: "ask how much is there, and go on from that"}
	case errors.Is(err, storage.ErrBusy):
		return api.Unavailable("try again in a minute", "%v", err)
	case errors.Is(err, storage.ErrRefused):
		return api.Invalid("", "%v", err)
	}
	return a.diskFailed(err)
}

// diskFailed says of an error that it is nobody's mistake: the same may succeed later.
func (a *Agent) diskFailed(err error) error { return fmt.Errorf("agent %s: %w", a.name, err) }

// uploadedModule checks a module that was uploaded before.
func (a *Agent) uploadedModule(ctx context.Context, digest string) (*wasmops.Module, error) {
	if err := checkDigest(digest); err != nil {
		return nil, err
	}
	release, err := a.checking.take(ctx, checksAtOnce)
	if err != nil {
		return nil, busy()
	}
	defer release()
	a.touchModule(digest)
	b, err := a.blobs.Get(digest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, api.Conflict("upload it first: PATCH /api/v1/uploads/DIGEST", "module %s is not on this agent", digest)
	case errors.Is(err, storage.ErrCorrupt):
		return nil, errors.Join(api.Conflict("push it again: it begins anew", "module %s was damaged on this agent's disk: %v", digest, err), a.blobs.Delete(digest))
	case err != nil:
		return nil, a.diskFailed(err)
	}
	return a.checkBytes(ctx, b)
}
