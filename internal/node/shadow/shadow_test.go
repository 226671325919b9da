package shadow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-stream/weir/dataflow"
	"github.com/weir-stream/weir/dataflow/frame"
)

// double is a version of an operator: it puts out what f makes of each record, after how many it has counted.
type double struct {
	n     int
	f     func(n int, r frame.Record, emit func(output int, r frame.Record)) error
	due   []dataflow.TimeCall
	times []dataflow.Moment
}

func (d *double) Process(b dataflow.Batch, emit dataflow.Emit) error {
	for rest := b.Payload; len(rest) > 0; {
		r, after, err := frame.Next(rest)
		if err != nil {
			return err
		}
		d.n++
		var failed error
		err = d.f(d.n, r, func(output int, r frame.Record) {
			failed = errors.Join(failed, emit(output, frame.AppendRecord(nil, r), 1))
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		rest = after
	}
	clear(b.Payload) // it was lent
	return nil
}

func (d *double) Freeze(bool) ([]dataflow.Change, error) { return d.Copy() }
func (d *double) Copy() ([]dataflow.Change, error) {
	return []dataflow.Change{{Space: dataflow.SpaceKeyed, Key: []byte("n"), Value: []byte(strconv.Itoa(d.n))}}, nil
}
func (d *double) Close() error { return nil }

// timedDouble puts out one record for each call that time has made due: timers that were set by hand.
type timedDouble struct{ double }

func (d *timedDouble) Advance(m dataflow.Moment)     { d.times = append(d.times, m) }
func (d *timedDouble) NextTick() (at int64, ok bool) { return 0, false }
func (d *timedDouble) Next() (c dataflow.TimeCall, ok bool) {
	if len(d.due) == 0 {
		return c, false
	}
	c, d.due = d.due[0], d.due[1:]
	return c, true
}
func (d *timedDouble) Call(c dataflow.TimeCall, emit dataflow.Emit) error {
	return emit(0, frame.AppendRecord(nil, frame.Record{Key: c.Key, Time: c.At}), 1)
}

// stage is a slot with two versions that a test writes, and a clock that it sets.
type stage struct {
	t    *testing.T
	slot *Slot
	wg   sync.WaitGroup
	now  time.Time
	mu   sync.Mutex

	fresh  func() dataflow.Operator // makes the new version's instances
	made   []dataflow.OperatorSpec  // that were asked for
	states []string                 // that they were given
	out    []string                 // of the running version
	old    dataflow.Operator        // wrapped
	spec   dataflow.OperatorSpec
}

func newStage(t *testing.T, fresh func() dataflow.Operator) *stage {
	s := &stage{t: t, fresh: fresh, now: time.UnixMilli(1e12)}
	s.spec = dataflow.OperatorSpec{Name: "op", Task: "job/op@g", Digest: "old", Outputs: []string{"main", "side"}, Limits: dataflow.Limits{Time: time.Hour}}
	s.slot = NewSlot(Options{Makers: s, Go: func(f func()) { s.wg.Go(f) }, Now: s.clock, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	s.slot.Run(Wanted{Number: 1, Version: dataflow.OpVersion{Name: "op", Digest: "new", Module: "op@2", Limits: dataflow.Limits{Time: time.Hour}}, With: "keyed state"})
	return s
}

func (s *stage) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *stage) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// New implements [dataflow.Operators]: the new version goes on counting from the state.
func (s *stage) New(_ context.Context, spec dataflow.OperatorSpec, state dataflow.StateReader) (dataflow.Operator, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made = append(s.made, spec)
	op := s.fresh()
	given := ""
	if state != nil {
		if err := state(func(c dataflow.Change) error {
			given += fmt.Sprintf("%s=%s", c.Key, c.Value)
			n, err := strconv.Atoi(string(c.Value))
			switch d := op.(type) {
			case *double:
				d.n = n
			case *timedDouble:
				d.n = n
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	s.states = append(s.states, given)
	return op, nil
}

// play puts the running version on the stage.
func (s *stage) play(op dataflow.Operator) { s.old = s.slot.Beside(op, s.spec) }

func (s *stage) emit(output int, payload []byte, count int) error {
	for len(payload) > 0 {
		r, rest, err := frame.Next(payload)
		if err != nil {
			return err
		}
		s.out = append(s.out, fmt.Sprintf("%d %s=%s", output, r.Key, r.Value))
		payload = rest
	}
	return nil
}

func batch(values ...string) dataflow.Batch {
	b := dataflow.Batch{Stamp: 1000, Count: len(values)}
	for _, v := range values {
		b.Payload = frame.AppendRecord(b.Payload, frame.Record{Time: 7, Key: []byte(v[:1]), Value: []byte(v)})
	}
	return b
}

func (s *stage) process(values ...string) error { return s.old.Process(batch(values...), s.emit) }

func (s *stage) must(values ...string) {
	s.t.Helper()
	if err := s.process(values...); err != nil {
		s.t.Fatal(err)
	}
}

// end ends the instance, waits for what runs in the shadow, and returns what came of it.
func (s *stage) end() Status {
	s.t.Helper()
	if err := s.old.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.wg.Wait()
	st, _ := s.slot.Status()
	return st
}

func (s *stage) putOut(want ...string) {
	s.t.Helper()
	if !slices.Equal(s.out, want) {
		s.t.Errorf("the running version put out\n%q, want\n%q", s.out, want)
	}
}

// same puts out each record with its count.
func same(n int, r frame.Record, emit func(int, frame.Record)) error {
	r.Value = fmt.Appendf(nil, "%s%d", r.Value, n)
	emit(0, r)
	return nil
}

func doubles(f func(int, frame.Record, func(int, frame.Record)) error) func() dataflow.Operator {
	return func() dataflow.Operator { return &double{f: f} }
}

// TestEqual: the new version begins with the state that the running one has by then, under another name, and as its module allows.
func TestEqual(t *testing.T) {
	s := newStage(t, doubles(same))
	old := &double{f: same, n: 3}
	s.play(old)
	s.must("a", "b")
	s.must("c")
	st := s.end()
	if st.Records != 3 || st.Equal != 3 || st.Different+st.Failed+st.Skipped != 0 || st.First != nil || st.Begins != 1 || st.With != "keyed state" {
		t.Errorf("%+v", st)
	}
	s.putOut("0 a=a4", "0 b=b5", "0 c=c6")
	if want := (dataflow.OperatorSpec{
		Name: "op", As: "op (shadow)", Task: "job/op@g", Module: "op@2", Digest: "new", Fresh: true, Outputs: s.spec.Outputs, Limits: dataflow.Limits{Time: maxTime},
	}); !reflect.DeepEqual(s.made, []dataflow.OperatorSpec{want}) || s.states[0] != "n=3" {
		t.Errorf("made %+v with %q", s.made, s.states)
	}
}

// TestNobodyIsWanted: without a new version there is nothing but the running one.
func TestNobodyIsWanted(t *testing.T) {
	s := newStage(t, doubles(same))
	s.slot.End()
	s.play(&double{f: same})
	s.must("a")
	if _, known := s.slot.Status(); known || len(s.made) != 0 {
		t.Errorf("made %v", s.made)
	}
	s.slot.Prepare(Wanted{Number: 2}, Refused, "it does not start")
	s.must("b")
	if st := s.end(); len(s.made) != 0 || st.State != Refused || st.Reason != "it does not start" || st.Skipped != 0 {
		t.Errorf("made %v, %+v", s.made, st)
	}
	s.putOut("0 a=a1", "0 b=b2")
}

// TestDifferent: what differs is counted, and where the versions parted first is told.
func TestDifferent(t *testing.T) {
	long := strings.Repeat("x", 100)
	for name, c := range map[string]struct {
		new       func(n int, r frame.Record, emit func(int, frame.Record)) error
		equal     uint64
		different uint64
		first     Difference
	}{
		"value of record 3": {func(n int, r frame.Record, emit func(int, frame.Record)) error {
			if r.Value = fmt.Appendf(nil, "%s%d", r.Value, n); n == 3 {
				r.Value = []byte("other")
			}
			emit(0, r)
			return nil
		}, 3, 1, Difference{From: 2, To: 4, Output: "main", Index: 1, Key: "c", Part: "value", Old: "c3", New: "other"}},
		"time": {func(n int, r frame.Record, emit func(int, frame.Record)) error {
			r.Time = 8
			return same(n, r, emit)
		}, 0, 4, Difference{From: 1, To: 1, Output: "main", Key: "a", Part: "time", Old: "7", New: "8"}},
		"left out": {func(n int, r frame.Record, emit func(int, frame.Record)) error {
			if n == 2 {
				return nil
			}
			return same(n, r, emit)
		}, 3, 1, Difference{From: 2, To: 4, Output: "main", Key: "b", Part: "missing", Old: "b2"}},
		"another value, then left out": {func(n int, r frame.Record, emit func(int, frame.Record)) error {
			switch n {
			case 2:
				r.Value = []byte("other")
			case 3:
				return nil
			}
			return same(n, r, emit)
		}, 2, 2, Difference{From: 2, To: 4, Output: "main", Key: "b", Part: "value", Old: "b2", New: "other2"}},
		"twice": {func(n int, r frame.Record, emit func(int, frame.Record)) error {
			if n == 4 {
				emit(0, frame.Record{Key: []byte("z"), Value: []byte(long)})
			}
			return same(n, r, emit)
		}, 4, 1, Difference{From: 2, To: 4, Output: "main", Index: 2, Key: "z", Part: "extra", New: long[:maxText] + "…"}},
		"another output": {func(n int, r frame.Record, emit func(int, frame.Record)) error {
			if err := same(n, r, emit); err != nil || n > 1 {
				return err
			}
			emit(1, r)
			return nil
		}, 4, 1, Difference{From: 1, To: 1, Output: "side", Key: "a", Part: "extra", New: "a"}},
		"order": {func(n int, r frame.Record, emit func(int, frame.Record)) error {
			swapped := map[string]string{"b": "c", "c": "b"}
			if to := swapped[string(r.Key)]; to != "" {
				r.Key, r.Value = []byte(to), []byte(to)
				n = 5 - n
			}
			return same(n, r, emit)
		}, 2, 2, Difference{From: 2, To: 4, Output: "main", Key: "b", Part: "key", Old: "b", New: "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, doubles(c.new))
			s.play(&double{f: same})
			s.must("a")
			s.must("b", "c", "d")
			st := s.end()
			c.first.At = time.UnixMilli(1000).UTC()
			if st.Records != 4 || st.Equal != c.equal || st.Different != c.different || st.First == nil || *st.First != c.first {
				t.Errorf("%d records, %d equal, %d different, first %+v\nwant %d, %d, %+v", st.Records, st.Equal, st.Different, st.First, c.equal, c.different, c.first)
			}
			s.putOut("0 a=a1", "0 b=b2", "0 c=c3", "0 d=d4")
		})
	}
}

// TestLongValues are shown where they part.
func TestLongValues(t *testing.T) {
	a, b := apart([]byte(strings.Repeat("x", 200)+"1"), []byte(strings.Repeat("x", 200)+"2"))
	if want := "…" + strings.Repeat("x", 20); a != want+"1" || b != want+"2" {
		t.Errorf("%q, %q", a, b)
	}
}

// TestShadowFails: a version that fails counts, begins anew from the running version's state, not too often, and the
// running version does not notice.
func TestShadowFails(t *testing.T) {
	for name, fail := range map[string]func(emit func(int, frame.Record)) error{
		"trap":  func(func(int, frame.Record)) error { return &dataflow.GuestError{Operator: "op", Reason: "trapped"} },
		"panic": func(func(int, frame.Record)) error { panic("the host is broken") },
		"flood": func(emit func(int, frame.Record)) error {
			big := frame.Record{Key: []byte("k"), Value: make([]byte, frame.MaxRecord/2)}
			for range 2*maxOutput/frame.MaxRecord + 1 {
				emit(0, big)
			}
			return nil
		},
		"foreign output": func(emit func(int, frame.Record)) error { emit(2, frame.Record{}); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, doubles(func(n int, r frame.Record, emit func(int, frame.Record)) error {
				if string(r.Key) == "x" {
					return fail(emit)
				}
				return same(n, r, emit)
			}))
			s.play(&double{f: same})
			var want []string
			for i := range maxBegins + 2 {
				s.must("a")
				s.must("x")
				s.wg.Wait() // it has failed
				want = append(want, fmt.Sprintf("0 a=a%d", 2*i+1), fmt.Sprintf("0 x=x%d", 2*i+2))
			}
			st, _ := s.slot.Status()
			if st.Records != maxBegins || st.Equal != maxBegins || st.Failed != maxBegins || st.Begins != maxBegins || st.Skipped != maxBegins+4 || st.State != Resting || st.Failure == "" {
				t.Errorf("%+v", st)
			}
			if !slices.Equal(s.states, []string{"n=0", "n=2", "n=4", "n=6"}) {
				t.Errorf("begun with %q", s.states)
			}
			s.pass(beginEvery)
			s.must("a")
			if st := s.end(); st.Equal != maxBegins+1 || st.Begins != maxBegins+1 {
				t.Errorf("later: %+v", st)
			}
			s.putOut(append(want, "0 a=a13")...)
		})
	}
}

// TestShadowDoesNotStart: that counts as a failure.
func TestShadowDoesNotStart(t *testing.T) {
	s := newStage(t, nil)
	s.slot.opt.Makers = refusing{}
	s.play(&double{f: same})
	s.must("a", "b")
	if st := s.end(); st.Failed != 1 || st.Skipped != 2 || !strings.Contains(st.Failure, "does not start: no such module") {
		t.Errorf("%+v", st)
	}
	s.putOut("0 a=a1", "0 b=b2")
}

type refusing struct{}

func (refusing) New(context.Context, dataflow.OperatorSpec, dataflow.StateReader) (dataflow.Operator, error) {
	return nil, errors.New("no such module")
}

// TestShadowHangs: the task goes on, what the new version has not come to is bounded, counted and given up.
func TestShadowHangs(t *testing.T) {
	hangs, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s := newStage(t, doubles(func(n int, r frame.Record, emit func(int, frame.Record)) error {
		once.Do(func() { close(hangs); <-release })
		return same(n, r, emit)
	}))
	old := &double{f: same}
	s.play(old)
	s.must("a")
	<-hangs
	for range maxItems {
		s.must("b")
	}
	if st, _ := s.slot.Status(); st.Behind != 0 || st.Records != 0 || st.State != Comparing {
		t.Fatalf("%+v", st)
	}
	s.must("c") // is one too many
	if st, _ := s.slot.Status(); st.Behind != 1 || st.Skipped != 1 || st.State != Resting {
		t.Errorf("%+v", st)
	}
	s.must("d") // another one begins, beside the one that hangs
	close(release)
	st := s.end()
	if st.Records != maxItems+2 || st.Equal != st.Records || st.Skipped != 1 || st.Begins != 2 || old.n != maxItems+3 {
		t.Errorf("%+v, %d taken", st, old.n)
	}
}

// TestShadowIsBoundInBytes: by what waits, whatever its number; one call is always taken.
func TestShadowIsBoundInBytes(t *testing.T) {
	hangs, release := make(chan struct{}), make(chan struct{})
	s := newStage(t, doubles(func(n int, r frame.Record, emit func(int, frame.Record)) error {
		if n == 1 {
			close(hangs)
			<-release
		}
		return same(n, r, emit)
	}))
	s.play(&double{f: same})
	s.must("a")
	<-hangs
	var big []string
	for range maxBytes / (32 << 10) { // and it puts out as much
		big = append(big, strings.Repeat("b", 16<<10))
	}
	s.must(big...)
	s.must("c")
	if st, _ := s.slot.Status(); st.Behind != 1 || st.Skipped != 1 {
		t.Errorf("%+v", st)
	}
	close(release)
	if st := s.end(); st.Records != 1+uint64(len(big)) || st.Equal != st.Records {
		t.Errorf("%+v", st)
	}
}

// TestDroppedWhileItHangs: nothing is heard of it any more, and what it has not come to is dropped.
func TestDroppedWhileItHangs(t *testing.T) {
	hangs, release := make(chan struct{}), make(chan struct{})
	calls := 0
	s := newStage(t, doubles(func(n int, r frame.Record, emit func(int, frame.Record)) error {
		if calls++; calls == 1 {
			close(hangs)
			<-release
		}
		return same(n, r, emit)
	}))
	s.play(&double{f: same})
	s.must("a")
	<-hangs
	s.must("b")
	s.slot.End()
	s.must("c")
	close(release)
	s.end()
	if _, known := s.slot.Status(); known || calls != 1 {
		t.Errorf("%d calls", calls)
	}
	s.putOut("0 a=a1", "0 b=b2", "0 c=c3")
}

// TestRunningVersionRefuses a record: the task takes the records before it again, from its snapshot, one by one. The
// new version is begun anew with each instance, and says what it makes of that record, once.
func TestRunningVersionRefuses(t *testing.T) {
	picky := func(n int, r frame.Record, emit func(int, frame.Record)) error {
		if string(r.Key) == "x" {
			return &dataflow.GuestError{Operator: "op", Reason: "no x"}
		}
		return same(n, r, emit)
	}
	for name, c := range map[string]struct {
		new  func(n int, r frame.Record, emit func(int, frame.Record)) error
		want Status
	}{
		"takes it":    {same, Status{Mended: 1}},
		"refuses too": {picky, Status{RefusedBoth: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, doubles(c.new))
			s.play(&double{f: picky})
			refused := func(values ...string) {
				t.Helper()
				var guest *dataflow.GuestError
				if err := s.process(values...); !errors.As(err, &guest) {
					t.Fatalf("error %v", err)
				}
				if st := s.end(); st.State != Resting {
					t.Fatalf("%+v", st)
				}
				s.play(&double{f: picky})
			}
			refused("a", "x", "b")
			s.must("a")
			refused("x")
			s.must("a")
			refused("x") // the entry was taken again
			s.must("a")
			s.must("b")
			st := s.end()
			if st.Mended != c.want.Mended || st.RefusedBoth != c.want.RefusedBoth || st.Records != 4 || st.Equal != 4 || st.Failed != 0 || st.Skipped != 0 || st.Begins != 4 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestTime: both versions hear of it, and what all calls of a moment put out is compared, whatever calls they are.
func TestTime(t *testing.T) {
	due := func(keys ...string) (out []dataflow.TimeCall) {
		for _, k := range keys {
			out = append(out, dataflow.TimeCall{Kind: dataflow.CallEventTimer, At: 5, Key: []byte(k)})
		}
		return out
	}
	var made *timedDouble
	s := newStage(t, func() dataflow.Operator {
		made = &timedDouble{double{f: same, due: due("a", "c")}}
		return made
	})
	old := &timedDouble{double{f: same}}
	s.play(old)
	timed := s.old.(dataflow.TimedOperator)
	advance := func(m dataflow.Moment, calls int, skip bool) {
		t.Helper()
		timed.Advance(m)
		for c, ok := timed.Next(); ok; c, ok = timed.Next() {
			if calls--; skip {
				continue
			}
			if err := timed.Call(c, s.emit); err != nil {
				t.Fatal(err)
			}
		}
		if calls != 0 {
			t.Errorf("%d calls were not due", calls)
		}
	}
	old.due = due("a", "b")
	m := dataflow.Moment{Watermark: 5, Stamp: 1000}
	advance(m, 2, false)
	s.must("k")
	old.due = due("given up")
	advance(dataflow.Moment{Watermark: 6, Stamp: 1001}, 1, true)
	st := s.end()
	want := Difference{Output: "main", Index: 1, Key: "b", Part: "key", Old: "b", New: "c", At: time.UnixMilli(1000).UTC()}
	if st.Equal != 2 || st.Different != 1 || st.Records != 1 || st.First == nil || *st.First != want || st.Skipped != 1 {
		t.Errorf("%+v, %+v", st, st.First)
	}
	if len(made.times) != 2 || made.times[0] != m {
		t.Errorf("the new version has heard %v", made.times)
	}
	s.putOut("0 a=", "0 b=", "0 k=k1")
}

// TestTimeMattersToOneOfThem: to the running version, or to the new one.
func TestTimeMattersToOneOfThem(t *testing.T) {
	call := []dataflow.TimeCall{{Kind: dataflow.CallEventTimer, Key: []byte("a")}}
	for name, c := range map[string]struct{ old, new dataflow.Operator }{
		"running": {&timedDouble{double{f: same, due: call}}, &double{f: same}},
		"new":     {&double{f: same}, &timedDouble{double{f: same, due: slices.Clone(call)}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, func() dataflow.Operator { return c.new })
			s.play(c.old)
			timed := s.old.(dataflow.TimedOperator)
			timed.Advance(dataflow.Moment{Watermark: 1})
			for due, ok := timed.Next(); ok; due, ok = timed.Next() {
				if err := timed.Call(due, s.emit); err != nil {
					t.Fatal(err)
				}
			}
			if _, ok := timed.NextTick(); ok {
				t.Error("a tick is wanted")
			}
			if st := s.end(); st.Different != 1 || st.Equal != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestSpent: time is told per record of both.
func TestSpent(t *testing.T) {
	var s *stage
	slow := func(d time.Duration) func(n int, r frame.Record, emit func(int, frame.Record)) error {
		return func(n int, r frame.Record, emit func(int, frame.Record)) error {
			s.pass(d)
			return same(n, r, emit)
		}
	}
	s = newStage(t, doubles(slow(3*time.Millisecond)))
	s.play(&double{f: slow(time.Millisecond)})
	s.must("a", "b")
	if st := s.end(); st.OldPerRecord != time.Millisecond || st.NewPerRecord != 3*time.Millisecond {
		t.Errorf("%s and %s", st.OldPerRecord, st.NewPerRecord)
	}
}

// TestCopyFails: the shadow does not begin, and says why.
func TestCopyFails(t *testing.T) {
	s := newStage(t, doubles(same))
	s.play(uncopied{&double{f: same}, errors.New("no copy")})
	s.must("a")
	if st := s.end(); st.Failed != 1 || st.Skipped != 1 || st.Failure != "no copy" || st.State != Resting {
		t.Errorf("%+v", st)
	}
	s = newStage(t, doubles(same))
	s.play(plain{&double{f: same}})
	s.must("a")
	if st := s.end(); st.Equal != 1 || !strings.HasPrefix(st.With, "nothing") {
		t.Errorf("without a copy: %+v", st)
	}
}

type uncopied struct {
	*double
	err error
}

func (u uncopied) Copy() ([]dataflow.Change, error) { return nil, u.err }

// plain is an operator whose state cannot be copied.
type plain struct{ dataflow.Operator } // has the methods of Operator alone
