package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weir-stream/weir/internal/api"
	"github.com/weir-stream/weir/internal/fleet"
	"github.com/weir-stream/weir/internal/ledger"
)

// Budgets of an agent in a round, far above what is usual and far below what would be a leak.
const (
	maxRSS   = 512 << 20 // bytes
	muchRSS  = 300 << 20 // bytes, worth a line
	maxFiles = 1 << 30   // bytes
)

// sample looks at all agents that can answer.
func (s *theSite) sample() error {
	for _, d := range s.all() {
		if d.down || d.frozen {
			continue
		}
		if !d.Running() {
			return s.ended(d)
		}
		if all, anonymous := rss(d.PID()); all > d.rss {
			if d.rss = all; all > muchRSS {
				s.say("%s has %d MiB of memory, %d MiB of it its own", d.Name, all>>20, anonymous>>20)
			}
		}
		d.files = max(d.files, size(d.stored()))
		if d == s.broker {
			continue
		}
		ctx, cancel := context.WithTimeout(s.ctx, askPatience)
		st, err := d.Client().Status(ctx)
		cancel()
		if err == nil { // else it is just starting, or has its hands full
			s.note(d, st)
		}
	}
	if h := s.devices[0]; !h.down && !h.frozen {
		s.epochs()
	}
	return nil
}

// note takes down how tasks came back.
func (s *theSite) note(d *device, st api.Status) {
	whole := len(st.Tasks) > 0
	for _, t := range st.Tasks {
		whole = whole && t.Recovery != nil && t.Recovery.Done && t.State == api.TaskRunning
		if t.Restarts > 0 && !d.hurt { // a damaged snapshot is found by trying it
			s.unexpected(fmt.Sprintf("%s (start %d) task %s/%s: %d restarts", d.Name, d.starts, t.Job, t.ID, t.Restarts), t.Reason)
		}
		r := t.Recovery
		if r == nil || !r.Done {
			continue
		}
		id := fmt.Sprintf("%s/%s %s %s;", t.Job, t.ID, r.Level, r.At)
		if strings.Contains(d.seen, id) {
			continue
		}
		d.seen += id
		s.recovered[r.Level]++
		if task := t.Job + "/" + t.ID; !r.ForReceivers() && !d.hurt {
			if d.back[task]++; d.back[task] > min(1, d.starts) {
				s.unexpected(fmt.Sprintf("%s (start %d) task %s came back %d times", d.Name, d.starts, task, d.back[task]), r.Reason)
			}
		}
		s.slowest = max(s.slowest, time.Duration(r.TookMS*float64(time.Millisecond)))
		if r.Level == "L4" || r.Level == "L0" || r.Differing > 0 {
			s.unexpected(fmt.Sprintf("%s task %s/%s came back at %s, %d outputs differ", d.Name, t.Job, t.ID, r.Level, r.Differing), r.Reason)
		}
	}
	if whole {
		d.damaged = false
	}
}

// unexpected notes what should not have been.
func (s *theSite) unexpected(what, reason string) {
	if !slices.Contains(s.restarts, what) {
		s.restarts = append(s.restarts, what)
		s.say("UNEXPECTED: %s: %s", what, reason)
	}
}

// rss is the memory that a process has now, and what of it is no file's, in bytes; 0 if it has ended.
func rss(pid int) (all, anonymous int64) {
	all, _ = fleet.Memory(pid, "VmRSS")
	anonymous, _ = fleet.Memory(pid, "RssAnon")
	return all, anonymous
}

// size is what the files below a directory take, in bytes. Files come and go meanwhile.
func size(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// judge waits until everything has come out, or nothing moves any more, and says what is wrong.
func (s *theSite) judge() error {
	for _, d := range s.all() {
		if err := s.within(startPatience, d.WaitReady); err != nil {
			return err
		}
	}
	err := s.until(startPatience+stuckAfter, "the brokers to take all readings", func(context.Context) bool {
		for _, st := range s.streams {
			if !st.sender.Done.Load() {
				return false
			}
		}
		return s.sample() == nil
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	for _, st := range s.streams {
		s.book.sent(st, s.total)
	}
	s.book.newest = time.Now()
	s.mu.Unlock()
	extra, err := s.settle()
	if err != nil {
		return err
	}
	errs := []error{s.verdict(extra), s.jobs(), s.budgets()}
	if len(s.restarts) > 0 {
		errs = append(errs, errors.New("came back, or restarted, as nobody should:\n  "+strings.Join(s.restarts, "\n  ")))
	}
	s.say("recoveries: %v, the slowest took %s", s.recovered, s.slowest.Round(time.Millisecond))
	return errors.Join(append(errs, s.inspect())...)
}

// settle waits. The loop gets, until it has counted all, readings that are above all others, so that they go round.
func (s *theSite) settle() (extra int, err error) {
	began, asked := time.Now(), time.Time{}
	for {
		s.mu.Lock()
		complete := true
		for _, l := range []*ledger.Ledger{s.book.chain, s.book.sensors, s.book.groups} {
			t := l.Totals()
			complete = complete && t.Counted == t.Sent
		}
		want := s.total/sensors + extra
		round := s.book.alarms.complete(gateways*sensors, want) && s.book.learned.complete(gateways*sensors, want)
		complete = complete && s.book.windows.complete()
		quiet := time.Since(s.book.newest)
		s.mu.Unlock()
		if complete && round && quiet > quietFor {
			s.say("settled within %.1f s", (time.Since(began) - quietFor).Seconds())
			return extra, nil
		}
		if quiet > stuckAfter {
			return extra, nil
		}
		if !round && time.Since(asked) > 10*time.Second {
			for _, st := range s.streams {
				if st.job != "loop" {
					continue
				}
				if err := st.sender.Send(s.ctx, sensors); err != nil {
					return extra, err
				}
			}
			extra++
			asked = time.Now()
			if s.mu.Lock(); extra == 1 {
				s.book.newest = time.Now()
			}
			s.mu.Unlock()
		}
		if err := errors.Join(s.trouble(), s.sample()); err != nil {
			return extra, err
		}
		fleet.Sleep(s.ctx, lookEvery)
	}
}

// verdict is whether every sink gave what it had to.
func (s *theSite) verdict(extra int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, sink := range []struct {
		name string
		l    *ledger.Ledger
	}{{"chain", s.book.chain}, {"sensors", s.book.sensors}, {"groups", s.book.groups}} {
		v := sink.l.Verdict()
		s.say("sink %s: sent %d, counted %d, lost %d, duplicated %d, altered %d, repeats on the last hop %d", sink.name, v.Sent, v.Counted, v.Lost, v.Duplicated, v.Altered, v.Repeats)
		if v.Sent == 0 || !v.Exact() {
			errs = append(errs, fmt.Errorf("sink %s is not exact:\n  %s", sink.name, strings.Join(v.Faults, "\n  ")))
		}
		if sink.name == "chain" && s.once() == 2 && v.Repeats > 0 {
			errs = append(errs, fmt.Errorf("sink %s: %d records arrived twice at QoS 2", sink.name, v.Repeats))
		}
	}
	want := s.total/sensors + extra
	for _, sink := range []struct {
		name string
		r    *rounds
	}{{"alarms", s.book.alarms}, {"learned", s.book.learned}} {
		s.say("sink %s: %d rounds of %d readings", sink.name, sink.r.total(), want*gateways*sensors)
		if len(sink.r.faults) > 0 || !sink.r.complete(gateways*sensors, want) {
			errs = append(errs, fmt.Errorf("sink %s is not exact: %d keys of %d\n  %s", sink.name, len(sink.r.keys), gateways*sensors,
				strings.Join(append(sink.r.faults, sink.r.missing(want)...), "\n  ")))
		}
	}
	w := s.book.windows
	windows, late := w.total()
	s.say("sinks windows and late: %d windows, %d readings late", windows, late)
	if late == 0 {
		errs = append(errs, errors.New("no reading was late: the trial is no trial of that"))
	}
	if len(w.faults) > 0 || !w.complete() {
		errs = append(errs, fmt.Errorf("sinks windows and late are not exact:\n  %s", strings.Join(append(w.faults, w.missing()...), "\n  ")))
	}
	if len(s.book.broken) > 0 {
		errs = append(errs, fmt.Errorf("the loop's operators saw %d numbers out of order, such as %s", len(s.book.broken), s.book.broken[0]))
	}
	return errors.Join(errs...)
}

// jobs checks that all tasks run, in the generation in which they began, and that checkpoints go on.
func (s *theSite) jobs() error {
	c := s.devices[0].Client()
	var wrong string
	err := s.until(startPatience, "all tasks to run", func(ctx context.Context) bool {
		wrong = ""
		for _, name := range jobNames {
			j, err := c.Job(ctx, name)
			if err != nil {
				wrong = err.Error()
				return false
			}
			if j.State != api.JobRunning || j.Generation != 1 {
				wrong += fmt.Sprintf("\n  job %s is %s in generation %d %s", name, j.State, j.Generation, j.Reason)
			}
			for _, t := range j.Tasks {
				if t.State != api.TaskRunning || t.DeadLetters > 0 {
					wrong += fmt.Sprintf("\n  %s/%s is %s, %d dead letters %s", name, t.ID, t.State, t.DeadLetters, t.Reason)
				}
			}
		}
		return wrong == ""
	})
	if err != nil {
		return fmt.Errorf("%w%s", err, wrong)
	}
	for _, name := range jobNames {
		if _, err := c.CheckpointNow(s.ctx, name, "", startPatience); err != nil {
			return fmt.Errorf("job %s takes no checkpoint any more: %w", name, err)
		}
	}
	return nil
}

// budgets checks memory and disk.
func (s *theSite) budgets() error {
	var errs []error
	for _, d := range s.all() {
		s.say("%s: started %d times, at most %d MiB of memory, %d MiB of files", d.Name, d.starts+1, d.rss>>20, d.files>>20)
		if d.rss > maxRSS || d.files > maxFiles {
			errs = append(errs, fmt.Errorf("%s has taken %d MiB of memory and %d MiB of files; the budget is %d and %d", d.Name, d.rss>>20, d.files>>20, maxRSS>>20, maxFiles>>20))
		}
	}
	return errors.Join(errs...)
}

// inspect takes the power from everything and looks at all directories.
func (s *theSite) inspect() error {
	var errs []error
	s.fleet.Kill()
	for i, d := range s.all() {
		d.damaged = false
		if d.disk != nil {
			if _, err := d.disk.PowerCut(chance(event{seed: uint64(i)})); err != nil {
				errs = append(errs, err)
			}
		}
		errs = append(errs, s.doctor(d))
	}
	return errors.Join(errs...)
}
