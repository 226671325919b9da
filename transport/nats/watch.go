package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Event is news of a watched bucket.
type Event struct {
	Entry
	// Deleted: the key has no value any more.
	Deleted bool
	// CaughtUp: all values that were there when the watch began have been given; the entry is empty.
	CaughtUp bool
}

// Watch calls each with the value of every key at or under prefix (all keys if it is empty), then
// once with CaughtUp, then with every change, until ctx ends or each returns an error, which Watch
// returns. Values may be skipped where a newer one has replaced them. While the server is unreachable
// Watch waits; nothing is missed. If the bucket is lost, or has been made anew, or the outage was so
// long that deletions may have been forgotten, Watch returns an error that wraps [ErrLost]: what was
// learnt from it must then be learnt again.
func (kv *KV) Watch(ctx context.Context, prefix string, each func(Event) error) error {
	w := &watch{kv: kv, each: each, prefix: prefix}
	for attempt := 0; ; attempt++ {
		progress, err := w.read(ctx)
		if err := w.over(ctx, err); err != nil {
			return err
		}
		if progress {
			attempt = 0
		}
		if err := sleep(ctx, backoff(attempt)); err != nil {
			return err
		}
	}
}

// watch is the state of one Watch across readings.
type watch struct {
	kv       *KV
	each     func(Event) error
	prefix   string
	id       string // of the bucket; empty before the first reading
	last     uint64 // revision up to which all has been given
	caughtUp bool
	contact  time.Time // when something was last heard from the bucket
}

// eachError marks an error of the callback.
type eachError struct{ error }

// over decides whether an error of a reading ends the watch: the error to end with, or nil.
func (w *watch) over(ctx context.Context, err error) error {
	var own eachError
	switch {
	case errors.As(err, &own):
		return own.error
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, ErrLost):
		return fmt.Errorf("watch of bucket %s: %w", w.kv.name(), err)
	case w.id != "" && time.Since(w.contact) > markerTTL/2:
		return fmt.Errorf("watch of bucket %s: %w: cut off for more than %v: %w", w.kv.name(), ErrLost, markerTTL/2, err)
	}
	return nil
}

// read opens a reader and gives what it yields until it fails. Progress says that it yielded anything.
func (w *watch) read(ctx context.Context) (progress bool, err error) {
	r, err := w.open(ctx)
	if err != nil {
		return false, err
	}
	defer r.close()
	for {
		m, err := r.next(ctx)
		w.contact = time.Now() // heartbeats came until now, or nearly
		if err != nil {
			return progress, err
		}
		progress = true
		if err := w.give(m); err != nil {
			return progress, eachError{err}
		}
	}
}

// open makes a reader that starts where the last one ended, on the same bucket only. Before the
// watch has caught up it starts anew: its first values come in the order of their revisions, but a
// value may be replaced and come later.
func (w *watch) open(ctx context.Context) (*reader, error) {
	src := source{stream: "KV_" + w.kv.name(), filters: w.kv.subjects(w.prefix), last: true}
	if w.caughtUp {
		src.last, src.start = false, w.last+1
	}
	r, err := w.kv.conn.openReader(ctx, w.kv.conn.control, src)
	if err != nil {
		return nil, err
	}
	w.contact = time.Now()
	switch {
	case w.id != "" && r.id != w.id:
		err = fmt.Errorf("%w: the bucket has been made anew", ErrLost)
	case r.target < w.last:
		err = fmt.Errorf("%w: the bucket has gone back from revision %d to %d", ErrLost, w.last, r.target)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	w.id = r.id
	return r, nil
}

func (w *watch) give(m message) error {
	if m.caughtUp {
		if w.caughtUp {
			return nil
		}
		w.caughtUp = true
		return w.each(Event{CaughtUp: true})
	}
	w.last = max(w.last, m.seq)
	e := w.kv.event(m)
	if e.Deleted && !w.caughtUp || e.Key == presentKey {
		return nil
	}
	return w.each(e)
}

// event reads a message of the bucket's stream.
func (kv *KV) event(m message) Event {
	return Event{
		Entry:   Entry{Key: strings.TrimPrefix(m.subject, "$KV."+kv.name()+"."), Value: m.data, Revision: m.seq},
		Deleted: deletes(m.header),
	}
}

// deletes says whether a message marks the end of a key (NATS ADR-8, ADR-43).
func deletes(h nats.Header) bool {
	op := h.Get("KV-Operation")
	return op == "DEL" || op == "PURGE" || h.Get("Nats-Marker-Reason") != ""
}

// subjects are those of the keys at and under a prefix.
func (kv *KV) subjects(prefix string) []string {
	root := "$KV." + kv.name() + "."
	if prefix == "" {
		return []string{root + ">"}
	}
	return []string{root + prefix, root + prefix + ".>"}
}

// List returns the keys at or under prefix with their values, in the order of their keys.
func (kv *KV) List(ctx context.Context, prefix string) ([]Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	entries, err := kv.list(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %s in bucket %s: %w", prefix, kv.name(), err)
	}
	return entries, nil
}

// Keys returns the keys at or under prefix, in order.
func (kv *KV) Keys(ctx context.Context, prefix string) ([]string, error) {
	entries, err := kv.List(ctx, prefix)
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	return keys, err
}

func (kv *KV) list(ctx context.Context, prefix string) ([]Entry, error) {
	src := source{stream: "KV_" + kv.name(), filters: kv.subjects(prefix), last: true}
	r, err := kv.conn.openReader(ctx, kv.conn.control, src)
	if err != nil {
		return nil, err
	}
	defer r.close()
	values := make(map[string]Entry)
	for {
		m, err := r.next(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if m.caughtUp {
			break
		}
		if e := kv.event(m); e.Deleted || e.Key == presentKey {
			delete(values, e.Key)
		} else {
			values[e.Key] = e.Entry
		}
	}
	entries := make([]Entry, 0, len(values))
	for _, e := range values {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return entries, nil
}
