package dataflow

import (
	"slices"
	"testing"

	"github.com/weir-stream/weir/abs"
)

// resumer is a shelf that resumes.
type resumer struct {
	shelf
	logged abs.Seq
}

func (r *resumer) Resumes() bool       { return true }
func (r *resumer) Logged(upto abs.Seq) { r.logged = upto }

func (r *resumer) pasts() []Past {
	var out []Past
	for _, it := range r.items {
		out = append(out, it.Past)
	}
	return out
}

func resumingPort() (*sinkPort, *resumer) {
	r := &resumer{shelf: shelf{room: unlimited}}
	return newSinkPort(3, SinkSpec{Name: "alarms", Channel: "alarms@g1"}, r), r
}

// Nothing is offered before the log holds that it may be sent.
func TestResumingSinkIsOfferedWhatTheLogLetsIt(t *testing.T) {
	s := newSequence(5)
	p, sink := resumingPort()
	mustAdd(t, p, s, 3)
	e, due := p.progress()
	mustEqual(t, "due", due, true)
	mustEqual(t, "entry", e, sinkEntry{3, 4 + sendAhead, 0})
	p.offer(9, 0)
	mustNumbers(t, "before the entry", sink.numbers())
	p.resume.progressed(e, 12)
	p.offer(11, 0)
	mustNumbers(t, "before its sync", sink.numbers())
	p.offer(12, 0)
	mustNumbers(t, "after it", sink.numbers(), 1, 2, 3)
	if e, due := p.progress(); due {
		t.Errorf("another entry %+v without need", e)
	}
	if !slices.Equal(sink.pasts(), []Past{PastNone, PastNone, PastNone}) {
		t.Errorf("pasts %v", sink.pasts())
	}
}

// The sink hears of what it has reported only when it is durable, and not before what was handed over
// before is logged.
func TestResumingSinkHearsWhatIsDurable(t *testing.T) {
	s := newSequence(5)
	p, sink := resumingPort()
	mustAdd(t, p, s, 5)
	e, _ := p.progress()
	p.resume.progressed(e, 6)
	p.offer(9, 0)
	p.resume.received = 4
	e, due := p.progress()
	mustEqual(t, "entry", e, sinkEntry{3, 6 + sendAhead, 4})
	mustEqual(t, "due", due, true)
	p.resume.progressed(e, 20)
	p.offer(19, 0)
	mustEqual(t, "before the sync", sink.logged, 0)
	p.offer(20, 0)
	mustEqual(t, "after it", sink.logged, 4)
	p.confirm(2)
	p.logged = 0 // the log was full
	p.resume.received = 5
	if e, due := p.progress(); due {
		t.Errorf("entry %+v before that of what was handed over", e)
	}
	p.news()
	e, due = p.progress()
	mustEqual(t, "received", e.received, 5)
	mustEqual(t, "due", due, true)
}

// After a restart each item has the past that the log says; what was never let go has none.
func TestResumingSinkPasts(t *testing.T) {
	s := newSequence(9)
	p, sink := resumingPort()
	p.handed, p.handedSum, p.logged, p.taken = 2, s.sum(3), 2, 2
	p.resume.found(6, 3, 0)
	p.resume.found(7, 4, 30) // read from the log, and not yet synced
	p.resume.begin()
	if err := p.seek(1, 0, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, p, s, 9)
	p.offer(29, 0)
	mustNumbers(t, "before the sync", sink.numbers())
	mustEqual(t, "durable", sink.logged, 0)
	e, _ := p.progress()
	p.resume.progressed(e, 31)
	p.offer(31, 0)
	mustNumbers(t, "after it", sink.numbers(), 3, 4, 5, 6, 7, 8, 9)
	mustEqual(t, "durable", sink.logged, 4)
	want := []Past{PastReceived, PastReceived, PastSent, PastSent, PastSent, PastNone, PastNone}
	if !slices.Equal(sink.pasts(), want) {
		t.Errorf("pasts %v, want %v", sink.pasts(), want)
	}
	p.resume.begin() // restored within the same life: what was let go in it is no past
	if p.resume.pastOf(9) != PastNone {
		t.Error("what this life lets go has a past")
	}
}
