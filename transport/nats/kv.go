package nats

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Bucket is one of the control plane's key-value buckets.
type Bucket string

// Buckets of the control plane.
const (
	Agents      Bucket = "agents"
	Jobs        Bucket = "jobs"
	Checkpoints Bucket = "checkpoints"
	Operators   Bucket = "operators"
	Meta        Bucket = "meta" // the cluster's identity, leases
)

// Store is one of the object stores.
type Store string

// Object stores.
const (
	Modules   Store = "modules"
	Snapshots Store = "snapshots"
)

var (
	buckets = []Bucket{Agents, Jobs, Checkpoints, Operators, Meta}
	stores  = []Store{Modules, Snapshots}
)

const (
	// presentKey is in every bucket from the beginning, never shown, and no [Key]. A bucket without
	// it has lost what was in it, even if the server knows its name.
	presentKey = "=present"
	// metaID in a stream's metadata is random and tells it from a later one of the same name.
	metaID = "weir-id"
	// markerTTL is how long the mark that a key was deleted is kept, without which deleted keys
	// would add up for ever. A watch that was cut off for half of it ends with [ErrLost].
	markerTTL = 24 * time.Hour
	// kvHistory is how many revisions of a key are kept.
	kvHistory = 1
)

// Entry is a key's value. Revisions of a bucket grow and are never used twice while it lives.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
}

// KV is one key-value bucket. Keys are made by [Key]. Every call ends after a few seconds at most,
// even if its context does not.
type KV struct {
	conn   *Conn
	bucket Bucket

	mu     sync.Mutex
	handle jetstream.KeyValue // nil: to be opened
}

// KV returns a bucket, without asking the server whether it is there: see [Conn.Ensure].
func (c *Conn) KV(b Bucket) *KV { return &KV{conn: c, bucket: b} }

func (c *Conn) bucketName(name string) string { return c.names.prefix + "-" + name }

// Cluster is what [Conn.Ensure] found.
type Cluster struct {
	// ID is made of what is random about each bucket and object store; another one says that the
	// control plane, or a part of it, is another one: what it held must be brought to it again.
	ID string
	// Created lists the buckets and object stores that were missing, or empty where they should not
	// be; one agent alone gets this. If the identity is known all the same, the server has lost them.
	Created []string
}

// Ensure creates the buckets and object stores that are missing and returns the cluster's identity.
func (c *Conn) Ensure(ctx context.Context) (Cluster, error) {
	var cl Cluster
	identity := sha256.New()
	ensure := func(name string, create func(context.Context, string) (id string, made bool, err error)) error {
		made := false
		err := c.control.request(ctx, func(ctx context.Context) (err error) {
			var id string
			id, made, err = create(ctx, c.bucketName(name))
			fmt.Fprintf(identity, "%s %s\n", name, id)
			return err
		})
		if err != nil {
			return fmt.Errorf("bucket %s: %w", c.bucketName(name), err)
		}
		if made {
			cl.Created = append(cl.Created, name)
		}
		return nil
	}
	for _, b := range buckets {
		if err := ensure(string(b), c.ensureBucket); err != nil {
			return cl, err
		}
	}
	for _, s := range stores {
		if err := ensure(string(s), c.ensureStore); err != nil {
			return cl, err
		}
	}
	cl.ID = hex.EncodeToString(identity.Sum(nil)[:16])
	return cl, nil
}

// Renew gives a control plane of this identity another one, which says that what it held must be brought to it
// again. One that has another identity already keeps it.
func (c *Conn) Renew(ctx context.Context, id string) error {
	cl, err := c.Ensure(ctx)
	if err != nil || cl.ID != id {
		return err
	}
	kv := c.KV(Checkpoints)
	e, err := kv.Get(ctx, presentKey)
	if err == nil {
		_, err = kv.Update(ctx, presentKey, []byte(rand.Text()), e.Revision)
	}
	if errors.Is(err, ErrConflict) {
		return nil // another agent was faster
	}
	return err
}

// ensureBucket creates a bucket if it is missing and reports whether it was, or what was in it. The
// bucket's identity is a key in it, so that it goes with what is in it.
func (c *Conn) ensureBucket(ctx context.Context, name string) (id string, made bool, err error) {
	if id, err := c.bucketID(ctx, name); err == nil {
		return id, false, nil
	}
	h, err := c.control.js.KeyValue(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		h, err = c.control.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: name, History: kvHistory, Storage: jetstream.FileStorage, LimitMarkerTTL: markerTTL,
			Metadata: map[string]string{metaID: rand.Text()},
		})
	}
	if errors.Is(err, jetstream.ErrBucketExists) { // another agent was faster
		h, err = c.control.js.KeyValue(ctx, name)
	}
	if err != nil {
		return "", false, err
	}
	id = rand.Text()
	_, err = h.Create(ctx, presentKey, []byte(id))
	if !errors.Is(err, jetstream.ErrKeyExists) {
		return id, err == nil, err
	}
	v, err := h.Get(ctx, presentKey)
	if err != nil {
		return "", false, err
	}
	return string(v.Value()), false, nil
}

// bucketID reads the identity of a bucket in one request that its stream answers by itself: every agent asks every few
// seconds. An error says that something is missing, or not to be reached.
func (c *Conn) bucketID(ctx context.Context, name string) (string, error) {
	m, err := c.control.nc.RequestWithContext(ctx, c.control.api+"DIRECT.GET.KV_"+name+".$KV."+name+"."+presentKey, nil)
	switch {
	case err != nil:
		return "", err
	case m.Header.Get("Status") != "" || deletes(m.Header) || len(m.Data) == 0:
		return "", ErrNotFound
	}
	return string(m.Data), nil
}

// do runs one operation within its time limit. The library's handle is kept until an operation finds
// the server or the bucket away; the next one then learns which.
func (kv *KV) do(ctx context.Context, what, key string, f func(context.Context, jetstream.KeyValue) error) error {
	err := kv.conn.control.request(ctx, func(ctx context.Context) error {
		h, err := kv.open(ctx)
		if err == nil {
			err = f(ctx, h)
		}
		return err
	})
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrUnavailable) {
		kv.mu.Lock()
		kv.handle = nil
		kv.mu.Unlock()
	}
	return fmt.Errorf("%s %s in bucket %s: %w", what, key, kv.name(), err)
}

func (kv *KV) open(ctx context.Context) (jetstream.KeyValue, error) {
	kv.mu.Lock()
	h := kv.handle
	kv.mu.Unlock()
	if h != nil {
		return h, nil
	}
	h, err := kv.conn.control.js.KeyValue(ctx, kv.name())
	if err != nil {
		return nil, err
	}
	kv.mu.Lock()
	kv.handle = h
	kv.mu.Unlock()
	return h, nil
}

func (kv *KV) name() string { return kv.conn.bucketName(string(kv.bucket)) }

// Get returns a key's value; [ErrNotFound] if it has none.
func (kv *KV) Get(ctx context.Context, key string) (Entry, error) {
	var e Entry
	err := kv.do(ctx, "get", key, func(ctx context.Context, h jetstream.KeyValue) error {
		v, err := h.Get(ctx, key)
		if err == nil {
			e = Entry{Key: key, Value: v.Value(), Revision: v.Revision()}
		}
		return err
	})
	return e, err
}

// Create stores the value of a key that has none and returns its revision; else [ErrConflict].
func (kv *KV) Create(ctx context.Context, key string, value []byte) (rev uint64, err error) {
	err = kv.do(ctx, "create", key, func(ctx context.Context, h jetstream.KeyValue) (err error) {
		rev, err = h.Create(ctx, key, value)
		return err
	})
	return rev, err
}

// Update replaces the value of a key that has this revision and returns the new one; else [ErrConflict].
func (kv *KV) Update(ctx context.Context, key string, value []byte, rev uint64) (next uint64, err error) {
	err = kv.do(ctx, "update", key, func(ctx context.Context, h jetstream.KeyValue) (err error) {
		next, err = h.Update(ctx, key, value, rev)
		return err
	})
	return next, err
}

// Put stores a key's value whatever it was and returns its revision.
func (kv *KV) Put(ctx context.Context, key string, value []byte) (rev uint64, err error) {
	err = kv.do(ctx, "put", key, func(ctx context.Context, h jetstream.KeyValue) (err error) {
		rev, err = h.Put(ctx, key, value)
		return err
	})
	return rev, err
}

// Delete removes a key; it is no error if it has no value.
func (kv *KV) Delete(ctx context.Context, key string) error {
	return kv.do(ctx, "delete", key, func(ctx context.Context, h jetstream.KeyValue) error {
		return h.Purge(ctx, key, jetstream.PurgeTTL(markerTTL))
	})
}

// DeleteRevision removes a key that has this revision; else [ErrConflict].
func (kv *KV) DeleteRevision(ctx context.Context, key string, rev uint64) error {
	return kv.do(ctx, "delete", key, func(ctx context.Context, h jetstream.KeyValue) error {
		return h.Purge(ctx, key, jetstream.PurgeTTL(markerTTL), jetstream.LastRevision(rev))
	})
}

// Drop removes all keys under a prefix, but not the prefix itself, at once, and leaves no marks behind: a watch may not
// hear of it. It costs two requests, where a [KV.Delete] per key costs one each and a mark that stays for a day.
func (kv *KV) Drop(ctx context.Context, prefix string) error {
	if prefix == "" {
		panic("nats: Drop of a whole bucket") // its identity is in it
	}
	return kv.do(ctx, "drop keys under", prefix, func(ctx context.Context, _ jetstream.KeyValue) error {
		st, err := kv.conn.control.js.Stream(ctx, "KV_"+kv.name())
		if err != nil {
			return err
		}
		return st.Purge(ctx, jetstream.WithPurgeSubject("$KV."+kv.name()+"."+prefix+".>"))
	})
}
