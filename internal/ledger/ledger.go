// Package ledger judges a run of a counting job: what was sent against what was counted. It is pure;
// who calls it sees to it that only one does at a time.
//
// A reading is (sensor, seq). It counts as sent once the broker has acknowledged it. The job counts the
// readings of each sensor and its sinks publish every new count under a number of their own channel,
// with the seq of the reading that made it. If nothing is lost and nothing is counted twice, a sensor
// with n readings sent appears with the counts 1 to n and with the seqs that were sent, each under
// exactly one (channel, number).
package ledger

import (
	"fmt"
	"slices"
)

// Record is one record that a sink published.
type Record struct {
	Sensor  string
	Channel string
	Number  uint64 // place of the record in the sink's channel
	Count   uint64 // readings of the sensor that the job has counted so far
	Seq     uint64 // of the reading that was counted last; 0: not told
}

// place identifies a record: a sink may publish it again, but never with other content.
type place struct {
	channel string
	number  uint64
}

// Ledger holds what was sent and what was counted. The zero value is not ready; [New] makes one.
type Ledger struct {
	sensors map[string]*account
	records map[place]Record
	repeats uint64
	altered []Record // the later ones of each place
	alien   uint64   // messages that are no records
	oddity  string   // the first of them
}

// account is what is known of one sensor.
type account struct {
	sent   map[uint64]struct{} // seqs
	newest uint64              // the highest of them
	counts map[uint64]uint64   // count → how many places have it
	seqs   map[uint64]uint64   // seq → how many places have it, of those that tell
	within uint64              // distinct counts in 1 to len(sent), kept as both grow
}

// New makes an empty ledger.
func New() *Ledger {
	return &Ledger{sensors: map[string]*account{}, records: map[place]Record{}}
}

func (l *Ledger) account(sensor string) *account {
	a := l.sensors[sensor]
	if a == nil {
		a = &account{sent: map[uint64]struct{}{}, counts: map[uint64]uint64{}, seqs: map[uint64]uint64{}}
		l.sensors[sensor] = a
	}
	return a
}

// Sent notes that the broker has acknowledged a reading. Noting it again changes nothing.
func (l *Ledger) Sent(sensor string, seq uint64) {
	a := l.account(sensor)
	if _, known := a.sent[seq]; known {
		return
	}
	a.sent[seq] = struct{}{}
	a.newest = max(a.newest, seq)
	if a.counts[uint64(len(a.sent))] > 0 {
		a.within++
	}
}

// Newest is the highest seq of each sensor that the broker has acknowledged.
func (l *Ledger) Newest() map[string]uint64 {
	out := map[string]uint64{}
	for name, a := range l.sensors {
		out[name] = a.newest
	}
	return out
}

// Seen notes a record that a sink published and tells whether it is new: no record was seen in its
// place before.
func (l *Ledger) Seen(r Record) bool {
	at := place{r.Channel, r.Number}
	if before, known := l.records[at]; known {
		if before == r {
			l.repeats++
		} else {
			l.altered = append(l.altered, r)
		}
		return false
	}
	l.records[at] = r
	a := l.account(r.Sensor)
	a.counts[r.Count]++
	if r.Seq != 0 {
		a.seqs[r.Seq]++
	}
	if a.counts[r.Count] == 1 && r.Count >= 1 && r.Count <= uint64(len(a.sent)) {
		a.within++
	}
	return true
}

// SeenOther notes a message that is no record; there should be none.
func (l *Ledger) SeenOther(err error) {
	if l.alien++; l.alien == 1 {
		l.oddity = err.Error()
	}
}

// Totals are sums over all sensors.
type Totals struct {
	Sent    uint64
	Counted uint64 // of what was sent
}

// Totals is cheap enough to be called often. Nothing is missing any more when its fields are equal.
func (l *Ledger) Totals() Totals {
	var t Totals
	for _, a := range l.sensors {
		t.Sent += uint64(len(a.sent))
		t.Counted += a.within
	}
	return t
}

// Verdict is the outcome of a run.
type Verdict struct {
	Totals
	Sensors int
	// Lost are readings sent that are not counted: no record has their seq, or their share of the count.
	Lost uint64
	// Duplicated are records that count a reading again: they have a seq or a count that another place
	// has too, or one above what was sent.
	Duplicated uint64
	// Altered are records seen in the place of another one with other content.
	Altered uint64
	// Alien are messages that are no records.
	Alien uint64
	// Repeats are records seen again with the same content, which QoS 1 allows. They are not judged.
	Repeats uint64
	// Faults describes the first few of each kind of fault.
	Faults []string
}

// Exact tells whether everything that was sent was counted, once.
func (v Verdict) Exact() bool {
	return v.Lost == 0 && v.Duplicated == 0 && v.Altered == 0 && v.Alien == 0
}

// maxFaults bounds the description of each kind of fault: more of them tell nothing new.
const maxFaults = 5

// Verdict judges what has been noted so far.
func (l *Ledger) Verdict() Verdict {
	v := Verdict{Totals: l.Totals(), Sensors: len(l.sensors), Repeats: l.repeats, Altered: uint64(len(l.altered)), Alien: l.alien}
	names := make([]string, 0, len(l.sensors))
	for name := range l.sensors {
		names = append(names, name)
	}
	slices.Sort(names)
	var lost, duplicated []string
	for _, name := range names {
		a := l.sensors[name]
		noCount, noSeq := a.missing()
		if n := max(len(noCount), len(noSeq)); n > 0 {
			v.Lost += uint64(n)
			lost = describe(lost, "%s: %d sent, lost: no record with%s", name, len(a.sent), which(noCount, noSeq))
		}
		twice, again, counts, seqs := a.surplus()
		if n := max(twice, again); n > 0 {
			v.Duplicated += n
			duplicated = describe(duplicated, "%s: %d sent, counted again: %d too many records, with%s", name, len(a.sent), n, which(counts, seqs))
		}
	}
	v.Counted = v.Sent - v.Lost
	v.Faults = append(lost, duplicated...)
	for _, r := range l.altered[:min(len(l.altered), maxFaults)] {
		before := l.records[place{r.Channel, r.Number}]
		v.Faults = append(v.Faults, fmt.Sprintf("%s number %d: %s with count %d seq %d, later %s with count %d seq %d",
			r.Channel, r.Number, before.Sensor, before.Count, before.Seq, r.Sensor, r.Count, r.Seq))
	}
	if l.alien > 0 {
		v.Faults = append(v.Faults, "not a record: "+l.oddity)
	}
	return v
}

func describe(list []string, format string, args ...any) []string {
	if len(list) == maxFaults {
		return list
	}
	return append(list, fmt.Sprintf(format, args...))
}

// which names counts and seqs.
func which(counts, seqs []uint64) string {
	var s string
	if len(counts) > 0 {
		s += " count " + ranges(counts)
	}
	if len(seqs) > 0 {
		s += " seq " + ranges(seqs)
	}
	return s
}

// missing lists the counts from 1 to what was sent, and the seqs that were sent, that no record has.
func (a *account) missing() (counts, seqs []uint64) {
	for n := uint64(1); n <= uint64(len(a.sent)); n++ {
		if a.counts[n] == 0 {
			counts = append(counts, n)
		}
	}
	if len(a.seqs) == 0 {
		return counts, nil
	}
	for seq := range a.sent {
		if a.seqs[seq] == 0 {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return counts, seqs
}

// surplus is how many records there are beyond one for each count, and for each seq, and which they are.
func (a *account) surplus() (twice, again uint64, counts, seqs []uint64) {
	twice, counts = surplus(a.counts, func(n uint64) bool { return n >= 1 && n <= uint64(len(a.sent)) })
	again, seqs = surplus(a.seqs, func(seq uint64) bool { _, sent := a.sent[seq]; return sent })
	return twice, again, counts, seqs
}

func surplus(places map[uint64]uint64, expected func(uint64) bool) (n uint64, which []uint64) {
	for value, times := range places {
		if expected(value) {
			times--
		}
		if times > 0 {
			n += times
			which = append(which, value)
		}
	}
	slices.Sort(which)
	return n, which
}

// ranges writes ascending numbers as "1-3, 7", the first few of them.
func ranges(sorted []uint64) string {
	const shown = 8
	var b []byte
	n := 0
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		if n == shown {
			return string(b) + ", …"
		}
		if n > 0 {
			b = append(b, ", "...)
		}
		if i == j {
			b = fmt.Appendf(b, "%d", sorted[i])
		} else {
			b = fmt.Appendf(b, "%d-%d", sorted[i], sorted[j])
		}
		n++
		i = j + 1
	}
	return string(b)
}
