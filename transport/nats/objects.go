package nats

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Limits of objects.
const (
	// chunkSize is how much of an object goes into one message, in bytes: every chunk is fsynced, so
	// larger than the library's 128 KiB, and well below MaxMessage.
	chunkSize = 256 << 10
	// listPatience bounds a listing, which takes a message per object.
	listPatience = 30 * time.Second
	// askedAtOnce is how many objects are looked up at the same time.
	askedAtOnce = 16
)

// ErrDamaged says that the bytes of an object are not those that were stored.
var ErrDamaged = errors.New("the object is damaged")

// touches bounds how often a touch is tried again because of somebody else's.
const touches = 100

// Object describes an object of a store.
type Object struct {
	Name   string
	Size   int64  // bytes
	Digest string // "SHA-256=" and the base64 of the URL alphabet
	// Revision grows when an object of the name is stored, and when it is touched; 0 from [Objects.List], which does
	// not know it.
	Revision uint64

	id string // of its chunks
}

// Objects is one object store. Storing an object under a name that is taken fails with [ErrConflict]: what is stored
// under a name never changes. A name that was deleted may be used again, for the same content.
type Objects struct {
	conn  *Conn
	store Store
}

// Objects returns an object store, without asking the server whether it is there.
func (c *Conn) Objects(s Store) *Objects { return &Objects{conn: c, store: s} }

func (o *Objects) name() string { return o.conn.bucketName(string(o.store)) }

func (o *Objects) stream() string { return "OBJ_" + o.name() }

// chunks begins the subjects of chunks.
func (o *Objects) chunks() string { return "$O." + o.name() + ".C." }

// ensureStore creates an object store if it is missing and reports whether it did.
func (c *Conn) ensureStore(ctx context.Context, name string) (id string, made bool, err error) {
	have, err := c.control.js.Stream(ctx, "OBJ_"+name)
	if err == nil {
		return have.CachedInfo().Config.Metadata[metaID], false, nil
	}
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return "", false, err
	}
	st, err := c.control.js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
		Bucket: name, Storage: jetstream.FileStorage, Metadata: map[string]string{metaID: rand.Text()},
	})
	if errors.Is(err, jetstream.ErrBucketExists) { // another agent was faster
		if st, err = c.control.js.ObjectStore(ctx, name); err == nil {
			return storeID(ctx, st)
		}
	}
	if err != nil {
		return "", false, err
	}
	id, _, err = storeID(ctx, st)
	return id, err == nil, err
}

// storeID is what is random about an object store.
func storeID(ctx context.Context, st jetstream.ObjectStore) (id string, made bool, err error) {
	status, err := st.Status(ctx)
	if err != nil {
		return "", false, err
	}
	return status.Metadata()[metaID], false, nil
}

func (o *Objects) fail(what, name string, err error) error {
	return fmt.Errorf("%s object %s in store %s: %w", what, name, o.name(), translate(err))
}

// Put stores what r yields until its end. The object is there, whole and fsynced, once Put has
// returned nil; one that was cut off never shows, and [Objects.Clean] removes its remains. ctx bounds
// the whole call; without a deadline each message has a few seconds.
func (o *Objects) Put(ctx context.Context, name string, r io.Reader) (Object, error) {
	h, err := o.conn.control.js.ObjectStore(ctx, o.name())
	if err != nil {
		return Object{}, o.fail("put", name, err)
	}
	if _, err = h.GetInfo(ctx, name); err == nil {
		return Object{}, o.fail("put", name, fmt.Errorf("%w: the name is taken", ErrConflict))
	}
	if !errors.Is(err, jetstream.ErrObjectNotFound) {
		return Object{}, o.fail("put", name, err)
	}
	put, err := o.put(ctx, name, r)
	if err != nil {
		return Object{}, o.fail("put", name, err)
	}
	return put, nil
}

// Has returns the description of an object; [ErrNotFound] if it is not there whole.
func (o *Objects) Has(ctx context.Context, name string) (Object, error) {
	var d described
	err := o.conn.control.request(ctx, func(ctx context.Context) (err error) {
		d, err = o.described(ctx, name)
		return err
	})
	if err != nil {
		return Object{}, o.fail("look up", name, err)
	}
	return d.object(), nil
}

// described is an object's description as it is stored.
type described struct {
	stream jetstream.Stream
	info   jetstream.ObjectInfo
	raw    []byte
	seq    uint64
}

func (d described) object() Object {
	o := objectOf(&d.info)
	o.Revision = d.seq
	return o
}

// descriptions is the subject of an object's description.
func (o *Objects) descriptions(name string) string {
	return "$O." + o.name() + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

func (o *Objects) described(ctx context.Context, name string) (d described, err error) {
	if d.stream, err = o.conn.control.js.Stream(ctx, o.stream()); err != nil {
		return d, err
	}
	m, err := d.stream.GetLastMsgForSubject(ctx, o.descriptions(name))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(m.Data, &d.info); err != nil {
		return d, fmt.Errorf("its description cannot be read: %w", err)
	}
	if d.info.Deleted {
		return d, fmt.Errorf("%w: its description says that it was deleted", ErrNotFound)
	}
	d.raw, d.seq = m.Data, m.Sequence
	return d, nil
}

// Touch gives an object another revision, so that no [Objects.DeleteRevision] that was decided before takes it away;
// [ErrNotFound] if it is not there whole. Either of two that meet wins, and the other one says so.
func (o *Objects) Touch(ctx context.Context, name string) error {
	for range touches {
		err := o.conn.control.request(ctx, func(ctx context.Context) error {
			d, err := o.described(ctx, name)
			if err != nil {
				return err
			}
			m := nats.NewMsg(o.descriptions(name))
			m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
			m.Data = d.raw
			_, err = o.conn.control.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(d.seq))
			if isWrongSequence(err) {
				err = fmt.Errorf("%w: %w", ErrConflict, err)
			}
			return err
		})
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrConflict) {
			return o.fail("touch", name, err)
		}
	}
	return o.fail("touch", name, fmt.Errorf("%w: %d times in a row somebody else was faster", ErrConflict, touches))
}

func isWrongSequence(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// DeleteRevision removes an object that still has the revision that [Objects.Has] has given, and says whether it did:
// one that was touched since, or stored anew, stays.
func (o *Objects) DeleteRevision(ctx context.Context, was Object) (bool, error) {
	deleted := false
	err := o.conn.control.request(ctx, func(ctx context.Context) error {
		d, err := o.described(ctx, was.Name)
		if errors.Is(translate(err), ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		// The server takes a touch before or after this. Before: it has replaced the message, and nothing is purged.
		// After: what it expects is not there, and it fails.
		if err := d.stream.Purge(ctx, jetstream.WithPurgeSubject(o.descriptions(was.Name)), jetstream.WithPurgeSequence(was.Revision+1)); err != nil {
			return err
		}
		now, err := o.described(ctx, was.Name)
		if err == nil && now.info.NUID == d.info.NUID {
			return nil
		}
		if err != nil && !errors.Is(translate(err), ErrNotFound) {
			return err // if it is gone, Clean finds its chunks
		}
		deleted = true
		return d.stream.Purge(ctx, jetstream.WithPurgeSubject(o.chunks()+d.info.NUID))
	})
	if err != nil {
		return deleted, o.fail("delete", was.Name, err)
	}
	return deleted, nil
}

// lookedUpAtOnce is how many objects are looked up within one request's patience: over a slow link each takes its time.
const lookedUpAtOnce = 4 * askedAtOnce

// Missing returns those of the names that are no objects of the store. It asks for many at the same time.
func (o *Objects) Missing(ctx context.Context, names []string) (missing []string, err error) {
	for some := range slices.Chunk(names, lookedUpAtOnce) {
		more, err := o.missing(ctx, some)
		if err != nil {
			return nil, err
		}
		missing = append(missing, more...)
	}
	return missing, nil
}

func (o *Objects) missing(ctx context.Context, names []string) ([]string, error) {
	missing := make([]bool, len(names))
	err := o.conn.control.request(ctx, func(ctx context.Context) error {
		h, err := o.conn.control.js.ObjectStore(ctx, o.name())
		if err != nil {
			return err
		}
		errs := make([]error, len(names))
		slots := make(chan struct{}, askedAtOnce)
		var asked sync.WaitGroup
		for i, name := range names {
			slots <- struct{}{}
			asked.Go(func() {
				defer func() { <-slots }()
				_, err := h.GetInfo(ctx, name)
				if missing[i] = errors.Is(err, jetstream.ErrObjectNotFound); !missing[i] {
					errs[i] = err
				}
			})
		}
		asked.Wait()
		return errors.Join(errs...)
	})
	if err != nil {
		return nil, o.fail("look up", strings.Join(names, ", "), err)
	}
	var out []string
	for i, name := range names {
		if missing[i] {
			out = append(out, name)
		}
	}
	return out, nil
}

// info returns the store's stream and the description of an object that is there whole.
func (o *Objects) info(ctx context.Context, name string) (st jetstream.Stream, info *jetstream.ObjectInfo, err error) {
	err = o.conn.control.request(ctx, func(ctx context.Context) error {
		h, err := o.conn.control.js.ObjectStore(ctx, o.name())
		if err != nil {
			return err
		}
		if info, err = h.GetInfo(ctx, name); err != nil {
			return err
		}
		st, err = o.conn.control.js.Stream(ctx, o.stream())
		return err
	})
	return st, info, err
}

func objectOf(i *jetstream.ObjectInfo) Object {
	return Object{Name: i.Name, Size: int64(i.Size), Digest: i.Digest, id: i.NUID}
}

// Delete removes an object; it is no error if it is not there. It leaves no mark of the deletion
// behind: names are used once, so marks would add up for ever.
func (o *Objects) Delete(ctx context.Context, name string) error {
	st, info, err := o.info(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err == nil {
		err = o.conn.control.request(ctx, func(ctx context.Context) error { return o.purge(ctx, st, info) })
	}
	if err != nil {
		return o.fail("delete", name, err)
	}
	return nil
}

// purge removes the description first: without it the object is not there, and Clean finds the rest.
func (o *Objects) purge(ctx context.Context, st jetstream.Stream, info *jetstream.ObjectInfo) error {
	if err := st.Purge(ctx, jetstream.WithPurgeSubject(o.descriptions(info.Name))); err != nil {
		return err
	}
	return st.Purge(ctx, jetstream.WithPurgeSubject(o.chunks()+info.NUID))
}

// List returns the store's objects, in the order in which they were stored.
func (o *Objects) List(ctx context.Context) ([]Object, error) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	infos, err := o.list(ctx)
	if err != nil {
		return nil, o.fail("list", "*", err)
	}
	objects := make([]Object, len(infos))
	for i, info := range infos {
		objects[i] = objectOf(info)
	}
	return objects, nil
}

func (o *Objects) list(ctx context.Context) ([]*jetstream.ObjectInfo, error) {
	h, err := o.conn.control.js.ObjectStore(ctx, o.name())
	if err != nil {
		return nil, err
	}
	infos, err := h.List(ctx)
	if errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil, nil
	}
	return infos, err
}

// Get returns an object's bytes. The last Read fails if they are not those that were stored, so
// nothing may be made of them before it has returned io.EOF. The reader asks for chunk after chunk,
// each within a few seconds: it cannot hang, whatever becomes of the store.
func (o *Objects) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	st, info, err := o.info(ctx, name)
	if err != nil {
		return nil, o.fail("get", name, err)
	}
	want, err := digestOf(info.Digest)
	if err != nil {
		return nil, o.fail("get", name, err)
	}
	return &objectReader{
		ctx: ctx, objects: o, name: name, stream: st, want: want, sum: sha256.New(),
		subject: o.chunks() + info.NUID, next: 1, left: int64(info.Size),
	}, nil
}

// digestOf decodes "SHA-256=" and base64.
func digestOf(s string) ([]byte, error) {
	b64, ok := strings.CutPrefix(s, "SHA-256=")
	sum, err := base64.URLEncoding.DecodeString(b64)
	if !ok || err != nil || len(sum) != sha256.Size {
		return nil, fmt.Errorf("object's digest %q is not one of SHA-256", s)
	}
	return sum, nil
}

// objectReader reads an object chunk by chunk.
type objectReader struct {
	ctx     context.Context // of the Get that made it
	objects *Objects
	name    string
	stream  jetstream.Stream
	subject string
	next    uint64 // stream sequence at or after which the next chunk is
	left    int64  // bytes not yet fetched
	chunk   []byte // fetched, not yet read
	sum     hash.Hash
	want    []byte
	err     error // of the end
}

func (r *objectReader) Read(p []byte) (int, error) {
	for len(r.chunk) == 0 {
		if r.err == nil {
			r.err = r.fetch()
		}
		if r.err != nil {
			return 0, r.err
		}
	}
	n := copy(p, r.chunk)
	r.chunk = r.chunk[n:]
	return n, nil
}

// fetch gets the next chunk; io.EOF after the last one if the digest is right.
func (r *objectReader) fetch() error {
	if r.left == 0 {
		if string(r.sum.Sum(nil)) != string(r.want) {
			return r.objects.fail("get", r.name, fmt.Errorf("%w: the bytes do not match the digest", ErrDamaged))
		}
		return io.EOF
	}
	var m *jetstream.RawStreamMsg
	err := r.objects.conn.control.request(r.ctx, func(ctx context.Context) (err error) {
		m, err = r.stream.GetMsg(ctx, r.next, jetstream.WithGetMsgSubject(r.subject))
		return err
	})
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%d bytes are missing at the end: %w", r.left, err)
	}
	if err != nil {
		return r.objects.fail("get", r.name, err)
	}
	if int64(len(m.Data)) > r.left {
		return r.objects.fail("get", r.name, fmt.Errorf("%w: longer than it says", ErrDamaged))
	}
	r.chunk, r.next = m.Data, m.Sequence+1
	r.left -= int64(len(m.Data))
	r.sum.Write(m.Data)
	return nil
}

// Close ends the reading.
func (r *objectReader) Close() error {
	r.chunk, r.err = nil, ErrClosed
	return nil
}

// Clean removes what Puts that were cut off have left, if nothing was added to it for at least
// unused, and returns how many there were. One that is still under way must not be caught: choose
// unused far above the time between two chunks, minutes.
func (o *Objects) Clean(ctx context.Context, unused time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	st, err := o.conn.control.js.Stream(ctx, o.stream())
	if err != nil {
		return 0, o.fail("clean", "*", err)
	}
	prefix := o.chunks()
	info, err := st.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return 0, o.fail("clean", "*", err)
	}
	// Listed after the chunks: an object that was completed in between is found here.
	infos, err := o.list(ctx)
	if err != nil {
		return 0, o.fail("clean", "*", err)
	}
	for _, i := range infos {
		delete(info.State.Subjects, prefix+i.NUID)
	}
	removed := 0
	for subject := range info.State.Subjects {
		ok, err := cleanOne(ctx, st, subject, info.TimeStamp.Add(-unused))
		if err != nil {
			return removed, o.fail("clean", subject, err)
		}
		if ok {
			removed++
		}
	}
	return removed, nil
}

// cleanOne purges the subject's chunks if the last is older than the server's time before.
func cleanOne(ctx context.Context, st jetstream.Stream, subject string, before time.Time) (bool, error) {
	last, err := st.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil || last.Time.After(before) {
		return false, err
	}
	return true, st.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(last.Sequence+1))
}
