package node

import (
	"context"
	"sync"
)

// queue passes work from goroutines that must not wait to one that may. What is in it is bounded by
// what makes it: one part, acknowledgement, replica or purge per task and epoch.
type queue[T any] struct {
	mu     sync.Mutex
	items  []T
	signal chan struct{}
}

func newQueue[T any]() *queue[T] { return &queue[T]{signal: make(chan struct{}, 1)} }

func (q *queue[T]) push(item T) {
	q.mu.Lock()
	q.items = append(q.items, item)
	q.mu.Unlock()
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

func (q *queue[T]) take() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = nil
	return items
}

// each calls f for every item until ctx ends.
func (q *queue[T]) each(ctx context.Context, f func(T)) {
	q.batches(ctx, func(items []T) {
		for _, item := range items {
			if ctx.Err() == nil {
				f(item)
			}
		}
	})
}

// batches calls f with what has gathered, until ctx ends.
func (q *queue[T]) batches(ctx context.Context, f func([]T)) {
	for {
		if items := q.take(); len(items) > 0 {
			f(items)
		}
		select {
		case <-ctx.Done():
			return
		case <-q.signal:
		}
	}
}

// noticeBoard holds states that somebody should know of.
type noticeBoard struct {
	mu    sync.Mutex
	texts []string
}

// add puts a notice up, once, and says whether it was not there.
func (n *noticeBoard) add(text string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.texts {
		if t == text {
			return false
		}
	}
	n.texts = append(n.texts, text)
	return true
}

func (n *noticeBoard) list() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string{}, n.texts...)
}
