package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Pace of an upload.
const (
	// uploadPiece is what one request carries, in bytes, and pieceTimeout how long it may take: what came by then stays.
	uploadPiece  = 1 << 20
	pieceTimeout = time.Minute
	// uploadTries bounds the tries in a row in which nothing arrives; uploadWait is before the second one, and doubles up
	// to uploadWaitMost: a minute and a half in all.
	uploadTries    = 10
	uploadWait     = 500 * time.Millisecond
	uploadWaitMost = 20 * time.Second
)

// Uploading is how an upload goes on.
type Uploading struct {
	Bytes, Size int64 // that are there, and in all
	// Broke is why the last request failed; nil: it did not. Wait is how long the next one waits.
	Broke error
	Wait  time.Duration
}

// Uploader sends modules to an agent in pieces. Where the connection breaks it goes on with what the agent does not have,
// and so does another Uploader later.
type Uploader struct {
	Client *Client
	// Progress is called after each request; it may be nil.
	Progress func(Uploading)
	// Wait waits for a time, or returns an error; nil: by the clock.
	Wait func(ctx context.Context, d time.Duration) error
}

// Upload sends a module of size bytes unless the agent has it. When it has broken off too often in a row, the error says
// how much of it is there.
func (u Uploader) Upload(ctx context.Context, digest string, module io.ReaderAt, size int64) error {
	best, failed := int64(-1), 0
	var st Upload
	known := false // that st is what the agent has
	for {
		next, err := u.step(ctx, st, known, digest, module, size)
		if err == nil && known && !next.Complete && next.Bytes <= st.Bytes {
			err = errTookNothing
		}
		switch {
		case err == nil:
			st, known = next, true
			if st.Bytes > best {
				best, failed = st.Bytes, 0
			}
			u.tell(Uploading{Bytes: min(st.Bytes, size), Size: size})
			if st.Complete {
				return nil
			}
			continue
		case best < 0 || !mayPass(err) || ctx.Err() != nil:
			return err
		}
		if failed++; failed >= uploadTries {
			return fmt.Errorf("it broke off %d times in a row; %d of %d bytes are on the agent, which keeps them for up to a day: the same command goes on from there: %w", failed, best, size, err)
		}
		known = false
		wait := min(uploadWait<<(failed-1), uploadWaitMost)
		u.tell(Uploading{Bytes: best, Size: size, Broke: err, Wait: wait})
		if err := u.wait(ctx, wait); err != nil {
			return err
		}
	}
}

// errTookNothing says that a piece was answered, and left nothing behind.
var errTookNothing = errors.New("the agent has taken nothing of what was sent")

// step asks how much is there, or, if that is known, sends the next piece.
func (u Uploader) step(ctx context.Context, st Upload, known bool, digest string, module io.ReaderAt, size int64) (Upload, error) {
	path := []string{"uploads", digest}
	if !known {
		return u.Client.Uploaded(ctx, digest)
	}
	at := min(st.Bytes, size)
	piece := make([]byte, min(uploadPiece, size-at))
	if n, err := module.ReadAt(piece, at); n < len(piece) {
		return st, Invalid("was it changed meanwhile?", "the module cannot be read to its end: %v", err)
	}
	return send[Upload](ctx, u.Client, request{
		method: http.MethodPatch, path: path, limit: pieceTimeout,
		query: url.Values{"size": {strconv.FormatInt(size, 10)}, "offset": {strconv.FormatInt(at, 10)}},
		body:  bytes.NewReader(piece),
	})
}

func (u Uploader) tell(p Uploading) {
	if u.Progress != nil {
		u.Progress(p)
	}
}

func (u Uploader) wait(ctx context.Context, d time.Duration) error {
	if u.Wait != nil {
		return u.Wait(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// mayPass says whether the same may succeed later.
func mayPass(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return true // an answer that was cut off
	}
	switch e.Status {
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusRequestTimeout, http.StatusRequestedRangeNotSatisfiable:
		return true
	}
	return false
}
