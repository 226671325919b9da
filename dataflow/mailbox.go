package dataflow

import "sync"

// mailbox brings completions from other goroutines to the task's. What is in it is bounded by what
// the task has under way: frames in windows, one part, sinks' confirmations.
type mailbox struct {
	mu     sync.Mutex
	queue  []func()
	signal chan struct{}
}

func newMailbox() mailbox { return mailbox{signal: make(chan struct{}, 1)} }

func (m *mailbox) post(f func()) {
	m.mu.Lock()
	m.queue = append(m.queue, f)
	m.mu.Unlock()
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

func (m *mailbox) take() []func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue
	m.queue = nil
	return q
}
