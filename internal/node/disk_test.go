package node

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestDiskMeter(t *testing.T) {
	var m diskMeter
	if all, log := m.perHour(diskReading{}); all != 0 || log != 0 {
		t.Errorf("at the start: %v, %v", all, log)
	}
	m.add(diskReading{10 * time.Second, 5000, 500}) // that was the start
	if all, log := m.perHour(diskReading{time.Minute, 6000, 600}); all != 0 || log != 0 {
		t.Errorf("too early to say: %v, %v", all, log)
	}
	if all, log := m.perHour(diskReading{30*time.Minute + 10*time.Second, 6000, 600}); all != 2000 || log != 200 {
		t.Errorf("since the first reading: %v, %v", all, log)
	}
	m.readings = nil
	for i := range meterFor + 100 {
		m.add(diskReading{time.Duration(i) * time.Hour, int64(i) * 500, int64(i) * 50})
	}
	if len(m.readings) != meterFor {
		t.Errorf("%d readings are kept", len(m.readings))
	}
	last := m.readings[meterFor-1]
	last.at += time.Hour
	if all, log := m.perHour(last); all >= 500 || all < 490 || log >= 50 {
		t.Errorf("after an hour of nothing: %v, %v", all, log)
	}
	if h := hoursThatFit(7<<20, 1<<20); h != 7 {
		t.Errorf("%v hours fit", h)
	}
	if h := hoursThatFit(7<<20, 0); h != 0 {
		t.Errorf("%v hours fit of nothing", h)
	}
}

// TestUnsaved: that snapshots are not saved is logged once a minute, and status says it until they are, or the task
// is gone.
func TestUnsaved(t *testing.T) {
	var u unsaved
	full := errors.New("no space left")
	a, b := &runner{name: "j/a"}, &runner{name: "j/b"}
	for i, c := range []struct {
		task string
		err  error
		at   time.Duration
		news bool
	}{
		{"j/a", nil, 0, false}, {"j/a", full, 0, true}, {"j/a", full, time.Second, false}, {"j/b", full, time.Second, true},
		{"j/a", full, unsavedEvery, true}, {"j/a", full, unsavedEvery + time.Second, false}, {"gone", full, 0, true},
	} {
		if news := u.note(c.task, c.err, c.at); news != c.news {
			t.Errorf("step %d: %v", i, news)
		}
	}
	if got := strings.Join(u.notices([]*runner{a, b}), "\n"); !strings.Contains(got, "no space left") || !strings.Contains(got, "1 more") {
		t.Errorf("%q", got)
	}
	if !u.note("j/a", nil, 0) || u.note("j/a", nil, 0) {
		t.Error("that they are saved again is no news, or is news twice")
	}
	if got := u.notices([]*runner{a, b}); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if got := u.notices([]*runner{a}); got != nil || len(u.tasks) != 0 {
		t.Errorf("%q of a task that is gone", got)
	}
}

// TestDiagnoseDisk: the doctor says that an agent cannot work on a disk, and what to do.
func TestDiagnoseDisk(t *testing.T) {
	for _, c := range []struct {
		free          int64
		readOnly      bool
		state, advice string
	}{
		{leastRoom, false, DiagnosedFine, ""}, {leastRoom - 1, false, DiagnosedFull, "make room"}, {1 << 40, true, DiagnosedLocked, "mount it for writing"},
	} {
		got := diagnoseDisk("d", c.free, c.readOnly)
		if got.State != c.state || !strings.Contains(got.Advice, c.advice) || (c.advice == "") != (got.Advice == "") {
			t.Errorf("%+v: %+v", c, got)
		}
		if d := (&Diagnosis{Items: []DiagnosedItem{got}}); d.Fine() != (c.state == DiagnosedFine) {
			t.Errorf("%+v: fine is %v", c, d.Fine())
		}
	}
	if free, readOnly, known := diskRoom(t.TempDir()); known && (free <= 0 || readOnly) {
		t.Errorf("a directory that was made just now has %d bytes free, read-only is %v", free, readOnly)
	}
}
