package nats

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// putWindow is how many chunks of an object are under way. A server that must fsync each takes only so many into its
// queue, and drops the rest.
const putWindow = 8

// putting stores an object as the library does (NATS ADR-20), with two differences: no more is under way than the window,
// and the description, which makes the object appear, is published when all chunks are acknowledged. The library
// publishes it behind the last chunk, so that one that is dropped leaves an object without its content.
type putting struct {
	objects *Objects
	js      jetstream.JetStream // of its own, for the acknowledgements
	subject string              // of the chunks
	waiting []jetstream.PubAckFuture
	last    uint64 // sequence of the last chunk that is acknowledged
}

// newID is as unique as the library's, in characters that a subject may have.
func newID() string { return rand.Text()[:22] }

func (o *Objects) put(ctx context.Context, name string, r io.Reader) (Object, error) {
	js, err := jetstream.New(o.conn.control.nc, jetstream.WithPublishAsyncTimeout(requestTimeout))
	if err != nil {
		return Object{}, err
	}
	defer js.CleanupPublisher()
	info := &jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkSize}},
		Bucket:     o.name(), NUID: newID(),
	}
	p := &putting{objects: o, js: js, subject: o.chunks() + info.NUID}
	if err := p.content(ctx, r, info); err != nil {
		return Object{}, errors.Join(err, p.undo(ctx))
	}
	data, err := json.Marshal(info)
	if err != nil {
		return Object{}, err
	}
	m := nats.NewMsg(o.descriptions(name))
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	m.Data = data
	// Whether one that fails has been stored is not known: then the object is whole, or its chunks are remains.
	put := objectOf(info)
	err = o.conn.control.request(ctx, func(ctx context.Context) error {
		ack, err := o.conn.control.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(0))
		if err == nil {
			put.Revision = ack.Sequence
		}
		return err
	})
	if !isWrongSequence(err) {
		return put, err
	}
	// The name is taken: by this object, if its acknowledgement was lost and it was sent twice, or by a faster one.
	has, err := o.Has(ctx, name)
	switch {
	case err != nil:
		return put, err
	case has.id == info.NUID:
		return has, nil
	}
	return put, errors.Join(fmt.Errorf("%w: the name is taken", ErrConflict), p.undo(ctx))
}

// content stores the chunks and notes what they are.
func (p *putting) content(ctx context.Context, r io.Reader, info *jetstream.ObjectInfo) error {
	sum, chunk := sha256.New(), make([]byte, chunkSize)
	for {
		n, err := readUp(r, chunk)
		if n > 0 {
			sum.Write(chunk[:n])
			info.Size, info.Chunks = info.Size+uint64(n), info.Chunks+1
			if err := p.send(ctx, chunk[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	info.Digest = "SHA-256=" + base64.URLEncoding.EncodeToString(sum.Sum(nil))
	for len(p.waiting) > 0 {
		if err := p.acked(ctx); err != nil {
			return err
		}
	}
	return nil
}

// readUp reads until b is full or the reader fails; its error is the reader's own.
func readUp(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = r.Read(b[n:])
		n += m
	}
	return n, err
}

func (p *putting) send(ctx context.Context, chunk []byte) error {
	for len(p.waiting) >= putWindow {
		if err := p.acked(ctx); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m := nats.NewMsg(p.subject)
	m.Data = chunk
	f, err := p.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0)) // which would come behind the next ones
	if err == nil {
		p.waiting = append(p.waiting, f)
	}
	return translate(err)
}

// acked waits for the oldest chunk under way. They are stored in the order in which they are to be read.
func (p *putting) acked(ctx context.Context) error {
	f := p.waiting[0]
	p.waiting = p.waiting[1:]
	return p.objects.conn.control.request(ctx, func(ctx context.Context) error {
		select {
		case ack := <-f.Ok():
			if ack.Sequence <= p.last {
				return fmt.Errorf("a chunk was stored at %d, the one before it at %d", ack.Sequence, p.last)
			}
			p.last = ack.Sequence
			return nil
		case err := <-f.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// undo removes the chunks of an object that has no description. What is left all the same [Objects.Clean] removes.
func (p *putting) undo(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	return p.objects.conn.control.request(ctx, func(ctx context.Context) error {
		st, err := p.objects.conn.control.js.Stream(ctx, p.objects.stream())
		if err == nil {
			err = st.Purge(ctx, jetstream.WithPurgeSubject(p.subject))
		}
		return err
	})
}
