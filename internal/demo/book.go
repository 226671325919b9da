package demo

import (
	"sync"
	"time"

	"github.com/weir-stream/weir/internal/ledger"
)

// book is the ledger as the sensors' and the watcher's goroutines share it.
type book struct {
	mu     sync.Mutex
	ledger *ledger.Ledger
	newest time.Time // when the last new record came
	waits  []wait
}

// wait is somebody who wants to know when the first new reading is counted.
type wait struct {
	match func(sensor string) bool
	sent  map[string]uint64 // seq of each sensor's last reading when the wait began
	at    chan time.Time    // capacity 1
}

func newBook() *book { return &book{ledger: ledger.New()} }

func (b *book) sent(sensor string, seq uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ledger.Sent(sensor, seq)
}

// seen takes a message of a sink.
func (b *book) seen(topic string, payload []byte) {
	now := time.Now()
	r, err := ledger.Decode(topic, payload)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.ledger.SeenOther(err)
		return
	}
	if !b.ledger.Seen(r) {
		return
	}
	b.newest = now
	kept := b.waits[:0]
	for _, w := range b.waits {
		if w.match(r.Sensor) && r.Seq > w.sent[r.Sensor] {
			w.at <- now
		} else {
			kept = append(kept, w)
		}
	}
	b.waits = kept
}

// next tells when the first reading is counted that a sensor that matches sends from now on, or has sent
// and not had acknowledged. What was on its way before does not tell that anything works.
func (b *book) next(match func(sensor string) bool) <-chan time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := wait{match, b.ledger.Newest(), make(chan time.Time, 1)}
	b.waits = append(b.waits, w)
	return w.at
}

func (b *book) totals() ledger.Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ledger.Totals()
}

// quiet is how long no new record has come.
func (b *book) quiet() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.newest)
}

func (b *book) verdict() ledger.Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ledger.Verdict()
}
