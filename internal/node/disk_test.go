package node

import (
	"testing"
	"time"
)

func TestDiskMeter(t *testing.T) {
	var m diskMeter
	if all, log := m.perHour(diskReading{}); all != 0 || log != 0 {
		t.Errorf("at the start: %v, %v", all, log)
	}
	if all, log := m.perHour(diskReading{30 * time.Minute, 1000, 100}); all != 2000 || log != 200 {
		t.Errorf("without readings, since the start: %v, %v", all, log)
	}
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
