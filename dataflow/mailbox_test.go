package dataflow

import (
	"sync"
	"testing"
)

func TestMailbox(t *testing.T) {
	m := newMailbox()
	if got := m.take(); len(got) != 0 {
		t.Fatalf("%d in a new one", len(got))
	}
	var got []int
	for i := range 3 {
		m.post(func() { got = append(got, i) })
	}
	<-m.signal
	select {
	case <-m.signal:
		t.Fatal("signalled twice for what is taken at once")
	default:
	}
	for _, f := range m.take() {
		f()
	}
	for i, n := range got {
		mustEqual(t, "order", n, i)
	}
	mustEqual(t, "calls", len(got), 3)
	mustEqual(t, "left", len(m.take()), 0)
}

// TestMailboxLosesNoSignal: whoever takes after each signal has taken everything in the end.
func TestMailboxLosesNoSignal(t *testing.T) {
	const posters, each = 4, 200
	m := newMailbox()
	var wg sync.WaitGroup
	for range posters {
		wg.Go(func() {
			for range each {
				m.post(func() {})
			}
		})
	}
	for n := 0; n < posters*each; {
		<-m.signal
		n += len(m.take())
	}
	wg.Wait()
	mustEqual(t, "left", len(m.take()), 0)
}
