package dataflow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weir-stream/weir/abs"
	"github.com/weir-stream/weir/dataflow/frame"
)

// versioned makes counters whose output names the digest that they are of. The digest "broken" cannot be
// made, "shy" cannot be made the first time, and "picky" traps on every record.
type versioned struct {
	counters
	shy bool
}

type versionedOp struct {
	*counter
	digest string
}

func (v *versioned) New(ctx context.Context, spec OperatorSpec, state StateReader) (Operator, error) {
	if spec.Digest == "broken" || spec.Digest == "shy" && !v.shy {
		v.shy = true
		return nil, &GuestError{spec.Name, "does not start"}
	}
	op, err := v.counters.New(ctx, spec, state)
	if err != nil {
		return nil, err
	}
	return &versionedOp{op.(*counter), spec.Digest}, nil
}

func (o *versionedOp) Process(b Batch, emit Emit) error {
	if o.digest == "picky" {
		o.lost = true
		return &GuestError{o.name, "trap"}
	}
	return o.counter.Process(b, func(output int, payload []byte, count int) error {
		var out []byte
		for len(payload) > 0 {
			r, rest, err := frame.Next(payload)
			if err != nil {
				return err
			}
			r.Value = fmt.Appendf(nil, "%s/%s", r.Value, o.digest)
			out, payload = frame.AppendRecord(out, r), rest
		}
		return emit(output, out, count)
	})
}

func (p *process) upgrade(number uint64, digest string) {
	p.task.Upgrade(Upgrade{Number: number, Ops: []OpVersion{{Name: "count", Digest: digest}}})
	synctest.Wait()
}

func upgradeDevice(t *testing.T, policy ErrorPolicy) *device {
	spec := sourceSpec(policy)
	spec.Ops[0].Operator.Digest = "v1"
	return newDevice(t, spec)
}

func (d *device) versioned() *process { return d.startMaking(&versioned{}) }

// TestUpgradeIsPartOfTheLog: what came before it is processed by the old version, also in replay from a
// snapshot before it; one after it knows the new version. The state goes on.
func TestUpgradeIsPartOfTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := upgradeDevice(t, "")
		p := d.versioned()
		p.receive("a", "b")
		p.barrier(1)
		p.receive("a")
		p.upgrade(1, "v2")
		p.upgrade(1, "v2")
		p.receive("a", "b")
		p.sync()
		want := []string{"1 a=1/v1", "2 b=1/v1", "3 a=2/v1", "4 a=3/v2", "5 b=2/v2"}
		p.wants("live", want...)
		mustEqual(t, "entries", d.log.kinds(EntryUpgrade), 1)
		mustEqual(t, "upgrade", p.task.Status().Upgraded.Number, 1)

		p.stop(false)
		p = d.versioned()
		p.sync()
		p.wants("from a snapshot before the upgrade", want...)
		p.upgrade(1, "v2")
		mustEqual(t, "entries after a restart", d.log.kinds(EntryUpgrade), 1)
		p.barrier(2)
		p.sync()
		p.receive("b")
		p.sync()
		p.stop(true)

		p = d.versioned()
		p.receive("a")
		p.ticks <- struct{}{}
		p.sync()
		got := p.sink.got()
		mustEqual(t, "from a snapshot after it", strings.Join(got[len(got)-2:], ", "), "6 b=3/v2, 7 a=4/v2")
		st := p.task.Status().Upgraded
		mustEqual(t, "the snapshot's number", st.Number, 1)
		mustEqual(t, "records before", st.Before, Tally{Records: 3})
		synctest.Wait()
		parts, _ := d.store.Parts("")
		versions, err := VersionsOf(parts[len(parts)-1])
		if err != nil || len(versions) != 1 || versions[0].Digest != "v2" {
			t.Fatalf("%+v, %v", versions, err)
		}
		p.stop(false)
	})
}

// TestUpgradeNotSyncedIsLost: nothing of it has been handed over, and it is asked for again.
func TestUpgradeNotSyncedIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := upgradeDevice(t, "")
		p := d.versioned()
		p.receive("a")
		p.sync()
		p.upgrade(1, "v2")
		p.receive("a")
		p.wants("before the log is synced", "1 a=1/v1")
		p.stop(true)
		p = d.versioned()
		p.receive("a")
		p.upgrade(1, "v2")
		p.receive("a")
		p.sync()
		got := p.sink.got()
		mustEqual(t, "after it", strings.Join(got[len(got)-2:], ", "), "2 a=2/v1, 3 a=3/v2")
		p.stop(false)
	})
}

// TestUpgradeThatDoesNotStartIsGivenUp: the second time that it fails; the old version goes on, in replay too,
// and a later upgrade is taken. One that fails once, by a fault of the host, is taken.
func TestUpgradeThatDoesNotStartIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := upgradeDevice(t, PolicyFail)
		p := d.versioned()
		p.receive("a")
		p.upgrade(1, "broken")
		p.receive("a")
		p.sync()
		want := []string{"1 a=1/v1", "2 a=2/v1", "3 a=3/v3", "4 a=4/shy"}
		p.wants("refused", want[:2]...)
		st := p.task.Status().Upgraded
		if st.Number != 1 || !strings.Contains(st.Refused, "does not start") || st.Ops[0].Digest != "v1" {
			t.Fatalf("%+v", st)
		}
		p.upgrade(3, "v3")
		p.upgrade(2, "v2") // an older decision
		p.receive("a")
		p.sync()
		p.upgrade(4, "shy")
		p.receive("a")
		p.sync()
		all := p.sink.got()
		if !slices.Equal(slices.Compact(all), want) {
			t.Fatalf("%q", all)
		}
		mustEqual(t, "given up by the log", d.log.kinds(EntryGiveUp), 1)
		mustEqual(t, "records given up", p.task.Status().GivenUp, 0)
		p.stop(false)
		p = d.startMaking(&versioned{shy: true})
		p.sync()
		p.wants("in replay", want...)
		mustEqual(t, "no longer refused", p.task.Status().Upgraded.Refused, "")
		p.stop(false)
	})
}

// TestTrialKeepsWhatTheNewVersionRefuses: though the operator's policy is to stop, so that the old version can
// be had back.
func TestTrialKeepsWhatTheNewVersionRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := upgradeDevice(t, PolicyFail)
		p := d.versioned()
		p.receive("a")
		p.task.Upgrade(Upgrade{Number: 1, Ops: []OpVersion{{Name: "count", Digest: "picky", Policy: PolicyFail}}, Trial: true})
		synctest.Wait()
		p.receive("b")
		p.receive("a")
		p.sync()
		mustEqual(t, "tally", p.task.upgraded.Since, Tally{Records: 2, Failed: 2})
		mustEqual(t, "dead letters", len(d.dead.recs), 2)
		p.upgrade(2, "v1")
		p.receive("a")
		p.sync()
		got := p.sink.got()
		mustEqual(t, "after the roll-back", got[len(got)-1], "2 a=2/v1")
		mustEqual(t, "tally before", p.task.upgraded.Before, Tally{Records: 2, Failed: 2})
		p.stop(false)
	})
}

// TestTrialIsHeardOfWhileTheTaskReplays: an operator that fails on most records lets the task hardly do anything but
// replay what came before the upgrade; what others see of the upgrade does not go back meanwhile.
func TestTrialIsHeardOfWhileTheTaskReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := upgradeDevice(t, "")
		p := d.versioned()
		p.receive("a")
		p.upgrade(1, "picky")
		p.receive("b")
		p.sync()
		p.ticks <- struct{}{}
		p.sync()
		// What a restart does while the task is alive, up to its first entry.
		p.stop(false)
		s := &p.task.stats
		want := Upgraded{Number: 1, Since: Tally{Records: 1, Failed: 1}, Before: Tally{Records: 1}, Ops: p.task.upgraded.Ops}
		mustEqual(t, "before", fmt.Sprint(s.upgraded), fmt.Sprint(want))
		p.task.loadVersions(Upgraded{}, false)
		mustEqual(t, "in replay", fmt.Sprint(s.upgraded), fmt.Sprint(want))
		p.task.setUpgraded(Upgraded{Number: 1, Since: Tally{Records: 2, Failed: 1}})
		mustEqual(t, "further", s.upgraded.Since, Tally{Records: 2, Failed: 1})
		p.task.setUpgraded(Upgraded{Number: 2})
		mustEqual(t, "the next", s.upgraded.Number, 2)
	})
}

// TestNewGenerationKnowsTheVersionsOfItsBase: an upgrade that a task had not taken is made up for, and entries
// of an older generation mean nothing.
func TestNewGenerationKnowsTheVersionsOfItsBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := upgradeDevice(t, "")
		p := d.versioned()
		p.receive("a")
		p.sync()
		p.barrier(1)
		p.sync()
		p.upgrade(1, "v2")
		p.sync()
		p.stop(false)
		parts, err := d.store.Parts("")
		if err != nil {
			t.Fatal(err)
		}
		d.base, d.floor = &parts[len(parts)-1], 2
		d.spec.Generation = 2
		d.spec.Ops[0].Operator.Digest = "v3"
		fresh := &freshly{}
		p = d.startMaking(fresh)
		p.receive("a")
		p.sync()
		mustEqual(t, "made anew", fresh.said, "v3 fresh true;")
		mustEqual(t, "number", p.task.Status().Upgraded.Number, 0)
		p.upgrade(1, "v4")
		mustEqual(t, "made anew", fresh.said, "v3 fresh true;v4 fresh true;")
		d.spec.Ops[0].Operator.Limits.Output = 7
		p.task.Upgrade(Upgrade{Number: 2, Ops: []OpVersion{{Name: "count", Digest: "v4", Limits: Limits{Output: 7}}, {Name: "other", Digest: "v1"}}})
		synctest.Wait()
		mustEqual(t, "other limits keep the variables", fresh.said, "v3 fresh true;v4 fresh true;v4 fresh false;")
		p.stop(false)
	})
}

// TestOldRecordsAreOfOldVersions: a gateway that was away when its job changed makes again what it has made with the
// versions that made it. What comes behind is of the new plan, and of upgrades of the new generation.
func TestOldRecordsAreOfOldVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := upgradeDevice(t, "")
		p := d.versioned()
		p.receive("a")
		p.sync()
		p.barrier(1)
		p.sync()
		p.receive("a")
		p.upgrade(1, "v2")
		p.receive("a")
		p.sync()
		p.wants("before", "1 a=1/v1", "2 a=2/v1", "3 a=3/v2")
		p.stop(false)
		parts, err := d.store.Parts("")
		if err != nil {
			t.Fatal(err)
		}
		d.base, d.floor, d.spec.Generation = &parts[len(parts)-1], 2, 2
		d.spec.Ops[0].Operator.Digest = "v3"
		want := []string{"1 a=1/v1", "2 a=2/v1", "3 a=3/v2"}
		for n := 4; n <= 6; n++ { // the first begins the generation, the others go on from what is there
			p = d.versioned()
			p.upgrade(uint64(n/6), "v4")
			p.receive("a")
			p.sync()
			want = append(want, fmt.Sprintf("%d a=%d/%s", n, n, map[int]string{4: "v3", 5: "v3", 6: "v4"}[n]))
			p.wants(fmt.Sprint("with record ", n), want...)
			mustEqual(t, "number", p.task.Status().Upgraded.Number, uint64(n/6))
			if n == 5 {
				p.barrier(3)
				p.sync()
			}
			p.stop(n == 4)
		}
	})
}

// TestOldRecordsOfTwoChanges: away again before a part of the next generation counts, a gateway begins the one after it
// from the part of before both, and makes again what it has made in between with the versions of in between.
func TestOldRecordsOfTwoChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := upgradeDevice(t, "")
		p := d.versioned()
		p.receive("a")
		p.sync()
		p.barrier(1)
		p.sync()
		p.stop(false)
		parts, err := d.store.Parts("")
		if err != nil {
			t.Fatal(err)
		}
		base := parts[len(parts)-1]
		d.base = &base
		want := []string{"1 a=1/v1"}
		for gen := 2; gen <= 4; gen++ {
			d.floor, d.spec.Generation = abs.Epoch(gen), abs.Generation(gen)
			d.spec.Ops[0].Operator.Digest = map[int]string{2: "v2", 3: "v3", 4: "v3"}[gen]
			p = d.versioned()
			p.receive("a")
			p.sync()
			want = append(want, fmt.Sprintf("%d a=%d/%s", gen, gen, d.spec.Ops[0].Operator.Digest))
			p.wants(fmt.Sprint("generation ", gen), want...)
			p.stop(false)
		}
	})
}

// TestPlanIsLoggedOnce: a generation that is begun twice, with records in the log and no part of it kept, says once where
// its plan begins: what a second entry would do to a generation that begins from before both is done already.
func TestPlanIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := upgradeDevice(t, "")
		p := d.versioned()
		p.receive("a")
		p.barrier(1)
		p.sync()
		p.stop(false)
		before := slices.Clone(d.store.parts)
		d.base, d.floor, d.spec.Generation = &before[len(before)-1], 2, 2
		d.spec.Ops[0].Operator.Digest = "v2"
		want := []string{"1 a=1/v1"}
		for n := 2; n <= 3; n++ {
			p = d.versioned()
			p.receive("a")
			p.sync()
			want = append(want, fmt.Sprintf("%d a=%d/v2", n, n))
			p.wants(fmt.Sprint("with record ", n), want...)
			p.stop(false)
			d.store.parts = before // the first part of the generation was not saved
			mustEqual(t, "entries", d.log.kinds(EntryUpgrade), 1)
		}
		d.floor, d.spec.Generation = 3, 3
		d.spec.Ops[0].Operator.Digest = "v3"
		p = d.versioned()
		p.receive("a")
		p.sync()
		p.wants("the next generation", append(want, "4 a=4/v3")...)
		p.stop(false)
	})
}

// freshly notes how operators were made.
type freshly struct {
	versioned
	said string
}

func (f *freshly) New(ctx context.Context, spec OperatorSpec, state StateReader) (Operator, error) {
	f.said += fmt.Sprintf("%s fresh %v;", spec.Digest, spec.Fresh)
	return f.versioned.New(ctx, spec, state)
}

func TestUpgradeEntryIsChecked(t *testing.T) {
	e := upgradeEntry{3, Upgrade{Number: 9, Ops: []OpVersion{{Name: "a", Digest: "d", Config: map[string]string{"k": "v"}, Anew: 4}}}}
	got, err := decodeUpgrade(e.encode())
	if err != nil || got.generation != 3 || got.Number != 9 || !got.Ops[0].equal(e.Ops[0]) {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "\x01", "\x01{", "\x01[]"} {
		if _, err := decodeUpgrade([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestUpgradeEntryGolden pins the format: logs outlive versions.
func TestUpgradeEntryGolden(t *testing.T) {
	e := upgradeEntry{300, Upgrade{Number: 9, Ops: []OpVersion{
		{Name: "a", Module: "a@1", Digest: "d", Config: map[string]string{"k": "v"}, Limits: Limits{Memory: 1 << 20}, Policy: PolicySkip, Anew: 4}, {Name: "b"},
	}}}
	const want = "\xac\x02" + `{"number":9,"ops":[{"name":"a","module":"a@1","digest":"d","config":{"k":"v"},` +
		`"limits":{"Memory":1048576,"Time":0,"Output":0,"State":0,"LogRate":0,"Timers":0},"policy":"skip","anew":4},{"name":"b"}]}`
	if got := string(e.encode()); got != want {
		t.Errorf("have %q\nwant %q", got, want)
	}
}

// FuzzUpgradeEntry: what decodes says the same when it is encoded and decoded again; all else is an error of the known kind.
func FuzzUpgradeEntry(f *testing.F) {
	f.Add(upgradeEntry{3, Upgrade{Number: 9, Ops: []OpVersion{{Name: "a", Digest: "d", Config: map[string]string{"k": "v"}, Anew: 4}}}}.encode())
	f.Add([]byte("\x01{"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeUpgrade(b)
		if err != nil {
			if !errors.Is(err, errEntry) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		once := e.encode()
		again, err := decodeUpgrade(once)
		if err != nil || !bytes.Equal(again.encode(), once) {
			t.Fatalf("%q became %q, %v", once, again.encode(), err)
		}
	})
}
